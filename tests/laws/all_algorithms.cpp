// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The laws for LAMB, 1-bit LAMB, 0/1 Adam and DeepSpeed's variant of it: same bits whatever runs
// them, uncompressed where nothing travels, checkpoints, skipped steps, failing transports,
// budgets.

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <onebit/onebit.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "../../examples/deepspeed_zero_one.hpp"
#include "../support/scripted.hpp"
#include "../support/training.hpp"

using namespace onebit_test;

namespace {

/// The first compressed step of each is at its `freezes_before`: the freeze is no part of it, and
/// stays done when that step is skipped, or fails.
constexpr std::uint64_t never = ~std::uint64_t{0};

struct lamb_maker {
  static constexpr std::uint64_t freezes_before = never;
  template <class Groups, class T>
  auto operator()(const Groups& groups, T transport, onebit::host backend = onebit::host()) const {
    return onebit::lamb(groups, transport, onebit::lamb_options{.beta2 = 0.99}, backend);
  }
};

struct one_bit_lamb_maker {
  static constexpr std::uint64_t freezes_before = 6;
  template <class Groups, class T>
  auto operator()(const Groups& groups, T transport, onebit::host backend = onebit::host()) const {
    const onebit::gather_scatter collective{onebit::sign<>{onebit::granularity::vector()}};
    return onebit::one_bit_lamb(
        groups, transport,
        onebit::one_bit_lamb_options{.lamb = {.beta2 = 0.99}, .freeze = {.after = 6}}, collective,
        backend);
  }
};

struct zero_one_maker {
  static constexpr std::uint64_t freezes_before = 3;  // the first step that does not average
  template <class Groups, class T>
  auto operator()(const Groups& groups, T transport, onebit::host backend = onebit::host()) const {
    return onebit::zero_one_adam(
        groups, transport,
        onebit::zero_one_adam_options{
            .adam = {.beta2 = 0.99},
            .schedule = {.kappa = 2, .warmup_steps = 8, .doubling_steps = 6, .max_interval = 4}},
        onebit::gather_scatter<onebit::sign<>>{}, backend);
  }
};

struct variant_maker {
  static constexpr std::uint64_t freezes_before = 9;
  template <class Groups, class T>
  auto operator()(const Groups& groups, T transport, onebit::host backend = onebit::host()) const {
    return deepspeed::zero_one_adam(groups, transport,
                                    deepspeed::zero_one_options{.adam = {.beta2 = 0.99},
                                                                .var_freeze_step = 9,
                                                                .var_update_scaler = 3,
                                                                .local_step_scaler = 6,
                                                                .local_step_clipper = 4},
                                    onebit::gather_scatter<onebit::sign<>>{}, backend);
  }
};

constexpr std::uint64_t n_steps = 26;

/// All that a rank has after so many steps.
struct state {
  std::uint64_t parameters = 0;
  std::string checkpoint;
  friend bool operator==(const state&, const state&) = default;
};

template <class Make>
std::vector<state> run(int n_ranks, const Make& make, onebit::host backend = onebit::host(),
                       const std::vector<std::size_t>& sizes = mixed_sizes) {
  return on_ranks(n_ranks, [&](onebit::threads transport) {
    training data(sizes);
    auto o = make(data.groups(), transport, backend);
    while (o.steps() < n_steps) train(o, data);
    return state{data.digest(), saved(o)};
  });
}

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan_ = std::numeric_limits<float>::quiet_NaN();

}  // namespace

TEST_CASE_TEMPLATE_DEFINE("every instruction set and number of threads: the same bits", Make,
                          same_bits) {
  const std::vector<std::size_t> sizes = {33, 0, 50000, 1, 64};  // enough tiles for several threads
  for (const int n_ranks : cases({2}, {1, 3})) {
    const auto expected = run(n_ranks, Make{}, onebit::host(1, onebit::isa::scalar), sizes);
    for (const onebit::isa set : {onebit::isa::avx2, onebit::isa::avx512}) {
      if (set > onebit::host::best_isa()) {
        MESSAGE("skipped: this machine has no ", std::string(onebit::to_string(set)));
        continue;
      }
      CHECK(run(n_ranks, Make{}, onebit::host(1, set), sizes) == expected);
      CHECK(run(n_ranks, Make{}, onebit::host(3, set), sizes) == expected);
    }
  }
}
TEST_CASE_TEMPLATE_INVOKE(same_bits, lamb_maker, one_bit_lamb_maker, zero_one_maker, variant_maker);

