// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// How long, and how many bytes, until a model has learnt? Trains the language model of the examples
// among MPI ranks behind slow links, once with each way to make the ranks' gradients one, and
// writes the validation loss over seconds and over bytes. bench/time_to_loss.sh runs it.
//
//   bench_time_to_loss_mpi [--steps 800] [--every 40] [--rounds 1] [--seed 1] [--only NAME]...
//                          [--text FILE] [--json FILE]
//
// --every   steps from one validation to the next; outer steps are made every 20
// --rounds  trainings with each contender, in turn: the same bits, at other times of the machine
// --json    FILE gets an object per validation and line; all figures in it count from the start
//
// MPI's averages are sent block by block as the backward pass goes on, by MPI_Iallreduce with the
// algorithm that Open MPI picks, or by one MPI_Allreduce (a ring) after it, if a probe finds that
// quicker; the library's messages all follow the backward pass. Clocks and counters stop while the
// loss is validated. A rank's time is of two kinds: waiting, which is in calls of MPI, and
// computing, which is all else: forward, backward, encoding, updates. The bytes are what left the
// network card of the node that sent most, headers included.

#include <mpi.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <fstream>
#include <functional>
#include <memory>
#include <onebit/algorithms.hpp>
#include <onebit/any_optimizer.hpp>
#include <onebit/compressed_allreduce.hpp>
#include <onebit/compressor/quantized.hpp>
#include <onebit/transport/alone.hpp>
#include <onebit/transport/mpi.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "common/algorithms.hpp"
#include "common/random.hpp"
#include "common/schedule.hpp"
#include "language_model/model.hpp"
#include "language_model/text.hpp"
#include "studies/outer_steps/outer_step.hpp"
#include "support.hpp"

namespace {

// As the example's own trainer has them.
constexpr onebit::adam_options adam{.beta2 = 0.99};
constexpr double peak_rate = 0.002;
constexpr int batch_per_rank = 2, validation_batches = 32, validation_sequences = 8;
// Of the outer steps: plain means of the changes, the best of six settings in 800 steps (loss 2.13;
// with the paper's rate and momentum, 0.7 and 0.9, 2.38).
constexpr std::int64_t outer_interval = 20;
constexpr float outer_rate = 1, outer_momentum = 0;

struct options {
  std::int64_t steps = 800, every = 40;
  int rounds = 1;
  std::uint64_t seed = 1;
  std::vector<std::string> only;
  std::string text_file, json;
};

int rank_of_this() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}
int n_ranks() {
  int size = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return size;
}
template <class T>
T over_ranks(T mine, MPI_Datatype type, MPI_Op op) {
  T all{};
  MPI_Allreduce(&mine, &all, 1, type, op, MPI_COMM_WORLD);
  return all;
}
double mean(double mine) { return over_ranks(mine, MPI_DOUBLE, MPI_SUM) / n_ranks(); }
double largest(double mine) { return over_ranks(mine, MPI_DOUBLE, MPI_MAX); }

// -- where the time goes

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}
/// Seconds that this thread had a core.
double core_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

/// Seconds of one rank.
struct times {
  double waiting = 0, computing = 0;
  double backward = 0;       ///< part of computing: forward and backward
  double backward_core = 0;  ///< the time of these in which the rank had a core
};

/// Computing is all that lies between start() and stop(), but for what is called by wait_in.
class meter {
 public:
  void start() { last_ = now(); }
  void stop() { lap(own_.computing); }
  template <class F>
  void wait_in(const F& f) {
    lap(own_.computing);
    f();
    lap(own_.waiting);
  }
  /// Of the time since the last lap, so many seconds were spent in the library's calls of MPI.
  void had_waited(double seconds) {
    own_.computing -= seconds;
    own_.waiting += seconds;
  }
  times& own() { return own_; }

 private:
  void lap(double& of) {
    const double t = now();
    of += t - last_;
    last_ = t;
  }
  times own_;
  double last_ = 0;
};

// -- the model

/// One rank's model and data.
class trainee {
 public:
  trainee(const language_model::text& source, std::uint64_t seed, meter& watch)
      : source_(source),
        seed_(seed),
        watch_(watch),
        model_({.vocabulary = source.vocabulary()}, seed) {}

