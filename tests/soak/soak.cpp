// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Jobs of every algorithm and collective, to which things happen by chance, for a long time: every
// 1000 steps a job must have the bits, parameters and state of every rank, of one that made the
// same steps with the same ranks and to which nothing happened.
//
//   test_soak [--seconds N] [--jobs N] [--seed S] [--job J]
//
// The other job takes each change of membership from memory, at the step at which the first one
// took it from its files; it is never stopped, loads nothing else, and sees no bad gradient but
// those that count (local steps of 0/1 Adam). A training may diverge until no step can be kept: in
// both jobs alike. What is found is told with the seed and the job that repeat it.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <mutex>
#include <sstream>

#include "../support/scratch.hpp"
#include "optimizers.hpp"

using namespace onebit_test;
using namespace onebit_test::soak;
namespace fs = std::filesystem;

namespace {

using clock_type = std::chrono::steady_clock;
constexpr std::chrono::seconds deadline(60);

/// A job, and what its ranks do of themselves: the same in the job to which nothing happens.
struct job {
  std::uint64_t seed = 0, number = 0;
  soak::options options;
  std::uint64_t steps_between_saves = 50, verify_every = 0;

  [[nodiscard]] std::uint64_t hash(std::uint64_t of, std::uint64_t step) const {
    return chance(seed * 1000003 + number * 7919 + of * 104729 + step * 0x9E3779B97F4A7C15U)();
  }
  /// Another one in each step; of 0/1 Adam, whose residuals grow without bound where it jumps to
  /// and fro, after a warm-up and every hundred steps.
  [[nodiscard]] float lr(std::uint64_t step) const {
    if (options.algorithm != algorithm::zero_one_adam) {
      return 0.003F / static_cast<float>(1 + step % 3);
    }
    const float rise = step < 50 ? static_cast<float>(step + 1) / 50 : 1.0F;
    return 0.003F * rise / static_cast<float>(1 + step / 100 % 3);
  }
  [[nodiscard]] bool has_bad_gradient(std::uint64_t step) const { return hash(2, step) % 100 == 0; }
  [[nodiscard]] int bad_rank(std::uint64_t step, int size) const {
    return static_cast<int>(hash(3, step) % static_cast<std::uint64_t>(size));
  }
  void fill(training<>& data, int rank, int size, std::uint64_t step, bool with_bad) const {
    data.compute_gradients(rank, number * 1000003 + step);
    if (!with_bad || bad_rank(step, size) != rank) return;
    const std::uint64_t h = hash(5, step);
    constexpr float inf = std::numeric_limits<float>::infinity();
    constexpr std::array<float, 5> values = {std::numeric_limits<float>::quiet_NaN(), inf, -inf,
                                             3e14F, -3e38F};
    auto& grad = data.grads[0];
    grad[(h >> 20U) % grad.size()] = values[(h >> 8U) % values.size()];
  }
  [[nodiscard]] std::string to_text() const {
    std::ostringstream out;
    out << "--seed " << seed << " --job " << number << ": "
        << algorithm_names[static_cast<int>(options.algorithm)];
    if (options.algorithm != algorithm::adam) {
      out << " " << exchange_names[static_cast<int>(options.exchange)] << ", warm-up "
          << options.warm_up;
    }
    return std::move(out).str();
  }
};

/// What a rank leaves behind.
struct left_behind {
  std::vector<std::vector<float>> params;
  std::string state;
};
using ranks_left = std::vector<left_behind>;

/// From `step` on there were `size` ranks.
struct leg {
  std::uint64_t step = 0;
  int size = 0;
};

// -- the job to which nothing happens -----------------------------------------------------------

/// From what `from` left (nothing: from the start), with so many ranks, up to a step.
ranks_left undisturbed(const job& j, const ranks_left& from, int size, std::uint64_t until) {
  const auto one = [&](const onebit::threads& t) {
    strikers none;
    const auto o = make_trained(j.options, struck(t, &none));
    if (!from.empty()) {
      const auto& source = from[static_cast<std::size_t>(t.rank()) % from.size()];
      for (std::size_t i = 0; i < source.params.size(); ++i) {  // views stay where they are
        std::copy(source.params[i].begin(), source.params[i].end(), o->data.params[i].begin());
      }
      std::vector<const std::string*> states;
      for (const auto& left : from) states.push_back(&left.state);
      if (states.size() == static_cast<std::size_t>(size)) {
        o->load(source.state);
      } else {
        o->load_old_job(states);
      }
    }
    const bool counts = j.options.algorithm == algorithm::zero_one_adam;
    while (o->steps() < until) {
      const std::uint64_t step = o->steps();
      j.fill(o->data, t.rank(), size, step, counts && j.has_bad_gradient(step));
      (void)o->step(j.lr(step));
      if (o->steps() > step) continue;
      j.fill(o->data, t.rank(), size, step, false);
      (void)o->step(j.lr(step));
      if (o->steps() == step) break;  // it has diverged: all further steps are skipped
    }
    return left_behind{o->data.params, o->saved()};
  };
  return on_ranks(size, one, deadline);
}

// -- the job to which things happen -------------------------------------------------------------

/// One run of it, from its newest checkpoint to its end, or to what ends it.
struct run {
  int size = 1;
  std::vector<event> passing;  ///< in the order of their steps
  bool ends = false;           ///< by `last`
  event last;
  bool at_birth = false;  ///< `last` may strike before the first step
};

enum class place : int { loading, step, saving };
inline constexpr const char* place_names[] = {"loading", "a step", "saving"};

/// What the ranks tell.
class news {
 public:
  void fail(const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (problem.empty()) problem = text;
  }
  void count(what w) {
    const std::lock_guard lock(mutex_);
    ++happened[static_cast<std::size_t>(w)];
  }
  /// What ends the run has happened.
  void strike(what w, place p) {
    count(w);
    const std::lock_guard lock(mutex_);
    has_struck = true;
    when = clock_type::now();
    ++struck_in[static_cast<std::size_t>(p)];
  }
  /// Only by rank 0: a checkpoint of `step` that `writers` ranks wrote has been loaded by so many.
  /// Ranks may have changed, and saved, without a step in between: that is a leg too.
  void loaded(std::uint64_t step, int writers, int size) {
    const auto is_lost = [&](const leg& l) {
      return l.step > step || (l.step == step && l.size != writers);
    };
    while (!legs.empty() && is_lost(legs.back())) legs.pop_back();
    if (legs.empty() || legs.back().size != size) legs.push_back({step, size});
  }

