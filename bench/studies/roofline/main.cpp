// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Lower bounds of the time of a step's kernels on named GPUs, estimated from counts: by memory, by
// issue, and the larger of the two, compared with a hand-written Adam in one kernel. The counts are
// from a CUDA device on the CPU (bench/cuda/counts.sh); no GPU was measured.
//
//   roofline [--counts FILE] [--parameters 336e6] [--device H100] [--kernels]
//   roofline --against FILE [--counts FILE]     prints where the counts differ; fails if they do

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "advisor/roofline.hpp"

namespace {

using namespace advisor::roofline;

void print_kernels(const counts& c, const std::vector<device>& on) {
  std::printf(
      "By parameter: PTX instructions of all threads, bytes read and written, and on each device "
      "the picoseconds by memory, by issue\n(of one step on one rank; launches of a step that are "
      "too small to show are in its last line)\n");
  for (const step& s : c.steps) {
    const std::string title =
        s.name + (s.ranks > 1 ? ", one rank of " + std::to_string(s.ranks) : "");
    std::printf("\n%-34s %8s %8s %7s %7s", title.c_str(), "launches", "threads'", "in", "out");
    for (const device& d : on) std::printf("   %11s", d.name);
    std::printf("\n");
    const auto line = [&](const char* name, double launches, double threads, double in, double out,
                          const auto& seconds) {
      std::printf("  %-32s %8.0f %8.1f %7.2f %7.2f", name, launches, threads / c.elements,
                  in / c.elements, out / c.elements);
      for (const device& d : on) seconds(d);
      std::printf("\n");
    };
    for (const kernel& k : s.kernels) {
      if (k.bytes_read + k.bytes_written < 0.01 * c.elements) continue;
      line(k.name.c_str(), k.launches, k.thread_instructions, k.bytes_read, k.bytes_written,
           [&](const device& d) {
             const double ps = 1e12 / c.elements;
             std::printf("   %5.2f %5.2f", k.memory_seconds(d) * ps, k.issue_seconds(d) * ps);
           });
    }
    line("all, the larger of each", s.launches(),
         s.sum([](const kernel& k) { return k.thread_instructions; }),
         s.sum([](const kernel& k) { return k.bytes_read; }),
         s.sum([](const kernel& k) { return k.bytes_written; }),
         [&](const device& d) { std::printf("   %11.2f", s.seconds(d) * 1e12 / c.elements); });
  }
  std::printf("\n");
}

void print_steps(const counts& c, const std::vector<device>& on, double parameters) {
  const step& by_hand = c.of("adam by hand");
  std::printf(
      "Estimated from counts: microseconds of a step's kernels for %.0f parameters, and times "
      "those of Adam by hand\n\n%-24s %8s",
      parameters, "", "launches");
  for (const device& d : on) std::printf("   %15s", d.name);
  std::printf("\n");
  for (const step& s : c.steps) {
    std::printf("%-24s %8.0f", s.name.c_str(), s.launches());
    for (const device& d : on) {
      std::printf("   %8.1f %5.2fx", s.seconds(d) * 1e6 * parameters / c.elements,
                  s.seconds(d) / by_hand.seconds(d));
    }
    std::printf("\n");
  }
}

int run_program(int argc, char** argv) {
  CLI::App app{"What a step's kernels take at least on GPUs, estimated from counts."};
  std::string file, against;
  std::vector<std::string> names;
  double parameters = 336226108, tolerance = 0.05;
  bool kernels = false;
  app.add_option("--counts", file, "a file of bench/cuda/counts.sh (ours, of the size nearest)");
  app.add_option("--parameters", parameters, "parameters of the model")
      ->check(CLI::Range(1.0, 1e15))
      ->capture_default_str();
  app.add_option("--device", names, "A100, H100, H200 or B200; may be repeated (all)");
  app.add_flag("--kernels", kernels, "also by kernel");
  CLI::Option* compare = app.add_option(
      "--against", against, "instead: compare with that file, and fail where it counts otherwise");
  app.add_option("--tolerance", tolerance, "of --against, relative to the step's figure")
      ->check(CLI::NonNegativeNumber)
      ->needs(compare)
      ->capture_default_str();
  for (const char* other : {"--parameters", "--device", "--kernels"}) {
    compare->excludes(app.get_option(other));
  }
  CLI11_PARSE(app, argc, argv);

  if (std::isnan(parameters)) advisor::cost::refuse("--parameters is no number");
  const counts other = against.empty() ? counts{} : read_counts(against);
  if (file.empty()) {
    file = counts_file(ADVISOR_COUNTS, against.empty() ? parameters : other.elements);
  }
  const counts c = read_counts(file);
  if (!against.empty()) {
    const std::vector<std::string> lines = differences(c, other, tolerance);
    for (const std::string& line : lines) std::printf("%s\n", line.c_str());
    if (lines.empty()) return 0;
    std::printf(
        "%s differs. Where kernels have changed, count both sizes anew:\n"
        "  bench/cuda/counts.sh\n"
        "  bench/cuda/counts.sh bench/results/cuda-counts-large.json 8388608\n",
        file.c_str());
    return 1;
  }
  std::vector<device> on;
  for (const std::string& name : names) on.push_back(device_named(name));
  if (on.empty()) on.assign(devices.begin(), devices.end());
  std::printf("Counts of %s (%.0f elements, nvcc %s, PTX for %s); no GPU has run anything.\n\n",
              c.command.c_str(), c.elements, c.nvcc.c_str(), c.architecture.c_str());
  if (kernels) print_kernels(c, on);
  print_steps(c, on, parameters);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run_program(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "roofline: %s\n", e.what());
    return 1;
  }
}
