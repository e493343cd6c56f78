// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Moments taken over from another optimizer.

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/onebit.hpp>
#include <string>
#include <vector>

#include "../support/training.hpp"

using namespace onebit_test;

TEST_CASE("start_from: moments of another Adam, and its step number [start_from]") {
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
      second.warn_with(nullptr);  // of the dense steps that follow
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

namespace {

/// A regression to noisy targets: gradients x - target + noise, another on each rank and step.
void pull(training<>& data, int rank, std::uint64_t step) {
  for (std::size_t t = 0; t < data.params.size(); ++t) {
    for (std::size_t i = 0; i < data.params[t].size(); ++i) {
      const std::uint64_t place = t * 1000003 + i;
      const std::uint64_t here = step * 4 + static_cast<std::uint64_t>(rank);
      data.grads[t][i] = data.params[t][i] - noise(place + 77) + 0.5F * noise(here * 7919 + place);
    }
  }
}

double distance(const std::vector<std::vector<float>>& a,
                const std::vector<std::vector<float>>& b) {
  double sum = 0, n = 0;
  for (std::size_t t = 0; t < a.size(); ++t) {
    for (std::size_t i = 0; i < a[t].size(); ++i, ++n) {
      const double d = static_cast<double>(a[t][i]) - static_cast<double>(b[t][i]);
      sum += d * d;
    }
  }
  return std::sqrt(sum / n);
}

/// Trains to step 60, then by the same optimizer, or by another one from its moments (or from no
/// moments), to 120. Returns the parameters of rank 0 after 60 and after 120 steps.
enum class from : std::uint8_t { itself, moments, nothing };
template <class Make>
std::vector<std::vector<std::vector<float>>> in_two(const Make& make, from what, int n_ranks = 2) {
  return on_ranks(n_ranks, [&](onebit::threads t) {
    training<> data;
    auto first = make(data.groups(), t, 5);
    const auto train_to = [&](auto& o, std::uint64_t begin, std::uint64_t end) {
      for (std::uint64_t s = begin; s < end; ++s) {
        pull(data, t.rank(), s);
        CHECK_FALSE(o.step(0.003F).skipped);
      }
    };
    train_to(first, 0, 60);
    while (first.steps() % 8 != 4) train_to(first, first.steps(), first.steps() + 1);
    const auto middle = data.params;
    if (what == from::itself) {
      train_to(first, 60, 120);
      return std::vector{middle, data.params};
    }
    const auto moments = first.moments();
    CHECK(data.params == middle);
    auto second = make(data.groups(), t, 0);
    if (what == from::moments) second.start_from({moments.begin(), moments.end()}, first.steps());
    if (what == from::nothing) {
      std::vector<onebit::tensor_moments> none;
      for (const auto& p : data.params) {
        none.push_back({std::vector<float>(p.size()), std::vector<float>(p.size(), 1e-2F)});
      }
      second.start_from({none.begin(), none.end()}, 60);
    }
    train_to(second, 60, 120);
    return std::vector{middle, data.params};
  })[0];
}

}  // namespace

TEST_CASE(
    "moments: of Adam and LAMB they are its own; from them another goes on bit for bit "
    "[start_from]") {
  const auto check = [](const auto& make) {
    for (const int n : {1, 2}) {
      const auto whole = in_two(make, from::itself, n), parts = in_two(make, from::moments, n);
      CHECK(whole[0] == parts[0]);
      CHECK(distance(whole[1], parts[1]) < 1e-7);  // beta^60 is a power, or a product
    }
  };
  check([](const auto& g, auto t, std::uint64_t) { return onebit::adam(g, t); });
  check([](const auto& g, auto t, std::uint64_t) { return onebit::lamb(g, t); });
}

TEST_CASE(
    "moments: of compressed steps; from them another goes on near to not stopping [start_from]") {
  // by the way of these 60 steps; `anew`: from moments of nothing
  const auto check = [](const auto& make, double most, double least_anew) {
    const auto whole = in_two(make, from::itself), parts = in_two(make, from::moments),
               anew = in_two(make, from::nothing);
    CHECK(whole[0] == parts[0]);
    const double moved = distance(whole[1], whole[0]), apart = distance(whole[1], parts[1]);
    CAPTURE(moved);
    CAPTURE(apart);
    CAPTURE(distance(whole[1], anew[1]));
    CHECK(apart < most * moved);
    CHECK(distance(whole[1], anew[1]) > least_anew * moved);
  };
  check(
      [](const auto& g, auto t, std::uint64_t after) {
        return onebit::one_bit_adam(g, t, {.freeze = {.after = after}});
      },
      0.1, 0.3);
  check(
      [](const auto& g, auto t, std::uint64_t after) {
        return onebit::one_bit_adam(g, t, {.freeze = {.after = after}, .refreshes = 0});
      },
      0.15, 0.5);
  check(
      [](const auto& g, auto t, std::uint64_t after) {
        return onebit::one_bit_lamb(g, t, {.freeze = {.after = after == 0 ? 1 : after}});
      },
      0.1, 0.15);
}

TEST_CASE(
    "moments: of noise without compression v is Adam's, and m is the mean gradient's average "
    "[start_from]") {
  // the exact messages of identity: what remains is that ranks divide before they average
  const auto run = [](const auto& make) {
    return on_ranks(4, [&](onebit::threads t) {
      training<> data;
      auto o = make(data.groups(), t);
      for (std::uint64_t s = 0; s < 100; ++s) {
        pull(data, t.rank(), s);
        (void)o.step(1e-5F);
      }
      return o.moments();
    });
  };
  const auto adam = run([](const auto& g, auto t) { return onebit::adam(g, t); });
  const auto one_bit = run([](const auto& g, auto t) {
    return onebit::one_bit_adam(g, t, {}, onebit::gather_scatter<onebit::identity>{});
  });
  const auto zero_one = run([](const auto& g, auto t) {
    return onebit::zero_one_adam(g, t, {.schedule = {.max_interval = 1}},
                                 onebit::gather_scatter<onebit::identity>{});
  });
  for (const auto* ours : {&one_bit, &zero_one}) {
    for (std::size_t r = 1; r < 4; ++r) {
      CHECK((*ours)[r][2].m == (*ours)[0][2].m);
      CHECK((*ours)[r][2].v == (*ours)[0][2].v);
    }
    double sum_v = 0, their_v = 0, product = 0, m = 0, their_m = 0;
    for (std::size_t i = 0; i < 5000; ++i) {
      const auto& a = adam[0][2];
      const auto& b = (*ours)[0][2];
      sum_v += static_cast<double>(b.v[i]);
      their_v += static_cast<double>(a.v[i]);
      product += static_cast<double>(a.m[i]) * static_cast<double>(b.m[i]);
      m += static_cast<double>(b.m[i]) * static_cast<double>(b.m[i]);
      their_m += static_cast<double>(a.m[i]) * static_cast<double>(a.m[i]);
    }
    CAPTURE(sum_v / their_v);
    CAPTURE(product / std::sqrt(m * their_m));
    CAPTURE(m / their_m);
    CHECK(std::fabs(sum_v / their_v - 1) < 0.1);
    CHECK(product / std::sqrt(m * their_m) > 0.98);
    CHECK(std::fabs(m / their_m - 1) < 0.15);
  }
}

TEST_CASE("moments: refused between begin() and step(), and after a local step [start_from]") {
  (void)on_ranks(2, [](onebit::threads t) {
    training<> data;
    auto o = onebit::zero_one_adam(data.groups(), t, {});
    while (train(o, data).phase != onebit::phase::local) {
    }
    CHECK(thrown<onebit::invalid_input>([&] { (void)o.moments(); }) == contains{"moments: after "});
    o.begin(0.01F);
    CHECK(thrown<onebit::invalid_input>([&] { (void)o.moments(); }) == contains{"has begun"});
    (void)o.step(0.01F);
    return 0;
  });
}

TEST_CASE(
    "start_from: the count is of the squares in v, not of the steps of the old job [start_from]") {
  // Gradients of 1 in DeepSpeed's 1-bit Adam with freeze_step 40, at its step 60: its first step
  // learns nothing, so v has averaged 39 squares and m 59 gradients. Adam's step is one rate.
  constexpr int squares = 39, gradients = 59;
  const std::vector<float> m(100, static_cast<float>(1 - std::pow(0.9, gradients))),
      v(100, static_cast<float>(1 - std::pow(0.999, squares)));
  onebit::one_bit_adam_options options = frozen_after(0);
  const onebit::gather_scatter exact{onebit::sign<>{onebit::granularity::layer(), 1}};
  const auto first_step = [&](std::uint64_t steps) {
    return on_ranks(2, [&](onebit::threads t) {
      std::vector<float> x(100), g(100, 1.0F);
      std::vector<onebit::param_group<>> groups(1);
      groups[0].tensors.push_back({x, g});
      auto o = onebit::one_bit_adam(groups, t, options, exact);
      o.start_from({{m, v}}, steps);
      CHECK(o.steps() == 0);
      CHECK(o.step(0.01F).phase == onebit::phase::compressed);
      for (const float element : x) REQUIRE(element == x[0]);
      return -x[0] / 0.01F;
    })[0];
  };
  CHECK(std::fabs(first_step(squares) - 1) < 0.02F);  // m's correction is for 39: 1 / (1 - 0.9^39)
  CHECK(std::fabs(first_step(60) - 1.23F) < 0.02F);   // what the wrong count does
}

TEST_CASE("start_from: tensors without state, or with fewer steps, step as in Adam [start_from]") {
  constexpr std::uint64_t of_new = 0, of_thawed = 100;  // gradients so far, all 1
  for (const std::uint64_t steps : {100U, 1000U, 100000U}) {
    CAPTURE(steps);
    onebit::run_threads(2, [&](onebit::threads t) {
      constexpr std::size_t n = 40;
      const auto moments_after = [&](std::uint64_t gradients) {
        const auto k = static_cast<double>(gradients);
        return onebit::tensor_moments{
            std::vector<float>(n, static_cast<float>(1 - std::pow(0.9, k))),
            std::vector<float>(n, static_cast<float>(1 - std::pow(0.999, k)))};
      };
      const auto old = moments_after(steps), none = moments_after(of_new),
                 thawed = moments_after(of_thawed);
      std::vector<std::vector<float>> x(3, std::vector<float>(n, 1)), g = x;
      std::vector<onebit::param_group<>> groups(1);
      for (std::size_t i = 0; i < 3; ++i) groups[0].tensors.push_back({x[i], g[i]});
      auto o = onebit::adam(groups, t);
      o.start_from({old, none, {thawed.m, thawed.v, of_thawed}}, steps);
      for (int s = 0; s < 20; ++s) {
        const auto before = x;
        for (auto& gradients : g) gradients.assign(n, 1);
        CHECK_FALSE(o.step(0.01F).skipped);
        for (std::size_t i = 0; i < 3; ++i) {
          CHECK(before[i][0] - x[i][0] == doctest::Approx(0.01).epsilon(1e-3));
        }
      }
    });
  }
}

TEST_CASE("start_from: ranks that give other steps of a tensor are told apart [start_from]") {
  const auto told = on_ranks(2, [](onebit::threads t) {
    std::vector<float> x(40, 1), g(40, 1), m(40, 1), v(40, 1);
    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({x, g});
    auto o = onebit::adam(groups, t);
    o.start_from({{m, v, t.rank() == 0 ? 5U : 6U}}, 10);
    return thrown<onebit::rank_mismatch>([&] { (void)o.step(0.01F); });
  });
  for (const auto& text : told) CHECK(text == contains{"start_from"});
}

TEST_CASE("start_from: dense steps that follow are told, once, by rank 0 [start_from]") {
  static std::vector<std::string> told;
  const auto start = [](int n_ranks, const auto& make) {
    told.clear();
    onebit::run_threads(n_ranks, [&](onebit::threads t) {
      training<> data;
      auto o = make(data.groups(), t);
      o.warn_with(t.rank() == 0 ? [](const std::string& text) { told.push_back(text); }
                                : [](const std::string&) { FAIL("told by another rank"); });
      std::vector<onebit::given_moments> moments;
      for (const auto& p : data.grads) moments.push_back({p, p});
      o.start_from(moments, 39);
    });
    return told;
  };
  const auto one_bit = [](std::uint64_t after) {
    return
        [after](const auto& g, auto t) { return onebit::one_bit_adam(g, t, frozen_after(after)); };
  };
  const std::vector<std::string> texts = start(2, one_bit(40));
  REQUIRE(texts.size() == 1);
  CHECK(texts[0] == contains{"of 39 steps, and freeze.after counts from here on: 40 dense steps"});
  CHECK(start(2, one_bit(0)).empty());
  CHECK(start(1, one_bit(40)).empty());  // a single rank compresses nothing
  CHECK(start(2, [](const auto& g, auto t) { return onebit::adam(g, t); }).empty());
}

TEST_CASE("moments: after a freeze that came early, m is Adam's, also where it exceeds sqrt(v)") {
  // Constant gradients without bias correction: v of 40 steps is 0.04 of a square, m after 60 steps
  // nearly the gradient.
  const auto after_60 = [](const auto& make) {
    return on_ranks(2, [&](onebit::threads t) {
      std::vector<float> x(256, 1.0F), g(256);
      std::vector<onebit::param_group<>> groups(1);
      groups[0].tensors.push_back({x, g});
      auto o = make(groups, t);
      o.warn_with(nullptr);  // of the short warm-up
      for (int step = 0; step < 60; ++step) {
        for (std::size_t i = 0; i < g.size(); ++i) {
          g[i] = (i % 2 == 0 ? 1.0F : -1.0F) * (t.rank() == 0 ? 1.5F : 0.5F);
        }
        CHECK_FALSE(o.step(0.001F).skipped);
      }
      return o.moments();
    });
  };
  const auto adam = after_60(
      [](const auto& g, auto t) { return onebit::adam(g, t, {.bias_correction = false}); });
  const onebit::gather_scatter exact{onebit::sign<>{onebit::granularity::layer(), 1}};
  const auto check = [&](double max_step) {
    CAPTURE(max_step);
    const auto frozen = after_60([&](const auto& g, auto t) {
      auto options = frozen_after(40);
      options.adam.bias_correction = false;
      options.max_step = max_step;
      return onebit::one_bit_adam(g, t, options, exact);
    });
    for (std::size_t rank = 0; rank < 2; ++rank) {
      for (std::size_t i = 0; i < 256; ++i) {
        const float m = frozen[rank][0].m[i];
        REQUIRE(std::fabs(m - adam[rank][0].m[i]) < 0.01F);
        REQUIRE(std::fabs(m) > 4 * std::sqrt(frozen[rank][0].v[i]));
      }
    }
  };
  check(0);    // messages are momenta
  check(100);  // they are directions, here of 5
}

TEST_CASE("moments: right after a refresh, m of the elements that it woke is Adam's") {
  // Element 7 has its first gradients, which nearly cancel over the ranks, after the warm-up's
  // start: until the refresh nothing is sent for it.
  const auto at_refresh = on_ranks(2, [](onebit::threads t) {
    std::vector<float> x(64, 1.0F), g(64);
    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({x, g});
    auto o = onebit::one_bit_adam(groups, t, {});
    double m = 0;  // the average of the mean gradient's
    for (int step = 0; step < 40; ++step) {
      for (int i = 0; i < 64; ++i) {
        g[static_cast<std::size_t>(i)] = static_cast<float>(i % 2 == 0 ? -1 : 1) *
                                             (0.5F + 0.02F * static_cast<float>(i)) *
                                             (1 + 0.3F * static_cast<float>(t.rank())) +
                                         0.05F * static_cast<float>((step * 7 + i * 3) % 5);
      }
      g[7] = step < 5 ? 0.0F : (step + t.rank()) % 2 == 0 ? -0.1F : 0.11F;
      m = 0.9 * m + (step < 5 ? 0 : 0.1 * 0.005);
      if (!o.step(0.001F).refreshed || step < 5) continue;
      const auto woken = o.moments()[0];
      g.assign(64, 0.0F);
      (void)o.step(0.001F);
      const auto next = o.moments()[0];
      return std::vector<double>{m, static_cast<double>(woken.m[7]), static_cast<double>(next.m[7]),
                                 static_cast<double>(woken.v[7])};
    }
    FAIL("no refresh");
    return std::vector<double>{};
  });
  CHECK(at_refresh[0] == at_refresh[1]);
  const double adam = at_refresh[0][0], m = at_refresh[0][1], next = at_refresh[0][2];
  CHECK(at_refresh[0][3] > 0);
  CAPTURE(adam);
  CAPTURE(m);
  CHECK(std::fabs(m / adam - 1) < 0.1);
  CAPTURE(next);
  CHECK(std::fabs(next / (0.9 * m) - 1) < 0.1);  // a step without gradients
}
