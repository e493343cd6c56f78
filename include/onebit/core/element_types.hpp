// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <onebit/core/config.hpp>
#include <span>
#include <type_traits>

/// Element types of a trainer's memory: float, bf16, fp16. Arithmetic is always in float; the
/// 16-bit types are for storage only. Conversions use integer arithmetic, not instructions that
/// treat subnormals and NaN in their own way, so all backends give the same bits.
namespace onebit { inline namespace v0_3 {

/// bfloat16: the upper 16 bits of a float. Bit-compatible with __nv_bfloat16, at::BFloat16 and
/// std::bfloat16_t: memory of those types may be viewed as bf16 (see as_bf16).
struct [[gnu::may_alias]] bf16 {
  std::uint16_t bits = 0;                                  ///< as they lie in memory
  friend constexpr bool operator==(bf16, bf16) = default;  ///< same bits: NaN equals itself
};

/// IEEE binary16. Bit-compatible with __half, at::Half and _Float16 (see as_fp16).
struct [[gnu::may_alias]] fp16 {
  std::uint16_t bits = 0;                                  ///< as they lie in memory
  friend constexpr bool operator==(fp16, fp16) = default;  ///< same bits: NaN equals itself
};

static_assert(sizeof(bf16) == 2 && alignof(bf16) == 2 && std::is_trivially_copyable_v<bf16>);
static_assert(sizeof(fp16) == 2 && alignof(fp16) == 2 && std::is_trivially_copyable_v<fp16>);

namespace detail {

/// Largest finite float: FLT_MAX, which device code cannot name.
inline constexpr float largest_float = 3.402823466e38F;

/// Element type of parameters or gradients.
template <class T>
concept Element = std::same_as<T, float> || std::same_as<T, bf16> || std::same_as<T, fp16>;

}  // namespace detail

/// Returns x.
ONEBIT_HD constexpr float to_float(float x) { return x; }

/// Converts exactly. NaN keeps its payload.
ONEBIT_HD constexpr float to_float(bf16 x) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(x.bits) << 16U);
}

/// Converts exactly, also subnormals. NaN becomes quiet and keeps its payload.
ONEBIT_HD constexpr float to_float(fp16 x) {
  const std::uint32_t sign = (x.bits & 0x8000U) << 16U;
  const std::uint32_t magnitude = x.bits & 0x7FFFU;
  std::uint32_t r = (magnitude << 13U) + (112U << 23U);  // 127 - 15, the exponents' biases
  if (magnitude >= 0x7C00U) {
    r = 0x7F800000U | (magnitude & 0x3FFU) << 13U | (magnitude > 0x7C00U ? 0x400000U : 0U);
  } else if (magnitude < 0x400U) {  // a multiple of 2^-24, normal as a float
    r = __builtin_bit_cast(std::uint32_t, static_cast<float>(magnitude) * 0x1p-24F);
  }
  return __builtin_bit_cast(float, sign | r);
}

/// Rounds to nearest, ties to even. Values that are too large become infinite, NaN a quiet NaN.
ONEBIT_HD constexpr bf16 to_bf16(float x) {
  const std::uint32_t u = __builtin_bit_cast(std::uint32_t, x);
  const bool nan = (u & 0x7FFFFFFFU) > 0x7F800000U;
  const std::uint32_t r = nan ? u | 0x400000U : u + 0x7FFFU + ((u >> 16U) & 1U);
  return {static_cast<std::uint16_t>(r >> 16U)};
}

