// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/core/concepts.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/core/param_group.hpp>
#include <onebit/core/step_context.hpp>
#include <onebit/core/step_state.hpp>
#include <onebit/rule/moments.hpp>
#include <utility>

/// Adam and 1-bit Adam: what is sent, and what is done with what was agreed.
namespace onebit::inline v0_1 {

/// The next local momentum as a message: base + beta1 m + (1 - beta1) g, m as last agreed. It
/// starts from the base, so that a momentum held as beta1 m in the base gives the same bits.
template <class View, class P, class G>
struct momentum_message {
  static constexpr bool narrow = ManySlotView<View> || NarrowField<View>;
  View momentum;
  const tensor_entry<P, G>* tensors;
  const tensor_numbers* numbers;
  const step_scalars* now;

  template <class L>
  struct reader {
    typename View::template reader<L> momentum;
    gradients_of<L, G> gradient;
    moments_constants c;
    ONEBIT_HD typename L::value operator()(std::uint32_t k, const typename L::value& base) const {
      const auto g = gradient.load(k);
      return L::fma(g, L::set(c.one_minus_beta1), L::fma(momentum(k), L::set(c.beta1), base));
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t index) const {
    return {momentum.template at<L>(t, index), gradients_of<L, G>(tensors[t.tensor], t, now),
            numbers[t.tensor].c};
  }
};

namespace detail {

/// A dense Adam step: m, v and x from the exact mean gradient; the tile's sum of v into `sums`.
template <class View, class P, class G>
struct adam_dense_kernel {
  View gradient;
  const tile* tiles;
  const tensor_entry<P, G>* tensors;
  const tensor_numbers* numbers;
  float *m, *v, *sums;
  const step_scalars* now;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    using one = one_word<L>;
    const tile t = tile_at(i);
    const tensor_entry<P, G>& tensor = tensors[t.tensor];
    const auto gradient_at = gradient.template at<L>(t, i);
    const parameters_of<L, P> params(tensor, t);
    const auto step = L::set(-tensor.rate(now)), decay = L::set(tensor.weight_decay);
    const auto c = numbers[t.tensor].c;
    const auto correction = L::set(numbers[t.tensor].m_correction);
    const float v_correction = numbers[t.tensor].v_correction;
    auto sum = one::set(0.0F);
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      float* m_word = m + (t.word + k) * 32;
      float* v_word = v + (t.word + k) * 32;
      const auto g = gradient_at(k);
      const auto m_new = c.template next_momentum<L>(L::load(m_word), g);
      const auto v_new = c.template next_variance<L>(L::load(v_word), g);
      const auto x = params.load(k);
      L::store(m_word, m_new);
      L::store(v_word, v_new);
      add_words<L>(sum, v_new);
      const auto d = c.template denominator<L>(v_new, v_correction);
      const auto u = L::div(L::mul(m_new, correction), d);
      params.store(k, L::fma(step, L::fma(decay, x, u), x));
    }
    L::store_scalar(sums + i, one::fold(sum));
  }
};

/// The sum of the squares of a gradient, by word.
template <class Gradient>
struct word_squares_kernel {
  static constexpr bool rare = true;
  Gradient gradient;
  const tile* tiles;
  float* sums;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const auto gradient_at = gradient.template at<L>(t, i);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      const auto value = gradient_at(k);
      L::store_scalar(sums + t.word + k, L::fold(L::fma(value, value, L::set(0.0F))));
    }
  }
};

/// What ranks average in a refresh: their own squares, and behind these, as one tensor more, sums
/// by word.
struct squares_message {
  const float *squares, *sums;
  std::size_t n_words;

  template <class L>
  struct reader {
    const float* first;
    ONEBIT_HD typename L::value operator()(std::uint32_t k, const typename L::value& base) const {
      return L::add(base, L::load(first + 32 * k));
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t) const {
    return {t.word < n_words ? squares + t.word * 32 : sums + (t.word - n_words) * 32};
  }
};
/// Takes the mean of the sums to where they came from.
template <class View>
struct take_sums_kernel {
  static constexpr bool rare = true;
  View mean;
  const tile* tiles;
  std::size_t first_tile, n_words;
  float* sums;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[first_tile + i];
    const auto value = mean.template at<L>(t, first_tile + i);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      L::store(sums + (t.word - n_words + k) * 32, value(k));
    }
  }
};

