// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#include "grid.hpp"

using namespace onebit_test::bits;

namespace {

struct lamb {
  bool bias_correction = false;

  static constexpr bool compresses = false;
  static constexpr pairing lean[] = {{kind::none, element::f32, place::host},
                                     {kind::none, element::f32_const, place::host},
                                     {kind::none, element::fp16, place::host}};
  [[nodiscard]] std::string name() const { return bias_correction ? "lamb_corrected" : "lamb"; }
  [[nodiscard]] bool takes(element e) const { return !bias_correction || e == element::f32; }

  template <class Groups, class T, class C, class B>
  auto operator()(const Groups& groups, T transport, const C&, B backend) const {
    return onebit::lamb(groups, transport, {.bias_correction = bias_correction}, backend,
                        onebit::dense_sum::rank_order);  // as when it was recorded
  }
};

}  // namespace

TEST_CASE("bits: LAMB") {
  check_bits(lamb{false});
  check_bits(lamb{true});
}
