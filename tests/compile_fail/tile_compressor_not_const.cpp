// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// expect: onebit: this type is no Compressor: void encode
// expect: void encode
// errors: 2

#include <cstddef>
#include <onebit/onebit.hpp>

struct forgot_const {
  std::size_t tile_bytes(std::size_t n) const { return n; }
  void encode(const float*, std::size_t, std::byte*) {}
  void decode(const std::byte*, std::size_t, float*) const noexcept {}
};

int main() { (void)onebit::gather_scatter<forgot_const>{}; }
