// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A compressor: int8 with one scale per tile of at most 4096 values.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <onebit/core/config.hpp>
#include <string>

struct int8_per_tile {
  static std::string name() { return "int8 per tile"; }  // ranks and checkpoints compare names

  std::size_t tile_bytes(std::size_t n) const { return sizeof(float) + n; }

  // ONEBIT_HD adds __host__ __device__ under nvcc.
  ONEBIT_HD void encode(const float* values, std::size_t n, std::byte* out) const {
    float largest = 0;
    for (std::size_t i = 0; i < n; ++i) largest = std::fmax(largest, std::fabs(values[i]));
    const float scale = largest / 127;
    std::memcpy(out, &scale, sizeof scale);
    for (std::size_t i = 0; i < n; ++i) {
      const float steps = scale > 0 ? values[i] / scale : 0.0F;
      const auto code = static_cast<std::int8_t>(std::lround(steps));
      out[sizeof scale + i] = static_cast<std::byte>(code);
    }
  }

  ONEBIT_HD void decode(const std::byte* in, std::size_t n, float* values) const noexcept {
    float scale = 0;
    std::memcpy(&scale, in, sizeof scale);
    for (std::size_t i = 0; i < n; ++i) {
      values[i] = scale * static_cast<float>(static_cast<std::int8_t>(in[sizeof scale + i]));
    }
  }
};
// Error feedback comes with the collective, which sends the rounding error in a later step.
//   onebit::one_bit_adam(groups, comm, options, onebit::gather_scatter{int8_per_tile{}});
