// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Trains the model with one algorithm, as one rank of several.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "algorithms.hpp"
#include "text.hpp"

namespace language_model {

struct training_options {
  std::int64_t steps = 0;
  std::uint64_t seed = 1;
  int batch = 0;  // sequences per rank and step
  double learning_rate = 0;
  std::int64_t freeze_after = 0;
  std::string checkpoint_directory;  // empty: no checkpoints
  std::int64_t checkpoint_every = 0;
  std::int64_t stop_after = 0;  // leave off after this step, as if interrupted; 0: do not
  bool resume = false;
};

struct history_entry {
  std::int64_t step;
  double train_loss;         // mean over the ranks
  double validation_loss;    // NaN where it was not measured
  std::uint64_t bytes_sent;  // since the first step, by the rank that sent most
};

// What a run has cost so far.
struct totals {
  std::uint64_t bytes_sent = 0;
  std::uint64_t collectives = 0;
  std::uint64_t skipped = 0;
  double seconds = 0;  // by the clock, validation and checkpoints included
  double compute_seconds = 0;
  double encode_seconds = 0;
  double communicate_seconds = 0;
  double update_seconds = 0;
};

struct training_result {
  std::string algorithm;
  std::int64_t steps = 0;
  std::uint64_t parameters = 0;
  std::uint64_t parameters_hash = 0;  // the same on all ranks, or the trainer throws
  double validation_loss = 0;
  totals total;  // bytes and seconds: the largest of all ranks; the parts: the mean
  std::vector<history_entry> history;
};

// Collective. Only rank 0 shows progress; every rank returns the same result.
training_result train(rank_link& link, const text& source, const std::string& algorithm,
                      const training_options& options);

}  // namespace language_model
