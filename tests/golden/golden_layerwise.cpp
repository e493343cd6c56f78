// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The recorded 1-bit LAMB and 0/1 Adam trajectories through the library: the cases whose chunks are
// multiples of 32 and that need no momentum mask. LAMB was recorded with all tensors in one
// exchange, 0/1 Adam with an exchange per tensor, so here with one optimizer per tensor, by the
// rule and the schedule of tests/golden/deepspeed_zero_one.hpp.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iostream>
#include <onebit/extras/papers.hpp>
#include <onebit/onebit.hpp>
#include <string>
#include <vector>

#include "../golden/deepspeed_zero_one.hpp"
#include "../support/golden_compare.hpp"

namespace golden = onebit_test::golden;

namespace {

using floats = std::vector<float>;

void append(floats& to, const floats& more) { to.insert(to.end(), more.begin(), more.end()); }

/// The same number of floats from every rank, in rank order; on every rank.
floats gather(onebit::threads& comm, const floats& mine) {
  floats all(mine.size() * static_cast<std::size_t>(comm.size()));
  comm.all_gather(mine.data(), all.data(), mine.size() * sizeof(float));
  return all;
}

/// The scales that the W servers sent: one segment per chunk.
template <class View>
floats server_scales(const View& view, int n_ranks) {
  floats scales(static_cast<std::size_t>(n_ranks));
  for (std::size_t r = 0; r < scales.size(); ++r) {
    std::memcpy(&scales[r], view.slots + r * view.format.slot_bytes + view.format.scales_at,
                sizeof(float));
  }
  return scales;
}

template <class Buffer>
floats to_vector(const Buffer& b) {
  return floats(b.data(), b.data() + b.size());
}

/// v from the constant denominator sqrt(v) + eps.
floats variance_of(floats inverses, double eps) {
  for (float& inverse : inverses) {
    const double root = 1 / static_cast<double>(inverse) - eps;
    inverse = static_cast<float>(root * root);
  }
  return inverses;
}

template <class Run>
void for_each_case(const std::string& kind, Run run) {
  std::size_t n = 0;
  for (const auto& directory : golden::list_cases()) {
    INFO("case ", directory.filename().string());
    try {
      const golden::golden_case c(directory);
      if (c.optimizer() != kind) continue;
      if (!c.has_word_chunks() || c.has_masks()) {
        std::cout << c.name() << ": not applicable to the library: "
                  << (c.has_masks() ? "momentum mask" : "padded chunks, counted in the scales")
                  << "; checked through the reference\n";
        continue;
      }
      golden::case_checker checker(c, "library");
      run(c, checker);
      for (const std::string& failure : checker.failures()) FAIL_CHECK(failure);
      for (const std::string& name : checker.missing()) FAIL_CHECK("not compared: " << name);
      std::cout << checker.summary() << '\n';
      ++n;
    } catch (const std::exception& e) {
      FAIL_CHECK(std::string(e.what()));
    }
  }
  CHECK(n > 0);
}

void run_lamb(const golden::golden_case& c, golden::case_checker& checker) {
  const std::size_t n_tensors = c.tensors().size();
  auto paper = onebit::papers::one_bit_lamb(static_cast<std::uint64_t>(c.hyper("freeze_step")) - 1);
  onebit::papers::lamb_options& options = paper.options.lamb;
  options.beta1 = c.beta1();
  options.beta2 = c.beta2();
  options.eps = c.hyper("eps");
  options.max_coeff = c.hyper("max_coeff");
  options.min_coeff = c.hyper("min_coeff");
  options.coeff_beta = c.hyper("coeff_beta");
  options.factor_max = c.hyper("factor_max");
  options.factor_min = c.hyper("factor_min");
  options.factor_threshold = c.hyper("factor_threshold");
  const auto recorded = c.recorded_updates();

  onebit::run_threads(static_cast<int>(c.world_size()), [&](onebit::threads comm) {
    std::vector<floats> params, grads(n_tensors), history(n_tensors);
    for (std::size_t k = 0; k < n_tensors; ++k) {
      params.push_back(c.initial_params<float>(k));
      grads[k].resize(params[k].size());
    }
    std::vector<onebit::param_group<>> groups(1);
    groups[0].weight_decay = static_cast<float>(c.hyper("weight_decay"));
    for (std::size_t k = 0; k < n_tensors; ++k) groups[0].tensors.push_back({params[k], grads[k]});
    auto optimizer = onebit::one_bit_lamb(groups, comm, paper.options, paper.collective);

    floats worker, server;
    std::vector<double> coefficients;
    for (std::size_t t = 1; t <= c.updates(); ++t) {
      for (std::size_t k = 0; k < n_tensors; ++k) {
        const floats g = c.gradient(k, static_cast<std::size_t>(comm.rank()), t, params[k]);
        std::copy(g.begin(), g.end(), grads[k].begin());
      }
      const auto report = optimizer.step(static_cast<float>(c.lr(t)));
      CHECK((report.phase == onebit::phase::compressed) == (c.phases().at(t - 1) == 'C'));
      if (report.phase == onebit::phase::compressed) {
        auto& x = optimizer.exchange();
        append(worker, gather(comm, {x.sender().scales()[0]}));
        append(server, server_scales(x.previous(optimizer.active()), comm.size()));
      }
      for (std::size_t k = 0; k < n_tensors; ++k) {
        coefficients.push_back(static_cast<double>(optimizer.rule().layers()[k].coefficient));
        if (std::find(recorded.begin(), recorded.end(), t) != recorded.end()) {
          append(history[k], params[k]);
        }
      }
    }
    auto& x = optimizer.exchange();
    floats mine;
    std::vector<floats> m(n_tensors), v(n_tensors), fresh(n_tensors);
    for (std::size_t k = 0; k < n_tensors; ++k) {
      append(mine, optimizer.copy(x.sender().residual(optimizer.active()), k));
      m[k] = optimizer.copy(x.previous(optimizer.active()), k);
      for (float& y : m[k]) y *= optimizer.rule().paper_layers()[k].inverse_k;
      v[k] = variance_of(optimizer.copy(onebit::flat_field{optimizer.rule().inverse()}, k),
                         options.eps);
      fresh[k] = optimizer.copy(onebit::flat_field{optimizer.rule().fresh_variance()}, k);
    }
    const floats worker_error = gather(comm, mine);
    const floats server_error = gather(comm, to_vector(x.server_residual()));
    if (comm.rank() != 0) return;

    std::vector<double> average, factor, scaling;
    for (std::size_t k = 0; k < n_tensors; ++k) {
      const std::string suffix = "_tensor" + std::to_string(k);
      checker.check("params" + suffix, history[k]);
      checker.check("exp_avg" + suffix, m[k]);
      checker.check("exp_avg_sq" + suffix, v[k]);
      checker.check("exp_avg_sq_fresh" + suffix, fresh[k]);
      const onebit::papers::paper_layer& layer = optimizer.rule().paper_layers()[k];
      average.push_back(layer.average);
      factor.push_back(layer.last_factor);
      scaling.push_back(static_cast<double>(layer.k));
    }
    checker.check("worker_error", worker_error);
    checker.check("server_error", server_error);
    checker.check("worker_scales", worker);
    checker.check("server_scales", server);
    checker.check("lamb_coeffs", coefficients);
    checker.check_scalar("lamb_coeff_freeze", average);
    checker.check_scalar("last_factor", factor);
    checker.check_scalar("scaling_coeff", scaling);
  });
}

void run_zero_one(const golden::golden_case& c, golden::case_checker& checker) {
  const std::size_t n_tensors = c.tensors().size();
  const auto count = [&](const char* key) { return static_cast<std::uint64_t>(c.hyper(key)); };
  const deepspeed::zero_one_options options{
      .adam = {c.beta1(), c.beta2(), c.hyper("eps")},
      .var_freeze_step = count("var_freeze_step"),
      .var_update_scaler = count("var_update_scaler"),
      .local_step_scaler = count("local_step_scaler"),
      .local_step_clipper = count("local_step_clipper"),
  };
  const auto recorded = c.recorded_updates();

  onebit::run_threads(static_cast<int>(c.world_size()), [&](onebit::threads comm) {
    std::vector<floats> params, grads(n_tensors), history(n_tensors);
    for (std::size_t k = 0; k < n_tensors; ++k) {
      params.push_back(c.initial_params<float>(k));
      grads[k].resize(params[k].size());
    }
    const auto make = [&](std::size_t k) {
      std::vector<onebit::param_group<>> groups(1);
      groups[0].weight_decay = static_cast<float>(c.hyper("weight_decay"));
      groups[0].tensors.push_back({params[k], grads[k]});
      return deepspeed::zero_one_adam(groups, comm, options);
    };
    std::vector<decltype(make(0))> optimizers;
    for (std::size_t k = 0; k < n_tensors; ++k) optimizers.push_back(make(k));

    floats worker, server;
    for (std::size_t t = 1; t <= c.updates(); ++t) {
      const char phase = c.phases().at(t - 1);
      for (std::size_t k = 0; k < n_tensors; ++k) {
        const floats g = c.gradient(k, static_cast<std::size_t>(comm.rank()), t, params[k]);
        std::copy(g.begin(), g.end(), grads[k].begin());
        const auto report = optimizers[k].step(static_cast<float>(c.lr(t)));
        CHECK(report.phase == (phase == 'V'   ? onebit::phase::dense
                               : phase == 'L' ? onebit::phase::local
                                              : onebit::phase::compressed));
        CHECK_FALSE(report.refreshed);
        if (report.phase == onebit::phase::compressed) {
          auto& x = optimizers[k].exchange();
          append(worker, gather(comm, {x.sender().scales()[0]}));
          append(server, server_scales(x.latest(optimizers[k].active()), comm.size()));
        }
        if (std::find(recorded.begin(), recorded.end(), t) != recorded.end()) {
          append(history[k], gather(comm, params[k]));
        }
      }
    }
    for (std::size_t k = 0; k < n_tensors; ++k) {
      auto& o = optimizers[k];
      auto& x = o.exchange();
      const auto flat = [&](const float* p) { return o.copy(onebit::flat_field{p}, 0); };
      const floats m = gather(comm, flat(o.rule().momentum()));
      const floats v = flat(o.rule().variance());
      const floats sum = gather(comm, flat(o.rule().local_sum()));
      const floats worker_error = gather(comm, o.copy(x.sender().residual(o.active()), 0));
      const floats server_error = gather(comm, to_vector(x.server_residual()));
      if (comm.rank() != 0) continue;
      const std::string suffix = "_tensor" + std::to_string(k);
      checker.check("params" + suffix, history[k]);
      checker.check("exp_avg" + suffix, m);
      checker.check("exp_avg_sq" + suffix, v);
      checker.check("momentum_accumulator" + suffix, sum);
      checker.check("worker_error" + suffix, worker_error);
      checker.check("server_error" + suffix, server_error);
    }
    if (comm.rank() != 0) return;
    checker.check("worker_scales", worker);
    checker.check("server_scales", server);
    const auto& schedule = optimizers[0].schedule();
    const auto check_scalar = [&](const char* name, auto value) {
      checker.check_scalar(name, std::vector<double>(n_tensors, static_cast<double>(value)));
    };
    check_scalar("var_interval", schedule.var_interval());
    check_scalar("var_counter", schedule.var_counter());
    check_scalar("local_step_interval", schedule.local_interval());
    check_scalar("local_step_counter", schedule.local_counter());
    check_scalar("lrs", optimizers[0].rule().sum_lr());
  });
}

}  // namespace

TEST_CASE("golden: 1-bit LAMB through the library") { for_each_case("onebit_lamb", run_lamb); }

TEST_CASE("golden: DeepSpeed's 0/1 Adam, a rule of the user's, through the library") {
  for_each_case("zero_one_adam", run_zero_one);
}
