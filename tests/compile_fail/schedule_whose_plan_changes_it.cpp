// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// expect: onebit: this type is no Schedule: derive from schedule_defaults and write

#include <cstdint>
#include <onebit/onebit.hpp>
#include <vector>

struct counts_by_itself : onebit::schedule_defaults {
  onebit::due due_in(std::uint64_t, float) {  // must be const: asking changes nothing
    return {.average = n_++ < 10};
  }

 private:
  int n_ = 0;
};

int main() {
  onebit::run_threads(1, [](onebit::threads t) {
    std::vector<onebit::param_group<>> groups;
    onebit::optimizer o("own", groups, t, onebit::adam_rule<onebit::host>({}, onebit::host{}),
                        counts_by_itself{}, onebit::gather_scatter<onebit::sign<>>{});
  });
}
