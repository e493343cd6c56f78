// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Every invalid input is refused with the numbers that are wrong, and by the right kind of error.

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <onebit/onebit.hpp>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "support/training.hpp"

using onebit_test::contains;
using onebit_test::on_ranks;
using onebit_test::thrown;
using onebit_test::training;

namespace {

constexpr float nan_f = std::numeric_limits<float>::quiet_NaN();
constexpr float inf_f = std::numeric_limits<float>::infinity();
constexpr double nan_d = std::numeric_limits<double>::quiet_NaN();
constexpr double inf_d = std::numeric_limits<double>::infinity();

using group_list = std::vector<onebit::param_group<>>;

/// What one rank alone is told when it builds Adam over these groups.
std::string refusal(const group_list& g) {
  return on_ranks(1, [&](onebit::threads t) {
    return thrown<onebit::invalid_input>([&] { (void)onebit::adam(g, t); });
  })[0];
}
std::string refusal(const onebit::adam_options& options) {
  training<> data({4});
  return on_ranks(1, [&](onebit::threads t) {
    return thrown<onebit::invalid_input>([&] { (void)onebit::adam(data.groups(), t, options); });
  })[0];
}
std::string refusal(const onebit::one_bit_adam_options& options) {
  training<> data({4});
  return on_ranks(1, [&](onebit::threads t) {
    return thrown<onebit::invalid_input>(
        [&] { (void)onebit::one_bit_adam(data.groups(), t, options); });
  })[0];
}

}  // namespace

TEST_CASE("all errors are onebit::error, and that is a runtime_error") {
  static_assert(std::is_base_of_v<std::runtime_error, onebit::error>);
  static_assert(std::is_base_of_v<onebit::error, onebit::invalid_input>);
  static_assert(std::is_base_of_v<onebit::error, onebit::rank_mismatch>);
  static_assert(std::is_base_of_v<onebit::error, onebit::transport_error>);
  static_assert(std::is_base_of_v<onebit::error, onebit::checkpoint_error>);
  CHECK(onebit::detail::error_text("a ", 1, " b") == "onebit::a 1 b");
  CHECK(onebit::detail::rank_suffix(2, 8) == " [rank 2/8]");
}

TEST_CASE("params and grads of different sizes: group, tensor and both sizes are told") {
  std::vector<float> a(8), b(40), c(39);
  group_list g(2);
  g[0].tensors.push_back({a, a});
  std::vector<float> d(8);
  g[1].tensors.push_back({d, d});
  g[1].tensors.push_back({b, c});
  CHECK(refusal(g) == "onebit::optimizer: group 1 tensor 1 has 40 params but 39 grads [rank 0/1]");
}

TEST_CASE("group options out of range") {
  training<> data({4, 4});
  for (const float bad : {-0.5F, nan_f, inf_f, -inf_f}) {
    auto g = data.groups();
    g[1].lr_factor = bad;
    CHECK(refusal(g) == contains{"group 1 has lr_factor "});
    g = data.groups();
    g[1].weight_decay = bad;
    CHECK(refusal(g) == contains{"group 1 has weight_decay "});
  }
  auto g = data.groups();
  g[0].weight_decay = -0.5F;
  CHECK(refusal(g) == contains{"-0.5"});
  g[0].weight_decay = 0;
  g[0].lr_factor = 0;  // a frozen group is ordinary
  CHECK(refusal(g) == "thrown: nothing");
}

TEST_CASE("memory that is not there, or not where an element can start") {
  std::vector<float> memory(10), grads(10);
  group_list g(1);
  g[0].tensors.push_back({std::span(memory), std::span(grads)});
  g[0].tensors.push_back({std::span(static_cast<float*>(nullptr), 3), std::span(grads).first(3)});
  CHECK(refusal(g) == contains{"tensor 1 has 3 params at address 0, which is null"});
  std::vector<char> bytes(41);
  auto* const aligned =
      reinterpret_cast<char*>((reinterpret_cast<std::uintptr_t>(bytes.data()) + 7) / 8 * 8);
  auto* const odd = reinterpret_cast<float*>(aligned + 2);
  g[0].tensors[1] = {std::span(odd, 3), std::span(grads).first(3)};
  CHECK(refusal(g) == contains{"which is no multiple of 4"});
  g[0].tensors[1] = {{}, {}};
  CHECK(refusal(g) == "thrown: nothing");
}

