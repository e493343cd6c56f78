// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Half the squared distance to 0, from 0 on, at a constant rate, with independent noise on each
// rank: what `listings.py noise` trains, by the library, with 8192 elements for its 512 (a sketch
// of 512 elements has four sums, so v is off by a third). "Mixed": sizes of the noise fall from 0.1
// to 0.001 over the elements. Prints the mean loss of the second half of the steps, in steps after
// which all ranks hold the same parameters, what each part of 1-bit Adam costs, and the bytes of a
// compressed step.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <onebit/extras/papers.hpp>
#include <onebit/onebit.hpp>
#include <random>
#include <vector>

namespace noise {

namespace detail {

inline auto papers_one_bit_adam(const std::vector<onebit::param_group<>>& g, onebit::threads comm) {
  auto form = onebit::papers::one_bit_adam(500);
  form.options.adam.bias_correction = true;
  return onebit::one_bit_adam(g, comm, form.options, form.collective);
}

/// Returns the mean loss of the second half of the steps.
template <class Make>
double quadratic(int ranks, float lr, bool mixed, Make make) {
  double mean = 0;
  onebit::run_threads(ranks, [&](onebit::threads comm) {
    std::vector<float> x(8192), g(x.size());
    std::vector<onebit::param_group<>> of_all(1);
    of_all[0].tensors.push_back({x, g});
    auto optimizer = make(of_all, comm);
    optimizer.warn_with(nullptr);
    std::mt19937 random(static_cast<unsigned>(1 + comm.rank()));
    std::normal_distribution<float> normal;
    const int steps = std::max(1000, static_cast<int>(20 / lr));
    double total = 0;
    int n = 0;
    for (int step = 0; step < steps; ++step) {
      for (std::size_t i = 0; i < x.size(); ++i) {
        const float at = static_cast<float>(i) / static_cast<float>(x.size() - 1);
        g[i] = x[i] + 0.1F * (mixed ? std::pow(0.01F, at) : 1.0F) * normal(random);
      }
      const onebit::report done = optimizer.step(lr);
      if (step < steps / 2 || done.phase == onebit::phase::local) continue;
      for (const float e : x) total += 0.5 / static_cast<double>(x.size()) * e * e;
      ++n;
    }
    if (comm.rank() == 0) mean = total / n;
  });
  return mean;
}

/// Returns the bytes that a rank sends in a compressed step of the paper's 1-bit Adam, over those
/// of a ring allreduce of floats.
inline double share_of_dense(std::size_t elements) {
  double share = 0;
  onebit::run_threads(4, [&](onebit::threads comm) {
    std::vector<float> x(elements), g(elements, 1.0F);
    std::vector<onebit::param_group<>> of_all(1);
    of_all[0].tensors.push_back({x, g});
    const auto form = onebit::papers::one_bit_adam(1);
    auto optimizer = onebit::one_bit_adam(of_all, comm, form.options, form.collective);
    optimizer.warn_with(nullptr);
    (void)optimizer.step(0.01F);
    std::fill(g.begin(), g.end(), 1.0F);
    const auto sent = static_cast<double>(optimizer.step(0.01F).bytes_sent);
    if (comm.rank() == 0) share = sent / (6.0 * static_cast<double>(elements));
  });
  return share;
}

}  // namespace detail

inline void quadratic() {
  const auto adam = [](const auto& g, onebit::threads t) { return onebit::adam(g, t); };
  const auto one_bit = [](const auto& g, onebit::threads t) { return onebit::one_bit_adam(g, t); };
  const auto zero_one = [](const auto& g, onebit::threads t) {
    return onebit::zero_one_adam(g, t);
  };
  const auto row = [&](bool mixed, float lr, int ranks) {
    const auto loss = [&](auto make) { return detail::quadratic(ranks, lr, mixed, make); };
    const double base = loss(adam);
    std::printf(
        "%s noise, rate %g, %2d ranks: adam %.4g; over it one_bit_adam %.3f, "
        "zero_one_adam %.3f, the paper's 1-bit Adam %.3f\n",
        mixed ? "mixed" : "equal", static_cast<double>(lr), ranks, base, loss(one_bit) / base,
        loss(zero_one) / base, loss(detail::papers_one_bit_adam) / base);
    std::fflush(stdout);
  };
  for (const int ranks : {2, 4, 8, 16}) row(false, 0.01F, ranks);
  for (const float lr : {0.04F, 0.0025F}) row(false, lr, 4);
  for (const float lr : {0.04F, 0.01F, 0.0025F}) row(true, lr, 4);
  for (const int ranks : {4, 16}) {  // which part of one_bit_adam costs what
    const auto loss = [&](auto make) { return detail::quadratic(ranks, 0.01F, false, make); };
    const auto with = [&](auto collective) {
      return loss([=](const auto& g, onebit::threads t) {
        return onebit::one_bit_adam(g, t, {}, collective);
      });
    };
    const double base = loss(adam);
    std::printf(
        "one_bit_adam, %2d ranks, over adam: uncompressed %.3f, in 2 bits %.3f, signs with a "
        "factor of 1 %.3f, of 0.6 %.3f\n",
        ranks, with(onebit::gather_scatter<onebit::identity>{}) / base,
        with(onebit::gather_scatter<onebit::two_bits>{}) / base,
        with(onebit::gather_scatter{onebit::sign<>{.factor = 1}}) / base,
        with(onebit::gather_scatter{onebit::sign<>{.factor = 0.6F}}) / base);
  }
  for (const std::size_t n : {std::size_t{6000}, std::size_t{1000000}}) {
    std::printf("a compressed step of the paper's 1-bit Adam, %zu elements: %.2f%% of dense fp32\n",
                n, 100 * detail::share_of_dense(n));
  }
}

}  // namespace noise
