// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <onebit/concepts.hpp>
#include <onebit/error.hpp>
#include <onebit/now.hpp>
#include <string>

/// A step's numbers: those of all tensors, and those of each, which may have betas of its own and
/// may have rested.
namespace onebit::inline v0_1 {

/// Throws invalid_input when a beta is outside [0, 1), or eps not positive, as a float.
[[gnu::cold]] inline void validate(const char* options, const moments& of,
                                   const std::string& where = {}) {
  const auto in = [](double beta) { return beta >= 0 && beta < 1; };
  if (!in(of.beta1) || !in(of.beta2)) {
    throw invalid_input(detail::message(options, ": beta1 is ", of.beta1, ", beta2 ", of.beta2,
                                        "; both must be in [0, 1)", where));
  }
  constexpr float least = std::numeric_limits<float>::min();
  if (!(of.eps <= std::numeric_limits<float>::max()) || !(of.eps >= least)) {
    throw invalid_input(detail::message(options, ": eps is ", of.eps, ", must be at least ", least,
                                        " and finite as a float", where));
  }
}

/// The constants of both moments: computed in double, rounded once.
struct moments_constants {
  float beta1 = 1, one_minus_beta1 = 0, beta2 = 1, one_minus_beta2 = 0, eps = 1;

  /// v after a gradient.
  template <class L>
  ONEBIT_HD typename L::value next_variance(const typename L::value& v,
                                            const typename L::value& g) const {
    return L::fma(L::mul(g, L::set(one_minus_beta2)), g, L::mul(v, L::set(beta2)));
  }
  /// m after a gradient.
  template <class L>
  ONEBIT_HD typename L::value next_momentum(const typename L::value& m,
                                            const typename L::value& g) const {
    return L::fma(g, L::set(one_minus_beta1), L::mul(m, L::set(beta1)));
  }
  /// sqrt(v correction) + eps
  template <class L>
  ONEBIT_HD typename L::value denominator(const typename L::value& v, float correction = 1) const {
    return L::add(L::sqrt(L::mul(v, L::set(correction))), L::set(eps));
  }
};

ONEBIT_HD moments_constants make_moments(const moments& of) {
  return {static_cast<float>(of.beta1), static_cast<float>(1 - of.beta1),
          static_cast<float>(of.beta2), static_cast<float>(1 - of.beta2),
          static_cast<float>(of.eps)};
}

/// What the host says of a tensor.
struct tensor_terms {
  moments of{};
  std::uint32_t rests = 0;  ///< it has no gradient in this step
  std::uint32_t unused = 0;
};

/// What kernels know of a tensor's moments in this step.
struct tensor_numbers {
  moments_constants c{};   ///< of one that rests: those that leave m and v as they are
  float m_correction = 1;  ///< of the bias in this step: 1 / (1 - bias)
  float v_correction = 1;
  float own_beta1 = 1;    ///< of its group, also where it rests
  bias_decay bias{1, 1};  ///< after the steps that were kept: 1 minus what weights sum up to
};

namespace detail {

/// Betas and rests as the host has set them.
struct set_terms_kernel {
  static constexpr bool serial = true;
  const tensor_terms* terms;
  tensor_numbers* numbers;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tensor_terms t = terms[i];
    moments_constants c = make_moments(t.of);
    L::store_scalar(&numbers[i].own_beta1, c.beta1);
    if (t.rests != 0) c = {1, 0, 1, 0, c.eps};
    L::store_scalar(&numbers[i].c, c);
  }
};

/// The biases of all moments, and what a step does to them.
struct moments_in_step {
  const tensor_terms* terms;
  tensor_numbers* numbers;
  std::uint32_t n_tensors;
  moments of;  ///< the rule's own
  moments_seen seen;

  [[nodiscard]] ONEBIT_HD bias_decay next(const bias_decay& bias, const moments& m,
                                          bool rests) const {
    if (!seen.corrected) return {0, 0};
    return {product(bias.m, seen.m && !rests ? m.beta1 : 1),
            product(bias.v, seen.v && !rests ? m.beta2 : 1)};
  }
  /// That of tensor i after the step.
  [[nodiscard]] ONEBIT_HD bias_decay next(std::size_t i) const {
    return next(numbers[i].bias, terms[i].of, terms[i].rests != 0);
  }
};

/// After so many steps.
[[nodiscard, gnu::cold]] inline bias_decay bias_after(const moments& of, std::uint64_t steps) {
  return {std::pow(of.beta1, static_cast<double>(steps)),
          std::pow(of.beta2, static_cast<double>(steps))};
}

/// Sets the numbers of the next step: of tensor i, and, the first time, those of all.
struct begin_step_kernel {
  static constexpr bool serial = true;
  step_scalars* now;
  moments_in_step tensors;
  float lr, inverse_loss_scale;
  std::uint32_t number, digest;
  bool bad;  ///< this rank cannot do the step

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    if (i < tensors.n_tensors) {
      const bias_decay next = tensors.next(i);
      L::store_scalar(&tensors.numbers[i].m_correction, correction(next.m));
      L::store_scalar(&tensors.numbers[i].v_correction, correction(next.v));
    }
    if (i > 0) return;
    L::store_scalar(&now->lr, lr);
    L::store_scalar(&now->inverse_loss_scale, inverse_loss_scale);
    L::store_scalar(&now->clip, 1.0F);
    L::store_scalar(&now->mean_norm, -1.0F);
    L::store_scalar(&now->own_norm, -1.0F);
    L::store_scalar(&now->number, number);
    L::store_scalar(&now->terms, digest);
    L::store_scalar(&now->bad, std::uint32_t{bad ? 1U : 0U});
    L::store_scalar(&now->skip, std::uint32_t{bad ? 1U : 0U});
  }
};

/// Counts the step if it was called off; else the moments have lost some of their bias. In a local
/// step they have in any case: all ranks correct alike, also one that left its gradient out.
struct end_step_kernel {
  static constexpr bool serial = true;
  step_scalars* now;
  moments_in_step tensors;
  float most_noise;  ///< see `noise`
  bool local;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const bool is_done = now->skip == 0 || local;
    if (i < tensors.n_tensors && is_done) {
      L::store_scalar(&tensors.numbers[i].bias, tensors.next(i));
    }
    if (i > 0) return;
    if (now->skip != 0) L::store_scalar(&now->n_skipped, now->n_skipped + 1);
    if (!is_done) return;
    L::store_scalar(&now->bias, tensors.next(now->bias, tensors.of, false));
    if (now->mean_norm > 0 && now->own_norm >= 0) L::store_scalar(&now->noise, next_noise());
  }

 private:
  /// How many times larger a rank's gradient is than the mean of all: between 1 (all the same) and
  /// the root of W (nothing but noise), an average over the last ten or so.
  [[nodiscard]] ONEBIT_HD float next_noise() const {
    float ratio = now->own_norm / now->mean_norm;
    ratio = ratio < 1 ? 1 : ratio > most_noise ? most_noise : ratio;
    return now->noise > 0 ? fmaf(0.1F, ratio - now->noise, now->noise) : ratio;
  }
};

}  // namespace detail
}  // namespace onebit::inline v0_1