/// Rounds to nearest, ties to even. Values that are too large become infinite, NaN a quiet NaN.
ONEBIT_HD constexpr fp16 to_fp16(float x) {
  const std::uint32_t u = __builtin_bit_cast(std::uint32_t, x);
  const std::uint32_t magnitude = u & 0x7FFFFFFFU;
  std::uint32_t r = 0;
  if (magnitude > 0x7F800000U) {
    r = 0x7E00U | ((magnitude >> 13U) & 0x3FFU);
  } else if (magnitude >= 0x47800000U) {  // 2^16; smaller values that round to infinity carry below
    r = 0x7C00U;
  } else if (magnitude >= 0x38800000U) {  // 2^-14, the smallest normal
    const std::uint32_t rebiased = magnitude - (112U << 23U);
    r = (rebiased + 0xFFFU + ((rebiased >> 13U) & 1U)) >> 13U;
  } else if (magnitude > 0x33000000U) {  // 2^-25 itself ties to zero
    const std::uint32_t mantissa = (magnitude & 0x7FFFFFU) | 0x800000U;
    const std::uint32_t shift = 126U - (magnitude >> 23U);  // to units of 2^-24; 14 to 24
    const std::uint32_t half = 1U << (shift - 1U);
    r = (mantissa + half - 1U + ((mantissa >> shift) & 1U)) >> shift;
  }
  return {static_cast<std::uint16_t>((u >> 16U & 0x8000U) | r)};
}

namespace detail {

/// Returns the exponent of x >= 0, biased by 127; 0 for zero and subnormals.
ONEBIT_HD constexpr std::uint32_t exponent_of(float x) {
  const std::uint32_t u = __builtin_bit_cast(std::uint32_t, x);
  return u >> 23U;
}

/// Returns 2^(biased - 127), for `biased` from 1 to 254.
ONEBIT_HD constexpr float power_of_two(std::uint32_t biased) {
  const std::uint32_t u = biased << 23U;
  return __builtin_bit_cast(float, u);
}

}  // namespace detail

/// Integer in a message, from -127 to 127.
struct [[gnu::may_alias]] int8 {
  std::int8_t value = 0;  ///< the number
};
/// Converts exactly.
ONEBIT_HD constexpr float to_float(int8 x) { return static_cast<float>(x.value); }
/// Rounds to nearest, ties to even. Of an integer out of range only the lowest 8 bits remain.
ONEBIT_HD constexpr int8 to_int8(float x) {
  const float shifted = x + 12582912.0F;  // 1.5 2^23: the last bit is worth 1
  return {static_cast<std::int8_t>(__builtin_bit_cast(std::uint32_t, shifted) & 0xFFU)};
}

namespace detail {

/// Type that lanes load and store: an element, or a number in a message.
template <class T>
concept Storable = Element<T> || std::same_as<T, int8>;

}  // namespace detail

/// Rounds a float to T.
template <detail::Storable T>
ONEBIT_HD constexpr T from_float(float x) {
  if constexpr (std::same_as<T, int8>) {
    return to_int8(x);
  } else if constexpr (std::same_as<T, bf16>) {
    return to_bf16(x);
  } else if constexpr (std::same_as<T, fp16>) {
    return to_fp16(x);
  } else {
    return x;
  }
}

namespace detail {

/// Returns a hash of x: for consecutive x the upper 16 bits look random. Source: lowbias32 of
/// hash-prospector, without the last line, which does not change the upper half.
ONEBIT_HD constexpr std::uint32_t mixed(std::uint32_t x) {
  x = (x ^ x >> 16U) * 0x7FEB352DU;
  return (x ^ x >> 15U) * 0x846CA68BU;
}

/// Returns the next value of a digest, whose bits are a float's, with the bits of x: 0x9E3779B1
/// times the digest, plus these bits.
ONEBIT_HD constexpr float digest_step(float digest, float x) {
  return __builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, digest) * 0x9E3779B1U +
                                       __builtin_bit_cast(std::uint32_t, x));
}

/// Rounds x stochastically to one of the two neighbouring bf16; the mean over all `mixed(key)` is
/// x. Returns x itself if x is NaN, or if |x| is at least the largest finite bf16.
ONEBIT_HD constexpr float stochastic_bf16(float x, std::uint32_t key) {
  const std::uint32_t u = __builtin_bit_cast(std::uint32_t, x);
  if ((u & 0x7FFFFFFFU) >= 0x7F7F0000U) return x;
  return __builtin_bit_cast(float, (u + (mixed(key) >> 16U)) & 0xFFFF0000U);
}

