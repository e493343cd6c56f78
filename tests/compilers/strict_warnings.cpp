// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A program whose warnings are errors, and which includes the headers with -I: it makes a step of
// each kind of optimizer and collective.

#include <onebit/any_optimizer.hpp>
#include <onebit/collective/all_gather.hpp>
#include <onebit/collective/hierarchical.hpp>
#include <onebit/compressed_allreduce.hpp>
#include <onebit/compressor/quantized.hpp>
#include <onebit/compressor/rounded.hpp>
#include <onebit/extras/by_name.hpp>
#include <onebit/extras/checkpoint_files.hpp>
#include <onebit/extras/papers.hpp>
#include <onebit/extras/per_tensor.hpp>
#include <onebit/extras/sharded.hpp>
#include <onebit/onebit.hpp>
#include <vector>

int main() {
  onebit::run_threads(2, [](onebit::threads comm) {
    std::vector<float> x(4), g(4);
    const std::vector<onebit::param_group<>> groups{{{{x, g}}}};
    auto adam = onebit::one_bit_adam(groups, comm, {}, onebit::all_gather<onebit::sign<>>{});
    (void)adam.step(0.1F);
    auto lamb = onebit::one_bit_lamb(groups, comm, {}, onebit::hierarchical{onebit::sign<>{}, 2});
    (void)lamb.step(0.1F);
    auto local =
        onebit::zero_one_adam(groups, comm, {}, onebit::gather_scatter{onebit::quantized<4>{}});
    (void)local.step(0.1F);
    onebit::per_tensor each(comm, [](const auto& all, auto c) { return onebit::adam(all, c, {}); });
    each.see(x, g);
    (void)each.finish(0.1F);
  });
}
