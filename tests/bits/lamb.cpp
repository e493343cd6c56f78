// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#include "grid.hpp"

using namespace onebit_test::bits;

namespace {

struct lamb {
  static constexpr bool compresses = false;
  static constexpr pairing lean[] = {{kind::none, element::f32_const, place::host},
                                     {kind::none, element::fp16, place::host}};
  [[nodiscard]] std::string name() const { return "lamb"; }
  [[nodiscard]] bool takes(element) const { return true; }

  template <class Groups, class T, class C, class B>
  auto operator()(const Groups& groups, T transport, const C&, B backend) const {
    return onebit::lamb(groups, transport, {}, backend);
  }
};

}  // namespace

TEST_CASE("bits: LAMB") { check_bits(lamb{}); }
