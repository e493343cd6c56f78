// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Every algorithm on emulated warps against the host: the kernels of a whole training give the same
// bits, whatever the lanes.

#include "../compiled/emulated.hpp"
#include "../support/emulated.hpp"
#include "../support/plan.hpp"

using namespace onebit_test;

namespace {

/// The parameters of all ranks after `steps` steps, through a freeze or to the first local steps.
template <class Make>
std::vector<flat> trained(std::size_t steps, const Make& make) {
  return on_ranks(2, [&](onebit::threads transport) {
    const plan p;
    memory m({1, 33, 0, 1000, 7, 4097});
    const int rank = transport.rank();
    auto optimizer = make(m.groups<float>({{4, 1, 0}, {2, 0.5F, 0.1F}}), transport);
    for (std::size_t step = 0; step < steps; ++step) {
      p.fill(m, rank, step);
      (void)optimizer.step(p.lr);
    }
    return m.all_params();
  });
}

/// `backend()` gives each rank a stream of its own.
template <class F>
std::vector<std::vector<flat>> all_algorithms(const F& backend) {
  const onebit::gather_scatter<onebit::sign<>> exchange;
  onebit::one_bit_adam_options adam;
  adam.freeze.after = 3;
  onebit::one_bit_lamb_options lamb;
  lamb.freeze.after = 3;
  onebit::zero_one_adam_options zero_one;
  zero_one.schedule.warmup_steps = 2;
  zero_one.schedule.doubling_steps = 2;
  return {
      trained(3, [&](const auto& g, auto t) { return onebit::adam(g, t, {}, backend()); }),
      trained(3, [&](const auto& g, auto t) { return onebit::lamb(g, t, {}, backend()); }),
      trained(6, [&](const auto& g,
                     auto t) { return onebit::one_bit_adam(g, t, adam, exchange, backend()); }),
      trained(6, [&](const auto& g,
                     auto t) { return onebit::one_bit_lamb(g, t, lamb, exchange, backend()); }),
      trained(6,
              [&](const auto& g, auto t) {
                return onebit::zero_one_adam(g, t, zero_one, exchange, backend());
              }),
  };
}

}  // namespace

TEST_CASE("warps: every algorithm gives the bits of the host") {
  const auto expected = all_algorithms([] { return onebit::host(1, onebit::isa::scalar); });
  const auto warps = all_algorithms([] { return emulated_at_once(); });
  for (std::size_t i = 0; i < expected.size(); ++i) {
    CAPTURE(i);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      CHECK(first_difference(warps[i][rank], expected[i][rank]) == none);
    }
  }
}
