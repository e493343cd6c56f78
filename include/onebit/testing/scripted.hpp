// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// A transport that counts on its own what it is asked to carry, and fails when told to.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <onebit/core/error.hpp>
#include <onebit/transport/threads.hpp>
#include <utility>
#include <vector>

namespace onebit { inline namespace v0_3 { namespace testing {

/// One rank's script and counts; shared by the copies of its transport.
struct script {
  static constexpr std::uint64_t never = std::numeric_limits<std::uint64_t>::max();

  std::uint64_t fail_at = never;     ///< the collective (from 0) that throws
  bool fail_after_delivery = false;  ///< the data arrives all the same, with some bytes broken
  std::uint64_t calls = 0;
  std::uint64_t bytes_to_others = 0;
};

/// Wraps the threads transport.
class scripted {
 public:
  scripted(onebit::threads inner, std::shared_ptr<script> told)
      : inner_(std::move(inner)), told_(std::move(told)) {}

  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int size() const { return inner_.size(); }

  void all_to_all(const void* send, void* receive, std::size_t slot_bytes) {
    carry(receive, n_ranks() * slot_bytes, (n_ranks() - 1) * slot_bytes,
          [&] { inner_.all_to_all(send, receive, slot_bytes); });
  }
  void all_gather(const void* send, void* receive, std::size_t slot_bytes) {
    carry(receive, n_ranks() * slot_bytes, (n_ranks() - 1) * slot_bytes,
          [&] { inner_.all_gather(send, receive, slot_bytes); });
  }
  void all_reduce_sum(float* data, std::size_t n) {
    carry(data, n * sizeof(float), 2 * (n_ranks() - 1) * n * sizeof(float) / n_ranks(),
          [&] { inner_.all_reduce_sum(data, n); });
  }
  /// The new transport shares this one's script and counts.
  [[nodiscard]] scripted split(int color, int key) const {
    return {inner_.split(color, key), told_};
  }

 private:
  [[nodiscard]] std::size_t n_ranks() const { return static_cast<std::size_t>(inner_.size()); }

  template <class Call>
  void carry(void* receive, std::size_t n_bytes, std::size_t to_others, const Call& call) {
    const bool fails = told_->calls++ == told_->fail_at;
    told_->bytes_to_others += to_others;
    if (!fails || told_->fail_after_delivery) call();
    if (!fails) return;
    std::memset(receive, 0xA5, n_bytes / 2);
    throw onebit::transport_error("scripted: the network is down");
  }

  onebit::threads inner_;
  std::shared_ptr<script> told_;
};

}}}  // namespace onebit::testing
