// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// 1-bit Adam's v, which follows from the ranks' own squares, beside the v of the mean gradient,
// computed here in double.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <onebit/onebit.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "../../examples/int8_per_tile.hpp"
#include "../support/training.hpp"

using onebit_test::noise;
using onebit_test::on_ranks;

namespace {

constexpr std::size_t n_shown = 6000;  // two tiles
constexpr double followed_beta2 = 0.95;

/// The v of the last refresh, as a field.
template <class Optimizer>
auto followed_v(const Optimizer& o) {
  return onebit::detail::own_squares_field{o.rule().agreed_variance(), nullptr, nullptr};
}

/// The element's gradient on a rank: signal + noise, of a size that differs by element, and grows
/// or falls by ten after step 150.
struct shown_gradients {
  float signal, noise;
  double later = 1;
  float apart = 0;  ///< added on even ranks, subtracted on odd ones: the mean has none of it
  [[nodiscard]] float at(std::uint64_t step, int rank, std::size_t i) const {
    const float size = 0.5F + static_cast<float>(i % 7) / 7;
    const float change = step < 150 ? 1.0F : static_cast<float>(later);
    const auto seed = (step * 16 + static_cast<std::uint64_t>(rank)) * 8192 + i;
    return size * (change * (signal + noise * onebit_test::noise(seed)) +
                   (rank % 2 == 0 ? apart : -apart));
  }
};

/// The square roots of v of the library over those of the mean gradients, in order, at the end.
std::vector<double> root_ratios(int n_ranks, const shown_gradients& g, std::uint64_t refreshes,
                                double max_grad_norm = 0) {
  const auto of_ranks = on_ranks(n_ranks, [&](onebit::threads t) {
    std::vector<float> x(n_shown), own(n_shown);
    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({x, own});
    onebit::one_bit_adam_options options;
    options.adam.beta2 = followed_beta2;
    options.adam.max_grad_norm = max_grad_norm;
    options.refreshes = refreshes;
    auto o = onebit::one_bit_adam(groups, t, options);
    o.warn_with(nullptr);
    std::vector<double> v(n_shown), before(n_shown);
    double bias = 1;
    std::vector<double> found;
    for (std::uint64_t step = 0; step < 400; ++step) {
      for (std::size_t i = 0; i < n_shown; ++i) before[i] = v[i] / (1 - bias);
      for (std::size_t i = 0; i < n_shown; ++i) {
        double mean = 0;
        for (int r = 0; r < n_ranks; ++r) mean += static_cast<double>(g.at(step, r, i)) / n_ranks;
        v[i] = followed_beta2 * v[i] + (1 - followed_beta2) * mean * mean;
        own[i] = g.at(step, t.rank(), i);
      }
      const auto report = o.step(1e-3F);
      CHECK_FALSE(report.skipped);
      if (!report.refreshed) {
        bias *= followed_beta2;
        continue;
      }
      found.clear();  // v was refreshed: of the gradients before this step
      const auto followed = o.copy(followed_v(o), 0);
      for (std::size_t i = 0; i < n_shown; ++i) {
        found.push_back(std::sqrt(static_cast<double>(followed[i]) / (1 - bias) / before[i]));
      }
      bias *= followed_beta2;
    }
    std::sort(found.begin(), found.end());
    return found;
  });
  for (const auto& r : of_ranks) CHECK(r == of_ranks[0]);
  return of_ranks[0];
}

}  // namespace

TEST_CASE("v follows: from the ranks' own squares it is that of the mean gradient") {
  const auto check = [](int ranks, const shown_gradients& g, double tolerance) {
    CAPTURE(ranks);
    CAPTURE(g.signal);
    CAPTURE(g.later);
    const auto found = root_ratios(ranks, g, 16);
    REQUIRE(found.size() == n_shown);
    CHECK(found[n_shown / 2] == doctest::Approx(1).epsilon(tolerance));
    // an element's v is an average of some 40 squares, which are other squares on either side; what
    // it takes in is rounded to powers of two, by a quarter of it: 40% of v, every ten steps
    CHECK(found[n_shown / 100] > (g.signal > 0 ? 0.75 : 0.5));
    CHECK(found[n_shown - n_shown / 100] < (g.signal > 0 ? 1.3 : 2.1));
  };
  for (const double later : {1.0, 0.1, 10.0}) {
    // all ranks see the same
    check(3, {1, 0, later}, 0.02);
    check(3, {0, 1, later}, 0.06);  // noise: a third of the squares is left
    check(2, {0.5F, 0.5F, later}, 0.06);
    check(2, {1, 0, later, 3}, 0.05);  // each rank pulls its own way
  }
}

