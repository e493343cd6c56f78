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
#include <vector>

/// Bases of rules whose v follows: compressed steps refresh v, from the ranks' own squares.
namespace onebit::inline v0_2 {

/// Message with the next local momentum: base + beta1 m + (1 - beta1) g, m the previous mean
/// message and g in `units`. The sum starts from the base, so that a momentum gives the same bits
/// whether the base holds beta1 m or the previous mean is m.
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

/// Residual in the units of the new v: ratio base + (ratio - 1) beta1 m, m the previous mean
/// direction. The next message adds beta1 m, still in old units: the sum, ratio (base + beta1 m),
/// is in new units. An element that has become active has ratio 0: m has no value there.
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

inline constexpr std::size_t sketch_floats = 64;  ///< sums of a sketch, per tile

/// Returns random signs, a bit per element of a word, equal on all ranks. Source: splitmix64.
ONEBIT_HD std::uint32_t sketch_signs(std::size_t word, std::uint32_t step = 0) {
  std::uint64_t h = (word + 1) * 0x9E3779B97F4A7C15U + step * 0xD1B54A32D192ED03U;
  h = (h ^ h >> 30U) * 0xBF58476D1CE4E5B9U;
  h = (h ^ h >> 27U) * 0x94D049BB133111EBU;
  return static_cast<std::uint32_t>(h >> 32U);
}

/// Sketches this rank's gradient: 64 sums per tile, with random signs that are equal on all ranks
/// and change in each step. Also sums, by tile, the squares of the sketch and of the gradient.
/// Sketches are linear: the squares of the ranks' mean sketch sum up to the squared norm of the
/// mean gradient, with a relative error of sqrt(2 / 64) per tile. The ratio of this sum to the mean
/// of the ranks' own sums is more precise: exactly 1 if all gradients are equal.
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

/// Replaces this rank's sums by their mean over the ranks. Raises `differs` if a sum is off its
/// mean by more than 1%; less may be rounding, since the sums travel as roots in bf16.
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

/// Sums the squares of a sketch, by tile.
struct sketch_squares_kernel {
  static constexpr bool one_isa = true;
  const float* sketch;
  std::uint32_t n_rows;  ///< rows of 32 floats per tile
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

/// Computes rho of the whole model (see following_rule), and with it the norm of the mean gradient.
struct mean_ratio_kernel {
  static constexpr bool serial = true;
  const float *each, *left, *squares;  ///< squares of ranks' sketches, mean sketch, gradients
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
    if (!(all > 0)) L::store_scalar(&now->differs, 1U);  // zero gradients do not count as equal
  }
};

/// Writes rho by word, from the word's tile. Since a tile of few elements gives an imprecise rho,
/// rho of the whole model is mixed in, with the weight of `prior` elements.
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

/// Writes rho by tensor. In a tensor without gradients rho does not change.
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

/// Refreshes v, which is stored as 1 / (sqrt(v) + eps): v <- beta2^k v + rho s, the k steps since
/// the last refresh at once. s is the mean of the squares that the ranks have kept, rho (`parts`)
/// is of this step's gradients. Active elements stay active; those with s > 0 become active.
/// `ratios` receives the new inverse over the old one, 0 in an element that becomes active.
template <class View>
struct followed_variance_kernel {
  View squares;
  const tile* tiles;
  std::uint32_t* active;
  float *inverses, *ratios;
  const float* parts;  ///< rho by word
  const tensor_scalars* scalars;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const auto s_at = squares.template at<L>(t, i);
    const tensor_scalars& of = scalars[t.tensor];
    // correction of v that `inverses` contain: as of the last refresh or freeze
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

/// Updates a rank's squares, s <- beta2 s + (1 - beta2) g^2, from s = 0 if `begins`.
template <class L, class P, class G>
ONEBIT_HD void update_squares(float* squares, const tile& t, const step_tables<P, G>& of,
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
    update_squares<L>(squares, tables.tiles[i], tables, true);
  }
};

}  // namespace detail

/// Base of rules whose v follows (guide/variance.md). In compressed steps no rank knows the mean
/// gradient. From one refresh to the next, each rank keeps s, the average of the squares of its own
/// gradients, weighted as in v. A refresh averages s over the ranks: v <- beta2^k v + rho s, k the
/// steps since the last refresh. rho is the squared norm of the mean gradient over the mean of the
/// ranks' squared norms: 1 if all gradients are equal, 1/W if they are independent noise.
///
/// `Options` has the members that moments_rule requires, bias_correction, max_step and
/// keeps_squares. State after the freeze: 1 / (sqrt(v) + eps), which replaces v, and s, 8 bytes per
/// element.
///
/// `sums`, the work space of a refresh, belongs to squares_average. Contents: rho by word, rho of
/// the whole model, and the floats that travel beside the squares.
template <Backend B, class Options>
class following_rule : public moments_rule<B, Options> {
  using base = moments_rule<B, Options>;

