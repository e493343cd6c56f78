// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the suites share: random numbers without state, bitwise comparison, models of backends, a
// trainer's memory. The suites, here and beside it, are doctest's test cases: bring doctest along.

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <onebit/backend/host.hpp>
#include <onebit/collective/message.hpp>
#include <onebit/kernel/param_group.hpp>
#include <onebit/testing/ranks.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace onebit { inline namespace v0_3 { namespace testing {

using flat = std::vector<float>;
using counts = std::initializer_list<std::size_t>;

// --- numbers ------------------------------------------------------------------------------

inline constexpr std::uint64_t mixed(std::uint64_t z) {
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31U);
}

inline constexpr std::uint64_t hashed(std::uint64_t seed, std::uint64_t rank, std::uint64_t step,
                                      std::uint64_t i) {
  std::uint64_t h = 0;
  for (const std::uint64_t x : {seed, rank, step, i}) h = mixed(h + 0x9E3779B97F4A7C15U * (x + 1));
  return h;
}

/// Returns a uniform random number in [-1, 1), a multiple of 2^-23.
inline constexpr float noise(std::uint64_t seed, std::uint64_t rank, std::uint64_t step,
                             std::uint64_t i) {
  const auto top = static_cast<std::int64_t>(hashed(seed, rank, step, i) >> 40U);
  return static_cast<float>(top - (1 << 23)) * (1.0F / (1 << 23));
}

// --- comparison ---------------------------------------------------------------------------

inline constexpr std::size_t none = static_cast<std::size_t>(-1);

inline std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

/// Returns the first index at which the bits differ, or `none`.
inline std::size_t first_difference(std::span<const float> a, std::span<const float> b) {
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (bits_of(a[i]) != bits_of(b[i])) return i;
  }
  return a.size() == b.size() ? none : std::min(a.size(), b.size());
}

/// Like first_difference, but any NaN equals any NaN: their bits depend on the instruction.
inline std::size_t first_difference_but_nan(std::span<const float> a, std::span<const float> b) {
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (bits_of(a[i]) != bits_of(b[i])) return i;
  }
  return a.size() == b.size() ? none : std::min(a.size(), b.size());
}

// --- backends -----------------------------------------------------------------------------

inline bool has(onebit::isa set) {
  return set == onebit::isa::scalar || set == onebit::host::best_isa();
}
template <onebit::isa Set, int Threads>
struct host_model {
  static std::string name() {
    return std::string(onebit::to_string(Set)) + " x " + std::to_string(Threads);
  }
  static bool available() { return has(Set); }
  static onebit::host make() { return onebit::host(Threads, Set); }
};
using scalar_1 = host_model<onebit::isa::scalar, 1>;
using scalar_2 = host_model<onebit::isa::scalar, 2>;
using avx2_1 = host_model<onebit::isa::avx2, 1>;
using avx2_2 = host_model<onebit::isa::avx2, 2>;
using vector_2 = host_model<onebit::isa::vector, 2>;

/// Returns the instruction sets that this machine has; reports where there is only one.
inline std::vector<onebit::isa> instruction_sets() {
  const onebit::isa best = onebit::host::best_isa();
  if (best != onebit::isa::scalar) return {onebit::isa::scalar, best};
  MESSAGE("skipped: this machine has scalar alone");
  return {onebit::isa::scalar};
}

// --- a trainer ------------------------------------------------------------------------------

struct group_spec {
  std::size_t n_tensors = 0;
  float lr_factor = 1, weight_decay = 0;
};

/// Memory of a trainer on one rank.
struct memory {
  std::vector<flat> params, grads;

  explicit memory(const std::vector<std::size_t>& sizes) {
    std::size_t at = 0;
    for (const std::size_t n : sizes) {
      params.emplace_back(n);
      grads.emplace_back(n);
      for (float& p : params.back()) p = noise(99, 0, 0, at++);
    }
  }

  template <class G>
  std::vector<onebit::param_group<float, G>> groups(const std::vector<group_spec>& specs) {
    std::vector<onebit::param_group<float, G>> result;
    std::size_t k = 0;
    for (const group_spec& spec : specs) {
      result.emplace_back();
      result.back().lr_factor = spec.lr_factor;
      result.back().weight_decay = spec.weight_decay;
      for (std::size_t i = 0; i < spec.n_tensors; ++i, ++k) {
        result.back().tensors.push_back({params[k], grads[k]});
      }
    }
    return result;
  }

  flat all_params() const {
    flat all;
    for (const flat& p : params) all.insert(all.end(), p.begin(), p.end());
    return all;
  }
};

/// Tensor sizes with all edge cases of words, tiles and chunks, and an empty tensor in between.
inline std::vector<std::size_t> odd_sizes() { return {1, 33, 0, 1000, 7, 4097, 32, 31}; }

/// Copies a field to host memory, on the flat axis of an exchange, padding included.
template <class Field, class Sender, class B>
flat copied(const Field& field, Sender& at, B& backend) {
  auto to = backend.template make_buffer<float>(at.flat_elements());
  backend.launch(at.axis().tiles().size(),
                 onebit::detail::flatten_kernel<Field>{field, at.tiles(), to.data()});
  return flat(to.data(), to.data() + to.size());
}

}}}  // namespace onebit::testing
