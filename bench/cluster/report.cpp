// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// What the simulated exchanges make of whole runs of BERT-Large, beside the papers' claims, and how
// far the cost model is from them. See run.sh.
//
//   report [--plot PREFIX] FILE      FILE: the lines that simulate.cpp printed

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <onebit/schedule/intervals.hpp>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "../../examples/advisor/cost_model.hpp"
#include "../../examples/advisor/dry_run.hpp"

namespace cost = advisor::cost;
using cost::algorithm;
using cost::exchange;

namespace {

constexpr double parameters = 336226108;  // BERT-Large
constexpr double element_bytes = 2;       // fp16 gradients

// Table 1 of 1-bit Adam (arXiv 2102.02888): BERT-Large, sequence 128, batch 16 per GPU, Ethernet,
// 16 nodes of 4 V100: forward, rest of backward, step. Its allreduce is what is simulated.
constexpr double forward_backward = 35.71e-3 + 60.81e-3, update = 75.59e-3;
constexpr int batch = 16;

struct place {
  int nodes = 0, ranks_per_node = 0;
  double gbit = 0;
  auto operator<=>(const place&) const = default;
  [[nodiscard]] int ranks() const { return nodes * ranks_per_node; }
};

/// Simulated seconds of exchanges, and the networks on which they were.
class results {
 public:
  void read(const std::string& path) {
    std::ifstream in(path);
    if (!in) throw std::runtime_error("cannot read " + path);
    for (std::string line; std::getline(in, line);) {
      const auto j = nlohmann::json::parse(line);
      const place at{j.at("nodes"), j.at("ranks_per_node"), j.at("gbit")};
      inside_ = {j.at("inside_gbit").get<double>() * 1e9 / 8,
                 j.at("inside_latency_us").get<double>() * 1e-6};
      latency_ = j.at("latency_us").get<double>() * 1e-6;
      if (j.at("parameters") != parameters || j.at("dense_bytes") != element_bytes) {
        throw std::runtime_error(path + " is not of BERT-Large in fp16");
      }
      auto& to = j.at("network") == "tcp" ? tcp_ : seconds_;
      to[at][named(j.at("exchange"))] = j.at("seconds");
    }
  }
  using table = std::map<place, std::map<exchange, double>>;
  [[nodiscard]] const table& all() const { return seconds_; }
  /// The same with SimGrid's factors for TCP.
  [[nodiscard]] const table& tcp() const { return tcp_; }
  [[nodiscard]] cost::network network(const place& at) const {
    return {at.ranks(), at.ranks_per_node, {at.gbit * 1e9 / 8, latency_}, inside_};
  }
  [[nodiscard]] double model(const place& at, exchange e) const {
    return cost::exchange_seconds(network(at), e, parameters, element_bytes);
  }
  /// SimGrid 3.32, messages above 64 KiB: 0.940694 of the bandwidth, of which acknowledgements
  /// take 5% where data travels both ways; 11.6436 times the latency.
  [[nodiscard]] double tcp_model(const place& at, exchange e) const {
    cost::network net = network(at);
    for (cost::link* l : {&net.between, &net.inside}) {
      l->bytes_per_second *= 0.940694 / 1.05;
      l->latency_seconds *= 11.6436;
    }
    return cost::exchange_seconds(net, e, parameters, element_bytes);
  }
  [[nodiscard]] bool simulated(const place& at, exchange e) const {
    const auto found = seconds_.find(at);
    return found != seconds_.end() && found->second.contains(e);
  }
  /// Simulated, or the model's where the simulation was too large.
  [[nodiscard]] double seconds(const place& at, exchange e) const {
    return simulated(at, e) ? seconds_.at(at).at(e) : model(at, e);
  }