  std::string problem;  ///< the first one
  bool has_struck = false;
  clock_type::time_point when;
  bool has_diverged = false;  ///< only by rank 0
  std::uint64_t steps = 0;    ///< only by rank 0
  std::vector<leg> legs;
  std::array<std::uint64_t, n_whats> happened{};
  std::array<std::uint64_t, 3> struck_in{};

 private:
  std::mutex mutex_;
};

/// One rank of a run.
class rank_of_run {
 public:
  rank_of_run(const job& j, const run& r, const fs::path& root, news& told, onebit::threads t)
      : job_(&j), run_(&r), root_(&root), told_(&told), t_(std::move(t)) {}

  /// From a checkpoint, of step `first` or later, to a step: what it leaves; nothing when it was
  /// ended before. Throws what strikes it, and what it is told.
  left_behind active(std::uint64_t first, std::uint64_t until) {
    is_victim_ = run_->ends && run_->last.victim == t_.rank();
    try {
      if (run_->at_birth) arm_last();
      o_ = make_trained(job_->options, struck(t_, &strikers_));
      load(first);
      start_ = o_->steps();
      const bool lived = go_on(until);
      disarm();  // an allocation that is still to fail must not do so in the test
      return lived ? left_behind{o_->data.params, o_->saved()} : left_behind{};
    } catch (const std::exception& e) {
      const bool struck_here = strikers_.alone.has_struck() || (may_fail_ && allocations_left < 0);
      disarm();
      if (struck_here) {
        told_->strike(run_->last.what, place_);
      } else if (dynamic_cast<const onebit::error*>(&e) == nullptr) {
        told_->fail(at_step(std::string("a survivor was told no error of onebit: ") + e.what()));
      }
      throw;
    }
  }

 private:
  void arm_last() {
    if (!is_victim_) return;
    const event& e = run_->last;
    if (e.what == what::exception) strikers_.alone.arm(e.at, e.behind);
    may_fail_ = e.what == what::allocation;
    if (may_fail_) allocations_left = e.at;
  }
  void disarm() {
    strikers_.alone.disarm();
    allocations_left = -1;
    may_fail_ = false;
  }

