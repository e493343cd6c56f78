// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The counts that the papers' schedules give, held exactly.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <onebit/schedule/freeze.hpp>
#include <onebit/schedule/intervals.hpp>
#include <vector>

#include "../../examples/advisor/dry_run.hpp"

namespace {

float constant(std::uint64_t) { return 1.0F; }

/// A number as it is printed with so many decimals.
double rounded(double x, int decimals) {
  const double unit = std::pow(10.0, decimals);
  return std::round(x * unit) / unit;
}

double one_bit_reduction(std::uint64_t warmup, std::uint64_t steps) {
  const auto n = advisor::dry_run(onebit::freeze({.after = warmup}, 0.999), steps, constant);
  CHECK(n.dense == warmup);
  CHECK(n.compressed == steps - warmup);
  CHECK(n.rounds() == steps);
  return 16 / n.papers_bits(16);
}

}  // namespace

TEST_CASE("paper counts: volume of 1-bit Adam and 1-bit LAMB against fp16") {
  CHECK(rounded(one_bit_reduction(23000, 152000), 2) == 4.89);  // BERT-Large
  CHECK(rounded(one_bit_reduction(400, 1848), 2) == 3.77);      // SQuAD
  CHECK(rounded(one_bit_reduction(1000, 5993), 2) == 4.57);     // LAMB
}

TEST_CASE("paper counts: 0/1 Adam on BERT, 162K steps") {
  const auto n = advisor::dry_run(onebit::intervals({.kappa = 16,
                                                     .warmup_steps = 12500,
                                                     .doubling_steps = 32678,
                                                     .max_interval = 16,
                                                     .stop_refreshing = true}),
                                  162000, constant);
  CHECK(n.rounds() == 74946);
  CHECK(n.dense + n.both == 153);
  const double one_bit =
      advisor::dry_run(onebit::freeze({.after = 23000}, 0.999), 152000, constant).papers_bits(16);
  const double bits = n.papers_bits(16);
  CHECK(rounded(100 * (1 - 74946 / 162000.0), 1) == 53.7);
  CHECK(rounded(bits, 3) == 0.477);
  CHECK(rounded(one_bit, 2) == 3.27);
  CHECK(rounded(100 * (1 - bits / one_bit), 1) == 85.4);
  // both exchanges of a refreshing step counted
  CHECK(rounded(n.bits(16), 3) == 0.478);
}

TEST_CASE("paper counts: 0/1 Adam on BERT-Base, 118K steps") {
  const auto n = advisor::dry_run(onebit::intervals({.kappa = 16,
                                                     .warmup_steps = 12500,
                                                     .doubling_steps = 32678,
                                                     .max_interval = 16,
                                                     .stop_refreshing = true}),
                                  118000, constant);
  const double one_bit = advisor::step_counts::freeze_after(16000, 118000).papers_bits(16);
  CHECK(rounded(100 * (1 - static_cast<double>(n.rounds()) / 118000), 1) == 40.2);
  CHECK(rounded(100 * (1 - n.papers_bits(16) / one_bit), 1) == 79.6);
}

TEST_CASE("counts of the defaults: BERT-Large without a warm-up sends a 15th of a 16-bit ring") {
  constexpr double bert_large = 336226108;
  const advisor::step_counts n = advisor::one_bit_run(152000, advisor::squares_bits(bert_large));
  CHECK(n.dense == 5);
  CHECK(n.refreshes == 774);
  CHECK(n.steps() == 152000);
  CHECK(rounded(16 / n.bits(16), 1) == 15.4);
  CHECK(advisor::one_bit_run(152000, advisor::lamb_squares_bits(bert_large)).bits(16) > n.bits(16));
}

TEST_CASE("intervals: refreshes at 0 to 16, 18, 20, ..., gaps doubling after every kappa") {
  onebit::intervals s(
      {.kappa = 16, .warmup_steps = 100, .doubling_steps = 1000, .stop_refreshing = true});
  std::vector<std::uint64_t> refreshes;
  for (std::uint64_t step = 0; step < 200; ++step) {
    if (s.due_in(step, 1.0F).average) refreshes.push_back(step);
    CHECK(s.due_in(step, 1.0F).exchange);
    s.done(step, 1.0F);
  }
  std::vector<std::uint64_t> expected;
  for (std::uint64_t step = 0; step <= 16; ++step) expected.push_back(step);
  for (std::uint64_t step = 18; step <= 48; step += 2) expected.push_back(step);
  for (std::uint64_t step = 52; step < 100; step += 4) expected.push_back(step);
  CHECK(refreshes == expected);
}

TEST_CASE("intervals: double each time the learning rate has halved, up to the longest") {
  onebit::intervals s({.warmup_steps = 10, .doubling_steps = 0, .max_interval = 8});
  const auto lr = [](std::uint64_t step) {
    if (step < 10) return static_cast<float>(step + 1) / 10;
    return std::ldexp(1.0F, -static_cast<int>((step - 10) / 64));  // halves every 64 steps
  };
  for (std::uint64_t step = 0; step < 640; ++step) {
    const std::uint64_t halvings = step < 10 ? 0 : (step - 10) / 64;
    const std::uint64_t interval = std::min<std::uint64_t>(8, std::uint64_t{1} << halvings);
    CAPTURE(step);
    CHECK(s.due_in(step, lr(step)).exchange == (step % interval == 0));
    s.done(step, lr(step));
  }
}
