// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// expect: onebit: a tensor's memory has other elements than the group says
// errors: 2

#include <onebit/onebit.hpp>
#include <vector>

int main() {
  std::vector<double> params(10), grads(10);
  std::vector<onebit::param_group<>> groups(1);
  groups[0].tensors.push_back({params, grads});
}
