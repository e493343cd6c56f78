// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Trains a small perceptron, or a convolutional network, to tell clothes apart (Fashion-MNIST) with
// several optimizers, each from the same initial parameters and on the same batches, and compares
// how well they learn and how much they send.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "common/algorithms.hpp"
#include "trainer.hpp"

namespace {

using namespace image_classifier;

struct options {
  int ranks = 4;
  std::vector<std::string> algorithms = common::available_algorithms();
  std::string data_directory = "/usr/share/datasets/fashion-mnist";
  std::string json_file;
  training_options training{.model = "perceptron", .steps = 2000};
};

void declare(CLI::App& app, options& o) {
  app.add_option("--algorithm", o.algorithms, "Optimizer to train with; may be repeated (all)")
      ->check(CLI::IsMember(common::available_algorithms()));
  app.add_option("--model", o.training.model,
                 "What learns: perceptron or convolutional (perceptron)")
      ->check(CLI::IsMember({"perceptron", "convolutional"}));
  app.add_option("--ranks", o.ranks, "Ranks that train together, as threads (4)")
      ->check(CLI::Range(1, 64));
  app.add_option("--steps", o.training.steps, "Steps of training (2000)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1000000000}));
  app.add_option("--seed", o.training.seed, "Seed of the initial parameters and batches (1)");
  app.add_option("--learning-rate", o.training.learning_rate,
                 "At the peak, after warm-up (0.002; LAMB 0.003)")
      ->check(CLI::Range(1e-8, 10.0));
  app.add_option("--data", o.data_directory, "Directory of the images and labels")
      ->capture_default_str();
  app.add_option("--json", o.json_file, "File to write the table to as JSON");
}

// LAMB's rate is relative to the magnitude of each tensor.
double peak_learning_rate(const std::string& algorithm) {
  return algorithm.ends_with("lamb") ? 0.003 : 0.002;
}

void report(const options& o, const std::vector<training_result>& results) {
  std::vector<common::table_row> rows;
  auto runs = nlohmann::ordered_json::array();
  for (const training_result& r : results) {
    char accuracy[32];
    std::snprintf(accuracy, sizeof accuracy, "%.2f %%", 100 * r.test_accuracy);
    rows.push_back({r.costs, accuracy});
    auto& run = runs.emplace_back(common::to_json(r.costs));
    run["test_accuracy"] = r.test_accuracy;
    run["validation_loss"] = r.validation_loss;
  }
  common::print_table("accuracy", rows);
  if (!o.json_file.empty()) common::write_json(runs, o.json_file);
}

void run(options o) {
  // Checks the file before the training.
  if (!o.json_file.empty() && !std::ofstream(o.json_file, std::ios::app)) {
    throw std::runtime_error("--json: cannot write '" + o.json_file + "'");
  }
  std::vector<std::string> once;
  for (const auto& name : o.algorithms) {
    if (std::find(once.begin(), once.end(), name) == once.end()) once.push_back(name);
  }
  const data_set data(o.data_directory);
  std::printf("%zu images to learn, %zu to validate, %zu to test; %d rank%s; %lld steps\n",
              data.held_out, data.training.size() - data.held_out, data.test.size(), o.ranks,
              o.ranks == 1 ? "" : "s", static_cast<long long>(o.training.steps));
  std::fflush(stdout);
  common::run_ranks("threads", o.ranks, [&](common::rank_link& link) {
    std::vector<training_result> results;
    for (const std::string& algorithm : once) {
      training_options training = o.training;
      if (training.learning_rate == 0) training.learning_rate = peak_learning_rate(algorithm);
      results.push_back(train(link, data, algorithm, training));
    }
    if (link.rank == 0) report(o, results);
  });
}

}  // namespace

int main(int argc, char** argv) {
  options o;
  CLI::App app{"Trains a small image classifier with onebit's optimizers and compares them."};
  declare(app, o);
  CLI11_PARSE(app, argc, argv);
  try {
    run(o);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "image_classifier: %s\n", error.what());
    return 1;
  }
  return 0;
}
