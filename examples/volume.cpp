// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// What a schedule will send, counted without training: rounds, bits per parameter and step, bytes
// per rank, how many times less than a ring allreduce in 16 bits, with averages in int8, bf16
// and fp32, and the reductions against 1-bit Adam. Without options: the papers' own runs.

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <onebit/schedule/custom.hpp>
#include <onebit/schedule/freeze.hpp>
#include <onebit/schedule/intervals.hpp>
#include <string>
#include <vector>

#include "advisor/dry_run.hpp"

namespace {

struct run {
  std::string name;
  std::string algorithm;
  std::uint64_t parameters = 0;
  std::uint64_t steps = 0;
  std::uint64_t warmup = 0;
  std::uint64_t one_bit_adam_steps = 0;   ///< the 1-bit Adam run to compare with ...
  std::uint64_t one_bit_adam_warmup = 0;  ///< ... and its warm-up
};

struct interval_flags {
  std::uint64_t kappa = 16, doubling = 32678, max_interval = 16;
};

advisor::step_counts count(const run& r, const interval_flags& flags) {
  const auto constant = [](std::uint64_t) { return 1.0F; };
  if (r.algorithm == "adam" || r.algorithm == "lamb") {
    return advisor::dry_run(onebit::always_dense{}, r.steps, constant);
  }
  if (r.algorithm == "zero_one_adam") {
    return advisor::dry_run(onebit::intervals({.kappa = flags.kappa,
                                               .warmup_steps = r.warmup,
                                               .doubling_steps = flags.doubling,
                                               .max_interval = flags.max_interval,
                                               .stop_refreshing = true}),
                            r.steps, constant);
  }
  return advisor::dry_run(onebit::freeze({.after = r.warmup}, 0.999), r.steps, constant);
}

constexpr double ring_bits = 16;  // what everybody runs

void print(const run& r, const interval_flags& flags, int ranks, double average_bits) {
  const advisor::step_counts n = count(r, flags);
  const double bits = n.bits_per_step(average_bits);
  const double w = static_cast<double>(ranks);
  const double bytes = 2 * (w - 1) / w * static_cast<double>(r.parameters) * bits / 8;
  std::printf("%-22s %-13s %11llu %8llu %7llu %7llu %7.3f %6.2fx %6.2fx %6.2fx %14.0f",
              r.name.c_str(), r.algorithm.c_str(), static_cast<unsigned long long>(r.parameters),
              static_cast<unsigned long long>(r.steps), static_cast<unsigned long long>(n.rounds()),
              static_cast<unsigned long long>(n.dense + n.both), bits,
              ring_bits / n.sent_bits_per_step(8.25), ring_bits / n.sent_bits_per_step(16),
              ring_bits / n.sent_bits_per_step(32), bytes);
  if (r.one_bit_adam_steps > 0) {
    const auto constant = [](std::uint64_t) { return 1.0F; };
    const double other = advisor::dry_run(onebit::freeze({.after = r.one_bit_adam_warmup}, 0.999),
                                          r.one_bit_adam_steps, constant)
                             .bits_per_step(average_bits);
    std::printf("  %5.1f%% rounds, %5.1f%% data",
                100 * (1 - static_cast<double>(n.rounds()) / static_cast<double>(n.steps())),
                100 * (1 - bits / other));
  }
  std::printf("\n");
}

int run_program(int argc, char** argv) {
  CLI::App app{"Counts what a schedule sends, without training."};
  run own{"yours", "", 0, 0, 0, 0, 0};
  interval_flags flags;
  int ranks = 64;
  double average_bits = 16;
  app.add_option("--algorithm", own.algorithm, "schedule to count; default: the papers' runs")
      ->check(CLI::IsMember({"adam", "lamb", "one_bit_adam", "one_bit_lamb", "zero_one_adam"}));
  app.add_option("--parameters", own.parameters, "number of parameters")
      ->check(CLI::PositiveNumber);
  app.add_option("--steps", own.steps, "steps in all")->check(CLI::PositiveNumber);
  app.add_option("--warmup", own.warmup, "warm-up steps")->check(CLI::PositiveNumber);
  app.add_option("--ranks", ranks, "ranks")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option(
         "--average-bits", average_bits,
         "bits of a value where ranks average: 8.25 (dense_sum::in_int8), 16 (in_bf16) or 32")
      ->check(CLI::IsMember({8.25, 16.0, 32.0}))
      ->capture_default_str();
  app.add_option("--kappa", flags.kappa, "0/1 Adam: refreshes before their gap doubles")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--doubling", flags.doubling, "0/1 Adam: steps before the interval doubles")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--max-interval", flags.max_interval, "0/1 Adam: longest interval")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--one-bit-adam-warmup", own.one_bit_adam_warmup,
                 "compare with 1-bit Adam of as many steps and this warm-up");
  CLI11_PARSE(app, argc, argv);

  std::vector<run> runs;
  if (own.algorithm.empty()) {
    constexpr std::uint64_t base = 110106428, large = 336226108;
    runs = {{"BERT-Large", "adam", large, 152000, 0, 0, 0},
            {"BERT-Large", "one_bit_adam", large, 152000, 23000, 0, 0},
            {"BERT-Large, SQuAD", "one_bit_adam", large, 1848, 400, 0, 0},
            {"BERT-Large, batch 64K", "one_bit_lamb", large, 5993, 1000, 0, 0},
            {"BERT-Large", "zero_one_adam", large, 162000, 12500, 152000, 23000},
            {"BERT-Base", "zero_one_adam", base, 162000, 12500, 152000, 23000}};
  } else {
    const bool warm = own.algorithm != "adam" && own.algorithm != "lamb";
    if (own.parameters == 0 || own.steps == 0 || (warm && own.warmup == 0)) {
      std::fprintf(stderr, "volume: --algorithm %s needs --parameters, --steps%s\n",
                   own.algorithm.c_str(), warm ? " and --warmup" : "");
      return 1;
    }
    if (own.one_bit_adam_warmup > 0) own.one_bit_adam_steps = own.steps;
    runs = {own};
  }
  std::printf(
      "%d ranks; bits and bytes with averages in %g bits; a round that sends both counts as "
      "dense;\n"
      "times less than a ring allreduce in 16 bits, with averages in int8, bf16 and fp32\n",
      ranks, average_bits);
  std::printf("%-22s %-13s %11s %8s %7s %7s %7s %7s %7s %7s %14s  %s\n", "run", "algorithm",
              "parameters", "steps", "rounds", "dense", "bits", "int8", "bf16", "fp32",
              "bytes/step", "fewer than 1-bit Adam");
  for (const run& r : runs) print(r, flags, ranks, average_bits);
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
