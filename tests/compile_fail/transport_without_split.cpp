// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// expect: onebit: this collective splits the transport, which has no split(color, key)

#include <cstddef>
#include <onebit/onebit.hpp>
#include <vector>

struct whole_only {
  int rank() const { return 0; }
  int size() const { return 1; }
  void all_to_all(const void*, void*, std::size_t) {}
  void all_gather(const void*, void*, std::size_t) {}
  void all_reduce_sum(float*, std::size_t) {}
};

int main() {
  std::vector<onebit::param_group<>> groups;
  (void)onebit::one_bit_adam(groups, whole_only{}, {}, onebit::hierarchical<onebit::sign<>>{});
}