TEST_CASE("one rank: every algorithm is the uncompressed one, bit for bit") {
  const auto trained = [](const auto& make) {
    return on_ranks(1, [&](onebit::threads transport) {
      training data;
      auto o = make(data.groups(), transport);
      while (o.steps() < n_steps) {
        const auto report = train(o, data);
        CHECK(report.phase == onebit::phase::dense);
        CHECK(report.collectives == 0);
      }
      return data.params;
    })[0];
  };
  const auto adam =
      trained([](const auto& g, auto t) { return onebit::adam(g, t, {.beta2 = 0.99}); });
  CHECK(trained([](const auto& g, auto t) {
          return onebit::one_bit_adam(g, t, {.adam = {.beta2 = 0.99}, .freeze = {.after = 6}});
        }) == adam);
  CHECK(trained(one_bit_lamb_maker{}) == trained(lamb_maker{}));
  CHECK(trained(zero_one_maker{}) == adam);
  CHECK(trained(variant_maker{}) == trained([](const auto& g, auto t) {
          return onebit::adam(g, t, {.beta2 = 0.99, .bias_correction = false});
        }));
}

TEST_CASE_TEMPLATE_DEFINE("saved at any step, loaded, gone on: as if never stopped", Make,
                          resumed) {
  for (const int n_ranks : {1, 3}) {
    const auto expected = run(n_ranks, Make{});
    for (std::uint64_t stop = 0; stop < n_steps; ++stop) {
      CAPTURE(stop);
      const auto resumed = on_ranks(n_ranks, [&](onebit::threads transport) {
        training data;
        std::string checkpoint;
        {
          auto o = Make{}(data.groups(), transport);
          while (o.steps() < stop) train(o, data);
          checkpoint = saved(o);
        }
        // the ranks of 0/1 Adam differ between exchanges, and an optimizer is built on equal ones
        const auto own = data.params;
        const training fresh;
        for (std::size_t t = 0; t < own.size(); ++t) data.params[t] = fresh.params[t];
        auto o = Make{}(data.groups(), transport);
        for (std::size_t t = 0; t < own.size(); ++t) {
          std::copy(own[t].begin(), own[t].end(), data.params[t].begin());
        }
        std::istringstream in(checkpoint);
        o.load(in);
        while (o.steps() < n_steps) train(o, data);
        return state{data.digest(), saved(o)};
      });
      CHECK(resumed == expected);
    }
  }
}
TEST_CASE_TEMPLATE_INVOKE(resumed, lamb_maker, one_bit_lamb_maker, zero_one_maker, variant_maker);

TEST_CASE_TEMPLATE_DEFINE("a bad gradient in a step that communicates: all skip, nothing changes",
                          Make, skipped) {
  const int n_ranks = 3;
  const auto expected = run(n_ranks, Make{});
  for (const float bad : {nan_, inf}) {
    std::vector<std::string> problems(static_cast<std::size_t>(n_ranks));
    const auto poisoned = on_ranks(n_ranks, [&](onebit::threads transport) {
      training data;
      auto o = Make{}(data.groups(), transport);
      std::string& problem = problems[static_cast<std::size_t>(transport.rank())];
      while (o.steps() < n_steps) {
        const std::uint64_t step = o.steps();
        const auto plan = o.schedule().plan(step, 0.01F);
        const bool travels = plan.average_gradient || plan.exchange;
        for (int times = 0; times < 2 && travels; ++times) {
          data.compute_gradients(o.rank(), step);
          if (o.rank() == static_cast<int>(step % 3)) data.grads[2][step * 100] = bad;
          const state before{data.digest(), saved(o)};
          const auto report = o.step(0.01F);
          if (!report.skipped) problem = "step " + std::to_string(step) + " was not skipped";
          const state after{data.digest(), saved(o)};
          if (after.parameters != before.parameters ||
              (after != before) != (step == Make::freezes_before && times == 0)) {
            problem = "step " + std::to_string(step) + " changed something";
          }
          std::istringstream in(after.checkpoint);
          o.load(in);
        }
        train(o, data);
      }
      return state{data.digest(), saved(o)};
    });
    for (const std::string& problem : problems) CHECK(problem == "");
    CHECK(poisoned == expected);
  }
}
TEST_CASE_TEMPLATE_INVOKE(skipped, lamb_maker, one_bit_lamb_maker, zero_one_maker, variant_maker);

