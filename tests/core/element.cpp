// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <onebit/core/element_types.hpp>
#include <vector>

using onebit::bf16;
using onebit::fp16;

namespace {

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }
float float_of(std::uint32_t x) { return std::bit_cast<float>(x); }

/// The value of a 16-bit pattern, by the definition of such formats.
double defined(std::uint32_t pattern, int n_exponent_bits) {
  const int n_mantissa_bits = 15 - n_exponent_bits;
  const int largest = (1 << n_exponent_bits) - 1, bias = largest / 2;
  const int exponent = static_cast<int>(pattern >> n_mantissa_bits) & largest;
  const double mantissa = pattern & ((1U << n_mantissa_bits) - 1U);
  const double sign = (pattern & 0x8000U) != 0 ? -1 : 1;
  if (exponent == largest) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::nan("");
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - n_mantissa_bits);
  return sign *
         std::ldexp(mantissa + std::ldexp(1.0, n_mantissa_bits), exponent - bias - n_mantissa_bits);
}

template <class T>
T rounded(float x) {
  return onebit::from_float<T>(x);
}

/// Every pattern, the midpoint to its successor, and the floats beside that.
template <class T>
void check_format(int n_exponent_bits) {
  const std::uint32_t infinity = ((1U << n_exponent_bits) - 1U) << (15 - n_exponent_bits);
  std::size_t n_wrong = 0;
  for (std::uint32_t p = 0; p < 0x10000U; ++p) {
    const T x{static_cast<std::uint16_t>(p)};
    const double value = defined(p, n_exponent_bits);
    const float wide = onebit::to_float(x);
    if (std::isnan(value)) {
      n_wrong += !std::isnan(wide);
      const T back = rounded<T>(wide);
      const bool quiet_nan = (back.bits & 0x7FFFU) > infinity &&
                             (back.bits & (1U << (14 - n_exponent_bits))) != 0 &&
                             (back.bits & 0x8000U) == (p & 0x8000U);
      n_wrong += !quiet_nan;
      continue;
    }
    n_wrong += bits_of(wide) != bits_of(static_cast<float>(value));
    n_wrong += static_cast<double>(wide) != value;
    n_wrong += !(rounded<T>(wide) == x);

    if ((p & 0x7FFFU) >= infinity) continue;
    const T next{static_cast<std::uint16_t>(p + 1)};
    // the successor of the largest, were there more exponents
    const double step_up = (p & 0x7FFFU) + 1 == infinity
                               ? 2 * value - defined(p - 1, n_exponent_bits)
                               : defined(p + 1, n_exponent_bits);
    const auto middle = static_cast<float>((value + step_up) / 2);
    REQUIRE(static_cast<double>(middle) == (value + step_up) / 2);
    n_wrong += !(rounded<T>(middle) == (p % 2 == 0 ? x : next));
    n_wrong += !(rounded<T>(float_of(bits_of(middle) - 1)) == x);
    n_wrong += !(rounded<T>(float_of(bits_of(middle) + 1)) == next);
  }
  CHECK(n_wrong == 0);

  CHECK(rounded<T>(std::numeric_limits<float>::max()).bits == infinity);
  CHECK(rounded<T>(-std::numeric_limits<float>::max()).bits == (infinity | 0x8000U));
  CHECK(rounded<T>(std::numeric_limits<float>::denorm_min()).bits == 0);
  CHECK(rounded<T>(-std::numeric_limits<float>::denorm_min()).bits == 0x8000U);
  for (const std::uint32_t nan : {0x7F800001U, 0x7FFFFFFFU, 0xFF800001U, 0xFFC00000U}) {
    const std::uint32_t r = rounded<T>(float_of(nan)).bits;
    CHECK((r & 0x7FFFU) > infinity);
    CHECK((r & 0x8000U) == (nan >> 16U & 0x8000U));
    CHECK((r & (1U << (14 - n_exponent_bits))) != 0);  // quiet
  }
}

}  // namespace