TEST_CASE("v follows: not without refreshes, and where the gradients are clipped as they are") {
  const auto frozen = root_ratios(2, {1, 0, 0.1}, 0);
  CHECK(frozen.empty());
  // clipped, every gradient has one norm, whatever its size was
  double squares = 0;
  for (std::size_t i = 0; i < n_shown; ++i) {
    const auto g = static_cast<double>(shown_gradients{1, 0, 0.1}.at(399, 0, i));
    squares += g * g;
  }
  const auto clipped = root_ratios(2, {1, 0, 0.1}, 16, 1e-3);
  REQUIRE(clipped.size() == n_shown);
  CHECK(clipped[n_shown / 2] == doctest::Approx(1e-3 / std::sqrt(squares)).epsilon(0.01));
}

TEST_CASE("v follows: directions are bounded from the first compressed step on") {
  for (const std::uint64_t large_at : {10, 11, 12, 40}) {
    CAPTURE(large_at);
    const auto of_ranks = on_ranks(2, [&](onebit::threads t) {
      std::vector<float> x(100), own(100);
      std::vector<onebit::param_group<>> groups(1);
      groups[0].tensors.push_back({x, own});
      auto o = onebit::one_bit_adam(groups, t, {});
      for (std::uint64_t step = 0; step <= large_at; ++step) {
        for (std::size_t i = 0; i < x.size(); ++i) own[i] = noise(step * 256 + i);
        if (step == large_at && t.rank() == 0) own[5] = 1e6F;
        CHECK_FALSE(o.step(1e-3F).skipped);
      }
      return o.copy(o.exchange().sender().residual(o.active()), 0)[5];
    });
    // (1 - beta1) W sqrt((1 - beta2^t) / (1 - beta2)) is 1.3 in step 40, and something is left from
    // before
    CHECK(std::fabs(of_ranks[0]) < 3);
  }
}

namespace {

/// The weight with which a rank takes in the squares of steps 161 to 168, between two
/// refreshes, of 4 ranks with independent noise; the first `n_larger` of 4096 elements are larger
/// by ten from step 160 on.
double weight_of_own_squares(std::size_t n_larger) {
  constexpr std::size_t n = 4096;
  constexpr double beta2 = 0.999;
  const auto of_ranks = on_ranks(4, [&](onebit::threads t) {
    std::vector<float> x(n), own(n);
    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({x, own});
    auto o = onebit::one_bit_adam(groups, t, {});
    const auto sum_of_squares = [&] {
      double sum = 0;
      const onebit::detail::own_squares_field since{o.rule().own_squares().since, nullptr, nullptr};
      for (const float square : o.copy(since, 0)) sum += static_cast<double>(square);
      return sum;
    };
    double before = 0, squares = 0;
    for (std::uint64_t step = 0; step <= 168; ++step) {
      if (step == 161) before = sum_of_squares();
      before *= step < 161 ? 1 : beta2;
      squares *= beta2;
      for (std::size_t i = 0; i < n; ++i) {
        const auto seed = (step * 16 + static_cast<std::uint64_t>(t.rank())) * 8192 + i;
        own[i] = noise(seed) * (step >= 160 && i < n_larger ? 10.0F : 1.0F);
        if (step >= 161) squares += (1 - beta2) * static_cast<double>(own[i]) * own[i];
      }
      const onebit::report r = o.step(1e-3F);
      CHECK_FALSE(r.skipped);
      if (step >= 160) CHECK_FALSE(r.refreshed);
    }
    return (sum_of_squares() - before) / squares;
  });
  return of_ranks[1];
}

}  // namespace

TEST_CASE("v follows: a rank's squares weigh rho where its gradients grow at once, else rho^2") {
  const double usual = weight_of_own_squares(0);
  CHECK(usual > 0.045);  // rho is about 1/4
  CHECK(usual < 0.085);
  CHECK(weight_of_own_squares(4096) == doctest::Approx(std::sqrt(usual)).epsilon(0.01));
  // some rows that grow do not show in the tensor
  CHECK(weight_of_own_squares(64) == doctest::Approx(usual).epsilon(0.01));
}

