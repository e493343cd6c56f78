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
#include <onebit/compressor/sign.hpp>
#include <onebit/rule/adam.hpp>
#include <onebit/transport/communicator.hpp>
#include <span>
#include <stdexcept>
#include <type_traits>
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

/// 1-bit Adam's exchange: encode, exchange, decode the mean into the gradients, keep it.
template <class Exchange>
class compressed_mean {
 public:
  /// `cut`: buckets, or for the hierarchical exchange ranks per node.
  template <class T, class... Cut>
  explicit compressed_mean(rank_memory& memory, T transport, Cut... cut)
      : memory_(&memory),
        comm_(std::move(transport)),
        exchange_({}, comm_, memory.backend, std::span(&memory.n, 1), cut...),
        live_(exchange_.axis().n_words()),
        undo_(undo::repeats ? 0 : live_.size() * onebit::word_elements) {
    for (std::size_t i = 0; i < live_.size(); ++i) live_.data()[i] = ~0U;
    exchange_.count_active(active());
    exchange_.start(
        exchange_.allocate(true, false),
        {onebit::host_buffer<float>(live_.size() * onebit::word_elements), nullptr, &numbers_});
  }
  void run() {
    using view = typename Exchange::view;
    const onebit::momentum_message<view, float, float> message{exchange_.previous(active()),
                                                               &memory_->tensor, &numbers_, &now_};
    const onebit::exchange_args<undo> turn{&now_, active(), undo::from(undo_.data())};
    exchange_.all_reduce(message, turn);
    expect_agreed(*memory_, now_, comm_);
    auto& sender = exchange_.sender();
    const decode_kernel<view> decode{exchange_.latest(active()), sender.tiles(),
                                     memory_->grads.data()};
    if constexpr (undo::repeats) {
      exchange_.repeat(message, turn, decode);
    } else {
      memory_->backend.launch(sender.axis().tiles().size(), decode);
    }
    exchange_.finish(turn);
    ++now_.number;
  }
  [[nodiscard]] std::uint64_t bytes_sent() const { return comm_.sent().bytes_sent; }

 private:
  /// As an optimizer chooses it.
  using undo =
      std::conditional_t<Exchange::own_messages, onebit::undo_by_repeating, onebit::undo_in_buffer>;
  [[nodiscard]] onebit::active_mask active() const { return {live_.data()}; }

  rank_memory* memory_;
  onebit::communicator comm_;
  Exchange exchange_;
  onebit::host_buffer<std::uint32_t> live_;
  onebit::host_buffer<float> undo_;
  onebit::tensor_scalars numbers_{.c = onebit::make_moments({0.9, 0.999, 1e-8})};
  onebit::step_scalars now_;
};

using gather_scatter_mean =
    compressed_mean<onebit::gather_scatter_exchange<sign_codec, onebit::host>>;
using all_gather_mean = compressed_mean<onebit::all_gather_exchange<sign_codec, onebit::host>>;
using hierarchical_mean =
    compressed_mean<onebit::hierarchical_exchange<sign_codec, false, onebit::host>>;

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
