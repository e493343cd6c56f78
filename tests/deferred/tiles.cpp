// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Compressors by tile on emulated warps, which decode two messages in one kernel: the host's bits.

#include "../cuda/trainings.hpp"
#include "../support/emulated.hpp"
#include "../support/tile_codecs.hpp"

using namespace onebit_test;

namespace {

struct emulated_device : host_device {
  emulated warps;
  [[nodiscard]] emulated backend() const { return warps; }
  [[nodiscard]] emulated_memory memory() const { return emulated_memory(warps); }
};

}  // namespace

TEST_CASE("deferred: residuals in 8 bits have the bits of the host") {
  const onebit::residual_in<onebit::int8, onebit::sign<>> compact;
  check_same_bits<emulated_device>("gathered", 3,
                                   one_bit_adam_with(onebit::gather_scatter{compact, 1000}));
  check_same_bits<emulated_device>("local steps", 2,
                                   zero_one_adam_with(onebit::all_gather{compact}));
}
TEST_CASE("deferred: compressors by tile have the bits of the host") {
  check_same_bits<emulated_device>(
      "int8", 2, one_bit_lamb_with(onebit::gather_scatter{int8_tile{}}), {.calls = 16});
}