TEST_CASE("v follows: elements that first get a gradient after the dense steps") {
  const auto moved = on_ranks(2, [](onebit::threads t) {
    std::vector<float> x(n_shown), own(n_shown);
    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({x, own});
    auto o = onebit::one_bit_adam(groups, t, {});
    for (std::uint64_t step = 0; step < 200; ++step) {
      for (std::size_t i = 0; i < n_shown; ++i) {
        const bool comes = i % 3 == 0 || (i % 3 == 1 && step >= 40 && t.rank() == 1);
        own[i] = comes ? 1.0F : 0.0F;
      }
      CHECK_FALSE(o.step(1e-3F).skipped);
    }
    o.verify();  // the squares are each rank's own, and no difference
    return x;
  });
  CHECK(moved[0] == moved[1]);
  for (std::size_t i = 0; i < n_shown; ++i) {
    if (i % 3 == 0) CHECK(moved[0][i] < -0.15F);
    if (i % 3 == 1) CHECK(moved[0][i] < -0.05F);  // one rank's squares wake it on both
    if (i % 3 == 2) CHECK(moved[0][i] == 0.0F);
  }
}

TEST_CASE("v follows: what each of three ranks has kept counts on two by its mean") {
  constexpr std::uint64_t saved_at = 43;
  const auto make = [](auto& x, auto& g, onebit::threads t) {
    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({x, g});
    onebit::one_bit_adam_options options;
    options.refreshes = 1;  // in steps 19, 38, 76
    return onebit::one_bit_adam(groups, t, options);
  };
  // the first ten elements: of rank 2 alone, and only just before the checkpoint
  const auto fill = [](std::vector<float>& g, int rank, std::uint64_t step) {
    for (std::size_t i = 0; i < g.size(); ++i) {
      g[i] = i >= 10 || (rank == 2 && step >= 40 && step < 42) ? 1.0F : 0.0F;
    }
  };
  std::vector<std::string> files(3);
  const auto params = on_ranks(3, [&](onebit::threads t) {
    std::vector<float> x(n_shown), g(n_shown);
    auto o = make(x, g, t);
    for (std::uint64_t step = 0; step < saved_at; ++step) {
      fill(g, t.rank(), step);
      (void)o.step(1e-3F);
    }
    std::ostringstream out;
    o.save(out);
    files[static_cast<std::size_t>(t.rank())] = out.str();
    return x;
  });
  onebit::run_threads(2, [&](onebit::threads t) {
    std::vector<float> x(n_shown), g(n_shown);
    auto o = make(x, g, t);
    x = params[0];
    o.load_old_job(3,
                   [&](std::size_t r) { return std::make_unique<std::istringstream>(files[r]); });
    CHECK((o.active().words[0] & 0x3FFU) == 0);
    for (std::uint64_t step = saved_at; step < 77; ++step) {
      fill(g, t.rank(), step);
      CHECK_FALSE(o.step(1e-3F).skipped);
    }
    CHECK((o.active().words[0] & 0x3FFU) == 0x3FFU);
    o.verify();
  });
  onebit::run_threads(3, [&](onebit::threads t) {
    std::vector<float> x(n_shown), g(n_shown);
    auto o = make(x, g, t);
    x = params[0];
    const std::string& whole = files[static_cast<std::size_t>(t.rank())];
    std::istringstream cut(whole.substr(0, whole.size() - 40));
    CHECK_THROWS_AS(o.load(cut), onebit::checkpoint_error);
    CHECK(o.steps() == 0);
  });
}

TEST_CASE("v follows: down to nothing where gradients end, and no element dies of it") {
  onebit::run_threads(2, [](onebit::threads t) {
    std::vector<float> x(64), g(64);
    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({x, g});
    onebit::one_bit_adam_options options;
    options.adam.beta2 = 0.9;
    auto o = onebit::one_bit_adam(groups, t, options);
    for (std::uint64_t step = 0; step < 1600; ++step) {
      g.assign(64, step < 60 ? 1.0F : 0.0F);
      (void)o.step(1e-3F);
      if (step % 100 != 99) continue;
      const auto v = o.copy(followed_v(o), 0);
      for (const float of : v) CHECK(std::sqrt(of) < (step < 1000 ? 0.5F : 1e-6F));
    }
  });
}

