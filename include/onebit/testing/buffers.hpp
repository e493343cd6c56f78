// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Copies into and out of a backend's memory, which the host may be unable to access.

#include <cstddef>
#include <vector>

namespace onebit { inline namespace v0_3 { namespace testing {

template <class B, class T>
[[nodiscard]] auto uploaded(const B& backend, const std::vector<T>& values) {
  auto buffer = backend.template make_buffer<T>(values.size());
  backend.copy_in(buffer.data(), values.data(), values.size());
  return buffer;
}

template <class T, class B>
[[nodiscard]] std::vector<T> downloaded(const B& backend, const T* from, std::size_t n) {
  std::vector<T> values(n);
  backend.copy_out(values.data(), from, n);
  return values;
}

template <class B, class Buffer>
[[nodiscard]] auto downloaded(const B& backend, const Buffer& buffer) {
  return downloaded(backend, buffer.data(), buffer.size());
}

}}}  // namespace onebit::testing
