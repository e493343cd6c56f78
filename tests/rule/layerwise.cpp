// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// LAMB, 1-bit LAMB and 0/1 Adam against plain loops in double. The exchange is exact here
// (identity), so that what is compared is the rules; the recorded trajectories compare them with
// signs.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <onebit/extras/papers.hpp>
#include <onebit/onebit.hpp>
#include <vector>

#include "../support/training.hpp"

using namespace onebit_test;

namespace {

using doubles = std::vector<double>;

const std::vector<std::size_t> sizes = {33, 0, 1000, 7, 64};

/// Like `training`, but the fourth tensor never has a gradient and starts at 0, and the gradients
/// are a function of the step alone, so that library and oracle see the same.
void fill(training<>& data, int rank, std::uint64_t step) {
  data.compute_gradients(rank, step);
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    for (std::size_t i = 0; i < sizes[t]; ++i) {
      data.grads[t][i] -= data.grads[t][i] == 0 ? 0 : 0.3F * data.params[t][i];
    }
  }
  std::fill(data.grads[3].begin(), data.grads[3].end(), 0.0F);
}

training<> start() {
  training<> data(sizes);
  std::fill(data.params[3].begin(), data.params[3].end(), 0.0F);
  return data;
}

/// Gradients of all ranks at a step, in double.
std::vector<std::vector<doubles>> all_gradients(int n_ranks, std::uint64_t step) {
  std::vector<std::vector<doubles>> g;
  for (int r = 0; r < n_ranks; ++r) {
    training<> data = start();
    fill(data, r, step);
    g.emplace_back();
    for (const auto& t : data.grads) g.back().emplace_back(t.begin(), t.end());
  }
  return g;
}

doubles mean_of(const std::vector<std::vector<doubles>>& g, std::size_t t) {
  doubles m(g[0][t].size());
  for (const auto& of_rank : g) {
    for (std::size_t i = 0; i < m.size(); ++i) {
      m[i] += of_rank[t][i] / static_cast<double>(g.size());
    }
  }
  return m;
}

double norm(const doubles& x) {
  double s = 0;
  for (const double e : x) s += e * e;
  return std::sqrt(s);
}

/// Groups as training::groups has them.
double decay_of(std::size_t t) { return t == 0 ? static_cast<double>(0.01F) : 0.0; }
double lr_factor_of(std::size_t t) { return t == 0 ? 1.0 : 0.5; }

struct lamb_oracle {
  onebit::papers::lamb_options o;
  std::uint64_t warmup;
  std::vector<doubles> x, m, v, fresh;
  doubles average, last, coefficient;

  lamb_oracle(const onebit::papers::lamb_options& options, std::uint64_t warm)
      : o(options), warmup(warm) {
    for (const auto& p : start().params) {
      x.emplace_back(p.begin(), p.end());
      m.emplace_back(p.size());
      v.emplace_back(p.size());
    }
    average.assign(x.size(), 0);
    last.assign(x.size(), 1);
    coefficient.assign(x.size(), 1);
  }

  void step(const std::vector<std::vector<doubles>>& g, std::uint64_t at, double lr) {
    if (at == warmup) fresh = v;
    for (std::size_t t = 0; t < x.size(); ++t) step_tensor(t, mean_of(g, t), at, lr);
  }

