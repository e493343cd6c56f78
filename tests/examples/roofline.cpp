// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Estimates from counts: the arithmetic, and that the counts are of the kernels that there are.
// That they are today's figures is checked where they can be counted: .ci/run.

#include "../examples/advisor/roofline.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "support/scratch.hpp"
#include "support/training.hpp"

namespace roofline = advisor::roofline;
using onebit_test::contains;
using onebit_test::thrown;

namespace {

const std::string source = ONEBIT_SOURCE_DIR;

/// A device of one multiprocessor at 1 GHz that moves 8 bytes in the time of its 4 instructions.
constexpr roofline::device simple = {"simple", 1, 1e9, 8e9};

roofline::kernel kernel(const char* name, double instructions, double read, double written) {
  return {name, 1, instructions, 32 * instructions, read, written};
}

std::string all_headers() {
  std::ostringstream all;
  for (const char* folder : {"/include", "/bench/cuda"}) {
    for (const auto& e : std::filesystem::recursive_directory_iterator(source + folder)) {
      if (e.is_regular_file()) all << std::ifstream(e.path()).rdbuf();
    }
  }
  return all.str();
}

}  // namespace

TEST_CASE("roofline: a kernel takes the larger of memory and issue, a step the sum") {
  const roofline::kernel moves = kernel("moves", 4, 16, 8);       // 3 ns by memory, 1 by issue
  const roofline::kernel computes = kernel("computes", 8, 8, 0);  // 1 ns, 2 ns
  CHECK(moves.memory_seconds(simple) == doctest::Approx(3e-9));
  CHECK(moves.issue_seconds(simple) == doctest::Approx(1e-9));
  CHECK(moves.seconds(simple) == doctest::Approx(3e-9));
  CHECK(computes.seconds(simple) == doctest::Approx(2e-9));
  const roofline::step s{"both", 2, {moves, computes}};
  CHECK(s.seconds(simple) == doctest::Approx(5e-9));
  CHECK(s.launches() == 2);
  CHECK(s.seconds(simple, [](const std::string& n) { return n == "computes"; }) ==
        doctest::Approx(2e-9));
}

TEST_CASE("roofline: passes of the cost model") {
  roofline::counts c{1000, "", "", "", {}};
  c.steps.push_back(
      {"one_bit_adam",
       8,
       {kernel("encode_kernel", 0, 8000, 8000), kernel("adam_update_kernel", 0, 8000, 0),
        kernel("encode_kernel, served", 400, 0, 0)}});
  c.steps.push_back(
      {"adam", 8, {kernel("adam_dense_kernel", 0, 16000, 0), kernel("encode_kernel", 0, 4000, 0)}});
  const roofline::estimate e = roofline::passes_on(simple, c);
  CHECK(e.compression.encode_ns == doctest::Approx(2.0));
  CHECK(e.compression.update_ns == doctest::Approx(1.0));
  CHECK(e.compression.serve_ns == doctest::Approx(0.1));
  CHECK(e.compression.sum_ns == doctest::Approx(0.5));
  CHECK(e.dense_update_ns == doctest::Approx(2.0));
}

TEST_CASE("roofline: what differs between two counts") {
  roofline::counts a{10, "", "", "", {{"x", 1, {kernel("k", 100, 50, 50)}}}}, b = a;
  CHECK(roofline::differences(a, b, 0).empty());
  b.steps[0].kernels[0].warp_instructions = 104;
  CHECK(roofline::differences(a, b, 0.05).empty());
  CHECK(roofline::differences(a, b, 0.03).size() == 1);
  b = a;
  b.steps[0].kernels[0].launches = 2;
  CHECK(roofline::differences(a, b, 1) == std::vector<std::string>{"x, launches: 1 and 2"});
  b.steps[0].name = "y";
  CHECK(roofline::differences(a, b, 1) == std::vector<std::string>{"x and y"});
  b.steps.clear();
  CHECK(roofline::differences(a, b, 1) == std::vector<std::string>{"steps: 1 and 0"});
}

TEST_CASE("roofline: what cannot be read is told") {
  const onebit_test::scratch folder;
  const std::string file = folder.path / "counts.json";
  CHECK(thrown<onebit::invalid_input>([&] { (void)roofline::read_counts(file); }) ==
        contains{"cannot read"});
  for (const char* text : {"{", "{}", R"({"command": "", "nvcc": "", "architecture": "",
                                          "elements": "many", "steps": []})"}) {
    std::ofstream(file) << text;
    CHECK(thrown<onebit::invalid_input>([&] { (void)roofline::read_counts(file); }) ==
          contains{"counts.json"});
  }
  CHECK(thrown<onebit::invalid_input>([] { (void)roofline::device_named("C3"); }) ==
        contains{"no device C3; there are A100, H100, H200, B200"});
}

