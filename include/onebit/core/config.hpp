// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// The includes after these errors name no file: the compiler stops there.
#if __cplusplus < 202002L
#error "onebit needs -std=c++20: compile this file with it, or include only onebit/c/onebit.h here"
#include <onebit needs -std=c++20>
#elif !defined(__cpp_exceptions)
#error "onebit needs exceptions: compile this file with them, or include only onebit/c/onebit.h"
#include <onebit needs exceptions>
#endif

// Macros of other headers that break more names than can be others.
#if defined(B) || defined(C) || defined(E) || defined(F) || defined(G) || defined(L) || \
    defined(M) || defined(N) || defined(O) || defined(P) || defined(R) || defined(S) || \
    defined(T) || defined(X)
#error \
    "onebit: a macro is one of the letters B C E F G L M N O P R S T X: include onebit before it, or #undef it"
#include <onebit needs these letters>
#elif defined(slots)
#error "onebit: slots is a macro (Qt's): compile with QT_NO_KEYWORDS, or include onebit before Qt"
#include <onebit needs the name slots>
#endif

#include <cfenv>
#include <cfloat>
#include <type_traits>

/// The compiler, and what arithmetic needs of it.

/// major * 10000 + minor * 100 + patch
#define ONEBIT_VERSION 300

// [[gnu::cold]] marks host code that runs a few times in a step. The compiler then looks at its
// size alone, which nearly halves what a user waits for a file with an optimizer. It is never on a
// kernel.

/// Marks arithmetic on elements. On the host such a function is inlined into a caller compiled for
/// one instruction set (by a target attribute). Under nvcc it is also compiled for the device.
#if defined(__CUDACC__)
#define ONEBIT_HD __host__ __device__ __forceinline__
#else
#define ONEBIT_HD __attribute__((always_inline)) inline
#endif

// Of parts of -ffast-math g++ tells by macros; with clang++, backend/strict_math.hpp finds them.
#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__) || \
    defined(__ASSOCIATIVE_MATH__) || defined(__RECIPROCAL_MATH__) || defined(__NO_SIGNED_ZEROS__)
#error \
    "onebit detects non-finite gradients and promises equal bits: compile without -ffast-math, \
-fassociative-math, -freciprocal-math, -fno-signed-zeros and -ffinite-math-only"
#endif
// 16 says that _Float16 alone is evaluated in its own range.
#if FLT_EVAL_METHOD != 0 && FLT_EVAL_METHOD != 16
#error \
    "onebit promises equal bits, but floats are evaluated in wider registers here: compile with \
-msse2 -mfpmath=sse on x86, with -fexcess-precision=fast elsewhere"
#endif

namespace onebit { inline namespace v0_3 { namespace detail {

/// Returns bytes that are aligned for T as T. Casts from void, of which no compiler warns.
template <class T>
[[nodiscard]] ONEBIT_HD T* aligned_as(std::conditional_t<std::is_const_v<T>, const void, void>* p) {
  return static_cast<T*>(p);
}

/// Scope guard for standard arithmetic: rounds to nearest, keeps subnormals, does not trap. A
/// library built with fast-math changes these modes in every thread that loads the library, and
/// results must not depend on that. The destructor restores the caller's modes.
class standard_arithmetic {
 public:
  standard_arithmetic() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  standard_arithmetic(const standard_arithmetic&) = delete;
  standard_arithmetic& operator=(const standard_arithmetic&) = delete;
  ~standard_arithmetic() { std::fesetenv(&before_); }

 private:
  std::fenv_t before_{};
};

}}}  // namespace onebit::detail
