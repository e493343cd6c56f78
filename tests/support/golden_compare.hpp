// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Comparing produced arrays with recorded ones, by the rules and the tolerances of
// tests/golden/README.md, section "Comparing".

#ifndef ONEBIT_TESTS_SUPPORT_GOLDEN_COMPARE_HPP
#define ONEBIT_TESTS_SUPPORT_GOLDEN_COMPARE_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <map>
#include <mutex>
#include <ostream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "golden.hpp"

namespace onebit_test::golden {

/// Bounds of the largest and of the root-mean-square error; 0 stands for equality.
struct tolerance {
  double largest = 0, rms = 0;
};

struct tolerance_row {
  std::string_view optimizer, array;
  tolerance bound;
};

inline constexpr tolerance_row tolerance_table[] = {
    {"compressed_allreduce", "output", {2e-5, 5e-6}},
    {"compressed_allreduce", "server_error", {2e-4, 3e-5}},
    {"compressed_allreduce", "server_scales", {5e-5, 1e-5}},
    {"compressed_allreduce", "worker_error", {2e-4, 3e-5}},
    {"compressed_allreduce", "worker_scales", {5e-5, 1e-5}},
    {"compressed_allreduce", "server_sign_bytes", {0, 0}},
    {"compressed_allreduce", "worker_sign_bytes", {0, 0}},
    {"onebit_adam", "exp_avg", {2e-5, 5e-6}},
    {"onebit_adam", "exp_avg_sq", {1e-5, 2e-6}},
    {"onebit_adam", "params", {2e-5, 2e-6}},
    {"onebit_adam", "server_error", {2e-4, 3e-5}},
    {"onebit_adam", "server_scales", {5e-5, 1e-5}},
    {"onebit_adam", "worker_error", {2e-4, 3e-5}},
    {"onebit_adam", "worker_scales", {5e-5, 1e-5}},
    {"onebit_lamb", "exp_avg", {2e-5, 5e-6}},
    {"onebit_lamb", "exp_avg_padding", {2e-5, 5e-6}},
    {"onebit_lamb", "exp_avg_sq", {1e-5, 2e-6}},
    {"onebit_lamb", "exp_avg_sq_fresh", {1e-5, 2e-6}},
    {"onebit_lamb", "lamb_coeffs", {2e-5, 5e-6}},
    {"onebit_lamb", "params", {2e-5, 2e-6}},
    {"onebit_lamb", "server_error", {2e-4, 3e-5}},
    {"onebit_lamb", "server_scales", {5e-5, 1e-5}},
    {"onebit_lamb", "worker_error", {2e-4, 3e-5}},
    {"onebit_lamb", "worker_scales", {5e-5, 1e-5}},
    {"zero_one_adam", "exp_avg", {2e-5, 5e-6}},
    {"zero_one_adam", "exp_avg_sq", {1e-5, 2e-6}},
    {"zero_one_adam", "momentum_accumulator", {2e-5, 2e-6}},
    {"zero_one_adam", "params", {2e-5, 2e-6}},
    {"zero_one_adam", "server_error", {2e-4, 3e-5}},
    {"zero_one_adam", "server_scales", {5e-5, 1e-5}},
    {"zero_one_adam", "worker_error", {2e-4, 3e-5}},
    {"zero_one_adam", "worker_scales", {5e-5, 1e-5}},
};
inline constexpr double scalar_tolerance = 1e-5;  // of final_scalars

/// params_tensor2 -> {params, 2}; without a number -> {name, -1}.
inline std::pair<std::string, std::int64_t> split_array_name(const std::string& array) {
  const std::size_t at = array.rfind("_tensor");
  if (at == std::string::npos) return {array, -1};
  return {array.substr(0, at), std::stoll(array.substr(at + 7))};
}

inline tolerance tolerance_of(const std::string& optimizer, const std::string& kind) {
  for (const tolerance_row& row : tolerance_table) {
    if (row.optimizer == optimizer && row.array == kind) return row.bound;
  }
  throw std::runtime_error("golden: no tolerance for array " + kind + " of " + optimizer);
}

struct comparison {
  std::string case_name, optimizer, array, kind;
  tolerance bound;
  double largest = 0, rms = 0;  // errors relative to the reference magnitudes
  std::size_t n = 0, worst_index = 0;
  double worst_produced = 0, worst_golden = 0;

