// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A few of the trainings of tests/bits, for any compiler and machine: needs the library alone,
// prints what is recorded beside what came out, and fails where they differ.

#include <array>
#include <cstdint>
#include <cstdio>
#include <onebit/onebit.hpp>
#include <string_view>
#include <vector>

#include "../bits/recorded.hpp"
#include "../bits/trainer.hpp"

namespace {

namespace bits = onebit_test::bits;

const onebit::sign<> by_tensor{onebit::granularity::layer(), 1};  // as when they were recorded

/// What `make` trains on so many ranks, against what is recorded under that name.
template <class Make>
bool check(std::string_view name, int n_ranks, const Make& make) {
  std::uint64_t recorded = 0;
  for (const bits::recorded_run& run : bits::recorded) {
    if (run.name == name) recorded = run.digest;
  }
  bool good = true;
  const onebit::isa best = onebit::host::best_isa();
  for (const onebit::host& backend :
       {onebit::host(1, onebit::isa::scalar), onebit::host(1, best), onebit::host(3, best)}) {
    std::vector<bits::rank_run> runs(static_cast<std::size_t>(n_ranks));
    onebit::run_threads(n_ranks, [&](onebit::threads comm) {
      bits::trainer<float, float> data(false, 3);
      auto optimizer =
          make(data.groups(), comm, onebit::host(backend.threads(), backend.instruction_set()));
      runs[static_cast<std::size_t>(comm.rank())] = bits::train(optimizer, data, comm.rank());
    });
    std::uint64_t digest = 0;
    for (std::size_t step = 0; step < bits::n_steps; ++step) {
      for (const bits::rank_run& run : runs) bits::add_to(digest, run.digests[step]);
    }
    const std::string_view lanes = onebit::to_string(backend.instruction_set());
    std::printf("%-36.*s %.*s, %d thread%s: %016llx, recorded %016llx\n",
                static_cast<int>(name.size()), name.data(), static_cast<int>(lanes.size()),
                lanes.data(), backend.threads(), backend.threads() > 1 ? "s" : "",
                static_cast<unsigned long long>(digest), static_cast<unsigned long long>(recorded));
    good = good && digest == recorded;
  }
  return good;
}

}  // namespace

int main() {
  bool good = true;
  good &= check(
      "one_bit_adam_refreshed, whole, float", 2,
      [](const auto& groups, onebit::threads comm, onebit::host backend) {
        const onebit::one_bit_adam_options options{
            .freeze = {.after = 4}, .refreshes = 2, .warm_up_sum = onebit::dense_sum::rank_order};
        return onebit::one_bit_adam(groups, comm, options, onebit::gather_scatter{by_tensor},
                                    backend);
      });
  good &= check(
      "one_bit_lamb_refreshed, all_gather, float", 3,
      [](const auto& groups, onebit::threads comm, onebit::host backend) {
        const onebit::one_bit_lamb_options options{
            .freeze = {.after = 4}, .refreshes = 2, .warm_up_sum = onebit::dense_sum::rank_order};
        return onebit::one_bit_lamb(groups, comm, options, onebit::all_gather{by_tensor}, backend);
      });
  good &= check("zero_one_adam, whole, float", 2,
                [](const auto& groups, onebit::threads comm, onebit::host backend) {
                  const onebit::zero_one_adam_options options{
                      .adam = {.eps = 1e-3, .bias_correction = false},
                      .schedule = {.kappa = 2,
                                   .warmup_steps = 5,
                                   .doubling_steps = 2,
                                   .max_interval = 4,
                                   .stop_refreshing = true},
                      .refresh_sum = onebit::dense_sum::rank_order,
                      .max_step = 0,
                      .own_variance = false};
                  return onebit::zero_one_adam(groups, comm, options,
                                               onebit::gather_scatter{by_tensor}, backend);
                });
  std::puts(good ? "the recorded bits" : "NOT the recorded bits");
  return good ? 0 : 1;
}
