// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Parts shared by the programs on the host and on GPUs: options, and trainings one after the other.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "common/algorithms.hpp"
#include "report.hpp"
#include "trainer.hpp"

namespace language_model {

struct program_options {
  std::vector<std::string> algorithms = common::available_algorithms();
  std::string text_file;
  std::string json_file;
  std::string out_directory = "language_model_out";
  training_options training{.steps = 1600,
                            .batch = 2,
                            .learning_rate = 0,
                            .freeze_after = -1,
                            .checkpoint_directory = {},
                            .checkpoint_every = -1};
};

void declare(CLI::App& app, program_options& o);

// Fills in options that were not given from the others. Throws if options do not fit together.
void complete(program_options& o);

// Trains with one algorithm after the other; rank 0 writes the results. Collective.
void train_all(common::rank_link& link, const text& source, const std::string& transport,
               const program_options& o, const make_learner& make = learner_on_host);

}  // namespace language_model
