// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A step as text.

#include <doctest/doctest.h>

#include <cstdlib>
#include <limits>
#include <onebit/step/report.hpp>
#include <random>
#include <string>

using namespace onebit;

namespace {

/// The text behind a key of a JSON line.
std::string value_of(const std::string& json, const std::string& key) {
  const std::size_t at = json.find("\"" + key + "\":");
  REQUIRE(at != std::string::npos);
  const std::size_t first = at + key.size() + 3;
  return json.substr(first, json.find_first_of(",}", first) - first);
}

}  // namespace

TEST_CASE("a line for logs [report]") {
  report r;
  r.step = 12;
  r.phase = phase::compressed;
  r.bytes_sent = 78424;
  r.collectives = 2;
  r.encode_seconds = 0.00034;
  r.communicate_seconds = 0.0041;
  r.update_seconds = 0.00041;
  CHECK(to_string(r) ==
        "step 12 compressed: 4.85 ms = 0.34 encode + 4.10 communicate + 0.41 update, 78.42 kB in 2 "
        "collectives");
  r.gradient_norm = 0.531F;
  r.skipped = true;
  r.bytes_sent = 12345678;
  r.skipped_share = 0.25F;
  r.sent_of_dense = 0.0612F;
  CHECK(to_string(r) ==
        "step 12 compressed, skipped: 4.85 ms = 0.34 encode + 4.10 communicate + 0.41 update, "
        "12.35 MB in 2 collectives, gradient norm 0.53, 25.00% of all steps skipped, "
        "6.12% of the bytes of float ring allreduces so far");
  r = {};
  r.phase = phase::local;
  r.refreshed = true;
  r.pending = true;
  CHECK(to_string(r) ==
        "step 0 local with a refresh of v, pending: 0.00 ms = 0.00 encode + 0.00 communicate + "
        "0.00 update, 0.00 kB in "
        "0 collectives");
  r.update_seconds = std::numeric_limits<double>::max();  // no buffer is too short
  r.gradient_norm = std::numeric_limits<float>::infinity();
  CHECK(to_string(r).ends_with("gradient norm inf"));
}

TEST_CASE("a line of JSON [report]") {
  report r;
  CHECK(
      to_json(r) ==
      R"({"step":0,"phase":"dense","refreshed":false,"skipped":false,"pending":false,"gradient_norm":null,)"
      R"("skipped_share":null,"sent_of_dense":null,"bytes_sent":0,"bytes_between_nodes":0,"collectives":0,)"
      R"("encode_seconds":0,"communicate_seconds":0,"update_seconds":0})");
  r.step = std::numeric_limits<std::uint64_t>::max();
  r.phase = phase::compressed;
  r.skipped = r.pending = true;
  r.gradient_norm = 0.1F;
  r.skipped_share = 0.5F;
  r.bytes_sent = 3;
  r.bytes_between_nodes = 2;
  r.collectives = 1;
  r.encode_seconds = 1e-7;
  CHECK(
      to_json(r) ==
      R"({"step":18446744073709551615,"phase":"compressed","refreshed":false,"skipped":true,"pending":true,)"
      R"("gradient_norm":0.1,"skipped_share":0.5,"sent_of_dense":null,"bytes_sent":3,"bytes_between_nodes":2,)"
      R"("collectives":1,"encode_seconds":1e-07,"communicate_seconds":0,"update_seconds":0})");
  r.gradient_norm = std::numeric_limits<float>::infinity();
  r.update_seconds = -std::numeric_limits<double>::infinity();
  CHECK(value_of(to_json(r), "gradient_norm") == "null");
  CHECK(value_of(to_json(r), "update_seconds") == "null");
}

TEST_CASE("numbers of JSON are read back as they were [report]") {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> digits(-1, 1);
  std::uniform_int_distribution<int> size(-30, 30);
  for (int i = 0; i < 2000; ++i) {
    report r;
    r.gradient_norm = static_cast<float>(std::ldexp(digits(random), size(random)));
    r.encode_seconds = std::ldexp(digits(random), 10 * size(random));
    const std::string json = to_json(r);
    CHECK(std::strtof(value_of(json, "gradient_norm").c_str(), nullptr) == *r.gradient_norm);
    CHECK(std::strtod(value_of(json, "encode_seconds").c_str(), nullptr) == r.encode_seconds);
  }
}