  void step_tensor(std::size_t t, const doubles& g, std::uint64_t at, double lr) {
    const bool frozen = at >= warmup;
    const auto correction = [&](double beta, std::uint64_t n) {
      return o.bias_correction ? 1 / (1 - std::pow(beta, static_cast<double>(n))) : 1.0;
    };
    const double m_factor = correction(o.beta1, at + 1), v_factor = correction(o.beta2, at + 1);
    const double frozen_factor = correction(o.beta2, frozen ? warmup : at + 1);
    doubles prelim(g.size()), u(g.size());
    double largest = 0;
    for (std::size_t i = 0; i < g.size(); ++i) {
      m[t][i] = o.beta1 * m[t][i] + (1 - o.beta1) * g[i];
      auto& second = frozen ? fresh : v;
      second[t][i] = o.beta2 * second[t][i] + (1 - o.beta2) * g[i] * g[i];
      const bool dead = frozen && v[t][i] == 0;
      const double d = std::sqrt(v[t][i] * frozen_factor) + o.eps;
      prelim[i] = dead ? 0 : m[t][i] * m_factor / d;
      u[i] = prelim[i] + decay_of(t) * x[t][i];
      if (frozen && !dead) {
        largest = std::max(largest, d / (std::sqrt(fresh[t][i] * v_factor) + o.eps));
      }
    }
    double c = 1;
    if (!frozen) {
      if (norm(x[t]) > 0 && norm(u) > 0) {
        c = std::clamp(norm(x[t]) / norm(u), o.min_coeff, o.max_coeff);
      }
      if (c != 1) average[t] = o.coeff_beta * average[t] + (1 - o.coeff_beta) * c;
    } else {
      double f = largest > 0 ? largest : 1;
      if (decay_of(t) > 0) {
        const double rho = norm(u) > 0 ? std::min(1.0, norm(prelim) / norm(u)) : 1;
        f = f * rho + 1 - rho;
      }
      f = std::clamp(f, o.factor_min, o.factor_max);
      f = std::clamp(f, last[t] * (1 - o.factor_threshold), last[t] * (1 + o.factor_threshold));
      last[t] = f;
      c = average[t] * f;
    }
    coefficient[t] = c;
    for (std::size_t i = 0; i < g.size(); ++i) x[t][i] -= lr * lr_factor_of(t) * c * u[i];
  }
};

/// The largest difference, in units of the tensor's root mean square (or 1 where that is 0).
double difference(const std::vector<float>& found, const doubles& expected) {
  const double rms =
      expected.empty() ? 0 : norm(expected) / std::sqrt(static_cast<double>(expected.size()));
  double worst = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(found[i]) - expected[i]));
  }
  return rms > 0 ? worst / rms : worst;
}

/// Some 60 float steps: each rounds a few times by 6e-8, and the oracle not at all.
constexpr double tolerance = 1e-5;

void check_lamb(const onebit::papers::lamb_options& options, int n_ranks, bool as_we_do,
                double* least_factor, double* most_factor) {
  const std::uint64_t warmup = 12, n_steps = 60;
  auto form = onebit::papers::one_bit_lamb(warmup);
  onebit::papers::lamb_options& o = form.options.lamb;
  o = options;
  o.momentum_scaling = o.bias_correction = as_we_do;
  lamb_oracle oracle(o, n_ranks == 1 ? n_steps : warmup);  // one rank alone: LAMB
  for (std::uint64_t step = 0; step < n_steps; ++step) {
    oracle.step(all_gradients(n_ranks, step), step, static_cast<double>(0.01F));
    for (const double f : oracle.last) {
      *least_factor = std::min(*least_factor, f);
      *most_factor = std::max(*most_factor, f);
    }
  }
  const auto worst = on_ranks(n_ranks, [&](onebit::threads transport) {
    training<> data = start();
    auto optimizer = onebit::one_bit_lamb(data.groups(), transport, form.options,
                                          onebit::gather_scatter<onebit::identity>{});
    for (std::uint64_t step = 0; step < n_steps; ++step) {
      fill(data, transport.rank(), step);
      (void)optimizer.step(0.01F);
    }
    double found = 0;
    for (std::size_t t = 0; t < sizes.size(); ++t) {
      found = std::max(found, difference(data.params[t], oracle.x[t]));
      if (sizes[t] == 0) continue;
      const double c = static_cast<double>(optimizer.rule().layers()[t].coefficient);
      found = std::max(found, std::abs(c - oracle.coefficient[t]) / oracle.coefficient[t]);
    }
    return found;
  });
  for (const double d : worst) CHECK(d < tolerance);
}

}  // namespace

TEST_CASE("lamb: warm-up and compressed phase against plain loops, with every clip at work") {
  double least = 1, most = 1;
  for (const int n_ranks : {1, 2, 3}) {
    for (const bool defaults : {false, true}) {  // of momentum scaling and bias correction
      check_lamb({.beta2 = 0.97}, n_ranks, defaults, &least, &most);
      check_lamb({.beta2 = 0.97, .max_coeff = 0.3, .factor_max = 1.05}, n_ranks, defaults, &least,
                 &most);
      check_lamb({.beta2 = 0.9, .min_coeff = 2, .factor_min = 0.97, .factor_threshold = 0.02},
                 n_ranks, defaults, &least, &most);
    }
  }
  CHECK(most > 1.05);  // else the thresholds were never reached
}

