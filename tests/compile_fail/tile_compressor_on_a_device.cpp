// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// expect: onebit: a TileCompressor runs on the host only

#include <cstddef>
#include <onebit/onebit.hpp>
#include <vector>

struct tile_codec {
  std::size_t tile_bytes(std::size_t n) const { return n; }
  void encode(const float*, std::size_t, std::byte*) const {}
  void decode(const std::byte*, std::size_t, float*) const noexcept {}
};

struct device {
  static constexpr bool deferred = true;
  template <class Kernel>
  void launch(std::size_t, const Kernel&) const {}
  template <class T>
  onebit::host_buffer<T> make_buffer(std::size_t n) const {
    return onebit::host_buffer<T>(n);
  }
  template <class T>
  void copy_in(T*, const T*, std::size_t) const {}
  template <class T>
  void copy_out(T*, const T*, std::size_t) const {}
};

int main() {
  onebit::run_threads(1, [](onebit::threads t) {
    std::vector<onebit::param_group<>> groups;
    (void)onebit::one_bit_adam(groups, t, {}, onebit::all_gather{tile_codec{}}, device{});
  });
}