/// The sum of what lies by word, by tile.
struct tile_sums_kernel {
  static constexpr bool serial = true;
  const tile* tiles;
  const float* by_word;
  float* sums;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    L::store_scalar(sums + i, static_cast<float>(L::sum(by_word + t.word, t.n_words())));
  }
};

/// What a clipped gradient has of squares, before it was clipped.
ONEBIT_HD double unclipped(double squares, const step_scalars* now) {
  const double clip = now->clip;
  return squares / (clip * clip);
}

/// The part of all squares that is left in the mean gradient, from two rows of sums.
struct mean_ratio_kernel {
  static constexpr bool serial = true;
  const step_scalars* now;
  const float *each, *left;
  std::size_t n_each, n_left;
  float* ratio;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    const double all = L::sum(each, n_each), mean = unclipped(L::sum(left, n_left), now);
    const double found = all > 0 ? mean / all : 1;
    L::store_scalar(ratio, found < 1 ? static_cast<float>(found) : 1.0F);
  }
};

/// v, by its denominator, goes on by all steps since the last refresh at once: by the mean of the
/// squares that the ranks kept in them, times the part of squares that is left in the mean gradient
/// of this step, which is measured over a tile. A tile of few elements says little of that, so that
/// the ratio of all is mixed in as if `prior` more elements had it. What was kept begins anew.
template <class View>
struct followed_variance_kernel {
  static constexpr bool rare = true;
  static constexpr float prior = 64;
  View squares;
  const tile* tiles;
  live_mask live;
  float *denominators, *own;  ///< own: squares of this rank
  const float* sums;  ///< of this step's gradients: of each, averaged, and of their mean, and the
                      ///< ratio of all
  std::size_t n_sums;
  const tensor_numbers* numbers;
  const step_scalars* now;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const auto s_at = squares.template at<L>(t, i);
    const tensor_numbers& of = numbers[t.tensor];
    const double each = L::sum(sums + t.word, t.n_words());
    const double left = L::sum(sums + n_sums + t.word, t.n_words());
    const float all = sums[2 * n_sums], n = static_cast<float>(t.n);
    float part = each > 0 ? static_cast<float>(unclipped(left, now) / each) : all;
    part = part < 1 ? part : 1.0F;
    part = fmaf(part, n, all * prior) / (n + prior);
    const double then = correction(of.bias.v / of.since);  // of v as it stands there
    const auto old_weight = L::set(static_cast<float>(of.since / then)), weight = L::set(part);
    const auto one = L::set(1.0F), zero = L::set(0.0F), eps = L::set(of.c.eps);
    const float corrected = correction(of.bias.v);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      const std::size_t at = (t.word + k) * 32;
      const auto above = L::max(L::sub(L::load(denominators + at), eps), zero);
      const auto root = live.template keep<L>(t.word + k, above);
      const auto old = L::fma(L::mul(root, old_weight), root, zero);
      const auto s = s_at(k), v = L::fma(s, weight, old);
      const auto d = of.c.template denominator<L>(v, corrected);
      const auto lives = L::add(live.template keep<L>(t.word + k, one), s);
      L::store(denominators + at, L::select(L::positive(lives), d, one));
      L::store(own + at, zero);
    }
  }
};

/// The bits of the elements that have variance, or own squares on some rank: none dies.
template <class View>
struct waking_kernel {
  static constexpr bool rare = true;
  View squares;
  const tile* tiles;
  live_mask live;
  std::uint32_t* next;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const auto s = squares.template at<L>(t, i);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      const auto old = live.template keep<L>(t.word + k, L::set(1.0F));
      L::store_bits(next + t.word + k, L::positive(L::add(old, s(k))));
    }
  }
};

