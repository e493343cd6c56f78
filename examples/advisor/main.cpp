// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Does compression pay, and which kind? Predicts whole runs from a few numbers or, under mpirun
// with --measure, from measurements. Without options: BERT-Large on the papers' Ethernet cluster,
// with gradients in 16 bits.
//
//   advisor --parameters 336e6 --ranks 64 --ranks-per-node 4 --bandwidth 4.8Gbit --latency 30us
//           --compute 96ms --steps 152000
//   advisor --device H100 --parameters 7e9 --compute 400ms ...   the passes estimated from counts
//   mpirun -np 8 advisor --measure --parameters 336e6 --compute 96ms

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <map>
#include <memory>
#include <onebit/schedule/intervals.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "cost_model.hpp"
#include "dry_run.hpp"

#ifdef ADVISOR_WITH_MPI
#include "measure.hpp"
#endif
#ifdef ADVISOR_COUNTS
#include "roofline.hpp"
#endif

namespace {

namespace cost = advisor::cost;

struct settings {
  cost::network network{64, 4, {4.8e9 / 8, 30e-6}, {100e9 / 8, 5e-6}};
  double parameters = 336226108;
  double dense_bytes = 2;
  double allreduce_factor = 1;
  double compute = 96.52e-3, backward_share = 0;
  // BERT-Large on a V100: bytes of the passes at 675 GB/s, and the papers' step of 75.59 ms.
  double dense_update_ns = 0.225;
  cost::passes compression{0.0243, 0.0002, 0.225, 0.012};
  std::uint64_t steps = 152000, lr_warmup = 12500, doubling = 32678;
  std::uint64_t warmup = 0;  ///< dense steps of the papers' 1-bit Adam; 0: 15% of the steps
  double worthwhile = 1.1;
  double bucket_elements = 1 << 20;
  bool hierarchical = true;
  std::string device;  ///< GPU whose passes are estimated from counts; empty: the values above
};

cost::workload workload_of(const settings& s) {
  cost::workload w;
  w.parameters = s.parameters;
  w.dense_element_bytes = s.dense_bytes;
  w.allreduce_factor = s.allreduce_factor;
  w.forward_backward_seconds = s.compute;
  w.backward_share = s.backward_share;
  w.dense_update_seconds = s.parameters * s.dense_update_ns * 1e-9;
  w.compression = s.compression;
  w.bucket_elements = s.bucket_elements;
  w.steps = s.steps;
  w.one_bit_adam = advisor::one_bit_run(s.steps, advisor::squares_bits(s.parameters));
  w.one_bit_lamb = advisor::one_bit_run(s.steps, advisor::lamb_squares_bits(s.parameters));
  w.zero_one_adam = advisor::zero_one_run({}, s.steps, advisor::constant_rate,
                                          advisor::squares_bits(s.parameters));
  w.adam_in_4_bits = advisor::four_bits_run(s.steps);
  w.papers_one_bit = advisor::step_counts::freeze_after(
      s.warmup > 0 ? s.warmup : s.steps * 23 / 152, s.steps);  // BERT-Large's share
  w.papers_zero_one = advisor::dry_run(onebit::intervals({.kappa = 16,
                                                          .warmup_steps = s.lr_warmup,
                                                          .doubling_steps = s.doubling,
                                                          .max_interval = 16,
                                                          .stop_refreshing = true}),
                                       s.steps, advisor::constant_rate);
  return w;
}

cost::advice advise_at(settings s, double bytes_per_second) {
  (s.network.ranks > s.network.ranks_per_node ? s.network.between : s.network.inside)
      .bytes_per_second = bytes_per_second;
  return cost::advise(s.network, workload_of(s), s.hierarchical, s.worthwhile);
}

/// Says up to which bandwidth compression pays, all other numbers as given.
std::string range_in_words(const settings& s) {
  const std::string where = s.network.ranks > s.network.ranks_per_node ? " between nodes." : ".";
  const double least = 1e7 / 8, most = 1e13 / 8;
  if (!advise_at(s, least).pays) return "It pays at no bandwidth" + where;
  if (advise_at(s, most).pays) return "It pays at any bandwidth" + where;
  double pays = least, does_not = most;
  while (does_not > 1.001 * pays) {
    const double middle = std::sqrt(pays * does_not);
    (advise_at(s, middle).pays ? pays : does_not) = middle;
  }
  char text[80];
  std::snprintf(text, sizeof text, "It pays up to %.2g Gbit/s", pays * 8e-9);
  return text + where;
}

/// Draws the speed-up over the bandwidth, of each algorithm by its fastest exchange, as an SVG.
void plot(const settings& s, const std::string& file) {
  std::map<cost::algorithm, std::string> series;
  for (double gbit = 0.1; gbit < 401; gbit *= std::pow(4000.0, 1.0 / 48)) {
    std::map<cost::algorithm, double> best;
    for (const cost::prediction& p : advise_at(s, gbit * 1e9 / 8).all) {
      best[p.by] = std::max(best[p.by], p.speed_up);
    }
    for (const auto& [by, speed_up] : best) {
      series[by] += std::to_string(gbit) + " " + std::to_string(speed_up) + "\n";
    }
  }
  std::FILE* const gnuplot = popen("gnuplot", "w");
  if (gnuplot == nullptr) throw std::runtime_error("--plot needs gnuplot");
  std::fprintf(gnuplot,
               "set terminal svg size 720,420 dynamic font 'sans-serif,13' background 'white'\n"
               "set output '%s'\nset logscale xy\nset grid linecolor rgb '#dddddd'\n"
               "set xlabel 'bandwidth, Gbit/s'\nset key outside right\n"
               "set ylabel 'steps per second over uncompressed training'\n",
               file.c_str());
  std::string plots;
  int n = 0;
  for (const auto& [by, points] : series) {
    std::fprintf(gnuplot, "$d%d << EOD\n%sEOD\n", n, points.c_str());
    plots += (n == 0 ? "" : ", ") + std::string("$d") + std::to_string(n) +
             " with lines linewidth 2 title \"" + name_of(by) + "\" noenhanced";
    ++n;
  }
  std::fprintf(gnuplot, "plot %s, 1 with lines dashtype 2 linecolor rgb 'gray' notitle\n",
               plots.c_str());
  if (pclose(gnuplot) != 0) throw std::runtime_error("--plot: gnuplot is missing or failed");
}

void print_table(const settings& s, const cost::advice& a) {
  std::printf("%s %s\n\n", a.sentence.c_str(), range_in_words(s).c_str());
  const auto print_link = [](const char* name, const cost::link& l) {
    std::printf("  %s %.3g Gbit/s, %.3g us", name, l.bytes_per_second * 8e-9,
                l.latency_seconds * 1e6);
  };
  std::printf("%d ranks, %d per node;", s.network.ranks, s.network.ranks_per_node);
  if (s.network.ranks > s.network.ranks_per_node) print_link("between nodes", s.network.between);
  if (s.network.ranks_per_node > 1) print_link("inside", s.network.inside);
  std::printf(
      "\n%.0f parameters, %g bytes each on the wire; %.3g ms forward and backward; passes, ns per "
      "parameter%s: dense update %.3g, encode %.3g, serve %.3g, update %.3g\n\n",
      s.parameters, s.dense_bytes, s.compute * 1e3,
      s.device.empty() ? "" : (" on a " + s.device + " (estimated from counts)").c_str(),
      s.dense_update_ns, s.compression.encode_ns, s.compression.serve_ns, s.compression.update_ns);
  std::printf("%-16s %-21s %12s %12s %12s %9s\n", "algorithm", "exchange", "exchange, ms",
              "step, ms", "run, hours", "speed-up");
  for (const cost::prediction& p : a.all) {
    std::printf("%-16s %-21s %12.3f %12.3f %12.3f %8.2fx\n", name_of(p.by), name_of(p.with),
                p.exchange_seconds * 1e3, p.step_seconds * 1e3, p.seconds / 3600, p.speed_up);
  }
}

void print_json(const settings& s, const cost::advice& a) {
  std::printf("{\n  \"ranks\": %d, \"ranks_per_node\": %d, \"pays\": %s,\n  \"advice\": \"%s\",\n",
              s.network.ranks, s.network.ranks_per_node, a.pays ? "true" : "false",
              a.sentence.c_str());
  std::printf("  \"predictions\": [\n");
  for (const cost::prediction& p : a.all) {
    std::printf(
        "    {\"algorithm\": \"%s\", \"exchange\": \"%s\", \"exchange_seconds\": %.9g, "
        "\"step_seconds\": %.9g, \"seconds\": %.9g, \"speed_up\": %.6g}%s\n",
        name_of(p.by), name_of(p.with), p.exchange_seconds, p.step_seconds, p.seconds, p.speed_up,
        &p == &a.all.back() ? "" : ",");
  }
  std::printf("  ]\n}\n");
}

#ifdef ADVISOR_COUNTS
/// Sets the passes that were not given on the command line to estimates for the device, from
/// counts.
void estimate_into(settings& s, const CLI::App& app) {
  const auto put = [&](const char* option, double& to, double value) {
    if (app.get_option(option)->count() == 0) to = value;
  };
  namespace roofline = advisor::roofline;
  const roofline::estimate e = roofline::passes_on(
      roofline::device_named(s.device),
      roofline::read_counts(roofline::counts_file(ADVISOR_COUNTS, s.parameters)));
  put("--dense-update-ns", s.dense_update_ns, e.dense_update_ns);
  put("--encode-ns", s.compression.encode_ns, e.compression.encode_ns);
  put("--serve-ns", s.compression.serve_ns, e.compression.serve_ns);
  put("--update-ns", s.compression.update_ns, e.compression.update_ns);
  put("--sum-ns", s.compression.sum_ns, e.compression.sum_ns);
}
#endif

#ifdef ADVISOR_WITH_MPI
/// Sets the values that were not given on the command line to measured ones.
void measure_into(settings& s, bool json, const CLI::App& app, bool first) {
  const auto said = [&](const char* option) { return app.get_option(option)->count() > 0; };
  const advisor::measurement m = advisor::measure(s.parameters);
  if (!said("--ranks")) s.network.ranks = m.network.ranks;
  if (!said("--ranks-per-node")) s.network.ranks_per_node = m.network.ranks_per_node;
  if (m.network.ranks > m.network.ranks_per_node) {
    if (!said("--bandwidth"))
      s.network.between.bytes_per_second = m.network.between.bytes_per_second;
    if (!said("--latency")) s.network.between.latency_seconds = m.network.between.latency_seconds;
  }
  if (m.network.ranks_per_node > 1) {
    if (!said("--inside-bandwidth")) {
      s.network.inside.bytes_per_second = m.network.inside.bytes_per_second;
    }
    if (!said("--inside-latency")) {
      s.network.inside.latency_seconds = m.network.inside.latency_seconds;
    }
  }
  if (!said("--dense-update-ns")) s.dense_update_ns = m.dense_update_ns;
  if (!said("--encode-ns")) s.compression.encode_ns = m.compression.encode_ns;
  if (!said("--serve-ns")) s.compression.serve_ns = m.compression.serve_ns;
  if (!said("--update-ns")) s.compression.update_ns = m.compression.update_ns;
  if (!said("--sum-ns")) s.compression.sum_ns = m.compression.sum_ns;
  const double ring = cost::exchange_seconds(m.network, cost::exchange::ring,
                                             m.allreduce_parameters, sizeof(float));
  if (!said("--allreduce-factor") && ring > 0) s.allreduce_factor = m.allreduce_seconds / ring;
  if (!first || json) return;
  std::printf(
      "measured on the host; MPI's allreduce of %.0f floats took %.3g ms, a ring of the measured "
      "links would take %.3g ms\n",
      m.allreduce_parameters, m.allreduce_seconds * 1e3, ring * 1e3);
}
#endif

int run_program(int argc, char** argv) {
  CLI::App app{"Predicts whether compressed communication pays."};
  settings s;
  bool json = false, measure = false;
  std::string svg;
  const std::map<std::string, double> seconds = {
      {"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};
  const std::map<std::string, double> bytes = {
      {"Mbit", 1e6 / 8}, {"Gbit", 1e9 / 8}, {"MB", 1e6}, {"GB", 1e9}};
  const auto time = [&](const char* name, double& to, const char* text) {
    app.add_option(name, to, text)
        ->transform(CLI::AsNumberWithUnit(seconds, CLI::AsNumberWithUnit::CASE_SENSITIVE));
  };
  const auto rate = [&](const char* name, double& to, const char* text) {
    app.add_option(name, to, text)
        ->transform(CLI::AsNumberWithUnit(bytes, CLI::AsNumberWithUnit::CASE_SENSITIVE));
  };
  app.add_option("--parameters", s.parameters, "parameters of the model")->capture_default_str();
  app.add_option("--ranks", s.network.ranks, "ranks in all")->capture_default_str();
  app.add_option("--ranks-per-node", s.network.ranks_per_node, "ranks that share a network card")
      ->capture_default_str();
  rate("--bandwidth", s.network.between.bytes_per_second,
       "between nodes, per network card and second, in Mbit, Gbit, MB or GB; what a program gets");
  time("--latency", s.network.between.latency_seconds, "between nodes, in ns, us, ms or s");
  rate("--inside-bandwidth", s.network.inside.bytes_per_second, "inside a node, per rank");
  time("--inside-latency", s.network.inside.latency_seconds, "inside a node");
  app.add_option("--dense-bytes", s.dense_bytes, "of an uncompressed element on the wire")
      ->capture_default_str();
  app.add_option("--allreduce-factor", s.allreduce_factor,
                 "how much slower than a ring the real allreduce is")
      ->capture_default_str();
  time("--compute", s.compute, "forward and backward of one step");
  app.add_option("--backward-share", s.backward_share,
                 "of that, in which gradients travel already, as torch's DDP lets them: 0.67")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--dense-update-ns", s.dense_update_ns, "Adam's arithmetic, ns per parameter")
      ->capture_default_str();
  app.add_option("--encode-ns", s.compression.encode_ns, "encoding pass, ns per parameter")
      ->capture_default_str();
  app.add_option("--serve-ns", s.compression.serve_ns, "averaging one rank's bits")
      ->capture_default_str();
  app.add_option("--update-ns", s.compression.update_ns, "update of a compressed step")
      ->capture_default_str();
  app.add_option("--sum-ns", s.compression.sum_ns, "adding what one rank sent uncompressed")
      ->capture_default_str();
#ifdef ADVISOR_COUNTS
  app.add_option("--device", s.device,
                 "A100, H100, H200 or B200: the passes above as estimated from counts, what a GPU "
                 "will take at least");
#endif
  app.add_option("--bucket", s.bucket_elements,
                 "elements of a bucket, of exchanges that hide behind the backward pass")
      ->capture_default_str();
  app.add_option("--steps", s.steps, "steps of the run")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--warmup", s.warmup,
                 "the papers' one-bit forms: dense steps (as BERT-Large's, 15% of the steps)");
  app.add_option("--lr-warmup", s.lr_warmup, "0/1 Adam: warm-up of the learning rate, in steps")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--doubling", s.doubling, "0/1 Adam: steps before the interval doubles")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--worthwhile", s.worthwhile, "least speed-up that is worth the change")
      ->capture_default_str();
  app.add_flag("!--no-hierarchical", s.hierarchical, "leave the hierarchical exchange out");
  app.add_flag("--json", json, "print JSON");
  app.add_option("--plot", svg, "draw the speed-up over the bandwidth into this SVG (gnuplot)");
#ifdef ADVISOR_WITH_MPI
  app.add_flag("--measure", measure,
               "under mpirun: measure the network, the passes on the host, and the ranks, unless "
               "they are given; they do not include what is done on a GPU");
#endif
  CLI11_PARSE(app, argc, argv);

  bool prints = true;
#ifdef ADVISOR_COUNTS
  if (!s.device.empty()) estimate_into(s, app);
#endif
#ifdef ADVISOR_WITH_MPI
  std::unique_ptr<advisor::mpi_session> session;
  if (measure) {
    session = std::make_unique<advisor::mpi_session>();
    prints = session->first();
    measure_into(s, json, app, prints);
  }
#else
  (void)measure;
#endif
  const cost::advice a = cost::advise(s.network, workload_of(s), s.hierarchical, s.worthwhile);
  if (prints) json ? print_json(s, a) : print_table(s, a);
  if (prints && !svg.empty()) plot(s, svg);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run_program(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "advisor: %s\n", e.what());
    return 1;
  }
}
