// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A warm-up anew in a running optimizer, and moments taken over from another one.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/onebit.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "../support/training.hpp"

using namespace onebit_test;

namespace {

constexpr std::uint64_t freeze_at = 10, thaw_at = 25, freeze_again = 33, second_phase_steps = 50;

struct second_phase {
  std::vector<onebit::phase> phases;
  std::vector<std::vector<float>> params;
  std::string checkpoint;
  friend bool operator==(const second_phase&, const second_phase&) = default;
};

/// Trains, with another warm-up from step 25 to 32; saved and loaded in step `reload`.
template <class Make>
std::vector<second_phase> train_twice(int n_ranks, const Make& make, std::uint64_t reload) {
  return on_ranks(n_ranks, [&](onebit::threads transport) {
    training<> data;
    auto o = make(data.groups(), transport);
    second_phase result;
    while (o.steps() < second_phase_steps) {
      if constexpr (o.thaws) {
        if (o.steps() == thaw_at) o.thaw(freeze_again - thaw_at);
      }
      if (o.steps() == reload) {
        std::istringstream in(saved(o));
        o = make(data.groups(), transport);
        o.load(in);
      }
      const auto done = train(o, data);
      CHECK_FALSE(done.skipped);
      result.phases.push_back(done.phase);
    }
    result.params = data.params;
    result.checkpoint = saved(o);
    return result;
  });
}

/// Equal parameters on equal data, so that only the initial parameters of `make`'s ranks matter.
template <class Make>
void check_phases(const Make& make, bool local_steps) {
  for (const int n_ranks : {2, 3}) {
    CAPTURE(n_ranks);
    const auto ranks = train_twice(n_ranks, make, second_phase_steps);
    for (const second_phase& r : ranks) {
      if (!local_steps) CHECK(r.params == ranks[0].params);
      for (std::uint64_t s = 0; s < second_phase_steps && !local_steps; ++s) {
        const bool dense = s < freeze_at || (s >= thaw_at && s < freeze_again);
        CAPTURE(s);
        CHECK((r.phases[s] == onebit::phase::dense) == dense);
      }
    }
  }
}

}  // namespace

TEST_CASE("thaw: a warm-up anew, then compressed again") {
  check_phases(
      [](const auto& g, auto t) {
        return onebit::one_bit_adam(g, t, {.freeze = {.after = freeze_at}, .refreshes = 0});
      },
      false);
  check_phases(
      [](const auto& g, auto t) {
        return onebit::one_bit_adam(g, t, {.freeze = {.after = freeze_at}},
                                    onebit::all_gather<onebit::sign<>>{});
      },
      false);
  check_phases(
      [](const auto& g, auto t) {
        return onebit::one_bit_adam(g, t, {.freeze = {.after = freeze_at}},
                                    onebit::hierarchical{onebit::sign<>{}, 1});
      },
      false);
  check_phases([](const auto& g,
                  auto t) { return onebit::one_bit_lamb(g, t, {.freeze = {.after = freeze_at}}); },
               false);
  check_phases(
      [](const auto& g, auto t) {
        return onebit::zero_one_adam(
            g, t, {.schedule = {.warmup_steps = freeze_at, .doubling_steps = 8}});
      },
      true);
}

TEST_CASE("thaw: a schedule of one's own, that averages again, is the same") {
  const auto called = train_twice(
      3,
      [](const auto& g, auto t) {
        return onebit::one_bit_adam(g, t, {.freeze = {.after = freeze_at}, .refreshes = 0});
      },
      second_phase_steps);
  const auto scheduled = train_twice(
      3,
      [](const auto& g, auto t) {
        const onebit::custom_schedule twice([](std::uint64_t s, float) {
          const bool dense = s < freeze_at || (s >= thaw_at && s < freeze_again);
          return onebit::step_plan{.average_gradient = dense, .exchange = !dense, .frozen = !dense};
        });
        return onebit::optimizer("twice", g, t,
                                 onebit::adam_rule({.keeps_squares = false}, onebit::host()), twice,
                                 onebit::gather_scatter<onebit::sign<>>{});
      },
      second_phase_steps);
  for (std::size_t r = 0; r < 3; ++r) {
    CHECK(called[r].phases == scheduled[r].phases);
    CHECK(called[r].params == scheduled[r].params);
  }
}

TEST_CASE("thaw: saved and resumed in every phase, the same bits") {
  const auto check = [](const auto& make) {
    const auto whole = train_twice(2, make, second_phase_steps);
    for (const std::uint64_t reload : {9, 10, 20, 25, 26, 32, 33, 40}) {
      CAPTURE(reload);
      CHECK((train_twice(2, make, reload) == whole));
    }
  };
  check([](const auto& g, auto t) {
    return onebit::one_bit_adam(g, t, {.freeze = {.after = freeze_at}, .refreshes = 4});
  });
  check([](const auto& g, auto t) {
    return onebit::one_bit_lamb(g, t, {.freeze = {.after = freeze_at}});
  });
  check([](const auto& g, auto t) {
    return onebit::zero_one_adam(g, t,
                                 {.schedule = {.warmup_steps = freeze_at, .max_interval = 1}});
  });
}

