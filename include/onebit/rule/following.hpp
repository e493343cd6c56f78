// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/core/concepts.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/core/param_group.hpp>
#include <onebit/core/step_context.hpp>
#include <onebit/core/step_state.hpp>
#include <onebit/rule/moments.hpp>
#include <utility>

/// How v follows in compressed steps: from the squares that each rank keeps of its own gradients.
namespace onebit::inline v0_2 {

/// The next local momentum as a message: base + beta1 m + (1 - beta1) g, m the previous mean and g
/// in `units`. It starts from the base, so that a momentum held as beta1 m in the base gives the
/// same bits.
template <class View, class P, class G>
struct momentum_message {
  static constexpr bool single_word = SingleWordField<View> || requires { View::n_slots; };
  View momentum;
  const tensor_entry<P, G>* tensors;
  const tensor_scalars* scalars;
  const step_scalars* now;
  direction_units units{};

  template <class L>
  struct reader {
    typename View::template reader<L> momentum;
    gradients_of<L, G> gradient;
    moments_constants c;
    direction_units::reader<L> in_units;
    ONEBIT_HD typename L::value operator()(std::uint32_t k, const typename L::value& base) const {
      const auto g = in_units(k, gradient.load(k));
      return L::fma(g, L::set(c.one_minus_beta1), L::fma(momentum(k), L::set(c.beta1), base));
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t index) const {
    const tensor_scalars& of = scalars[t.tensor];
    return {momentum.template at<L>(t, index), gradients_of<L, G>(tensors[t.tensor], t, now), of.c,
            units.at<L>(t, of)};
  }
};

namespace detail {

/// What a residual becomes when directions change their units: ratio base + (ratio - 1) beta1 m, so
/// that it and beta1 m of the message that was agreed are both in the new ones. An element that has
/// come to life has ratio 0: what was agreed said nothing of it.
template <class View>
struct rescaled_direction {
  View previous;
  const float* ratios;  ///< by element: old denominator over new
  const tensor_scalars* scalars;

  template <class L>
  struct reader {
    typename View::template reader<L> previous;
    const float* ratios;
    float beta1;
    ONEBIT_HD typename L::value operator()(std::uint32_t k, const typename L::value& base) const {
      const auto held = L::mul(previous(k), L::set(beta1));
      return L::sub(L::mul(L::add(base, held), L::load(ratios + 32 * k)), held);
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t index) const {
    return {previous.template at<L>(t, index), ratios + t.word * 32, scalars[t.tensor].own_beta1};
  }
};

inline constexpr std::size_t sketch_floats = 64;  ///< a tile

/// A bit per element of a word: the same on all ranks, whatever their number. Source: splitmix64.
ONEBIT_HD std::uint32_t sketch_signs(std::size_t word, std::uint32_t step = 0) {
  std::uint64_t h = (word + 1) * 0x9E3779B97F4A7C15U + step * 0xD1B54A32D192ED03U;
  h = (h ^ h >> 30U) * 0xBF58476D1CE4E5B9U;
  h = (h ^ h >> 27U) * 0x94D049BB133111EBU;
  return static_cast<std::uint32_t>(h >> 32U);
}

/// A sketch of this rank's gradient: 64 sums a tile, with signs that are the same on all ranks and
/// others in each step; and by tile the squares of the sketch, and of the gradient. Sketches are
/// linear: the squares of the ranks' mean add up to those of the mean gradient, to a relative
/// sqrt(2 / 64) a tile. Their ratio to those of the ranks' sketches is closer: it is 1 to the
/// digit where ranks agree.
template <class P, class G>
struct gradient_sketch_kernel {
  const tile* tiles;
  const tensor_entry<P, G>* tensors;
  const step_scalars* now;
  float *sketch, *sketch_squares, *squares;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const gradients_of<L, G> gradient(tensors[t.tensor], t, now);
    auto of_sketch = L::set(0.0F), of_gradient = of_sketch;
    for (std::uint32_t row = 0; row < sketch_floats / 32; ++row) {
      auto sum = L::set(0.0F);
      for (std::uint32_t k = row; k < t.n_words(); k += sketch_floats / 32) {
        const auto g = gradient.load(k);
        const std::uint32_t signs = sketch_signs(t.word + k, now->number);
        sum = L::add(sum, L::with_sign(L::load_bits(&signs), g));
        of_gradient = L::fma(g, g, of_gradient);
      }
      of_sketch = L::fma(sum, sum, of_sketch);
      L::store(sketch + i * sketch_floats + row * 32, sum);
    }
    L::store_scalar(sketch_squares + i, L::fold(of_sketch));
    L::store_scalar(squares + i, L::fold(of_gradient));
  }
};

/// Takes the mean of the sums to where they came from, and tells whether they are the same on all
/// ranks: within 1%, since they travel as roots in bf16.
template <class View>
struct take_sums_kernel {
  static constexpr bool one_isa = true;
  View mean;
  const tile* tiles;
  float* sums;
  step_scalars* now;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const auto value = mean.template at<L>(t, i);
    auto beyond = L::set(0.0F);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      float* const place = sums + (t.word + k) * 32;
      const auto own = L::load(place), of_all = value(k);
      const auto off = L::abs(L::sub(of_all, own));
      beyond = L::max(beyond, L::fma(L::abs(own), L::set(-0.01F), off));
      L::store(place, of_all);
    }
    if (L::fold_max(beyond) > 0) L::raise(&now->differs);
  }
};

/// The squares of a sketch, by tile.
struct sketch_squares_kernel {
  static constexpr bool one_isa = true;
  const float* sketch;
  std::uint32_t n_rows;  ///< of 32, a tile
  float* sums;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    auto sum = L::set(0.0F);
    for (std::uint32_t row = 0; row < n_rows; ++row) {
      const auto value = L::load(sketch + (i * n_rows + row) * 32);
      sum = L::fma(value, value, sum);
    }
    L::store_scalar(sums + i, L::fold(sum));
  }
};