  /// Forward and backward on this rank's batch. Calls `done` as the model's backward pass does.
  void learn(std::int64_t step, const std::function<void(int)>& done = {}) {
    const double core = core_seconds(), computing = watch_.own().computing;
    source_.draw(batch_, batch_per_rank, model_.shape().context, seed_,
                 static_cast<std::uint64_t>(step), rank_of_this());
    model_.loss_and_gradients(batch_.input, batch_.target, done);
    watch_.wait_in([] {});  // a lap
    watch_.own().backward += watch_.own().computing - computing;
    watch_.own().backward_core += core_seconds() - core;
  }
  /// Each rank evaluates a share of the batches.
  double validate() {
    double loss = 0;
    for (int i = rank_of_this(); i < validation_batches; i += n_ranks()) {
      source_.held_out(batch_, validation_sequences, model_.shape().context, i, validation_batches);
      loss += model_.loss(batch_.input, batch_.target);
    }
    return over_ranks(loss, MPI_DOUBLE, MPI_SUM) / validation_batches;
  }
  /// Throws if ranks hold different parameters.
  void check_equal() {
    std::uint64_t hash = 0;
    for (const auto& t : model_.tensors()) {
      const auto* bytes = reinterpret_cast<const char*>(t.value.data());
      hash = 31 * hash + common::fnv1a({bytes, t.value.size() * sizeof(float)});
    }
    if (over_ranks(hash, MPI_UINT64_T, MPI_MAX) != over_ranks(hash, MPI_UINT64_T, MPI_MIN)) {
      throw std::logic_error("ranks differ where they should have met");
    }
  }

  std::vector<onebit::param_group<>> groups() {
    std::vector<common::parameter> all;
    for (auto& t : model_.tensors()) all.push_back({t.value, t.gradient, t.decay});
    return common::make_groups(all);
  }
  int n_blocks() const { return model_.shape().layers; }
  auto& tensors() { return model_.tensors(); }

 private:
  const language_model::text& source_;
  std::uint64_t seed_;
  meter& watch_;
  language_model::transformer<float> model_;
  language_model::batch batch_;
};

// -- the contenders

/// Makes a step, gradients included; true if ranks waited for each other in it.
using stepper = std::function<bool(std::int64_t step, float rate)>;

enum class sent { after_the_backward_pass, block_by_block };

/// MPI's own averages of gradients, which travel as T.
template <class T>
class mpi_averages {
 public:
  mpi_averages(trainee& model, meter& watch, sent when)
      : watch_(watch), buckets_(when == sent::block_by_block ? model.n_blocks() + 1 : 1) {
    for (auto& t : model.tensors()) {  // those of no block are final with the pass
      bucket& b = buckets_[when == sent::block_by_block && t.name.starts_with("block")
                               ? std::stoul(t.name.substr(5))
                               : buckets_.size() - 1];
      b.gradients.push_back(t.gradient);
      b.own.resize(b.own.size() + t.gradient.size());
    }
    for (bucket& b : buckets_) b.all.resize(b.own.size());
    if constexpr (is_bf16) MPI_Op_create(&add_halves, 1, &sum_);
  }
  mpi_averages(const mpi_averages&) = delete;
  mpi_averages& operator=(const mpi_averages&) = delete;
  ~mpi_averages() {
    if constexpr (is_bf16) MPI_Op_free(&sum_);
  }

  [[nodiscard]] bool hides() const { return buckets_.size() > 1; }

