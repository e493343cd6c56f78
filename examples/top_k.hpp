// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <onebit/core/config.hpp>
#include <string>

/// The k largest elements of every tile of 4096, as (index, value): 6 bytes each. What is left out
/// stays in the residual, so error feedback sends it later. Plain loops: also for devices.
struct top_k {
  std::size_t k = 128;

  std::string name() const { return "top " + std::to_string(k); }
  /// Never more than two thirds of a tile: beyond that plain floats would take fewer bytes.
  ONEBIT_HD std::size_t kept_of(std::size_t n) const {
    const std::size_t most = (2 * n + 2) / 3;
    return k < most ? k : most;
  }
  std::size_t tile_bytes(std::size_t n) const {
    return kept_of(n) * (sizeof(std::uint16_t) + sizeof(float));
  }
  ONEBIT_HD void encode(const float* values, std::size_t n, std::byte* out) const {
    const std::size_t kept = kept_of(n);
    std::uint32_t least = 0;  // the largest such that `kept` magnitudes are not below it
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
      if (own == least) --ties;  // the first of them: the same choice everywhere
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
  /// As an integer: in the same order.
  ONEBIT_HD static std::uint32_t magnitude(float x) {
    std::uint32_t word = 0;
    std::memcpy(&word, &x, sizeof word);
    return word & 0x7FFFFFFFU;
  }
};
