// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// With b.cpp: both include every host header and use the same templates, so a function that
// misses `inline` breaks the link.

#include <doctest/doctest.h>

#include <span>
#include <string>
#include <typeinfo>
#include <vector>

#include "every_host_header.hpp"

float first_parameter_after_a_step();     // in b.cpp
const char* report_of_another_version();  // in other_version.cpp

TEST_CASE("two versions in one program have other names") {
  CHECK(std::string(typeid(onebit::report).name()) != report_of_another_version());
}

TEST_CASE("a step in one file and a step in another give the same bits") {
  std::vector<float> w(10), g(10, 1.f);
  onebit::run_threads(1, [&](onebit::threads comm) {
    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({std::span<float>(w), std::span<float>(g)});
    // not one that is compiled elsewhere
    auto optimizer = onebit::one_bit_adam(groups, comm, onebit::one_bit_adam_options{},
                                          onebit::all_gather<onebit::sign<onebit::l1_scale>>{});
    optimizer.step(0.1f);
  });
  CHECK(w[0] < 0.f);
  CHECK(w[0] == first_parameter_after_a_step());
}
