// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <onebit/core/config.hpp>
#include <span>
#include <type_traits>

/// The element types that a trainer's memory may hold: float, bf16, fp16. Arithmetic is always in
/// float; the 16-bit types are storage. Conversions are integer arithmetic: no backend's own
/// instructions decide what happens to subnormals and NaN, so all give the same bits.
namespace onebit::inline v0_2 {

/// The upper half of a float. Bit-compatible with __nv_bfloat16, at::BFloat16, std::bfloat16_t: the
/// memory of any of these may be viewed as this type (see as_bf16).
struct [[gnu::may_alias]] bf16 {
  std::uint16_t bits = 0;                                  ///< as they lie in memory
  friend constexpr bool operator==(bf16, bf16) = default;  ///< same bits: NaN equals itself
};

/// IEEE binary16. Bit-compatible with __half, at::Half, _Float16.
struct [[gnu::may_alias]] fp16 {
  std::uint16_t bits = 0;                                  ///< as they lie in memory
  friend constexpr bool operator==(fp16, fp16) = default;  ///< same bits: NaN equals itself
};

static_assert(sizeof(bf16) == 2 && alignof(bf16) == 2 && std::is_trivially_copyable_v<bf16>);
static_assert(sizeof(fp16) == 2 && alignof(fp16) == 2 && std::is_trivially_copyable_v<fp16>);

/// What parameters and gradients may be made of.
template <class T>
concept Element = std::same_as<T, float> || std::same_as<T, bf16> || std::same_as<T, fp16>;

/// x.
ONEBIT_HD constexpr float to_float(float x) { return x; }

/// Exact; NaN keeps its payload.
ONEBIT_HD constexpr float to_float(bf16 x) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(x.bits) << 16U);
}

/// Exact, subnormals too; NaN becomes quiet and keeps its payload.
ONEBIT_HD constexpr float to_float(fp16 x) {
  const std::uint32_t sign = (x.bits & 0x8000U) << 16U;
  const std::uint32_t magnitude = x.bits & 0x7FFFU;
  std::uint32_t r = (magnitude << 13U) + (112U << 23U);  // the exponents' biases: 127 - 15
  if (magnitude >= 0x7C00U) {
    r = 0x7F800000U | (magnitude & 0x3FFU) << 13U | (magnitude > 0x7C00U ? 0x400000U : 0U);
  } else if (magnitude < 0x400U) {  // a multiple of 2^-24, normal as a float
    r = __builtin_bit_cast(std::uint32_t, static_cast<float>(magnitude) * 0x1p-24F);
  }
  return __builtin_bit_cast(float, sign | r);
}

/// Rounds to nearest, ties to even; what is too large becomes infinite, NaN a quiet NaN.
ONEBIT_HD constexpr bf16 to_bf16(float x) {
  const std::uint32_t u = __builtin_bit_cast(std::uint32_t, x);
  const bool nan = (u & 0x7FFFFFFFU) > 0x7F800000U;
  const std::uint32_t r = nan ? u | 0x400000U : u + 0x7FFFU + ((u >> 16U) & 1U);
  return {static_cast<std::uint16_t>(r >> 16U)};
}

/// Rounds to nearest, ties to even; what is too large becomes infinite, NaN a quiet NaN.
ONEBIT_HD constexpr fp16 to_fp16(float x) {
  const std::uint32_t u = __builtin_bit_cast(std::uint32_t, x);
  const std::uint32_t magnitude = u & 0x7FFFFFFFU;
  std::uint32_t r = 0;
  if (magnitude > 0x7F800000U) {
    r = 0x7E00U | ((magnitude >> 13U) & 0x3FFU);
  } else if (magnitude >=
             0x47800000U) {  // 2^16; what rounds up to it gets there by the carry below
    r = 0x7C00U;
  } else if (magnitude >= 0x38800000U) {  // 2^-14, the smallest normal
    const std::uint32_t rebiased = magnitude - (112U << 23U);
    r = (rebiased + 0xFFFU + ((rebiased >> 13U) & 1U)) >> 13U;
  } else if (magnitude > 0x33000000U) {  // 2^-25, which ties to zero
    const std::uint32_t mantissa = (magnitude & 0x7FFFFFU) | 0x800000U;
    const std::uint32_t shift = 126U - (magnitude >> 23U);  // to units of 2^-24: 14 to 24
    const std::uint32_t half = 1U << (shift - 1U);
    r = (mantissa + half - 1U + ((mantissa >> shift) & 1U)) >> shift;
  }
  return {static_cast<std::uint16_t>((u >> 16U & 0x8000U) | r)};
}

