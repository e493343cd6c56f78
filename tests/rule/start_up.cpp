// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// How far a step goes, in units of the learning rate: as far as Adam's, whenever the warm-up ends.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/extras/papers.hpp>
#include <onebit/onebit.hpp>
#include <string>
#include <utility>
#include <vector>

#include "../support/training.hpp"

using onebit_test::cases;
using onebit_test::on_ranks;
using onebit_test::training;

namespace {

constexpr float lr = 1e-3F;

/// The least and the greatest change of an element in a step, and in all steps, by their number.
struct moves {
  double least = 1e9, greatest = 0;
  double least_mean = 1e9, greatest_mean = 0;
};
/// Gradients that never change, +1 and -1 by turns, so that Adam's step is lr: what elements move
/// in `steps` steps, in units of lr. Zeroed first, so that a difference loses nothing.
template <class Make>
moves changes(int n_ranks, std::uint64_t steps, const Make& make) {
  const auto of_ranks = on_ranks(n_ranks, [&](onebit::threads transport) {
    training<> data;
    for (auto& p : data.params) p.assign(p.size(), 0.0F);
    auto o = make(data.groups(), transport);
    moves found;
    for (std::uint64_t step = 0; step < steps; ++step) {
      const auto before = data.params;
      for (auto& g : data.grads) {
        for (std::size_t i = 0; i < g.size(); ++i) g[i] = i % 2 == 0 ? 1.0F : -1.0F;
      }
      CHECK_FALSE(o.step(lr).skipped);
      for (std::size_t t = 0; t < before.size(); ++t) {
        for (std::size_t i = 0; i < before[t].size(); ++i) {
          const double moved = std::fabs(static_cast<double>(data.params[t][i]) -
                                         static_cast<double>(before[t][i])) /
                               static_cast<double>(lr);
          found.least = std::min(found.least, moved);
          found.greatest = std::max(found.greatest, moved);
        }
      }
    }
    for (const auto& p : data.params) {
      for (const float x : p) {
        const double mean = std::fabs(static_cast<double>(x)) / static_cast<double>(lr) /
                            static_cast<double>(steps);
        found.least_mean = std::min(found.least_mean, mean);
        found.greatest_mean = std::max(found.greatest_mean, mean);
      }
    }
    return found;
  });
  return of_ranks[0];
}

/// 200 steps sum up to 0.2, of which a float knows 1.5e-8: 1.5e-5 of a step. Twice that for the
/// arithmetic.
constexpr double start_up_tolerance = 3e-5;
/// A refresh rounds what v takes in to powers of two, at random, in two phases: by up to half, or
/// to twice as much. That is a quarter of v, at gaps of a third of all steps: a tenth of its root,
/// and of older refreshes three quarters of that, and so on.
constexpr double followed_tolerance = 0.4;
/// The last refreshes of 200 steps are 50 steps apart, so their noise is still in the mean.
constexpr double followed_mean_tolerance = 0.13;
/// Until the first refresh a rank's own squares weigh 1 / W^2, not 1: after one dense step the next
/// two divide by a v that has a half, then a third of what it should have.
double young_tolerance(std::uint64_t warm_up) { return warm_up > 2 ? 0 : 0.35; }

}  // namespace

