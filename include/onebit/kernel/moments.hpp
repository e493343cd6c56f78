// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/concepts/backend.hpp>
#include <onebit/concepts/moments.hpp>
#include <onebit/core/config.hpp>
#include <onebit/core/error.hpp>
#include <onebit/kernel/scalars.hpp>
#include <string>

/// Constants and biases of the moments, by tensor: a tensor may have its own betas and may rest.
/// The kernels that begin and end a step bring them up to date.
namespace onebit { inline namespace v0_3 {

namespace detail {

/// Returns a b, never contracted with a following sum: bits must not depend on instruction sets.
ONEBIT_HD double product(double a, double b) { return fma(a, b, 0.0); }
/// Returns 1 / (1 - bias), which corrects a moment; 1 for a moment that has seen no gradient.
ONEBIT_HD float correction(double bias) {
  return bias < 1 ? static_cast<float>(1 / (1 - bias)) : 1.0F;
}

/// Smallest normal and largest finite float.
inline constexpr double least_float = 0x1p-126, most_float = 0x1.fffffep127;
}  // namespace detail

/// Throws invalid_input unless both betas are in [0, 1) and eps is a positive normal float.
[[gnu::cold]] inline void validate(const char* options, const moments& betas,
                                   const std::string& where = {}) {
  const auto in = [](double beta) { return beta >= 0 && beta < 1; };
  if (!in(betas.beta1) || !in(betas.beta2)) {
    throw invalid_input(detail::error_text(options, ": beta1 is ", betas.beta1, ", beta2 ",
                                           betas.beta2, "; both must be in [0, 1)", where));
  }
  if (!(betas.eps <= detail::most_float && betas.eps >= detail::least_float)) {
    throw invalid_input(detail::error_text(options, ": eps is ", betas.eps, ", must be at least ",
                                           detail::least_float, " and finite as a float", where));
  }
}

namespace detail {

/// Constants of the recurrences of m and v: computed in double, rounded once to float.
struct moments_constants {
  float beta1 = 1, one_minus_beta1 = 0, beta2 = 1, one_minus_beta2 = 0, eps = 1;

  /// Returns v after a gradient: beta2 v + (1 - beta2) g^2.
  template <class L>
  ONEBIT_HD typename L::value next_variance(const typename L::value& v,
                                            const typename L::value& g) const {
    return L::fma(L::mul(g, L::set(one_minus_beta2)), g, L::mul(v, L::set(beta2)));
  }
  /// Returns m after a gradient: beta1 m + (1 - beta1) g.
  template <class L>
  ONEBIT_HD typename L::value next_momentum(const typename L::value& m,
                                            const typename L::value& g) const {
    return L::fma(g, L::set(one_minus_beta1), L::mul(m, L::set(beta1)));
  }
  /// Returns sqrt(v correction) + eps.
  template <class L>
  ONEBIT_HD typename L::value denominator(const typename L::value& v, float correction = 1) const {
    return L::add(L::sqrt(L::mul(v, L::set(correction))), L::set(eps));
  }
};

/// Computes the constants from betas and eps.
ONEBIT_HD detail::moments_constants make_moments(const moments& betas) {
  return {static_cast<float>(betas.beta1), static_cast<float>(1 - betas.beta1),
          static_cast<float>(betas.beta2), static_cast<float>(1 - betas.beta2),
          static_cast<float>(betas.eps)};
}

/// Options of a tensor for one step, as the host sets them.
struct tensor_options {
  moments of{};
  std::uint32_t rests = 0;  ///< 1: the tensor has no gradient in this step
  std::uint32_t unused = 0;
};

/// Kernel-side constants and biases of a tensor's moments.
struct tensor_scalars {
  moments_constants c{};   ///< if the tensor rests: constants that leave m and v unchanged
  float m_correction = 1;  ///< bias correction of m in this step: 1 / (1 - bias)
  float v_correction = 1;  ///< bias correction of v
  float own_beta1 = 1;     ///< beta1 of the tensor's group, also if the tensor rests
  bias_decay bias{1, 1};   ///< after the kept steps: 1 minus the sum of the weights in the moment
  double decay_since = 1;  ///< product of beta2 over the steps since the last freeze or refresh
};

/// Computes the constants of each tensor from the options that the host has set.
struct set_options_kernel {
  static constexpr bool serial = true;
  const tensor_options* options;
  tensor_scalars* scalars;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tensor_options t = options[i];
    moments_constants c = make_moments(t.of);
    L::store_scalar(&scalars[i].own_beta1, c.beta1);
    if (t.rests != 0) c = {1, 0, 1, 0, c.eps};
    L::store_scalar(&scalars[i].c, c);
  }
};

/// Resets `decay_since` of all tensors, after a freeze or a refresh.
struct begin_since_kernel {
  static constexpr bool serial = true;
  tensor_scalars* scalars;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    L::store_scalar(&scalars[i].decay_since, 1.0);
  }
};

/// Biases of all moments, and the rule by which a step changes them.
struct moments_in_step {
  const tensor_options* options;
  tensor_scalars* scalars;
  std::uint32_t n_tensors;
  moments of;  ///< betas of the rule
  moments_updated updated;

