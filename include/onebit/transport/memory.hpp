// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <new>
#include <onebit/concepts/transport.hpp>
#include <utility>

/// Access to the memory that transports send from and receive into: host or device memory.
namespace onebit { inline namespace v0_3 {

/// Host memory: `copy` is memcpy, `wait` returns at once.
struct host_memory {
  /// @{
  /// Operations of the Memory concept.
  static constexpr bool host_can_touch = true;

  void copy(void* to, const void* from, std::size_t bytes) const {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void wait() const {}
  [[nodiscard]] void* allocate_host(std::size_t bytes) const {
    return ::operator new (bytes, std::align_val_t{64});
  }
  void free_host(void* p) const { ::operator delete (p, std::align_val_t{64}); }
  /// @}
};

static_assert(Memory<host_memory>);

namespace detail {

/// Host buffer that stages copies from and to device memory. Grows, never shrinks.
template <Memory M>
class host_staging {
 public:
  explicit host_staging(M memory) : memory_(std::move(memory)) {}
  host_staging(const host_staging&) = delete;
  host_staging& operator=(const host_staging&) = delete;
  ~host_staging() {
    try {
      release();
    } catch (...) {  // the device failed: the buffer is leaked
    }
  }

  /// Returns a buffer of at least `bytes` bytes. If it must grow, waits and drops the contents.
  [[nodiscard]] std::byte* at_least(std::size_t bytes) {
    if (bytes > bytes_) {
      release();
      data_ = static_cast<std::byte*>(memory_.allocate_host((std::max)(bytes, 2 * bytes_)));
      bytes_ = (std::max)(bytes, 2 * bytes_);
    }
    return data_;
  }

 private:
  void release() {
    if (data_ == nullptr) return;
    memory_.wait();  // a copy from the buffer may still be in progress
    memory_.free_host(std::exchange(data_, nullptr));
  }

  M memory_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace detail
}}  // namespace onebit
