// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A user's rule passes the suite of rules.

#include "../../examples/sgd_rule.hpp"
#include "../conformance/rule.hpp"

using namespace onebit_test;

namespace {

struct sgd_maker {
  static constexpr std::uint64_t freezes_before = 0;
  static constexpr float rate = 0.5F;
  template <class Groups, class T>
  auto operator()(const Groups& groups, T transport, onebit::host backend = onebit::host()) const {
    return onebit::optimizer("sgd", groups, transport, sgd_rule(0.9, backend),
                             onebit::always_compressed{}, onebit::gather_scatter<onebit::sign<>>{});
  }
};

}  // namespace

TEST_CASE_TEMPLATE_INVOKE(rule_bits, sgd_maker);
TEST_CASE_TEMPLATE_INVOKE(rule_resumes, sgd_maker);
TEST_CASE_TEMPLATE_INVOKE(rule_skips, sgd_maker);
TEST_CASE_TEMPLATE_INVOKE(rule_interrupted, sgd_maker);
TEST_CASE_TEMPLATE_INVOKE(rule_elsewhere, sgd_maker);
TEST_CASE_TEMPLATE_INVOKE(rule_trains, sgd_maker);
