// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <onebit/element.hpp>
#include <span>
#include <type_traits>

/// Views of the trainer's memory, whichever library it is of.
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

}  // namespace onebit::inline v0_1
