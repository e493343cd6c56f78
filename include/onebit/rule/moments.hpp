// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <onebit/concepts/backend.hpp>
#include <onebit/concepts/moments.hpp>
#include <onebit/concepts/rule.hpp>
#include <onebit/core/config.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/core/words.hpp>
#include <onebit/kernel/context.hpp>
#include <onebit/kernel/moments.hpp>
#include <onebit/kernel/param_group.hpp>
#include <onebit/kernel/scalars.hpp>
#include <utility>

/// Common parts of the rules that keep a first and a second moment.
namespace onebit { inline namespace v0_3 {

namespace detail {

/// Throws invalid_input unless `x` is 0, which means `off`, or a positive normal float.
inline void validate_bound(const char* options, const char* name, double x, const char* off) {
  if (x == 0 || (x >= least_float && x <= most_float)) return;
  throw invalid_input(
      error_text(options, ": ", name, " is ", x, ", must be 0 (", off, ") or positive and finite"));
}

}  // namespace detail

/// Throws invalid_input unless both betas are in [0, 1), eps is a positive normal float, and
/// max_grad_norm is 0 or a positive normal float.
inline void validate_moments(const char* options, const moments& betas, double max_grad_norm) {
  validate(options, betas);
  detail::validate_bound(options, "max_grad_norm", max_grad_norm, "do not clip");
}

/// Options of a step of Adam, 1-bit Adam or 0/1 Adam.
struct adam_options {
  double beta1 = 0.9;    ///< decay rate of m, the average of gradients
  double beta2 = 0.999;  ///< decay rate of v, the average of squared gradients
  double eps = 1e-8;     ///< added to sqrt(v)
  /// True: divide m by 1 - beta1^t and v by 1 - beta2^n, as Adam does; n is the number of gradients
  /// in v. If v is constant after a freeze, so is its correction. False: no correction, as in the
  /// papers and their authors' code.
  bool bias_correction = true;
  /// Largest global norm of gradients, as in torch's clip_grad_norm_: clips the mean in steps that
  /// average gradients, else each rank's own gradient (kernel/clipping.hpp). 0: no clipping.
  double max_grad_norm = 0;
};

/// Throws invalid_input when an option is out of range.
inline void validate(const adam_options& o) {
  validate_moments("adam_options", {o.beta1, o.beta2, o.eps}, o.max_grad_norm);
}

/// What compressed steps send, and which v they divide by.
struct direction_options {
  /// Largest scale of a message, in learning rates: no element moves by more in one step (before
  /// bias correction and decay; an exchange of 0/1 Adam: times the sum of the rates since the last
  /// one). What is cut stays in the residual. Adam's own steps seldom exceed 1. 0: no bound; with a
  /// constant v, as in the papers, momenta are then sent in place of directions.
  double max_step = 2;
  /// True: after the dense steps each rank updates a v of its own from its own gradients, and
  /// refreshes average v over the ranks. False: v of 1-bit Adam is constant after the freeze, and
  /// each average advances v of 0/1 Adam by one step, however long ago the last average was.
  bool own_variance = true;
  friend bool operator==(const direction_options&, const direction_options&) = default;
};

/// Throws invalid_input when an option is out of range.
inline void validate(const direction_options& o) {
  detail::validate_bound("options", "max_step", o.max_step, "no bound");
}

namespace detail {

/// Throws invalid_input unless 0 < low <= high, both finite as floats.
inline void validate_range(const char* options, const char* betas, double low, const char* and_of,
                           double high) {
  if (low >= detail::least_float && low <= high && high <= detail::most_float) return;
  throw invalid_input(detail::error_text(options, ": ", betas, " is ", low, " and ", and_of, " ",
                                         high, "; needs ", detail::least_float,
                                         " <= min <= max <= ", detail::most_float));
}

/// Returns the bound that kernels apply: max_step, or the largest float if max_step is 0.
[[nodiscard]] inline float bound_of(double max_step) {
  return max_step > 0 ? static_cast<float>(max_step) : (std::numeric_limits<float>::max)();
}

}  // namespace detail

/// Base of rules that keep m, and v unless `keeps_v` is false, on the flat axis: 4 bytes per
/// element each. `Options` has beta1, beta2, eps and max_grad_norm.
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
  /// Copies in moments from another optimizer, on the flat axis: see optimizer::start_from.
  void take(const float* m, const float* v) {
    backend_.copy_in(m_.data(), m, m_.size());
    backend_.copy_in(v_.data(), v, v_.size());
  }
  /// Returns the message that dense steps average: the local gradient.
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
  /// Returns m, on the flat axis; null once a freezing_rule has handed m over.
  [[nodiscard]] const float* momentum() const { return m_.data(); }
  /// Returns v, on the flat axis.
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

namespace detail {

/// Updates v from the mean gradient.
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

/// Ends the dense steps: elements with v > 0 become active. m becomes what is sent: a direction, or
/// the momentum; 0 in the other elements. If v is constant from then on, its inverse takes its
/// place:
///
///     1 / (sqrt(v c) + eps)      c: correction of v. 1 in elements without variance
struct freeze_kernel {
  static constexpr bool one_isa = true;
  const tile* tiles;
  const tensor_scalars* scalars;
  float* m;
  const float* variance;
  float* inverse;  ///< the memory of v; null: v goes on
  std::uint32_t* active;
  bool directions;  ///< true: m is divided by sqrt(v c) + eps

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const tensor_scalars& moments = scalars[t.tensor];
    const float corrected = correction(moments.bias.v);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      const std::size_t place = (t.word + k) * 32;
      const auto v = L::load(variance + place);
      const auto alive = L::positive(v);
      const auto one = L::set(1.0F);
      const auto d = moments.c.template denominator<L>(v, corrected);
      const auto over = L::div(one, L::select(alive, d, one));
      if (inverse != nullptr) L::store(inverse + place, over);
      L::store_bits(active + t.word + k, alive);
      float* const m_word = m + place;
      const auto sent = L::mul(L::load(m_word), directions ? over : one);
      L::store(m_word, L::keep(alive, sent));
    }
  }
};

/// Returns sqrt(v c), given the inverse 1 / (sqrt(v c) + eps).
template <class L>
ONEBIT_HD typename L::value root_of(const typename L::value& inverse, float eps) {
  const auto d = L::div(L::set(1.0F), inverse);
  return (L::max)(L::sub(d, L::set(eps)), L::set(0.0F));
}

/// Undoes a freeze: m from the previous mean message, v from its inverse; 0 in inactive elements.
/// m is cut to sqrt(v c): a mean is hardly larger than the root of the mean square, a scale shared
/// by many elements is too large for some, and no residual takes the excess back later. (Gradients
/// that have grown since v was frozen lose some momentum, for as many steps as m looks back.)
template <class View>
struct thaw_kernel {
  static constexpr bool one_isa = true;
  View previous;
  const tile* tiles;
  active_mask active;
  float* m;
  const float* variance;  ///< null if there is an inverse
  float* inverse;         ///< of freeze_kernel: v takes its place again; or null
  const tensor_scalars* scalars;
  bool directions;     ///< `previous` has directions; false: momenta
  bool whole = false;  ///< m is not cut: `previous` has what residuals hold

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const tensor_scalars& moments = scalars[t.tensor];
    const auto m_at = previous.template at<L>(t, i);
    const float corrected = correction(moments.bias.v);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      const std::size_t word = t.word + k;
      const bool inverted = inverse != nullptr;
      const auto zero = L::set(0.0F), one = L::set(1.0F);
      const auto was = L::load((inverted ? inverse : variance) + word * 32);
      const auto root =
          inverted ? root_of<L>(was, moments.c.eps) : L::sqrt(L::mul(was, L::set(corrected)));
      const auto over = inverted ? was : L::div(one, L::add(root, L::set(moments.c.eps)));
      const auto least = L::sub(zero, root);
      const auto agreed_m = directions ? L::div(m_at(k), over) : m_at(k);
      const auto at_most = L::sub(zero, (L::max)(agreed_m, least));
      const auto bounded = whole ? agreed_m : L::sub(zero, (L::max)(at_most, least));
      L::store(m + word * 32, active.template keep<L>(word, bounded));
      if (!inverted) continue;
      const auto v = L::mul(L::mul(root, root), L::set(1 / corrected));
      L::store(inverse + word * 32, active.template keep<L>(word, v));
    }
  }
};

}  // namespace detail
}}  // namespace onebit
