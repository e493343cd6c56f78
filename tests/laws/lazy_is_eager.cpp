// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Laws 2 and 4: the library against eager loops, bit for bit: parameters after every step, agreed
// momentum, residuals of both sides; on every rank.

#include "../support/eager_one_bit_adam.hpp"
#include "shared.hpp"

using namespace onebit_test;
using onebit::granularity;

namespace {

template <class Collective>
void check(const plan& p, const Collective& collective, eager_one_bit_adam::compression how) {
  CAPTURE(p.sizes);
  CAPTURE(p.ranks);
  CAPTURE(onebit::policy_name(collective));
  eager_one_bit_adam eager(p, how);
  std::vector<flat> expected;
  for (std::size_t step = 0; step < p.steps; ++step) {
    eager.step(step);
    expected.push_back(eager.params());
  }
  const auto ranks = on_ranks(p.ranks, [&](onebit::threads t) { return train(t, p, collective); });
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    CAPTURE(r);
    const trace& t = ranks[r];
    std::size_t first_wrong = none;
    for (std::size_t step = 0; step < p.steps && first_wrong == none; ++step) {
      if (t.reports[step].skipped) first_wrong = step;
      if (first_difference(t.params[step], expected[step]) != none) first_wrong = step;
    }
    CHECK(first_wrong == none);
    std::size_t n_wrong = 0;
    for (std::size_t at = 0; at < t.agreed.size(); ++at) {
      n_wrong += t.agreed[at] != eager.m()[at] ? 1U : 0U;  // by value: zeros of either sign
      if (t.worker_residual.empty() || !eager.active(at)) continue;
      n_wrong += bits_of(t.worker_residual[at]) != bits_of(eager.worker(r)[at]) ? 1U : 0U;
    }
    CHECK(n_wrong == 0);
    if (t.server_residual.empty()) continue;
    const flat server = eager.server(r);
    REQUIRE(t.server_residual.size() == server.size());
    for (std::size_t i = 0; i < server.size(); ++i) {
      n_wrong += t.server_residual[i] != server[i] ? 1U : 0U;
    }
    CHECK(n_wrong == 0);
  }
}

template <class Scale>
void check_both(const plan& p, granularity scales, bool l1) {
  const onebit::sign<Scale> codec{scales};
  check(p, onebit::gather_scatter{codec}, {scales, l1, communicator::gather_scatter});
  check(p, onebit::all_gather{codec}, {scales, l1, communicator::all_gather});
}

const granularity granularities[] = {granularity::vector(),   granularity::layer(),
                                     granularity::chunk(),    granularity::block(32),
                                     granularity::block(160), granularity::block(4128)};

}  // namespace

TEST_CASE("law 4: lazy is eager, for every granularity, norm, collective and world size") {
  plan p;
  for (const int w : cases({3}, {1, 2, 4, 5, 8})) {
    p.ranks = w;
    for (const granularity scales : granularities) {
      check_both<onebit::l2_scale>(p, scales, false);
      check_both<onebit::l1_scale>(p, scales, true);
    }
  }
}

TEST_CASE("law 4: lazy is eager, for every single size") {
  for (const std::size_t n : counts{0, 1, 7, 31, 32, 33, 1000, 4097}) {
    plan p;
    p.sizes = {n};
    p.seed = 100 + n;
    for (const int w : cases({3}, {1, 2, 4, 5, 8})) {
      p.ranks = w;
      check_both<onebit::l2_scale>(p, granularity::layer(), false);
      check_both<onebit::l1_scale>(p, granularity::block(64), true);
    }
  }
  plan p;
  p.sizes = {100003, 5};
  p.steps = 7;
  for (const int w : cases({2}, {3})) {
    p.ranks = w;
    check_both<onebit::l2_scale>(p, granularity::vector(), false);
    check_both<onebit::l1_scale>(p, granularity::block(5024), true);
  }
}

TEST_CASE(
    "law 4: lazy is eager, with groups, weight decay and bias correction, and over a long run") {
  plan p;
  p.groups = {{2, 0.5F, 0.125F}, {0, 1, 1}, {3, 1.5F, 0.0F}, {3, 0.0F, 0.25F}};
  p.options.adam.bias_correction = true;
  p.options.adam.beta1 = 0.8;
  p.options.adam.beta2 = 0.95;
  for (const int w : {1, 3}) {
    p.ranks = w;
    check_both<onebit::l2_scale>(p, granularity::layer(), false);
  }
  p.sizes = {77, 300};
  p.groups = {{1, 2.0F, 0.0F}, {1, 1.0F, 0.01F}};
  p.ranks = 2;
  p.steps = 300;
  check_both<onebit::l2_scale>(p, granularity::chunk(), false);
}

TEST_CASE("law 3: through an exact exchange it is Adam with v frozen, with one rank it is Adam") {
  plan p;
  p.groups = {{4, 0.5F, 0.125F}, {4, 1.5F, 0.0F}};
  p.steps = 20;
  for (const bool corrected : {false, true}) {
    p.options.adam.bias_correction = corrected;
    for (const int w : {1, 2, 3, 5, 8}) {
      p.ranks = w;
      check(p, onebit::gather_scatter<onebit::identity>{},
            {granularity::vector(), false, communicator::exact});
    }
    p.ranks = 1;
    check_both<onebit::l2_scale>(p, granularity::layer(), false);
    check(p, onebit::gather_scatter<ternary>{},
          {granularity::vector(), false, communicator::exact});
    check(p, onebit::all_gather<int8_tile>{}, {granularity::vector(), false, communicator::exact});
  }
}

TEST_CASE("law 4: lazy is eager with gradients of extreme size") {
  // From denormal values, whose squares all vanish, to values just below gradient_limit.
  plan p;
  p.sizes = {100, 64, 33};
  p.ranks = 3;
  for (const int exponent : {-140, -126, -80, -65, -40, 30, 40, 44}) {
    CAPTURE(exponent);
    p.exponent = exponent;
    check_both<onebit::l2_scale>(p, granularity::layer(), false);
    check_both<onebit::l1_scale>(p, granularity::block(32), true);
  }
}
