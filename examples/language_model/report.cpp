// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#include "report.hpp"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace language_model {
namespace {

std::ofstream open(const std::string& path) {
  std::ofstream out(path);
  if (!out) throw std::runtime_error("cannot write '" + path + "'");
  return out;
}

void close(std::ofstream& out, const std::string& path) {
  out.close();
  if (!out) throw std::runtime_error("cannot write '" + path + "'");
}

// What the ring all-reduce of every step's gradients in fp32 makes a rank send.
std::uint64_t dense_bytes(const training_result& r, int ranks) {
  const auto w = static_cast<std::uint64_t>(ranks);
  return static_cast<std::uint64_t>(r.steps) * 2 * (w - 1) * 4 * r.parameters / w;
}

std::string hexadecimal(std::uint64_t value) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(value));
  return digits;
}

// For the shell: nothing is special between single quotes but the single quote.
std::string quoted(const std::string& path) {
  std::string to = "'";
  for (const char c : path) to += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return to + "'";
}

}  // namespace

void print_table(const summary& from) {
  std::printf("\n%-14s %10s %13s %9s %11s %9s = %7s + %6s + %11s + %6s\n", "algorithm",
              "validation", "sent per rank", "of dense", "collectives", "ms/step", "compute",
              "encode", "communicate", "update");
  for (const training_result& r : from.results) {
    const auto dense = static_cast<double>(dense_bytes(r, from.ranks));
    const auto sent = static_cast<double>(r.total.bytes_sent);
    const auto per_step = [&r](double s) { return 1e3 * s / static_cast<double>(r.steps); };
    const double compute = per_step(r.total.compute_seconds);
    const double encode = per_step(r.total.encode_seconds);
    const double communicate = per_step(r.total.communicate_seconds);
    const double update = per_step(r.total.update_seconds);
    char ratio[16] = "-";  // one rank alone has nobody to send to
    if (dense > 0) std::snprintf(ratio, sizeof ratio, "%.2f %%", 100 * sent / dense);
    std::printf("%-14s %10.4f %10.2f MB %9s %11llu %9.2f = %7.2f + %6.2f + %11.2f + %6.2f\n",
                r.algorithm.c_str(), r.validation_loss, sent / 1e6, ratio,
                static_cast<unsigned long long>(r.total.collectives),
                compute + encode + communicate + update, compute, encode, communicate, update);
    if (r.total.skipped > 0) {
      std::printf("%-14s skipped %llu steps, whose gradients were not finite\n", "",
                  static_cast<unsigned long long>(r.total.skipped));
    }
  }
  std::fflush(stdout);
}

void write_json(const summary& from, const std::string& path) {
  auto table = nlohmann::ordered_json::array();
  for (const training_result& r : from.results) {
    table.push_back({{"algorithm", r.algorithm},
                     {"ranks", from.ranks},
                     {"transport", from.transport},
                     {"steps", r.steps},
                     {"seed", from.seed},
                     {"parameters", r.parameters},
                     {"validation_loss", r.validation_loss},
                     {"bytes_sent_per_rank", r.total.bytes_sent},
                     {"dense_bytes_per_rank", dense_bytes(r, from.ranks)},
                     {"collectives", r.total.collectives},
                     {"parameters_hash", hexadecimal(r.parameters_hash)},
                     {"seconds", r.total.seconds}});
  }
  std::ofstream out = open(path);
  out << table.dump(2) << '\n';
  close(out, path);
}

void write_csv(const summary& from, const std::string& path) {
  std::ofstream out = open(path);
  out << "algorithm,step,train_loss,validation_loss,bytes_sent\n" << std::setprecision(9);
  for (const training_result& r : from.results) {
    for (const history_entry& e : r.history) {
      out << r.algorithm << ',' << e.step << ',' << e.train_loss << ',';
      if (!std::isnan(e.validation_loss)) out << e.validation_loss;
      out << ',' << e.bytes_sent << '\n';
    }
  }
  close(out, path);
}

bool write_plot(const summary& from, const std::string& directory) {
  const std::string script = directory + "/plot.gp";
  std::ofstream out = open(script);
  out << "# gnuplot plot.gp writes curves.svg\n" << std::setprecision(9);
  for (const training_result& r : from.results) {
    out << '$' << r.algorithm << " << EOD\n";
    for (const history_entry& e : r.history) {
      if (std::isnan(e.validation_loss)) continue;
      out << e.step << ' ' << static_cast<double>(e.bytes_sent) / 1e6 << ' ' << e.validation_loss
          << '\n';
    }
    out << "EOD\n";
  }
  out << "set terminal svg size 1000,400 dynamic font 'sans-serif,13' background 'white'\n"
         "set output 'curves.svg'\n"
         "set multiplot layout 1,2\n"
         "set grid linecolor rgb '#dddddd'\n"
         "set ylabel 'validation loss (nats per character)'\n"
         "set xrange [0:*]\n";
  const auto plot = [&](const char* label, int column) {
    out << "set xlabel '" << label << "'\n";
    const char* separator = "plot ";
    for (const training_result& r : from.results) {
      out << separator << '$' << r.algorithm << " using " << column
          << ":3 with linespoints linewidth 2 pointtype 7 pointsize 0.4 title '" << r.algorithm
          << "' noenhanced";
      separator = ", ";
    }
    out << '\n';
  };
  plot("step", 1);
  plot("MB sent per rank", 2);
  out << "unset multiplot\n";
  close(out, script);
  return std::system(("cd " + quoted(directory) + " && gnuplot plot.gp").c_str()) == 0;
}

}  // namespace language_model
