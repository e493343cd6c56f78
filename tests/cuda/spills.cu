// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Every kernel of every algorithm, of every collective and of 16-bit elements, for
// cmake/check_spills.cmake to look at. Never runs.

#include <onebit/backend/cuda.cuh>
#include <onebit/collective/all_gather.hpp>
#include <onebit/collective/hierarchical.hpp>
#include <onebit/onebit.hpp>
#include <vector>

#include "../golden/deepspeed_zero_one.hpp"

namespace {

using groups = std::vector<onebit::param_group<float, float>>;

template <class Optimizer>
void steps(Optimizer optimizer) {
  (void)optimizer.step(0.1F);
}

template <class Backend>
void every_kernel(const groups& g, onebit::threads comm, Backend backend) {
  const onebit::gather_scatter<onebit::sign<>> exchange;
  steps(onebit::adam(g, comm, {}, backend));
  steps(onebit::lamb(g, comm, {}, backend));
  steps(onebit::one_bit_adam(g, comm, {}, exchange, backend));
  steps(onebit::one_bit_lamb(g, comm, {}, exchange, backend));
  steps(onebit::zero_one_adam(g, comm, {}, exchange, backend));
  steps(deepspeed::zero_one_adam(g, comm, {}, exchange, backend));
}

}  // namespace

void on_a_device(const groups& g, onebit::threads comm, onebit::cuda backend) {
  every_kernel(g, comm, backend);
}

void other_collectives(const groups& g, onebit::threads comm, onebit::cuda backend) {
  steps(onebit::one_bit_adam(g, comm, {}, onebit::all_gather<onebit::sign<>>{}, backend));
  steps(onebit::zero_one_adam(g, comm, {}, onebit::hierarchical{onebit::sign<>{}, 2}, backend));
}

template <class T>
void other_elements(const std::vector<onebit::param_group<T, T>>& g, onebit::threads comm,
                    onebit::cuda backend) {
  const onebit::gather_scatter<onebit::sign<>> exchange;
  steps(onebit::one_bit_adam(g, comm, {}, exchange, backend));
  steps(onebit::one_bit_lamb(g, comm, {}, exchange, backend));
  steps(onebit::zero_one_adam(g, comm, {}, exchange, backend));
}
template void other_elements(const std::vector<onebit::param_group<onebit::fp16, onebit::fp16>>&,
                             onebit::threads, onebit::cuda);
template void other_elements(const std::vector<onebit::param_group<onebit::bf16, onebit::bf16>>&,
                             onebit::threads, onebit::cuda);
template void other_elements(
    const std::vector<onebit::param_group<onebit::any_element, onebit::any_element>>&,
    onebit::threads, onebit::cuda);

// The host backend in a .cu file must compile without warnings too.
void on_the_host(const groups& g, onebit::threads comm, onebit::host backend) {
  every_kernel(g, comm, backend);
}
