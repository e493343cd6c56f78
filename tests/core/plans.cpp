// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// What an optimizer makes of the plans of a user's own schedule: it follows those for which the
// rule has a step, and refuses the others before anything has changed.

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <onebit/extras/papers.hpp>
#include <onebit/onebit.hpp>
#include <string>
#include <vector>

#include "support/training.hpp"

using onebit::due;
using onebit_test::contains;
using onebit_test::frozen_after;
using onebit_test::on_ranks;
using onebit_test::saved;
using onebit_test::thrown;
using onebit_test::training;

namespace {

constexpr due dense{};
constexpr due exchange{.average = false, .exchange = true};
constexpr due local{.average = false};
constexpr due both{.average = true, .exchange = true};

/// These plans, and the last of them for good.
auto following(std::vector<due> plans) {
  return onebit::custom_schedule([plans](std::uint64_t step, float) {
    return plans[step < plans.size() ? static_cast<std::size_t>(step) : plans.size() - 1];
  });
}

onebit::adam_rule<onebit::host> adam() { return {{}, onebit::host{}}; }
onebit::papers::lamb_rule<onebit::host> lamb() { return {{}, onebit::host{}}; }
onebit::zero_one_rule<onebit::host> zero_one() { return {{}, onebit::host{}}; }

/// The plan of the last step is refused, on every rank and again; nothing has changed.
template <class MakeRule>
void check_refused(const MakeRule& rule, const std::vector<due>& plans, const std::string& words) {
  CAPTURE(words);
  const auto told = on_ranks(2, [&](onebit::threads t) {
    training<> data;
    onebit::optimizer o("custom", data.groups(), t, rule(), following(plans),
                        onebit::gather_scatter<onebit::sign<>>{});
    for (std::size_t i = 0; i + 1 < plans.size(); ++i) CHECK_FALSE(train(o, data).skipped);
    const auto params = data.params;
    const auto before = saved(o);
    const auto bytes = o.state_bytes();
    const auto text = thrown<onebit::invalid_input>([&] { (void)train(o, data); });
    CHECK(thrown<onebit::invalid_input>([&] { (void)train(o, data); }) == text);
    CHECK(data.params == params);
    CHECK(saved(o) == before);
    CHECK(o.state_bytes() == bytes);
    CHECK(o.steps() == plans.size() - 1);
    return text;
  });
  for (std::size_t r = 0; r < told.size(); ++r) {
    CHECK(told[r] == contains{words});
    CHECK(told[r] == contains{"step " + std::to_string(plans.size() - 1)});
  }
}

/// A rule with local steps that inherits plan().
struct without_plan : onebit::zero_one_rule<onebit::host> {
  using onebit::zero_one_rule<onebit::host>::zero_one_rule;
  [[nodiscard]] onebit::step_plan plan(const due& now, std::uint64_t step, float lr) const {
    return onebit::rule_defaults().plan(now, step, lr);
  }
};
/// A rule without local steps that plans one.
struct local_without_step : onebit::adam_rule<onebit::host> {
  using onebit::adam_rule<onebit::host>::adam_rule;
  [[nodiscard]] onebit::step_plan plan(const due&, std::uint64_t, float) const {
    return {.update = onebit::update_from::own_gradient};
  }
};

}  // namespace

TEST_CASE("a user's schedule: the plans of freeze give the bits of freeze") {
  const auto custom = on_ranks(2, [](onebit::threads t) {
    training<> data;
    // as freeze without refreshes: squares that nobody averages would bound directions for good
    onebit::optimizer o(
        "custom", data.groups(), t, onebit::adam_rule({}, onebit::host(), {.own_variance = false}),
        following({dense, dense, dense, exchange}), onebit::gather_scatter<onebit::sign<>>{});
    std::string phases;
    for (int i = 0; i < 7; ++i) phases += to_string(train(o, data).phase)[0];
    CHECK(phases == "dddcccc");
    CHECK(o.rule().frozen());
    return data.digest();
  });
  const auto own = on_ranks(2, [](onebit::threads t) {
    training<> data;
    auto o = onebit::one_bit_adam(data.groups(), t, frozen_after(3));
    for (int i = 0; i < 7; ++i) (void)train(o, data);
    return data.digest();
  });
  CHECK(custom == own);
}

TEST_CASE("a user's schedule: where nothing would travel its plans are not asked for") {
  for (const auto& plans : {std::vector{exchange}, {local}, {dense, exchange, dense}}) {
    const auto digests = on_ranks(1, [&](onebit::threads t) {
      training<> data, plain;
      onebit::optimizer o("custom", data.groups(), t, adam(), following(plans),
                          onebit::gather_scatter<onebit::sign<>>{});
      auto a = onebit::adam(plain.groups(), t);
      for (int i = 0; i < 5; ++i) {
        CHECK(train(o, data).phase == onebit::phase::dense);
        (void)train(a, plain);
      }
      return std::vector{data.digest(), plain.digest()};
    })[0];
    CHECK(digests[0] == digests[1]);
  }
}

TEST_CASE("a plan that the rule has no step for is refused in words") {
  const auto check = [](const auto& rule, bool refreshes) {
    check_refused(rule, {exchange}, "needs v, which no step has computed yet");
    check_refused(rule, {dense, local}, "has nothing due");
    if (!refreshes) {
      check_refused(rule, {dense, both}, "has both an average and an exchange due");
    }
    check_refused(rule, {dense, exchange, local}, "has nothing due");
    check_refused(rule, {dense, exchange, dense}, "the dense steps have ended");
  };
  check(adam, true);
  check(lamb, false);
}

TEST_CASE("0/1 Adam has a step for every plan but a first without an average") {
  check_refused(zero_one, {local}, "needs v, which no step has computed yet");
  check_refused(zero_one, {exchange}, "needs v, which no step has computed yet");
  onebit::run_threads(2, [](onebit::threads t) {
    training<> data;
    onebit::optimizer o("custom", data.groups(), t, zero_one(),
                        following({dense, local, exchange, both, dense, local}),
                        onebit::gather_scatter<onebit::sign<>>{});
    std::string phases;
    for (int i = 0; i < 7; ++i) phases += to_string(train(o, data).phase)[0];
    CHECK(phases == "dlcclll");  // a local step that averages gradients for v is local
  });
}

TEST_CASE("a rule's own plan that it has no step for is refused in words") {
  const onebit::direction_options constant{.own_variance = false};
  check_refused([&] { return without_plan({}, onebit::host{}, constant); }, {dense, local},
                "is dense, by the rule's plan(), and averages no gradients");
  check_refused([&] { return local_without_step({}, onebit::host{}, constant); }, {dense},
                "is local, by the rule's plan(), and the rule is no LocalRule");
}
