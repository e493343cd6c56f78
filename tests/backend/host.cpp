// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#include <thread>

#include "../conformance/backend.hpp"

using namespace onebit_test;

TEST_CASE_TEMPLATE_INVOKE(backend_conformance, scalar_1, scalar_2, avx2_1, avx2_2, avx512_1,
                          avx512_2);

TEST_CASE("host: what it is asked for is what it runs, or it throws") {
  for (const onebit::isa set : instruction_sets()) {
    const onebit::host one(1, set), three(3, set);
    CHECK(one.instruction_set() == set);
    CHECK(one.threads() == 1);
    CHECK(three.threads() == 3);
  }
  CHECK_THROWS_AS(onebit::host(0), onebit::invalid_input);
  CHECK_THROWS_AS(onebit::host(-1), onebit::invalid_input);
  if (onebit::host::best_isa() != onebit::isa::avx512) {
    CHECK_THROWS_AS(onebit::host(1, onebit::isa::avx512), onebit::invalid_input);
  }
  CHECK(onebit::host().instruction_set() == onebit::host::best_isa());
}

TEST_CASE("host: more threads than work, and many small launches") {
  onebit::host backend(5);
  auto counts = backend.make_buffer<std::uint32_t>(7);
  for (std::uint32_t round = 0; round < 2000; ++round) {
    backend.launch(round % 8, backend_suite::count_calls{counts.data()});
  }
  for (std::size_t i = 0; i < 7; ++i) {  // round % 8 > i
    CHECK(counts.data()[i] == 2000 / 8 * (7 - i));
  }
}

TEST_CASE("host: one handle may serve several ranks at once") {
  // Copies share the threads, so ranks of one process meet in them when a user hands one backend to
  // all. Each rank has its own buffers; all indices must run before its launch returns.
  const onebit::host shared(2);
  const auto wrong = on_ranks(4, [&](onebit::threads) {
    const onebit::host mine = shared;
    auto counts = mine.make_buffer<std::uint32_t>(64);
    std::size_t bad = 0;
    for (std::uint32_t round = 1; round <= 500; ++round) {
      mine.launch(64, backend_suite::count_calls{counts.data()});
      for (std::size_t i = 0; i < 64; ++i) bad += counts.data()[i] != round ? 1U : 0U;
    }
    return bad;
  });
  for (const std::size_t bad : wrong) CHECK(bad == 0);
}