  /// Starts the average of a block. MPI goes on with the others only when it is called.
  void start(int block) {
    bucket& b = buckets_[static_cast<std::size_t>(block)];
    pack(b);
    watch_.wait_in([&] {
      // not MPI_IN_PLACE, for which Open MPI 4 has no ring here
      MPI_Iallreduce(b.own.data(), b.all.data(), static_cast<int>(b.own.size()), type_, sum_,
                     MPI_COMM_WORLD, &b.request);
      int done = 0;
      for (bucket& each : buckets_) MPI_Test(&each.request, &done, MPI_STATUS_IGNORE);
    });
  }
  /// After the backward pass: the rest, and all averages back into the gradients.
  void finish() {
    if (hides()) {
      start(static_cast<int>(buckets_.size()) - 1);
    } else {
      bucket& b = buckets_[0];
      pack(b);
      watch_.wait_in([&] {
        MPI_Allreduce(b.own.data(), b.all.data(), static_cast<int>(b.own.size()), type_, sum_,
                      MPI_COMM_WORLD);
      });
    }
    watch_.wait_in([&] {
      for (bucket& b : buckets_) MPI_Wait(&b.request, MPI_STATUS_IGNORE);
    });
    for (bucket& b : buckets_) {
      std::size_t i = 0;
      for (const auto g : b.gradients) {
        for (float& x : g) x = onebit::to_float(b.all[i++]);
      }
    }
  }

 private:
  static constexpr bool is_bf16 = std::is_same_v<T, onebit::bf16>;
  struct bucket {
    std::vector<std::span<float>> gradients;
    std::vector<T> own, all;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  static void add_halves(void* from, void* to, int* n, MPI_Datatype*) {
    const auto* a = static_cast<const onebit::bf16*>(from);
    auto* b = static_cast<onebit::bf16*>(to);
    for (int i = 0; i < *n; ++i) {
      b[i] = onebit::to_bf16(onebit::to_float(a[i]) + onebit::to_float(b[i]));
    }
  }
  void pack(bucket& b) {
    const float part = 1.0F / static_cast<float>(n_ranks());
    std::size_t i = 0;
    for (const auto g : b.gradients) {
      for (const float x : g) {
        if constexpr (is_bf16) {
          b.own[i++] = onebit::to_bf16(part * x);
        } else {
          b.own[i++] = part * x;
        }
      }
    }
  }

