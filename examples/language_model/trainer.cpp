// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#include "trainer.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <istream>
#include <limits>
#include <onebit/extras/checkpoint_files.hpp>
#include <optional>
#include <ostream>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "common/progress.hpp"
#include "common/random.hpp"
#include "common/schedule.hpp"

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
void put(std::ostream& to, const T* values, std::size_t count) {
  to.write(reinterpret_cast<const char*>(values), static_cast<std::streamsize>(count * sizeof(T)));
}

template <class T>
void get(std::istream& from, T* values, std::size_t count) {
  from.read(reinterpret_cast<char*>(values), static_cast<std::streamsize>(count * sizeof(T)));
  if (!from) throw std::runtime_error("a checkpoint is too short");
}

model_shape with_vocabulary(model_shape shape, const text& source) {
  shape.vocabulary = source.vocabulary();
  return shape;
}

class training {
 public:
  training(rank_link& link, const text& source, const std::string& algorithm,
           const training_options& options, const make_learner& make)
      : link_(link),
        source_(source),
        algorithm_(algorithm),
        options_(options),
        model_(make(with_vocabulary(options.shape, source), options.seed)),
        validation_interval_(common::validation_interval(options.steps)) {
    optimizer_ =
        link.make_optimizer(algorithm, model_->parameters(),
                            {.beta2 = options.beta2,
                             .eps = eps,
                             .freeze_after = static_cast<std::uint64_t>(options.freeze_after),
                             .max_grad_norm = options.max_grad_norm,
                             .averages = options.averages,
                             .bucket_elements = options.bucket_elements,
                             .meet_every = static_cast<std::uint64_t>(validation_interval_)});
    if (!options.checkpoint_directory.empty()) {
      checkpoints_ = std::filesystem::path(options.checkpoint_directory) / algorithm;
      start_from_checkpoint();
    }
  }