 public:
  using typename base::float_buffer;
  static constexpr bool refreshes = true;

  /// State that each rank keeps on its own from one refresh to the next.
  struct kept_squares {
    float_buffer squares;  ///< s; between `refresh_variance` and `restart_squares` the ratios of
                           ///< `rescaled`
  };

  void prepare(const layout& axis) {
    base::prepare(axis);
    n_tensors_ = axis.tensor_tiles().size();
    rho_ = make_rho(keeps_squares());
  }
  [[nodiscard]] bool frozen() const { return frozen_; }
  [[nodiscard]] moments_updated updated(const step_plan& plan) const {
    return {options_.bias_correction, true, plan.average_gradient || (frozen_ && keeps_squares())};
  }
  /// True if messages are directions, m / (sqrt(v) + eps); false if they are momenta, m.
  [[nodiscard]] bool directions() const {
    return frozen_ && (options_.max_step > 0 || keeps_squares());
  }
  /// Returns the largest scale: `max_step` if messages are directions, else no bound.
  [[nodiscard]] scale_bound bound() const {
    return directions() ? scale_bound{static_cast<float>(options_.max_step)} : scale_bound{};
  }
  /// True if v follows in compressed steps.
  [[nodiscard]] bool keeps_squares() const { return options_.keeps_squares; }
  /// Returns s, this rank's squares since the last refresh, on the flat axis; null if none is kept.
  [[nodiscard]] const float* squares() const { return kept_.squares.data(); }
  /// Returns the number of floats that travel beside the squares, for messages on `axis`.
  [[nodiscard]] static std::size_t n_sketch_floats(const layout& axis) {
    return detail::sketch_floats * axis.tiles().size() + 2 * by_tile(axis);
  }
  /// Takes the layout of messages, before any squares are kept.
  void prepare_squares(const layout& axis, int n_ranks) {
    n_tiles_ = axis.tiles().size();
    first_rho_ = 1.0F / static_cast<float>(n_ranks);
    rho_ = make_rho(keeps_squares());
  }
  /// Returns zeroed memory for squares.
  [[nodiscard]] kept_squares make_kept() { return {make_floats()}; }
  /// Replaces the squares, if this rank keeps any, by the mean over the ranks of an older job.
  void take_kept(kept_squares&& mean) noexcept {
    if (kept_.squares.size() > 0) kept_ = std::move(mean);
  }

