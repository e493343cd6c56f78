// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <onebit/concepts/transport.hpp>
#include <onebit/core/config.hpp>
#include <onebit/transport/memory.hpp>
#include <utility>

/// Adapter that lets a transport of host memory carry device memory.
namespace onebit { inline namespace v0_3 {

/// Transport of device memory that stages its collectives through `T`, a Transport of host memory.
/// `M` copies between host and device. A handle, cheap to copy. Copies of a handle share the
/// staging buffer: only one thread at a time may use them.
///
/// Cost per collective: one copy of the sent bytes to host memory, one wait, the collective of T,
/// and one copy of the received bytes to the device. The last copy is not waited for: it is ordered
/// before all later work of M. The staging buffer grows to the largest collective. If T is
/// `device_aware()`, T gets the device pointers, after a wait. Throws what T and M throw.
template <Transport T, Memory M>
class staged {
 public:
  /// Wraps `inner`; `memory` accesses the device memory.
  staged(T inner, M memory)
      : inner_(std::move(inner)),
        memory_(std::move(memory)),
        staging_(std::make_shared<detail::host_staging<M>>(memory_)) {}

  /// @{
  /// Operations of the Transport concept.
  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int size() const { return inner_.size(); }
  /// Returns the stream of the memory M, if M has one.
  [[nodiscard]] auto stream() const requires requires(const M& m) { m.stream(); }
  { return memory_.stream(); }

  void all_to_all(const void* send, void* receive, std::size_t slot_bytes) {
    carry(send, n_ranks() * slot_bytes, receive, n_ranks() * slot_bytes,
          [&](const void* from, void* to) { inner_.all_to_all(from, to, slot_bytes); });
  }
  void all_gather(const void* send, void* receive, std::size_t slot_bytes) {
    carry(send, slot_bytes, receive, n_ranks() * slot_bytes,
          [&](const void* from, void* to) { inner_.all_gather(from, to, slot_bytes); });
  }
  void all_reduce_sum(float* data, std::size_t n) { reduce(data, n); }
  void all_reduce_sum(bf16* data, std::size_t n) requires detail::HalfSummingTransport<T> {
    reduce(data, n);
  }
  /// @}

  /// all_gather on host memory, for small messages between the hosts of ranks. Blocking.
  void host_all_gather(const void* send, void* receive, std::size_t slot_bytes) {
    inner_.all_gather(send, receive, slot_bytes);
  }

  /// Splits as T does, on the same memory. Collective over all ranks.
  [[nodiscard]] staged split(int color, int key) const requires detail::SplittingTransport<T> {
    return staged(inner_.split(color, key), memory_);
  }
  /// Duplicates as T does, on the same memory. Collective over all ranks.
  [[nodiscard]] staged duplicate() const requires detail::DuplicatingTransport<T> {
    return staged(inner_.duplicate(), memory_);
  }
  /// Returns the number of ranks per node according to T. Collective.
  [[nodiscard]] int ranks_per_node() const requires detail::NodeAwareTransport<T> {
    return inner_.ranks_per_node();
  }

  /// Returns the wrapped transport.
  [[nodiscard]] T& inner() { return inner_; }

 private:
  template <class Element>
  void reduce(Element* data, std::size_t n) {
    if (takes_device_memory()) {
      memory_.wait();
      if constexpr (requires { inner_.all_reduce_sum_on_device(data, n); }) {
        inner_.all_reduce_sum_on_device(data, n);
      } else {
        inner_.all_reduce_sum(data, n);
      }
      return;
    }
    const std::size_t bytes = n * sizeof(Element);
    auto* const host = detail::aligned_as<Element>(staging_->at_least(bytes));
    memory_.copy(host, data, bytes);
    memory_.wait();
    inner_.all_reduce_sum(host, n);
    memory_.copy(data, host, bytes);
  }
  [[nodiscard]] std::size_t n_ranks() const { return static_cast<std::size_t>(inner_.size()); }

  [[nodiscard]] bool takes_device_memory() const {
    if constexpr (detail::DeviceAwareTransport<T>) {
      return inner_.device_aware();
    } else {
      return M::host_can_touch;
    }
  }

  template <class Call>
  void carry(const void* send, std::size_t send_bytes, void* receive, std::size_t receive_bytes,
             const Call& call) {
    if (takes_device_memory()) {
      memory_.wait();
      call(send, receive);
      return;
    }
    constexpr std::size_t line = 64;  // the receive part starts aligned too
    const std::size_t gap = (send_bytes + line - 1) / line * line;
    std::byte* const host = staging_->at_least(gap + receive_bytes);
    if (send_bytes > 0) memory_.copy(host, send, send_bytes);
    memory_.wait();  // also for the previous collective's copy out of the staging buffer
    call(host, host + gap);
    if (receive_bytes > 0) memory_.copy(receive, host + gap, receive_bytes);
  }

  T inner_;
  M memory_;
  std::shared_ptr<detail::host_staging<M>> staging_;
};

}}  // namespace onebit
