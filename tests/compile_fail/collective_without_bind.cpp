// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// expect: onebit: this type is no Collective: derive from collective_defaults and write

#include <onebit/onebit.hpp>
#include <vector>

struct no_bind : onebit::collective_defaults {
  template <class B>
  using exchange = onebit::detail::gather_scatter_exchange<onebit::identity, B>;
};

int main() {
  onebit::run_threads(1, [](onebit::threads t) {
    std::vector<onebit::param_group<>> groups;
    onebit::optimizer o("own", groups, t, onebit::adam_rule<onebit::host>({}, onebit::host{}),
                        onebit::always_dense{}, no_bind{});
  });
}