  meter& watch_;
  MPI_Datatype type_ = is_bf16 ? MPI_UINT16_T : MPI_FLOAT;
  MPI_Op sum_ = MPI_SUM;
  std::vector<bucket> buckets_;
};

template <class T>
void average_of_step(trainee& model, mpi_averages<T>& by, std::int64_t step) {
  model.learn(step, by.hides() ? std::function<void(int)>([&](int b) { by.start(b); }) : nullptr);
  by.finish();
}

/// Which way is quicker here, in some steps without updates.
template <class T>
sent quicker(trainee& model, meter& watch) {
  double ms[2] = {};
  for (const sent when : {sent::after_the_backward_pass, sent::block_by_block}) {
    mpi_averages<T> by(model, watch, when);
    watch.start();
    average_of_step(model, by, 0);
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = now();
    for (int step = 1; step <= 20; ++step) average_of_step(model, by, step);
    ms[static_cast<int>(when)] = 50 * largest(now() - start);
  }
  if (rank_of_this() == 0) {
    std::printf(
        "MPI's averages of %zu bytes: a step takes %.1f ms if they come after the backward "
        "pass, %.1f ms block by block\n",
        sizeof(T), ms[0], ms[1]);
  }
  return ms[1] < ms[0] ? sent::block_by_block : sent::after_the_backward_pass;
}

/// Adam of MPI's averages.
template <class T>
stepper adam_of_mpi(trainee& model, meter& watch) {
  static const sent when = quicker<T>(model, watch);  // in the first training, for all
  const auto by = std::make_shared<mpi_averages<T>>(model, watch, when);
  const auto update =
      std::make_shared<onebit::any_optimizer>(onebit::adam(model.groups(), onebit::alone{}, adam));
  return [=, &model](std::int64_t step, float rate) {
    average_of_step(model, *by, step);
    update->step(rate);
    return true;
  };
}

/// Adam of averages in 4 bits.
stepper adam_of_four_bits(trainee& model, meter& watch) {
  std::vector<std::size_t> sizes;
  std::vector<std::span<float>> gradients;
  for (auto& t : model.tensors()) {
    sizes.push_back(t.gradient.size());
    gradients.push_back(t.gradient);
  }
  using averages = onebit::compressed_allreduce<onebit::gather_scatter<onebit::four_bits>>;
  const auto by = std::make_shared<averages>(onebit::mpi(MPI_COMM_WORLD), sizes,
                                             onebit::gather_scatter<onebit::four_bits>{});
  const auto update =
      std::make_shared<onebit::any_optimizer>(onebit::adam(model.groups(), onebit::alone{}, adam));
  return [=, &model, &watch](std::int64_t step, float rate) {
    model.learn(step);
    const double before = by->sent().seconds;
    const bool met = by->mean(gradients) != onebit::outcome::skipped;
    watch.had_waited(by->sent().seconds - before);
    if (met) update->step(rate);
    return true;
  };
}

/// One of the library's optimizers.
stepper steps_of(trainee& model, meter& watch, onebit::any_optimizer optimizer) {
  const auto own = std::make_shared<onebit::any_optimizer>(std::move(optimizer));
  return [=, &model, &watch](std::int64_t step, float rate) {
    model.learn(step);
    const onebit::report done = own->step(rate);
    watch.had_waited(done.communicate_seconds);
    return done.collectives > 0;
  };
}

stepper outer_adam(trainee& model, meter& watch) {
  std::vector<std::span<float>> parameters;
  for (auto& t : model.tensors()) parameters.push_back(t.value);
  using outer_step = outer_steps::outer_step<onebit::four_bits>;
  const auto outer = std::make_shared<outer_step>(onebit::mpi(MPI_COMM_WORLD), parameters,
                                                  outer_rate, outer_momentum);
  const auto inner =
      std::make_shared<onebit::any_optimizer>(onebit::adam(model.groups(), onebit::alone{}, adam));
  return [=, &model, &watch](std::int64_t step, float rate) {
    model.learn(step);
    inner->step(rate);
    if ((step + 1) % outer_interval != 0) return false;
    const double before = outer->sent().seconds;
    (*outer)();
    watch.had_waited(outer->sent().seconds - before);
    return true;
  };
}

struct contender {
  std::string name;
  std::function<stepper(trainee&, meter&)> make;
};

std::vector<contender> contenders(const options& o) {
  const auto comm = [] { return onebit::mpi(MPI_COMM_WORLD); };
  const auto first_steps = [steps = o.steps](const char* algorithm) {  // as the trainer has it
    return static_cast<std::uint64_t>(common::default_freeze(algorithm, steps));
  };
  return {
      {"Adam, fp32 averages by MPI", adam_of_mpi<float>},
      {"Adam, bf16 averages by MPI", adam_of_mpi<onebit::bf16>},
      {"Adam, 4-bit averages", adam_of_four_bits},
      {"1-bit Adam",
       [=](trainee& model, meter& watch) {
         onebit::one_bit_adam_options with{.adam = adam};
         with.freeze.after = first_steps("one_bit_adam");
         return steps_of(model, watch, onebit::one_bit_adam(model.groups(), comm(), with));
       }},
      {"0/1 Adam",
       [=](trainee& model, meter& watch) {
         onebit::zero_one_adam_options with{.adam = adam};
         with.schedule.warmup_steps = first_steps("zero_one_adam");
         with.schedule.also_every = static_cast<std::uint64_t>(o.every);
         return steps_of(model, watch, onebit::zero_one_adam(model.groups(), comm(), with));
       }},
      {"Adam, outer steps every 20", outer_adam},
  };
}

// -- training

/// One training with one contender.
class training {
 public:
  training(const language_model::text& source, const options& o, contender c, int round,
           std::ostream& json)
      : options_(o),
        contender_(std::move(c)),
        round_(round),
        json_(json),
        model_(source, o.seed, watch_) {}

  void run() {
    const stepper one_step = contender_.make(model_, watch_);
    watch_.own() = {};
    report(0);
    resume();
    for (std::int64_t step = 0; step < options_.steps; ++step) {
      watch_.start();
      const bool met = one_step(step, common::learning_rate(peak_rate, step, options_.steps));
      watch_.stop();
      if (met) close_stretch();
      if ((step + 1) % options_.every != 0) continue;
      pause();
      report(step + 1);
      resume();
    }
    if (rank_of_this() == 0) {
      std::printf("%-28s round %d: loss %.4f, %.1f s, %.2f MB\n", contender_.name.c_str(), round_,
                  loss_, seconds_, bytes_ / 1e6);
      std::fflush(stdout);
    }
  }

