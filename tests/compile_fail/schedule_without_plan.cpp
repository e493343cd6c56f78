// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// expect: onebit: this type is no Schedule: derive from schedule_defaults and write
// expect: due due_in(step, lr) const

#include <onebit/onebit.hpp>
#include <vector>

struct no_plan : onebit::schedule_defaults {};

int main() {
  onebit::run_threads(1, [](onebit::threads t) {
    std::vector<onebit::param_group<>> groups;
    onebit::optimizer o("own", groups, t, onebit::adam_rule<onebit::host>({}, onebit::host{}),
                        no_plan{}, onebit::gather_scatter<onebit::sign<>>{});
  });
}
