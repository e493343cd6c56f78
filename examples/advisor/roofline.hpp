// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/layout.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cost_model.hpp"

/// Lower bounds of the time of kernels on a GPU, estimated from counts of executed work: the time
/// to move the bytes or to issue the instructions, whichever is larger. Without launches, waits for
/// memory and stalls; no GPU was measured. A device is not faster, and may be slower.
namespace advisor::roofline {

/// NVIDIA's figures of SXM modules. The clock is the highest one; a busy device may not hold it.
struct device {
  const char* name;
  double multiprocessors;  ///< each with four schedulers
  double hertz;
  double bytes_per_second;

  /// Warp instructions that all schedulers issue in a second, one per cycle each.
  [[nodiscard]] double issued_per_second() const { return multiprocessors * 4 * hertz; }
};
inline constexpr std::array<device, 4> devices = {{{"A100", 108, 1.410e9, 2.039e12},
                                                   {"H100", 132, 1.980e9, 3.35e12},
                                                   {"H200", 132, 1.980e9, 4.8e12},
                                                   {"B200", 148, 1.965e9, 8.0e12}}};

/// Returns the device of this name. Throws invalid_input, with the known names.
[[nodiscard]] inline const device& device_named(const std::string& name) {
  std::string known;
  for (const device& d : devices) {
    if (name == d.name) return d;
    known += std::string(known.empty() ? "" : ", ") + d.name;
  }
  cost::refuse("there is no device ", name, "; there are ", known);
}

/// All launches of one kernel in one step.
struct kernel {
  std::string name;
  double launches = 0, warp_instructions = 0, thread_instructions = 0;
  double bytes_read = 0, bytes_written = 0;  ///< distinct sectors of 32 bytes

  [[nodiscard]] double memory_seconds(const device& d) const {
    return (bytes_read + bytes_written) / d.bytes_per_second;
  }
  [[nodiscard]] double issue_seconds(const device& d) const {
    return warp_instructions / d.issued_per_second();
  }
  /// Larger of memory_seconds and issue_seconds.
  [[nodiscard]] double seconds(const device& d) const {
    return std::max(memory_seconds(d), issue_seconds(d));
  }
};

/// One step of one rank.
struct step {
  std::string name;
  int ranks = 1;
  std::vector<kernel> kernels;

  /// Sum of member(kernel) over all kernels.
  template <class Member>
  [[nodiscard]] double sum(const Member& member) const {
    double all = 0;
    for (const kernel& k : kernels) all += member(k);
    return all;
  }
  /// Sum over the kernels, which run one after the other.
  [[nodiscard]] double seconds(const device& d) const {
    return sum([&](const kernel& k) { return k.seconds(d); });
  }
  [[nodiscard]] double launches() const {
    return sum([](const kernel& k) { return k.launches; });
  }
  /// Seconds of the kernels whose name `wanted` accepts.
  template <class Wanted>
  [[nodiscard]] double seconds(const device& d, const Wanted& wanted) const {
    return sum([&](const kernel& k) { return wanted(k.name) ? k.seconds(d) : 0; });
  }
};

/// Counts of all steps, for vectors of `elements` elements.
struct counts {
  double elements = 0;
  std::string command, nvcc, architecture;
  std::vector<step> steps;

