// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// What a run has cost, as a table and as JSON.
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
  double seconds = 0;  // by the clock, validation and checkpoints included
  double compute_seconds = 0;
  double encode_seconds = 0;
  double communicate_seconds = 0;
  double update_seconds = 0;

  void add(const onebit::report& costs);
};

// Of all ranks: the largest of the counts and of seconds, the mean of its parts. Collective.
totals combine(const rank_link& link, const totals& mine);

struct run_costs {
  std::string algorithm;
  int ranks = 0;
  std::int64_t steps = 0;
  std::uint64_t seed = 0;
  std::uint64_t parameters = 0;
  std::uint64_t parameters_hash = 0;  // the same on all ranks
  std::uint64_t state_bytes = 0;      // the optimizer's, of this rank, after the last step
  totals total;
};

// What the ring all-reduce of every step's gradients in fp32 makes a rank send.
std::uint64_t dense_bytes(const run_costs& run);

std::string hexadecimal(std::uint64_t value);

// A table of all runs; results[i] belongs to the i-th, in a column of that title.
struct table_row {
  run_costs costs;
  std::string result;
};
void print_table(const std::string& title, const std::vector<table_row>& rows);

// The costs of a run as JSON, to which the caller's own fields come.
nlohmann::ordered_json to_json(const run_costs& run);

void write_json(const nlohmann::ordered_json& runs, const std::string& path);

// The hash of this rank's parameters, after a comparison with the others'. Where they may differ,
// since zero_one_adam's ranks meet only now and then, it is a hash of all ranks' hashes if they do;
// elsewhere that is an error. Collective.
std::uint64_t common_hash(const rank_link& link, std::uint64_t own_hash, bool may_differ,
                          const std::string& when);
std::uint64_t common_hash(const rank_link& link, std::span<const parameter> parameters,
                          bool may_differ, const std::string& when);

}  // namespace common
