// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A small trainer: tensors of given sizes whose gradients depend on rank, step, place and
// parameters, so that any bit that differs shows in everything that follows.

#include <cstddef>
#include <cstdint>
#include <istream>
#include <onebit/core/archive.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/optimizer.hpp>
#include <onebit/testing/ranks.hpp>
#include <onebit/transport/threads.hpp>
#include <ostream>
#include <vector>

namespace onebit { inline namespace v0_3 { namespace testing {

/// In [-1, 1), the same on every machine.
inline float noise(std::uint64_t seed) {
  seed += 0x9E3779B97F4A7C15U;
  seed = (seed ^ (seed >> 30U)) * 0xBF58476D1CE4E5B9U;
  seed = (seed ^ (seed >> 27U)) * 0x94D049BB133111EBU;
  seed ^= seed >> 31U;
  return static_cast<float>(static_cast<std::int64_t>(seed >> 40U) - (1 << 23)) / (1 << 23);
}

inline const std::vector<std::size_t> mixed_sizes = {33, 0, 5000, 1, 64, 700};

/// The memory of one rank's trainer.
template <class G = float>
class training {
 public:
  explicit training(const std::vector<std::size_t>& sizes = mixed_sizes) {
    for (std::size_t t = 0; t < sizes.size(); ++t) {
      params.emplace_back(sizes[t]);
      grads.emplace_back(sizes[t]);
      for (std::size_t i = 0; i < sizes[t]; ++i) params[t][i] = noise(t * 1000003 + i);
    }
  }

  /// The first tensor in a group of its own, with other options than the rest.
  [[nodiscard]] std::vector<onebit::param_group<float, G>> groups() {
    std::vector<onebit::param_group<float, G>> result(2);
    result[0].weight_decay = 0.01F;
    result[1].lr_factor = 0.5F;
    for (std::size_t t = 0; t < params.size(); ++t) {
      result[t == 0 ? 0 : 1].tensors.push_back({params[t], grads[t]});
    }
    return result;
  }

  /// This rank's gradients of a step. Every 17th element never has one.
  void compute_gradients(int rank, std::uint64_t step) {
    const std::uint64_t seed = 7919 * (step + 1) + 104729 * static_cast<std::uint64_t>(rank + 1);
    for (std::size_t t = 0; t < params.size(); ++t) {
      for (std::size_t i = 0; i < params[t].size(); ++i) {
        const float g = noise(seed * 1000003 + t * 50021 + i) + 0.3F * params[t][i];
        grads[t][i] = i % 17 == 5 ? 0.0F : g;
      }
    }
  }

  /// The parameters, as save_all and load_latest want them written and read.
  void write(std::ostream& out) const {
    for (const auto& p : params) {
      out.write(reinterpret_cast<const char*>(p.data()),
                static_cast<std::streamsize>(p.size() * sizeof(float)));
    }
  }
  void read(std::istream& in) {
    for (auto& p : params) {
      in.read(reinterpret_cast<char*>(p.data()),
              static_cast<std::streamsize>(p.size() * sizeof(float)));
    }
  }

  [[nodiscard]] std::uint64_t digest() const {
    onebit::detail::digest d;
    for (const auto& p : params) d.add(p.data(), p.size() * sizeof(float));
    return d.value();
  }

  std::vector<std::vector<float>> params, grads;
};

/// One step on fresh gradients; the learning rate changes from step to step.
template <class Optimizer, class G>
onebit::report train(Optimizer& optimizer, training<G>& data) {
  data.compute_gradients(optimizer.rank(), optimizer.steps());
  return optimizer.step(0.01F / static_cast<float>(1 + optimizer.steps() % 3));
}

}}}  // namespace onebit::testing
