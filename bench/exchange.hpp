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
#include <onebit/collective/dense.hpp>
#include <onebit/collective/gather_scatter.hpp>
#include <onebit/collective/two_level.hpp>
#include <onebit/compress/sign.hpp>
#include <onebit/rule/adam.hpp>
#include <onebit/transport/counting.hpp>
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

inline void expect(onebit::outcome o) {
  if (o != onebit::outcome::agreed) throw std::runtime_error("bench: an exchange was skipped");
}

/// 1-bit Adam's exchange: encode, exchange, decode the mean into the gradients, commit.
template <class Exchange, class T>
class compressed_mean {
 public:
  /// `cut`: buckets, or for the hierarchical exchange ranks per node.
  explicit compressed_mean(rank_memory& memory, T transport, int cut = 1)
      : memory_(&memory),
        transport_(std::move(transport)),
        exchange_({}, transport_, memory.backend, std::span(&memory.n, 1), cut) {
    auto& local = exchange_.local();
    const std::size_t words = local.axis().n_words();
    onebit::host_buffer<std::uint32_t> live(words);
    for (std::size_t i = 0; i < words; ++i) live.data()[i] = ~0U;
    local.set_live(std::move(live));
    exchange_.adopt(
        {onebit::host_buffer<float>(words * onebit::word_elements), nullptr, constants_.beta1});
  }
  void run() {
    using view = typename Exchange::view;
    const onebit::momentum_message<view, float, float> message{exchange_.agreed(), &memory_->tensor,
                                                               &now_, constants_};
    const onebit::undo_in_gradients<float, float> undo{&memory_->tensor};
    expect(exchange_.agree(message, undo, &now_));
    ++now_.number;
    auto& local = exchange_.local();
    memory_->backend.launch(local.axis().tiles().size(),
                            onebit::detail::copy_field_kernel<view>{
                                exchange_.pending(), local.tiles(), memory_->grads.data()});
    exchange_.commit(&now_);
  }
  [[nodiscard]] std::uint64_t bytes_sent() const { return transport_.sent().bytes_sent; }

 private:
  rank_memory* memory_;
  onebit::counting<T> transport_;
  Exchange exchange_;
  onebit::moments_constants constants_ = onebit::make_moments(0.9, 0.999, 1e-8);
  onebit::step_scalars now_;
};

template <class T>
using gather_scatter_mean =
    compressed_mean<onebit::two_phase<sign_codec, onebit::counting<T>, onebit::host>, T>;
template <class T>
using all_gather_mean =
    compressed_mean<onebit::one_phase<sign_codec, onebit::counting<T>, onebit::host>, T>;
template <class T>
using hierarchical_mean =
    compressed_mean<onebit::two_level<sign_codec, false, onebit::counting<T>, onebit::host>, T>;

/// The library's exact mean. It is read where it arrives, so nothing is copied afterwards.
template <onebit::dense_sum Mode, class T>
class dense_mean {
 public:
  dense_mean(rank_memory& memory, T transport)
      : memory_(&memory),
        transport_(std::move(transport)),
        dense_(Mode, transport_, memory.backend, std::span(&memory.n, 1)) {}
  void run() {
    expect(dense_.agree(onebit::gradient_message<float, float>{&memory_->tensor, &now_}, &now_));
    ++now_.number;
  }
  [[nodiscard]] std::uint64_t bytes_sent() const { return transport_.sent().bytes_sent; }

 private:
  rank_memory* memory_;
  onebit::counting<T> transport_;
  onebit::dense<onebit::counting<T>, onebit::host> dense_;
  onebit::step_scalars now_;
};

/// The transport's allreduce on the bare gradients, in place: no packing, no check, no division.
template <class T>
class bare_allreduce {
 public:
  bare_allreduce(rank_memory& memory, T transport)
      : memory_(&memory), transport_(std::move(transport)) {}
  void run() { transport_.all_reduce_sum(memory_->grads.data(), memory_->n); }
  [[nodiscard]] std::uint64_t bytes_sent() const { return transport_.sent().bytes_sent; }

 private:
  rank_memory* memory_;
  onebit::counting<T> transport_;
};

}  // namespace onebit_bench

#endif