TEST_CASE("v follows: a rank that does not refresh where the others do is found on all") {
  const auto told = on_ranks(2, [](onebit::threads t) {
    std::vector<float> x(64), g(64);
    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({x, g});
    const onebit::custom_schedule own([rank = t.rank()](std::uint64_t step, float) {
      const bool dense = step < 10, refresh = step == 12 && rank == 0;
      return onebit::due{.average = dense || refresh, .exchange = !dense};
    });
    onebit::optimizer o("own", groups, t, onebit::adam_rule({}, onebit::host()), own,
                        onebit::gather_scatter<onebit::sign<>>{});
    for (std::uint64_t step = 0; step < 12; ++step) {
      g.assign(64, 1.0F);
      CHECK_FALSE(o.step(1e-3F).skipped);
    }
    g.assign(64, 1.0F);
    try {
      (void)o.step(1e-3F);
    } catch (const onebit::rank_mismatch&) {
      return std::string("found");
    }
    return std::string("nothing");
  });
  for (const auto& text : told) CHECK(text == "found");
}

TEST_CASE("v follows: 1-bit LAMB finds the norms of the mean gradients' directions") {
  const shown_gradients of{0.3F, 1};
  const auto norms = on_ranks(3, [&](onebit::threads t) {
    std::vector<float> x(n_shown, 1.0F), own(n_shown);
    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({x, own});
    onebit::one_bit_lamb_options options;
    options.lamb.beta2 = followed_beta2;
    auto o = onebit::one_bit_lamb(groups, t, options);
    std::vector<double> m(n_shown), v(n_shown);
    std::vector<double> found;  // over what they are
    double exact = 0;
    for (std::uint64_t step = 0; step < 300; ++step) {
      const auto seen = static_cast<double>(step + 1);
      exact = 0;
      for (std::size_t i = 0; i < n_shown; ++i) {
        double mean = 0;
        for (int r = 0; r < 3; ++r) mean += static_cast<double>(of.at(step, r, i)) / 3;
        m[i] = 0.9 * m[i] + 0.1 * mean;
        v[i] = followed_beta2 * v[i] + (1 - followed_beta2) * mean * mean;
        const double u = m[i] / (1 - std::pow(0.9, seen)) /
                         std::sqrt(v[i] / (1 - std::pow(followed_beta2, seen)));
        exact += u * u;
        own[i] = of.at(step, t.rank(), i);
      }
      const auto report = o.step(1e-5F);
      CHECK_FALSE(report.skipped);
      if (step > 50 && report.phase == onebit::phase::compressed && report.collectives > 2) {
        found.push_back(static_cast<double>(o.rule().layers()[0].direction) / std::sqrt(exact));
      }
    }
    std::sort(found.begin(), found.end());
    return found;
  });
  for (const auto& rank : norms) CHECK(rank == norms[0]);
  REQUIRE(norms[0].size() > 10);
  // six tiles of 64 sums: 0.036 of the norm, and v's own part as above
  CHECK(norms[0][norms[0].size() / 2] == doctest::Approx(1).epsilon(0.08));
  CHECK(norms[0].front() > 0.85);
  CHECK(norms[0].back() < 1.15);
}

TEST_CASE("v follows: 1-bit LAMB's steps keep their size where gradients grow between refreshes") {
  constexpr std::uint64_t grow_at = 50, shrink_at = 75;  // refreshes: after 40, 80 and 160 steps
  constexpr float rate = 1e-3F;
  const shown_gradients of{0.3F, 1};
  const auto lengths = on_ranks(2, [&](onebit::threads t) {
    std::vector<float> x(n_shown, 1.0F), own(n_shown);
    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({x, own});
    onebit::one_bit_lamb_options options;
    options.refreshes = 1;
    auto o = onebit::one_bit_lamb(groups, t, options);
    double before = 0, grown = 0, shrunk = 0;
    for (std::uint64_t step = 0; step < 80; ++step) {
      const float size = step < grow_at ? 1.0F : step < shrink_at ? 8.0F : 0.01F;
      for (std::size_t i = 0; i < n_shown; ++i) own[i] = size * of.at(step, t.rank(), i);
      const std::vector<float> was = x;
      CHECK_FALSE(o.step(rate).skipped);
      double moved = 0, norm = 0;
      for (std::size_t i = 0; i < n_shown; ++i) {
        moved += std::pow(static_cast<double>(x[i] - was[i]), 2);
        norm += std::pow(static_cast<double>(was[i]), 2);
      }
      const double length = std::sqrt(moved / norm) / static_cast<double>(rate);
      double& most = step < grow_at ? before : step < shrink_at ? grown : shrunk;
      if (step > 40) most = std::max(most, length);
    }
    return std::array<double, 3>{before, grown, shrunk};
  });
  // steps of LAMB have the length 1, whatever the gradients are
  for (const auto& [before, grown, shrunk] : lengths) {
    CHECK(before < 1.7);
    CHECK(grown < 2.2);
    CHECK(shrunk < 2.2);
  }
}

