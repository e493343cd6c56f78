// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A user's rule passes the suite of rules.

#include <onebit/any_optimizer.hpp>
#include <onebit/testing/rule.hpp>
#include <utility>

#include "../../examples/recursive_doubling.hpp"
#include "../../examples/sgd_rule.hpp"

using namespace onebit::testing;

namespace {

/// Schedule: when it averages and exchanges.
template <class Schedule, std::uint64_t Starts>
struct sgd_maker {
  static constexpr std::uint64_t freezes_before = Starts;
  static constexpr float rate = 0.5F;
  static constexpr double times_sgd = 2;  // 1.4; without error feedback it diverges
  template <class Groups, class T>
  auto operator()(const Groups& groups, T transport, onebit::host backend = onebit::host()) const {
    return onebit::optimizer("sgd", groups, transport, sgd_rule({}, backend), Schedule{},
                             onebit::gather_scatter<onebit::sign<>>{});
  }
  template <class AnySchedule, class Groups, class T>
  static auto exact(AnySchedule schedule, const Groups& groups, T transport) {
    return onebit::optimizer("sgd", groups, transport, sgd_rule({}), schedule,
                             onebit::gather_scatter<onebit::identity>{});
  }
};
struct after_seven : onebit::schedule_defaults {
  [[nodiscard]] static onebit::due due_in(std::uint64_t step, float) {
    return {.average = step < 7, .exchange = step >= 7};
  }
};
using sgd = sgd_maker<onebit::always_compressed, 0>;
using sgd_after_dense = sgd_maker<after_seven, 7>;

}  // namespace

TEST_CASE_TEMPLATE_INVOKE(rule_bits, sgd, sgd_after_dense);
TEST_CASE_TEMPLATE_INVOKE(rule_resumes, sgd, sgd_after_dense);
TEST_CASE_TEMPLATE_INVOKE(rule_skips, sgd, sgd_after_dense);
TEST_CASE_TEMPLATE_INVOKE(rule_interrupted, sgd, sgd_after_dense);
TEST_CASE_TEMPLATE_INVOKE(rule_elsewhere, sgd, sgd_after_dense);
TEST_CASE_TEMPLATE_INVOKE(rule_options, sgd, sgd_after_dense);
TEST_CASE_TEMPLATE_INVOKE(rule_phases_agree, sgd);
TEST_CASE_TEMPLATE_INVOKE(rule_trains, sgd, sgd_after_dense);

TEST_CASE(
    "a rule without write_moments has no moments(), and works without its type [any_optimizer]") {
  onebit::run_threads(1, [](onebit::threads t) {
    training<> data;
    auto typed = sgd{}(data.groups(), t);
    static_assert(!decltype(typed)::gives_moments && decltype(typed)::takes_moments);
    onebit::any_optimizer any = std::move(typed);
    CHECK_THROWS_AS((void)any.moments(), onebit::invalid_input);
    (void)train(any, data);
  });
}

TEST_CASE("a user's collective that splits goes on with other ranks") {
  const auto make = [](training<>& data, onebit::threads t) {
    return onebit::one_bit_adam(data.groups(), t, {}, recursive_doubling<onebit::sign<>>{});
  };
  struct old_rank {
    std::vector<std::vector<float>> params;
    std::string checkpoint;
  };
  const auto old = on_ranks(4, [&](onebit::threads t) {
    training data;
    auto o = make(data, t);
    while (o.steps() < 14) train(o, data);
    return old_rank{data.params, saved(o)};
  });
  onebit::run_threads(2, [&](onebit::threads t) {
    training data;
    auto o = make(data, t);
    for (std::size_t k = 0; k < data.params.size(); ++k)
      std::copy(old[0].params[k].begin(), old[0].params[k].end(), data.params[k].begin());
    o.load_old_job(old.size(), [&](std::size_t r) {
      return std::make_unique<std::istringstream>(old[r].checkpoint);
    });
    CHECK(o.steps() == 14);
    for (int step = 0; step < 4; ++step) CHECK_FALSE(train(o, data).skipped);
    o.verify();
  });
}
