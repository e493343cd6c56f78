// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <onebit/concepts.hpp>
#include <utility>

/// A transport that counts what it carries: wrapped around any other one by the optimizer.
namespace onebit {

/// What one rank sent: bytes that leave it (its slot to itself does not), collectives, seconds.
struct traffic {
  std::uint64_t bytes_sent = 0;
  std::uint32_t collectives = 0;
  double seconds = 0;

  friend traffic operator-(const traffic& a, const traffic& b) {
    return {a.bytes_sent - b.bytes_sent, a.collectives - b.collectives, a.seconds - b.seconds};
  }
};

/// Decorates a Transport: the same operations, counted and timed. An allreduce counts as the volume
/// of a ring, 2 (W-1)/W of its bytes, whatever the transport makes of it.
template <class T>
class counting {
 public:
  explicit counting(T inner) : inner_(std::move(inner)) {}

  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int size() const { return inner_.size(); }
  [[nodiscard]] const traffic& sent() const { return sent_; }
  [[nodiscard]] T& inner() { return inner_; }

  void all_to_all(const void* send, void* receive, std::size_t slot_bytes) {
    const timer time(*this, others() * slot_bytes);
    inner_.all_to_all(send, receive, slot_bytes);
  }
  void all_gather(const void* send, void* receive, std::size_t slot_bytes) {
    const timer time(*this, others() * slot_bytes);
    inner_.all_gather(send, receive, slot_bytes);
  }
  void all_reduce_sum(float* data, std::size_t n) {
    const timer time(*this, 2 * others() * n * sizeof(float) / (others() + 1));
    inner_.all_reduce_sum(data, n);
  }

 private:
  using clock = std::chrono::steady_clock;
  class timer {
   public:
    timer(counting& owner, std::size_t bytes) : owner_(owner) {
      owner.sent_.bytes_sent += bytes;
      ++owner.sent_.collectives;
    }
    timer(const timer&) = delete;
    timer& operator=(const timer&) = delete;
    ~timer() {
      owner_.sent_.seconds += std::chrono::duration<double>(clock::now() - start_).count();
    }

   private:
    counting& owner_;
    clock::time_point start_ = clock::now();
  };
  [[nodiscard]] std::size_t others() const { return static_cast<std::size_t>(inner_.size()) - 1; }

  T inner_;
  traffic sent_;
};

}  // namespace onebit
