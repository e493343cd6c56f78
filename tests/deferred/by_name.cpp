// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// By name on a backend that runs behind the host, and memory that moves there.

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <onebit/extras/by_name.hpp>
#include <onebit/transport/staged.hpp>
#include <onebit/transport/threads.hpp>
#include <string>
#include <vector>

#include "../compiled/emulated.hpp"
#include "../support/emulated.hpp"

using namespace onebit;
using onebit_test::emulated;
using onebit_test::emulated_memory;

TEST_CASE("a deferred backend by name has the bits of the host") {
  run_threads(2, [](threads comm) {
    const std::size_t n = 1000;
    const option_map options{{"after", "3"}, {"betas", "[0.9, 0.99]"}, {"refreshes", "0"}};
    std::vector<float> x(n, 0.5F), g(n), elsewhere(n), y(n, 0.5F), h(n);
    std::vector<param_group<>> here(1), there(1);
    here[0].tensors = {{x, g}};
    there[0].tensors = {{y, h}};
    const emulated stream;
    any_optimizer a = make_optimizer("one_bit_adam", options, here,
                                     staged(comm, emulated_memory(stream)), stream);
    any_optimizer b = make_optimizer("one_bit_adam", options, there, comm);
    a.warn_with(nullptr);
    b.warn_with(nullptr);
    for (int step = 0; step < 10; ++step) {
      CHECK(a.settle() == outcome::kept);
      if (step == 6) {
        elsewhere = x;
        x.assign(n, std::nanf(""));
        here[0].tensors[0].params = elsewhere;
        CHECK(a.rebind(here) == 1);
      }
      const std::vector<float>& now = step < 6 ? x : elsewhere;
      for (std::size_t i = 0; i < n; ++i) {
        const auto k = (i * 7 + static_cast<std::size_t>(step * 13 + comm.rank() * 5)) % 23;
        g[i] = now[i] + 0.1F * (static_cast<float>(k) - 11.0F);
        h[i] = y[i] + 0.1F * (static_cast<float>(k) - 11.0F);
      }
      const report r = a.step_with([](std::uint64_t, const auto& enqueue) { enqueue(); }, 0.01F);
      CHECK(r.pending == (step != 2));  // the last of the warm-up is waited for
      CHECK_FALSE(b.step(0.01F).skipped);
    }
    CHECK(a.settle() == outcome::kept);
    CHECK(a.n_skipped() == 0);
    CHECK(std::memcmp(elsewhere.data(), y.data(), n * sizeof(float)) == 0);
  });
}
