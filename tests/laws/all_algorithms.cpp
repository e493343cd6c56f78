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
#include <onebit/testing/rule.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "../golden/deepspeed_zero_one.hpp"

using namespace onebit::testing;

namespace {

/// LAMB's and 0/1 Adam's steps have one size, whatever the gradient's: at a rate that is not tuned
/// they end at 10 to 75 times SGD's distance, about 1% of the way. What does not train ends at
/// thousands.
constexpr double of_one_size = 100;

struct lamb_maker {
  static constexpr float rate = 0.02F;
  static constexpr double times_sgd = of_one_size;
  static constexpr std::uint64_t freezes_before = never_freezes;
  template <class Groups, class T>
  auto operator()(const Groups& groups, T transport, onebit::host backend = onebit::host()) const {
    return onebit::lamb(groups, transport, onebit::lamb_options{.beta2 = 0.99}, backend);
  }
};

struct one_bit_lamb_maker {
  static constexpr float rate = 0.02F;
  static constexpr double times_sgd = of_one_size;
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
  static constexpr float rate = 0.02F;
  static constexpr double times_sgd = of_one_size;
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

}  // namespace

TEST_CASE_TEMPLATE_INVOKE(rule_bits, lamb_maker, one_bit_lamb_maker, zero_one_maker, variant_maker);
TEST_CASE_TEMPLATE_INVOKE(rule_resumes, lamb_maker, one_bit_lamb_maker, zero_one_maker,
                          variant_maker);
TEST_CASE_TEMPLATE_INVOKE(rule_skips, lamb_maker, one_bit_lamb_maker, zero_one_maker,
                          variant_maker);
TEST_CASE_TEMPLATE_INVOKE(rule_interrupted, lamb_maker, one_bit_lamb_maker, zero_one_maker,
                          variant_maker);
TEST_CASE_TEMPLATE_INVOKE(rule_elsewhere, lamb_maker, one_bit_lamb_maker, zero_one_maker,
                          variant_maker);
TEST_CASE_TEMPLATE_INVOKE(rule_options, lamb_maker, one_bit_lamb_maker, zero_one_maker,
                          variant_maker);
TEST_CASE_TEMPLATE_INVOKE(rule_trains, lamb_maker, one_bit_lamb_maker, zero_one_maker);

TEST_CASE("one rank: every algorithm is the uncompressed one, bit for bit") {
  const auto trained = [](const auto& make) {
    return on_ranks(1, [&](onebit::threads transport) {
      training data;
      auto o = make(data.groups(), transport);
      while (o.steps() < conformance_steps) {
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

TEST_CASE("0/1 Adam: a bad gradient in a local step is left out by its rank alone") {
  const auto reports = on_ranks(3, [&](onebit::threads transport) {
    training data;
    auto o = zero_one_maker{}(data.groups(), transport);
    while (true) {
      const auto plan = o.schedule().due_in(o.steps(), 0.01F);
      if (!plan.average && !plan.exchange) break;
      train(o, data);
    }
    const std::uint64_t before = data.digest();
    data.compute_gradients(o.rank(), o.steps());
    if (o.rank() == 1) data.grads[3][0] = std::numeric_limits<float>::quiet_NaN();
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
    const std::vector<std::size_t> sizes = {1 << 17, 50000, 0, 3 << 14};
    const auto bytes = on_ranks(n_ranks, [&](onebit::threads transport) {
      training data(sizes);
      const auto per_parameter = [&](auto o) {
        while (o.steps() < 12) train(o, data);
        return static_cast<double>(o.state_bytes()) / static_cast<double>(o.n_parameters());
      };
      std::vector<double> found{per_parameter(one_bit_lamb_maker{}(data.groups(), transport))};
      const training fresh(sizes);
      const auto start_anew = [&] {
        for (std::size_t t = 0; t < sizes.size(); ++t) {
          std::copy(fresh.params[t].begin(), fresh.params[t].end(), data.params[t].begin());
        }
      };
      start_anew();
      found.push_back(per_parameter(zero_one_maker{}(data.groups(), transport)));
      start_anew();
      found.push_back(
          per_parameter(onebit::one_bit_adam(data.groups(), transport, {.freeze = {.after = 6}})));
      return found;
    });
    for (const auto& of_rank : bytes) {
      CHECK(of_rank[0] <= 8.52 + 4 / w);  // small tiles: 64 floats of sketch for 1024 elements
      CHECK(of_rank[1] <= 16.27 + 4 / w);
      CHECK(of_rank[2] <= 8.27 + 4 / w);
    }
  }
}
