// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A transport for one process that plays several ranks.

#ifndef ONEBIT_TESTS_SUPPORT_ECHO_HPP
#define ONEBIT_TESTS_SUPPORT_ECHO_HPP

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

namespace onebit_test {

/// A transport of one process that stands for several ranks: the others say what this one says. It
/// only enqueues, so that its steps can be captured, and wait for nothing.
template <class M>
class echo {
 public:
  static constexpr bool echoes = true;
  echo(M memory, int size) : memory_(std::move(memory)), size_(size) {}
  [[nodiscard]] int rank() const { return 0; }
  [[nodiscard]] int size() const { return size_; }
  void all_to_all(const void* send, void* receive, std::size_t n) { all_gather(send, receive, n); }
  void all_gather(const void* send, void* receive, std::size_t n) {
    auto* const to = static_cast<std::byte*>(receive);
    memory_.copy(to, send, n);
    for (int said = 1; said < size_; said *= 2) {  // few copies: each costs a device a launch
      const auto at = static_cast<std::size_t>(said) * n;
      memory_.copy(to + at, to, static_cast<std::size_t>(std::min(said, size_ - said)) * n);
    }
  }
  void all_reduce_sum(float*, std::size_t) {}
  void host_all_gather(const void* send, void* receive, std::size_t n) {
    for (int r = 0; r < size_; ++r) {
      std::memcpy(static_cast<std::byte*>(receive) + static_cast<std::size_t>(r) * n, send, n);
    }
  }

 private:
  M memory_;
  int size_;
};

}  // namespace onebit_test

#endif  // ONEBIT_TESTS_SUPPORT_ECHO_HPP
