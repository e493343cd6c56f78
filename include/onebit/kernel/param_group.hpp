// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <onebit/concepts/moments.hpp>
#include <onebit/core/element_types.hpp>
#include <onebit/core/error.hpp>
#include <ranges>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

/// Views of the trainer's memory, and the groups of tensors that a trainer passes to an optimizer.
namespace onebit { inline namespace v0_3 {

namespace detail {

/// Views that tell their strides, as those of Eigen; or whether they are contiguous.
template <class C>
concept tells_strides = requires(const C& c) {
  c.innerStride() + c.outerStride() + c.innerSize() + c.outerSize();
};
template <class C>
concept tells_exhaustive = requires(const C& c) {
  { c.is_exhaustive() } -> std::convertible_to<bool>;
};
/// Types of which it is known, now or when the program runs, that data() begins size() elements.
template <class C>
concept known_contiguous = std::ranges::contiguous_range<C> ||
    tells_strides<std::remove_cvref_t<C>> || tells_exhaustive<std::remove_cvref_t<C>>;

/// Returns what is wrong with the memory of a view that leaves gaps: empty if it leaves none.
template <class C>
[[nodiscard]] std::string gaps_of(const C& view) {
  if constexpr (tells_strides<C>) {
    const auto inner = view.innerSize(), outer = view.outerSize();
    if ((inner <= 1 || view.innerStride() == 1) &&
        (outer <= 1 || inner == 0 || view.outerStride() == inner)) {
      return {};
    }
    return join({"is a view of ", outer, " runs of ", inner, " elements, strides ",
                 view.outerStride(), " and ", view.innerStride(), ": "});
  } else if constexpr (tells_exhaustive<C>) {
    if (!view.is_exhaustive()) {
      return join({"is a view of ", static_cast<std::size_t>(view.size()),
                   " elements that are not contiguous: "});
    }
  }
  return {};
}
inline constexpr const char* copy_contiguous =
    "give contiguous memory (a copy, or the whole matrix)";

/// Contiguous memory of T in a type that std::span does not accept: a view of another library
/// (cuda::std::span), or, with wrapped pointers, an owner of device memory (thrust::device_vector).
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

/// A std::span that also converts from types of detail::lends_pointer and lends_wrapped_pointer.
/// Owners of memory must be lvalues. Views that tell their strides throw invalid_input where they
/// leave gaps; types with data() and size() that do not tell are rejected: span them yourself.
template <class T>
struct memory_view : std::span<T> {
  using std::span<T>::span;
  /// Views the elements of a span.
  constexpr memory_view(std::span<T> s) noexcept : std::span<T>(s) {}
  /// Views the memory of an owner with wrapped pointers: thrust::device_vector.
  template <class C>
    requires(!std::is_constructible_v<std::span<T>, C&> && detail::lends_wrapped_pointer<C, T>)
  constexpr memory_view(C& c) : std::span<T>(c.data().get(), c.size()) {}
  /// Views the elements of another library's view: cuda::std::span.
  template <class C>
    requires(!std::is_constructible_v<std::span<T>, C> &&
             !detail::lends_wrapped_pointer<const C, T> && detail::lends_pointer<const C, T> &&
             detail::known_contiguous<const C> && std::is_trivially_copyable_v<C>)
  memory_view(const C& view) : std::span<T>(view.data(), static_cast<std::size_t>(view.size())) {
    const std::string gaps = detail::gaps_of(view);
    if (!gaps.empty()) {
      throw invalid_input(detail::error_text("tensor: its memory ", gaps, detail::copy_contiguous));
    }
  }
  /// @{
  /// View elements of another library's type: see same_memory.
  template <detail::has_memory_of<T> X>
  memory_view(X* p, std::size_t n) : std::span<T>(reinterpret_cast<T*>(p), n) {}
  template <detail::has_memory_of<T> X>
  memory_view(std::span<X> s) : memory_view(s.data(), s.size()) {}
  /// @}
  /// Rejects types that do not say whether their elements are contiguous, with a readable error.
  template <class C>
    requires(!std::is_constructible_v<std::span<T>, C&> && !detail::lends_wrapped_pointer<C, T> &&
             detail::lends_pointer<C, T> && !detail::known_contiguous<C>)
  constexpr memory_view(C&) {
    static_assert(detail::known_contiguous<C>,
                  "onebit: a tensor's memory must be contiguous, and this type does not say that "
                  "it is: span it yourself, std::span(x.data(), x.size())");
  }
  /// Rejects memory of other element types, such as double, with a readable error.
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

}  // namespace detail

/// One tensor of the trainer: views of its memory, never copies.
///
/// Averages may use the memory of float gradients as scratch: after a step the content of `grads`
/// is unspecified. Gradients of `const float`, of 2-byte types and of any_element are only read:
/// averages in more than four buckets (of 2^22 elements) then take 4 bytes per parameter (in bf16
/// 2). Compressed exchanges never write to gradients.
///
/// `P` and `G` are float, bf16 or fp16 (element_types.hpp); or both are any_element: then each
/// tensor has a type of its own. With 2-byte parameters `master` may hold a float copy: steps then
/// update the master, and `params` receives the rounded master. Without masters each step rounds. A
/// master that does not round to its parameter (still 0, or other weights were loaded) is ignored:
/// the next step starts from the parameter and writes the master. Set masters to 0 at first:
/// uninitialized memory may round to a parameter by chance, on one rank. (After a local step
/// of 0/1 Adam parameters must not be written: the next exchange throws on all ranks.)
template <class P = float, class G = P>
struct tensor {
  std::conditional_t<detail::is_any<P>, detail::any_span, detail::memory_view<P>>
      params;  ///< updated by each step
  std::conditional_t<detail::is_any<G>, detail::any_span, detail::memory_view<G>>
      grads;                            ///< gradients of this rank, read by each step
  detail::memory_view<float> master{};  ///< float copy of params, or empty; see above
};

/// Options that the tensors of a group share. The group's learning rate is `lr * lr_factor`. Weight
/// decay is decoupled in all phases: x -= rate * weight_decay * x, with this rate. A group that
/// rests has no gradients: see optimizer::rest.
///
/// Rounding to nearest loses a step that changes a bf16 parameter by less than 2^-9 of its size.
/// `stochastic_rounding` rounds to one of the two neighbouring bf16, with probabilities that keep
/// the mean. A hash of the step's number and the element's place decides, so all ranks and backends
/// agree. Exchanges of 0/1 Adam round to nearest (their anchor is float), and so do values from
/// 3.39e38 on, the largest finite bf16. Only for groups whose tensors are all bf16 without masters;
/// other groups throw invalid_input.
struct group_options {
  float lr_factor = 1.0F;            ///< 0: parameters do not change, m and v do
  float weight_decay = 0.0F;         ///< decoupled
  detail::group_moments own{};       ///< betas and eps of this group, in place of the rule's
  bool rests = false;                ///< true: no gradients; parameters do not change
  bool stochastic_rounding = false;  ///< for bf16 parameters without masters
  friend bool operator==(const group_options&, const group_options&) = default;
};

/// Tensors that share options: see group_options.
template <class P = float, class G = P>
struct param_group {
  std::vector<tensor<P, G>> tensors{};  ///< in an order that is equal on all ranks
  /// @{
  /// As in group_options.
  float lr_factor = 1.0F;
  float weight_decay = 0.0F;
  detail::group_moments own{};
  bool rests = false;
  bool stochastic_rounding = false;
  /// @}

  /// Returns the options, without the tensors.
  [[nodiscard]] group_options options() const {
    return {lr_factor, weight_decay, own, rests, stochastic_rounding};
  }
};

}}  // namespace onebit
