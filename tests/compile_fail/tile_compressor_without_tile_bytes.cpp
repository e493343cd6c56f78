// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// expect: onebit: this type is no Compressor: std::size_t tile_bytes
// expect: tile_bytes
// errors: 2

#include <cstddef>
#include <onebit/onebit.hpp>
#include <vector>

struct incomplete {
  void encode(const float*, std::size_t, std::byte*) const {}
  void decode(const std::byte*, std::size_t, float*) const noexcept {}
};

int main() {
  onebit::run_threads(2, [](onebit::threads t) {
    std::vector<onebit::param_group<>> groups;
    (void)onebit::one_bit_adam(groups, t, {}, onebit::gather_scatter<incomplete>{});
  });
}