TEST_CASE("tensors that overlap in memory") {
  std::vector<float> memory(100), grads(200);
  const std::span<float> p(memory), q(grads);
  SUBCASE("partly") {
    group_list g(1);
    g[0].tensors.push_back({p.subspan(40, 20), q.subspan(0, 20)});
    g[0].tensors.push_back({p.subspan(0, 41), q.subspan(20, 41)});
    const auto text = refusal(g);
    CHECK(text == contains{"tensors 1 (41 params) and 0 (20 params) overlap"});
  }
  SUBCASE("parameters that are gradients") {
    group_list g(1);
    g[0].tensors.push_back({p, p});
    CHECK(refusal(g) == contains{"overlap"});
    g[0].tensors[0] = {p, q.first(100)};
    g[0].tensors.push_back({q.subspan(99, 10), q.subspan(150, 10)});
    CHECK(refusal(g) == contains{"tensors 0 (100 grads) and 1 (10 params) overlap"});
  }
  SUBCASE("gradients that are only read may be shared, but not be parameters") {
    std::vector<onebit::param_group<float, const float>> g(1);
    const std::span<const float> r(q);
    g[0].tensors.push_back({p.first(50), r.first(50)});
    g[0].tensors.push_back({p.subspan(50, 50), r.subspan(0, 50)});
    const auto build = [&] {
      onebit::run_threads(1, [&](onebit::threads t) { (void)onebit::adam(g, t); });
    };
    CHECK(thrown<onebit::invalid_input>(build) == "thrown: nothing");
    g[0].tensors[1].grads = std::span<const float>(p).first(50);
    CHECK(thrown<onebit::invalid_input>(build) == contains{"overlap"});
  }
  SUBCASE("the same twice, in two groups") {
    group_list g(2);
    g[0].tensors.push_back({p, q.subspan(0, 100)});
    g[1].tensors.push_back({p, q.subspan(100, 100)});
    CHECK(refusal(g) == contains{"(100 params) overlap"});
  }
  SUBCASE("one inside another, with a third in between") {
    group_list g(1);
    g[0].tensors.push_back({p, q.subspan(0, 100)});
    g[0].tensors.push_back({p.subspan(10, 5), q.subspan(100, 5)});
    g[0].tensors.push_back({p.subspan(90, 5), q.subspan(110, 5)});
    CHECK(refusal(g) == contains{"overlap"});
  }
  SUBCASE("gradients: they are scratch, so they may not be shared either") {
    group_list g(1);
    g[0].tensors.push_back({p.subspan(0, 50), q.subspan(0, 50)});
    g[0].tensors.push_back({p.subspan(50, 50), q.subspan(49, 50)});
    CHECK(refusal(g) == contains{"(50 grads) overlap"});
  }
  SUBCASE("gradients that are only read may be shared") {
    std::vector<onebit::param_group<float, const float>> g(1);
    g[0].tensors.push_back({p.subspan(0, 50), q.subspan(0, 50)});
    g[0].tensors.push_back({p.subspan(50, 50), q.subspan(0, 50)});
    onebit::run_threads(1, [&](onebit::threads t) { CHECK_NOTHROW((void)onebit::adam(g, t)); });
  }
  SUBCASE("neighbours and empty tensors do not overlap") {
    group_list g(1);
    g[0].tensors.push_back({p.subspan(50, 50), q.subspan(0, 50)});
    g[0].tensors.push_back({p.subspan(0, 50), q.subspan(50, 50)});
    g[0].tensors.push_back({p.subspan(20, 0), q.subspan(20, 0)});
    CHECK(refusal(g) == "thrown: nothing");
  }
}

TEST_CASE("Adam's options") {
  for (const double bad : {-0.1, 1.0, 1.5, nan_d, inf_d}) {
    onebit::adam_options o;
    o.beta1 = bad;
    CHECK(refusal(o) == contains{"adam_options: beta1 is "});
    o = {};
    o.beta2 = bad;
    CHECK(refusal(o) == contains{"adam_options: beta1 is 0.9, beta2 "});
  }
  // A number that is 0 or infinite as a float would give 0/0, or no steps at all.
  for (const double bad : {0.0, -1e-8, nan_d, inf_d, 1e-60, 1e39}) {
    onebit::adam_options o;
    o.eps = bad;
    CAPTURE(bad);
    CHECK(refusal(o) == contains{"adam_options: eps is "});
  }
  CHECK(refusal(onebit::adam_options{0, 0, 1e-30, true}) == "thrown: nothing");
}