  [[nodiscard]] ONEBIT_HD bias_decay next(const bias_decay& bias, const moments& m,
                                          bool rests) const {
    if (!updated.corrected) return {0, 0};
    return {product(bias.m, updated.m && !rests ? m.beta1 : 1),
            product(bias.v, updated.v && !rests ? m.beta2 : 1)};
  }
  [[nodiscard]] ONEBIT_HD double next_since(std::size_t i) const {
    // as v is multiplied: by the float, 1 in a tensor that rests
    const float beta2 = updated.v ? scalars[i].c.beta2 : 1.0F;
    return product(scalars[i].decay_since, static_cast<double>(beta2));
  }
  /// Returns the bias of tensor i after this step.
  [[nodiscard]] ONEBIT_HD bias_decay next(std::size_t i) const {
    return next(scalars[i].bias, options[i].of, options[i].rests != 0);
  }
};

/// Returns the bias of moments that have taken in a gradient in each of `steps` steps.
[[nodiscard, gnu::cold]] inline bias_decay bias_after(const moments& betas, std::uint64_t steps) {
  return {std::pow(betas.beta1, static_cast<double>(steps)),
          std::pow(betas.beta2, static_cast<double>(steps))};
}

/// Writes the scalars of the next step: call i those of tensor i, call 0 also step_scalars.
struct begin_step_kernel {
  static constexpr bool serial = true;
  step_scalars* now;
  moments_in_step tensors;
  float lr, inverse_loss_scale;
  std::uint32_t number, digest;
  bool refused;  ///< this rank cannot take the step: calls it off

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    if (i < tensors.n_tensors) {
      const bias_decay next = tensors.next(i);
      L::store_scalar(&tensors.scalars[i].m_correction, correction(next.m));
      L::store_scalar(&tensors.scalars[i].v_correction, correction(next.v));
    }
    if (i > 0) return;
    L::store_scalar(&now->given.lr, lr);
    L::store_scalar(&now->given.inverse_loss_scale, inverse_loss_scale);
    L::store_scalar(&now->norms.clip, 1.0F);
    L::store_scalar(&now->norms.mean, -1.0F);
    L::store_scalar(&now->norms.own, -1.0F);
    L::store_scalar(&now->given.number, number);
    L::store_scalar(&now->given.digest, digest);
    L::store_scalar(&now->verdict.nonfinite, std::uint32_t{refused ? 1U : 0U});
    L::store_scalar(&now->verdict.skip, std::uint32_t{refused ? 1U : 0U});
    L::store_scalar(&now->verdict.differs, 0U);
    L::store_scalar(&now->verdict.bad_rank, 0U);
  }
};

/// Ends a step: counts it if it was skipped, else advances the biases of the moments. A local step
/// advances them in any case: all ranks then correct alike, also one that left its gradient out.
struct end_step_kernel {
  static constexpr bool serial = true;
  step_scalars* now;
  moments_in_step tensors;
  float largest_ratio;  ///< upper bound of own_over_mean: the root of W
  bool local, refreshes;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const bool is_done = now->verdict.skip == 0 || local;
    if (i < tensors.n_tensors && is_done) {
      L::store_scalar(&tensors.scalars[i].bias, tensors.next(i));
      L::store_scalar(&tensors.scalars[i].decay_since, tensors.next_since(i));
    }
    if (i > 0) return;
    if (now->verdict.skip != 0) L::store_scalar(&now->counts.n_skipped, now->counts.n_skipped + 1);
    L::store_scalar(&now->counts.n_skipped_in_row,
                    now->verdict.skip != 0 ? now->counts.n_skipped_in_row + 1 : 0U);
    if (!is_done) return;
    L::store_scalar(&now->counts.refreshed, std::uint32_t{refreshes ? 1U : 0U});
    if (refreshes)
      L::store_scalar(&now->counts.n_equal_refreshes,
                      now->verdict.differs == 0 ? now->counts.n_equal_refreshes + 1 : 0U);
    L::store_scalar(&now->bias, tensors.next(now->bias, tensors.of, false));
    if (now->norms.mean > 0 && now->norms.own >= 0)
      L::store_scalar(&now->norms.own_over_mean, next_own_over_mean());
  }

 private:
  /// Returns the new own_over_mean, an exponential average over about ten values of norms.own /
  /// norms.mean, each between 1 (equal gradients on all ranks) and the root of W (independent
  /// noise).
  [[nodiscard]] ONEBIT_HD float next_own_over_mean() const {
    float ratio = now->norms.own / now->norms.mean;
    ratio = ratio < 1 ? 1 : ratio > largest_ratio ? largest_ratio : ratio;
    return now->norms.own_over_mean > 0
               ? fmaf(0.1F, ratio - now->norms.own_over_mean, now->norms.own_over_mean)
               : ratio;
  }
};

}  // namespace detail

}}  // namespace onebit