/// The part of all squares that is left in the mean gradient, from sketches, and the norm of that.
struct mean_ratio_kernel {
  static constexpr bool serial = true;
  const float *each, *left, *squares;
  std::size_t n_tiles;
  float* ratio;
  step_scalars* now;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    const double all = L::sum(each, n_tiles), mean = L::sum(left, n_tiles);
    double found = all > 0 ? mean / all : 1;
    found = found < 1 ? found : 1;
    L::store_scalar(ratio, static_cast<float>(found));
    const double norm = sqrt(product(L::sum(squares, n_tiles), found));
    L::store_scalar(&now->mean_norm, static_cast<float>(norm));
    if (!(all > 0)) L::store_scalar(&now->differs, 1U);  // no gradients are none that are alike
  }
};

/// The same part by word, of its tile. A tile of few elements says little of it, so that the ratio
/// of all is mixed in as if `prior` more elements had it.
struct part_by_word_kernel {
  static constexpr bool one_isa = true;
  static constexpr float prior = 64;
  const tile* tiles;
  const float *each, *left, *ratio;
  float* parts;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const float all = *ratio, n = static_cast<float>(t.n);
    float part = each[i] > 0 ? left[i] / each[i] : all;
    part = part < 1 ? part : 1.0F;
    part = fmaf(part, n, all * prior) / (n + prior);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) L::store_scalar(parts + t.word + k, part);
  }
};

/// The same part by tensor; where a tensor has no gradients it stays.
struct part_by_tensor_kernel {
  static constexpr bool serial = true;
  const tile_range* tensor_tiles;
  const float *each, *left;
  float* parts;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile_range r = tensor_tiles[i];
    const double all = L::sum(each + r.begin, r.end - r.begin),
                 mean = L::sum(left + r.begin, r.end - r.begin);
    if (!(all > 0)) return;
    const double part = mean / all;
    L::store_scalar(parts + i, static_cast<float>(part < 1 ? part : 1));
  }
};

/// v, by its inverse, goes on by all steps since the last refresh at once: by the mean of the
/// squares that the ranks kept in them, times the part of squares that is left in the mean gradient
/// of this step. Elements that have variance now, or own squares on some rank, are active: none
/// dies. `ratios` gets the new inverse over the old one; 0 for an element that has come to life.
template <class View>
struct followed_variance_kernel {
  View squares;
  const tile* tiles;
  std::uint32_t* active;
  float *inverses, *ratios;
  const float* parts;  ///< by word
  const tensor_scalars* scalars;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const auto s_at = squares.template at<L>(t, i);
    const tensor_scalars& of = scalars[t.tensor];
    // of v as it stands there
    const auto then = static_cast<double>(correction(of.bias.v / of.since));
    const auto old_weight = L::set(static_cast<float>(of.since / then));
    const auto one = L::set(1.0F), zero = L::set(0.0F);
    const float corrected = correction(of.bias.v);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      const std::size_t at = (t.word + k) * 32;
      const auto lived = L::load_bits(active + t.word + k);
      const auto was = L::load(inverses + at);
      const auto root = L::keep(lived, root_of<L>(was, of.c.eps));
      const auto old = L::fma(L::mul(root, old_weight), root, zero);
      const auto s = s_at(k), v = L::fma(s, L::set(parts[t.word + k]), old);
      const auto d = of.c.template denominator<L>(v, corrected);
      const auto lives = L::positive(L::add(L::keep(lived, one), s));
      const auto inverse = L::div(one, L::select(lives, d, one));
      L::store(inverses + at, inverse);
      L::store(ratios + at, L::keep(lived, L::div(inverse, was)));
      std::uint32_t word = 0;
      L::store_bits(&word, lives);
      L::store_scalar(active + t.word + k, word);
    }
  }
};

