// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <onebit/core/concepts.hpp>
#include <onebit/core/element_types.hpp>
#include <span>
#include <type_traits>
#include <vector>

/// The trainer's memory: views of it, and what it hands over.
namespace onebit::inline v0_2 {

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
  /// @{
  /// Of another library's elements: see same_memory.
  template <detail::has_memory_of<T> X>
  memory_view(X* p, std::size_t n) : std::span<T>(reinterpret_cast<T*>(p), n) {}
  template <detail::has_memory_of<T> X>
  memory_view(std::span<X> s) : memory_view(s.data(), s.size()) {}
  /// @}
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
/// rounds to its parameter: where it does not, because it is still 0, or other weights were loaded,
/// the next step takes the parameter, and the master becomes what it makes of that. Memory that
/// nobody has written can round to a parameter by chance, on one rank: set it to 0.
/// (Exchanges of 0/1 Adam start from its anchor: weights written between two of them are lost.)
template <class P = float, class G = P>
struct tensor {
  std::conditional_t<is_any<P>, any_span, memory_view<P>> params;  ///< changed by each step
  std::conditional_t<is_any<G>, any_span, memory_view<G>>
      grads;                    ///< of this rank, read by each step
  memory_view<float> master{};  ///< empty, or params in float; see above
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

}  // namespace onebit::inline v0_2