  // Written so that a NaN fails.
  bool passed() const { return largest <= bound.largest && rms <= bound.rms; }
  /// Worst error / tolerance; at most 1 where the comparison passes.
  double ratio() const {
    const auto part = [](double error, double limit) {
      return error == 0 ? 0 : error / limit;  // limit 0: infinite
    };
    return std::max(part(largest, bound.largest), part(rms, bound.rms));
  }
  std::string text() const {
    char line[512];
    std::snprintf(line, sizeof line,
                  "%s/%s: error %.2e/%.2e (largest/rms), tolerance %.0e/%.0e, "
                  "worst at %zu of %zu: %.9g, recorded %.9g%s",
                  case_name.c_str(), array.c_str(), largest, rms, bound.largest, bound.rms,
                  worst_index, n, worst_produced, worst_golden, passed() ? "" : "  FAILED");
    return line;
  }
};

/// The magnitude by which the error of every element is divided; 0 asks for equality.
inline std::vector<double> reference_magnitudes(const golden_case& c, const std::string& array,
                                                const std::vector<double>& golden) {
  const auto [kind, tensor] = split_array_name(array);
  const std::vector<std::size_t> shape = c.shape(array);
  std::vector<double> magnitude(golden.size(), 0.0);
  if (golden.empty() || kind.ends_with("_sign_bytes")) return magnitude;

  if (kind == "output" || kind.ends_with("_scales") || kind == "lamb_coeffs") {
    for (std::size_t i = 0; i < golden.size(); ++i) magnitude[i] = std::abs(golden[i]);
    return magnitude;
  }
  if (kind == "worker_error" || kind == "server_error") {
    const std::vector<double> scales =
        c.values(kind == "worker_error" ? "worker_scales" : "server_scales");
    const std::size_t n_ranks = c.world_size();
    const std::size_t length = shape.back();  // of one rank's error
    std::size_t row = 0, first_scale = 0;
    if (c.optimizer() == "compressed_allreduce") {
      row = n_ranks * length;  // index 0 holds the given errors: equal, magnitude 0
    } else {
      const auto calls = c.compressed_calls();
      std::size_t last = calls.size();
      for (std::size_t i = 0; i < calls.size(); ++i) {
        if (calls[i].second == tensor) last = i;
      }
      if (last == calls.size()) {
        throw std::runtime_error("golden: " + c.name() + ": no compressed call for " + array);
      }
      first_scale = last * n_ranks;
    }
    for (std::size_t i = row; i < golden.size(); ++i) {
      magnitude[i] = scales.at(first_scale + (i - row) / length);
    }
    return magnitude;
  }
  // Root mean squares: of every recorded update by itself for parameters, else of the array.
  const std::size_t n_rows = kind == "params" ? shape.front() : 1;
  const std::size_t row_length = golden.size() / n_rows;
  for (std::size_t begin = 0; begin < golden.size(); begin += row_length) {
    double sum = 0;
    for (std::size_t i = begin; i < begin + row_length; ++i) sum += golden[i] * golden[i];
    const double rms = std::sqrt(sum / static_cast<double>(row_length));
    for (std::size_t i = begin; i < begin + row_length; ++i) magnitude[i] = rms;
  }
  return magnitude;
}

/// The bare comparison, for values that do not come as a whole recorded array.
inline comparison compare_values(const std::string& case_name, const std::string& optimizer,
                                 const std::string& array, const std::vector<double>& produced,
                                 const std::vector<double>& golden,
                                 const std::vector<double>& magnitude) {
  comparison result;
  result.case_name = case_name;
  result.optimizer = optimizer;
  result.array = array;
  result.kind = split_array_name(array).first;
  result.bound = tolerance_of(optimizer, result.kind);
  result.n = golden.size();
  if (produced.size() != golden.size() || magnitude.size() != golden.size()) {
    throw std::runtime_error("golden: " + case_name + "/" + array + ": " +
                             std::to_string(produced.size()) + " values produced, " +
                             std::to_string(golden.size()) + " recorded");
  }
  double sum = 0;
  for (std::size_t i = 0; i < golden.size(); ++i) {
    double error = 0;
    if (produced[i] != golden[i]) {
      error = magnitude[i] > 0 ? std::abs(produced[i] - golden[i]) / magnitude[i]
                               : std::numeric_limits<double>::infinity();
      if (std::isnan(error)) error = std::numeric_limits<double>::infinity();
    }
    if (i == 0 || error > result.largest) {
      result.largest = error;
      result.worst_index = i;
      result.worst_produced = produced[i];
      result.worst_golden = golden[i];
    }
    sum += error * error;
  }
  if (!golden.empty()) result.rms = std::sqrt(sum / static_cast<double>(golden.size()));
  return result;
}

/// Compares a whole array, in the order of the recorded one; T: float, double or uint8_t.
template <class T>
comparison compare(const golden_case& c, const std::string& array, const std::vector<T>& produced) {
  const std::vector<double> golden = c.values(array);
  const std::vector<double> wide(produced.begin(), produced.end());
  return compare_values(c.name(), c.optimizer(), array, wide, golden,
                        reference_magnitudes(c, array, golden));
}

/// The worst of all comparisons so far, per (label, optimizer, array); the label says whose values
/// were compared: "reference", "library", ...
class error_table {
 public:
  static error_table& instance() {
    static error_table table;
    return table;
  }
  void add(const std::string& label, const comparison& one) {
    const std::lock_guard lock(mutex_);
    row& worst = rows_[{label, one.optimizer, one.kind}];
    worst.n += 1;
    worst.bound = one.bound;
    worst.largest = std::max(worst.largest, one.largest);
    worst.rms = std::max(worst.rms, one.rms);
    if (worst.n == 1 || one.ratio() > worst.ratio) {
      worst.ratio = one.ratio();
      worst.where = one.case_name + "/" + one.array;
    }
  }
  void print(std::ostream& out, const std::string& only_label) const {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, worst] : rows_) {
      const auto& [label, optimizer, kind] = key;
      if (label != only_label) continue;
      char line[512];
      std::snprintf(
          line, sizeof line, "%-9s %-20s %-20s %.1e/%.1e of %.0e/%.0e  ratio %.3f  n %4zu  %s\n",
          label.c_str(), optimizer.c_str(), kind.c_str(), worst.largest, worst.rms,
          worst.bound.largest, worst.bound.rms, worst.ratio, worst.n, worst.where.c_str());
      out << line;
    }
  }

 private:
  struct row {
    tolerance bound;
    double largest = 0, rms = 0, ratio = 0;
    std::size_t n = 0;
    std::string where;
  };
  mutable std::mutex mutex_;
  std::map<std::tuple<std::string, std::string, std::string>, row> rows_;
};