/// The compressed phase's update: x -= lr (m c / d + weight_decay x), c the correction of m; and
/// what this rank keeps of the squares of its own gradient. 12 bytes per element and a bit; 24 with
/// the squares.
template <class View, class P, class G>
struct adam_update_kernel {
  View momentum;
  const tile* tiles;
  const tensor_entry<P, G>* tensors;
  const tensor_numbers* numbers;
  flat_field denominators;
  float* squares;  ///< or null
  const step_scalars* now;
  float most;  ///< see adam_options::max_step

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile t = tile_at(i);
    const tensor_entry<P, G>& tensor = tensors[t.tensor];
    const auto m = momentum.template at<L>(t, i);
    const parameters_of<L, P> params(tensor, t);
    const auto step = L::set(-tensor.rate(now)), decay = L::set(tensor.weight_decay);
    const auto correction = L::set(numbers[t.tensor].m_correction);
    const auto d = denominators.template at<L>(t, i);
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      const auto x = params.load(k), divisor = d(k);
      const auto u = L::bound(L::div(L::mul(m(k), correction), divisor), most);
      params.store(k, L::fma(step, L::fma(decay, x, u), x));
    }
    if (squares == nullptr) return;
    const gradients_of<L, G> gradient(tensor, t, now);
    const auto c = numbers[t.tensor].c;
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      float* const word = squares + (t.word + k) * 32;
      L::store(word, c.template next_variance<L>(L::load(word), gradient.load(k)));
    }
  }
};

}  // namespace detail

/// Options of a step of Adam or 1-bit Adam.
struct adam_options {
  double beta1 = 0.9;    ///< of the average of gradients, m
  double beta2 = 0.999;  ///< of the average of their squares, v
  double eps = 1e-8;     ///< added to the root
  /// Divide m by 1 - beta1^t and v by 1 - beta2^t, as Adam does; after a freeze v's stays as it was
  /// at it, like v. false: the form of the 1-bit Adam paper and its authors' code.
  bool bias_correction = true;
  /// Clip gradients by their global norm, as torch's clip_grad_norm_ does before a step: exactly
  /// where the ranks average, else each rank its own (core/clipping.hpp); 0: do not.
  double max_grad_norm = 0;
  /// Where the momentum came compressed, an element moves by at most so many learning rates in a
  /// step (decay aside); 0: by whatever comes out. Adam's own steps are seldom above 1, and at most
  /// (1 - beta1) / sqrt(1 - beta2), 3.2. What is cut is lost, so less is no better. An element
  /// whose gradients are much smaller than those that it shares a scale with is sent that scale,
  /// back and forth, and its small v makes of it steps that are thousands of times too large.
  double max_step = 4;
  /// Of 1-bit Adam: each rank keeps squares of its own gradients, from which v is refreshed. false:
  /// v stays as it was at the freeze; one_bit_adam says so where `refreshes` is 0.
  bool keeps_squares = true;
};

/// Throws invalid_input when an option is out of range.
inline void validate(const adam_options& o) {
  validate_moments("adam_options", {o.beta1, o.beta2, o.eps}, o.max_grad_norm, o.max_step);
}

/// Adam, and 1-bit Adam after its dense steps. The rule only ever computes: what travels is the
/// collectives' business.
///
/// In compressed steps nobody knows the mean gradient, but each rank its own: it keeps s, the
/// average of its squares as v is of the mean's, from one refresh to the next. In a refresh the
/// ranks average s, and v goes on by that, times the part of the squares that is left in the mean
/// gradient (1 where ranks agree, 1/W where gradients are noise). See guide/variance.md.
///
/// State: m and v, 8 bytes per element in dense steps; then a denominator, 4 bytes, and s, 4 bytes.
/// Source: 1-bit Adam, algorithm 1; eps outside the root, decoupled decay, as the authors' code.
/// The refreshes are this library's.
template <Backend B>
class adam_rule : public moments_rule<B, adam_options> {
  using base = moments_rule<B, adam_options>;
  using base::backend_, base::m_, base::make_floats, base::n_floats, base::options_, base::v_;

