// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Counts what a run sends, without training: rounds, bits per parameter and step, bytes per rank,
// and the factor over a ring allreduce in 16 bits, with averages in int8, bf16 and fp32. Without
// options: BERT, with the papers' schedules and with the library's defaults.

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "advisor/dry_run.hpp"

namespace {

using advisor::step_counts;

constexpr std::uint64_t bert_base = 110106428, bert_large = 336226108;
constexpr double ring_bits = 16;  // bits per element of the usual ring allreduce

/// Intervals of the paper's 0/1 Adam, and the learning rate that they depend on.
struct intervals_flags {
  std::uint64_t kappa = 16, doubling = 0, max_interval = 16;
  std::uint64_t lr_warmup = 12500;  ///< warm-up of the learning rate, in steps
  std::uint64_t halving = 35862;    ///< steps in which it then halves; BERT: 0.99 each 520 steps
  [[nodiscard]] onebit::intervals_options options() const {
    return {.kappa = kappa,
            .warmup_steps = lr_warmup,
            .doubling_steps = doubling,
            .max_interval = max_interval};
  }
  [[nodiscard]] float rate(std::uint64_t step) const {
    if (step < lr_warmup) return static_cast<float>(step + 1) / static_cast<float>(lr_warmup);
    return std::exp2(-static_cast<float>(step - lr_warmup) / static_cast<float>(halving));
  }
};

struct run {
  std::string name, algorithm;
  std::uint64_t parameters = 0;
  step_counts counts;
  step_counts over{};  ///< 1-bit Adam run that the paper compares this run with; 0 steps: none
};

step_counts papers_zero_one(intervals_flags flags, std::uint64_t steps) {
  if (flags.doubling == 0) flags.doubling = 32678;  // as in the authors' code
  onebit::intervals_options o = flags.options();
  o.stop_refreshing = true;
  return advisor::dry_run(onebit::intervals(o), steps, advisor::constant_rate);
}
step_counts own_zero_one(const intervals_flags& flags, std::uint64_t steps, double parameters) {
  return advisor::zero_one_run(
      {}, steps, [&](std::uint64_t step) { return flags.rate(step); },
      advisor::squares_bits(parameters));
}
step_counts own(std::uint64_t steps, double parameters) {
  return advisor::one_bit_run(steps, advisor::squares_bits(parameters));
}
step_counts always_dense(std::uint64_t steps) { return {steps, 0, 0, 0}; }

/// Runs of the papers, and the same models and steps with the library's defaults.
std::vector<run> papers_runs() {
  const auto papers = step_counts::freeze_after;
  const intervals_flags flags;
  const auto lamb = [](std::uint64_t steps) {
    return advisor::one_bit_run(steps, advisor::lamb_squares_bits(bert_large));
  };
  return {{"BERT-Large", "adam", bert_large, always_dense(152000)},
          {"BERT-Large", "one_bit_adam, paper's", bert_large, papers(23000, 152000)},
          {"BERT-Large", "one_bit_adam", bert_large, own(152000, bert_large)},
          {"BERT-Large, SQuAD", "one_bit_adam, paper's", bert_large, papers(400, 1848)},
          {"BERT-Large, SQuAD", "one_bit_adam", bert_large, own(1848, bert_large)},
          {"BERT-Large, batch 64K", "one_bit_lamb, paper's", bert_large, papers(1000, 5993)},
          {"BERT-Large, batch 64K", "one_bit_lamb", bert_large, lamb(5993)},
          {"BERT-Large", "zero_one_adam, paper's", bert_large, papers_zero_one(flags, 162000),
           papers(23000, 152000)},
          {"BERT-Large", "zero_one_adam", bert_large, own_zero_one(flags, 162000, bert_large)},
          {"BERT-Base", "one_bit_adam, paper's", bert_base, papers(16000, 118000)},
          {"BERT-Base", "one_bit_adam", bert_base, own(118000, bert_base)},
          {"BERT-Base", "zero_one_adam, paper's", bert_base, papers_zero_one(flags, 118000),
           papers(16000, 118000)},
          {"BERT-Base", "zero_one_adam", bert_base, own_zero_one(flags, 118000, bert_base)}};
}

/// All algorithms for one model.
std::vector<run> own_runs(std::uint64_t parameters, std::uint64_t steps, std::uint64_t warmup,
                          const intervals_flags& flags) {
  const step_counts one_bit = step_counts::freeze_after(warmup, steps);
  return {
      {"yours", "adam, lamb", parameters, always_dense(steps)},
      {"yours", "one_bit_adam", parameters, own(steps, static_cast<double>(parameters))},
      {"yours", "one_bit_lamb", parameters,
       advisor::one_bit_run(steps, advisor::lamb_squares_bits(static_cast<double>(parameters)))},
      {"yours", "zero_one_adam", parameters,
       own_zero_one(flags, steps, static_cast<double>(parameters))},
      {"yours", "adam in 4 bits", parameters, advisor::four_bits_run(steps)},
      {"yours", "one-bit, papers'", parameters, one_bit},
      {"yours", "zero_one_adam, paper's", parameters, papers_zero_one(flags, steps), one_bit}};
}

void print(const run& r, int ranks, double average_bits) {
  const step_counts& n = r.counts;
  const double w = static_cast<double>(ranks);
  const double bytes =
      2 * (w - 1) / w * static_cast<double>(r.parameters) * n.bits(average_bits) / 8;
  std::printf("%-22s %-22s %11llu %8llu %7llu %7llu %7.3f %6.2fx %6.2fx %6.2fx %14.0f",
              r.name.c_str(), r.algorithm.c_str(), static_cast<unsigned long long>(r.parameters),
              static_cast<unsigned long long>(n.steps()),
              static_cast<unsigned long long>(n.rounds()),
              static_cast<unsigned long long>(n.dense + n.both), n.bits(average_bits),
              ring_bits / n.bits(8.25), ring_bits / n.bits(16), ring_bits / n.bits(32), bytes);
  if (r.over.steps() > 0) {  // as the paper counts
    std::printf("  %5.1f%% rounds, %5.1f%% data",
                100 * (1 - static_cast<double>(n.rounds()) / static_cast<double>(n.steps())),
                100 * (1 - n.papers_bits(average_bits) / r.over.papers_bits(average_bits)));
  }
  std::printf("\n");
}

int run_program(int argc, char** argv) {
  CLI::App app{"Counts what a run sends, without training: BERT's, or yours."};
  std::uint64_t parameters = 0, steps = 0, warmup = 0;
  intervals_flags flags;
  int ranks = 64;
  double average_bits = 16;
  auto* const n = app.add_option("--parameters", parameters, "number of parameters")
                      ->check(CLI::PositiveNumber);
  app.add_option("--steps", steps, "steps in all")->check(CLI::PositiveNumber)->needs(n);
  app.add_option("--warmup", warmup, "of the papers' one-bit forms: dense steps (15% of the steps)")
      ->check(CLI::PositiveNumber)
      ->needs(n);
  app.add_option("--ranks", ranks, "ranks")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option(
         "--average-bits", average_bits,
         "bits of a value where ranks average: 8.25 (dense_sum::in_int8), 16 (in_bf16) or 32")
      ->check(CLI::IsMember({8.25, 16.0, 32.0}))
      ->capture_default_str();
  const auto interval = [&](const char* name, std::uint64_t& to, const char* text) {
    app.add_option(name, to, text)->capture_default_str()->needs(n);
  };
  interval("--kappa", flags.kappa, "0/1 Adam: refreshes before their gap doubles");
  interval("--doubling", flags.doubling,
           "0/1 Adam: steps before the interval doubles; 0: when the learning rate has halved");
  interval("--max-interval", flags.max_interval, "0/1 Adam: longest interval");
  interval("--lr-warmup", flags.lr_warmup, "steps in which the learning rate rises");
  interval("--halving", flags.halving, "steps in which it halves from there on");
  CLI11_PARSE(app, argc, argv);
  if (parameters > 0 && steps == 0) {
    std::fprintf(stderr, "volume: --parameters needs --steps\n");
    return 1;
  }
  if (flags.halving == 0) flags.halving = steps;
  if (warmup == 0) warmup = steps * 23 / 152;

  std::printf(
      "%d ranks; bits per parameter and step, and bytes of a rank, with averages in %g bits; "
      "dense: steps that average;\n"
      "times less than a ring allreduce in 16 bits, with averages in int8, bf16 and fp32; the "
      "papers count a step\n"
      "that averages and exchanges as one that averages\n",
      ranks, average_bits);
  std::printf("%-22s %-22s %11s %8s %7s %7s %7s %7s %7s %7s %14s  %s\n", "run", "algorithm",
              "parameters", "steps", "rounds", "dense", "bits", "int8", "bf16", "fp32",
              "bytes/step", "less than the paper's 1-bit Adam");
  const auto runs = parameters > 0 ? own_runs(parameters, steps, warmup, flags) : papers_runs();
  for (const run& r : runs) print(r, ranks, average_bits);
  const auto bits_of = [&](const char* algorithm) {
    for (const run& r : runs) {
      if (r.algorithm == algorithm) return r.counts.bits(average_bits);
    }
    return 0.0;
  };
  if (parameters > 0 && bits_of("adam in 4 bits") < bits_of("one_bit_adam")) {
    std::printf(
        "in so few steps one_bit_adam sends more than 4 bits into your own Adam: "
        "compressed_allreduce with quantized<4>\n");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run_program(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "volume: %s\n", e.what());
    return 1;
  }
}
