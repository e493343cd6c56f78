// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <onebit/concepts/transport.hpp>

namespace onebit { inline namespace v0_3 {

/// Transport of a single rank. Its copies are memcpy, thus within host memory. A trainer with
/// device memory may use this transport too, since optimizers with one rank send nothing.
class alone {
 public:
  /// @{
  /// Operations of the concepts Transport, SplittingTransport and HalfSummingTransport.
  [[nodiscard]] int rank() const { return 0; }
  [[nodiscard]] int size() const { return 1; }
  [[nodiscard]] alone split(int, int) const { return {}; }
  void all_to_all(const void* send, void* receive, std::size_t slot_bytes) {
    if (slot_bytes > 0) std::memcpy(receive, send, slot_bytes);
  }
  void all_gather(const void* send, void* receive, std::size_t slot_bytes) {
    all_to_all(send, receive, slot_bytes);
  }
  void all_reduce_sum(float*, std::size_t) {}
  void all_reduce_sum(bf16*, std::size_t) {}
  /// @}
};

}}  // namespace onebit