/// Rounds x >= 0 stochastically to bf16; the mean over all 2^16 values of `random` is x. A positive
/// x never becomes 0, NaN stays NaN. Above the largest finite bf16 the result may be infinite.
ONEBIT_HD constexpr bf16 stochastic_square(float x, std::uint32_t random) {
  const std::uint32_t u = __builtin_bit_cast(std::uint32_t, x);
  const std::uint32_t upper = (u >> 16U) + ((u & 0xFFFFU) > random ? 1U : 0U);
  if (x != x) return {0xFFFFU};
  return {static_cast<std::uint16_t>(upper == 0 && u != 0 ? 1U : upper)};
}

}  // namespace detail

// Words of squares: 32 bf16. Elements l and l + 8 share 4 bytes. Lanes then widen them by a shift
// and a mask.
//
//     bytes  0-3    4-7   ...  28-31 | 32-35   ...   60-63
//            0, 8   1, 9  ...  7, 15 | 16, 24  ...   23, 31

namespace detail {

/// Returns where element l of a word lies.
ONEBIT_HD constexpr std::uint32_t place_of_square(std::uint32_t l) {
  return 2 * ((l & 7U) + (l >> 4U & 1U) * 8) + (l >> 3U & 1U);
}

/// Returns 16 random bits for element l of a word: those of the word, and a multiple of the golden
/// section. So each element has a random threshold, and those of a word are spread evenly.
ONEBIT_HD constexpr std::uint32_t random_of_square(std::uint32_t l, std::uint32_t of_word) {
  return (of_word + l * 0x9E37U) & 0xFFFFU;
}

/// Returns the random bits of a word.
ONEBIT_HD constexpr std::uint32_t random_of_word(std::uint32_t key) { return mixed(key) >> 16U; }

/// Rounds x >= 0 stochastically to one of the two neighbouring powers of two (below 2^-126: to that
/// or 0); the mean over all `mixed(key)` is x. Returns x itself if x is infinite or NaN.
ONEBIT_HD constexpr float stochastic_power_of_two(float x, std::uint32_t key) {
  const std::uint32_t u = __builtin_bit_cast(std::uint32_t, x);
  if ((u & 0x7FFFFFFFU) >= 0x7F800000U) return x;
  return __builtin_bit_cast(float, (u + (mixed(key) >> 9U)) & 0x7F800000U);
}

/// Returns x if x rounds to y, a value of T; else y. Returns y if y is NaN.
template <detail::Storable T>
ONEBIT_HD constexpr float unrounded(float x, float y) {
  return to_float(from_float<T>(x)) == y ? x : y;
}

}  // namespace detail

// -- memory whose type is known at run time ------------------------------------------------------

/// Tag in place of an element type: each tensor has its own type, known at run time, so one
/// optimizer may have tensors of several types. Gradients of such tensors are only read.
struct any_element;

namespace detail {

/// Element type, as a value at run time.
enum class element_type : std::uint8_t { of_float, of_bf16, of_fp16 };

/// The element_type of T.
template <detail::Element T>
inline constexpr detail::element_type type_of =
    std::same_as<T, bf16>   ? detail::element_type::of_bf16
    : std::same_as<T, fp16> ? detail::element_type::of_fp16
                            : detail::element_type::of_float;

}  // namespace detail

/// Calls f(p). On the host f may be a lambda; the pragma suppresses nvcc's warning about that.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
template <class T, class F>
decltype(auto) with_type(T* p, const F& f) {
  return f(p);
}
namespace detail {

struct any_pointer {
  void* p = nullptr;
  element_type type = element_type::of_float;

