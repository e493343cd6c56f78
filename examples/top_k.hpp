// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>

/// The k largest elements of every tile of 4096, as (index, value): 6 bytes each. What is left out
/// stays in the residual, so error feedback sends it later.
struct top_k {
  std::size_t k = 128;

  std::string name() const { return "top " + std::to_string(k); }
  /// Never more than two thirds of a tile: beyond that plain floats would take fewer bytes.
  std::size_t kept_of(std::size_t n) const { return std::min(k, (2 * n + 2) / 3); }
  std::size_t tile_bytes(std::size_t n) const {
    return kept_of(n) * (sizeof(std::uint16_t) + sizeof(float));
  }
  void encode(const float* values, std::size_t n, std::byte* out) const {
    std::uint16_t index[4096];
    std::iota(index, index + n, std::uint16_t{0});
    const std::size_t kept = kept_of(n);
    const auto larger = [&](std::uint16_t a, std::uint16_t b) {
      const float x = std::fabs(values[a]), y = std::fabs(values[b]);
      return x > y || (x == y && a < b);  // ties by index: the same choice everywhere
    };
    if (kept < n) std::nth_element(index, index + kept, index + n, larger);
    std::sort(index, index + kept);
    for (std::size_t i = 0; i < kept; ++i) {
      std::memcpy(out + i * sizeof(float), &values[index[i]], sizeof(float));
    }
    std::memcpy(out + kept * sizeof(float), index, kept * sizeof(std::uint16_t));
  }
  void decode(const std::byte* in, std::size_t n, float* values) const noexcept {
    const std::size_t kept = kept_of(n);
    std::fill(values, values + n, 0.0F);
    for (std::size_t i = 0; i < kept; ++i) {
      std::uint16_t at = 0;
      std::memcpy(&at, in + kept * sizeof(float) + i * sizeof at, sizeof at);
      std::memcpy(&values[at], in + i * sizeof(float), sizeof(float));
    }
  }
};