TEST_CASE("thaw: steps stay Adam's where gradients are alike, and new elements come to life") {
  constexpr float lr = 1e-3F;
  const auto moved = on_ranks(2, [](onebit::threads t) {
    training<> data({64});
    data.params[0].assign(64, 0.0F);
    std::vector<onebit::param_group<>> g(1);
    g[0].tensors.push_back({data.params[0], data.grads[0]});
    auto o = onebit::one_bit_adam(g, t, {.freeze = {.after = freeze_at}, .refreshes = 0});
    double late = 0;
    while (o.steps() < second_phase_steps) {
      const std::uint64_t s = o.steps();
      if (s == thaw_at) o.thaw(freeze_again - thaw_at);
      const auto before = data.params[0];
      for (std::size_t i = 0; i < 64; ++i) {
        const bool has = i < 32 || s >= thaw_at;  // a layer that is unfrozen for the second phase
        data.grads[0][i] = has ? (i % 2 == 0 ? 1.0F : -1.0F) : 0.0F;
      }
      CHECK_FALSE(o.step(lr).skipped);
      for (std::size_t i = 0; i < 32 && s < thaw_at; ++i) {
        CHECK(std::fabs(data.params[0][i] - before[i]) == doctest::Approx(lr).epsilon(1e-4));
      }
      // afterwards the new ones' v is younger than the correction says, as with torch's Adam
      for (std::size_t i = 0; i < 32 && s >= thaw_at; ++i) {
        CHECK(std::fabs(data.params[0][i] - before[i]) < 8 * lr);
      }
    }
    for (std::size_t i = 32; i < 64; ++i) late += std::fabs(static_cast<double>(data.params[0][i]));
    return late / 32 / static_cast<double>(lr);
  });
  // 25 steps; without the thaw 0
  CHECK(moved[0] > 12);
}

TEST_CASE("thaw: numbers that cannot be, and what v needs after a long phase without refreshes") {
  onebit::run_threads(2, [](onebit::threads t) {
    training<> a, b, c;
    auto zero_one = onebit::zero_one_adam(a.groups(), t, {.schedule = {.warmup_steps = 4}});
    CHECK(thrown<onebit::invalid_input>([&] { zero_one.thaw(); }) == contains{"at least 1"});
    auto close =
        onebit::one_bit_adam(b.groups(), t, {.adam = {.beta2 = 1 - 1e-9}, .freeze = {.after = 4}});
    for (int i = 0; i < 6; ++i) (void)train(close, b);
    const std::string before = saved(close);
    CHECK(thrown<onebit::invalid_input>([&] { close.thaw(); }) == contains{"beta2"});
    CHECK(saved(close) == before);
    close.thaw(~std::uint64_t{0});  // for ever
    for (int i = 0; i < 6; ++i) CHECK(train(close, b).phase == onebit::phase::dense);

    // v does not move: the shortest warm-up will do
    auto o = onebit::one_bit_adam(c.groups(), t, {.freeze = {.after = 20}, .refreshes = 0});
    std::uint64_t dense = 0;
    for (int i = 0; i < 400; ++i) {
      if (i == 300) o.thaw();
      for (auto& g : c.grads) g.assign(g.size(), 1.0F);
      dense += o.step(1e-4F).phase == onebit::phase::dense ? 1 : 0;
    }
    CHECK(dense == 20 + onebit::freeze::least_warm_up);
  });
}

TEST_CASE("start_from: moments of another Adam, and its step number") {
  constexpr std::uint64_t at = 20;
  const auto whole = [](int n_ranks, const auto& make, bool handed) {
    return on_ranks(n_ranks, [&](onebit::threads t) {
      training<> data;
      auto first = make(data.groups(), t);
      const auto train_to = [&](auto& o, std::uint64_t from, std::uint64_t to) {
        for (std::uint64_t s = from; s < to; ++s) {
          data.compute_gradients(t.rank(), s);
          CHECK_FALSE(o.step(0.01F).skipped);
        }
      };
      train_to(first, 0, at);
      if (!handed) {
        train_to(first, at, 2 * at);
        return data.params;
      }
      // of the flat axis: every tensor starts at a multiple of 32
      std::vector<onebit::given_moments> moments;
      std::size_t begin = 0;
      for (const auto& p : data.params) {
        moments.push_back({{first.rule().momentum() + begin, p.size()},
                           {first.rule().variance() + begin, p.size()}});
        begin += (p.size() + 31) / 32 * 32;
      }
      auto second = make(data.groups(), t);
      second.start_from(moments, at);
      CHECK(thrown<onebit::invalid_input>([&] { first.start_from(moments, at); }) ==
            contains{"before the first step"});
      const auto m = moments[2].m;
      moments[2].m = m.first(7);
      CHECK(thrown<onebit::invalid_input>([&] { second.start_from(moments, at); }) ==
            contains{"tensor 2 has 5000 parameters, but 7 of m"});
      moments.pop_back();
      CHECK(thrown<onebit::invalid_input>([&] { second.start_from(moments, at); }) ==
            contains{"5 tensors for 6"});
      train_to(second, at, 2 * at);
      return data.params;
    })[0];
  };
  const auto check = [&](const auto& make) {
    for (const int n_ranks : {1, 2}) {
      const auto a = whole(n_ranks, make, false), b = whole(n_ranks, make, true);
      for (std::size_t k = 0; k < a.size(); ++k) {
        for (std::size_t i = 0; i < a[k].size(); ++i) {
          // beta^20 is a power here and a product there, right to 1e-15: corrections differ at most
          // in the last bit of a float, for 20 steps of 0.01
          REQUIRE(std::fabs(a[k][i] - b[k][i]) < 20 * 0.01F * 2e-7F + 5e-7F);
        }
      }
    }
  };
  check([](const auto& g, auto t) { return onebit::adam(g, t); });
  check(
      [](const auto& g, auto t) { return onebit::one_bit_adam(g, t, {.freeze = {.after = 100}}); });
  check([](const auto& g, auto t) { return onebit::adam(g, t, {.bias_correction = false}); });
  check([](const auto& g, auto t) { return onebit::adam(g, t, {.beta1 = 0}); });
  check([](const auto& g, auto t) { return onebit::lamb(g, t, {.beta2 = 0}); });
}
