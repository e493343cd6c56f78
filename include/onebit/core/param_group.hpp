// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <onebit/core/concepts.hpp>
#include <onebit/core/element_types.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/core/step_state.hpp>
#include <span>
#include <type_traits>
#include <vector>

/// The trainer's memory: views of it, what it hands over, and how kernels read and write it.
namespace onebit::inline v0_1 {

namespace detail {

/// Contiguous memory of T that the standard library does not know as such: a view of another
/// library (cuda::std::span), or what owns memory of a device and gives out wrapped pointers
/// (thrust::device_vector).
template <class C, class T>
concept lends_pointer = requires(C& c) {
  { c.data() } -> std::convertible_to<T*>;
  { c.size() } -> std::convertible_to<std::size_t>;
};
template <class C, class T>
concept lends_wrapped_pointer = requires(C& c) {
  { c.data().get() } -> std::convertible_to<T*>;
  { c.size() } -> std::convertible_to<std::size_t>;
};

}  // namespace detail

/// std::span, which also takes what std::span does not: see detail::lends_pointer. Of what owns
/// memory, only what has a name.
template <class T>
struct memory_view : std::span<T> {
  using std::span<T>::span;
  /// Of a span.
  constexpr memory_view(std::span<T> s) noexcept : std::span<T>(s) {}
  /// Of what owns memory behind a wrapped pointer: thrust::device_vector.
  template <class C>
    requires(!std::is_constructible_v<std::span<T>, C&> && detail::lends_wrapped_pointer<C, T>)
  constexpr memory_view(C& c) : std::span<T>(c.data().get(), c.size()) {}
  /// Of another view: cuda::std::span.
  template <class C>
    requires(!std::is_constructible_v<std::span<T>, C> &&
             !detail::lends_wrapped_pointer<const C, T> && detail::lends_pointer<const C, T> &&
             std::is_trivially_copyable_v<C>)
  constexpr memory_view(const C& view) : std::span<T>(view.data(), view.size()) {}
  /// Of what owns other elements, as double: says so.
  template <class C>
    requires(std::is_arithmetic_v<std::remove_pointer_t<decltype(std::declval<C&>().data())>> &&
             !detail::lends_pointer<C, const T>)
  constexpr memory_view(C&) {
    static_assert(detail::lends_pointer<C, T>,
                  "onebit: a tensor's memory has other elements than the group says: "
                  "param_group<P, G> takes contiguous float, bf16 or fp16 that may be written "
                  "(gradients also const); copy double to float");
  }
};

namespace detail {

template <class T>
struct view_of_elements {
  using type = memory_view<T>;
};
template <class T>
  requires std::same_as<std::remove_const_t<T>, any_element>
struct view_of_elements<T> {
  using type = span_of<T>;
};

}  // namespace detail

/// One tensor of the trainer: views of its memory, never a copy.
///
/// Float gradients may be consumed: averages use their memory as scratch, so what they hold after a
/// step is unspecified. With `G = const float`, 2-byte types and any_element they are only read:
/// averages in more than four buckets (of 2^22 elements) then take 4 bytes per parameter (in bf16
/// 2). Compressed exchanges only ever read them.
///
/// `P` and `G` are float, bf16 or fp16 (element_types.hpp), or both any_element: any of them, in
/// each tensor another. With 2-byte parameters `master` may hold them in float: steps then act on
/// it, and `params` receives its rounding. Without it, each step rounds. A master counts while it
/// rounds to its parameter: where it does not, because nobody has set it, or other weights were
/// loaded, the next step takes the parameter, and the master becomes what it makes of that.
/// (Exchanges of 0/1 Adam start from its anchor: weights written between two of them are lost.)
template <class P = float, class G = P>
struct tensor {
  typename detail::view_of_elements<P>::type params;  ///< changed by each step
  typename detail::view_of_elements<G>::type grads;   ///< of this rank, read by each step
  memory_view<float> master{};                        ///< empty, or params in float; see above
};

/// What the tensors of a group share. The effective learning rate is `lr * lr_factor`; the decay is
/// decoupled (x -= lr * weight_decay * x), in every phase. Betas and eps are the rule's, where the
/// group has none of its own. A group that rests stands still: see optimizer::rest.
///
/// Rounded to nearest, a bf16 parameter does not change in a step that would change it by less than
/// 2^-9 of its size. `stochastic_rounding` rounds to one of the two neighbouring bf16, with
/// probabilities that keep the mean. A hash of the step's number and the element's place decides,
/// so that all ranks and backends agree. Exchanges of 0/1 Adam round to nearest (their anchor is
/// float), as do values from 3.39e38 on, the largest finite bf16. For groups whose tensors are bf16
/// without masters; others are refused.
struct group_options {
  float lr_factor = 1.0F;            ///< 0: parameters stay, m and v go on
  float weight_decay = 0.0F;         ///< decoupled
  group_moments own{};               ///< betas and eps, where they are not the rule's
  bool rests = false;                ///< stands still
  bool stochastic_rounding = false;  ///< of bf16 parameters without masters
  friend bool operator==(const group_options&, const group_options&) = default;
};

/// Tensors that share hyperparameters: see group_options.
template <class P = float, class G = P>
struct param_group {
  std::vector<tensor<P, G>> tensors{};  ///< in an order that is the same on all ranks
  /// @{
  /// See group_options.
  float lr_factor = 1.0F;
  float weight_decay = 0.0F;
  group_moments own{};
  bool rests = false;
  bool stochastic_rounding = false;
  /// @}

