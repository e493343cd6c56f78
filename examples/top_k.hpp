// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <onebit/core/config.hpp>
#include <string>

/// Sends the k largest elements of each tile of 4096, as (index, value): 6 bytes each. The residual
/// keeps the others: error feedback sends them later. Plain loops, which also run on devices.
struct top_k {
  std::size_t k = 128;

  std::string name() const { return "top " + std::to_string(k); }
  /// Elements sent of a tile: at most two thirds, since beyond that plain floats take fewer bytes.
  ONEBIT_HD std::size_t kept_of(std::size_t n) const {
    const std::size_t most = (2 * n + 2) / 3;
    return k < most ? k : most;
  }
  std::size_t tile_bytes(std::size_t n) const {
    return kept_of(n) * (sizeof(std::uint16_t) + sizeof(float));
  }
  ONEBIT_HD void encode(const float* values, std::size_t n, std::byte* out) const {
    const std::size_t kept = kept_of(n);
    std::uint32_t least = 0;  // largest threshold that at least `kept` magnitudes reach
    for (std::uint32_t bit = 1U << 30U; bit != 0; bit /= 2) {
      std::size_t count = 0;
      for (std::size_t i = 0; i < n; ++i) count += magnitude(values[i]) >= (least | bit) ? 1 : 0;
      if (count >= kept) least |= bit;
    }
    std::size_t ties = kept;
    for (std::size_t i = 0; i < n; ++i) ties -= magnitude(values[i]) > least ? 1 : 0;
    std::size_t at = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const std::uint32_t own = magnitude(values[i]);
      if (own < least || (own == least && ties == 0)) continue;
      if (own == least) --ties;  // the first of equal magnitudes: deterministic
      const auto index = static_cast<std::uint16_t>(i);
      std::memcpy(out + at * sizeof(float), &values[i], sizeof(float));
      std::memcpy(out + kept * sizeof(float) + at * sizeof index, &index, sizeof index);
      ++at;
    }
  }
  ONEBIT_HD void decode(const std::byte* in, std::size_t n, float* values) const noexcept {
    const std::size_t kept = kept_of(n);
    for (std::size_t i = 0; i < n; ++i) values[i] = 0;
    for (std::size_t i = 0; i < kept; ++i) {
      std::uint16_t at = 0;
      std::memcpy(&at, in + kept * sizeof(float) + i * sizeof at, sizeof at);
      std::memcpy(&values[at], in + i * sizeof(float), sizeof(float));
    }
  }

 private:
  /// Bits of |x| as an integer, in the order of |x|.
  ONEBIT_HD static std::uint32_t magnitude(float x) {
    std::uint32_t word = 0;
    std::memcpy(&word, &x, sizeof word);
    return word & 0x7FFFFFFFU;
  }
};
