// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#include "trainer.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "checkpoint.hpp"
#include "common/progress.hpp"
#include "common/schedule.hpp"
#include "model.hpp"

namespace language_model {

using common::rank_link;

namespace {

constexpr double eps = 1e-8;
constexpr int validation_batches = 32, validation_sequences = 8;

double now() {
  using clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(clock::now().time_since_epoch()).count();
}

template <class T>
void put(std::string& to, const T* values, std::size_t count) {
  to.append(reinterpret_cast<const char*>(values), count * sizeof(T));
}

template <class T>
void get(std::string_view& from, T* values, std::size_t count) {
  if (from.size() < count * sizeof(T)) throw std::runtime_error("a checkpoint is too short");
  from.copy(reinterpret_cast<char*>(values), count * sizeof(T));
  from.remove_prefix(count * sizeof(T));
}

class training {
 public:
  training(rank_link& link, const text& source, const std::string& algorithm,
           const training_options& options)
      : link_(link),
        source_(source),
        algorithm_(algorithm),
        options_(options),
        model_({.vocabulary = source.vocabulary()}, options.seed),
        validation_interval_(common::validation_interval(options.steps)) {
    for (auto& t : model_.tensors()) parameters_.push_back({t.value, t.gradient, t.decay});
    optimizer_ =
        link.make_optimizer(algorithm, parameters_,
                            {.beta2 = options.beta2,
                             .eps = eps,
                             .freeze_after = static_cast<std::uint64_t>(options.freeze_after),
                             .max_grad_norm = options.max_grad_norm,
                             .averages = options.averages,
                             .bucket_elements = options.bucket_elements,
                             .meet_every = static_cast<std::uint64_t>(validation_interval_)});
    if (!options.checkpoint_directory.empty()) {
      files_.emplace(options.checkpoint_directory, algorithm, link.rank);
      start_from_checkpoint();
    }
  }

  training_result run() {
    const std::int64_t last =
        options_.stop_after > 0 ? std::min(options_.stop_after, options_.steps) : options_.steps;
    std::optional<common::progress> bar;
    if (link_.rank == 0) bar.emplace(algorithm_, step_, options_.steps);
    started_ = now() - total_.seconds;
    while (step_ < last) {
      const auto [loss, phase] = one_step();
      if (bar) bar->show(step_, loss, phase);
      if (step_ % validation_interval_ == 0) validate();
      total_.seconds = now() - started_;
      const bool due = options_.checkpoint_every > 0 && step_ % options_.checkpoint_every == 0;
      if (files_ && (due || step_ == last)) save();
    }
    share_losses();
    if (history_.empty() || std::isnan(history_.back().validation_loss)) validate();
    return result();
  }

 private:
  struct unshared {
    double loss;
    std::uint64_t bytes_sent;
  };

  std::pair<double, std::string_view> one_step() {
    const double begin = now();
    source_.draw(batch_, options_.batch, model_.shape().context, options_.seed,
                 static_cast<std::uint64_t>(step_), link_.rank);
    const double loss = model_.loss_and_gradients(batch_.input, batch_.target);
    total_.compute_seconds += now() - begin;

    const float rate =
        common::learning_rate(options_.learning_rate, step_, options_.steps, options_.rate_warm_up);
    const onebit::report costs = optimizer_.step(rate);
    if (link_.after_step) link_.after_step(rate);
    total_.add(costs);
    unshared_.push_back({loss, total_.bytes_sent});
    ++step_;
    return {loss, to_string(costs.phase)};
  }

  // Ranks exchange their losses now and then only, so that the steps between are timed without it.
  void share_losses() {
    const std::size_t count = unshared_.size();
    if (count == 0) return;
    const auto ranks = static_cast<std::size_t>(link_.size);
    std::vector<unshared> all(count * ranks);
    link_.all_gather(unshared_.data(), all.data(), count * sizeof(unshared));
    for (std::size_t i = 0; i < count; ++i) {
      history_entry entry{.step = step_ - static_cast<std::int64_t>(count - i) + 1,
                          .train_loss = 0,
                          .validation_loss = std::numeric_limits<double>::quiet_NaN(),
                          .bytes_sent = 0};
      for (std::size_t r = 0; r < ranks; ++r) {
        entry.train_loss += all[r * count + i].loss / static_cast<double>(ranks);
        entry.bytes_sent = std::max(entry.bytes_sent, all[r * count + i].bytes_sent);
      }
      history_.push_back(entry);
    }
    unshared_.clear();
  }

  // The ranks evaluate a share of the batches each. The losses are added up in the order of the
  // batches, so that the result does not depend on the number of ranks.
  void validate() {
    share_losses();
    const int share = (validation_batches + link_.size - 1) / link_.size;
    std::vector<double> mine(static_cast<std::size_t>(share));
    for (int i = 0; i < share && i * link_.size + link_.rank < validation_batches; ++i) {
      source_.held_out(batch_, validation_sequences, model_.shape().context,
                       i * link_.size + link_.rank, validation_batches);
      mine[static_cast<std::size_t>(i)] = model_.loss(batch_.input, batch_.target);
    }
    std::vector<double> all(mine.size() * static_cast<std::size_t>(link_.size));
    link_.all_gather(mine.data(), all.data(), mine.size() * sizeof(double));
    double sum = 0;
    for (int i = 0; i < validation_batches; ++i) {
      sum += all[static_cast<std::size_t>(i % link_.size * share + i / link_.size)];
    }
    validation_loss_ = sum / validation_batches;
    if (!std::isfinite(validation_loss_)) {
      throw std::runtime_error(
          algorithm_ + " diverged: the validation loss after step " + std::to_string(step_) +
          " is not finite; try a --learning-rate below " + std::to_string(options_.learning_rate));
    }
    if (!history_.empty()) history_.back().validation_loss = validation_loss_;
  }

