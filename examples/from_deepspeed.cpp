// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Optimizers from a DeepSpeed configuration. docs/deepspeed.md quotes the lines between the
// markers.

// [options]
#include <nlohmann/json.hpp>
#include <onebit/extras/by_name.hpp>

onebit::option_map options_of(const nlohmann::json& params) {
  onebit::option_map options;
  for (const auto& [key, value] : params.items()) {
    options[key] = value.is_string() ? value.get<std::string>() : value.dump();
  }
  return options;
}
// [/options]

#include <string>

#include "toy_problem.hpp"

int main() {
  const auto config = nlohmann::json::parse(R"([
    {"type": "AdamW", "params": {"lr": 0.02, "betas": [0.9, 0.99], "eps": 1e-8, "weight_decay": 0}},
    {"type": "OneBitAdam", "params": {"lr": 0.02, "betas": [0.9, 0.99], "freeze_step": 100,
                                      "cuda_aware": false, "comm_backend_name": "nccl"}},
    {"type": "OneBitLamb", "params": {"lr": 0.1, "betas": [0.9, 0.99], "freeze_step": 100,
                                      "max_coeff": 10.0, "min_coeff": 0.01, "coeff_beta": 0.9,
                                      "factor_max": 4.0, "factor_min": 0.5, "factor_threshold": 0.1,
                                      "bias_correction": false}},
    {"type": "ZeroOneAdam", "params": {"lr": 0.02, "betas": [0.9, 0.99], "var_freeze_step": 100,
                                       "var_update_scaler": 16, "local_step_scaler": 100,
                                       "local_step_clipper": 4}}
  ])");
  int failed = 0;
  for (const auto& optimizer : config) {
    const std::string name = optimizer.at("type");
    const onebit::option_map options = options_of(optimizer.at("params"));
    const auto make = [&](const auto& groups, onebit::threads comm) {
      // [make]
      onebit::any_optimizer made = onebit::make_optimizer(name, options, groups, comm);
      // ... in each step: made.step(lr * factor), of lr = onebit::read_options(name, options).lr
      // [/make]
      made.warn_with(nullptr);
      return made;
    };
    const float lr = optimizer.at("params").at("lr");
    failed += toy::verdict(name.c_str(), toy::train(4, 400, lr, make), 0.05);
  }
  return failed;
}