  void load(std::uint64_t first) {
    place_ = place::loading;
    const auto step = o_->load_latest(*root_);
    if (first > 0 && (!step || *step < first)) {
      told_->fail("what was saved at step " + std::to_string(first) + " was not found");
    }
    if (t_.rank() == 0) {
      namespace files = onebit::detail::files;
      const auto written = files::files_of(*root_ / files::step_name(o_->steps()), o_->steps());
      const int writers = step && written ? static_cast<int>(written->size()) : t_.size();
      told_->loaded(o_->steps(), writers, t_.size());
    }
    skipped_ = never;
  }

  /// False: it was ended.
  bool go_on(std::uint64_t until) {
    bool is_due = run_->at_birth;
    while (o_->steps() < until) {
      const std::uint64_t step = o_->steps();
      if (run_->ends && !is_due && step >= start_ + run_->last.after) {
        is_due = true;
        arm_last();
        if (run_->last.what == what::stop) {
          save();
          if (is_victim_) told_->strike(what::stop, place::step);
          return false;
        }
        if (is_victim_ && run_->last.what == what::leaves) {
          told_->strike(what::leaves, place::step);
          return false;
        }
      }
      const event* now = due();
      if (now != nullptr && now->what == what::reload) {
        ++next_;
        if (!has_saved_) continue;
        if (t_.rank() == 0) told_->count(what::reload);
        load(0);
        continue;
      }
      if (now != nullptr && now->what != what::failed_save) ++next_;
      place_ = place::step;
      try_step(now);
      if (has_diverged_) return true;
      const bool is_round = o_->steps() % job_->steps_between_saves == 0;
      if (o_->steps() > step && is_round && o_->steps() < until) save();
    }
    save();
    return true;
  }
  /// What happens next, if it is time.
  [[nodiscard]] const event* due() const {
    if (next_ == run_->passing.size()) return nullptr;
    const event& e = run_->passing[next_];
    return o_->steps() >= start_ + e.after ? &e : nullptr;
  }
  [[nodiscard]] bool is_victim_of(const event& e) const { return e.victim == t_.rank(); }

  /// Makes a step, or finds what must be found.
  void try_step(const event* now) {
    const std::uint64_t step = o_->steps();
    const bool bad = job_->has_bad_gradient(step) && skipped_ != step;
    job_->fill(o_->data, t_.rank(), t_.size(), step, bad);
    const std::uint64_t before = o_->data.digest();
    // nobody hears of another rate in a local step
    const bool misled = now != nullptr && now->what == what::other_rate && t_.size() > 1 &&
                        job_->options.algorithm != algorithm::zero_one_adam;
    float lr = job_->lr(step);
    if (misled && is_victim_of(*now)) {
      lr = now->behind ? 2 * lr : std::numeric_limits<float>::quiet_NaN();
    }
    strikers_.together = {};
    if (now != nullptr && now->what == what::network) {
      strikers_.together.arm(now->at, now->behind);
    }
    onebit::report done;
    try {
      done = announced_step(lr);
    } catch (const std::exception& e) {
      if (o_->data.digest() != before || o_->steps() != step) {
        told_->fail(at_step(std::string("a step that threw has moved parameters: ") + e.what()));
      }
      const bool is_told_so = dynamic_cast<const onebit::rank_mismatch*>(&e) != nullptr ||
                              dynamic_cast<const onebit::invalid_input*>(&e) != nullptr;
      if (!strikers_.together.has_struck() && !(misled && is_told_so)) throw;
      strikers_.together.disarm();
      if (t_.rank() == 0) told_->count(now->what);
      return;
    }
    strikers_.together.disarm();
    if (job_->verify_every > 0 && o_->steps() % job_->verify_every == 0) {
      try {
        o_->verify();
      } catch (const onebit::invalid_input&) {  // between two exchanges of 0/1 Adam
      }
    }
    const bool is_kept = o_->steps() > step,
               is_local = done.phase == onebit::phase::local && !done.refreshed;
    if (misled) told_->fail(at_step("another rate was not noticed"));
    if (is_kept && bad && !is_local) told_->fail(at_step("a bad gradient was not noticed"));
    if (!is_kept && !bad) {
      has_diverged_ = true;  // or so it seems: then the other job ends here, too
      if (t_.rank() == 0) told_->has_diverged = true;
      return;
    }
    const bool is_own = job_->bad_rank(step, t_.size()) == t_.rank();
    if (done.skipped != (bad && (!is_local || is_own))) told_->fail(at_step("a wrong report"));
    if (!is_kept) skipped_ = step;
    if (!is_kept && o_->data.digest() != before) told_->fail(at_step("a skip moved parameters"));
    if (t_.rank() != 0) return;
    if (bad) told_->count(what::bad_gradient);
    told_->steps += is_kept ? 1 : 0;
  }