TEST_CASE("1-bit Adam's options") {
  onebit::one_bit_adam_options o;
  o.adam.beta2 = 1;
  CHECK(refusal(o) == contains{"must be in [0, 1)"});
  o = {};
  o.adam.eps = -1;
  CHECK(refusal(o) == contains{"eps is -1"});
  for (const double close : {1 - 1e-9, std::nextafter(1.0, 0.0)}) {
    o = {};
    o.adam.beta2 = close;
    CHECK(refusal(o) == "thrown: nothing");
  }
  o = {};
  o.adam.beta2 = 0;
  CHECK(refusal(o) == "thrown: nothing");
}

TEST_CASE("a scale per block of a size that is no multiple of 32") {
  training<> data({100});
  for (const std::size_t block : {0U, 1U, 33U}) {
    const auto told = on_ranks(2, [&](onebit::threads t) {
      training<> mine({100});
      return thrown<onebit::invalid_input>([&] {
        const onebit::sign<> codec{onebit::granularity::block(block)};
        (void)onebit::one_bit_adam(mine.groups(), t, onebit::one_bit_adam_options{},
                                   onebit::gather_scatter{codec});
      });
    });
    for (const auto& text : told) {
      CHECK(text == contains{"block of " + std::to_string(block) + " elements"});
    }
  }
}

TEST_CASE("the host backend's threads and instruction sets") {
  CHECK(thrown<onebit::invalid_input>([] { onebit::host(0); }) ==
        "onebit::host: 0 threads; must be at least 1");
  CHECK(thrown<onebit::invalid_input>([] { onebit::host(-3); }) == contains{"-3 threads"});
  const onebit::isa unknown{2};  // so that there is a machine without it
  CHECK(thrown<onebit::invalid_input>([&] { onebit::host(1, unknown); }) ==
        contains{"this machine has no "});
}

TEST_CASE("a layout for no ranks") {
  const std::vector<std::size_t> sizes = {1};
  CHECK(thrown<onebit::invalid_input>([&] {
          onebit::layout(sizes, 0, onebit::granularity::layer());
        }) == contains{"n_chunks is 0"});
}

TEST_CASE_TEMPLATE("a learning rate that is not finite changes nothing, and training goes on",
                   Gradient, float, const float) {
  for (const int n : {1, 2}) {
    const auto run = [&](bool disturbed) {
      return on_ranks(n, [&](onebit::threads t) {
        training<Gradient> data;
        onebit::one_bit_adam_options o;
        o.freeze.after = 2;
        auto optimizer = onebit::one_bit_adam(data.groups(), t, o);
        for (int step = 0; step < 5; ++step) {
          if (disturbed) {
            data.compute_gradients(t.rank(), optimizer.steps());
            const auto grads = data.grads;
            const auto params = data.params;
            const auto state = onebit_test::saved(optimizer);
            for (const float lr : {nan_f, inf_f, -inf_f}) {
              const auto text = thrown<onebit::invalid_input>([&] { optimizer.step(lr); });
              CHECK(text == contains{"step " + std::to_string(step) + " with lr "});
              CHECK(text == contains{"[rank "});
            }
            CHECK(data.grads == grads);
            CHECK(data.params == params);
            // the warm-up ends before the step that is refused
            if (step != 2 || n == 1) CHECK(onebit_test::saved(optimizer) == state);
            CHECK(optimizer.steps() == static_cast<std::uint64_t>(step));
          }
          CHECK_FALSE(train(optimizer, data).skipped);
        }
        return onebit_test::saved(optimizer);
      });
    };
    CHECK(run(true) == run(false));
  }
}

TEST_CASE("ranks that differ in any one of an algorithm's numbers are told apart") {
  const auto differ = [](const auto& make) {
    return thrown<onebit::rank_mismatch>([&] {
             onebit::run_threads(2, [&](onebit::threads t) {
               training<> data;
               make(data.groups(), t, t.rank() == 0 ? 10.0 : 9.0);
             });
           }) == contains{"max_step"};
  };
  CHECK(differ(
      [](const auto& g, auto t, double x) { (void)onebit::one_bit_adam(g, t, {.max_step = x}); }));
  CHECK(differ(
      [](const auto& g, auto t, double x) { (void)onebit::one_bit_lamb(g, t, {.max_step = x}); }));
  CHECK(differ([](const auto& g, auto t, double x) {
    (void)onebit::zero_one_adam(g, t, {.schedule = {.warmup_steps = 4}, .max_step = x});
  }));
}
