// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// expect: onebit: a compressor stands where a collective should
// errors: 2

#include <onebit/onebit.hpp>
#include <vector>

int main() {
  onebit::run_threads(1, [](onebit::threads t) {
    std::vector<float> data(10);
    onebit::compressed_allreduce mean(t, {10}, onebit::sign<>{});
    mean.mean(data);
  });
}
