// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// 1-bit Adam's v, which follows from the ranks' own squares, beside the v of the mean gradient,
// computed here in double.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/onebit.hpp>
#include <string>
#include <vector>

#include "../support/training.hpp"

using onebit_test::noise;
using onebit_test::on_ranks;

namespace {

constexpr std::size_t n = 6000;  // two tiles
constexpr double beta2 = 0.95;

/// The element's gradient on a rank: signal + noise, of a size that differs by element, and grows
/// or falls by ten after step 150.
struct gradients {
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
std::vector<double> ratios(int n_ranks, const gradients& g, std::uint64_t refreshes,
                           double max_grad_norm = 0) {
  const auto of_ranks = on_ranks(n_ranks, [&](onebit::threads t) {
    std::vector<float> x(n), own(n);
    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({x, own});
    onebit::one_bit_adam_options options;
    options.adam.beta2 = beta2;
    options.adam.max_grad_norm = max_grad_norm;
    options.refreshes = refreshes;
    auto o = onebit::one_bit_adam(groups, t, options);
    o.warn_with(nullptr);
    std::vector<double> v(n);
    double bias = 1;
    std::vector<double> found;
    for (std::uint64_t step = 0; step < 400; ++step) {
      bias *= beta2;
      for (std::size_t i = 0; i < n; ++i) {
        double mean = 0;
        for (int r = 0; r < n_ranks; ++r) mean += static_cast<double>(g.at(step, r, i)) / n_ranks;
        v[i] = beta2 * v[i] + (1 - beta2) * mean * mean;
        own[i] = g.at(step, t.rank(), i);
      }
      const auto report = o.step(1e-3F);
      CHECK_FALSE(report.skipped);
      if (report.phase == onebit::phase::dense || report.collectives < 6) continue;
      found.clear();  // v was refreshed: of the gradients before this step
      const auto d = o.copy(onebit::flat_field{o.rule().variance()}, 0);
      for (std::size_t i = 0; i < n; ++i) {
        found.push_back(static_cast<double>(d[i]) / std::sqrt(v[i] / (1 - bias)));
      }
    }
    std::sort(found.begin(), found.end());
    return found;
  });
  for (const auto& r : of_ranks) CHECK(r == of_ranks[0]);
  return of_ranks[0];
}

}  // namespace

TEST_CASE("v follows: from the ranks' own squares it is that of the mean gradient") {
  const auto check = [](int ranks, const gradients& g, double tolerance) {
    CAPTURE(ranks);
    CAPTURE(g.signal);
    CAPTURE(g.later);
    const auto found = ratios(ranks, g, 16);
    REQUIRE(found.size() == n);
    CHECK(found[n / 2] == doctest::Approx(1).epsilon(tolerance));
    // an element's v is an average of some 40 squares, which are other squares on either side
    CHECK(found[n / 100] > (g.signal > 0 ? 0.9 : 0.5));
    CHECK(found[n - n / 100] < (g.signal > 0 ? 1.1 : 2.0));
  };
  for (const double later : {1.0, 0.1, 10.0}) {
    // all ranks see the same: the root goes through bf16, and lags by what the last step adds
    check(3, {1, 0, later}, 0.01);
    check(3, {0, 1, later}, 0.06);  // noise: a third of the squares is left
    check(2, {0.5F, 0.5F, later}, 0.06);
    check(2, {1, 0, later, 3}, 0.02);  // each rank pulls its own way
  }
}

TEST_CASE("v follows: not without refreshes, and where the gradients are clipped as they are") {
  const auto frozen = ratios(2, {1, 0, 0.1}, 0);
  CHECK(frozen.empty());
  // clipped, every gradient has one norm, whatever its size was
  double squares = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const auto g = static_cast<double>(gradients{1, 0, 0.1}.at(399, 0, i));
    squares += g * g;
  }
  const auto clipped = ratios(2, {1, 0, 0.1}, 16, 1e-3);
  REQUIRE(clipped.size() == n);
  CHECK(clipped[n / 2] == doctest::Approx(1e-3 / std::sqrt(squares)).epsilon(0.01));
}

TEST_CASE("v follows: elements that first get a gradient after the dense steps") {
  const auto moved = on_ranks(2, [](onebit::threads t) {
    std::vector<float> x(n), own(n);
    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({x, own});
    auto o = onebit::one_bit_adam(groups, t, {});
    for (std::uint64_t step = 0; step < 200; ++step) {
      for (std::size_t i = 0; i < n; ++i) {
        const bool comes = i % 3 == 0 || (i % 3 == 1 && step >= 40 && t.rank() == 1);
        own[i] = comes ? 1.0F : 0.0F;
      }
      CHECK_FALSE(o.step(1e-3F).skipped);
    }
    o.verify();  // the squares are each rank's own, and no difference
    return x;
  });
  CHECK(moved[0] == moved[1]);
  for (std::size_t i = 0; i < n; ++i) {
    if (i % 3 == 0) CHECK(moved[0][i] < -0.15F);
    if (i % 3 == 1) CHECK(moved[0][i] < -0.05F);  // one rank's squares wake it on both
    if (i % 3 == 2) CHECK(moved[0][i] == 0.0F);
  }
}
