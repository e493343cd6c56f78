// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Ways to average the gradients of all ranks, each as one rank holds it, and what each must send.

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
#include <onebit/transport/communicator.hpp>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

namespace onebit_bench {

/// The gradients of one rank.
class rank_memory {
 public:
  rank_memory(std::size_t elements, const float* random) : source_(random), grads_(elements) {}
  /// An exchange may consume its input; this goes before every one, outside of what is timed.
  void refill() { std::memcpy(grads_.data(), source_, grads_.size() * sizeof(float)); }
  [[nodiscard]] std::span<float> grads() { return {grads_.data(), grads_.size()}; }
  [[nodiscard]] std::size_t size() const { return grads_.size(); }

 private:
  const float* source_;
  onebit::host_buffer<float> grads_;
};

inline void expect_kept(onebit::outcome o) {
  if (o != onebit::outcome::kept) throw std::runtime_error("an exchange was skipped");
}

/// The compressed mean, as an optimizer's step exchanges it: encode, exchange, decode the mean into
/// the gradients, keep what is owed.
template <class Collective>
class compressed_mean {
 public:
  compressed_mean(onebit::communicator comm, std::size_t n, const Collective& collective = {})
      : allreduce_(std::move(comm), {n}, collective) {}
  void average(std::span<float> grads) { expect_kept(allreduce_.mean(grads)); }

 private:
  onebit::compressed_allreduce<Collective> allreduce_;
};

/// The library's exact mean. An optimizer reads it where it arrives, so `average` copies nothing.
class dense_mean {
 public:
  dense_mean(onebit::communicator comm, std::size_t n, onebit::dense_sum mode)
      : comm_(std::move(comm)), dense_(mode, comm_, backend_, std::span(&n, 1)) {}
  void average(std::span<float> grads) {
    if (std::exchange(ran_, true)) {
      dense_.finish(&now_);
      ++now_.number;
    }
    const onebit::tensor_entry<float, float> tensor{nullptr, grads.data(), 1.0F, 0.0F};
    dense_.all_reduce(onebit::gradient_message<float, float>{&tensor, &now_}, &now_);
    expect_kept(
        onebit::outcome_of(onebit::fetch_scalars(backend_, &now_, comm_.rank(), comm_.size())));
  }
  /// Copies the mean to `grads`.
  void fetch(std::span<float> grads) {
    const onebit::tensor_entry<float, float> tensor{grads.data(), grads.data(), 1.0F, 0.0F};
    const auto mean = dense_.latest(&now_);
    backend_.launch(dense_.axis().tiles().size(),
                    onebit::detail::store_mean_kernel<decltype(mean), float>{
                        mean, dense_.sender().tiles(), &tensor});
  }

 private:
  onebit::communicator comm_;
  onebit::host backend_;
  onebit::dense_average<onebit::host> dense_;
  onebit::step_scalars now_;
  bool ran_ = false;
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
  if constexpr (onebit::WordCompressor<C>) scales = codec.scale_granularity();
  std::vector<std::uint64_t> offsets;
  const onebit::layout axis(std::span(&n, 1), static_cast<int>(chunks), scales, buckets,
                            onebit::WordCompressor<C> ? 0 : onebit::tile_words);
  return onebit::make_slot_format(codec, axis, offsets).slot_bytes;
}

template <class C>
expected_traffic sent_by(const onebit::gather_scatter<C>& c, std::uint64_t ranks, std::size_t n) {
  const int buckets = onebit::n_buckets(std::span(&n, 1), c.bucket_elements);
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
  const std::uint64_t status = onebit::by_transport(mode) ? sizeof(onebit::slot_status) : 0;
  return {(ranks - 1) * (2 * slot_bytes(codec, n, ranks) + status), 2};
}

}  // namespace onebit_bench

#endif
