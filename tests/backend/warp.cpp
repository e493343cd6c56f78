// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The lanes and the manners of a CUDA backend, emulated: every bit is compared, no GPU is needed.

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
