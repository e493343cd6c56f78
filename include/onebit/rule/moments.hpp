// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <onebit/core/concepts.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/core/param_group.hpp>
#include <onebit/core/step_context.hpp>
#include <onebit/core/step_state.hpp>
#include <utility>

/// What the rules that keep a first and a second moment share.
namespace onebit::inline v0_2 {

/// Throws invalid_input when a beta is outside [0, 1), eps not positive, as a float, or the norm
/// or the step negative.
inline void validate_moments(const char* options, const moments& of, double max_grad_norm = 0,
                             double max_step = 0) {
  validate(options, of);
  const auto is_bound = [](double x) {
    return x == 0 || (x >= detail::least_float && x <= detail::most_float);
  };
  if (!is_bound(max_grad_norm)) {
    throw invalid_input(detail::message(options, ": max_grad_norm is ", max_grad_norm,
                                        ", must be 0 (do not clip) or positive and finite"));
  }
  if (!is_bound(max_step)) {
    throw invalid_input(detail::message(options, ": max_step is ", max_step,
                                        ", must be 0 (no bound) or positive and finite"));
  }
}

/// Options of a step of Adam, 1-bit Adam or 0/1 Adam.
struct adam_options {
  double beta1 = 0.9;    ///< of the average of gradients, m
  double beta2 = 0.999;  ///< of the average of their squares, v
  double eps = 1e-8;     ///< added to the root
  /// Divide m by 1 - beta1^t and v by 1 - beta2^n, n the gradients that v has seen, as Adam does;
  /// where v stays as it was at a freeze its correction does, too. false: the papers' form, and
  /// their authors' code.
  bool bias_correction = true;
  /// Clip gradients by their global norm, as torch's clip_grad_norm_ does before a step: exactly
  /// where the ranks average, else each rank its own (core/clipping.hpp); 0: do not.
  double max_grad_norm = 0;
  /// What is sent are directions, m / (sqrt(v) + eps). Elements that share a scale then share a
  /// size of steps. No scale is larger than this. An element moves by at most so many learning
  /// rates in a step, times m's correction and decay aside; at an exchange of 0/1 Adam, of those
  /// since the last. The residual keeps what is cut. Adam's own steps are seldom above 1, and at
  /// most (1 - beta1) / sqrt(1 - beta2), 3.2. 0: no bound of scales; if v does not follow either,
  /// momenta are sent, as in the papers. Momenta fit badly where gradients differ in size: a small
  /// one is sent the common scale, and its small v makes thousands of learning rates of it.
  /// Compressors without scales have no bound.
  double max_step = 2;
  /// Each rank keeps squares of its own gradients between averages, from which v is refreshed.
  /// false: 1-bit Adam's v stays as it was at the freeze (one_bit_adam says so where `refreshes` is
  /// 0), and an average is one step of 0/1 Adam's, however many steps it is after the last.
  bool keeps_squares = true;
};

/// Throws invalid_input when an option is out of range.
inline void validate(const adam_options& o) {
  validate_moments("adam_options", {o.beta1, o.beta2, o.eps}, o.max_grad_norm, o.max_step);
}

/// Throws invalid_input unless 0 < low <= high, both finite as floats.
inline void validate_range(const char* options, const char* of, double low, const char* and_of,
                           double high) {
  if (low >= detail::least_float && low <= high && high <= detail::most_float) return;
  throw invalid_input(detail::message(options, ": ", of, " is ", low, " and ", and_of, " ", high,
                                      "; needs ", detail::least_float,
                                      " <= min <= max <= ", detail::most_float));
}

/// What max_step means to kernels.
[[nodiscard]] inline float bound_of(double max_step) {
  return max_step > 0 ? static_cast<float>(max_step) : std::numeric_limits<float>::max();
}

/// What makes directions of gradients.
struct direction_units {
  /// 1 / (sqrt(v) + eps), on the flat axis; null: momenta are sent.
  const float* inverse = nullptr;
  /// By tensor: the part of squares that is left in the mean gradient; null or 0: no bound.
  const float* mean_parts = nullptr;

  /// Of a tile.
  template <class L>
  struct reader {
    const float* inverse;  ///< of the tile, or null
    float longest;         ///< the most that a direction may be
    /// g / (sqrt(v) + eps), at most `longest`, or g. NaN stays.
    ONEBIT_HD typename L::value operator()(std::uint32_t k, const typename L::value& g) const {
      if (inverse == nullptr) return g;
      const auto x = L::mul(g, L::load(inverse + 32 * k));
      return L::fma(g, L::set(0.0F), L::bound(x, longest));
    }
  };
  /// Adam's v has seen the gradient that it divides: a mean gradient over the root of v, corrected
  /// by c, is at most 1 / sqrt((1 - beta2) c). Here v is of the last refresh; without that bound
  /// the first large gradient of an element whose gradients were small makes hundreds of steps. One
  /// rank's gradient may be larger by 1 / part: where only one of W ranks has any, its mean is g /
  /// W.
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, const tensor_scalars& of) const {
    if (inverse == nullptr) return {nullptr, 0};
    float longest = 3.402823466e38F;
    if (mean_parts != nullptr && mean_parts[t.tensor] > 0) {
      const double root = sqrt(detail::product(static_cast<double>(of.c.one_minus_beta2),
                                               static_cast<double>(of.v_correction)));
      const double most = 1 / detail::product(root, static_cast<double>(mean_parts[t.tensor]));
      if (most < static_cast<double>(longest)) longest = static_cast<float>(most);
    }
    return {inverse + t.word * 32, longest};
  }
};

