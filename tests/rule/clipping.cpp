// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Clipping by the global norm: exact where the ranks average, by each rank's own norm elsewhere,
// and nothing at all where the norm is small enough.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/onebit.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "../support/training.hpp"

using namespace onebit_test;

namespace {

constexpr std::size_t n_tensors = 6;

/// Adam in double, on the mean of all ranks' gradients, clipped as torch does.
struct reference {
  std::vector<std::vector<double>> x, m, v;
  double norm = 0;

  void step(const std::vector<training<>>& ranks, std::uint64_t t, double lr, double largest) {
    std::vector<std::vector<double>> mean(n_tensors);
    double sum = 0;
    for (std::size_t k = 0; k < n_tensors; ++k) {
      mean[k].assign(x[k].size(), 0.0);
      for (const auto& r : ranks) {
        for (std::size_t i = 0; i < x[k].size(); ++i) {
          mean[k][i] += static_cast<double>(r.grads[k][i]) / static_cast<double>(ranks.size());
        }
      }
      for (const double g : mean[k]) sum += g * g;
    }
    norm = std::sqrt(sum);
    const double clip = largest > 0 ? std::min(1.0, largest / (norm + 1e-6)) : 1.0;
    const double m_bias = 1 - std::pow(0.9, static_cast<double>(t + 1));
    const double v_bias = 1 - std::pow(0.999, static_cast<double>(t + 1));
    for (std::size_t k = 0; k < n_tensors; ++k) {
      const double factor = k == 0 ? 1 : 0.5, decay = k == 0 ? 0.01F : 0;
      for (std::size_t i = 0; i < x[k].size(); ++i) {
        const double g = mean[k][i] * clip;
        m[k][i] = 0.9 * m[k][i] + 0.1 * g;
        v[k][i] = 0.999 * v[k][i] + 0.001 * g * g;
        // torch.optim.AdamW: decay first, then the step
        x[k][i] -= lr * factor * decay * x[k][i];
        x[k][i] -= lr * factor * (m[k][i] / m_bias) / (std::sqrt(v[k][i] / v_bias) + 1e-8);
      }
    }
  }
};

template <class Make>
void check_exact(int n_ranks, double largest, const Make& make) {
  std::vector<training<>> all(static_cast<std::size_t>(n_ranks));
  reference expected;
  for (const auto& p : all[0].params) {
    expected.x.emplace_back(p.begin(), p.end());
    expected.m.emplace_back(p.size(), 0.0);
  }
  expected.v = expected.m;
  constexpr std::uint64_t steps = 40;
  // the reference's gradients do not follow the parameters, so that errors do not feed back
  const auto gradients = [](training<>& data, int rank, std::uint64_t step) {
    for (std::size_t k = 0; k < n_tensors; ++k) {
      for (std::size_t i = 0; i < data.grads[k].size(); ++i) {
        const std::uint64_t seed = (step * 16 + static_cast<std::uint64_t>(rank)) * 1000003 + i;
        data.grads[k][i] = (1 + static_cast<float>(step % 5)) * noise(seed * 31 + k);
      }
    }
  };
  std::vector<double> norms;
  for (std::uint64_t s = 0; s < steps; ++s) {
    for (int r = 0; r < n_ranks; ++r) gradients(all[static_cast<std::size_t>(r)], r, s);
    expected.step(all, s, 0.01, largest);
    norms.push_back(expected.norm);
  }
  const auto trained = on_ranks(n_ranks, [&](onebit::threads transport) {
    training<> data;
    auto o = make(data.groups(), transport);
    for (std::uint64_t s = 0; s < steps; ++s) {
      gradients(data, o.rank(), s);
      const onebit::report done = o.step(0.01F);
      REQUIRE(done.gradient_norm.has_value());
      // sums of at most 4096 squares in float
      CHECK(*done.gradient_norm == doctest::Approx(norms[s]).epsilon(1e-5));
      CHECK(o.gradient_norm() == done.gradient_norm);
    }
    return data.params;
  });
  for (const auto& params : trained) {
    for (std::size_t k = 0; k < n_tensors; ++k) {
      for (std::size_t i = 0; i < params[k].size(); ++i) {
        // 40 steps, each rounded to a float of up to 2 and itself right to some parts in 10^6 of lr
        REQUIRE(std::fabs(static_cast<double>(params[k][i]) - expected.x[k][i]) < 40 * 1.2e-7);
      }
    }
  }
}

}  // namespace

TEST_CASE(
    "adam is torch's AdamW, clipped by clip_grad_norm_ or not: a reference in double "
    "[max_grad_norm]") {
  for (const int n_ranks : {1, 2, 3}) {
    CAPTURE(n_ranks);
    // the norms are 23 to 120: some steps are clipped, or all
    for (const double largest : {0.0, 60.0, 1.0}) {
      CAPTURE(largest);
      for (const auto sum : {onebit::dense_sum::rank_order, onebit::dense_sum::transport}) {
        check_exact(n_ranks, largest, [&](const auto& g, auto t) {
          return onebit::adam(g, t, {.max_grad_norm = largest}, onebit::host(), sum);
        });
      }
      check_exact(n_ranks, largest, [&](const auto& g, auto t) {
        return onebit::one_bit_adam(g, t,
                                    {.adam = {.max_grad_norm = largest}, .freeze = {.after = 100}},
                                    onebit::gather_scatter{onebit::sign<>{}, 1000});
      });
    }
  }
}

