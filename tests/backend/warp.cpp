// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The lanes and the manners of a CUDA backend, emulated: every bit is compared, no GPU is needed.

#include <array>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/testing/backend.hpp>
#include <onebit/testing/lanes.hpp>
#include <stdexcept>

#include "../support/emulated.hpp"

using namespace onebit_test;
using namespace onebit::testing;

TEST_CASE_TEMPLATE_INVOKE(backend_conformance, emulated_model);
TEST_CASE_TEMPLATE_INVOKE(lanes_conformance, emulated_model);

namespace {

struct put_seven {
  float* to;
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    L::store_scalar(to + i, 7.0F);
  }
};

/// Lanes that part ways: legal for no kernel.
struct diverging {
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    if (L::first_lane()) L::fold(L::set(1.0F));
  }
};

struct throwing {
  std::size_t at;
  template <class L>
  void operator()(L, std::size_t i) const {
    L::fold(L::set(1.0F));
    if (i == at && L::first_lane()) throw std::runtime_error("thrown in a lane");
  }
};

/// Reads and writes the same places again and again: right only if every lane is through with the
/// old number before lane 0 puts down the new one, and sees the new one afterwards.
struct read_modify_write {
  std::uint32_t* words;
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    for (int round = 0; round < 3; ++round) {
      const auto ones = L::with_sign(L::load_bits(words + i), L::set(1.0F));
      L::store_bits(words + i, L::positive(L::sub(L::set(0.0F), ones)));
      L::store_scalar(words + i, words[i] + 2U);
    }
  }
};

}  // namespace

TEST_CASE("warp lanes: roots and quotients from estimates are right [over_roots]") {
  using lanes = onebit::detail::warp_lanes<emulated_warp>;
  const auto check = [](const std::array<float, 4>& g, const std::array<float, 4>& x, float eps) {
    float to[4];
    const float given_g[4] = {g[0], g[1], g[2], g[3]}, given_x[4] = {x[0], x[1], x[2], x[3]};
    lanes::over_roots<4>(to, given_g, given_x, eps);
    for (std::size_t j = 0; j < 4; ++j) {
      const float right = g[j] / (std::sqrt(x[j]) + eps);
      const bool same = std::isnan(right) ? std::isnan(to[j])
                                          : std::bit_cast<std::uint32_t>(to[j]) ==
                                                std::bit_cast<std::uint32_t>(right);
      if (!same) FAIL_CHECK(g[j] << " / (sqrt(" << x[j] << ") + " << eps << ") is " << to[j]);
    }
  };
  // roots: mantissas of both parities of the exponent, from end to end; eps 0 leaves them as they
  // are
  std::uint32_t h = 1;
  for (std::uint32_t m = 0; m < 1U << 24U; m += 37) {
    std::array<float, 4> g, x;
    for (std::uint32_t j = 0; j < 4; ++j) {
      h = h * 1664525U + 1013904223U;
      x[j] = std::bit_cast<float>((126U << 23U) + m + j * 9);
      g[j] = std::bit_cast<float>((127U << 23U | h >> 9U) ^ (h & 1U) << 31U);
    }
    check(g, x, m % 2 == 0 ? 0.0F : 1e-8F);
  }
  // zero, tiny, huge, infinite, not a number, alone among usual ones and in all places
  const float odd[] = {0.0F,     -0.0F,   0x1p-149F, 0x1p-126F, 0x1p-101F, 0x1p-100F, 0x1p-61F,
                       0x1p-60F, 0x1p60F, 0x1p61F,   0x1p127F,  FLT_MAX,   INFINITY,  NAN};
  for (const float a : odd) {
    for (const float b : odd) {
      check({a, 1.5F, -2.5F, 3}, {std::fabs(b), 2, 3, 5}, 1e-8F);
      check({1.5F, -a, 2.5F, 3}, {2, 3, 5, std::fabs(b)}, 1e-30F);
      check({a, -a, a, b}, {std::fabs(b), std::fabs(b), std::fabs(a), 1}, 1e-8F);
      check({1, 2, 3, a}, {2, 3, 5, 7}, std::isnormal(b) ? std::fabs(b) : 1e-3F);
    }
  }
}

TEST_CASE("emulated: nothing has run when launch returns") {
  const emulated backend;
  auto buffer = backend.make_buffer<float>(2);
  backend.launch(2, put_seven{buffer.data()});
  CHECK(*buffer.data() == 0.0F);
  backend.wait();
  CHECK(*buffer.data() == 7.0F);
}

TEST_CASE("emulated: a copy in waits for its turn") {
  const emulated backend;
  auto buffer = backend.make_buffer<float>(2);
  backend.launch(2, put_seven{buffer.data()});
  const float two[] = {1.0F, 2.0F};
  backend.copy_in(buffer.data(), two, 2);
  CHECK(downloaded(backend, buffer) == flat{1.0F, 2.0F});
}

TEST_CASE("emulated: lanes that diverge are an error, and the next kernel runs") {
  const emulated backend;
  backend.launch(1, diverging{});
  CHECK_THROWS_AS(backend.wait(), std::logic_error);
  backend.launch(3, throwing{1});
  CHECK_THROWS_AS(backend.wait(), std::runtime_error);
  auto buffer = backend.make_buffer<float>(2);
  backend.launch(2, put_seven{buffer.data()});
  CHECK(downloaded(backend, buffer) == flat{7.0F, 7.0F});
}

TEST_CASE("emulated: a kernel may read what it writes, as where one thread runs it") {
  const emulated backend;
  const onebit::host host(1, onebit::isa::scalar);
  const std::vector<std::uint32_t> words = {0U, ~0U, 0x80000001U, 12345U};
  auto here = uploaded(backend, words);
  auto there = uploaded(host, words);
  backend.launch(words.size(), read_modify_write{here.data()});
  host.launch(words.size(), read_modify_write{there.data()});
  CHECK(downloaded(backend, here) == downloaded(host, there));
}

TEST_CASE("emulated: what a transport copies waits for its turn") {
  const emulated backend;
  const emulated_memory memory(backend);
  auto buffer = backend.make_buffer<float>(2);
  auto* staged = static_cast<float*>(memory.allocate_host(8));
  staged[0] = 0;
  backend.launch(2, put_seven{buffer.data()});
  memory.copy(staged, buffer.data(), 8);
  CHECK(staged[0] == 0.0F);
  memory.wait();
  CHECK(staged[0] == 7.0F);
  memory.free_host(staged);
}
