// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Trains small models, for which the library was not tuned, by every optimizer with its defaults.
// Prints a table of the losses on held-out examples.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <functional>
#include <onebit/any_optimizer.hpp>
#include <onebit/onebit.hpp>
#include <onebit/papers/papers.hpp>
#include <optional>

#include "all.hpp"
#include "common/schedule.hpp"

namespace {

using entry = tasks::entry<float>;
using groups = std::vector<onebit::param_group<>>;
template <class T>
using by_name = std::map<std::string, T>;

/// Settings of a training.
struct setting {
  int ranks = 4, batch = 8;
  std::int64_t steps = 0;
  double rate = 0;  // at the peak
  std::optional<double> beta2{};
  friend bool operator==(const setting&, const setting&) = default;
};

/// Column of the table: an optimizer. Compared with the column `baseline`, unless that is empty.
struct form {
  std::string name, baseline;
  std::function<onebit::any_optimizer(const groups&, onebit::threads, const setting&)> make;
};

/// All columns. Options are the defaults, except options that depend on the number of steps, which
/// are as the guide recommends (choosing.md), and beta2, if given.
std::vector<form> all_forms() {
  const auto warm_up = [](const char* name, const setting& s) {
    return static_cast<std::uint64_t>(common::default_freeze(name, s.steps));
  };
  const auto told = [](auto options, const setting& s) {
    options.beta2 = s.beta2.value_or(options.beta2);
    return options;
  };
  const auto papers_warm_up = [](const setting& s) {  // 15% of the steps, as in the papers' runs
    return static_cast<std::uint64_t>(std::max<std::int64_t>(1, s.steps * 15 / 100));
  };
  return {
      {"adam", "",
       [=](const groups& g, auto comm, const setting& s) {
         return onebit::adam(g, comm, told(onebit::adam_options{}, s));
       }},
      {"one_bit_adam", "adam",
       [=](const groups& g, auto comm, const setting& s) {
         return onebit::one_bit_adam(g, comm, {.adam = told(onebit::adam_options{}, s)});
       }},
      {"zero_one_adam", "adam",
       [=](const groups& g, auto comm, const setting& s) {
         onebit::zero_one_adam_options options{.adam = told(onebit::adam_options{}, s)};
         options.schedule.warmup_steps = warm_up("zero_one_adam", s);
         // equal parameters on all ranks after the last step
         options.schedule.also_every = static_cast<std::uint64_t>(s.steps);
         return onebit::zero_one_adam(g, comm, options);
       }},
      {"lamb", "",
       [=](const groups& g, auto comm, const setting& s) {
         return onebit::lamb(g, comm, told(onebit::lamb_options{}, s));
       }},
      {"one_bit_lamb", "lamb",
       [=](const groups& g, auto comm, const setting& s) {
         return onebit::one_bit_lamb(g, comm, {.lamb = told(onebit::lamb_options{}, s)});
       }},
      {"papers' one_bit_adam", "adam",
       [=](const groups& g, auto comm, const setting& s) {
         auto [options, collective] = onebit::papers::one_bit_adam(papers_warm_up(s));
         options.adam = told(options.adam, s);
         return onebit::one_bit_adam(g, comm, options, collective);
       }},
      {"papers' one_bit_lamb", "lamb",
       [=](const groups& g, auto comm, const setting& s) {
         auto [options, collective] = onebit::papers::one_bit_lamb(papers_warm_up(s));
         options.lamb = told(options.lamb, s);
         return onebit::one_bit_lamb(g, comm, options, collective);
       }},
      {"papers' zero_one_adam", "adam",
       [=](const groups& g, auto comm, const setting& s) {
         auto [options, collective] = onebit::papers::zero_one_adam(papers_warm_up(s));
         options.adam = told(options.adam, s);
         options.schedule.also_every = static_cast<std::uint64_t>(s.steps);
         return onebit::zero_one_adam(g, comm, options, collective);
       }},
  };
}

struct options {
  std::vector<std::string> task_names, optimizer_names;  // empty: all
  setting run;                                           // 0 steps, a rate of 0: the task's default
  double rate_factor = 1;
  int n_seeds = 3;
  bool grid = false;
};

/// Results of the trainings of all seeds.
struct outcome {
  by_name<std::vector<double>> losses;  // see task::evaluate
  std::uint64_t n_skipped = 0;          // number of skipped steps
  double share = 0;                     // bytes sent / bytes of a 16-bit ring of gradients
};

void train(const entry& of, const form& with, const setting& s, std::uint64_t seed, outcome& to) {
  std::vector<std::uint64_t> n_skipped(static_cast<std::size_t>(s.ranks));
  onebit::run_threads(s.ranks, [&](onebit::threads comm) {
    const auto rank = static_cast<std::size_t>(comm.rank());
    const auto model = of.make(seed);
    groups g(1);
    for (auto& t : model->tensors) g[0].tensors.push_back({t.value, t.gradient});
    onebit::any_optimizer optimizer = with.make(g, comm, s);
    optimizer.warn_with(nullptr);  // the table shows the result

    tasks::counter_random random{seed, 100 + rank};
    double bytes_sent = 0, bytes_of_ring = 0;
    for (std::int64_t step = 0; step < s.steps; ++step) {
      model->gradient(random, s.batch);
      const onebit::report done = optimizer.step(common::learning_rate(s.rate, step, s.steps));
      n_skipped[rank] += done.skipped ? 1 : 0;
      bytes_sent += static_cast<double>(done.bytes_sent);
      for (const auto& t : model->tensors) {
        bytes_of_ring += 2.0 * (s.ranks - 1) / s.ranks * 2 * static_cast<double>(t.value.size());
      }
    }
    if (rank != 0) return;
    for (const auto& [what, loss] : model->evaluate()) to.losses[what].push_back(loss);
    to.share = bytes_sent / bytes_of_ring;
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
               by_name<std::vector<double>>& shares) {
  by_name<outcome> all;
  for (const form& f : forms) {
    for (int seed = 1; seed <= n_seeds; ++seed) {
      train(of, f, s, static_cast<std::uint64_t>(seed), all[f.name]);
    }
    shares[f.name].push_back(all[f.name].share);
  }
  for (const auto& [what, losses] : all.begin()->second.losses) {
    std::printf("| %s%s%s, %d ranks of %d, %lld steps, rate %g", of.name.c_str(),
                what.empty() ? "" : ", ", what.c_str(), s.ranks, s.batch,
                static_cast<long long>(s.steps), s.rate);
    if (s.beta2) std::printf(", beta2 %g", *s.beta2);
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
  std::vector<form> forms = all_forms();
  keep(forms, o.optimizer_names);
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
  for (const entry& of : learnt) {
    for (const setting& s : settings_of(o, of)) make_rows(of, forms, s, o.n_seeds, shares);
  }
  std::printf("| bytes sent per rank, of a 16-bit ring's |");
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
  app.add_option("--optimizer", o.optimizer_names, "A column; may be repeated (all)")
      ->check(one_of(all_forms()));
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