TEST_CASE("v follows: 1-bit LAMB's coefficient where one rank at a time has a row") {
  constexpr std::size_t n_rows = 512, width = 8;
  for (const int n_ranks : {2, 4, 8}) {
    const auto ratios = on_ranks(n_ranks, [&](onebit::threads t) {
      std::vector<float> x(n_rows * width, 1.0F), exact_x = x, own(x.size());
      const auto groups_of = [&](std::vector<float>& values) {
        std::vector<onebit::param_group<>> groups(1);
        groups[0].tensors.push_back({values, own});
        return groups;
      };
      auto o = onebit::one_bit_lamb(groups_of(x), t, onebit::one_bit_lamb_options{});
      auto exact = onebit::lamb(groups_of(exact_x), t, {});
      double sum = 0;
      for (std::uint64_t step = 0; step < 400; ++step) {
        own.assign(own.size(), 0.0F);
        const std::uint64_t seed = step * 8 + static_cast<std::uint64_t>(t.rank());
        const auto row = static_cast<std::size_t>(
            static_cast<double>(0.5F + 0.5F * onebit_test::noise(seed * 16)) * n_rows);
        for (std::size_t i = 0; i < width; ++i) {
          own[std::min(row, n_rows - 1) * width + i] = onebit_test::noise(seed * 16 + i + 1);
        }
        CHECK_FALSE(o.step(1e-6F).skipped);
        CHECK_FALSE(exact.step(1e-6F).skipped);
        if (step < 200) continue;
        sum += static_cast<double>(o.rule().layers()[0].coefficient /
                                   exact.rule().layers()[0].coefficient);
      }
      return sum / 200;
    });
    // 1.60, 1.88, 1.15
    CAPTURE(n_ranks);
    for (const double ratio : ratios) {
      CHECK(ratio > 0.9);
      CHECK(ratio < 2);
    }
  }
}

TEST_CASE("v follows: 1-bit LAMB goes on where v of an element without gradients vanishes") {
  const auto n_skipped = on_ranks(2, [&](onebit::threads t) {
    std::vector<float> x(64, 0.5F), own(64);
    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({x, own});
    onebit::one_bit_lamb_options options;
    options.lamb.beta2 = 0.9;  // 0.9^1000 is no float
    options.refreshes = 1;
    auto o = onebit::one_bit_lamb(groups, t, options);
    for (std::uint64_t step = 0; step < 3000; ++step) {
      for (std::size_t i = 0; i < 64; ++i) {
        const std::uint64_t seed = (step * 2 + static_cast<std::uint64_t>(t.rank())) * 64 + i;
        own[i] = i >= 32 && step >= 20 ? 0.0F : 0.01F * x[i] + 0.01F * onebit_test::noise(seed);
      }
      (void)o.step(1e-4F);
    }
    return o.n_skipped();
  });
  CHECK(n_skipped[0] == 0);
}

