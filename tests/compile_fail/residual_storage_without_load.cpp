// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// expect: onebit: a residual storage needs

#include <cstddef>
#include <onebit/onebit.hpp>

struct no_load {
  using element = float;
  static constexpr std::size_t per_word = 32;
  static constexpr bool rounds = false;
  template <class L>
  static void store(float* out, const typename L::value& v, const typename L::value&) {
    L::store(out, v);
  }
};

int main() { onebit::gather_scatter<onebit::residual_in<no_load, onebit::sign<>>> c; }