 public:
  using typename base::float_buffer;
  static constexpr bool refreshes = true, message_lasts = true;

  adam_rule(adam_options options, B backend) : base(options, std::move(backend)) {
    validate(options);
  }
  void prepare(const layout& axis) {
    base::prepare(axis);
    variance_norm_ = backend_.template make_buffer<double>(1);
  }
  [[nodiscard]] bool frozen() const { return frozen_; }
  [[nodiscard]] moments_seen seen(const step_plan& plan) const {
    return {options_.bias_correction, true, plan.average_gradient || (frozen_ && keeps_squares())};
  }
  /// What this rank has kept of the squares of its own gradients since the last refresh, on the
  /// flat axis; null: nothing.
  [[nodiscard]] const float* squares() const { return squares_.data(); }
  /// Goes on with what other ranks have kept, if any.
  void take_squares(float_buffer&& mean) noexcept {
    if (squares_.size() > 0) squares_ = std::move(mean);
  }
  /// Whether v follows in compressed steps.
  [[nodiscard]] bool keeps_squares() const { return options_.keeps_squares; }

  /// The dense step: x, m and v from the agreed gradient. One pass, 28 bytes per element.
  template <class View, class P, class G>
  void refresh(const View& gradient, const tiled<B, P, G>& at) {
    at.commit(detail::adam_dense_kernel<View, P, G>{gradient, at.tiles, at.tensors, at.numbers,
                                                    m_.data(), v_.data(), at.sums, at.now});
  }
  /// ||v||_1 after `refresh`. Waits for the backend.
  template <class At>
  [[nodiscard]] double variance_norm(const At& at) {
    return detail::sum_of_tiles(at, variance_norm_.data());
  }

  /// What the ranks average in a refresh: the squares kept since the last one, and of this step's
  /// gradient the sums by word. 4 bytes read per element.
  template <class P, class G>
  [[nodiscard]] detail::squares_message squares(const tiled<B, P, G>& at) {
    using own = own_gradient<P, G>;
    backend_.launch(at.n_tiles(),
                    detail::word_squares_kernel<own>{{at.tensors, at.now}, at.tiles, sums_.data()});
    return {squares_.data(), sums_.data(), n_words()};
  }
  /// v from the mean of that, and from the mean gradient, each on the axis on which it came: its
  /// denominator. Two passes, 14 bytes per element.
  template <class View, class At, class SquaresView, class SquaresAt>
  void follow(const View& gradient, const At& at, const SquaresView& mean, const SquaresAt& its) {
    float *const sums = sums_.data(), *const left = sums + n_sums(), *const all = left + n_sums();
    const std::size_t end = its.axis.tensor_tiles().back().begin;
    at.commit(detail::word_squares_kernel<View>{gradient, at.tiles, left});
    its.commit(its.n_tiles() - end,
               detail::take_sums_kernel<SquaresView>{mean, its.tiles, end, n_words(), sums});
    at.commit(detail::tile_sums_kernel{at.tiles, sums, at.sums});
    its.commit(end, detail::tile_sums_kernel{its.tiles, left, its.sums});
    at.commit(1, detail::mean_ratio_kernel{at.now, at.sums, its.sums, at.n_tiles(), end, all});
    its.commit(end, detail::followed_variance_kernel<SquaresView>{mean, its.tiles, its.live,
                                                                  v_.data(), squares_.data(), sums,
                                                                  n_sums(), at.numbers, at.now});
  }

