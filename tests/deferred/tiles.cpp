// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Compressors by tile on emulated warps, which decode two messages in one kernel: the host's bits.

#include "../compiled/emulated.hpp"
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

TEST_CASE("deferred: residuals are taken back where they lay among gradients, whoever sleeps") {
  for (const bool zeros : {false, true}) {
    CAPTURE(zeros);
    const onebit::gather_scatter<onebit::sign<>> exchange;
    check_same_bits<emulated_device>("one_bit_adam", 2, one_bit_adam_with(exchange, 0),
                                     {.calls = 20, .bad = {13, 14, 17}, .zeros = zeros}, false,
                                     true);
    check_same_bits<emulated_device>("zero_one_adam", 2, zero_one_adam_with(exchange),
                                     {.calls = 20, .zeros = zeros});
  }
}
TEST_CASE("deferred: compressors by tile have the bits of the host") {
  check_same_bits<emulated_device>(
      "int8", 2, one_bit_lamb_with(onebit::gather_scatter{int8_tile{}}), {.calls = 16});
}
