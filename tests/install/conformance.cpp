// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A user's compressor in the suite that is installed takes what is marked with *. The other suites
// are included to see that all they need is installed.

#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <onebit/testing/backend.hpp>
#include <onebit/testing/collective.hpp>
#include <onebit/testing/compressor.hpp>  // *
#include <onebit/testing/rule.hpp>
#include <onebit/testing/schedule.hpp>
#include <onebit/testing/transport.hpp>
#include <string>

/// The first two bytes of a float.
struct truncated {
  static std::string name() { return "truncated"; }
  std::size_t tile_bytes(std::size_t n) const { return 2 * n; }
  void encode(const float* values, std::size_t n, std::byte* out) const {
    for (std::size_t i = 0; i < n; ++i) {
      std::memcpy(out + 2 * i, reinterpret_cast<const std::byte*>(values + i) + 2, 2);
    }
  }
  void decode(const std::byte* in, std::size_t n, float* values) const noexcept {
    for (std::size_t i = 0; i < n; ++i) {
      values[i] = 0;
      std::memcpy(reinterpret_cast<std::byte*>(values + i) + 2, in + 2 * i, 2);
    }
  }
};

struct model {
  static truncated codec() { return {}; }
};                                                                          // *
TEST_CASE_TEMPLATE_INVOKE(onebit::testing::compressor_conformance, model);  // *