/// Goes through one case: every array must be compared, or be left out with a reason.
class case_checker {
 public:
  case_checker(const golden_case& c, std::string label) : case_(c), label_(std::move(label)) {}

  template <class T>
  comparison check(const std::string& array, const std::vector<T>& produced) {
    comparison result = compare(case_, array, produced);
    error_table::instance().add(label_, result);
    if (compared_.empty() || result.ratio() > worst_ratio_) {
      worst_ratio_ = result.ratio();
      worst_array_ = array;
    }
    compared_.insert(array);
    if (!result.passed()) failures_.push_back(result.text());
    return result;
  }

  /// One entry of final_scalars: integers exactly, others to 1e-5 of the recorded value.
  bool check_scalar(const std::string& name, const std::vector<double>& produced) {
    const auto& golden = case_.json().at("final_scalars").at(name);
    bool good = golden.size() == produced.size();
    for (std::size_t k = 0; good && k < produced.size(); ++k) {
      const double expected = golden[k].get<double>();
      const double limit =
          golden[k].is_number_integer() ? 0.0 : scalar_tolerance * std::abs(expected);
      good = std::abs(produced[k] - expected) <= limit;
    }
    compared_.insert("final_scalars." + name);
    if (!good) failures_.push_back(case_.name() + "/final_scalars." + name + " differs  FAILED");
    return good;
  }

  void leave_out(const std::string& name, const std::string& why) { left_out_[name] = why; }

  /// What was neither compared nor left out. A case has passed if this and failures() are empty.
  std::vector<std::string> missing() const {
    std::vector<std::string> names = case_.array_names();
    if (case_.json().contains("final_scalars")) {
      for (const auto& [name, value] : case_.json().at("final_scalars").items()) {
        names.push_back("final_scalars." + name);
      }
    }
    std::erase_if(names, [&](const std::string& name) {
      return compared_.contains(name) || left_out_.contains(name);
    });
    return names;
  }
  const std::vector<std::string>& failures() const { return failures_; }

  /// One line: name, label, worst error/tolerance, what was compared and what was not.
  std::string summary() const {
    char ratio[64];
    std::snprintf(ratio, sizeof ratio, "%.3f", worst_ratio_);
    std::map<std::string, std::size_t> kinds;
    for (const std::string& name : compared_) kinds[split_array_name(name).first] += 1;
    std::string line = case_.name() + " " + label_ + " worst error/tolerance " + ratio + " (" +
                       worst_array_ + "); compared:";
    for (const auto& [kind, n] : kinds) {
      line += " " + kind + (n > 1 ? " x" + std::to_string(n) : "");
    }
    if (!left_out_.empty()) line += "; left out:";
    for (const auto& [name, why] : left_out_) line += " " + name + " (" + why + ")";
    return line;
  }

 private:
  const golden_case& case_;
  std::string label_;
  std::set<std::string> compared_;
  std::map<std::string, std::string> left_out_;
  std::vector<std::string> failures_;
  double worst_ratio_ = 0;
  std::string worst_array_;
};

}  // namespace onebit_test::golden

#endif  // ONEBIT_TESTS_SUPPORT_GOLDEN_COMPARE_HPP