 private:
  static exchange named(const std::string& kind) {
    if (kind == "ring") return exchange::ring;
    if (kind == "gather_scatter") return exchange::dense_gather_scatter;
    if (kind == "flat") return exchange::gather_scatter;
    if (kind == "hierarchical") return exchange::hierarchical;
    if (kind == "all_gather") return exchange::all_gather;
    throw std::runtime_error("no exchange is called " + kind);
  }
  table seconds_, tcp_;
  cost::link inside_;
  double latency_ = 0;
};

/// The papers' runs. Passes over memory are estimated, not measured: their bytes, which
/// bench/cuda/counts.sh counts, at three quarters of a V100's 900 GB/s; the update of a compressed
/// step is taken to cost as much as the papers' dense one, so that nothing seems to be gained
/// there.
cost::workload bert_large(int accumulated) {
  const double ns_per_byte = 1 / (0.75 * 900);
  cost::workload w;
  w.parameters = parameters;
  w.dense_element_bytes = element_bytes;
  w.forward_backward_seconds = accumulated * forward_backward;
  w.dense_update_seconds = update;
  w.compression = {.encode_ns = 16.4 * ns_per_byte,
                   .serve_ns = 0.25 * ns_per_byte,
                   .update_ns = update / parameters * 1e9,
                   .sum_ns = 4 * ns_per_byte};
  w.steps = 152000;
  w.averages_by_transport = true;
  w.one_bit_adam = advisor::step_counts::freeze_after(23000, 152000);
  w.one_bit_lamb = advisor::step_counts::freeze_after(1000, 5993);
  w.zero_one_adam = advisor::dry_run(onebit::intervals({.kappa = 16,
                                                        .warmup_steps = 12500,
                                                        .doubling_steps = 32678,
                                                        .max_interval = 16,
                                                        .stop_refreshing = true}),
                                     162000, [](std::uint64_t) { return 1.0F; });
  return w;
}

cost::prediction run(const results& r, const place& at, algorithm by, exchange with,
                     int accumulated = 1) {
  return cost::predict(r.network(at), bert_large(accumulated), by, with,
                       r.seconds(at, exchange::ring), r.seconds(at, with));
}

/// The exchanges between which a cluster of such nodes has a choice.
std::vector<exchange> compressed_exchanges(const place& at) {
  if (at.ranks_per_node == 1) return {exchange::gather_scatter};
  return {exchange::gather_scatter, exchange::hierarchical};
}

void print_profile(const results& r) {
  std::printf(
      "\nAllreduce of the papers' profile, 4 GPUs a node, at 4.8 Gbit/s\n"
      "nodes   paper, ms   simulated   difference\n");
  for (const auto& [nodes, paper] :
       {std::pair{16, 2275.43}, {8, 2173.35}, {4, 2133.24}, {2, 1897.21}}) {
    const place at{nodes, 4, 4.8};
    if (!r.simulated(at, exchange::ring)) continue;
    const double ms = 1e3 * r.seconds(at, exchange::ring);
    std::printf("%5d %11.0f %11.0f %+10.1f %%\n", nodes, paper, ms, 100 * (ms / paper - 1));
  }
}

void print_runs(const results& r) {
  std::printf(
      "\nBERT-Large, fp16 gradients, batch %d per GPU: seconds of an exchange, samples per second\n"
      "(end to end, warm-up included) and end-to-end speed-up over Adam with a ring allreduce\n"
      "(~: the exchange by the cost model, not simulated). hierarchical sums fp16 inside the node\n"
      "at 100 Gbit/s per rank; onebit on the host sends fp32 there, twice the bytes\n"
      "nodes  x  Gbit/s  exchange        dense  compressed    adam 1-bit A.  0/1 A.   1-bit Adam "
      "1-bit LAMB   0/1 Adam   0/1 over 1-bit\n",
      batch);
  for (const auto& [at, unused] : r.all()) {
    for (const exchange e : compressed_exchanges(at)) {
      const cost::prediction adam = run(r, at, algorithm::adam, exchange::ring);
      const cost::prediction one_bit = run(r, at, algorithm::one_bit_adam, e);
      const cost::prediction lamb = run(r, at, algorithm::one_bit_lamb, e);
      const cost::prediction zero_one = run(r, at, algorithm::zero_one_adam, e);
      const double samples = batch * at.ranks() / adam.step_seconds;
      const char* mark = r.simulated(at, exchange::ring) ? " " : "~";
      std::printf(
          "%5d %2d %7g  %-14s%s%6.3f %s%10.4f %7.0f %8.0f %7.0f %11.2fx %9.2fx %9.2fx %15.2fx\n",
          at.nodes, at.ranks_per_node, at.gbit,
          e == exchange::gather_scatter ? "flat" : "hierarchical", mark,
          r.seconds(at, exchange::ring), r.simulated(at, e) ? " " : "~", r.seconds(at, e), samples,
          samples * one_bit.speed_up, samples * zero_one.speed_up, one_bit.speed_up, lamb.speed_up,
          zero_one.speed_up, zero_one.speed_up / one_bit.speed_up);
    }
  }
}

struct claim {
  const char* text;
  place at;
  algorithm by, over;
  int accumulated;
};

void print_claims(const results& r) {
  std::printf(
      "\nThe papers' claims: end-to-end speed-up of the run, and of its compressed steps alone;\n"
      "'accumulated' micro-batches of %d per step\n"
      "claim                          nodes  x  Gbit/s accumulated   flat: run   steps   "
      "hierarchical: run   steps\n",
      batch);
  std::vector<claim> claims;
  for (const int nodes : {16, 32, 64}) {
    for (const int accumulated : {1, 4}) {
      for (const double gbit : {2.7, 4.8}) {
        claims.push_back({"1-bit Adam 3.3x over Adam",
                          {nodes, 4, gbit},
                          algorithm::one_bit_adam,
                          algorithm::adam,
                          accumulated});
      }
    }
  }
  for (const int accumulated : {1, 4, 16}) {  // 64K / 256 GPUs / 16
    for (const double gbit : {2.7, 4.8}) {
      claims.push_back({"1-bit LAMB 2.8x over LAMB",
                        {64, 4, gbit},
                        algorithm::one_bit_lamb,
                        algorithm::adam,
                        accumulated});
    }
  }
  for (const int accumulated : {1, 4}) {
    claims.push_back({"0/1 Adam 2x over 1-bit Adam",
                      {32, 4, 2.7},
                      algorithm::zero_one_adam,
                      algorithm::one_bit_adam,
                      accumulated});
  }
  for (const claim& c : claims) {
    if (!r.simulated(c.at, exchange::ring)) continue;
    std::printf("%-30s %5d %2d %7g %11d", c.text, c.at.nodes, c.at.ranks_per_node, c.at.gbit,
                c.accumulated);
    for (const exchange e : {exchange::gather_scatter, exchange::hierarchical}) {
      const cost::prediction p = run(r, c.at, c.by, e, c.accumulated);
      const cost::prediction adam = run(r, c.at, algorithm::adam, exchange::ring, c.accumulated);
      const double base =
          c.over == algorithm::adam ? 1 : run(r, c.at, c.over, e, c.accumulated).speed_up;
      std::printf(" %*.2fx", e == exchange::gather_scatter ? 10 : 18, p.speed_up / base);
      if (c.over == algorithm::adam) {
        std::printf(" %6.2fx", adam.step_seconds / p.step_seconds);
      } else {
        std::printf(" %7s", "-");
      }
    }
    std::printf("\n");
  }
}

template <class Model>
void print_model_error(const char* network, const results::table& table, const Model& model) {
  struct error {
    double relative;
    place at;
  };
  std::map<exchange, std::vector<error>> by_exchange;
  std::vector<double> all;
  for (const auto& [at, seconds] : table) {
    for (const auto& [e, simulated] : seconds) {
      by_exchange[e].push_back({model(at, e) / simulated - 1, at});
      all.push_back(std::fabs(by_exchange[e].back().relative));
    }
  }
  if (table.empty()) return;
  std::printf(
      "\nThe cost model against the simulation, seconds of an exchange; %s\n"
      "exchange               compared  typical    worst\n",
      network);
  for (auto& [e, errors] : by_exchange) {
    std::sort(errors.begin(), errors.end(), [](const error& a, const error& b) {
      return std::fabs(a.relative) < std::fabs(b.relative);
    });
    const error& worst = errors.back();
    std::printf("%-21s %9zu %7.2f %% %+7.2f %% (%d nodes x %d, %g Gbit/s)\n", cost::name_of(e),
                errors.size(), 100 * std::fabs(errors[errors.size() / 2].relative),
                100 * worst.relative, worst.at.nodes, worst.at.ranks_per_node, worst.at.gbit);
  }
  std::sort(all.begin(), all.end());
  std::printf("%-21s %9zu %7.2f %%  %6.2f %%\n", "all", all.size(), 100 * all[all.size() / 2],
              100 * all.back());
}

/// nodes.dat: speed-ups over nodes at the least bandwidth; bandwidth.dat: over bandwidth.
void write_plots(const results& r, const std::string& prefix) {
  const auto write = [&](const std::string& path, auto&& chosen, auto&& x) {
    std::ofstream out(path);
    for (const auto& [at, unused] : r.all()) {
      if (at.ranks_per_node != 4 || !chosen(at)) continue;
      out << x(at);
      for (const algorithm by :
           {algorithm::one_bit_adam, algorithm::one_bit_lamb, algorithm::zero_one_adam}) {
        for (const exchange e : {exchange::gather_scatter, exchange::hierarchical}) {
          out << ' ' << run(r, at, by, e).speed_up;
        }
      }
      out << '\n';
    }
  };
  write(
      prefix + "-nodes.dat", [](const place& p) { return p.gbit == 2.7; },
      [](const place& p) { return p.nodes; });
  write(
      prefix + "-bandwidth.dat", [](const place& p) { return p.nodes == 32; },
      [](const place& p) { return p.gbit; });
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Whole runs from simulated exchanges, beside the papers' claims."};
  std::string file, plot;
  app.add_option("file", file, "the lines that simulate.cpp printed")->required();
  app.add_option("--plot", plot, "writes PLOT-nodes.dat and PLOT-bandwidth.dat");
  CLI11_PARSE(app, argc, argv);
  try {
    results r;
    r.read(file);
    print_profile(r);
    print_runs(r);
    print_claims(r);
    print_model_error("bandwidth and latency as a program gets them", r.all(),
                      [&](const place& at, exchange e) { return r.model(at, e); });
    print_model_error("with SimGrid's factors for TCP", r.tcp(),
                      [&](const place& at, exchange e) { return r.tcp_model(at, e); });
    if (!plot.empty()) write_plots(r, plot);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "report: %s\n", e.what());
    return 1;
  }
  return 0;
}
