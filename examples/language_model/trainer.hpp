// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Trains the model with one algorithm, as one rank of several.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/costs.hpp"
#include "learner.hpp"

namespace language_model {

struct training_options {
  std::int64_t steps = 0;
  std::uint64_t seed = 1;
  int batch = 0;        // sequences per rank and step
  model_shape shape{};  // train() takes the vocabulary from the text
  double learning_rate = 0;
  double max_grad_norm = 0;
  // Averages over about a hundred steps: in a run this short the variance must have settled when it
  // is frozen, and with 0.999 it would still remember the first steps.
  double beta2 = 0.99;
  double rate_warm_up = 0.1;        // share of the steps in which the rate rises
  std::size_t bucket_elements = 0;  // of the compressed exchange; 0: one bucket
  std::string averages = "automatic";
  std::int64_t freeze_after = 5;     // as onebit::freeze_options has it
  std::string checkpoint_directory;  // empty: no checkpoints
  std::int64_t checkpoint_every = 0;
  std::int64_t stop_after = 0;  // stop after this step, as if interrupted; 0: do not
  bool resume = false;
};

struct history_entry {
  std::int64_t step;
  double train_loss;         // mean over the ranks
  double validation_loss;    // NaN: not measured after this step
  std::uint64_t bytes_sent;  // since the first step, by the rank that sent most
};

struct training_result {
  common::run_costs costs;
  double validation_loss = 0;
  std::vector<history_entry> history;
};

using make_learner =
    std::function<std::unique_ptr<learner>(const model_shape&, std::uint64_t seed)>;

// Collective. Only rank 0 shows progress; every rank returns the same result.
training_result train(common::rank_link& link, const text& source, const std::string& algorithm,
                      const training_options& options, const make_learner& make = learner_on_host);

}  // namespace language_model