TEST_CASE("start-up: every step of every algorithm is Adam's where all gradients are alike") {
  const auto groups_without_decay = [](auto groups) {
    for (auto& g : groups) g.weight_decay = 0, g.lr_factor = 1;
    return groups;
  };
  for (const std::uint64_t warm_up : cases({1, 10}, {2, 5, 40})) {
    CAPTURE(warm_up);
    for (const int n_ranks : cases({1, 3}, {2})) {
      CAPTURE(n_ranks);
      const auto check = [&](const std::string& algorithm, const auto& make) {
        CAPTURE(algorithm);
        const moves found = changes(n_ranks, 200, [&](const auto& groups, auto transport) {
          return make(groups_without_decay(groups), transport);
        });
        const bool follows = algorithm == "one_bit_adam" || algorithm == "zero_one_adam";
        const double tolerance =
            start_up_tolerance + (follows ? followed_tolerance + young_tolerance(warm_up) : 0);
        CHECK(found.least > 1 - tolerance);
        CHECK(found.greatest < 1 + tolerance);
        CHECK(found.least_mean > 1 - (follows ? followed_mean_tolerance : tolerance));
        CHECK(found.greatest_mean < 1 + (follows ? followed_mean_tolerance : tolerance));
      };
      check("adam", [](const auto& g, auto t) { return onebit::adam(g, t); });
      const onebit::gather_scatter<onebit::identity> exact;
      check("one_bit_adam", [&](const auto& g, auto t) {
        return onebit::one_bit_adam(g, t, {.freeze = {.after = warm_up}}, exact);
      });
      check("zero_one_adam", [&](const auto& g, auto t) {
        return onebit::zero_one_adam(
            g, t, {.schedule = {.kappa = 2, .warmup_steps = warm_up, .doubling_steps = 20}}, exact);
      });
      // coefficients of 1, since only the direction is in question
      const onebit::lamb_options lamb{.min_coeff = 1, .max_coeff = 1};
      check("lamb", [&](const auto& g, auto t) { return onebit::lamb(g, t, lamb); });
    }
  }
}

TEST_CASE("start-up: with the default's larger scales, elements go Adam's way in Adam's time") {
  const moves found = changes(3, 200, [](auto groups, auto transport) {
    for (auto& g : groups) g.weight_decay = 0, g.lr_factor = 1;
    return onebit::one_bit_adam(groups, transport, {});
  });
  const double factor = onebit::l2_scale::normal_factor;  // in each of two phases
  CHECK(found.greatest < factor * factor * (1 + followed_tolerance));
  // what residuals of two phases hold in the end, at most max_step each, comes later
  CHECK(found.least_mean > 1 - followed_mean_tolerance - 4.0 / 200);
  CHECK(found.greatest_mean < 1 + followed_mean_tolerance + 4.0 / 200);
}

TEST_CASE("start-up: the papers' form is there, and far from Adam's step") {
  const auto papers = [](const auto& groups, auto transport) {
    const auto form = onebit::papers::one_bit_adam(20);
    return onebit::one_bit_adam(groups, transport, form.options, form.collective);
  };
  // 1 / sqrt(1 - 0.999^20), once m has come up
  CHECK(changes(2, 200, papers).greatest == doctest::Approx(7.1).epsilon(0.01));
}

TEST_CASE("max_step: small gradients that share a scale with large ones move by a bounded step") {
  // gradients from 1e-6 to 1 in one tensor, with noise
  const auto farthest = [](const auto& make) {
    return on_ranks(2, [&](onebit::threads t) {
      training<> data({512});
      data.params[0].assign(512, 0.0F);
      std::vector<onebit::param_group<>> g(1);
      g[0].tensors.push_back({data.params[0], data.grads[0]});
      auto o = make(g, t);
      double far = 0;
      for (std::uint64_t s = 0; s < 100; ++s) {
        for (std::size_t i = 0; i < 512; ++i) {
          const std::uint64_t seed = (s * 2 + static_cast<std::uint64_t>(t.rank())) * 512 + i;
          const float size = std::pow(10.0F, -6 * static_cast<float>(i) / 511);
          data.grads[0][i] = size * (0.2F + onebit_test::noise(seed));
        }
        const auto before = data.params[0];
        CHECK_FALSE(o.step(lr).skipped);
        for (std::size_t i = 0; i < 512; ++i) {
          far = std::max(far, std::fabs(static_cast<double>(data.params[0][i] - before[i])) /
                                  static_cast<double>(lr));
        }
      }
      return far;
    })[0];
  };
  const onebit::gather_scatter one_scale{onebit::sign<>{onebit::granularity::layer()}};
  // without a bound: the papers' forms, which send momenta
  const auto one_bit = [&](double bound) {
    return [&, bound](const auto& g, auto t) {
      return onebit::one_bit_adam(
          g, t, {.freeze = {.after = 20}, .refreshes = bound > 0 ? 16U : 0U, .max_step = bound},
          one_scale);
    };
  };
  const auto zero_one = [&](double bound) {
    return [&, bound](const auto& g, auto t) {
      return onebit::zero_one_adam(g, t,
                                   {.schedule = {.warmup_steps = 20, .max_interval = 1},
                                    .max_step = bound,
                                    .own_variance = bound > 0},
                                   one_scale);
    };
  };
  CHECK(farthest([](const auto& g, auto t) { return onebit::adam(g, t); }) < 3);
  CHECK(farthest(one_bit(0)) > 1000);
  CHECK(farthest(zero_one(0)) > 100);
  // rounding: 1e-3 of a parameter of up to 1 is known to 6e-5 of it
  for (const double bound : {10.0, 2.5}) {
    CHECK(farthest(one_bit(bound)) < bound * 1.001 / (1 - std::pow(0.9, 21)));  // m's correction
    CHECK(farthest(zero_one(bound)) < bound * 1.001);
  }
}

