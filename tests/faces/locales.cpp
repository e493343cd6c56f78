// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A program that prints numbers for people, with commas and points of their own, reads and writes
// the same as one that does not.

#include "support/locales.hpp"

#include <doctest/doctest.h>
#include <locale.h>

#include <bit>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <onebit/extras/by_name.hpp>
#include <onebit/extras/checkpoint_files.hpp>
#include <onebit/onebit.hpp>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "support/scratch.hpp"
#include "support/training.hpp"

using namespace onebit_test;
namespace fs = std::filesystem;

namespace {

using strings = std::vector<std::string>;

auto make(training<>& data, const onebit::threads& t) {
  return onebit::one_bit_adam(data.groups(), t, {.adam = {.beta2 = 0.995}});
}

/// A job of two ranks saves two steps under `root`, from `first` on.
void save_twice(const fs::path& root, std::uint64_t first) {
  on_ranks(2, [&](onebit::threads t) {
    training<> data;
    auto o = make(data, t);
    const auto start = onebit::load_latest(o, root, [&](std::istream& in) {
      int epoch = 0;
      in >> epoch;
      CHECK(epoch == 36804);
      in.ignore();
      data.read(in);
    });
    CHECK(start.value_or(0) == first);
    for (int i = 0; i < 2; ++i) {
      (void)train(o, data);
      onebit::save_all(o, root, [&](std::ostream& out) {
        out << 36804 << ' ';
        data.write(out);
      });
    }
    return 0;
  });
}
std::string content(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

/// Texts that ranks and checkpoints compare, and that trainers log.
strings texts() {
  onebit::report r;
  r.step = 123456;
  r.bytes_sent = 1234567;
  r.gradient_norm = 0.25F;
  r.encode_seconds = 1234.5;
  onebit::adam_options o;
  o.max_grad_norm = 12345.5;
  return {onebit::describe(o),
          onebit::describe(0.9, " ", 0.1F, " ", 123456789),
          to_string(r),
          to_json(r),
          onebit::detail::error_text("lr ", 0.01F, " of ", 1000000),
          onebit::sign<>{}.name(),
          onebit::detail::files::manifest_of(1234, {{5678, 91011}})};
}

}  // namespace

TEST_CASE("checkpoints are loaded, and removed, alike in every locale of C++") {
  const scratch plain, german, mixed;
  save_twice(plain.path, 0);
  {
    const global_locale now(german_numbers());
    REQUIRE((std::ostringstream() << 36804).str() == "36.804");
    save_twice(german.path, 0);
    save_twice(mixed.path, 0);
    save_twice(mixed.path, 2);
  }
  save_twice(mixed.path, 4);  // what a program with commas has saved
  {
    const global_locale now(german_numbers());
    save_twice(mixed.path, 6);
  }
  for (const char* file : {"manifest", "rank-0", "rank-1"}) {
    CHECK(content(plain.path / "step-2" / file) == content(german.path / "step-2" / file));
  }
  CHECK(fs::exists(mixed.path / "step-7"));
  CHECK(fs::exists(mixed.path / "step-8"));
}

TEST_CASE("an optimizer saves the same bytes, whatever the locale of the program and the stream") {
  on_ranks(1, [](onebit::threads t) {
    training<> data;
    auto o = make(data, t);
    for (int i = 0; i < 7; ++i) (void)train(o, data);
    const std::string plain = saved(o);
    std::ostringstream imbued;
    imbued.imbue(german_numbers());
    o.save(imbued);
    CHECK(imbued.str() == plain);
    const global_locale now(german_numbers());
    CHECK(saved(o) == plain);
    std::istringstream in(plain);
    o.load(in);
    return 0;
  });
}

TEST_CASE("a decimal comma of C: the same texts, checkpoints and ranks") {
  const made_locale comma;
  const strings before = texts();
  CHECK(before[1] == "0.9 0.1 123456789");
  const scratch root;
  save_twice(root.path, 0);
  REQUIRE(std::setlocale(LC_NUMERIC, made_locale::name) != nullptr);
  CHECK(texts() == before);
  save_twice(root.path, 2);
  std::setlocale(LC_NUMERIC, "C");
  save_twice(root.path, 4);

  // rank 1 has a window
  on_ranks(2, [](onebit::threads t) {
    const locale_t own =
        newlocale(LC_NUMERIC_MASK, t.rank() == 1 ? made_locale::name : "C", nullptr);
    const locale_t old = uselocale(own);
    training<> data;
    auto o = make(data, t);
    (void)train(o, data);
    std::vector<float> x(64, 1), g(64, 1);
    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({x, g});
    auto named = onebit::make_optimizer("adam", {{"beta1", "0.5"}, {"eps", "0.5"}}, groups, t);
    CHECK(named.description() == contains{"beta1 0.5"});
    uselocale(old);
    freelocale(own);
    return 0;
  });
}

TEST_CASE("numbers as text: short, of one kind for each number") {
  using onebit::detail::number_text;
  CHECK(number_text(0.9) == "0.9");
  CHECK(number_text(0.1F) == "0.1");
  CHECK(number_text(1e-8) == "1e-08");
  CHECK(number_text(1.0000000000000002e-8) == "1.0000000000000002e-08");
  CHECK(number_text(true) == "1");
  CHECK(number_text(std::numeric_limits<std::int64_t>::min()) == "-9223372036854775808");
  CHECK(number_text(-std::numeric_limits<double>::infinity()) == "-inf");
  // neighbours have other texts
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    const auto reads_back = [](auto x) {
      const std::string text = number_text(x);
      auto back = x - x;
      std::from_chars(text.data(), text.data() + text.size(), back);
      return back == x || !std::isfinite(x);
    };
    CHECK(reads_back(std::bit_cast<double>(random())));
    CHECK(reads_back(std::bit_cast<float>(static_cast<std::uint32_t>(random()))));
  }
}