/// The exponent of a number that is not negative, biased by 127; of 0 and subnormals 0.
ONEBIT_HD constexpr std::uint32_t exponent_of(float x) {
  const std::uint32_t u = __builtin_bit_cast(std::uint32_t, x);
  return u >> 23U;
}
/// 2^(biased - 127), biased from 1 to 254.
ONEBIT_HD constexpr float power_of_two(std::uint32_t biased) {
  const std::uint32_t u = biased << 23U;
  return __builtin_bit_cast(float, u);
}

/// Whole numbers of a message, from -127 to 127.
struct [[gnu::may_alias]] int8 {
  std::int8_t value = 0;  ///< the number
};
/// Exact.
ONEBIT_HD constexpr float to_float(int8 x) { return static_cast<float>(x.value); }
/// Rounds to nearest, ties to even; of what is outside the lowest bits.
ONEBIT_HD constexpr int8 to_int8(float x) {
  const float shifted = x + 12582912.0F;  // 1.5 2^23: the last bit is worth 1
  return {static_cast<std::int8_t>(__builtin_bit_cast(std::uint32_t, shifted) & 0xFFU)};
}

/// A number of a message that is not negative and below 128, in 5 bits of exponent and 3 of
/// mantissa: 0, or 1.125 2^-25 to 120, to 6%.
struct [[gnu::may_alias]] float8 {
  std::uint8_t bits = 0;                        ///< 0, or exponent and mantissa
  static constexpr std::uint32_t before = 816;  ///< what a float's upper 12 bits have more
};
/// Exact.
ONEBIT_HD constexpr float to_float(float8 x) {
  const std::uint32_t u = x.bits == 0 ? 0 : (x.bits + float8::before) << 20U;
  return __builtin_bit_cast(float, u);
}
/// Rounds to nearest, ties up. What is positive does not become 0, what is too large the largest.
ONEBIT_HD constexpr float8 to_float8(float x) {
  if (!(x > 0)) return {0};
  const std::uint32_t u = (__builtin_bit_cast(std::uint32_t, x) + 0x80000U) >> 20U;
  const std::uint32_t bits = u <= float8::before        ? 1
                             : u > float8::before + 255 ? 255
                                                        : u - float8::before;
  return {static_cast<std::uint8_t>(bits)};
}

/// What lanes load and store: elements, and numbers of messages.
template <class T>
concept Storable = Element<T> || std::same_as<T, int8> || std::same_as<T, float8>;

/// Rounds a float to any of them.
template <Storable T>
ONEBIT_HD constexpr T from_float(float x) {
  if constexpr (std::same_as<T, int8>) {
    return to_int8(x);
  } else if constexpr (std::same_as<T, float8>) {
    return to_float8(x);
  } else if constexpr (std::same_as<T, bf16>) {
    return to_bf16(x);
  } else if constexpr (std::same_as<T, fp16>) {
    return to_fp16(x);
  } else {
    return x;
  }
}

/// A number with its bits mixed: the upper half of numbers in a row looks like chance. Source:
/// lowbias32 of hash-prospector, without its last line, which leaves that half as it is.
ONEBIT_HD constexpr std::uint32_t mixed(std::uint32_t x) {
  x = (x ^ x >> 16U) * 0x7FEB352DU;
  return (x ^ x >> 15U) * 0x846CA68BU;
}

/// x rounded to one of the two bf16 beside it: over all `mixed(key)` the mean is x. From the
/// largest finite bf16 on, and of NaN, x itself.
ONEBIT_HD constexpr float stochastic_bf16(float x, std::uint32_t key) {
  const std::uint32_t u = __builtin_bit_cast(std::uint32_t, x);
  if ((u & 0x7FFFFFFFU) >= 0x7F7F0000U) return x;
  return __builtin_bit_cast(float, (u + (mixed(key) >> 16U)) & 0xFFFF0000U);
}

/// x where it rounds to y, a value of T; y where not. Of NaN y.
template <Storable T>
ONEBIT_HD constexpr float unrounded(float x, float y) {
  return to_float(from_float<T>(x)) == y ? x : y;
}

// -- memory whose type is known at run time ------------------------------------------------------

/// Stands for any element type, where each tensor says which: tensors of several types in one
/// optimizer. Its gradients are only read.
struct any_element;

