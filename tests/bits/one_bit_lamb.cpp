// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#include "grid.hpp"

using namespace onebit_test::bits;

namespace {

struct one_bit_lamb {
  static constexpr bool compresses = true;
  static constexpr pairing lean[] = {{kind::all_gather, element::f32, place::host},
                                     {kind::sign, element::bf16, place::host},
                                     {kind::blocks, element::fp16, place::host},
                                     {kind::hierarchical, element::f32_const, place::warps}};
  [[nodiscard]] std::string name() const { return "one_bit_lamb"; }
  [[nodiscard]] bool takes(element) const { return true; }

  template <class Groups, class T, class C, class B>
  auto operator()(const Groups& groups, T transport, const C& collective, B backend) const {
    const onebit::one_bit_lamb_options options{.freeze = {.after = 4}};
    return onebit::one_bit_lamb(groups, transport, options, collective, backend);
  }
};

}  // namespace

TEST_CASE("bits: 1-bit LAMB") { check_bits(one_bit_lamb{}); }