 private:
  void resume() {
    MPI_Barrier(MPI_COMM_WORLD);
    bytes_before_ = onebit_bench::bytes_on_wire();
    MPI_Barrier(MPI_COMM_WORLD);
    started_ = now();
  }
  void pause() {
    MPI_Barrier(MPI_COMM_WORLD);
    seconds_ += now() - started_;
    bytes_ += largest(static_cast<double>(onebit_bench::bytes_on_wire() - bytes_before_));
    close_stretch();
  }
  /// Between two meetings all ranks wait for the one that computes longest.
  void close_stretch() {
    stretches_.push_back(watch_.own().computing - computed_);
    computed_ = watch_.own().computing;
  }
  void report(std::int64_t step) {
    std::vector<double> longest(stretches_.size());
    MPI_Allreduce(stretches_.data(), longest.data(), static_cast<int>(longest.size()), MPI_DOUBLE,
                  MPI_MAX, MPI_COMM_WORLD);
    for (const double s : longest) computing_of_slowest_ += s;
    stretches_.clear();
    model_.check_equal();
    loss_ = model_.validate();
    const times& own = watch_.own();
    const double waiting = mean(own.waiting), computing = mean(own.computing);
    const double backward = mean(own.backward), core = mean(own.backward_core);
    if (rank_of_this() != 0) return;
    json_ << "{\"contender\": \"" << contender_.name << "\", \"round\": " << round_
          << ", \"step\": " << step << ", \"validation_loss\": " << loss_
          << ", \"seconds\": " << seconds_ << ", \"bytes\": " << bytes_
          << ", \"computing_seconds\": " << computing
          << ", \"computing_of_slowest_seconds\": " << computing_of_slowest_
          << ", \"waiting_seconds\": " << waiting << ", \"backward_seconds\": " << backward
          << ", \"backward_core_seconds\": " << core << "}\n"
          << std::flush;
  }

  const options& options_;
  contender contender_;
  int round_;
  std::ostream& json_;
  meter watch_;
  trainee model_;
  double started_ = 0;
  std::uint64_t bytes_before_ = 0;
  double seconds_ = 0, bytes_ = 0, loss_ = 0;
  double computed_ = 0, computing_of_slowest_ = 0;
  std::vector<double>
      stretches_;  ///< this rank's computing between meetings, since the last report
};

void train_all(const options& o) {
  const auto source = language_model::text::load(o.text_file);
  std::ofstream json;
  if (rank_of_this() == 0 && !o.json.empty()) {
    json.open(o.json);
    if (!json) throw std::runtime_error("cannot write " + o.json);
  }
  json.precision(10);
  for (int round = 1; round <= o.rounds; ++round) {
    for (const contender& c : contenders(o)) {
      const bool wanted =
          o.only.empty() || std::find(o.only.begin(), o.only.end(), c.name) != o.only.end();
      if (wanted) training(source, o, c, round, json).run();
    }
  }
  json.close();
  if (rank_of_this() == 0 && !o.json.empty() && !json) {
    throw std::runtime_error("cannot write " + o.json);
  }
}

}  // namespace

int main(int argc, char** argv) {
  options o;
  CLI::App app{"Validation loss over seconds and bytes; bench/time_to_loss.sh runs it."};
  app.add_option("--steps", o.steps)->check(CLI::Range(1, 1000000));
  app.add_option("--every", o.every)->check(CLI::Range(1, 1000000));
  app.add_option("--rounds", o.rounds)->check(CLI::Range(1, 100));
  app.add_option("--seed", o.seed);
  app.add_option("--only", o.only);
  app.add_option("--text", o.text_file)->check(CLI::ExistingFile);
  app.add_option("--json", o.json);
  CLI11_PARSE(app, argc, argv);
  MPI_Init(&argc, &argv);
  try {
    if (o.every % outer_interval != 0) throw std::runtime_error("--every: a multiple of 20");
    train_all(o);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_time_to_loss_mpi: %s\n", e.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
    std::_Exit(1);  // MPICH 4.1.3 to 5.0.2 may return from MPI_Abort
  }
  MPI_Finalize();
  return 0;
}