  /// In some steps some tensors are announced: the same bits as without.
  onebit::report announced_step(float lr) {
    const std::uint64_t h = job_->hash(4, o_->steps());
    if (h % 3 == 0) {
      o_->begin(lr);
      const std::size_t n = o_->data.params.size();
      for (std::size_t t = n; t-- > n - (h >> 8U) % (n + 1);) o_->ready(t);
    }
    return o_->step(lr);
  }

  void save() {
    place_ = place::saving;
    const event* now = due();
    if (now != nullptr && now->what == what::failed_save) {
      ++next_;
      try {
        o_->save_all(*root_, [&](std::ostream& out) {
          o_->write_parameters(out);
          if (!is_victim_of(*now)) return;
          if (now->behind) throw onebit::checkpoint_error("no more space, says the test");
          out.setstate(std::ios::badbit);
        });
        told_->fail(at_step("a save that failed was not noticed"));
      } catch (const onebit::checkpoint_error&) {
        if (may_fail_ && allocations_left < 0) throw;  // what ends the run came before
        if (t_.rank() == 0) told_->count(what::failed_save);
      }
    }
    o_->save_all(*root_, [&](std::ostream& out) { o_->write_parameters(out); });
    has_saved_ = true;
  }

  [[nodiscard]] std::string at_step(const std::string& text) const {
    return "rank " + std::to_string(t_.rank()) + " of " + std::to_string(t_.size()) +
           (o_ ? ", step " + std::to_string(o_->steps()) : std::string()) + ": " + text;
  }

  static constexpr std::uint64_t never = ~std::uint64_t{0};
  const job* job_;
  const run* run_;
  const fs::path* root_;
  news* told_;
  onebit::threads t_;
  strikers strikers_;
  std::unique_ptr<trained> o_;
  place place_ = place::loading;
  std::uint64_t start_ = 0, skipped_ = never;
  std::size_t next_ = 0;  ///< of what passes
  bool is_victim_ = false, may_fail_ = false, has_saved_ = false, has_diverged_ = false;
};

// -- both ---------------------------------------------------------------------------------------

struct totals {
  std::uint64_t jobs = 0, compared = 0, steps = 0, restarts = 0, changes = 0, verdicts = 0,
                failures = 0, diverged = 0;
  std::array<std::uint64_t, n_whats> happened{};
  std::array<std::uint64_t, 3> struck_in{};
  std::array<std::uint64_t, n_compositions> by_composition{};
  double longest_wait = 0;

