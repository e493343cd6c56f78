// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#include "grid.hpp"

using namespace onebit_test::bits;

namespace {

struct adam {
  bool bias_correction = true;

  static constexpr bool compresses = false;
  static constexpr pairing lean[] = {{kind::none, element::f32, place::host},
                                     {kind::none, element::bf16, place::host}};
  [[nodiscard]] std::string name() const { return bias_correction ? "adam" : "adam_uncorrected"; }
  [[nodiscard]] bool takes(element e) const { return bias_correction || e == element::f32; }

  template <class Groups, class T, class C, class B>
  auto operator()(const Groups& groups, T transport, const C&, B backend) const {
    return onebit::adam(groups, transport, {.bias_correction = bias_correction}, backend,
                        onebit::dense_sum::rank_order);  // as when it was recorded
  }
};

}  // namespace

TEST_CASE("bits: Adam") {
  check_bits(adam{true});
  check_bits(adam{false});
}