TEST_CASE_TEMPLATE_DEFINE("a transport that fails in any collective: nothing changes", Make,
                          network_down) {
  const int n_ranks = 2;
  const auto undisturbed = run(n_ranks, Make{});
  std::vector<std::string> frozen(static_cast<std::size_t>(n_ranks));
  for (std::uint64_t at = 0; at < 4; ++at) {
    CAPTURE(at);
    std::vector<std::string> problems(static_cast<std::size_t>(n_ranks));
    const auto states = on_ranks(n_ranks, [&](onebit::threads transport) {
      training data;
      const auto told = std::make_shared<script>();
      auto o = Make{}(data.groups(), scripted(transport, told));
      std::string& problem = problems[static_cast<std::size_t>(transport.rank())];
      while (o.steps() < n_steps) {
        const state before{data.digest(), saved(o)};
        told->fail_at = told->calls + at;
        bool failed = false;
        try {
          train(o, data);
        } catch (const onebit::transport_error&) {
          failed = true;
        }
        told->fail_at = script::never;
        state expected = before;
        if (failed && o.steps() == Make::freezes_before) {  // the same wherever it failed
          std::string& first = frozen[static_cast<std::size_t>(transport.rank())];
          if (first.empty()) first = saved(o);
          expected.checkpoint = first;
        }
        if (failed && !(state{data.digest(), saved(o)} == expected)) {
          problem = "step " + std::to_string(o.steps()) + " changed something";
        }
        if (failed) train(o, data);
      }
      return state{data.digest(), saved(o)};
    });
    for (const std::string& problem : problems) CHECK(problem == "");
    CHECK(states == undisturbed);
  }
}
TEST_CASE_TEMPLATE_INVOKE(network_down, lamb_maker, one_bit_lamb_maker, zero_one_maker,
                          variant_maker);

TEST_CASE("0/1 Adam: a bad gradient in a local step is left out by its rank alone") {
  const auto reports = on_ranks(3, [&](onebit::threads transport) {
    training data;
    auto o = zero_one_maker{}(data.groups(), transport);
    while (true) {
      const auto plan = o.schedule().plan(o.steps(), 0.01F);
      if (!plan.average_gradient && !plan.exchange) break;
      train(o, data);
    }
    const std::uint64_t before = data.digest();
    data.compute_gradients(o.rank(), o.steps());
    if (o.rank() == 1) data.grads[3][0] = nan_;
    const auto report = o.step(0.01F);
    const bool moved = data.digest() != before;
    // and all go on together
    while (o.steps() < 60) train(o, data);
    bool finite = true;
    for (const auto& p : data.params) {
      for (const float x : p) finite = finite && std::isfinite(x);
    }
    return std::vector<bool>{report.phase == onebit::phase::local, report.skipped, moved, finite};
  });
  CHECK(reports[0] == std::vector<bool>{true, false, true, true});
  CHECK(reports[1] == std::vector<bool>{true, true, false, true});
  CHECK(reports[2] == std::vector<bool>{true, false, true, true});
}

TEST_CASE("0/1 Adam: the same parameters on all ranks after each of 10,000 exchanges") {
  const std::vector<std::size_t> sizes = {40, 0, 7};
  const auto counts = on_ranks(3, [&](onebit::threads transport) {
    training data(sizes);
    auto o = onebit::zero_one_adam(
        data.groups(), transport,
        onebit::zero_one_adam_options{
            .adam = {.beta2 = 0.99},
            .schedule = {.kappa = 4, .warmup_steps = 100, .doubling_steps = 4000}});
    std::uint64_t exchanges = 0, differing = 0, locals = 0;
    while (exchanges < 10000) {
      // A constant rate: m = u / lr would multiply a residual from a step with a larger one.
      data.compute_gradients(o.rank(), o.steps());
      const auto report = o.step(0.001F);
      if (report.skipped) break;
      if (report.phase != onebit::phase::compressed) {  // local, also where v is refreshed
        ++locals;
        continue;
      }
      ++exchanges;
      const std::uint64_t mine = data.digest();
      std::vector<std::uint64_t> all(3);
      transport.all_gather(&mine, all.data(), sizeof mine);
      if (all[0] != mine || all[1] != mine || all[2] != mine) ++differing;
    }
    return std::vector<std::uint64_t>{exchanges, differing, locals};
  });
  CHECK(counts[0][0] == 10000);
  CHECK(counts[0][1] == 0);
  CHECK(counts[0][2] > 10000);  // local steps were among them
}

TEST_CASE("state in bytes per parameter, within the budgets") {
  for (const int n_ranks : {2, 4, 8}) {
    const double w = n_ranks;
    const std::vector<std::size_t> sizes = {1 << 18, 100000, 0, 3 << 15};
    const auto bytes = on_ranks(n_ranks, [&](onebit::threads transport) {
      training data(sizes);
      const auto per_parameter = [&](auto o) {
        while (o.steps() < 12) train(o, data);
        return static_cast<double>(o.state_bytes()) / static_cast<double>(o.n_parameters());
      };
      std::vector<double> found{per_parameter(one_bit_lamb_maker{}(data.groups(), transport))};
      const training fresh(sizes);
      for (std::size_t t = 0; t < sizes.size(); ++t) {
        std::copy(fresh.params[t].begin(), fresh.params[t].end(), data.params[t].begin());
      }
      found.push_back(per_parameter(zero_one_maker{}(data.groups(), transport)));
      return found;
    });
    for (const auto& of_rank : bytes) {
      CHECK(of_rank[0] <= 13.15 + 4 / w);  // small tiles: 64 floats of sketch for 1024 elements
      CHECK(of_rank[1] <= 20.52 + 4 / w);
    }
  }
}
