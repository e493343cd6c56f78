// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// expect: onebit: this type is no Backend: it needs launch(n, kernel), make_buffer<T>(n), copy_in

#include <cstddef>
#include <onebit/onebit.hpp>
#include <vector>

struct incomplete {
  template <class T>
  onebit::detail::host_buffer<T> make_buffer(std::size_t n) const {
    return onebit::detail::host_buffer<T>(n);
  }
};

int main() {
  onebit::run_threads(1, [](onebit::threads t) {
    std::vector<onebit::param_group<>> groups;
    (void)onebit::adam(groups, t, {}, incomplete{});
  });
}
