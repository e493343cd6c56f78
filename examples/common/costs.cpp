// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#include "costs.hpp"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "random.hpp"

namespace common {

void totals::add(const onebit::report& costs) {
  bytes_sent += costs.bytes_sent;
  collectives += costs.collectives;
  rounds += costs.collectives > 0 ? 1 : 0;
  skipped += costs.skipped ? 1 : 0;
  encode_seconds += costs.encode_seconds;
  communicate_seconds += costs.communicate_seconds;
  update_seconds += costs.update_seconds;
}

totals combine(const rank_link& link, const totals& mine) {
  totals all;
  for (const totals& t : link.gather(mine)) {
    all.bytes_sent = std::max(all.bytes_sent, t.bytes_sent);
    all.collectives = std::max(all.collectives, t.collectives);
    all.rounds = std::max(all.rounds, t.rounds);
    all.skipped = std::max(all.skipped, t.skipped);
    all.seconds = std::max(all.seconds, t.seconds);
    all.compute_seconds += t.compute_seconds / link.size;
    all.encode_seconds += t.encode_seconds / link.size;
    all.communicate_seconds += t.communicate_seconds / link.size;
    all.update_seconds += t.update_seconds / link.size;
  }
  return all;
}

std::uint64_t dense_bytes(const run_costs& run) {
  const auto w = static_cast<std::uint64_t>(run.ranks);
  return static_cast<std::uint64_t>(run.steps) * 2 * (w - 1) * 4 * run.parameters / w;
}

std::string hexadecimal(std::uint64_t value) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(value));
  return digits;
}

void print_table(const std::string& title, const std::vector<table_row>& rows) {
  std::printf("\n%-14s %10s %13s %9s %11s %9s = %7s + %6s + %11s + %6s\n", "algorithm",
              title.c_str(), "sent per rank", "of dense", "collectives", "ms/step", "compute",
              "encode", "communicate", "update");
  for (const auto& [run, result] : rows) {
    const totals& total = run.total;
    const auto dense = static_cast<double>(dense_bytes(run));
    const auto sent = static_cast<double>(total.bytes_sent);
    const auto per_step = [&](double s) { return 1e3 * s / static_cast<double>(run.steps); };
    const double compute = per_step(total.compute_seconds);
    const double encode = per_step(total.encode_seconds);
    const double communicate = per_step(total.communicate_seconds);
    const double update = per_step(total.update_seconds);
    char ratio[16] = "-";  // a single rank sends nothing
    if (dense > 0) std::snprintf(ratio, sizeof ratio, "%.2f %%", 100 * sent / dense);
    std::printf("%-14s %10s %10.2f MB %9s %11llu %9.2f = %7.2f + %6.2f + %11.2f + %6.2f\n",
                run.algorithm.c_str(), result.c_str(), sent / 1e6, ratio,
                static_cast<unsigned long long>(total.collectives),
                compute + encode + communicate + update, compute, encode, communicate, update);
    if (total.skipped > 0) {
      std::printf("%-14s skipped %llu steps, whose gradients were not finite\n", "",
                  static_cast<unsigned long long>(total.skipped));
    }
  }
  std::fflush(stdout);
}

nlohmann::ordered_json to_json(const run_costs& run) {
  return {{"algorithm", run.algorithm},
          {"ranks", run.ranks},
          {"steps", run.steps},
          {"seed", run.seed},
          {"parameters", run.parameters},
          {"bytes_sent_per_rank", run.total.bytes_sent},
          {"dense_bytes_per_rank", dense_bytes(run)},
          {"collectives", run.total.collectives},
          {"rounds", run.total.rounds},
          {"parameters_hash", hexadecimal(run.parameters_hash)},
          {"seconds", run.total.seconds}};
}

void write_json(const nlohmann::ordered_json& runs, const std::string& path) {
  std::ofstream out(path);
  out << runs.dump(2) << '\n';
  out.close();
  if (!out) throw std::runtime_error("cannot write '" + path + "'");
}

std::uint64_t common_hash(const rank_link& link, std::span<const parameter> parameters,
                          bool may_differ, const std::string& when) {
  std::uint64_t hash = fnv_start;
  for (const parameter& p : parameters) {
    hash = fnv1a({reinterpret_cast<const char*>(p.value.data()), p.value.size_bytes()}, hash);
  }
  return common_hash(link, hash, may_differ, when);
}

std::uint64_t common_hash(const rank_link& link, std::uint64_t hash, bool may_differ,
                          const std::string& when) {
  const std::vector<std::uint64_t> all = link.gather(hash);
  for (std::size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    if (may_differ) {
      return fnv1a({reinterpret_cast<const char*>(all.data()), all.size() * sizeof(std::uint64_t)});
    }
    throw std::runtime_error("the parameters of ranks 0 and " + std::to_string(r) + " differ " +
                             when + " (hashes " + hexadecimal(all[0]) + " and " +
                             hexadecimal(all[r]) + ")");
  }
  return hash;
}

}  // namespace common