/// Which element type memory has.
enum class element_type : std::uint8_t { of_float, of_bf16, of_fp16 };
/// That of T.
template <Element T>
inline constexpr element_type type_of = std::same_as<T, bf16>   ? element_type::of_bf16
                                        : std::same_as<T, fp16> ? element_type::of_fp16
                                                                : element_type::of_float;

/// Calls f(pointer of the type that it has). On the host f may be a lambda: nvcc need not warn.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
template <class T, class F>
decltype(auto) with_type(T* p, const F& f) {
  return f(p);
}
struct any_pointer {
  void* p = nullptr;
  element_type type = element_type::of_float;

  [[nodiscard]] ONEBIT_HD any_pointer operator+(std::size_t n) const {
    const std::size_t each = type == element_type::of_float ? 4 : 2;
    return {static_cast<std::byte*>(p) + n * each, type};
  }
  friend ONEBIT_HD bool operator==(const any_pointer& a, std::nullptr_t) { return a.p == nullptr; }
};
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
/// The same for a pointer that says its type.
template <class F>
decltype(auto) with_type(const any_pointer& a, const F& f) {
  if (a.type == element_type::of_bf16) return f(static_cast<bf16*>(a.p));
  if (a.type == element_type::of_fp16) return f(static_cast<fp16*>(a.p));
  return f(static_cast<float*>(a.p));
}

/// A view of elements of one type, that any of them converts to.
class any_span {
 public:
  any_span() = default;
  /// Views what the span views.
  template <Element T>
  explicit(false) any_span(std::span<T> values)
      : data_{values.data(), type_of<T>}, size_(values.size()) {}
  /// n elements from there on.
  any_span(any_pointer data, std::size_t n) : data_(data), size_(n) {}

  [[nodiscard]] any_pointer data() const { return data_; }  ///< the first element
  [[nodiscard]] std::size_t size() const { return size_; }  ///< elements
  [[nodiscard]] bool empty() const { return size_ == 0; }   ///< whether there are none

 private:
  any_pointer data_{};
  std::size_t size_ = 0;
};

/// Whether T is any_element, const or not.
template <class T>
inline constexpr bool is_any = std::same_as<std::remove_const_t<T>, any_element>;
/// A pointer to such elements.
template <class T>
using pointer_to = std::conditional_t<is_any<T>, any_pointer, T*>;
/// A view of such elements: a std::span, or an any_span.
template <class T>
using span_of = std::conditional_t<is_any<T>, any_span, std::span<T>>;

namespace detail {

/// Parameters and gradients of these types.
template <class P, class G>
inline constexpr bool can_be_trained = (Element<P> && Element<G>) ||
                                       (std::same_as<P, any_element> && std::same_as<G, P>);

template <class To, class From>
using like_const = std::conditional_t<std::is_const_v<From>, const To, To>;

template <class X>
concept two_bytes = sizeof(X) == 2 && alignof(X) == 2 && std::is_trivially_copyable_v<X>;

}  // namespace detail

/// Another library's 16-bit type: where its specialisation has `type`, bf16 or fp16, tensors of
/// that take pointers to X, and spans. CUDA's are known to backend/cuda.cuh.
template <class X>
struct same_memory {};

namespace detail {

/// X, const or not, is such a type, and a tensor of T takes it.
template <class X, class T>
concept has_memory_of = requires {
  typename same_memory<std::remove_const_t<X>>::type;
  requires std::is_convertible_v < like_const<typename same_memory<std::remove_const_t<X>>::type, X>
  *, T* > ;
};

}  // namespace detail

/// Views a framework's bfloat16 values as ours: the same memory, no copy.
template <detail::two_bytes X, std::size_t N>
[[nodiscard]] std::span<detail::like_const<bf16, X>, N> as_bf16(std::span<X, N> values) {
  using to = detail::like_const<bf16, X>;
  return std::span<to, N>(reinterpret_cast<to*>(values.data()), values.size());
}

/// Views a framework's half-precision values as ours: the same memory, no copy.
template <detail::two_bytes X, std::size_t N>
[[nodiscard]] std::span<detail::like_const<fp16, X>, N> as_fp16(std::span<X, N> values) {
  using to = detail::like_const<fp16, X>;
  return std::span<to, N>(reinterpret_cast<to*>(values.data()), values.size());
}

}  // namespace onebit::inline v0_2
