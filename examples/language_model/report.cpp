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

#include "common/shell.hpp"

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

}  // namespace

void print_table(const summary& from) {
  std::vector<common::table_row> rows;
  for (const training_result& r : from.results) {
    char loss[32];
    std::snprintf(loss, sizeof loss, "%.4f", r.validation_loss);
    rows.push_back({r.costs, loss});
  }
  common::print_table("validation", rows);
}

void write_json(const summary& from, const std::string& path) {
  auto runs = nlohmann::ordered_json::array();
  for (const training_result& r : from.results) {
    auto& run = runs.emplace_back(common::to_json(r.costs));
    run["transport"] = from.transport;
    run["validation_loss"] = r.validation_loss;
  }
  common::write_json(runs, path);
}

void write_csv(const summary& from, const std::string& path) {
  std::ofstream out = open(path);
  out << "algorithm,step,train_loss,validation_loss,bytes_sent\n" << std::setprecision(9);
  for (const training_result& r : from.results) {
    for (const history_entry& e : r.history) {
      out << r.costs.algorithm << ',' << e.step << ',' << e.train_loss << ',';
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
    out << '$' << r.costs.algorithm << " << EOD\n";
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
      out << separator << '$' << r.costs.algorithm << " using " << column
          << ":3 with linespoints linewidth 2 pointtype 7 pointsize 0.4 title '"
          << r.costs.algorithm << "' noenhanced";
      separator = ", ";
    }
    out << '\n';
  };
  plot("step", 1);
  plot("MB sent per rank", 2);
  out << "unset multiplot\n";
  close(out, script);
  return std::system(("cd " + common::quoted(directory) + " && gnuplot plot.gp").c_str()) == 0;
}

}  // namespace language_model
