// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// expect: onebit: this type is no Compressor: void encode
// expect: void encode
// errors: 2

#include <cstddef>
#include <onebit/onebit.hpp>
#include <vector>

struct incomplete {
  std::size_t tile_bytes(std::size_t n) const { return n; }
  void decode(const std::byte*, std::size_t, float*) const noexcept {}
};

int main() {
  onebit::run_threads(2, [](onebit::threads t) {
    std::vector<onebit::param_group<>> groups;
    (void)onebit::one_bit_adam(groups, t, {}, onebit::all_gather<incomplete>{});
  });
}