TEST_CASE("lamb: the baseline is the warm-up of 1-bit LAMB") {
  const auto same = on_ranks(2, [&](onebit::threads transport) {
    training<> a = start(), b = start();
    auto plain = onebit::lamb(a.groups(), transport, onebit::lamb_options{});
    auto one_bit = onebit::one_bit_lamb(b.groups(), transport,
                                        onebit::one_bit_lamb_options{.freeze = {.after = 1000}});
    for (std::uint64_t step = 0; step < 20; ++step) {
      fill(a, transport.rank(), step);
      fill(b, transport.rank(), step);
      (void)plain.step(0.01F);
      (void)one_bit.step(0.01F);
    }
    return a.digest() == b.digest();
  });
  CHECK(same[0]);
  CHECK(same[1]);
}

TEST_CASE("lamb: options out of range") {
  const auto make = [](onebit::lamb_options o) { onebit::lamb_rule(o, onebit::host()); };
  const auto make_paper = [](onebit::papers::lamb_options o) {
    onebit::papers::lamb_rule<onebit::host>(o, onebit::host());
  };
  CHECK_THROWS_AS(make({.min_coeff = 0}), onebit::invalid_input);
  CHECK_THROWS_AS(make({.min_coeff = 2, .max_coeff = 1}), onebit::invalid_input);
  CHECK_THROWS_AS(make({.max_coeff = 1e300}), onebit::invalid_input);  // infinite as a float
  CHECK_THROWS_AS(make_paper({.factor_max = 3.5e38}), onebit::invalid_input);
  CHECK_THROWS_AS(make({.min_coeff = 1e-40}), onebit::invalid_input);
  CHECK_THROWS_AS(make_paper({.coeff_beta = 1}), onebit::invalid_input);
  CHECK_THROWS_AS(make_paper({.factor_min = 5}), onebit::invalid_input);
  CHECK_THROWS_AS(make_paper({.factor_threshold = 0}), onebit::invalid_input);
  CHECK_THROWS_AS(make_paper({.min_coeff = 0}), onebit::invalid_input);
  CHECK_THROWS_AS(make({.beta1 = 1}), onebit::invalid_input);
  // norms of directions come from refreshes
  CHECK_THROWS_AS(onebit::lamb_rule({}, onebit::host(), {.own_variance = false}),
                  onebit::invalid_input);
  onebit::run_threads(1, [&](onebit::threads transport) {
    training<> data = start();
    CHECK(thrown<onebit::invalid_input>([&] {
            (void)onebit::one_bit_lamb(data.groups(), transport,
                                       onebit::one_bit_lamb_options{.refreshes = 0});
          }) == contains{"refreshes is 0"});
  });
}