  /// Returns the step of this name. Throws invalid_input.
  [[nodiscard]] const step& of(const std::string& name) const {
    for (const step& s : steps) {
      if (s.name == name) return s;
    }
    cost::refuse("no step of ", name, " was counted");
  }
};

/// Reads a file that bench/cuda/counts.sh has written. Throws invalid_input.
[[nodiscard]] inline counts read_counts(const std::string& file) try {
  std::ifstream in(file);
  if (!in) cost::refuse("cannot read ", file);
  const nlohmann::json all = nlohmann::json::parse(in);
  counts c{all.at("elements"), all.at("command"), all.at("nvcc"), all.at("architecture"), {}};
  for (const auto& s : all.at("steps")) {
    step& to = c.steps.emplace_back(step{s.at("step"), s.at("ranks"), {}});
    for (const auto& k : s.at("kernels")) {
      to.kernels.push_back({k.at("kernel"), k.at("launches"), k.at("warp_instructions"),
                            k.at("thread_instructions"), k.at("bytes_read"),
                            k.at("bytes_written")});
    }
  }
  if (!(c.elements >= 1)) cost::refuse(file, " counts ", c.elements, " elements");
  return c;
} catch (const nlohmann::json::exception& e) {
  cost::refuse(file, ": ", e.what());
}

/// Returns the file in `folder` with the nearest counts for vectors of `elements` elements that
/// travel at once. The library cuts them into whole tiles or into smaller ones, which cost up to a
/// sixth more instructions. Most kernels wait for memory, so that times differ by less.
[[nodiscard]] inline std::string counts_file(const std::string& folder, double elements) {
  constexpr double many = 1e15;  // above all relevant sizes, within std::size_t
  const auto words =
      static_cast<std::size_t>(std::ceil(std::min(elements, many) / onebit::word_elements));
  const bool whole = onebit::words_of_tiles(words) == onebit::tile_words;
  return folder + (whole ? "/cuda-counts-large.json" : "/cuda-counts.json");
}

/// Returns the differences of two counts of the same steps, a line each: launches that are not
/// equal, other figures that differ by more than `tolerance` of the step's figure.
[[nodiscard]] inline std::vector<std::string> differences(const counts& a, const counts& b,
                                                          double tolerance) {
  std::vector<std::string> lines;
  const auto differ = [&](const std::string& what, double x, double y, double most) {
    if (std::abs(x - y) <= most) return;
    std::ostringstream line;
    line.precision(9);
    line << what << ": " << x << " and " << y;
    lines.push_back(line.str());
  };
  differ("elements", a.elements, b.elements, 0);
  differ("steps", static_cast<double>(a.steps.size()), static_cast<double>(b.steps.size()), 0);
  for (std::size_t i = 0; i < std::min(a.steps.size(), b.steps.size()); ++i) {
    const step &x = a.steps[i], &y = b.steps[i];
    if (x.name != y.name) {
      lines.push_back(x.name + " and " + y.name);
      continue;
    }
    differ(x.name + ", launches", x.launches(), y.launches(), 0);
    const auto compare = [&](const char* what, double kernel::*member) {
      const double of_x = x.sum([&](const kernel& k) { return k.*member; });
      const double of_y = y.sum([&](const kernel& k) { return k.*member; });
      differ(x.name + ", " + what, of_x, of_y, tolerance * of_x);
    };
    compare("instructions of warps", &kernel::warp_instructions);
    compare("bytes read", &kernel::bytes_read);
    compare("bytes written", &kernel::bytes_written);
  }
  return lines;
}

/// Passes of the cost model on a device, in ns per parameter: sum_ns (averaging one rank's
/// gradients) and dense_update_ns are from Adam, the others from 1-bit Adam.
struct estimate {
  double dense_update_ns = 0;
  cost::passes compression;
};
[[nodiscard]] inline estimate passes_on(const device& d, const counts& c) {
  const step &one_bit = c.of("one_bit_adam"), &adam = c.of("adam");
  const double ns = 1e9 / c.elements;
  const auto is = [](const char* name) {
    return [name](const std::string& kernel) { return kernel == name; };
  };
  const double encode = one_bit.seconds(d, is("encode_kernel"));
  const double update = one_bit.seconds(d, is("adam_update_kernel")) +
                        one_bit.seconds(d, is("compensate_kernel"));  // part of the update, by tile
  estimate e;
  if (!(encode > 0 && update > 0)) {
    throw std::runtime_error(
        "roofline: the counts have no encode or no update pass of 1-bit Adam: count anew with "
        "bench/cuda/counts.sh");
  }
  e.dense_update_ns = adam.seconds(d, is("adam_dense_kernel")) * ns;
  e.compression.encode_ns = encode * ns;
  e.compression.update_ns = update * ns;
  e.compression.serve_ns = (one_bit.seconds(d) - encode - update) * ns;
  e.compression.sum_ns = adam.seconds(d, is("encode_kernel")) * ns;
  return e;
}

}  // namespace advisor::roofline