/// Takes this step's gradient into what a rank keeps of its squares, or begins with it.
template <class L, class P, class G>
ONEBIT_HD void keep_squares(float* squares, const tile& t, const step_tables<P, G>& of,
                            bool begins = false) {
  const gradients_of<L, G> gradient(of.tensors[t.tensor], t, of.now);
  const auto c = of.scalars[t.tensor].c;
  for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
    float* const s = squares + (t.word + k) * 32;
    const auto before = begins ? L::set(0.0F) : L::load(s);
    L::store(s, c.template next_variance<L>(before, gradient.load(k)));
  }
}
template <class P, class G>
struct restart_squares_kernel {
  static constexpr bool one_isa = true;
  step_tables<P, G> tables;
  float* squares;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    keep_squares<L>(squares, tables.tiles[i], tables, true);
  }
};

}  // namespace detail

/// The base of rules whose v follows (guide/variance.md). In compressed steps nobody knows the mean
/// gradient, but each rank its own: it keeps s, the average of its squares as v is of the mean's,
/// from one refresh to the next. In a refresh the ranks average s, and v goes on by that, times the
/// part of the squares that is left in the mean gradient (1 where ranks agree, 1/W where gradients
/// are noise).
///
/// Options have, beside those of moments_rule, bias_correction, max_step and keeps_squares. State
/// once v is frozen: 1 / (sqrt(v) + eps) in place of v, and s, 8 bytes per element.
///
/// Work space of a refresh, `sums`, is squares_average's: by word the part of all squares that is
/// left in the mean gradient, and that of all; then what travels beside the squares.
template <Backend B, class Options>
class following_rule : public moments_rule<B, Options> {
  using base = moments_rule<B, Options>;

 public:
  using typename base::float_buffer;
  static constexpr bool refreshes = true;

  /// What a rank keeps of its own.
  struct kept_squares {
    float_buffer squares;  ///< of its gradients since the last refresh, as v takes them; between
                           ///< `refresh_variance` and `restart_squares` see `rescaled`
  };

  void prepare(const layout& axis) {
    base::prepare(axis);
    n_tensors_ = axis.tensor_tiles().size();
    mean_parts_ = make_parts(keeps_squares());
  }
  [[nodiscard]] bool frozen() const { return frozen_; }
  [[nodiscard]] moments_updated updated(const step_plan& plan) const {
    return {options_.bias_correction, true, plan.average_gradient || (frozen_ && keeps_squares())};
  }
  /// Whether messages are directions: m / (sqrt(v) + eps), else m.
  [[nodiscard]] bool directions() const {
    return frozen_ && (options_.max_step > 0 || keeps_squares());
  }
  /// The largest scale of directions: `max_step`.
  [[nodiscard]] scale_bound bound() const {
    return directions() ? scale_bound{static_cast<float>(options_.max_step)} : scale_bound{};
  }
  /// Whether v follows in compressed steps.
  [[nodiscard]] bool keeps_squares() const { return options_.keeps_squares; }
  /// What this rank has kept of the squares of its own gradients since the last refresh, on the
  /// flat axis; null: nothing.
  [[nodiscard]] const float* squares() const { return kept_.squares.data(); }
  /// How many floats travel beside the squares, where messages are exchanged on this axis.
  [[nodiscard]] static std::size_t n_beside(const layout& axis) {
    return detail::sketch_floats * axis.tiles().size() + 2 * by_tile(axis);
  }
  /// Before anything is kept: the axis on which messages are exchanged.
  void prepare_squares(const layout& axis) { n_tiles_ = axis.tiles().size(); }
  /// Memory for what is kept: zeros.
  [[nodiscard]] kept_squares make_kept() { return {make_floats()}; }
  /// Goes on with what other ranks have kept, if any.
  void take_kept(kept_squares&& mean) noexcept {
    if (kept_.squares.size() > 0) kept_ = std::move(mean);
  }