TEST_CASE("max_step: what is cut is sent later, so that small neighbours go Adam's way") {
  // one element in four has gradients of a hundredth of those that it shares a scale with
  const auto way = [](int n_ranks, const auto& make) {
    return on_ranks(n_ranks, [&](onebit::threads t) {
      std::vector<float> x(512), own(512);
      std::vector<onebit::param_group<>> g(1);
      g[0].tensors.push_back({x, own});
      auto o = make(g, t);
      for (std::uint64_t s = 0; s < 400; ++s) {
        for (std::size_t i = 0; i < x.size(); ++i) {
          const std::uint64_t seed = (s * 8 + static_cast<std::uint64_t>(t.rank())) * 512 + i;
          own[i] = (i % 4 == 0 ? 0.01F : 1.0F) * (0.5F + onebit_test::noise(seed));
        }
        CHECK_FALSE(o.step(lr).skipped);
      }
      double small = 0;
      for (std::size_t i = 0; i < x.size(); i += 4) small -= static_cast<double>(x[i]);
      return small;
    })[0];
  };
  for (const int n_ranks : {2, 4}) {
    const double whole = way(n_ranks, [](const auto& g, auto t) { return onebit::adam(g, t); });
    const auto check = [&](const auto& make) {
      // noise goes to and fro by 2 lr in each of the last ten steps or so, of some 350: 6%; in 0/1
      // Adam in as many exchanges of several steps
      CHECK(way(n_ranks, make) == doctest::Approx(whole).epsilon(0.1));
    };
    const onebit::sign<> per_tensor{onebit::granularity::layer()};
    check([&](const auto& g, auto t) {
      return onebit::one_bit_adam(g, t, {}, onebit::gather_scatter{per_tensor});
    });
    check([&](const auto& g, auto t) {
      return onebit::one_bit_adam(g, t, {}, onebit::all_gather{per_tensor});
    });
    check([&](const auto& g, auto t) {
      return onebit::one_bit_adam(g, t, {}, onebit::hierarchical{per_tensor, n_ranks / 2});
    });
    check([&](const auto& g, auto t) {
      return onebit::zero_one_adam(
          g, t, {.schedule = {.warmup_steps = 10, .doubling_steps = 100, .also_every = 400}},
          onebit::gather_scatter{per_tensor});
    });
  }
}

TEST_CASE("max_step: a tensor that rests does not bound those that share its scale") {
  (void)on_ranks(2, [](onebit::threads t) {
    training<> data({64, 64});
    const onebit::gather_scatter one_scale{onebit::sign<>{onebit::granularity::vector()}};
    auto o = onebit::zero_one_adam(
        data.groups(), t, {.schedule = {.warmup_steps = 20, .max_interval = 1}}, one_scale);
    for (std::uint64_t s = 0; s < 100; ++s) {
      for (auto& g : data.grads) g.assign(64, 1.0F);
      if (s >= 50) o.rest(0);
      const auto before = data.params;
      CHECK(o.step(lr).phase != onebit::phase::local);
      CHECK((data.params[0] == before[0]) == (s >= 50));
      for (std::size_t i = 0; i < 64; ++i) {
        const auto moved = static_cast<double>(before[1][i] - data.params[1][i]);
        CHECK(moved == doctest::Approx(static_cast<double>(lr)).epsilon(0.01));
      }
    }
    return 0;
  });
}
