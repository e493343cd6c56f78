// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Trains small models, for which the library was not tuned, by every optimizer with its defaults.
// Prints a table of the losses on held-out examples.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <fstream>

#include "all.hpp"
#include "forms.hpp"

namespace {

using tasks::form;
using tasks::groups;
using tasks::setting;
using entry = tasks::entry<float>;
template <class T>
using by_name = std::map<std::string, T>;

struct options {
  std::vector<std::string> task_names, optimizer_names;  // empty: all
  setting run;                                           // 0 steps, a rate of 0: the task's default
  double rate_factor = 1;
  int n_seeds = 3;
  bool grid = false;
  std::string curve_file;
};

/// Results of the trainings of all seeds.
struct outcome {
  by_name<std::vector<double>> losses;  // see task::evaluate
  std::uint64_t n_skipped = 0;          // number of skipped steps
  double share = 0;                     // bytes sent / bytes of fp32 averages of all gradients
};

/// The loss on held-out examples, at 100 points of each training: of rank 0, whose parameters in
/// 0/1 Adam and in local Adam differ from the others' between exchanges.
class curves {
 public:
  explicit curves(const std::string& file) {
    if (file.empty()) return;
    to_.exceptions(std::ios::failbit | std::ios::badbit);
    to_.open(file);
    to_ << "task,optimizer,seed,step,loss\n";
  }
  void note(const std::string& training, std::int64_t step, std::int64_t steps,
            tasks::task<float>& model) {
    if (!to_.is_open() || step % std::max<std::int64_t>(1, steps / 100) != 0) return;
    to_ << training << ',' << step << ',' << model.evaluate().at("") << std::endl;
  }

 private:
  std::ofstream to_;
};

/// Changes what is to change at 60% of the training. Returns the factor of the rate.
double change_late(const setting& s, std::int64_t step, tasks::task<float>& model) {
  const std::int64_t at = s.steps * 6 / 10;
  if (step < at) return 1;
  if (s.change.what == "data" && step == at) model.change_truth();
  if (s.change.what == "gradients") model.gradient_factor = static_cast<float>(s.change.factor);
  return s.change.what == "rate" ? s.change.factor : 1;
}

void train(const entry& of, const form& with, const setting& s, std::uint64_t seed, outcome& to,
           curves& curve) {
  std::vector<std::uint64_t> n_skipped(static_cast<std::size_t>(s.ranks));
  onebit::run_threads(s.ranks, [&](onebit::threads comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    const auto model = of.make(seed);
    groups g(1);
    for (auto& t : model->tensors) g[0].tensors.push_back({t.value, t.gradient});
    const tasks::stepper make_step = with.make(g, comm, s);
    const std::string training = of.name + ',' + with.name + ',' + std::to_string(seed);

    tasks::counter_random random{seed, 100 + rank};
    double bytes_sent = 0, bytes_of_averages = 0;
    for (std::int64_t step = 0; step < s.steps; ++step) {
      const double peak = s.rate * change_late(s, step, *model);
      model->gradient(random, s.batch);
      const onebit::report done = make_step(common::learning_rate(peak, step, s.steps));
      n_skipped[rank] += done.skipped ? 1 : 0;
      bytes_sent += static_cast<double>(done.bytes_sent);
      for (const auto& t : model->tensors) {
        bytes_of_averages += 8.0 * (s.ranks - 1) / s.ranks * static_cast<double>(t.value.size());
      }
      if (rank == 0) curve.note(training, step + 1, s.steps, *model);
    }
    if (rank != 0) return;
    for (const auto& [what, loss] : model->evaluate()) to.losses[what].push_back(loss);
    to.share = bytes_sent / bytes_of_averages;
  });
  to.n_skipped += *std::max_element(n_skipped.begin(), n_skipped.end());
}

struct summary {
  double mean = 0, least, most;
  explicit summary(const std::vector<double>& all)
      : least(*std::min_element(all.begin(), all.end())),
        most(*std::max_element(all.begin(), all.end())) {
    for (const double x : all) mean += x / static_cast<double>(all.size());
  }
};

void print_cell(const outcome& o, const outcome* baseline, const std::string& what) {
  const summary own(o.losses.at(what));
  std::printf(" %.4g (%.4g to %.4g)", own.mean, own.least, own.most);
  if (baseline != nullptr) {
    const summary its(baseline->losses.at(what));
    const double ratio = own.mean / its.mean;
    const bool is_equal =
        std::abs(ratio - 1) <= 0.01 || (own.mean >= its.least && own.mean <= its.most);
    std::printf(", %.4g %s", ratio, is_equal ? "=" : ratio < 1 ? "<" : ">");
  }
  if (o.n_skipped > 0) {
    std::printf(", %llu steps skipped", static_cast<unsigned long long>(o.n_skipped));
  }
  std::printf(" |");
}

/// Trains all forms, prints a row for each loss, and appends the shares of bytes to `shares`.
void make_rows(const entry& of, const std::vector<form>& forms, const setting& s, int n_seeds,
               by_name<std::vector<double>>& shares, curves& curve) {
  by_name<outcome> all;
  for (const form& f : forms) {
    for (int seed = 1; seed <= n_seeds; ++seed) {
      train(of, f, s, static_cast<std::uint64_t>(seed), all[f.name], curve);
    }
    shares[f.name].push_back(all[f.name].share);
  }
  for (const auto& [what, losses] : all.begin()->second.losses) {
    std::printf("| %s%s%s, %d ranks of %d, %lld steps, rate %g", of.name.c_str(),
                what.empty() ? "" : ", ", what.c_str(), s.ranks, s.batch,
                static_cast<long long>(s.steps), s.rate);
    if (s.beta2) std::printf(", beta2 %g", *s.beta2);
    if (s.change.what == "data")
      std::printf(", other data at 60%%");
    else if (!s.change.what.empty()) {
      std::printf(", %s times %g at 60%%", s.change.what.c_str(), s.change.factor);
    }
    std::printf(" |");
    for (const form& f : forms) {
      const auto baseline = all.find(f.baseline);
      print_cell(all[f.name], baseline == all.end() ? nullptr : &baseline->second, what);
    }
    std::printf("\n");
  }
  std::fflush(stdout);
}

/// Returns one setting; with --grid also settings that differ from it in one member.
std::vector<setting> settings_of(const options& o, const entry& of) {
  setting first = o.run;
  if (first.steps == 0) first.steps = of.steps;
  if (first.rate == 0) first.rate = of.rate;
  first.rate *= o.rate_factor;
  std::vector<setting> all{first};
  if (!o.grid) return all;
  const auto vary = [&](auto member, auto value) {
    setting other = first;
    other.*member = value;
    if (std::find(all.begin(), all.end(), other) == all.end()) all.push_back(other);
  };
  for (const int ranks : {2, 4, 8}) vary(&setting::ranks, ranks);
  for (const int batch : {1, 8}) vary(&setting::batch, batch);
  vary(&setting::steps, std::max<std::int64_t>(1, first.steps / 3));
  vary(&setting::steps, 3 * first.steps);
  for (const double factor : {0.5, 2.0}) vary(&setting::rate, factor * first.rate);
  return all;
}

template <class T>
void keep(std::vector<T>& all, const std::vector<std::string>& names) {
  std::erase_if(all, [&](const T& one) {
    return !names.empty() && std::find(names.begin(), names.end(), one.name) == names.end();
  });
}

void run(const options& o) {
  std::vector<form> forms = tasks::all_forms();
  keep(forms, o.optimizer_names);
  if (o.optimizer_names.empty()) std::erase_if(forms, [](auto& f) { return f.only_if_named; });
  std::vector<entry> learnt = tasks::all<float>();
  keep(learnt, o.task_names);
  std::printf(
      "Loss on held-out examples, mean (least to most) of %d seeds; of compressed optimizers also "
      "the\nratio to the baseline's mean: = within 1%% or between its least and most, < below, > "
      "above.\n\n| task |",
      o.n_seeds);
  for (const form& f : forms) std::printf(" %s |", f.name.c_str());
  std::printf("\n|---|");
  for (std::size_t i = 0; i < forms.size(); ++i) std::printf("---|");
  std::printf("\n");
  by_name<std::vector<double>> shares;
  curves curve(o.curve_file);
  for (const entry& of : learnt) {
    for (const setting& s : settings_of(o, of)) make_rows(of, forms, s, o.n_seeds, shares, curve);
  }
  std::printf("| bytes sent, of a dense fp32 run's |");
  for (const form& f : forms) {
    const summary sent(shares[f.name]);
    if (!f.baseline.empty()) {
      std::printf(" %.3f (%.3f to %.3f)", sent.mean, sent.least, sent.most);
    }
    std::printf(" |");
  }
  std::printf("\n");
}

template <class T>
CLI::IsMember one_of(const std::vector<T>& all) {
  std::vector<std::string> names;
  for (const T& one : all) names.push_back(one.name);
  return CLI::IsMember(names);
}

}  // namespace

