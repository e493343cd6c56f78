// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// expect: onebit: this type is no Transport: all_gather
// expect: std::size_t slot_bytes

#include <cstddef>
#include <onebit/onebit.hpp>
#include <vector>

struct incomplete {
  int rank() const { return 0; }
  int size() const { return 1; }
  void all_to_all(const void*, void*, std::size_t) {}
  void all_reduce_sum(float*, std::size_t) {}
};

int main() {
  std::vector<onebit::param_group<>> groups;
  (void)onebit::one_bit_adam(groups, incomplete{}, {});
}