  /// What the ranks average in a refresh: the squares kept since the last one, and a sketch of this
  /// step's gradient. 4 bytes read per element.
  template <class P, class G>
  [[nodiscard]] std::pair<flat_field, flat_field> squares(const step_context<B, P, G>& at,
                                                          float* sums) {
    float *const sketch = beside(sums), *const each = sketch + detail::sketch_floats * at.n_tiles();
    backend_.launch(at.n_tiles(),
                    detail::gradient_sketch_kernel<P, G>{at.tiles, at.tensors, at.now, sketch, each,
                                                         each + by_tile(at.axis)});
    return {{kept_.squares.data()}, {sketch}};
  }
  /// From the mean of what is beside, on its axis: the part of squares that is left in the mean
  /// gradient, and the norm of that, as far as the sketch knows it.
  template <class View, class P, class G>
  void take_mean_beside(const View& mean, const step_context<B, P, G>& its,
                        const step_context<B, P, G>& at, step_scalars* now, float* sums) {
    float* const sketch = beside(sums);
    const float* const each = sketch + detail::sketch_floats * at.n_tiles();
    its.launch(detail::take_sums_kernel<View>{mean, its.tiles, sketch, now});
    at.launch(
        detail::sketch_squares_kernel{sketch, detail::sketch_floats / word_elements, at.sums});
    at.launch(1, detail::mean_ratio_kernel{each, at.sums, each + by_tile(at.axis), at.n_tiles(),
                                           ratio(sums), now});
    at.launch(detail::part_by_word_kernel{at.tiles, each, at.sums, ratio(sums), sums});
  }
  /// v from the mean squares, on their axis: its inverse; and who is active. What is kept of
  /// squares becomes the ratios of `rescaled`, until `restart_squares`. One pass, 13 bytes per
  /// element.
  template <class SquaresView, class P, class G>
  void refresh_variance(const SquaresView& mean, const step_context<B, P, G>& its,
                        const step_context<B, P, G>& at, std::uint32_t* active, float* sums) {
    const float *const sketch = beside(sums), *const each =
                                                  sketch + detail::sketch_floats * at.n_tiles();
    // those of `take_mean_beside` are overwritten by now, and that step could still be skipped
    at.launch(
        detail::sketch_squares_kernel{sketch, detail::sketch_floats / word_elements, at.sums});
    at.launch(n_tensors_,
              detail::part_by_tensor_kernel{at.tensor_tiles, each, at.sums, mean_parts_.data()});
    its.launch(detail::followed_variance_kernel<SquaresView>{
        mean, its.tiles, active, v_.data(), kept_.squares.data(), sums, its.scalars});
  }
  /// After `refresh_variance`: the residual in new units.
  template <class View, class At>
  [[nodiscard]] detail::rescaled_direction<View> rescaled(const View& previous,
                                                          const At& at) const {
    return {previous, kept_.squares.data(), at.scalars};
  }
  /// Begins to keep squares anew, with this step's gradient. 8 bytes per element.
  template <class P, class G>
  void restart_squares(const step_context<B, P, G>& at) {
    at.launch(detail::restart_squares_kernel<P, G>{at, kept_.squares.data()});
  }
  /// What the compressed phase exchanges.
  template <class View, class P, class G>
  [[nodiscard]] momentum_message<View, P, G> message(const View& previous,
                                                     const step_context<B, P, G>& at) const {
    return {previous, at.tensors, at.scalars, at.now, units()};
  }
  /// After `frozen_`, with what is known of every tensor: refuses messages of other units, and,
  /// where its state `differs` with that, of a v that follows or does not.
  template <class Archive>
  void archive_form(Archive& a, bool differs) {
    bool keeps = keeps_squares(), sends_directions = directions();
    a.local(keeps);  // what is read does not outlive this
    a.local(sends_directions);
    a.buffer(mean_parts_, backend_, keeps ? n_tensors_ : 0);
    if (Archive::reading) {
      if (differs && keeps != keeps_squares()) {
        throw checkpoint_error(detail::message(
            "checkpoint: its v ", keeps ? "follows" : "does not follow", ", and here it ",
            keeps ? "would not" : "would", ": load it with refreshes or keeps_squares as it was"));
      }
      if (frozen_ && sends_directions != directions()) {
        throw checkpoint_error(detail::message(
            "checkpoint: its messages are ", sends_directions ? "directions" : "momenta",
            ", and here they would be ", directions() ? "directions" : "momenta",
            ": load it with max_step and refreshes as it was saved with"));
      }
      if (keeps != keeps_squares()) mean_parts_ = make_parts(keeps_squares());
    }
  }
  /// What is not the same on all ranks.
  template <class Archive>
  void archive_squares(Archive& a) {
    bool kept = frozen_ && keeps_squares();
    a.local(kept);
    a.buffer(kept_.squares, backend_, kept ? n_floats() : 0);
    if (Archive::reading) {
      if (frozen_ && keeps_squares() && !kept) {
        throw checkpoint_error(detail::message(
            "checkpoint: it has no squares of gradients, since it was saved with refreshes 0; ",
            "load it with refreshes 0"));
      }
      if (!keeps_squares()) kept_.squares = {};
    }
  }