  void print() const {
    std::cout << jobs << " jobs, " << compared << " steps compared, " << steps << " made, "
              << restarts << " restarts, " << changes << " changes of membership, " << verdicts
              << " verdicts, " << failures << " failures, " << diverged
              << " diverged, longest wait " << longest_wait << " s\n ";
    for (std::size_t i = 0; i < n_whats; ++i) {
      std::cout << " " << what_names[i] << " " << happened[i] << (i + 1 < n_whats ? "," : "\n ");
    }
    for (std::size_t i = 0; i < 3; ++i) {
      std::cout << (i == 0 ? " a run ended in " : ", ") << place_names[i] << " " << struck_in[i];
    }
    std::cout << "\n  verdicts by composition:";
    for (const std::uint64_t n : by_composition) std::cout << " " << n;
    std::cout << std::endl;
  }
};

/// The newest checkpoint is damaged, where another one is left that is whole, of `first` or later.
bool damage(const fs::path& root, std::uint64_t first, chance& c) {
  namespace files = onebit::detail::files;
  const auto steps = files::checkpoints_in(root);
  if (steps.size() < 2 || steps[1].step < first) return false;
  const auto manifest = files::files_of(steps[1].path, steps[1].step);
  if (!manifest || !files::are_whole(steps[1].path, *manifest, 0, 1)) return false;
  const fs::path newest = steps[0].path;
  const fs::path file = newest / (c.once_in(3) ? std::string("manifest") : files::rank_name(0));
  if (!fs::exists(file) || fs::file_size(file) == 0) return false;
  const auto size = fs::file_size(file);
  const auto kind = c.below(3);
  if (kind == 0) {
    fs::remove(file);
  } else if (kind == 1) {
    fs::resize_file(file, c.below(size));
  } else {
    std::fstream both(file, std::ios::in | std::ios::out | std::ios::binary);
    const auto at = static_cast<std::streamoff>(c.below(size));
    both.seekg(at);
    const int byte = both.get();
    both.seekp(at);
    both.put(static_cast<char>(byte ^ (1 << c.below(8))));
  }
  return true;
}

run draw_run(int size, chance& c) {
  run r;
  r.size = size;
  for (auto n = c.below(4); n > 0; --n) {
    r.passing.push_back(
        {c.of<what>({what::network, what::other_rate, what::failed_save, what::reload}),
         c.below(300), c.number_below(size), c.number_below(6), c.once_in(2)});
  }
  std::sort(r.passing.begin(), r.passing.end(),
            [](const event& a, const event& b) { return a.after < b.after; });
  r.ends = !c.once_in(4);
  r.last.what =
      c.of<what>({what::exception, what::exception, what::allocation, what::leaves, what::stop});
  r.last.after = c.below(300);
  r.last.victim = c.number_below(size);
  // rank 0 lists directories, which libstdc++ does where nothing may throw: the program would end
  const bool ends_program = r.last.what == what::allocation && r.last.victim == 0;
  if (ends_program && size > 1) r.last.victim = 1 + c.number_below(size - 1);
  if (ends_program && size == 1) r.last.what = what::exception;
  r.last.behind = c.once_in(2);
  r.at_birth =
      r.ends && c.once_in(5) && (r.last.what == what::exception || r.last.what == what::allocation);
  // building an optimizer allocates much, and a step nothing
  const int allocations = r.at_birth ? 400 : 60;
  r.last.at = c.number_below(r.last.what == what::allocation ? allocations : 20);
  return r;
}

job draw_job(std::uint64_t seed, std::uint64_t number, chance& c) {
  job j;
  j.seed = seed;
  j.number = number;
  j.options = draw_options(number % n_compositions, c);
  j.steps_between_saves = c.of<std::uint64_t>({20, 50, 130});
  j.verify_every = c.of<std::uint64_t>({0, 37, 200});
  return j;
}

class soak_of_job {
 public:
  soak_of_job(std::uint64_t seed, std::uint64_t number, totals& sum)
      : chance_(seed * 0x9E3779B97F4A7C15U + number), sum_(&sum) {
    job_ = draw_job(seed, number, chance_);
    is_elastic_ = job_.options.exchange != exchange::hierarchical;
    // one node compresses nothing
    size_ = is_elastic_ ? 1 + chance_.number_below(5)
                        : job_.options.ranks_per_node * (chance_.once_in(5) ? 1 : 2);
    rounds_ = 1 + chance_.number_below(4);
    ++sum_->jobs;
  }

  /// Up to its end, or to a difference.
  void active(std::uint64_t steps_between_verdicts) {
    ranks_left clean;
    std::uint64_t first = 0;
    for (int i = 0; i < rounds_; ++i) {
      const std::uint64_t until = first + steps_between_verdicts;
      std::string problem;
      try {
        const ranks_left ends = disturbed(first, until, problem);
        if (problem.empty()) clean = truth(std::move(clean), first, until);
        if (problem.empty()) problem = difference(clean, ends);
      } catch (const std::exception& e) {
        problem = std::string("the job to which nothing happens: ") + e.what();
      }
      ++sum_->verdicts;
      ++sum_->by_composition[job_.number % n_compositions];
      sum_->compared += steps_between_verdicts;
      if (!problem.empty()) {
        ++sum_->failures;
        std::cout << "FAILED: " << job_.to_text() << ", steps " << first << " to " << until << ", "
                  << legs_to_text() << ": " << problem << std::endl;
        return;
      }
      if (has_diverged_) {
        ++sum_->diverged;
        std::cout << "diverged, with the same bits: " << job_.to_text() << ", steps " << first
                  << " to " << until << ", " << legs_to_text() << std::endl;
        return;
      }
      first = until;
    }
  }