  training_result result() {
    // A run that is left off between two exchanges of zero_one_adam leaves the ranks apart.
    const bool may_differ = step_ % validation_interval_ != 0;
    const std::string when = "after step " + std::to_string(step_) + " of " + algorithm_;
    return {.costs = {.algorithm = algorithm_,
                      .ranks = link_.size,
                      .steps = step_,
                      .seed = options_.seed,
                      .parameters = model_.parameter_count(),
                      .parameters_hash = common::common_hash(link_, parameters_, may_differ, when),
                      .total = common::combine(link_, total_)},
            .validation_loss = validation_loss_,
            .history = history_};
  }

  fingerprint identity() const {
    const auto text = [](double x) {
      std::ostringstream out;
      out << x;
      return out.str();
    };
    return {{"algorithm", algorithm_},
            {"ranks", std::to_string(link_.size)},
            {"steps", std::to_string(options_.steps)},
            {"seed", std::to_string(options_.seed)},
            {"batch", std::to_string(options_.batch)},
            {"freeze_after", std::to_string(options_.freeze_after)},
            {"learning_rate", text(options_.learning_rate)},
            {"max_grad_norm", text(options_.max_grad_norm)},
            {"beta2", text(options_.beta2)},
            {"rate_warm_up", text(options_.rate_warm_up)},
            {"bucket_elements", std::to_string(options_.bucket_elements)},
            {"averages", options_.averages},
            {"parameters", std::to_string(model_.parameter_count())},
            {"text_hash", std::to_string(source_.hash())}};
  }

  void save() {
    share_losses();
    std::string content;
    const std::uint64_t entries = history_.size();
    put(content, &step_, 1);
    put(content, &total_, 1);
    put(content, &validation_loss_, 1);
    put(content, &entries, 1);
    put(content, history_.data(), history_.size());
    for (const auto& t : model_.tensors()) put(content, t.value.data(), t.value.size());
    std::ostringstream state;
    optimizer_.save(state);
    files_->write(step_, identity(), content + state.str());
    link_.gather(step_);  // waits for all, so that no rank drops its old file too early
    files_->remove_before(step_);
  }

  void load(std::int64_t step) {
    const std::string content = files_->read(step, identity());
    std::string_view from = content;
    std::uint64_t entries = 0;
    get(from, &step_, 1);
    get(from, &total_, 1);
    get(from, &validation_loss_, 1);
    get(from, &entries, 1);
    history_.resize(std::min<std::size_t>(entries, from.size() / sizeof(history_entry)));
    get(from, history_.data(), history_.size());
    for (auto& t : model_.tensors()) get(from, t.value.data(), t.value.size());
    std::istringstream state{std::string(from)};
    optimizer_.load(state);
  }

  // Every rank sees what all have, so that all decide, or fail, alike.
  void start_from_checkpoint() {
    struct newest {
      std::int64_t last, before;
    };
    const std::vector<std::int64_t> mine = files_->steps();
    const std::size_t n = mine.size();
    const auto all = link_.gather(newest{n > 0 ? mine[n - 1] : -1, n > 1 ? mine[n - 2] : -1});
    const bool none = std::all_of(all.begin(), all.end(), [](newest f) { return f.last < 0; });
    if (none) {
      if (options_.resume && link_.rank == 0) {
        std::fprintf(stderr, "'%s' has no checkpoint of %s: starting at step 0\n",
                     options_.checkpoint_directory.c_str(), algorithm_.c_str());
      }
      return;
    }
    if (!options_.resume) {
      throw std::runtime_error("'" + options_.checkpoint_directory + "' holds a checkpoint of " +
                               algorithm_ + " already, at step " + std::to_string(all[0].last) +
                               ": give --resume to go on from it, or another directory");
    }
    for (const std::int64_t step : {all[0].last, all[0].before}) {
      const auto has = [step](newest f) { return f.last == step || f.before == step; };
      if (step >= 0 && std::all_of(all.begin(), all.end(), has)) return load(step);
    }
    throw std::runtime_error("'" + options_.checkpoint_directory + "' has no checkpoint of " +
                             algorithm_ + " that all " + std::to_string(link_.size) +
                             " ranks share; were they written with fewer ranks?");
  }

  rank_link& link_;
  const text& source_;
  std::string algorithm_;
  training_options options_;
  transformer<float> model_;
  std::int64_t validation_interval_;
  std::vector<common::parameter> parameters_;
  onebit::any_optimizer optimizer_;
  std::optional<checkpoint_files> files_;
  batch batch_;
  double started_ = 0;

  // What a checkpoint holds, beside the parameters and the optimizer's state.
  std::int64_t step_ = 0;
  common::totals total_;
  double validation_loss_ = 0;
  std::vector<history_entry> history_;
  std::vector<unshared> unshared_;
};

}  // namespace

training_result train(rank_link& link, const text& source, const std::string& algorithm,
                      const training_options& options) {
  return training(link, source, algorithm, options).run();
}

}  // namespace language_model
