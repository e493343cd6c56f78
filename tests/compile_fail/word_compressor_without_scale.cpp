// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// expect: onebit: this type is no Compressor: float scale
// expect: double sum, std::uint64_t n
// errors: 2

#include <cstddef>
#include <cstdint>
#include <onebit/onebit.hpp>
#include <vector>

struct incomplete {
  static constexpr std::size_t word_bytes = 4;
  static constexpr bool scaled = true;
  onebit::granularity scale_granularity() const { return onebit::granularity::layer(); }
  template <class L>
  typename L::value accumulate(const typename L::value& sum, const typename L::value&) const {
    return sum;
  }
  template <class L>
  typename L::value residual(const typename L::value& y, float) const {
    return y;
  }
  template <class L>
  void encode(std::byte*, const typename L::value&) const {}
  template <class L>
  typename L::value decode(const std::byte*, float) const {
    return L::set(0);
  }
};

int main() {
  onebit::run_threads(2, [](onebit::threads t) {
    std::vector<onebit::param_group<>> groups;
    (void)onebit::one_bit_adam(groups, t, {}, onebit::gather_scatter<incomplete>{});
  });
}