namespace {

/// One training of every algorithm that compresses.
template <class F>
void each_algorithm(double largest, const F& f) {
  f([=](const auto& g, auto t) {
    return onebit::one_bit_adam(
        g, t, {.adam = {.max_grad_norm = largest}, .freeze = {.after = 6}, .refreshes = 4});
  });
  f([=](const auto& g, auto t) {
    return onebit::one_bit_lamb(g, t, {.lamb = {.max_grad_norm = largest}, .freeze = {.after = 6}});
  });
  f([=](const auto& g, auto t) {
    return onebit::zero_one_adam(
        g, t,
        {.adam = {.max_grad_norm = largest},
         .schedule = {.kappa = 2, .warmup_steps = 6, .doubling_steps = 6, .max_interval = 4}});
  });
}

/// Trains; in step `when` the gradients of rank 1 are `factor` times as large. All parameters of
/// rank 0, and the rank's norms where they were known.
struct trained {
  std::vector<float> params;
  std::vector<float> norms;
};
template <class Make>
std::vector<trained> train_spiked(const Make& make, float factor, std::uint64_t when,
                                  bool announce) {
  return on_ranks(3, [&](onebit::threads transport) {
    training<> data;
    auto o = make(data.groups(), transport);
    trained result;
    while (o.steps() < 40) {
      const std::uint64_t step = o.steps();
      data.compute_gradients(o.rank(), step);
      if (step == when && o.rank() == 1) {
        for (auto& tensor : data.grads) {
          for (float& g : tensor) g *= factor;
        }
      }
      if (announce) {
        o.begin(0.01F);
        for (std::size_t k = n_tensors; k-- > 0;) o.ready(k);
      }
      const auto done = o.step(0.01F);
      CHECK_FALSE(done.skipped);
      if (done.gradient_norm) result.norms.push_back(*done.gradient_norm);
      if (step == 20) {  // a checkpoint changes nothing: what norms are compared with is in it
        std::istringstream in(saved(o));
        o.load(in);
      }
    }
    for (const auto& p : data.params) {
      result.params.insert(result.params.end(), p.begin(), p.end());
    }
    return result;
  });
}

double distance(const trained& a, const trained& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.params.size(); ++i) {
    const double d = static_cast<double>(a.params[i]) - static_cast<double>(b.params[i]);
    sum += d * d;
  }
  return std::sqrt(sum);
}

}  // namespace

TEST_CASE(
    "clipping: a norm that is never reached changes not a bit, announced or not [max_grad_norm]") {
  std::vector<std::vector<float>> plain;
  each_algorithm(
      0, [&](const auto& make) { plain.push_back(train_spiked(make, 1, 0, false)[0].params); });
  for (const bool announce : {false, true}) {
    std::size_t i = 0;
    each_algorithm(1e6, [&](const auto& make) {
      const auto ranks = train_spiked(make, 1, 0, announce);
      CHECK(ranks[0].params == plain[i++]);
      for (const trained& rank : ranks) CHECK(rank.norms.size() == 40);
    });
  }
}

TEST_CASE(
    "clipping: an estimate of the mean's norm where the ranks do not average [max_grad_norm]") {
  // The gradients of these trainings keep their size: noise of 0.57 in 5798 elements, most of it of
  // one rank only, and an ever smaller part that all have.
  each_algorithm(1e6, [&](const auto& make) {
    for (const trained& rank : train_spiked(make, 1, 0, false)) {
      for (const float norm : rank.norms) {
        CHECK(norm > 0.8F * rank.norms[0]);
        CHECK(norm < 1.2F * rank.norms[0]);
      }
    }
  });
}

TEST_CASE(
    "clipping: a spike of one rank, in an average, a message, a local step, costs little "
    "[max_grad_norm]") {
  for (const std::uint64_t when : {3, 12, 25, 27}) {
    CAPTURE(when);
    each_algorithm(40, [&](const auto& make) {
      const trained calm = train_spiked(make, 1, when, false)[0];
      const trained spiked = train_spiked(make, 1e4F, when, false)[0];
      // less than all forty steps together move an element: lr each
      double largest = 0;
      for (std::size_t i = 0; i < calm.params.size(); ++i) {
        largest =
            std::max(largest, static_cast<double>(std::fabs(calm.params[i] - spiked.params[i])));
      }
      CHECK(largest < 0.4);
      CHECK(distance(calm, spiked) < 4);
    });
  }
}

TEST_CASE("clipping: norms out of range are refused [max_grad_norm]") {
  training<> data;
  onebit::run_threads(1, [&](onebit::threads t) {
    for (const double bad : {-1.0, static_cast<double>(INFINITY), std::nan("")}) {
      CHECK(thrown<onebit::invalid_input>([&] {
              (void)onebit::adam(data.groups(), t, {.max_grad_norm = bad});
            }) == contains{"max_grad_norm"});
    }
  });
}
