// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The recorded trajectories against a double-precision replay of their written formulas. This
// shows that the files, the formulas, the input generators and the comparator fit together, so
// that the same files and the same comparator can judge the library.

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <exception>
#include <iostream>
#include <string>
#include <vector>

#include "../support/golden_compare.hpp"
#include "../support/recorded_optimizers.hpp"

namespace golden = onebit_test::golden;
namespace recorded = onebit_test::recorded;

namespace {

/// Calls check(case) for every case there is; one that throws fails, and the others still run.
template <class Check>
void for_each_case(Check check) {
  const auto directories = golden::list_cases();
  for (const auto& directory : directories) {
    INFO("case ", directory.filename().string());
    try {
      const golden::golden_case c(directory);
      CHECK(c.name() == directory.filename().string());
      check(c);
    } catch (const std::exception& e) {
      FAIL_CHECK(std::string(e.what()));
    }
  }
}

/// Element by element through the generator, in float as it was recorded.
std::uint32_t crc_of_gradient(const golden::golden_case& c, std::size_t k, std::size_t r) {
  return onebit_test::crc32(c.gradient(k, r, 1, c.initial_params(k)));
}

}  // namespace

TEST_CASE("golden: the input generator gives the documented values") {
  CHECK(golden::hash(1, 2, 0, 1, 3, 0) == 0xb20ad321bae5ab80u);
  CHECK(golden::hash(1, 2, 0, 1, 3, 1) == 0x2c341f9774ed3332u);
  CHECK(golden::hash(1, 2, 0, 1, 3, 2) == 0x14434ad5079dc861u);
  CHECK(golden::u(1, 2, 0, 1, 3, 0) == 0.390955329f);
  CHECK(golden::u(1, 2, 0, 1, 3, 1) == -0.65465939f);
  CHECK(golden::u(1, 2, 0, 1, 3, 2) == -0.841696501f);
}

TEST_CASE("golden: every file is listed, and has the listed shape and CRC-32") {
  for_each_case([](const golden::golden_case& c) { c.verify_files(); });
}

TEST_CASE("golden: the generated inputs are the recorded ones, bit for bit") {
  for_each_case([](const golden::golden_case& c) {
    if (c.optimizer() == "compressed_allreduce") return;  // its inputs are stored
    REQUIRE(!c.tensors().empty());
    for (std::size_t k = 0; k < c.tensors().size(); ++k) {
      std::vector<float> target;
      for (std::size_t i = 0; i < c.tensors()[k].size; ++i) target.push_back(c.target(k, i));
      CHECK(onebit_test::crc32(c.initial_params(k)) ==
            c.json().at("crc32_initial_param").at(k).get<std::uint32_t>());
      CHECK(onebit_test::crc32(target) == c.json().at("crc32_target").at(k).get<std::uint32_t>());
      for (std::size_t r = 0; r < c.world_size(); ++r) {
        CHECK(crc_of_gradient(c, k, r) ==
              c.json().at("crc32_gradient_update1").at(k).at(r).get<std::uint32_t>());
      }
    }
  });
}

TEST_CASE("golden: the comparator accepts the recorded values and rejects the smallest mistake") {
  for_each_case([](const golden::golden_case& c) {
    for (const std::string& name : c.array_names()) {
      if (name == "input") continue;
      CAPTURE(name);
      const std::vector<double> recorded_values = c.values(name);
      REQUIRE(!recorded_values.empty());
      CHECK(golden::compare(c, name, recorded_values).ratio() == 0);

      const auto magnitude = golden::reference_magnitudes(c, name, recorded_values);
      const golden::tolerance bound = golden::compare(c, name, recorded_values).bound;
      for (const std::size_t i : {std::size_t{0}, recorded_values.size() - 1}) {
        const double step = magnitude[i] > 0 ? 1.01 * bound.largest * magnitude[i] : 1e-30;
        std::vector<double> wrong = recorded_values;
        wrong[i] = recorded_values[i] == 0 ? step : recorded_values[i] + step;
        if (wrong[i] == recorded_values[i]) wrong[i] += 1;  // a byte
        CHECK_FALSE(golden::compare(c, name, wrong).passed());
        wrong[i] = std::nan("");
        CHECK_FALSE(golden::compare(c, name, wrong).passed());
      }
      std::vector<double> all_wrong = recorded_values;
      for (std::size_t i = 0; i < all_wrong.size(); ++i) {
        all_wrong[i] += magnitude[i] > 0 ? 1.01 * bound.rms * magnitude[i] : 1;
      }
      CHECK_FALSE(golden::compare(c, name, all_wrong).passed());
      all_wrong.pop_back();
      CHECK_THROWS(golden::compare(c, name, all_wrong));
    }
    CHECK(golden::case_checker(c, "nothing").missing().size() >= c.array_names().size());
  });
}

TEST_CASE("golden: the double-precision replay reproduces every array of every case") {
  std::size_t n_cases = 0;
  for_each_case([&](const golden::golden_case& c) {
    const recorded::trajectory replay = recorded::run(c);
    golden::case_checker checker(c, "reference");
    for (const auto& [name, values] : replay.arrays) checker.check(name, values);
    for (const auto& [name, bytes] : replay.signs) checker.check(name, bytes);
    for (const auto& [name, values] : replay.final_scalars) checker.check_scalar(name, values);
    if (c.has_array("input")) checker.leave_out("input", "handed in");
    if (c.json().contains("phases")) CHECK(replay.phases == c.phases());
    CHECK(replay.compressed_calls == c.compressed_calls());

    for (const std::string& failure : checker.failures()) FAIL_CHECK(failure);
    for (const std::string& name : checker.missing()) FAIL_CHECK("not compared: " << name);
    std::cout << checker.summary() << '\n';
    n_cases += 1;
  });
  CHECK(n_cases == golden::list_cases().size());
  std::cout << "\nworst error (largest/rms) per array over " << n_cases << " cases\n";
  golden::error_table::instance().print(std::cout, "reference");
}
