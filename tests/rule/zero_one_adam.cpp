// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The paper's 0/1 Adam, with signs, against the oracle in double precision
// (support/reference_adam.hpp). As in adam.cpp seeds are tried until no sign hangs on a rounding.

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <onebit/extras/papers.hpp>
#include <onebit/onebit.hpp>
#include <vector>

#include "../support/golden.hpp"
#include "../support/ranks.hpp"
#include "../support/reference_adam.hpp"

namespace {

namespace reference = onebit_test::reference;

const std::vector<std::size_t> sizes_of_zero_one{40, 33, 64, 5};
constexpr std::size_t late = 7;  ///< of tensor 1: has no gradient before step 2
constexpr std::uint64_t steps_of_zero_one = 24;
constexpr double safe_margin_of_zero_one = 2e-5;  // see adam.cpp

float rate_of_zero_one(std::uint64_t step) { return 0.01F / static_cast<float>(1 + step / 10); }
double gradient_of_zero_one(int seed, std::size_t k, std::size_t r, std::uint64_t t,
                            std::size_t i) {
  if (k == 1 && i == late && t < 2) return 0;
  const auto u = [&](std::size_t of) { return onebit_test::golden::u(seed, 2, k, of, t, i); };
  return static_cast<double>(static_cast<float>(u(1000) + 0.5 * u(r)));  // signal, and noise
}

struct zero_one_run {
  onebit::zero_one_adam_options options;
  onebit::gather_scatter<onebit::sign<>> collective;
  std::size_t n_ranks;
};

/// Which steps average, and which exchange.
std::vector<onebit::due> plans(const zero_one_run& run) {
  onebit::intervals schedule(run.options.schedule);
  std::vector<onebit::due> all;
  for (std::uint64_t t = 0; t < steps_of_zero_one; ++t) {
    all.push_back(schedule.due_in(t, rate_of_zero_one(t)));
    schedule.done(t, rate_of_zero_one(t));
  }
  return all;
}

/// Parameters of all tensors after each exchange, by the oracle; its margin.
std::pair<std::vector<reference::vec>, double> expected(const zero_one_run& run, int seed) {
  reference::adam_options o;
  o.eps = run.options.adam.eps;
  o.compress.scales = reference::granularity::layer;
  o.compress.factor = static_cast<double>(run.collective.codec.factor);
  reference::zero_one_adam oracle(sizes_of_zero_one, {{2, 1, 0.01}, {2, 0.5, 0}}, run.n_ranks, o);
  for (std::size_t k = 0; k < sizes_of_zero_one.size(); ++k) {
    oracle.set_params(k, reference::vec(sizes_of_zero_one[k], 0.5));
  }
  std::vector<reference::vec> all;
  const auto when = plans(run);
  for (std::uint64_t t = 0; t < steps_of_zero_one; ++t) {
    reference::rank_tensors g(run.n_ranks);
    for (std::size_t r = 0; r < run.n_ranks; ++r) {
      for (std::size_t k = 0; k < sizes_of_zero_one.size(); ++k) {
        auto& tensor = g[r].emplace_back(sizes_of_zero_one[k]);
        for (std::size_t i = 0; i < tensor.size(); ++i) {
          tensor[i] = gradient_of_zero_one(seed, k, r, t, i);
        }
      }
    }
    oracle.step(static_cast<double>(rate_of_zero_one(t)), g, when[t].average, when[t].exchange);
    if (!when[t].exchange) continue;
    reference::vec x;
    for (std::size_t k = 0; k < sizes_of_zero_one.size(); ++k) {
      const reference::vec of = oracle.params(0, k);
      x.insert(x.end(), of.begin(), of.end());
    }
    all.push_back(x);
  }
  return {all, oracle.exchange().margin()};
}

/// The same by the library, of one rank.
std::vector<std::vector<float>> found(const zero_one_run& run, int seed, onebit::threads comm) {
  std::vector<std::vector<float>> x, g;
  for (const std::size_t n : sizes_of_zero_one) {
    x.emplace_back(n, 0.5F);
    g.emplace_back(n);
  }
  std::vector<onebit::param_group<>> groups{{{}, 1, 0.01F}, {{}, 0.5F, 0}};
  for (std::size_t k = 0; k < x.size(); ++k) groups[k / 2].tensors.push_back({x[k], g[k]});
  auto optimizer = onebit::zero_one_adam(groups, comm, run.options, run.collective);
  optimizer.warn_with(nullptr);
  std::vector<std::vector<float>> all;
  const auto when = plans(run);
  for (std::uint64_t t = 0; t < steps_of_zero_one; ++t) {
    for (std::size_t k = 0; k < g.size(); ++k) {
      for (std::size_t i = 0; i < g[k].size(); ++i) {
        g[k][i] = static_cast<float>(
            gradient_of_zero_one(seed, k, static_cast<std::size_t>(comm.rank()), t, i));
      }
    }
    const onebit::report done = optimizer.step(rate_of_zero_one(t));
    CHECK((done.phase == onebit::phase::compressed) == when[t].exchange);
    if (!when[t].exchange) continue;
    all.emplace_back();
    for (const auto& of : x) all.back().insert(all.back().end(), of.begin(), of.end());
  }
  return all;
}

void check(const zero_one_run& run) {
  CAPTURE(run.n_ranks);
  int seed = 1;
  while (expected(run, seed).second < safe_margin_of_zero_one) REQUIRE(++seed < 60);
  CAPTURE(seed);
  const auto right = expected(run, seed).first;
  const auto ranks = onebit_test::on_ranks(
      static_cast<int>(run.n_ranks), [&](onebit::threads comm) { return found(run, seed, comm); });
  for (const auto& all : ranks) {
    REQUIRE(all.size() == right.size());
    for (std::size_t t = 0; t < all.size(); ++t) {
      CAPTURE(t);
      double worst = 0;
      for (std::size_t i = 0; i < right[t].size(); ++i) {
        const double off = std::fabs(static_cast<double>(all[t][i]) - right[t][i]);
        if (!(off <= worst)) worst = off;
      }
      CHECK(worst / 0.5 <= 5e-6);  // see adam.cpp: parameters are about 0.5
    }
  }
}

}  // namespace

TEST_CASE("rule: the paper's 0/1 Adam, with signs, against the reference in double precision") {
  for (const std::size_t n_ranks : {2, 4, 5}) {
    auto [options, collective] = onebit::papers::zero_one_adam(8);
    options.adam.eps = 1e-3;  // v starts from a thousandth of the first square
    options.schedule.kappa = 2;
    options.schedule.doubling_steps = 5;
    options.schedule.max_interval = 4;
    check({options, collective, n_ranks});
    options.schedule.warmup_steps = 3;  // averages in local steps, too
    options.schedule.stop_refreshing = false;
    check({options, collective, n_ranks});
  }
}
