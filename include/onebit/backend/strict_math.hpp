// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <onebit/core/config.hpp>
#include <onebit/core/error.hpp>
#include <string>

/// Finds compilers that change arithmetic and define no macro that says so: clang from 20 on with
/// -ffp-model=fast, any clang with parts of -ffast-math. The lanes of trainings compute what such
/// compilers change, on values that no compiler knows, and the bits are compared.
namespace onebit { inline namespace v0_3 { namespace detail {

/// Kinds of changes.
enum strict_math_kind : std::size_t {
  sums_reassociated,
  quotients_by_reciprocals,
  zeros_without_sign,
  nans_ignored,
  products_contracted,
  n_strict_math_kinds
};

/// Computes one number from the results of each kind of arithmetic.
struct strict_math_kernel {
  static constexpr std::size_t n_wide = 48;
  const float* wide;   ///< n_wide of both signs and sizes from 2^-32 to 2^31
  const float* close;  ///< 32 from 1 to 2
  const float* odd;    ///< infinity, NaN, -0, 2^23
  std::uint32_t* found;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    const auto x = L::load(close), y = L::load(wide);
    const auto nan = L::set(odd[1]), minus_zero = L::set(odd[2]), grid = L::set(odd[3]);
    found[sums_reassociated] = of<L>(L::sub(L::add(x, grid), grid)) + of(L::fold(y)) +
                               of(close[1] + odd[3] - odd[3]) +
                               of(static_cast<float>(L::sum(wide, n_wide)));
    found[quotients_by_reciprocals] =
        of<L>(L::div(x, L::set(close[5]))) + of<L>(L::div(x, L::sqrt(L::abs(y)))) +
        of(close[1] / close[5]) + of(close[2] / close[5]) + of(close[3] / close[5]);
    found[zeros_without_sign] = of<L>(L::bound(minus_zero, 1)) + of(odd[2] + 0.0F);
    // infinity - infinity is no number
    found[nans_ignored] = of<L>((L::max)(nan, x)) + (odd[0] - odd[0] == 0 ? 1U : 0U) +
                          (is_nan(L::fold(L::fma(nan, L::set(0.0F), x))) ? 0U : 2U);
    found[products_contracted] = of<L>(L::add(L::mul(x, x), y));
  }

 private:
  ONEBIT_HD static std::uint32_t of(float x) {
    const std::uint32_t bits = __builtin_bit_cast(std::uint32_t, x) * 0x9E3779B1U;
    return bits ^ bits >> 15U;
  }
  ONEBIT_HD static bool is_nan(float x) {
    return (__builtin_bit_cast(std::uint32_t, x) & 0x7FFFFFFFU) > 0x7F800000U;
  }
  template <class L>
  ONEBIT_HD static std::uint32_t of(const typename L::value& v) {
    float x[32];
    L::store(x, v);
    std::uint32_t sum = 0;
    for (std::uint32_t l = 0; l < 32; ++l) sum += of(x[l]) * (2 * l + 1);
    return sum;
  }
};

/// Throws invalid_input if lanes do other arithmetic than the sources say. `run` runs a kernel.
template <class Run>
[[gnu::cold]] void require_strict_math(const Run& run) {
  const volatile std::uint32_t unknown = 1;
  const std::uint32_t one = unknown;
  const auto to = [](float& x, std::uint32_t bits) { std::memcpy(&x, &bits, sizeof x); };
  float wide[strict_math_kernel::n_wide], close[32], odd[4];
  std::uint32_t bits = one;
  for (std::size_t i = 0; i < strict_math_kernel::n_wide; ++i) {
    bits = bits * 1664525U + 1013904223U;
    to(wide[i], (bits & 0x9FFFFFFFU) + (95U << 23U));
    if (i < 32) to(close[i], 0x3F800000U | bits >> 9U);
  }
  constexpr std::uint32_t all[] = {0x7F800000U, 0x7FC00000U, 0x80000000U, 0x4B000000U};
  for (std::size_t i = 0; i < 4; ++i) to(odd[i], all[i] * one);

  std::uint32_t found[n_strict_math_kinds] = {};
  run(strict_math_kernel{wide, close, odd, found});
  constexpr std::uint32_t right[] = {0xD4F921D2U, 0xDC77C8C3U, 0, 0x836C0862U, 0x05960EA6U};
  constexpr const char* flags[] = {"-fassociative-math", "-freciprocal-math", "-fno-signed-zeros",
                                   "-ffinite-math-only (-fno-honor-nans, -fno-honor-infinities)",
                                   "-ffp-contract=fast"};
  std::string wrong;
  for (std::size_t kind = 0; kind < n_strict_math_kinds; ++kind) {
    if (found[kind] != right[kind]) wrong += (wrong.empty() ? "" : ", ") + std::string(flags[kind]);
  }
  if (wrong.empty()) return;
  throw invalid_input(error_text(
      "host: this program was compiled as with ", wrong,
      " (alone, or as part of -ffp-model=fast, -funsafe-math-optimizations or -ffast-math): bits "
      "differ, and bad gradients may go unseen; compile it without"));
}

}}}  // namespace onebit::detail
