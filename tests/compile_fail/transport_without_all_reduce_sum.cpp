// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// expect: onebit: this type is no Transport: all_reduce_sum(float* data, std::size_t n) is missing

#include <cstddef>
#include <onebit/onebit.hpp>
#include <vector>

struct incomplete {
  int rank() const { return 0; }
  int size() const { return 1; }
  void all_to_all(const void*, void*, std::size_t) {}
  void all_gather(const void*, void*, std::size_t) {}
};

int main() {
  std::vector<onebit::param_group<>> groups;
  (void)onebit::adam(groups, incomplete{});
}
