// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#include "trainer.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <stdexcept>

#include "common/progress.hpp"
#include "common/schedule.hpp"
#include "model.hpp"

namespace image_classifier {
namespace {

constexpr int images_per_step = 32;  // per rank
constexpr std::size_t images_at_once = 500;
constexpr double beta2 = 0.99;
// Large, because ReLU leaves some parameters almost without gradients: the compression error in
// their momentum, divided by a root near 1e-8, would blow the parameters up.
constexpr double eps = 1e-4;

double now() {
  using clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(clock::now().time_since_epoch()).count();
}

struct score {
  double loss = 0;
  double accuracy = 0;
};

// Returns the mean over images begin to end - 1. The ranks share the work. Collective.
score evaluate(const common::rank_link& link, classifier& model, const image_set& images,
               std::size_t begin, std::size_t end) {
  score mine;
  batch at_once;
  const auto ranks = static_cast<std::size_t>(link.size),
             rank = static_cast<std::size_t>(link.rank);
  for (std::size_t i = begin + rank * images_at_once; i < end; i += ranks * images_at_once) {
    images.range(at_once, i, std::min(i + images_at_once, end));
    mine.loss += model.loss(at_once) * static_cast<double>(at_once.target.size());
    for (std::size_t k = 0; k < at_once.target.size(); ++k) {
      Eigen::Index guess = 0;
      model.probabilities().row(static_cast<Eigen::Index>(k)).maxCoeff(&guess);
      mine.accuracy += guess == at_once.target[k] ? 1 : 0;
    }
  }
  score all;
  for (const score& s : link.gather(mine)) {
    all.loss += s.loss;
    all.accuracy += s.accuracy;
  }
  const auto count = static_cast<double>(end - begin);
  return {all.loss / count, all.accuracy / count};
}

}  // namespace

data_set::data_set(const std::string& directory)
    : training(directory, "train"),
      held_out(training.size() - training.size() / 12),
      test(directory, "t10k") {}

training_result train(common::rank_link& link, const data_set& data, const std::string& algorithm,
                      const training_options& options) {
  const std::unique_ptr<classifier> owned = make_model(options.model, options.seed);
  classifier& model = *owned;
  std::vector<common::parameter> parameters;
  std::uint64_t count = 0;
  for (auto& t : model.tensors()) {
    parameters.push_back({t.value, t.gradient, t.decay});
    count += t.value.size();
  }
  const std::int64_t interval = common::validation_interval(options.steps);
  onebit::any_optimizer optimizer = link.make_optimizer(
      algorithm, parameters,
      {.beta2 = beta2,
       .eps = eps,
       .freeze_after = static_cast<std::uint64_t>(common::default_freeze(algorithm, options.steps)),
       .meet_every = static_cast<std::uint64_t>(interval)});

  std::optional<common::progress> bar;
  if (link.rank == 0) bar.emplace(algorithm, 0, options.steps);
  common::totals total;
  batch drawn;
  double validation_loss = 0;
  const double started = now();
  for (std::int64_t step = 0; step < options.steps; ++step) {
    const double begin = now();
    data.training.draw(drawn, images_per_step, data.held_out, options.seed,
                       static_cast<std::uint64_t>(step), link.rank);
    const double loss = model.loss_and_gradients(drawn);
    total.compute_seconds += now() - begin;
    const float rate = common::learning_rate(options.learning_rate, step, options.steps);
    const onebit::report costs = optimizer.step(rate);
    if (link.after_step) link.after_step(rate);
    total.add(costs);
    if (bar) bar->show(step + 1, loss, to_string(costs.phase));
    if ((step + 1) % interval != 0) continue;
    validation_loss =
        evaluate(link, model, data.training, data.held_out, data.training.size()).loss;
    if (!std::isfinite(validation_loss)) {
      throw std::runtime_error(algorithm + " diverged: the validation loss after step " +
                               std::to_string(step + 1) + " is not finite");
    }
  }
  total.seconds = now() - started;
  return {.costs = {.algorithm = algorithm,
                    .ranks = link.size,
                    .steps = options.steps,
                    .seed = options.seed,
                    .parameters = count,
                    .parameters_hash =
                        common::common_hash(link, parameters, false, "after " + algorithm),
                    .state_bytes = optimizer.state_bytes(),
                    .total = common::combine(link, total)},
          .validation_loss = validation_loss,
          .test_accuracy = evaluate(link, model, data.test, 0, data.test.size()).accuracy};
}

}  // namespace image_classifier
