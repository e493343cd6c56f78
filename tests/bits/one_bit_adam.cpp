// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#include "grid.hpp"

using namespace onebit_test::bits;

namespace {

struct one_bit_adam {
  bool bias_correction = true;
  std::uint64_t refreshes = 0;

  static constexpr bool compresses = true;
  static constexpr pairing lean[] = {{kind::sign, element::f32, place::host},
                                     {kind::int8, element::f32_const, place::host},
                                     {kind::hierarchical, element::bf16, place::host},
                                     {kind::all_gather, element::bf16, place::warps}};
  [[nodiscard]] std::string name() const {
    if (refreshes > 0) return "one_bit_adam_refreshed";
    return bias_correction ? "one_bit_adam" : "one_bit_adam_uncorrected";
  }
  [[nodiscard]] bool takes(element e) const {
    return (bias_correction && refreshes == 0) || e == element::f32;
  }

  template <class Groups, class T, class C, class B>
  auto operator()(const Groups& groups, T transport, const C& collective, B backend) const {
    const onebit::one_bit_adam_options options{
        .adam = {.bias_correction = bias_correction},
        .freeze = {.after = 4},
        .refreshes = refreshes,
        .warm_up_sum = onebit::dense_sum::rank_order,
        .max_step = refreshes > 0 ? 2.0 : 0};  // as when it was recorded
    return onebit::one_bit_adam(groups, transport, options, collective, backend);
  }
};

}  // namespace

TEST_CASE("bits: 1-bit Adam") {
  check_bits(one_bit_adam{true});
  check_bits(one_bit_adam{false});
  check_bits(one_bit_adam{true, 2});  // v refreshed in steps 4, 6, 9, 13
}
