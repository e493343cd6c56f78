// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// operator new of programs that are linked with this: fails when it is told to, once.

#include "failing_allocations.hpp"

#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

void* allocate(std::size_t n, std::size_t alignment) {
  long& left = onebit_test::allocations_left;
  if (left >= 0 && left-- == 0) throw std::bad_alloc();
  const std::size_t rounded = (n + alignment - 1) / alignment * alignment;
  void* p = alignment <= alignof(std::max_align_t)
                ? std::malloc(n == 0 ? 1 : n)
                : std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

}  // namespace

void* operator new(std::size_t n) { return allocate(n, 1); }
void* operator new(std::size_t n, std::align_val_t a) {
  return allocate(n, static_cast<std::size_t>(a));
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, std::size_t) noexcept { std::free(p); }
void operator delete(void* p, std::align_val_t) noexcept { std::free(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { std::free(p); }
