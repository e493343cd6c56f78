// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/// What the processor can do. Compilers have builtins for it, but some link no library that has
/// what those need (`zig c++`).
namespace onebit { inline namespace v0_3 { namespace detail {

/// Instructions of this processor that the operating system lets programs use.
struct cpu_instructions {
  bool crc32c = false;    ///< SSE4.2
  bool avx2_fma = false;  ///< AVX2 and FMA
};

/// Asks the processor, once per process: on a virtual machine it takes microseconds.
[[nodiscard, gnu::cold]] inline const cpu_instructions& this_cpu() {
  static const cpu_instructions found = [] {
    cpu_instructions has;
#if defined(__x86_64__)
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0) return has;
    has.crc32c = (c & 1U << 20U) != 0;
    constexpr unsigned needed = 1U << 12U | 1U << 27U | 1U << 28U;  // FMA, OSXSAVE, AVX
    if ((c & needed) != needed) return has;
    unsigned saved = 0;  // registers that the operating system saves: 2 SSE, 4 AVX
    __asm__("xgetbv" : "=a"(saved) : "c"(0) : "edx");
    if ((saved & 6U) != 6U || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return has;
    has.avx2_fma = (b & 1U << 5U) != 0;
#endif
    return has;
  }();
  return found;
}

}}}  // namespace onebit::detail
