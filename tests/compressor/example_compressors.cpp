// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The compressors of the examples pass the suite like the library's own.

#include <onebit/testing/compressor.hpp>

#include "../../examples/int8_per_tile.hpp"
#include "../../examples/top_k.hpp"

using namespace onebit::testing;

namespace {

struct int8_model {
  static int8_per_tile codec() { return {}; }
};
struct top_k_model {
  static top_k codec() { return {.k = 100}; }
};

}  // namespace

TEST_CASE_TEMPLATE_INVOKE(compressor_conformance, int8_model, top_k_model);
