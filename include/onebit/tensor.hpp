// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <onebit/concepts.hpp>
#include <onebit/layout.hpp>
#include <onebit/now.hpp>
#include <span>
#include <type_traits>
#include <vector>

/// The trainer's memory: what it hands over, and how kernels read and write it.
namespace onebit {

/// One tensor of the trainer: views of its memory, never a copy.
///
/// The gradients are consumed: a compressed step may use their memory as scratch, so what they hold
/// afterwards is unspecified. With `G = const float` they stay untouched and the optimizer pays
/// 4 bytes per parameter for its own scratch instead; the same with 2-byte gradients, which cannot
/// hold what has to be saved.
///
/// `P` and `G` are float, bf16 or fp16 (element.hpp). With 2-byte parameters `master` may hold them
/// in float: steps then act on it, and `params` receives its rounding. Without, each step rounds.
template <class P = float, class G = P>
struct tensor {
  std::span<P> params;
  std::span<G> grads;
  std::span<float> master{};
};

/// Tensors that share hyperparameters. The effective learning rate is `lr * lr_factor`; the decay
/// is decoupled (x -= lr * weight_decay * x), in every phase.
template <class P = float, class G = P>
struct param_group {
  std::vector<tensor<P, G>> tensors{};
  float lr_factor = 1.0F;
  float weight_decay = 0.0F;
};

/// The moments of one tensor, from elsewhere: as many of each as it has parameters.
struct given_moments {
  std::span<const float> m, v;
};

/// What a kernel knows of a tensor: raw pointers and its group's options.
template <class P, class G>
struct tensor_entry {
  P* params = nullptr;
  G* grads = nullptr;
  float lr_factor = 1.0F;
  float weight_decay = 0.0F;
  float* master = nullptr;  ///< of 2-byte parameters, or null
};

namespace detail {

/// Loads word k of a tile that lies at `first` in the trainer's memory, which ends after n
/// elements.
template <class L, class T>
ONEBIT_HD typename L::value load_elements(const T* first, std::uint32_t k, std::uint32_t n) {
  const std::uint32_t left = n - 32 * k;
  if constexpr (std::is_same_v<T, float>) {
    return left >= 32 ? L::load(first + 32 * k) : L::load(first + 32 * k, left);
  } else {
    return L::load_as(first + 32 * k, left >= 32 ? 32 : left);
  }
}

template <class L, class T>
ONEBIT_HD void store_elements(T* first, std::uint32_t k, std::uint32_t n,
                              const typename L::value& v) {
  const std::uint32_t left = n - 32 * k;
  if constexpr (!std::is_same_v<T, float>) {
    L::store_as(first + 32 * k, v, left >= 32 ? 32 : left);
  } else if (left >= 32) {
    L::store(first + 32 * k, v);
  } else {
    L::store(first + 32 * k, v, left);
  }
}

}  // namespace detail

/// The parameters of a tile: the master copy where there is one, and its rounding.
template <class L, class P>
struct parameters_of {
  P* first;
  float* master;
  std::uint32_t n;

  template <class G>
  ONEBIT_HD parameters_of(const tensor_entry<P, G>& tensor, const tile& t)
      : first(tensor.params + t.offset),
        master(tensor.master == nullptr ? nullptr : tensor.master + t.offset),
        n(t.n) {}

  ONEBIT_HD typename L::value load(std::uint32_t k) const {
    if constexpr (!std::is_same_v<P, float>) {
      if (master != nullptr)
        return detail::load_elements<L>(static_cast<const float*>(master), k, n);
    }
    return detail::load_elements<L>(static_cast<const P*>(first), k, n);
  }
  ONEBIT_HD void store(std::uint32_t k, const typename L::value& v) const {
    if constexpr (!std::is_same_v<P, float>) {
      if (master != nullptr) detail::store_elements<L>(master, k, n, v);
    }
    detail::store_elements<L>(first, k, n, v);
  }
};

/// Gradients of this size and above count as not finite: up to it their squares, and those of what
/// is sent (a thousand times as large, summed over a tile), are finite, and a step that was kept
/// leaves no state that makes later ones overflow. 2.8e14.
inline constexpr float gradient_limit = 0x1p48F;

/// The gradients of a tile, without the loss scale; NaN where they reach gradient_limit.
template <class L, class G>
struct gradients_of {
  const G* first;
  std::uint32_t n;
  float inverse_loss_scale;

  template <class P>
  ONEBIT_HD gradients_of(const tensor_entry<P, G>& tensor, const tile& t, const step_scalars* now)
      : first(tensor.grads + t.offset), n(t.n), inverse_loss_scale(now->inverse_loss_scale) {}

  ONEBIT_HD typename L::value load(std::uint32_t k) const {
    const auto g = L::mul(detail::load_elements<L>(first, k, n), L::set(inverse_loss_scale));
    return L::fma(L::mul(g, L::set(static_cast<float>(0x1p128 / gradient_limit))), L::set(0.0F),
                  g);  // inf 0 is NaN
  }
};

}  // namespace onebit
