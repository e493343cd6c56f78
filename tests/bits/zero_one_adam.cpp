// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#include "grid.hpp"

using namespace onebit_test::bits;

namespace {

struct zero_one_adam {
  bool bias_correction = false;
  bool follows = false;

  static constexpr bool compresses = true;
  static constexpr pairing lean[] = {{kind::hierarchical, element::f32, place::host},
                                     {kind::blocks, element::f32_const, place::host},
                                     {kind::identity, element::fp16, place::host},
                                     {kind::sign, element::f32, place::warps}};
  [[nodiscard]] std::string name() const {
    if (follows) return "zero_one_adam_follows";
    return bias_correction ? "zero_one_adam_corrected" : "zero_one_adam";
  }
  [[nodiscard]] bool takes(element e) const { return !bias_correction || e == element::f32; }

  template <class Groups, class T, class C, class B>
  auto operator()(const Groups& groups, T transport, const C& collective, B backend) const {
    // A large eps, or fp16 overflows where v is small. Dense steps 0, 1, 2, 4; exchanges to step 6,
    // then 8 and 12.
    const onebit::zero_one_adam_options options{
        .adam = {.eps = 1e-3, .bias_correction = bias_correction},
        .schedule = {.kappa = 2,
                     .warmup_steps = 5,
                     .doubling_steps = 2,
                     .max_interval = 4,
                     .stop_refreshing = !follows},
        .refresh_sum = onebit::dense_sum::rank_order,
        .max_step = follows ? 2.0 : 0,
        .own_variance = follows};  // as when it was recorded
    return onebit::zero_one_adam(groups, transport, options, collective, backend);
  }
};

}  // namespace

TEST_CASE("bits: 0/1 Adam") {
  check_bits(zero_one_adam{false});
  check_bits(zero_one_adam{true});
  check_bits(zero_one_adam{true, true});  // refreshed in steps 4, 6, 10, 14
}