  /// Returns the two fields that the ranks average in a refresh: s, and a sketch of this step's
  /// gradient, which is computed into `sums`. Reads 4 bytes per element.
  template <class P, class G>
  [[nodiscard]] std::pair<flat_field, flat_field> squares(const step_context<B, P, G>& at,
                                                          float* sums) {
    float *const sketch = beside(sums), *const each = sketch + detail::sketch_floats * at.n_tiles();
    backend_.launch(at.n_tiles(),
                    detail::gradient_sketch_kernel<P, G>{at.tiles, at.tensors, at.now, sketch, each,
                                                         each + by_tile(at.axis)});
    return {{kept_.squares.data()}, {sketch}};
  }
  /// Computes rho and the estimated norm of the mean gradient from `mean`, the averaged floats
  /// beside the squares. `its` has the layout of `mean`, `at` the layout of messages.
  template <class View, class P, class G>
  void take_mean_sketch(const View& mean, const step_context<B, P, G>& its,
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
  /// Updates the inverse of v, and `active`, from `mean`, averaged s. `its` has the layout of
  /// `mean`, `at` the layout of messages. Overwrites this rank's squares by the ratios of
  /// `rescaled`, until `restart_squares`. One pass, 13 bytes per element.
  template <class SquaresView, class P, class G>
  void refresh_variance(const SquaresView& mean, const step_context<B, P, G>& its,
                        const step_context<B, P, G>& at, std::uint32_t* active, float* sums) {
    const float *const sketch = beside(sums), *const each =
                                                  sketch + detail::sketch_floats * at.n_tiles();
    // again, since at.sums was overwritten; rho_ may change in a kept step only
    at.launch(
        detail::sketch_squares_kernel{sketch, detail::sketch_floats / word_elements, at.sums});
    at.launch(n_tensors_,
              detail::part_by_tensor_kernel{at.tensor_tiles, each, at.sums, rho_.data()});
    its.launch(detail::followed_variance_kernel<SquaresView>{
        mean, its.tiles, active, v_.data(), kept_.squares.data(), sums, its.scalars});
  }
  /// Returns, after `refresh_variance`, the message that converts residuals to the new units.
  template <class View, class At>
  [[nodiscard]] detail::rescaled_direction<View> rescaled(const View& previous,
                                                          const At& at) const {
    return {previous, kept_.squares.data(), at.scalars};
  }
  /// Restarts s from this step's gradient. 8 bytes per element.
  template <class P, class G>
  void restart_squares(const step_context<B, P, G>& at) {
    at.launch(detail::restart_squares_kernel<P, G>{at, kept_.squares.data()});
  }
  /// Returns the message of the compressed phase.
  template <class View, class P, class G>
  [[nodiscard]] momentum_message<View, P, G> message(const View& previous,
                                                     const step_context<B, P, G>& at) const {
    return {previous, at.tensors, at.scalars, at.now, units()};
  }
  /// Archives the form of the state, and rho by tensor; frozen_ must be known. A reader throws
  /// checkpoint_error if checkpoint and rule disagree on the units of messages, or, with `differs`,
  /// on whether v follows.
  template <class Archive>
  void archive_form(Archive& a, bool differs) {
    bool keeps = keeps_squares(), sends_directions = directions();
    a.local(keeps);
    a.local(sends_directions);
    a.buffer(rho_, backend_, keeps ? n_tensors_ : 0);
    if (Archive::reading) {
      if (differs && keeps != keeps_squares()) {
        throw checkpoint_error(detail::message(
            "checkpoint: its v is ", keeps ? "" : "not ",
            "refreshed after the dense steps, and here it ", keeps ? "would not" : "would",
            " be: set refreshes or keeps_squares as it was saved"));
      }
      if (frozen_ && sends_directions != directions()) {
        throw checkpoint_error(detail::message(
            "checkpoint: its ranks exchanged ", sends_directions ? "m / (sqrt(v) + eps)" : "m",
            ", and here they would exchange ", directions() ? "m / (sqrt(v) + eps)" : "m",
            ": load it with max_step and refreshes as it was saved with"));
      }
      if (keeps != keeps_squares()) rho_ = make_rho(keeps_squares());
    }
  }
  /// Archives the state that differs between ranks: s.
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
  /// Number of floats for one float per tile, rounded up to whole words.
  [[nodiscard]] static std::size_t by_tile(const layout& axis) {
    return (axis.tiles().size() + word_elements - 1) / word_elements * word_elements;
  }
  /// Return parts of `sums`: rho of the whole model, and the floats that travel beside the squares.
  [[nodiscard]] float* ratio(float* sums) const { return sums + n_words(); }
  [[nodiscard]] float* beside(float* sums) const {
    return sums + (n_words() / word_elements + 1) * word_elements;
  }
  [[nodiscard]] direction_units units() const {
    if (!directions()) return {};
    return {v_.data(), rho_.data()};
  }
  void forget_kept() { kept_ = {}; }
  [[nodiscard]] std::size_t kept_bytes() const { return kept_.squares.bytes() + rho_.bytes(); }

  kept_squares kept_;
  bool frozen_ = false;
  std::size_t n_tiles_ = 0;  ///< tiles in the layout of messages

 private:
  [[nodiscard]] float_buffer make_rho(bool kept) {
    return to_buffer(backend_, std::vector<float>(kept ? n_tensors_ : 0, first_rho_));
  }

  std::size_t n_tensors_ = 0;
  float first_rho_ = 1;  ///< 1 / W: of gradients that are noise, or that one rank alone has
  float_buffer rho_;     ///< by tensor, of the last refresh; before the first: first_rho_
};

/// Base of rules that freeze v after their dense steps, and then exchange directions, or momenta if
/// `directions` is false: 1-bit Adam and 1-bit LAMB.
template <Backend B, class Options>
class freezing_rule : public following_rule<B, Options> {
  using base = following_rule<B, Options>;

 public:
  using typename base::float_buffer;

  /// Freezes v, fills `active`, and hands m over. Allocates before it changes anything.
  template <class At>
  [[nodiscard]] initial_momentum<float_buffer> freeze(std::uint32_t* active, const At& at) {
    if (base::keeps_squares()) kept_ = base::make_kept();
    frozen_ = true;
    backend_.launch(at.n_tiles(), detail::freeze_kernel{at.tiles, at.scalars, m_.data(), v_.data(),
                                                        active, base::directions()});
    return {std::move(m_), nullptr, at.scalars};
  }
  /// Returns to dense steps, with m from the previous mean message. Drops what residuals hold.
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
  /// Hands over the previous mean message, to an exchange that starts with v frozen.
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