  /// All but the tensors.
  [[nodiscard]] group_options options() const {
    return {lr_factor, weight_decay, own, rests, stochastic_rounding};
  }
};

/// What a kernel knows of a tensor: raw pointers and its group's options.
template <class P, class G>
struct tensor_entry {
  pointer_to<P> params{};
  pointer_to<G> grads{};
  float lr_factor = 1.0F;
  float weight_decay = 0.0F;
  float* master = nullptr;           ///< of 2-byte parameters, or null
  bool rests = false;                ///< in this step: it has no gradient, its parameters stay
  bool stochastic_rounding = false;  ///< bf16 without master

  [[nodiscard]] ONEBIT_HD float rate(const step_scalars* now) const {
    return rests ? 0.0F : now->lr * lr_factor;
  }
};

namespace detail {

/// Loads word k of a tile that lies at `first` in the trainer's memory, which ends after n
/// elements.
template <class L, class T>
ONEBIT_HD typename L::value load_elements(const T* first, std::uint32_t k, std::uint32_t n) {
  const std::uint32_t left = L::words > 1 ? 32 : n - 32 * k;  // several words are whole ones
  if constexpr (!std::is_same_v<T, float>) {
    return L::load_as(first + 32 * k, left >= 32 ? 32 : left);
  } else if constexpr (L::words > 1) {
    return L::load(first + 32 * k);
  } else {
    return left >= 32 ? L::load(first + 32 * k) : L::load(first + 32 * k, left);
  }
}

template <class L, class T>
ONEBIT_HD void store_elements(T* first, std::uint32_t k, std::uint32_t n,
                              const typename L::value& v) {
  const std::uint32_t left = L::words > 1 ? 32 : n - 32 * k;
  if constexpr (!std::is_same_v<T, float>) {
    L::store_as(first + 32 * k, v, left >= 32 ? 32 : left);
  } else if constexpr (L::words > 1) {
    L::store(first + 32 * k, v);
  } else if (left >= 32) {
    L::store(first + 32 * k, v);
  } else {
    L::store(first + 32 * k, v, left);
  }
}

template <class L>
ONEBIT_HD typename L::value load_elements(const any_pointer& first, std::uint32_t k,
                                          std::uint32_t n) {
  if (first.type == element_type::of_float)
    return load_elements<L>(static_cast<const float*>(first.p), k, n);
  if (first.type == element_type::of_bf16)
    return load_elements<L>(static_cast<const bf16*>(first.p), k, n);
  return load_elements<L>(static_cast<const fp16*>(first.p), k, n);
}
template <class L>
ONEBIT_HD void store_elements(const any_pointer& first, std::uint32_t k, std::uint32_t n,
                              const typename L::value& v) {
  if (first.type == element_type::of_float)
    return store_elements<L>(static_cast<float*>(first.p), k, n, v);
  if (first.type == element_type::of_bf16)
    return store_elements<L>(static_cast<bf16*>(first.p), k, n, v);
  store_elements<L>(static_cast<fp16*>(first.p), k, n, v);
}

/// A master, where it rounds to its parameter; else that.
template <class L, class T>
ONEBIT_HD typename L::value exact_of(const T*, const typename L::value& master,
                                     const typename L::value& param) {
  return L::template unrounded<std::remove_const_t<T>>(master, param);
}
template <class L>
ONEBIT_HD typename L::value exact_of(const any_pointer& of, const typename L::value& master,
                                     const typename L::value& param) {
  if (of.type == element_type::of_bf16) return L::template unrounded<bf16>(master, param);
  return L::template unrounded<fp16>(master, param);
}

}  // namespace detail

/// The parameters of a tile, or their masters, where these round to them.
template <class L, class P>
struct parameters_of {
  pointer_to<P> first;
  float* master;
  std::uint32_t n;
  bool stochastic;    ///< rounding
  std::uint32_t key;  ///< of its first element, in this step