int main(int argc, char** argv) {
  options o;
  CLI::App app{"Trains small models with every optimizer, by its defaults, and compares losses."};
  app.add_option("--task", o.task_names, "What is learnt; may be repeated (all)")
      ->check(one_of(tasks::all<float>()));
  app.add_option("--optimizer", o.optimizer_names, "A column; may be repeated (the first eight)")
      ->check(one_of(tasks::all_forms()));
  app.add_option("--ranks", o.run.ranks, "Threads that train together (4)")
      ->check(CLI::Range(2, 64));
  app.add_option("--batch", o.run.batch, "Examples per rank and step (8)")
      ->check(CLI::Range(1, 4096));
  app.add_option("--steps", o.run.steps, "Steps of each training (the task's)")
      ->check(CLI::Range(1, 1000000000));
  app.add_option("--rate", o.run.rate, "Learning rate, after its warm-up (the task's)")
      ->check(CLI::Range(1e-8, 10.0));
  app.add_option("--rate-factor", o.rate_factor, "Multiplies the rate (1)")
      ->check(CLI::Range(1e-6, 1e6));
  app.add_option("--beta2", o.run.beta2, "How long v remembers (the library's default)")
      ->check(CLI::Range(0.0, 0.99999));
  app.add_option("--change", o.run.change.what, "What changes at 60% of each training (nothing)")
      ->check(CLI::IsMember({"rate", "gradients", "data"}));
  app.add_option("--factor", o.run.change.factor, "Of the rate or the gradients that change (1)")
      ->check(CLI::Range(1e-6, 1e6));
  app.add_option("--curve", o.curve_file, "CSV file for losses during the trainings (none)");
  app.add_option("--seeds", o.n_seeds, "Trainings of each cell, with seeds 1, 2, ... (3)")
      ->check(CLI::Range(1, 1000));
  app.add_flag("--grid", o.grid,
               "Also 2, 4 and 8 ranks; batches of 1 and 8; a third of the steps, and three times; "
               "half of the rate, and twice: one change at a time");
  CLI11_PARSE(app, argc, argv);
  try {
    run(o);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tasks: %s\n", error.what());
    return 1;
  }
}
