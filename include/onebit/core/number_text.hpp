// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <charconv>
#include <concepts>
#include <cstddef>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>

/// Numbers as text: equal in every locale, of C and of C++. No other header formats numbers.
namespace onebit { inline namespace v0_3 { namespace detail {

/// Returns a number with the fewest characters that read back as the same number of its type: 0.9,
/// 1e-08, inf. Ranks, checkpoints and manifests compare such texts: different numbers differ.
template <class T>
  requires std::is_arithmetic_v<T>
[[nodiscard, gnu::cold]] std::string number_text(T x) {
  char digits[64];
  std::to_chars_result end{};
  if constexpr (std::same_as<T, bool>) {
    end = std::to_chars(digits, digits + sizeof digits, static_cast<int>(x));
  } else {
    end = std::to_chars(digits, digits + sizeof digits, x);
  }
  return {digits, end.ptr};
}

/// Returns x rounded to `digits` significant digits: for texts that only people read.
[[nodiscard, gnu::cold]] inline std::string rounded_text(double x, int digits) {
  char text[64];
  const auto end =
      std::to_chars(text, text + sizeof text, x, std::chars_format::general, digits).ptr;
  return {text, end};
}
/// Returns x with two decimals: for texts that only people read.
[[nodiscard, gnu::cold]] inline std::string two_decimals(double x) {
  char digits[400];
  const auto end =
      std::to_chars(digits, digits + sizeof digits, x, std::chars_format::fixed, 2).ptr;
  return {digits, end};
}

/// Reads a whole number from the start of `text`, and removes its digits. False if there is none.
template <std::unsigned_integral T>
[[nodiscard, gnu::cold]] bool take_number(std::string_view& text, T& x) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), x);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return true;
}

}}}  // namespace onebit::detail
