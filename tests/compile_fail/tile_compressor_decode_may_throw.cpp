// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// expect: onebit: this type is no Compressor: void decode
// expect: noexcept is missing
// errors: 2

#include <cstddef>
#include <onebit/onebit.hpp>

struct may_throw {
  std::size_t tile_bytes(std::size_t n) const { return n; }
  void encode(const float*, std::size_t, std::byte*) const {}  // this one may
  void decode(const std::byte*, std::size_t, float*) const {}
};

int main() { (void)onebit::gather_scatter<may_throw>{}; }
