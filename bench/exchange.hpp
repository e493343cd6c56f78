// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Ways to average the gradients of all ranks, each as one rank holds it, and what each must send.
// Gradients are in host memory; in programs that nvcc compiles, in that of CUDA devices.

#ifndef ONEBIT_BENCH_EXCHANGE_HPP
#define ONEBIT_BENCH_EXCHANGE_HPP

#include <cstddef>
#include <cstdint>
#include <onebit/backend/host.hpp>
#include <onebit/collective/all_gather.hpp>
#include <onebit/collective/dense_average.hpp>
#include <onebit/collective/gather_scatter.hpp>
#include <onebit/collective/hierarchical.hpp>
#include <onebit/compressed_allreduce.hpp>
#include <onebit/transport/communicator.hpp>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>
#ifdef __CUDACC__
#include <onebit/backend/cuda.cuh>
#endif

#include "support.hpp"

namespace onebit_bench {

#ifdef __CUDACC__
using backend = onebit::cuda;
/// On the communicator's stream.
inline backend backend_of(const onebit::communicator& comm) {
  return backend(reinterpret_cast<cudaStream_t>(comm.stream().value()));
}
#else
using backend = onebit::host;
inline backend backend_of(const onebit::communicator&) { return backend(); }
#endif

/// The gradients of one rank.
class rank_memory {
 public:
  /// n random ones.
  rank_memory(backend own, std::size_t n, std::uint64_t seed)
      : backend_(std::move(own)), grads_(backend_.make_buffer<float>(n)) {
    std::vector<float> random(n);
    fill_random(random.data(), n, seed);
    source_ = onebit::to_buffer(backend_, random);
  }
  /// An exchange may consume its input; this goes before every one, outside of what is timed.
  void refill() {
    const onebit::detail::copy_kernel copy{source_.data(), grads_.data(), size()};
    backend_.launch(copy.launches(), copy);
    wait();
  }
  /// Until all that was enqueued is done.
  void wait() const { backend_.wait(); }
  [[nodiscard]] std::span<float> grads() { return {grads_.data(), size()}; }
  [[nodiscard]] std::vector<float> on_host() const {
    std::vector<float> values(size());
    backend_.copy_out(values.data(), grads_.data(), size());
    return values;
  }
  [[nodiscard]] std::size_t size() const { return grads_.size(); }

 private:
  backend backend_;
  onebit::buffer_of<backend, float> grads_, source_;
};

/// Pending ones are told by `fetch`.
inline void expect_kept(onebit::outcome o) {
  if (o == onebit::outcome::skipped) throw std::runtime_error("an exchange was skipped");
}

/// The compressed mean, as an optimizer's step exchanges it: encode, exchange, decode the mean into
/// the gradients, keep what is owed.
template <class Collective>
class compressed_mean {
 public:
  compressed_mean(const onebit::communicator& comm, std::size_t n, const Collective& c = {})
      : allreduce_(comm, {n}, c, backend_of(comm)) {}
  void average(std::span<float> grads) { expect_kept(allreduce_.mean(grads)); }
  void fetch(std::span<float>) { expect_kept(allreduce_.settle()); }

 private:
  onebit::compressed_allreduce<Collective, float, backend> allreduce_;
};

/// The library's exact mean. An optimizer reads it where it arrives, so `average` copies nothing.
class dense_mean {
 public:
  dense_mean(onebit::communicator comm, std::size_t n, onebit::dense_sum mode)
      : comm_(std::move(comm)),
        backend_(backend_of(comm_)),
        dense_(mode, comm_, backend_, std::span(&n, 1)),
        now_(onebit::to_buffer(backend_,
                               std::vector<onebit::step_scalars>{
                                   {.given = {.rank = static_cast<std::uint32_t>(comm_.rank())}}})),
        tensor_(backend_.make_buffer<tensor>(1)) {}
  void average(std::span<float> grads) {
    if (const tensor t{grads.data(), grads.data()}; std::exchange(at_, t.grads) != t.grads)
      backend_.copy_in(tensor_.data(), &t, 1);
    if (calls_ > 0) dense_.finish();
    backend_.launch(1,
                    onebit::detail::begin_step_kernel{now_.data(), {}, 0, 1, calls_++, 0, false});
    dense_.all_reduce(onebit::gradient_message<float, float>{tensor_.data(), now_.data()},
                      now_.data());
    if constexpr (!backend::deferred) check();
  }
  /// Copies the mean to the gradients.
  void fetch(std::span<float>) {
    check();
    const auto mean = dense_.latest(now_.data());
    backend_.launch(dense_.axis().tiles().size(),
                    onebit::detail::store_mean_kernel<decltype(mean), float>{
                        mean, dense_.sender().tiles(), tensor_.data()});
  }