TEST_CASE("zero_one: refreshes, exchanges and local steps against plain loops") {
  const onebit::intervals_options schedule{
      .kappa = 2, .warmup_steps = 10, .doubling_steps = 12, .max_interval = 4};
  const double beta1 = 0.9, beta2 = 0.97, eps = 1e-8;
  const std::uint64_t n_steps = 61;
  for (const auto& [n_ranks, corrected] :
       {std::pair(1, true), std::pair(2, true), std::pair(2, false), std::pair(3, true)}) {
    CAPTURE(n_ranks);
    CAPTURE(corrected);
    // oracle
    struct rank_state {
      std::vector<doubles> x, m, u;
    };
    std::vector<rank_state> ranks(static_cast<std::size_t>(n_ranks));
    std::vector<doubles> v, anchor;
    for (const auto& p : start().params) {
      v.emplace_back(p.size());
      anchor.emplace_back(p.begin(), p.end());
    }
    for (rank_state& r : ranks) {
      r.x = anchor;
      r.m = r.u = v;
    }
    onebit::intervals plans(schedule);
    const bool corrects = corrected;
    const auto correction = [corrects](double beta, std::uint64_t n) {
      return corrects ? 1 / (1 - std::pow(beta, static_cast<double>(n))) : 1.0;
    };
    double sum_lr = 0;
    std::uint64_t locals = 0, refreshes = 0;
    for (std::uint64_t step = 0; step < n_steps; ++step) {
      const double lr = static_cast<double>(0.01F);
      // One rank alone takes Adam's steps: nothing would travel.
      const auto plan = n_ranks == 1 ? onebit::due{} : plans.due_in(step, 0.01F);
      const auto g = all_gradients(n_ranks, step);
      locals += plan.exchange ? 0 : 1;
      refreshes += plan.average ? 1 : 0;
      const double m_factor = correction(beta1, step + 1), v_factor = correction(beta2, refreshes);
      sum_lr += lr;
      for (std::size_t t = 0; t < sizes.size(); ++t) {
        const doubles mean = mean_of(g, t);
        for (std::size_t i = 0; i < sizes[t]; ++i) {
          if (plan.average) v[t][i] = beta2 * v[t][i] + (1 - beta2) * mean[i] * mean[i];
          const double d = std::sqrt(v[t][i] * v_factor) + eps;
          const double f = lr_factor_of(t);
          double u_mean = 0;
          for (std::size_t r = 0; r < ranks.size(); ++r) {
            double& m = ranks[r].m[t][i];
            double& x = ranks[r].x[t][i];
            m = v[t][i] > 0 ? beta1 * m + (1 - beta1) * g[r][t][i] : 0;
            x -= lr * f * (m * m_factor / d + decay_of(t) * x);
            ranks[r].u[t][i] += lr * m_factor * m;
            u_mean += ranks[r].u[t][i] / n_ranks;
          }
          if (!plan.exchange) continue;
          anchor[t][i] -= f * (u_mean / d + sum_lr * decay_of(t) * anchor[t][i]);
          for (rank_state& r : ranks) {
            r.x[t][i] = anchor[t][i];
            r.m[t][i] = u_mean / (sum_lr * m_factor);
            r.u[t][i] = 0;
          }
        }
      }
      if (plan.exchange) sum_lr = 0;
      plans.done(step, 0.01F);
    }
    CHECK(locals > 10);
    CHECK(refreshes >= 5);

    const auto worst = on_ranks(n_ranks, [&](onebit::threads transport) {
      training<> data = start();
      auto optimizer =
          onebit::zero_one_adam(data.groups(), transport,
                                onebit::zero_one_adam_options{.adam = {beta1, beta2, eps, corrects},
                                                              .schedule = schedule,
                                                              .max_step = 0,
                                                              .own_variance = false},
                                onebit::gather_scatter<onebit::identity>{});
      for (std::uint64_t step = 0; step < n_steps; ++step) {
        fill(data, transport.rank(), step);
        (void)optimizer.step(0.01F);
      }
      double found = 0;
      for (std::size_t t = 0; t < sizes.size(); ++t) {
        found = std::max(found, difference(data.params[t],
                                           ranks[static_cast<std::size_t>(transport.rank())].x[t]));
      }
      return found;
    });
    for (const double d : worst) CHECK(d < tolerance);
  }
}

TEST_CASE("zero_one: a first step without an average, and a negative rate, are errors") {
  onebit::run_threads(2, [&](onebit::threads transport) {
    training<> data = start();
    const onebit::custom_schedule never(
        [](std::uint64_t, float) { return onebit::due{.average = false, .exchange = true}; });
    onebit::optimizer o("test", data.groups(), transport,
                        onebit::zero_one_rule<onebit::host>({}, onebit::host()), never,
                        onebit::gather_scatter<onebit::sign<>>{});
    CHECK(thrown<onebit::invalid_input>([&] { o.step(0.1F); }) == contains{"must average"});
    CHECK(thrown<onebit::invalid_input>([&] { o.step(-0.1F); }) == contains{"0 or positive"});
  });
}

TEST_CASE("zero_one: while the learning rates sum to 0 nothing travels and nothing breaks") {
  const auto digests = on_ranks(2, [&](onebit::threads transport) {
    training<> data = start();
    auto o = onebit::zero_one_adam(
        data.groups(), transport,
        onebit::zero_one_adam_options{.schedule = {.warmup_steps = 4, .doubling_steps = 100}});
    bool quiet = true;
    for (std::uint64_t step = 0; step < 12; ++step) {
      fill(data, transport.rank(), step);
      const auto r = o.step(step < 6 ? 0.0F : 0.01F);
      quiet = quiet && (step >= 6 || r.phase != onebit::phase::compressed);
    }
    CHECK(quiet);
    for (const auto& p : data.params) {
      for (const float x : p) CHECK(std::isfinite(x));
    }
    return data.digest();
  });
  CHECK(digests[0] == digests[1]);
}