TEST_CASE("element: bf16, every pattern and every rounding between two") { check_format<bf16>(8); }

TEST_CASE("element: fp16, every pattern and every rounding between two") { check_format<fp16>(5); }

TEST_CASE("element: stochastic rounding goes to either neighbour, and the mean stays") {
  constexpr std::uint32_t n = 1U << 16U;
  for (const float x : {1.001F, -0.3337F, 3e38F, 1e-40F, 0.5F + 0x1p-20F, 5e-39F}) {
    const std::uint32_t below = bits_of(x) & 0xFFFF0000U, above = below + 0x10000U;
    const double part = (bits_of(x) - below) / 65536.0;
    std::uint32_t n_above = 0, n_others = 0;
    for (std::uint32_t key = 0; key < n; ++key) {
      const std::uint32_t r = bits_of(onebit::detail::stochastic_bf16(x, key));
      n_above += r == above;
      n_others += r != above && r != below;
    }
    CHECK(n_others == 0);
    CHECK(std::fabs(n_above / double{n} - part) < 4 * std::sqrt(part * (1 - part) / n));
  }
  const float most = float_of(0x7F7F0000U), inf = std::numeric_limits<float>::infinity();
  std::uint32_t n_changed = 0, n_infinite = 0;
  for (std::uint32_t key = 0; key < n; ++key) {
    for (const float x : {0.0F, -0.0F, 1.0F, -2.5F, most, -most, inf, float_of(0x7F7F7FFFU),
                          float_of(0x7F7FFFFFU), float_of(0x7FC00001U)}) {
      n_changed += bits_of(onebit::detail::stochastic_bf16(x, key)) != bits_of(x);
    }
    n_infinite += std::isinf(onebit::detail::stochastic_bf16(float_of(0x7F7EFFFFU), key));
  }
  CHECK(n_changed == 0);
  CHECK(n_infinite == 0);
}

TEST_CASE("element: squares go to either neighbour, the mean stays, and none becomes 0") {
  constexpr std::uint32_t n = 1U << 16U;
  const auto rounded = [](float x, std::uint32_t random) {
    return static_cast<std::uint32_t>(onebit::detail::stochastic_square(x, random).bits) << 16U;
  };
  for (const float x : {0.0F, 1.0F, 1.001F, 3e38F, 1e-38F, 5e-39F}) {
    std::uint64_t sum = 0;
    for (std::uint32_t random = 0; random < n; ++random) sum += rounded(x, random);
    CHECK(sum == std::uint64_t{bits_of(x)} * n);
  }
  for (std::uint32_t random = 0; random < n; ++random) {
    REQUIRE(rounded(std::numeric_limits<float>::denorm_min(), random) == 0x10000U);
    REQUIRE(rounded(9e-41F, random) <= 0x10000U);
    for (const std::uint32_t nan : {0x7FFFFFFFU, 0xFFFFFFFFU, 0x7F800001U}) {
      REQUIRE(std::isnan(float_of(rounded(float_of(nan), random))));
    }
  }
  // an element of a word draws every number, whatever the word's are
  std::vector<bool> places(32);
  for (std::uint32_t l = 0; l < 32; ++l) {
    places[onebit::detail::place_of_square(l)] = true;
    std::vector<bool> drawn(n);
    for (std::uint32_t of_word = 0; of_word < n; ++of_word) {
      drawn[onebit::detail::random_of_square(l, of_word)] = true;
    }
    CHECK(std::find(drawn.begin(), drawn.end(), false) == drawn.end());
  }
  CHECK(std::find(places.begin(), places.end(), false) == places.end());
}

