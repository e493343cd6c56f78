// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Compressors by tile on emulated warps, which decode two messages in one kernel: the host's bits.

#include "../compiled/emulated.hpp"
#include "../cuda/trainings.hpp"
#include "../support/emulated.hpp"
#include "../support/storages.hpp"
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
TEST_CASE("deferred: residuals are taken back where they lay among gradients, whoever sleeps") {
  for (const bool zeros : {false, true}) {
    CAPTURE(zeros);
    const auto by = [&](const char* name, const auto& storage,
                        const std::vector<std::uint64_t>& bad) {
      const onebit::gather_scatter exchange{storage};
      check_same_bits<emulated_device>(name, 2, one_bit_adam_with(exchange, 0),
                                       {.calls = 20, .bad = bad, .zeros = zeros}, false, true);
      check_same_bits<emulated_device>(name, 2, zero_one_adam_with(exchange),
                                       {.calls = 20, .zeros = zeros});
    };
    // a step that was called off counts here, and chance hangs on the number of a step: of those
    // that follow, the next is the last that the host makes with the same
    by("int8", onebit::residual_in<onebit::int8, onebit::sign<>>{}, {18});
    by("bf16", onebit::residual_in<in_bf16, onebit::sign<>>{}, {13, 14, 17});
    by("more than floats", onebit::residual_in<in_two_floats, onebit::sign<>>{}, {13, 14, 17});
  }
}
TEST_CASE("deferred: low halves of masters have the bits of the host") {
  for (const bool zeros : {false, true}) {
    const script s{.calls = 20, .low_halves = true, .zeros = zeros};
    const onebit::gather_scatter<onebit::sign<>> exchange;
    check_same_bits<emulated_device, onebit::bf16>("one_bit_adam", 2, one_bit_adam_with(exchange),
                                                   s);
    check_same_bits<emulated_device, onebit::bf16>("one_bit_lamb", 2, one_bit_lamb_with(exchange),
                                                   s);
  }
}
TEST_CASE("deferred: compressors by tile have the bits of the host") {
  check_same_bits<emulated_device>(
      "int8", 2, one_bit_lamb_with(onebit::gather_scatter{int8_tile{}}), {.calls = 16});
}
