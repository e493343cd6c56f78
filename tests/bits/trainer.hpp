// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The training whose bits are recorded: nothing in it depends on a compiler.

#ifndef ONEBIT_TESTS_BITS_TRAINER_HPP
#define ONEBIT_TESTS_BITS_TRAINER_HPP

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/onebit.hpp>
#include <stdexcept>
#include <type_traits>
#include <vector>

namespace onebit_test::bits {

inline constexpr std::uint64_t n_steps = 15;
inline const std::vector<std::size_t> sizes = {33, 0, 1000, 1, 4100};

/// In [-1, 1), a multiple of 2^-23.
inline float noise(std::uint64_t seed) {
  seed += 0x9E3779B97F4A7C15U;
  seed = (seed ^ (seed >> 30U)) * 0xBF58476D1CE4E5B9U;
  seed = (seed ^ (seed >> 27U)) * 0x94D049BB133111EBU;
  seed ^= seed >> 31U;
  return static_cast<float>(static_cast<std::int64_t>(seed >> 40U) - (1 << 23)) / (1 << 23);
}

inline void add_to(std::uint64_t& digest, std::uint64_t x) {
  digest = (digest ^ x) * 0x9FB21C651E98DF25U;
  digest ^= digest >> 29U;
}

/// One rank's memory.
template <class P, class G>
struct trainer {
  std::vector<std::vector<P>> params;
  std::vector<std::vector<std::remove_const_t<G>>> grads;
  std::vector<std::vector<float>> masters;
  float loss_scale;

  trainer(bool with_masters, float scale) : loss_scale(scale) {
    for (std::size_t t = 0; t < sizes.size(); ++t) {
      params.emplace_back(sizes[t]);
      grads.emplace_back(sizes[t]);
      masters.emplace_back(with_masters ? sizes[t] : 0);
      for (std::size_t i = 0; i < sizes[t]; ++i) {
        const float x = noise(t * 1000003 + i);
        params[t][i] = onebit::from_float<P>(x);
        if (with_masters) masters[t][i] = x;
      }
    }
  }

  std::vector<onebit::param_group<P, G>> groups() {
    std::vector<onebit::param_group<P, G>> result(2);
    result[0].weight_decay = 0.01F;
    result[1].lr_factor = 0.7F;
    result[1].weight_decay = 0.1F;
    for (std::size_t t = 0; t < params.size(); ++t) {
      result[t < 2 ? 0 : 1].tensors.push_back({params[t], grads[t], masters[t]});
    }
    return result;
  }

  /// Some elements never have a gradient, some on rank 0 only (what 0/1 Adam sends first is 0
  /// elsewhere), some none before step 4: 1-bit Adam and LAMB never move those, 0/1 Adam has a
  /// dense step there. The parameters enter times a power of two: exact, so that it does not matter
  /// whether a compiler contracts it to an fma.
  void fill(int rank, std::uint64_t step) {
    const std::uint64_t seed = 7919 * (step + 1) + 104729 * static_cast<std::uint64_t>(rank + 1);
    for (std::size_t t = 0; t < params.size(); ++t) {
      for (std::size_t i = 0; i < params[t].size(); ++i) {
        const bool none = i % 17 == 5 || (i % 29 == 3 && rank > 0) || (i % 37 == 11 && step < 4);
        const float x = onebit::to_float(params[t][i]);
        const float g = noise(seed * 1000003 + t * 50021 + i) + 0.25F * x;
        grads[t][i] = onebit::from_float<std::remove_const_t<G>>(none ? 0.0F : g * loss_scale);
      }
    }
  }

  /// Throws where a value is not finite: which NaN comes out is up to the instruction.
  std::uint64_t digest() const {
    std::uint64_t d = 0;
    const auto add = [&](float x) {
      if (!std::isfinite(x)) throw std::runtime_error("bits: a parameter is not finite");
      add_to(d, std::bit_cast<std::uint32_t>(x));
    };
    for (const auto& tensor : params) {
      for (const P x : tensor) add(onebit::to_float(x));
    }
    for (const auto& tensor : masters) {
      for (const float x : tensor) add(x);
    }
    return d;
  }
};

/// What one rank did.
struct rank_run {
  std::vector<std::uint64_t> digests;  ///< of the parameters after each step
  std::uint64_t bytes = 0, collectives = 0;
};

template <class Optimizer, class Trainer>
rank_run train(Optimizer& optimizer, Trainer& data, int rank) {
  rank_run run;
  for (std::uint64_t step = 0; step < n_steps; ++step) {
    data.fill(rank, step);
    // chosen so that sums of these, and their products with the groups' factors, are inexact
    const float lr = 0.01561F / static_cast<float>(1 + step % 3);
    const auto report = optimizer.step(lr, 1 / data.loss_scale);
    if (optimizer.settle() == onebit::outcome::skipped || report.skipped) {
      throw std::runtime_error("bits: a step was skipped");
    }
    run.digests.push_back(data.digest());
    run.bytes += report.bytes_sent;
    run.collectives += report.collectives;
  }
  return run;
}

}  // namespace onebit_test::bits

#endif  // ONEBIT_TESTS_BITS_TRAINER_HPP
