// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Costs of a run, as a table and as JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <vector>

#include "algorithms.hpp"

namespace common {

struct totals {
  std::uint64_t bytes_sent = 0;
  std::uint64_t collectives = 0;
  std::uint64_t rounds = 0;  // steps that communicated
  std::uint64_t skipped = 0;
  double seconds = 0;  // wall clock, including validation and checkpoints
  double compute_seconds = 0;
  double encode_seconds = 0;
  double communicate_seconds = 0;
  double update_seconds = 0;

  void add(const onebit::report& costs);
};

// Over all ranks: maximum of the counts and of `seconds`, mean of the other times. Collective.
totals combine(const rank_link& link, const totals& mine);

struct run_costs {
  std::string algorithm;
  int ranks = 0;
  std::int64_t steps = 0;
  std::uint64_t seed = 0;
  std::uint64_t parameters = 0;
  std::uint64_t parameters_hash = 0;  // equal on all ranks
  std::uint64_t state_bytes = 0;      // of this rank's optimizer, after the last step
  totals total;
};

// Bytes that a rank sends in ring all-reduces of the gradients of all steps, in fp32.
std::uint64_t dense_bytes(const run_costs& run);

std::string hexadecimal(std::uint64_t value);

// Row of a table of runs; `result` is in the column that print_table's `title` names.
struct table_row {
  run_costs costs;
  std::string result;
};
void print_table(const std::string& title, const std::vector<table_row>& rows);

// Returns the costs of a run as JSON; callers add fields of their own.
nlohmann::ordered_json to_json(const run_costs& run);

void write_json(const nlohmann::ordered_json& runs, const std::string& path);

// Compares the hash of this rank's parameters with the other ranks', and returns it if all are
// equal. If hashes differ, throws; or, with may_differ (zero_one_adam's ranks are equal only at
// times), returns a hash of all hashes. Collective.
std::uint64_t common_hash(const rank_link& link, std::uint64_t own_hash, bool may_differ,
                          const std::string& when);
std::uint64_t common_hash(const rank_link& link, std::span<const parameter> parameters,
                          bool may_differ, const std::string& when);

}  // namespace common
