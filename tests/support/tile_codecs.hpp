// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Tile compressors for tests only.

#ifndef ONEBIT_TESTS_SUPPORT_TILE_CODECS_HPP
#define ONEBIT_TESTS_SUPPORT_TILE_CODECS_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <onebit/concepts/compressor.hpp>
#include <string>

namespace onebit_test {

/// -s, 0, +s: two bits an element behind one float; what is less than half of the mean magnitude is
/// sent as 0, and s keeps the norm.
struct ternary {
  static std::string name() { return "ternary"; }
  std::size_t tile_bytes(std::size_t n) const { return 4 + (n + 3) / 4; }
  void encode(const float* values, std::size_t n, std::byte* out) const {
    double sum = 0, squares = 0, n_sent = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const auto x = std::fabs(static_cast<double>(values[i]));
      sum += x;
      squares += x * x;
    }
    const double least = sum / static_cast<double>(n) / 2;
    std::memset(out + 4, 0, (n + 3) / 4);
    for (std::size_t i = 0; i < n; ++i) {
      const bool is_sent = sum > 0 && std::fabs(static_cast<double>(values[i])) >= least;
      const unsigned code = !is_sent ? 0 : values[i] > 0 ? 1 : 2;
      n_sent += is_sent ? 1 : 0;
      out[4 + i / 4] |= static_cast<std::byte>(code << 2 * (i % 4));
    }
    const auto s = static_cast<float>(n_sent > 0 ? std::sqrt(squares / n_sent) : sum);
    std::memcpy(out, &s, 4);
  }
  void decode(const std::byte* in, std::size_t n, float* values) const noexcept {
    float s = 0;
    std::memcpy(&s, in, 4);
    for (std::size_t i = 0; i < n; ++i) {
      const unsigned code = (std::to_integer<unsigned>(in[4 + i / 4]) >> 2 * (i % 4)) & 3U;
      values[i] = code == 0 ? 0.0F : code == 1 ? s : -s;
    }
  }
};

/// One byte an element behind one float per tile.
struct int8_tile {
  static std::string name() { return "int8"; }
  std::size_t tile_bytes(std::size_t n) const { return 4 + n; }
  void encode(const float* values, std::size_t n, std::byte* out) const {
    float largest = 0;
    for (std::size_t i = 0; i < n; ++i) largest = std::max(largest, std::fabs(values[i]));
    const float step = largest / 127;
    std::memcpy(out, &step, 4);
    for (std::size_t i = 0; i < n; ++i) {
      const float q = step > 0 ? std::nearbyint(values[i] / step) : 0.0F;
      out[4 + i] = static_cast<std::byte>(static_cast<std::int8_t>(std::clamp(q, -127.0F, 127.0F)));
    }
  }
  void decode(const std::byte* in, std::size_t n, float* values) const noexcept {
    float step = 0;
    std::memcpy(&step, in, 4);
    for (std::size_t i = 0; i < n; ++i) {
      values[i] = step * static_cast<float>(std::to_integer<std::int8_t>(in[4 + i]));
    }
  }
};

static_assert(onebit::detail::TileCompressor<ternary> && !onebit::detail::WordCompressor<ternary>);
static_assert(onebit::detail::TileCompressor<int8_tile> &&
              !onebit::detail::WordCompressor<int8_tile>);

}  // namespace onebit_test

#endif  // ONEBIT_TESTS_SUPPORT_TILE_CODECS_HPP