  /// Without `now` all parameters are rounded to nearest.
  template <class G>
  ONEBIT_HD parameters_of(const tensor_entry<P, G>& tensor, const tile& t,
                          const step_scalars* now = nullptr)
      : first(tensor.params + t.offset),
        master(tensor.master == nullptr ? nullptr : tensor.master + t.offset),
        n(t.n),
        stochastic(tensor.stochastic_rounding && now != nullptr),
        key(stochastic ? mixed(now->number + 1) + static_cast<std::uint32_t>(t.word * 32) : 0) {}

  ONEBIT_HD typename L::value load(std::uint32_t k) const {
    const pointer_to<const P> at(first);
    if constexpr (!std::is_same_v<P, float>) {
      if (master != nullptr) {
        const auto exact = detail::load_elements<L>(static_cast<const float*>(master), k, n);
        return detail::exact_of<L>(first, exact, detail::load_elements<L>(at, k, n));
      }
    }
    return detail::load_elements<L>(at, k, n);
  }
  ONEBIT_HD void store(std::uint32_t k, const typename L::value& v) const {
    if constexpr (!std::is_same_v<P, float>) {
      if (master != nullptr) detail::store_elements<L>(master, k, n, v);
    }
    if constexpr (std::is_same_v<P, bf16> || std::is_same_v<P, any_element>) {
      if (stochastic) {
        return detail::store_elements<L>(first, k, n, L::stochastic_bf16(v, key + 32 * k));
      }
    }
    detail::store_elements<L>(first, k, n, v);
  }
};

/// Gradients of this size and above count as not finite: up to it their squares, and those of
/// momenta and residuals (a thousand times as large, summed over a tile), are finite, and a step
/// that was kept leaves no state that makes later ones overflow. A gradient over 1e18 times its
/// denominator has no finite direction, and is skipped likewise, unless directions are bounded
/// (direction_units). 2.8e14.
inline constexpr float gradient_limit = 0x1p48F;

/// The gradients of a tile, without the loss scale; NaN where they reach gradient_limit; 0, and not
/// read, where the tensor rests.
template <class L, class G>
struct gradients_of {
  pointer_to<const G> first;
  std::uint32_t n;
  float inverse_loss_scale;

  template <class P>
  ONEBIT_HD gradients_of(const tensor_entry<P, G>& tensor, const tile& t, const step_scalars* now)
      : first(tensor.rests ? pointer_to<const G>{} : tensor.grads + t.offset),
        n(t.n),
        inverse_loss_scale(now->inverse_loss_scale) {}

  ONEBIT_HD typename L::value load(std::uint32_t k) const {
    if (first == nullptr) return L::set(0.0F);
    const auto g = L::mul(detail::load_elements<L>(first, k, n), L::set(inverse_loss_scale));
    return L::fma(L::mul(g, L::set(0x1p80F)), L::set(0.0F),
                  g);  // at gradient_limit 2^128, inf; inf 0 is NaN
  }
};

}  // namespace onebit::inline v0_1