/// The base of rules that keep m, and v if told so, on the flat axis: 4 bytes per element each.
/// Options have beta1, beta2, eps and max_grad_norm.
template <Backend B, class Options>
class moments_rule : public rule_defaults {
  static_assert(
      requires(const Options o) {
        moments{o.beta1, o.beta2, o.eps}, o.max_grad_norm;
      },
      "onebit: the options of a moments_rule have beta1, beta2, eps and max_grad_norm "
      "(without a v: beta2 0 and eps 1)");

 public:
  using backend_type = B;
  using float_buffer = buffer_of<B, float>;
  static constexpr bool has_moments = true, takes_moments = true;

  [[nodiscard]] B& backend() { return backend_; }
  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] double max_grad_norm() const { return options_.max_grad_norm; }
  [[nodiscard]] moments own_moments() const {
    return {options_.beta1, options_.beta2, options_.eps};
  }
  void prepare(const layout& axis) {
    n_words_ = axis.n_words();
    m_ = make_floats();
    if (keeps_v_) v_ = make_floats();
  }
  /// Moments from elsewhere, on the flat axis.
  void take(const float* m, const float* v) {
    backend_.copy_in(m_.data(), m, m_.size());
    backend_.copy_in(v_.data(), v, v_.size());
  }
  /// What the ranks average.
  template <class P, class G>
  [[nodiscard]] gradient_message<P, G> gradient(const step_context<B, P, G>& at) const {
    return {at.tensors, at.now};
  }
  [[nodiscard]] std::size_t state_bytes() const { return m_.bytes() + v_.bytes(); }
  template <class Archive>
  void archive(Archive& a) {
    a.buffer(m_, backend_);
    a.buffer(v_, backend_);
  }
  /// Empty after the freeze, where a rule freezes.
  [[nodiscard]] const float* momentum() const { return m_.data(); }
  /// 1 / (sqrt(v) + eps) after the freeze, where a rule freezes.
  [[nodiscard]] const float* variance() const { return v_.data(); }

 protected:
  moments_rule(Options options, B backend, bool keeps_v = true)
      : options_(options), backend_(std::move(backend)), keeps_v_(keeps_v) {}
  [[nodiscard]] std::size_t n_floats() const { return n_words_ * word_elements; }
  [[nodiscard]] float_buffer make_floats() {
    return backend_.template make_buffer<float>(n_floats());
  }

  Options options_;
  B backend_;
  float_buffer m_, v_;

 private:
  std::size_t n_words_ = 0;
  bool keeps_v_;
};

/// v from the mean gradient.
template <class View>
struct variance_kernel {
  View gradient;
  const tile* tiles;
  float* v;
  const tensor_scalars* scalars;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile t = tile_at(i);
    const auto g = gradient.template at<L>(t, i);
    const auto c = scalars[t.tensor].c;
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      float* word = v + (t.word + k) * 32;
      L::store(word, c.template next_variance<L>(L::load(word), g(k)));
    }
  }
};

namespace detail {

/// v to its constant inverse 1 / (sqrt(v c) + eps), and the bits of the elements with v > 0.
/// Elements without variance get 1, and their momentum is 0 from here on. m to what is sent of it.
struct freeze_kernel {
  static constexpr bool one_isa = true;
  const tile* tiles;
  const tensor_scalars* scalars;
  float *m, *v;
  std::uint32_t* active;
  bool directions;  ///< m times the inverse is sent

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const tensor_scalars& of = scalars[t.tensor];
    const float corrected = correction(of.bias.v);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      float* p = v + (t.word + k) * 32;
      const auto variance = L::load(p);
      const auto alive = L::positive(variance);
      const auto one = L::set(1.0F);
      const auto d = of.c.template denominator<L>(variance, corrected);
      const auto inverse = L::div(one, L::select(alive, d, one));
      L::store(p, inverse);
      L::store_bits(active + t.word + k, alive);
      float* const m_word = m + (t.word + k) * 32;
      const auto sent = L::mul(L::load(m_word), directions ? inverse : one);
      L::store(m_word, L::keep(alive, sent));
    }
  }
};

/// sqrt(v c) of 1 / (sqrt(v c) + eps)
template <class L>
ONEBIT_HD typename L::value root_of(const typename L::value& inverse, float eps) {
  const auto d = L::div(L::set(1.0F), inverse);
  return L::max(L::sub(d, L::set(eps)), L::set(0.0F));
}

/// The way back: m from what was agreed, v from its inverse; elements that have none get 0. A
/// mean is hardly larger than the root of the mean square: what a scale for many elements made too
/// large for some is cut to that, since no residual follows that would take it back. (Gradients
/// that have grown since v was frozen lose some momentum, for as many steps as it looks back.)
template <class View>
struct thaw_kernel {
  static constexpr bool one_isa = true;
  View previous;
  const tile* tiles;
  active_mask active;
  float *m, *v;  ///< m or null: only v
  const tensor_scalars* scalars;
  bool directions;  ///< were agreed

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const tensor_scalars& of = scalars[t.tensor];
    const auto m_at = previous.template at<L>(t, i);
    const auto inverse = L::set(1 / correction(of.bias.v));
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      const std::size_t word = t.word + k;
      const auto zero = L::set(0.0F), was = L::load(v + word * 32);
      const auto root = root_of<L>(was, of.c.eps), least = L::sub(zero, root);
      if (m != nullptr) {
        const auto agreed_m = directions ? L::div(m_at(k), was) : m_at(k);
        const auto at_most = L::sub(zero, L::max(agreed_m, least));
        const auto bounded = L::sub(zero, L::max(at_most, least));
        L::store(m + word * 32, active.template keep<L>(word, bounded));
      }
      const auto variance = L::mul(L::mul(root, root), inverse);
      L::store(v + word * 32, active.template keep<L>(word, variance));
    }
  }
};

}  // namespace detail
}  // namespace onebit::inline v0_2
