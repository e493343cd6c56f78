// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// One rank of the exchanges that exchange.cpp and exchange_mpi.cpp time: gradients in, their mean
// out, in the gradients' own memory.

#ifndef ONEBIT_BENCH_EXCHANGE_HPP
#define ONEBIT_BENCH_EXCHANGE_HPP

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <onebit/backend/host.hpp>
#include <onebit/collective/all_gather.hpp>
#include <onebit/collective/dense_average.hpp>
#include <onebit/collective/gather_scatter.hpp>
#include <onebit/collective/hierarchical.hpp>
#include <onebit/compressed_allreduce.hpp>
#include <onebit/compressor/sign.hpp>
#include <onebit/transport/communicator.hpp>
#include <span>
#include <stdexcept>
#include <utility>

#include "support.hpp"

namespace onebit_bench {

using sign_codec = onebit::sign<>;

/// The memory that all contenders of one rank work on.
struct rank_memory {
  onebit::host backend;
  std::size_t n;
  const float* source;
  onebit::host_buffer<float> grads;
  onebit::tensor_entry<float, float> tensor;

  rank_memory(std::size_t elements, const float* random)
      : n(elements), source(random), grads(elements), tensor{nullptr, grads.data(), 1.0F, 0.0F} {}
  /// An exchange may consume its input; this goes before every one, outside of what is timed.
  void refill() { std::memcpy(grads.data(), source, n * sizeof(float)); }
};

inline void expect_agreed(rank_memory& memory, onebit::step_scalars& now,
                          const onebit::communicator& comm) {
  const auto o =
      onebit::outcome_of(onebit::fetch_scalars(memory.backend, &now, comm.rank(), comm.size()));
  if (o != onebit::outcome::kept) throw std::runtime_error("bench: an exchange was skipped");
}

/// The compressed mean, as an optimizer's step exchanges it: encode, exchange, decode the mean into
/// the gradients, keep what is owed.
template <class Collective>
class compressed_mean {
 public:
  template <class T>
  explicit compressed_mean(rank_memory& memory, T transport, const Collective& collective = {})
      : memory_(&memory), allreduce_(std::move(transport), {memory.n}, collective) {}
  void run() {
    if (allreduce_.mean(std::span(memory_->grads.data(), memory_->n)) != onebit::outcome::kept)
      throw std::runtime_error("bench: an exchange was skipped");
  }
  [[nodiscard]] std::uint64_t bytes_sent() const { return allreduce_.sent().bytes_sent; }

 private:
  rank_memory* memory_;
  onebit::compressed_allreduce<Collective> allreduce_;
};

using gather_scatter_mean = compressed_mean<onebit::gather_scatter<sign_codec>>;
using all_gather_mean = compressed_mean<onebit::all_gather<sign_codec>>;
using hierarchical_mean = compressed_mean<onebit::hierarchical<sign_codec>>;

/// The library's exact mean. It is read where it arrives, so nothing is copied afterwards.
template <onebit::dense_sum Mode>
class dense_mean {
 public:
  template <class T>
  dense_mean(rank_memory& memory, T transport)
      : memory_(&memory),
        comm_(std::move(transport)),
        dense_(Mode, comm_, memory.backend, std::span(&memory.n, 1)) {}
  void run() {
    dense_.all_reduce(onebit::gradient_message<float, float>{&memory_->tensor, &now_}, &now_);
    expect_agreed(*memory_, now_, comm_);
    dense_.finish(&now_);
    ++now_.number;
  }
  [[nodiscard]] std::uint64_t bytes_sent() const { return comm_.sent().bytes_sent; }

 private:
  rank_memory* memory_;
  onebit::communicator comm_;
  onebit::dense_average<onebit::host> dense_;
  onebit::step_scalars now_;
};

/// The transport's allreduce on the bare gradients, in place: no packing, no check, no division.
class bare_allreduce {
 public:
  template <class T>
  bare_allreduce(rank_memory& memory, T transport)
      : memory_(&memory), comm_(std::move(transport)) {}
  void run() { comm_.all_reduce_sum(memory_->grads.data(), memory_->n); }
  [[nodiscard]] std::uint64_t bytes_sent() const { return comm_.sent().bytes_sent; }

 private:
  rank_memory* memory_;
  onebit::communicator comm_;
};

}  // namespace onebit_bench

#endif
