// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#include "grid.hpp"

using namespace onebit_test::bits;

namespace {

/// Lion, and its votes: these have collectives of their own, with the ranks that the dense one has.
template <class Collective, class M = float>
struct votes {
  std::string_view called;
  Collective collective{};

  static constexpr bool compresses = false;
  static constexpr pairing lean[] = {{kind::none, element::f32, place::host},
                                     {kind::none, element::f32, place::warps},
                                     {kind::none, element::bf16, place::host}};
  [[nodiscard]] std::string name() const { return std::string(called); }
  [[nodiscard]] static bool takes(element) { return true; }

  template <class Groups, class T, class C, class B>
  auto operator()(const Groups& groups, T transport, const C&, B backend) const {
    if constexpr (std::is_same_v<Collective, std::monostate>) {
      // as when it was recorded
      return onebit::lion<M>(groups, transport, {}, backend, onebit::dense_sum::rank_order);
    } else {
      return onebit::one_bit_lion<M>(groups, transport, {}, collective, backend);
    }
  }
};

}  // namespace

TEST_CASE("bits: Lion") {
  using majority = onebit::gather_scatter<onebit::unit_sign>;
  check_bits(votes<std::monostate>{"lion"});
  check_bits(votes<majority>{"one_bit_lion, majority", {{}, 1500}});
  check_bits(
      votes<onebit::all_gather<onebit::unit_sign>, onebit::bf16>{"one_bit_lion, mean, m bf16"});
  // with a residual, which must not be saved over gradients that are read again
  check_bits(votes<onebit::gather_scatter<onebit::sign<>>>{"one_bit_lion, sign",
                                                           {{onebit::granularity::layer()}}});
}