 private:
  /// What the job to which things happen leaves; or what is wrong with it.
  ranks_left disturbed(std::uint64_t first, std::uint64_t until, std::string& problem) {
    legs_.clear();
    for (;;) {
      const run r = draw_run(size_, chance_);
      news told;
      told.legs = legs_;
      std::string error;
      ranks_left ends;
      try {
        ends = on_ranks(
            r.size,
            [&](const onebit::threads& t) {
              return rank_of_run(job_, r, root_.path, told, t).active(first, until);
            },
            deadline);
      } catch (const std::exception& e) {
        error = e.what();
        const std::chrono::duration<double> waited = clock_type::now() - told.when;
        if (told.has_struck) sum_->longest_wait = std::max(sum_->longest_wait, waited.count());
        if (told.has_struck && waited > deadline / 2) told.fail("a rank waited for its time-out");
      }
      allocations_left = -1;  // of rank 0, which is this thread
      legs_ = told.legs;
      sum_->steps += told.steps;
      for (std::size_t i = 0; i < n_whats; ++i) sum_->happened[i] += told.happened[i];
      for (std::size_t i = 0; i < 3; ++i) sum_->struck_in[i] += told.struck_in[i];
      if (!error.empty() && !told.has_struck)
        told.fail("a job that nothing struck ended: " + error);
      has_diverged_ = told.has_diverged;
      problem = told.problem;
      if (!problem.empty()) return {};
      const bool lived = error.empty() && std::all_of(ends.begin(), ends.end(), [](const auto& e) {
                           return !e.state.empty();
                         });
      if (lived) return ends;
      ++sum_->restarts;
      if (chance_.once_in(4) && damage(root_.path, first, chance_)) {
        ++sum_->happened[static_cast<std::size_t>(what::damaged)];
      }
      if (!is_elastic_ || chance_.once_in(2)) continue;
      const int size = 1 + chance_.number_below(5);
      sum_->changes += size != size_ ? 1 : 0;
      size_ = size;
    }
  }

  /// The same steps with the same ranks, and nothing else.
  [[nodiscard]] ranks_left truth(ranks_left from, std::uint64_t first, std::uint64_t until) const {
    if (legs_.front().step != first) throw std::runtime_error("it begins at another step");
    for (std::size_t i = 0; i < legs_.size(); ++i) {
      const std::uint64_t end = i + 1 < legs_.size() ? legs_[i + 1].step : until;
      from = undisturbed(job_, from, legs_[i].size, end);
    }
    return from;
  }

  [[nodiscard]] static std::string difference(const ranks_left& clean, const ranks_left& ends) {
    if (clean.size() != ends.size()) return "another number of ranks";
    for (std::size_t r = 0; r < ends.size(); ++r) {
      const std::string who = "rank " + std::to_string(r) + " has other ";
      for (std::size_t t = 0; t < ends[r].params.size(); ++t) {
        const auto &a = clean[r].params[t], &b = ends[r].params[t];
        if (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0) continue;
        return who + "parameters in tensor " + std::to_string(t);
      }
      const auto &a = clean[r].state, &b = ends[r].state;
      if (a == b) continue;
      const auto at = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
      return who + "state from byte " + std::to_string(at) + " of " + std::to_string(a.size()) +
             " on";
    }
    return {};
  }

  [[nodiscard]] std::string legs_to_text() const {
    std::string text;
    for (const leg& l : legs_) {
      text += (text.empty() ? "" : ", ") + std::to_string(l.size) + " ranks from " +
              std::to_string(l.step);
    }
    return text;
  }

  chance chance_;
  totals* sum_;
  job job_;
  bool is_elastic_ = true, has_diverged_ = false;
  int size_ = 1, rounds_ = 1;
  std::vector<leg> legs_;
  scratch root_;
};

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t seconds = 0, jobs = n_compositions, seed = 1, steps = 1000;
  std::int64_t only = -1;
  CLI::App app{"Jobs to which things happen have the bits of jobs to which nothing happens."};
  app.add_option("--seconds", seconds, "for so long, instead of a number of jobs");
  app.add_option("--jobs", jobs, "so many jobs; 13 are one of each composition")
      ->capture_default_str();
  app.add_option("--seed", seed, "of all that is chance")->capture_default_str();
  app.add_option("--job", only, "only this job, counted from 0");
  app.add_option("--steps", steps, "steps from verdict to verdict")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  totals sum;
  const auto start = clock_type::now();
  auto told = start;
  for (std::uint64_t number = only < 0 ? 0 : static_cast<std::uint64_t>(only);; ++number) {
    soak_of_job(seed, number, sum).active(steps);
    const auto now = clock_type::now();
    if (only >= 0 ||
        (seconds == 0 ? number + 1 >= jobs : now - start >= std::chrono::seconds(seconds))) {
      break;
    }
    if (now - told < std::chrono::minutes(5)) continue;
    told = now;
    sum.print();
  }
  sum.print();
  return sum.failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