  training_result run() {
    const std::int64_t last =
        options_.stop_after > 0 ? std::min(options_.stop_after, options_.steps) : options_.steps;
    std::optional<common::progress> bar;
    if (link_.rank == 0) bar.emplace(algorithm_, step_, options_.steps);
    started_ = now() - total_.seconds;
    enqueued_from_ = now();
    while (step_ < last) {
      const onebit::phase phase = one_step();
      if (bar && bar->is_due(step_)) bar->show(step_, newest_loss(), to_string(phase));
      if (step_ % validation_interval_ == 0) validate();
      total_.seconds = now() - started_;
      const bool due = options_.checkpoint_every > 0 && step_ % options_.checkpoint_every == 0;
      if (!checkpoints_.empty() && (due || step_ == last)) save();
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

  onebit::phase one_step() {
    const double begin = now();
    source_.draw(batch_, options_.batch, model_->shape().context, options_.seed,
                 static_cast<std::uint64_t>(step_), link_.rank);
    model_->learn(batch_);
    if (!link_.is_deferred) total_.compute_seconds += now() - begin;

    const float rate =
        common::learning_rate(options_.learning_rate, step_, options_.steps, options_.rate_warm_up);
    onebit::report costs = link_.step ? link_.step(optimizer_, rate) : optimizer_.step(rate);
    if (link_.is_deferred) {  // take_losses measures all of the time
      costs.encode_seconds = costs.communicate_seconds = costs.update_seconds = 0;
    }
    if (link_.after_step) link_.after_step(rate);
    total_.add(costs);
    bytes_sent_.push_back(total_.bytes_sent);
    ++step_;
    return costs.phase;
  }

  // Collects the losses of the steps so far. On a device this waits, and adds the time since the
  // last wait to the compute time, as one figure.
  void take_losses() {
    const std::vector<double> more = model_->losses();
    losses_.insert(losses_.end(), more.begin(), more.end());
    if (!link_.is_deferred) return;
    total_.compute_seconds += now() - enqueued_from_;
    enqueued_from_ = now();
  }
  double newest_loss() {
    take_losses();
    return losses_.back();
  }

  // Exchanges losses between ranks. Called rarely: timings of the steps between do not include it.
  void share_losses() {
    take_losses();
    const std::size_t count = losses_.size();
    if (count == 0) return;
    const auto ranks = static_cast<std::size_t>(link_.size);
    std::vector<unshared> mine(count), all(count * ranks);
    for (std::size_t i = 0; i < count; ++i) mine[i] = {losses_[i], bytes_sent_[i]};
    link_.all_gather(mine.data(), all.data(), count * sizeof(unshared));
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
    losses_.clear();
    bytes_sent_.clear();
  }

  // Each rank evaluates a share of the batches. The losses are added in the order of the batches,
  // so that the result does not depend on the number of ranks.
  void validate() {
    share_losses();
    const int share = (validation_batches + link_.size - 1) / link_.size;
    std::vector<double> mine(static_cast<std::size_t>(share));
    for (int i = 0; i < share && i * link_.size + link_.rank < validation_batches; ++i) {
      source_.held_out(batch_, validation_sequences, model_->shape().context,
                       i * link_.size + link_.rank, validation_batches);
      mine[static_cast<std::size_t>(i)] = model_->loss(batch_);
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
    enqueued_from_ = now();
  }

  training_result result() {
    // If zero_one_adam stops between two exchanges, parameters differ between ranks.
    const bool may_differ = step_ % validation_interval_ != 0;
    const std::string when = "after step " + std::to_string(step_) + " of " + algorithm_;
    if (link_.is_deferred) total_.skipped = optimizer_.n_skipped();
    const std::vector<float> values = model_->values();
    const std::uint64_t hash = common::fnv1a(
        {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
    return {.costs = {.algorithm = algorithm_,
                      .ranks = link_.size,
                      .steps = step_,
                      .seed = options_.seed,
                      .parameters = values.size(),
                      .parameters_hash = common::common_hash(link_, hash, may_differ, when),
                      .state_bytes = optimizer_.state_bytes(),
                      .total = common::combine(link_, total_)},
            .validation_loss = validation_loss_,
            .history = history_};
  }

  // Options that must be equal for a resumed run to continue the same run. The number of ranks may
  // differ.
  std::string identity() const {
    const model_shape& m = model_->shape();
    std::ostringstream text;
    text << "language model, algorithm " << algorithm_ << ", steps " << options_.steps << ", seed "
         << options_.seed << ", batch " << options_.batch << ", freeze_after "
         << options_.freeze_after << ", learning_rate " << options_.learning_rate
         << ", max_grad_norm " << options_.max_grad_norm << ", averages " << options_.averages
         << ", width " << m.width << ", heads " << m.heads << ", layers " << m.layers
         << ", context " << m.context << ", text " << source_.hash();
    return text.str();
  }

  void save() {
    share_losses();
    onebit::save_all(optimizer_, checkpoints_, [&](std::ostream& out) {
      const std::uint64_t entries = history_.size();
      out << identity() << '\n';
      put(out, &step_, 1);
      put(out, &total_, 1);
      put(out, &validation_loss_, 1);
      put(out, &entries, 1);
      put(out, history_.data(), history_.size());
      const std::vector<float> values = model_->values();
      put(out, values.data(), values.size());
    });
    enqueued_from_ = now();
  }

  void load(std::istream& in) {
    std::string written;
    std::getline(in, written);
    if (written != identity()) {
      throw std::runtime_error("cannot resume: the checkpoint is of\n  " + written +
                               "\nbut this run is\n  " + identity());
    }
    std::uint64_t entries = 0;
    get(in, &step_, 1);
    get(in, &total_, 1);
    get(in, &validation_loss_, 1);
    get(in, &entries, 1);
    if (entries > static_cast<std::uint64_t>(options_.steps)) {
      throw std::runtime_error("a checkpoint has more steps than the run");
    }
    history_.resize(entries);
    get(in, history_.data(), history_.size());
    std::vector<float> values = model_->values();
    get(in, values.data(), values.size());
    model_->set_values(values);
  }

  // All ranks use the files that rank 0 sees, so that all fail alike.
  void start_from_checkpoint() {
    namespace fs = std::filesystem;
    const bool there = link_.gather(fs::exists(checkpoints_) && !fs::is_empty(checkpoints_))[0];
    if (there && !options_.resume) {
      throw std::runtime_error("'" + checkpoints_.string() +
                               "' holds checkpoints already: give --resume to go on from the last, "
                               "or another directory");
    }
    if (!options_.resume) return;
    const auto step =
        onebit::load_latest(optimizer_, checkpoints_, [this](std::istream& in) { load(in); });
    if (!step && link_.rank == 0) {
      std::fprintf(stderr, "'%s' has no checkpoint that is whole: starting at step 0\n",
                   checkpoints_.c_str());
    }
  }

  rank_link& link_;
  const text& source_;
  std::string algorithm_;
  training_options options_;
  std::unique_ptr<learner> model_;
  std::int64_t validation_interval_;
  onebit::any_optimizer optimizer_;
  std::filesystem::path checkpoints_;  // empty: none
  batch batch_;
  double started_ = 0, enqueued_from_ = 0;

  // State in a checkpoint, beside the parameters and the optimizer's state.
  std::int64_t step_ = 0;
  common::totals total_;
  double validation_loss_ = 0;
  std::vector<history_entry> history_;
  std::vector<double> losses_;             // not shared yet
  std::vector<std::uint64_t> bytes_sent_;  // after the steps since the losses were shared
};

}  // namespace

training_result train(rank_link& link, const text& source, const std::string& algorithm,
                      const training_options& options, const make_learner& make) {
  return training(link, source, algorithm, options, make).run();
}

}  // namespace language_model