TEST_CASE("v follows: a checkpoint of the form without it is refused, and the other way round") {
  const auto told = on_ranks(2, [&](onebit::threads t) {
    std::vector<std::string> all;
    std::vector<float> x(64, 1.0F), own(64);
    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({x, own});
    const auto zero_one = [&](bool follows) {
      return onebit::zero_one_adam(
          groups, t, {.schedule = {.kappa = 1, .warmup_steps = 4}, .own_variance = follows});
    };
    const auto check = [&](const auto& make) {
      for (const bool saved_form : {true, false}) {
        auto from = make(saved_form);
        from.warn_with(nullptr);
        for (int step = 0; step < 8; ++step) {
          for (std::size_t i = 0; i < own.size(); ++i) own[i] = static_cast<float>(i % 5) - 2;
          (void)from.step(1e-3F);
        }
        std::stringstream file;
        from.save(file);
        auto to = make(!saved_form);
        try {
          to.load(file, onebit::resume_with::other_options);
          all.emplace_back("loaded");
        } catch (const onebit::checkpoint_error& e) {
          all.emplace_back(e.what());
        }
      }
    };
    check(zero_one);
    check([&](bool directions) {  // v is frozen in both
      return onebit::one_bit_adam(
          groups, t, {.freeze = {.after = 4}, .refreshes = 0, .max_step = directions ? 2.0 : 0});
    });
    return all;
  });
  for (const auto& all : told) {
    REQUIRE(all.size() == 4);
    CHECK(all[2].find("its ranks exchanged m / (sqrt(v) + eps), and here") != std::string::npos);
    CHECK(all[3].find("its ranks exchanged m, and here") != std::string::npos);
    for (std::size_t i = 0; i < 2; ++i) {
      CAPTURE(all[i]);
      CHECK(
          all[i].find(i % 2 == 0
                          ? "its v is refreshed after the dense steps, and here it would not be"
                          : "its v is not refreshed after the dense steps, and here it would be") !=
          std::string::npos);
    }
  }
}

namespace {

/// What a rank owes of each element, and what the next message takes of what was agreed, after the
/// first refresh, in step 13; and its gradients in the two compressed steps so far.
struct owed_directions {
  std::vector<float> own;
  std::vector<float> gradients[2];
};

template <class Collective>
owed_directions owed_after_refresh(onebit::threads t, const Collective& c) {
  std::vector<float> x(n_shown), own(n_shown);
  std::vector<onebit::param_group<>> groups(1);
  groups[0].tensors.push_back({x, own});
  auto o = onebit::one_bit_adam(groups, t, {.freeze = {.after = 12}, .refreshes = 16}, c);
  o.warn_with(nullptr);
  owed_directions result;
  for (std::uint64_t step = 0; step < 14; ++step) {
    for (std::size_t i = 0; i < n_shown; ++i) {
      const auto seed = (step * 16 + static_cast<std::uint64_t>(t.rank())) * 8192 + i;
      const bool late = i % 50 == 7 && step < 12;  // it has no gradient in dense steps
      own[i] = late ? 0 : (0.1F + static_cast<float>(i % 9)) * (1 + noise(seed));
    }
    if (step >= 12) result.gradients[step - 12] = own;
    const onebit::report r = o.step(1e-3F);
    CHECK_FALSE(r.skipped);
    CHECK((r.phase == onebit::phase::compressed && r.collectives > 2) == (step == 13));
  }
  auto& exchange = o.exchange();
  result.own = o.copy(exchange.previous(o.active()), 0);
  const auto residual = o.copy(exchange.sender().residual(o.active()), 0);
  for (std::size_t i = 0; i < n_shown; ++i) result.own[i] = 0.9F * result.own[i] + residual[i];
  CHECK((o.active().words[0] >> 7U & 1U) == 1U);
  return result;
}

}  // namespace

TEST_CASE("v follows: what a rank carries of an element that wakes are the directions it had") {
  const auto check = [](const auto& collective) {
    (void)on_ranks(3, [&](onebit::threads t) {
      const owed_directions now = owed_after_refresh(t, collective);
      for (std::size_t i = 7; i < n_shown; i += 50) {
        // own squares weigh 1 / 9, since no refresh has said otherwise
        double v = 0, sum = 0;
        for (int step = 0; step < 2; ++step) {
          const auto g = static_cast<double>(now.gradients[step][i]);
          v = 0.999 * v + 0.001 / 9 * g * g;
          sum += 0.1 * g / (std::sqrt(v / (1 - std::pow(0.999, 13 + step))) + 1e-8);
        }
        // the squares are in bf16: within 2^-7 of them, 2^-8 of their root
        CHECK(now.own[i] == doctest::Approx(sum).epsilon(0.004));
      }
      return 0;
    });
  };
  check(onebit::gather_scatter<onebit::sign<>>{});
  check(onebit::gather_scatter{int8_per_tile{}});
  check(onebit::gather_scatter<onebit::identity>{});
  check(onebit::all_gather<onebit::sign<>>{});
  check(onebit::all_gather{int8_per_tile{}});
  check(onebit::all_gather<onebit::identity>{});
}
