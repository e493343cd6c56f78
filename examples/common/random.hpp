// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Random numbers that are a pure function of a key, such as (seed, step, rank). There is no
// generator state to save, so a resumed run draws exactly what an uninterrupted one would.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace common {

// The finalizer of splitmix64: a bijection that scatters neighbouring keys.
inline std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

class counter_random {
 public:
  counter_random(std::initializer_list<std::uint64_t> key) {
    for (std::uint64_t part : key) key_ = mix(key_ ^ part);
  }

  std::uint64_t bits() { return mix(key_ ^ mix(counter_++)); }

  // Uniform in [0, n); the bias of the modulo is below 2^-40 for any text that fits in memory.
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(bits() % n); }

  // Uniform in (0, 1], so that its logarithm is finite.
  double unit() { return (static_cast<double>(bits() >> 11) + 1.0) * 0x1p-53; }

  double normal() {
    const double radius = std::sqrt(-2.0 * std::log(unit()));
    return radius * std::cos(6.283185307179586 * unit());
  }

 private:
  std::uint64_t key_ = 0;
  std::uint64_t counter_ = 0;
};

// FNV-1a, 64 bit. Pass the result of one call as the start of the next to hash several pieces.
inline constexpr std::uint64_t fnv_start = 0xcbf29ce484222325u;

inline std::uint64_t fnv1a(std::string_view bytes, std::uint64_t hash = fnv_start) {
  for (const char byte : bytes) {
    hash ^= static_cast<unsigned char>(byte);
    hash *= 0x100000001b3u;
  }
  return hash;
}

}  // namespace common
