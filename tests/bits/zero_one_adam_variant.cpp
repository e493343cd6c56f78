// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#include "../golden/deepspeed_zero_one.hpp"
#include "grid.hpp"

using namespace onebit_test::bits;

namespace {

struct zero_one_adam_variant {
  static constexpr bool compresses = true;
  static constexpr pairing lean[] = {{kind::all_gather, element::f32_const, place::host},
                                     {kind::int8, element::bf16, place::host},
                                     {kind::sign, element::fp16, place::host},
                                     {kind::blocks, element::fp16, place::warps}};
  [[nodiscard]] std::string name() const { return "zero_one_adam_variant"; }
  [[nodiscard]] bool takes(element) const { return true; }

  template <class Groups, class T, class C, class B>
  auto operator()(const Groups& groups, T transport, const C& collective, B backend) const {
    // A large eps, or fp16 overflows where v is small. Dense steps 0, 1, 2, 4; exchanges 3 and 5 of
    // stage A, 6, 7, 8, 10 and 14 of stage B.
    const deepspeed::zero_one_options options{.adam = {.eps = 1e-3},
                                              .var_freeze_step = 6,
                                              .var_update_scaler = 2,
                                              .local_step_scaler = 2,
                                              .local_step_clipper = 4};
    return deepspeed::zero_one_adam(groups, transport, options, collective, backend);
  }
};

}  // namespace

TEST_CASE("bits: 0/1 Adam, the variant") { check_bits(zero_one_adam_variant{}); }
