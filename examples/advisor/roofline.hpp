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
#include <string>
#include <utility>
#include <vector>

#include "cost_model.hpp"

/// What kernels take at least on a GPU, estimated from counts of what they execute: by the bytes
/// that they move, and by the instructions that the schedulers issue, the larger of the two. No
/// launch, no wait for memory and no stall is in it, and no GPU was asked: a figure that a device
/// will not beat, and may miss.
namespace advisor::roofline {

/// NVIDIA's figures of the SXM modules. The clock is the highest, which a busy device may not hold.
struct device {
  const char* name;
  double multiprocessors;  ///< of four schedulers each
  double hertz;
  double bytes_per_second;

  /// Instructions of warps that all schedulers issue, one in a cycle.
  [[nodiscard]] double issued_per_second() const { return multiprocessors * 4 * hertz; }
};
inline constexpr std::array<device, 4> devices = {{{"A100", 108, 1.410e9, 2.039e12},
                                                   {"H100", 132, 1.980e9, 3.35e12},
                                                   {"H200", 132, 1.980e9, 4.8e12},
                                                   {"B200", 148, 1.965e9, 8.0e12}}};

/// Throws invalid_input, with the names that there are.
[[nodiscard]] inline const device& device_named(const std::string& name) {
  std::string known;
  for (const device& d : devices) {
    if (name == d.name) return d;
    known += std::string(known.empty() ? "" : ", ") + d.name;
  }
  cost::refuse("there is no device ", name, "; there are ", known);
}

/// A kernel's launches in one step, together.
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
  /// The larger of the two.
  [[nodiscard]] double seconds(const device& d) const {
    return std::max(memory_seconds(d), issue_seconds(d));
  }
};

/// One step of one rank.
struct step {
  std::string name;
  int ranks = 1;
  std::vector<kernel> kernels;

  /// The sum of member(kernel) of all kernels.
  template <class Member>
  [[nodiscard]] double sum(const Member& member) const {
    double all = 0;
    for (const kernel& k : kernels) all += member(k);
    return all;
  }
  /// Kernels follow each other: each takes what limits it.
  [[nodiscard]] double seconds(const device& d) const {
    return sum([&](const kernel& k) { return k.seconds(d); });
  }
  [[nodiscard]] double launches() const {
    return sum([](const kernel& k) { return k.launches; });
  }
  /// Of the kernels whose name `wanted` accepts.
  template <class Wanted>
  [[nodiscard]] double seconds(const device& d, const Wanted& wanted) const {
    return sum([&](const kernel& k) { return wanted(k.name) ? k.seconds(d) : 0; });
  }
};

/// All that was counted, for so many parameters.
struct counts {
  double elements = 0;
  std::string command, nvcc, architecture;
  std::vector<step> steps;

  /// Throws invalid_input.
  [[nodiscard]] const step& of(const std::string& name) const {
    for (const step& s : steps) {
      if (s.name == name) return s;
    }
    cost::refuse("no step of ", name, " was counted");
  }
};

/// A file of bench/cuda/counts.sh. Throws invalid_input.
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

/// The file in that folder whose counts are nearest for vectors of so many elements that travel at
/// once: where the library cuts them into whole tiles, or into smaller ones, which cost up to a
/// sixth more instructions. Most kernels wait for memory, so that times differ by less.
[[nodiscard]] inline std::string counts_file(const std::string& folder, double elements) {
  constexpr double many = 1e15;  // beyond all sizes that matter, and below those of std::size_t
  const auto words =
      static_cast<std::size_t>(std::ceil(std::min(elements, many) / onebit::word_elements));
  const bool whole = onebit::words_of_tiles(words) == onebit::tile_words;
  return folder + (whole ? "/cuda-counts-large.json" : "/cuda-counts.json");
}

/// Where two counts of the same steps differ: launches at all, other figures by more than
/// `tolerance` of the step's; a line for each.
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

/// The passes of the cost model on that device, in ns per parameter: 1-bit Adam's, and the average
/// of one rank's gradients from Adam's.
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
                        one_bit.seconds(d, is("accumulate_kernel"));  // with it, tile by tile
  estimate e;
  e.dense_update_ns = adam.seconds(d, is("adam_dense_kernel")) * ns;
  e.compression.encode_ns = encode * ns;
  e.compression.update_ns = update * ns;
  e.compression.serve_ns = (one_bit.seconds(d) - encode - update) * ns;
  e.compression.sum_ns = adam.seconds(d, is("encode_kernel")) * ns;
  return e;
}

}  // namespace advisor::roofline