 protected:
  following_rule(Options options, B backend) : base(options, std::move(backend)) {}
  using base::backend_, base::m_, base::make_floats, base::n_floats, base::options_, base::v_;
  [[nodiscard]] std::size_t n_words() const { return n_floats() / word_elements; }
  /// A float for each tile, in whole words.
  [[nodiscard]] static std::size_t by_tile(const layout& axis) {
    return (axis.tiles().size() + word_elements - 1) / word_elements * word_elements;
  }
  /// Of `sums`: the part of all squares that is left in the mean gradient, one number; and what
  /// travels.
  [[nodiscard]] float* ratio(float* sums) const { return sums + n_words(); }
  [[nodiscard]] float* beside(float* sums) const {
    return sums + (n_words() / word_elements + 1) * word_elements;
  }
  [[nodiscard]] direction_units units() const {
    if (!directions()) return {};
    return {v_.data(), mean_parts_.data()};
  }
  void forget_kept() { kept_ = {}; }
  [[nodiscard]] std::size_t kept_bytes() const {
    return kept_.squares.bytes() + mean_parts_.bytes();
  }

  kept_squares kept_;
  bool frozen_ = false;
  std::size_t n_tiles_ = 0;  ///< of the axis on which messages are exchanged

 private:
  [[nodiscard]] float_buffer make_parts(bool kept) {
    return backend_.template make_buffer<float>(kept ? n_tensors_ : 0);
  }

  std::size_t n_tensors_ = 0;
  float_buffer mean_parts_;  ///< by tensor, of the last refresh; 0: there was none
};

/// The base of rules that freeze v after their dense steps and exchange directions from then on, or
/// momenta where `directions` says so: 1-bit Adam and 1-bit LAMB.
template <Backend B, class Options>
class freezing_rule : public following_rule<B, Options> {
  using base = following_rule<B, Options>;

 public:
  using typename base::float_buffer;

  /// Freezes v: fills `active`, hands m over. Allocates before it changes anything.
  template <class At>
  [[nodiscard]] initial_momentum<float_buffer> freeze(std::uint32_t* active, const At& at) {
    if (base::keeps_squares()) kept_ = base::make_kept();
    frozen_ = true;
    backend_.launch(at.n_tiles(), detail::freeze_kernel{at.tiles, at.scalars, m_.data(), v_.data(),
                                                        active, base::directions()});
    return {std::move(m_), nullptr, at.scalars};
  }
  /// Back to dense steps, from the momentum that was agreed; what residuals hold is dropped.
  template <class View, class At>
  void thaw(const View& previous, const At& at) {
    auto m = base::make_floats();
    backend_.launch(at.n_tiles(),
                    detail::thaw_kernel<View>{previous, at.tiles, at.active, m.data(), v_.data(),
                                              at.scalars, base::directions()});
    m_ = std::move(m);
    base::forget_kept();
    frozen_ = false;
  }
  /// Hands over what was agreed, for an exchange that starts with v frozen.
  template <class View, class At>
  [[nodiscard]] initial_momentum<float_buffer> resume(const View& previous, const At& at) {
    auto m = base::make_floats();
    backend_.launch(at.n_tiles(), flatten_kernel<View>{previous, at.tiles, m.data()});
    return {std::move(m), nullptr, at.scalars};
  }
  [[nodiscard]] std::size_t state_bytes() const {
    return m_.bytes() + v_.bytes() + base::kept_bytes();
  }
  template <class Archive>
  void archive(Archive& a) {
    a.scalar(frozen_);
    base::archive_form(a, false);
    a.buffer(m_, backend_, frozen_ ? 0 : base::n_floats());
    a.buffer(v_, backend_, base::n_floats());
  }

 protected:
  freezing_rule(Options options, B backend) : base(options, std::move(backend)) {}
  using base::backend_, base::m_, base::v_, base::frozen_, base::kept_;
};

}  // namespace onebit::inline v0_2