  /// Freezes v: fills `live`, hands m over. Allocates before it changes anything.
  template <class At>
  [[nodiscard]] handover<float_buffer> freeze(std::uint32_t* live, const At& at) {
    if (options_.keeps_squares) {
      auto squares = make_floats(), sums = backend_.template make_buffer<float>(2 * n_sums() + 1);
      squares_ = std::move(squares);
      sums_ = std::move(sums);
    }
    backend_.launch(at.n_tiles(),
                    detail::freeze_kernel{at.tiles, at.numbers, m_.data(), v_.data(), live});
    frozen_ = true;
    return {std::move(m_), nullptr, at.numbers};
  }
  /// Warms up anew, from the momentum that was agreed; what residuals hold is dropped.
  template <class View, class At>
  void thaw(const View& agreed, const At& at) {
    auto m = make_floats();
    backend_.launch(at.n_tiles(), detail::thaw_kernel<View>{agreed, at.tiles, at.live, m.data(),
                                                            v_.data(), at.numbers});
    m_ = std::move(m);
    squares_ = {};
    sums_ = {};
    frozen_ = false;
  }
  /// Hands over what was agreed, for an exchange that starts with v frozen.
  template <class View, class At>
  [[nodiscard]] handover<float_buffer> resume(const View& agreed, const At& at) {
    auto m = make_floats();
    backend_.launch(at.n_tiles(), detail::flatten_kernel<View>{agreed, at.tiles, m.data()});
    return {std::move(m), nullptr, at.numbers};
  }
  /// Which elements will have variance after a refresh; `mean` as `follow` has it, of which the
  /// first tiles are the elements'.
  template <class View, class At>
  void preview_live(const View& mean, const At& at, std::uint32_t* live) {
    at.backend.launch(at.axis.tensor_tiles().back().begin,
                      detail::waking_kernel<View>{mean, at.tiles, at.live, live});
  }
  /// What the compressed phase exchanges.
  template <class View, class P, class G>
  [[nodiscard]] momentum_message<View, P, G> message(const View& agreed,
                                                     const tiled<B, P, G>& at) const {
    return {agreed, at.tensors, at.numbers, at.now};
  }
  /// The update from the newly agreed momentum.
  template <class View, class P, class G>
  void apply(const View& heard, const View&, const tiled<B, P, G>& at) {
    const float most = bound_of(options_.max_step);
    at.commit(detail::adam_update_kernel<View, P, G>{
        heard, at.tiles, at.tensors, at.numbers, {v_.data()}, squares_.data(), at.now, most});
  }

  [[nodiscard]] std::size_t state_bytes() const {
    return m_.bytes() + v_.bytes() + squares_.bytes() + sums_.bytes();
  }

  template <class Archive>
  void archive(Archive& a) {
    a.scalar(frozen_);
    a.buffer(m_, backend_, frozen_ ? 0 : n_floats());
    a.buffer(v_, backend_, n_floats());
  }
  /// What is not the same on all ranks.
  template <class Archive>
  void archive_squares(Archive& a) {
    bool kept = frozen_ && keeps_squares();
    a.local(kept);
    a.buffer(squares_, backend_, kept ? n_floats() : 0);
    if constexpr (Archive::reading) {
      if (frozen_ && keeps_squares() && !kept) {
        throw checkpoint_error(detail::message(
            "checkpoint: it has no squares of gradients, since it was saved with refreshes 0; ",
            "load it with refreshes 0"));
      }
      a.put_aside(sums_);
      if (!keeps_squares()) squares_ = {};
      if (kept && keeps_squares()) sums_ = backend_.template make_buffer<float>(2 * n_sums() + 1);
    }
  }

 private:
  [[nodiscard]] std::size_t n_words() const { return n_floats() / word_elements; }
  /// n_words, rounded up to whole words of sums.
  [[nodiscard]] std::size_t n_sums() const {
    return (n_words() + word_elements - 1) / word_elements * word_elements;
  }

  buffer_of<B, double> variance_norm_;
  float_buffer squares_;  ///< of this rank's gradients since the last refresh, as v takes them
  float_buffer sums_;     ///< by word: work space of refreshes
  bool frozen_ = false;
};

static_assert(ResumingRule<adam_rule<detail::any_backend>> &&
              ThawingRule<adam_rule<detail::any_backend>> &&
              WakingRule<adam_rule<detail::any_backend>>);

}  // namespace onebit::inline v0_1
