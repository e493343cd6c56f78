// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The interface for C: what lies behind it, and that a C99 program is content with it.

#include <doctest/doctest.h>

#include <cstring>
#include <onebit/c/onebit_c.hpp>
#include <string>
#include <vector>

#include "c_program.h"
#include "support/scratch.hpp"

TEST_CASE("a report, to C and back: every member is the same [onebit_report]") {
  const onebit::report r{.step = 1,
                         .phase = onebit::phase::local,
                         .refreshed = true,
                         .skipped = true,
                         .gradient_norm = 2,
                         .skipped_share = 3,
                         .sent_of_dense = 4,
                         .bytes_sent = 5,
                         .bytes_between_nodes = 6,
                         .collectives = 7,
                         .encode_seconds = 8,
                         .communicate_seconds = 9,
                         .update_seconds = 10};
  const onebit::report back = onebit::detail::of_c(onebit::detail::to_c(r));
  CHECK(to_json(back) == to_json(r));
  CHECK(to_json(back).find(":0") == std::string::npos);  // no member is left out above
}

TEST_CASE("a C program goes through all of it") {
  const onebit_test::scratch scratch;
  CHECK(c_program(scratch.path.c_str()) == 0);
}

TEST_CASE("C has the bits of C++") {
  for (const std::string name : {"one_bit_adam", "one_bit_lamb", "zero_one_adam"}) {
    std::vector<float> from_c(300), from_cpp(300, 1.0F);
    REQUIRE(c_training(name.c_str(), 2, 9, from_c.data()) == ONEBIT_OK);
    onebit::run_threads(2, [&](onebit::threads comm) {
      std::vector<float> x(300, 1.0F), g(300);
      const std::span<float> xs(x), gs(g);
      std::vector<onebit::param_group<>> groups(2);
      groups[0].weight_decay = 0.1F;
      groups[0].tensors = {{xs.subspan(100), gs.subspan(100)}};
      groups[1].lr_factor = 0.5F;
      groups[1].tensors = {{xs.first(100), gs.first(100)}};
      const onebit::option_map options{{"beta2", "0.99"},
                                       {name.starts_with("zero") ? "warmup_steps" : "after", "4"}};
      auto o = onebit::make_optimizer(name, options, groups, comm);
      o.warn_with(nullptr);
      for (int step = 0; step < 9; ++step) {
        for (int i = 0; i < 300; ++i) {
          const auto at = static_cast<std::size_t>(i);
          const int k = (i * 7 + step * 13 + comm.rank() * 5) % 23 - 11;
          g[at] = x[at] + 0.01F * static_cast<float>(k);
        }
        (void)o.step(0.01F);
      }
      if (comm.rank() == 0) from_cpp = x;
    });
    CHECK(std::memcmp(from_c.data(), from_cpp.data(), 300 * sizeof(float)) == 0);
  }
}

TEST_CASE("everything that is thrown has a status") {
  using onebit::detail::c_call;
  CHECK(c_call([] {}) == ONEBIT_OK);
  CHECK(c_call([] { throw onebit::invalid_input("a"); }) == ONEBIT_INVALID_INPUT);
  CHECK(c_call([] { throw onebit::rank_mismatch("a"); }) == ONEBIT_RANK_MISMATCH);
  CHECK(c_call([] { throw onebit::transport_error("a"); }) == ONEBIT_TRANSPORT_ERROR);
  CHECK(c_call([] { throw onebit::backend_error("a"); }) == ONEBIT_BACKEND_ERROR);
  CHECK(c_call([] { throw onebit::checkpoint_error("a"); }) == ONEBIT_CHECKPOINT_ERROR);
  CHECK(c_call([] { throw std::bad_alloc(); }) == ONEBIT_OUT_OF_MEMORY);
  CHECK(c_call([] { throw std::runtime_error("why"); }) == ONEBIT_ERROR);
  CHECK(std::string(onebit_last_error()) == "why");
  CHECK(c_call([] { throw 1; }) == ONEBIT_ERROR);
}