#if defined(__FLT16_MANT_DIG__)
TEST_CASE("element: fp16 is what the compiler calls _Float16") {
  std::size_t n_wrong = 0;
  for (std::uint32_t p = 0; p < 0x10000U; ++p) {
    const fp16 x{static_cast<std::uint16_t>(p)};
    const auto theirs = static_cast<float>(std::bit_cast<_Float16>(x));
    n_wrong += bits_of(onebit::to_float(x)) != bits_of(theirs);
  }
  for (std::uint32_t p = 0; p < 0xFFFF0000U; p += 977) {
    const auto theirs = std::bit_cast<fp16>(static_cast<_Float16>(float_of(p)));
    n_wrong += !(onebit::to_fp16(float_of(p)) == theirs);
  }
  CHECK(n_wrong == 0);
}
#endif

TEST_CASE("element: conversions are constant expressions") {
  static_assert(onebit::to_float(onebit::to_bf16(1.5F)) == 1.5F);
  static_assert(onebit::to_float(onebit::to_fp16(65504.0F)) == 65504.0F);
  static_assert(onebit::to_fp16(65520.0F).bits == 0x7C00U);
  static_assert(onebit::to_fp16(0x1p-24F).bits == 1U);
  static_assert(onebit::detail::Element<float> && onebit::detail::Element<bf16> &&
                onebit::detail::Element<fp16>);
  static_assert(!onebit::detail::Element<double> && !onebit::detail::Element<std::uint16_t>);
}

TEST_CASE("element: a framework's own 16-bit values are viewed, not copied") {
  struct theirs {
    unsigned short x;
  };
  std::vector<theirs> values = {{0x3F80U}, {0x4000U}};
  const std::span<bf16> view = onebit::as_bf16(std::span(values));
  CHECK(view.size() == 2);
  CHECK(onebit::to_float(view[1]) == 2.0F);
  view[0] = onebit::to_bf16(-1.0F);
  CHECK(values[0].x == 0xBF80U);

  const std::array<theirs, 1> halves = {{{0x3C00U}}};
  const std::span<const fp16, 1> half = onebit::as_fp16(std::span(halves));
  CHECK(onebit::to_float(half[0]) == 1.0F);
}

TEST_CASE("stochastic_power_of_two: one of the two neighbours, right on average, 0 stays 0") {
  const auto power = [](float x, std::uint32_t key) {
    return onebit::detail::stochastic_power_of_two(x, key);
  };
  for (const float x : {1.0F, 1.25F, 1.5F, 1.999F, 3e-30F, 0x1p-126F, 7e37F, 100.0F}) {
    const double low = std::exp2(std::floor(std::log2(static_cast<double>(x))));
    double sum = 0, squares = 0;
    const std::uint32_t n = 1U << 16U;
    std::size_t n_wrong = 0;
    for (std::uint32_t key = 0; key < n; ++key) {
      const auto r = static_cast<double>(power(x, key * 77777U + 5));
      n_wrong += r != low && r != 2 * low ? 1U : 0U;
      sum += r;
      squares += r * r;
    }
    CHECK(n_wrong == 0);
    // a coin with the chance p of the upper neighbour: variance p (1 - p), in units of the lower
    const double p = static_cast<double>(x) / low - 1, mean = sum / n;
    CHECK(std::fabs(mean / low - (1 + p)) <= 5 * std::sqrt(p * (1 - p) / n) + 1e-4);
    CHECK(squares / n / low / low - mean / low * (mean / low) ==
          doctest::Approx(p * (1 - p)).epsilon(0.02));
  }
  for (const std::uint32_t key : {0U, 1U, 0xFFFFFFFFU}) {
    CHECK(power(0.0F, key) == 0.0F);
    CHECK(std::isinf(power(std::numeric_limits<float>::infinity(), key)));
    CHECK(std::isnan(power(std::nanf(""), key)));
    CHECK(power(0x1p127F, key) == 0x1p127F);
    // a subnormal becomes 0 or the smallest normal
    const float tiny = power(0x1p-127F, key);
    CHECK((tiny == 0.0F || tiny == 0x1p-126F));
  }
}