namespace {

bool refreshes(const std::string& step) { return step.ends_with(", refresh"); }

/// Launches of a step whose averages go in two buckets in place of one: more than 2^22 elements.
double more_for_buckets(const std::string& step, const roofline::counts& c) {
  const bool averages = step == "adam" || step == "lamb" || refreshes(step);
  return averages && c.elements > (1 << 22) ? 4 : 0;
}

/// 1-bit LAMB has three kernels of its layers beside those of 1-bit Adam: the norms of the
/// parameters, the coefficients, the growth of the directions. 0/1 Adam has two that look whether
/// the trainer has written to parameters, and two of its sums of rates. A refresh averages squares
/// and sketches, and brings v up to date.
double most_launches(const std::string& step, const roofline::counts& c) {
  const double own = step.starts_with("zero_one_adam")  ? 14
                     : step.starts_with("one_bit_lamb") ? 12
                                                        : 11;
  return own + (refreshes(step) ? 29 : 0) + more_for_buckets(step, c);
}

void check_counts(const roofline::counts& c) {
  CAPTURE(c.command);
  const std::string headers = all_headers();
  for (const char* name : {"adam by hand", "one_bit_adam", "one_bit_lamb", "zero_one_adam",
                           "zero_one_adam, local", "adam", "lamb", "one_bit_adam, refresh",
                           "one_bit_lamb, refresh", "zero_one_adam, refresh"}) {
    CAPTURE(name);
    const roofline::step& s = c.of(name);
    REQUIRE(!s.kernels.empty());
    for (const roofline::kernel& k : s.kernels) {
      const std::string word = k.name.substr(0, k.name.find(','));
      CAPTURE(word);
      CHECK(headers.find(word) != std::string::npos);
      CHECK(k.launches >= 1);
      CHECK(k.thread_instructions <= 32 * k.warp_instructions);
    }
    // Parameters are read and written at least, and no step is beyond all budgets.
    const auto bytes = [](const roofline::kernel& k) { return k.bytes_read + k.bytes_written; };
    CHECK(s.sum(bytes) >= 8 * c.elements);
    CHECK(s.sum(bytes) <= (refreshes(name) ? 96 : 64) * c.elements);
    CHECK(s.launches() <= most_launches(name, c));
  }
  for (const roofline::device& d : roofline::devices) {
    CHECK(c.of("one_bit_adam").seconds(d) < c.of("lamb").seconds(d));
    CHECK(c.of("adam by hand").seconds(d) < c.of("one_bit_adam").seconds(d));
  }
}

}  // namespace

TEST_CASE("roofline: the counts are of all algorithms, and of kernels that there are") {
  const auto read = [](double elements) {
    return roofline::read_counts(roofline::counts_file(source + "/bench/results", elements));
  };
  const roofline::counts small = read(1e6), large = read(3e8);
  check_counts(small);
  check_counts(large);

  // Of the same kernels, so that one file alone cannot be renewed: what depends on no tiles.
  REQUIRE(large.steps.size() == small.steps.size());
  const auto by_element = [](const roofline::counts& c, std::size_t i,
                             double roofline::kernel::*m) {
    return c.steps[i].sum([m](const roofline::kernel& k) { return k.*m; }) / c.elements;
  };
  for (std::size_t i = 0; i < small.steps.size(); ++i) {
    CAPTURE(small.steps[i].name);
    CHECK(large.steps[i].name == small.steps[i].name);
    CHECK(large.steps[i].launches() ==
          small.steps[i].launches() + more_for_buckets(large.steps[i].name, large));
    for (const auto bytes : {&roofline::kernel::bytes_read, &roofline::kernel::bytes_written}) {
      // 1-bit LAMB writes 64 floats a tile, of which small vectors have more
      // (in a refresh all of them)
      const double within = small.steps[i].name == "one_bit_lamb, refresh" ? 0.04
                            : small.steps[i].name == "one_bit_lamb"        ? 0.02
                                                                           : 0.01;
      CHECK(by_element(large, i, bytes) ==
            doctest::Approx(by_element(small, i, bytes)).epsilon(within));
    }
    const auto instructions = &roofline::kernel::thread_instructions;
    CHECK(by_element(large, i, instructions) <= by_element(small, i, instructions));
  }
}

TEST_CASE("roofline: counts of whole tiles from the size on that the library cuts so") {
  const auto whole = [](double elements) {
    const auto words = static_cast<std::size_t>(std::ceil(elements / 32));
    return onebit::words_of_tiles(words) == onebit::tile_words;
  };
  for (const double elements :
       {1.0, 1e6, 4194304.0, 8388576.0, 8388577.0, 8388607.0, 8388608.0, 3e8}) {
    CAPTURE(elements);
    CHECK(roofline::counts_file("", elements) ==
          (whole(elements) ? "/cuda-counts-large.json" : "/cuda-counts.json"));
  }
  CHECK(whole(8388608));
  CHECK(!whole(8388576));
  CHECK(roofline::counts_file("", 1e30) == "/cuda-counts-large.json");
}
