// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#include <onebit/extras/papers.hpp>

#include "grid.hpp"

using namespace onebit_test::bits;

namespace {

struct papers_one_bit_lamb {
  bool bias_correction = false;

  static constexpr bool compresses = true;
  static constexpr pairing lean[] = {{kind::all_gather, element::f32, place::host},
                                     {kind::sign, element::bf16, place::host},
                                     {kind::blocks, element::fp16, place::host},
                                     {kind::hierarchical, element::f32_const, place::warps}};
  [[nodiscard]] std::string name() const {
    return bias_correction ? "one_bit_lamb_corrected" : "one_bit_lamb";
  }
  [[nodiscard]] bool takes(element e) const { return !bias_correction || e == element::f32; }

  template <class Groups, class T, class C, class B>
  auto operator()(const Groups& groups, T transport, const C& collective, B backend) const {
    onebit::papers::one_bit_lamb_options options(4);
    options.lamb.bias_correction = bias_correction;
    options.warm_up_sum = onebit::dense_sum::rank_order;  // as when it was recorded
    return onebit::one_bit_lamb(groups, transport, options, collective, backend);
  }
};

/// Refreshed in steps 4, 6, 9, 13.
struct one_bit_lamb_refreshed : papers_one_bit_lamb {
  [[nodiscard]] static std::string name() { return "one_bit_lamb_refreshed"; }
  [[nodiscard]] static bool takes(element e) { return e == element::f32; }

  template <class Groups, class T, class C, class B>
  auto operator()(const Groups& groups, T transport, const C& collective, B backend) const {
    const onebit::one_bit_lamb_options options{
        .freeze = {.after = 4}, .refreshes = 2, .warm_up_sum = onebit::dense_sum::rank_order};
    return onebit::one_bit_lamb(groups, transport, options, collective, backend);
  }
};

}  // namespace

TEST_CASE("bits: 1-bit LAMB") {
  check_bits(papers_one_bit_lamb{false});
  check_bits(papers_one_bit_lamb{true});
  check_bits(one_bit_lamb_refreshed{});
}