  [[nodiscard]] ONEBIT_HD any_pointer operator+(std::size_t n) const {
    const std::size_t each = type == element_type::of_float ? 4 : 2;
    return {static_cast<std::byte*>(p) + n * each, type};
  }
  friend ONEBIT_HD bool operator==(const any_pointer& a, std::nullptr_t) { return a.p == nullptr; }
};

}  // namespace detail
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
/// Calls f with a typed pointer: bf16*, fp16* or float*, as `a.type` says.
template <class F>
decltype(auto) with_type(const detail::any_pointer& a, const F& f) {
  if (a.type == detail::element_type::of_bf16) return f(static_cast<bf16*>(a.p));
  if (a.type == detail::element_type::of_fp16) return f(static_cast<fp16*>(a.p));
  return f(static_cast<float*>(a.p));
}

namespace detail {

/// View of elements of one type, known at run time. A span of any element type converts to it.
class any_span {
 public:
  any_span() = default;
  /// Views the elements of a span.
  template <Element T>
  explicit(false) any_span(std::span<T> values)
      : data_{values.data(), type_of<T>}, size_(values.size()) {}
  /// Views n elements, from `data` on.
  any_span(any_pointer data, std::size_t n) : data_(data), size_(n) {}

  [[nodiscard]] any_pointer data() const { return data_; }  ///< the first element
  [[nodiscard]] std::size_t size() const { return size_; }  ///< number of elements
  [[nodiscard]] bool empty() const { return size_ == 0; }   ///< true if there are none

 private:
  any_pointer data_{};
  std::size_t size_ = 0;
};

/// True if T is any_element or const any_element.
template <class T>
inline constexpr bool is_any = std::same_as<std::remove_const_t<T>, any_element>;

/// Pointer to elements of T: a T*, or an any_pointer.
template <class T>
using pointer_to = std::conditional_t<is_any<T>, any_pointer, T*>;

/// View of elements of T: a std::span, or an any_span.
template <class T>
using span_of = std::conditional_t<is_any<T>, any_span, std::span<T>>;

/// True if an optimizer accepts parameters of P with gradients of G.
template <class P, class G>
inline constexpr bool can_be_trained = (Element<P> && Element<G>) ||
                                       (std::same_as<P, any_element> && std::same_as<G, P>);

template <class To, class From>
using like_const = std::conditional_t<std::is_const_v<From>, const To, To>;

template <class X>
concept two_bytes = sizeof(X) == 2 && alignof(X) == 2 && std::is_trivially_copyable_v<X>;

/// Declares a 16-bit type X of another library. A specialisation has a member `type`, bf16 or fp16:
/// tensors of this type then take pointers to X and spans of X. backend/cuda_memory.cuh has CUDA's.
template <class X>
struct same_memory {};

/// X, const or not, is a type declared by same_memory, and a tensor of T takes X.
template <class X, class T>
concept has_memory_of = requires {
  typename same_memory<std::remove_const_t<X>>::type;
  requires std::is_convertible_v < like_const<typename same_memory<std::remove_const_t<X>>::type, X>
  *, T* > ;
};

}  // namespace detail

/// Views a framework's bfloat16 values as bf16: the same memory, no copy.
template <detail::two_bytes X, std::size_t N>
[[nodiscard]] std::span<detail::like_const<bf16, X>, N> as_bf16(std::span<X, N> values) {
  using to = detail::like_const<bf16, X>;
  return std::span<to, N>(reinterpret_cast<to*>(values.data()), values.size());
}

/// Views a framework's half-precision values as fp16: the same memory, no copy.
template <detail::two_bytes X, std::size_t N>
[[nodiscard]] std::span<detail::like_const<fp16, X>, N> as_fp16(std::span<X, N> values) {
  using to = detail::like_const<fp16, X>;
  return std::span<to, N>(reinterpret_cast<to*>(values.data()), values.size());
}

}}  // namespace onebit