 private:
  using tensor = onebit::detail::tensor_entry<float, float>;
  void check() {
    expect_kept(onebit::detail::outcome_of(
        onebit::detail::fetch_scalars(backend_, now_.data(), comm_.rank(), comm_.size())));
  }

  onebit::communicator comm_;
  backend backend_;
  onebit::detail::dense_average<backend> dense_;
  onebit::buffer_of<backend, onebit::step_scalars> now_;
  onebit::buffer_of<backend, tensor> tensor_;
  const float* at_ = nullptr;
  std::uint32_t calls_ = 0;
};

/// The transport's allreduce on the bare gradients, in place: no packing, no check, no division.
class bare_allreduce {
 public:
  bare_allreduce(onebit::communicator comm, std::size_t) : comm_(std::move(comm)) {}
  void average(std::span<float> grads) { comm_.all_reduce_sum(grads.data(), grads.size()); }

 private:
  onebit::communicator comm_;
};

// -- what one call sends from each of `ranks` ranks, for n elements

struct expected_traffic {
  std::uint64_t bytes = 0;
  std::uint32_t collectives = 0;
};

/// Bytes of the message for one of `chunks` equal parts of each bucket.
template <class C>
std::uint64_t slot_bytes(const C& codec, std::size_t n, std::uint64_t chunks, int buckets = 1) {
  auto scales = onebit::granularity::vector();
  if constexpr (onebit::detail::WordCompressor<C>) scales = codec.scale_granularity();
  std::vector<std::uint64_t> offsets;
  const onebit::layout axis(std::span(&n, 1), static_cast<int>(chunks), scales, buckets,
                            onebit::detail::WordCompressor<C> ? 0 : onebit::tile_words);
  return onebit::detail::make_slot_format(codec, axis, offsets).slot_bytes;
}

template <class C>
expected_traffic sent_by(const onebit::gather_scatter<C>& c, std::uint64_t ranks, std::size_t n) {
  const int buckets = onebit::detail::n_buckets(std::span(&n, 1), c.bucket_elements);
  const auto b = static_cast<std::uint32_t>(buckets);
  return {2 * (ranks - 1) * b * slot_bytes(c.codec, n, ranks, buckets), 2 * b};
}
template <class C>
expected_traffic sent_by(const onebit::all_gather<C>& c, std::uint64_t ranks, std::size_t n) {
  return {(ranks - 1) * slot_bytes(c.codec, n, 1), 1};
}
template <class C>
expected_traffic sent_by(const onebit::hierarchical<C>& c, std::uint64_t ranks, std::size_t n) {
  const auto local = static_cast<std::uint64_t>(c.ranks_per_node), nodes = ranks / local;
  const std::uint64_t slot = slot_bytes(c.codec, n, nodes, c.ranks_per_node);
  const std::uint64_t exact = slot_bytes(onebit::identity{}, n, nodes, c.ranks_per_node);
  return {2 * (nodes - 1) * slot + (local - 1) * nodes * (exact + slot), local > 1 ? 4U : 2U};
}
inline expected_traffic sent_by(onebit::dense_sum mode, std::uint64_t ranks, std::size_t n) {
  const onebit::rounded codec{onebit::detail::word_bytes_of(mode), false};
  // by the transport: all slots as a ring sends them, and a status to each other rank
  const std::uint64_t status =
      onebit::detail::by_transport(mode) ? sizeof(onebit::detail::slot_status) : 0;
  return {(ranks - 1) * (2 * slot_bytes(codec, n, ranks) + status), 2};
}

}  // namespace onebit_bench

#endif
