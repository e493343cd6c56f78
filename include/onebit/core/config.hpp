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
#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>

/// The vocabulary of the library.
///
/// axis     flat axis: all tensors one after the other, each from a multiple of 32 on
/// word     32 elements of the axis; their signs are one uint32_t, bit i for element i
/// tile     unit of work and of partial sums: up to 4096 elements of one tensor in one chunk, at
///          least 1024 unless the tensor, chunk or scale block ends; see words_of_tiles
/// chunk    contiguous words that one rank serves (averages) in gather-scatter
/// bucket   chunks that travel together; in a hierarchy, the share of one rank of each node
/// segment  tiles of a chunk that share a scale; group: tiles with one scale in a rank's message
/// slot     bytes that one rank sends to another in one collective
/// field    function object: `at<L>(tile, index)` returns a reader, word of the tile -> 32 values
/// message  a field that starts from a base value: its reader takes (word, base)
/// refresh  a step that updates v from averaged squares, in the compressed phase
/// now      step_scalars of the step in progress; `now->skip` calls it off: nothing lasting changes
/// compensated  values that a worker encoded, residual included; give the next residual
/// active       elements that have variance; the others send and receive 0, and a worker carries
///              their values until they are active
/// previous     mean message of the last exchange that was kept
/// latest       mean message of the exchange in this step
/// Worker, server, residual, scale, momentum, variance and freeze: as in the papers.

/// major * 10000 + minor * 100 + patch
#define ONEBIT_VERSION 300

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

namespace onebit { inline namespace v0_3 {

inline constexpr std::size_t word_elements = 32;    ///< elements in a word
inline constexpr std::size_t tile_elements = 4096;  ///< largest number of elements in a tile
/// Number of tiles that a kernel call may hold as floats in memory shared by its lanes (48 KiB).
inline constexpr std::uint32_t tile_rooms = 3;
inline constexpr std::size_t tile_words = tile_elements / word_elements;  ///< in words

struct bf16;          // element_types.hpp
struct tile;          // layout.hpp
class layout;         // layout.hpp
struct granularity;   // layout.hpp
struct active_mask;   // step_context.hpp
struct step_scalars;  // step_state.hpp
class communicator;   // transport/communicator.hpp
template <class B, class P, class G>
struct step_context;  // step_context.hpp
template <class Buffer>
struct initial_momentum;  // step_context.hpp
struct undo_in_buffer;    // step_context.hpp
template <class Undo>
struct exchange_args;  // step_context.hpp

/// Memory that an exchange needs, beside its messages.
struct exchange_memory {
  bool previous = false;     ///< the mean message of the last exchange, which messages read
  bool accumulates = false;  ///< sums of the messages of local steps
  bool compensated = true;   ///< zeroed compensated values; false: a momentum becomes them
};

/// Upper bound of the scales in a message, or in a mean of messages; a sum of k messages has k
/// times the bound. The residual keeps what a bounded scale does not send.
struct scale_bound {
  float most = 0;                  ///< 0: no bound
  const float* factors = nullptr;  ///< by tensor: multiply `most`; null: all 1
};

/// Returns p, a pointer into the memory of a backend B, if the host may use it at once. Returns
/// null if B is deferred, since launched kernels may still be running.
template <class B, class T>
[[nodiscard]] constexpr T* host_view(T* p) {
  return B::deferred ? nullptr : p;
}

/// Options that must be equal in a checkpoint and in the optimizer that loads it. Algorithm,
/// tensors and messages must be equal in any case.
enum class resume_with : std::uint8_t {
  same_options,  ///< all options
  other_options  ///< none: the rule and the groups may have others; the schedule goes on as saved
};

/// Betas and eps of Adam, for one group or for all.
struct moments {
  /// @{
  /// As in adam_options.
  double beta1 = 0, beta2 = 0, eps = 1;
  /// @}
};
/// Betas and eps that a group sets for itself.
struct group_moments {
  /// @{
  /// Empty: the value of the rule.
  std::optional<double> beta1{}, beta2{}, eps{};
  /// @}
  /// True if the group sets at least one value.
  [[nodiscard]] bool any() const { return beta1 || beta2 || eps; }
  friend bool operator==(const group_moments&, const group_moments&) = default;
};

/// Bias of the moments: an average that starts from 0 is too small by the factor 1 - bias.
struct bias_decay {
  /// @{
  /// Product of beta1 (for v: beta2) over the gradients that the moment has taken in.
  double m = 0, v = 0;
  /// @}
};
/// Effect of a step on the moments.
struct moments_updated {
  /// @{
  /// True if the step corrects the bias of m and v; if m takes in a gradient; if v does.
  bool corrected = false, m = false, v = false;
  /// @}
};

namespace detail {

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

/// Stand-in for the lanes that a backend passes to a kernel. Used in concepts only.
struct any_lanes {
  struct value {};
  struct bits {};
  static value set(float);
  static value load(const float*);
  static void store(float*, const value&);
  static value add(const value&, const value&);
  static value mul(const value&, const value&);
  static value fma(const value&, const value&, const value&);
  static value select(const bits&, const value&, const value&);
  static bits not_negative(const value&);
  static bits load_bits(const std::uint32_t*);
  static void store_bits(std::uint32_t*, const bits&);
};

struct any_kernel {
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {}
};

/// Stand-in for a field or a message. Used in concepts only.
struct any_field {
  template <class L>
  struct reader {
    typename L::value operator()(std::uint32_t) const;
    typename L::value operator()(std::uint32_t, const typename L::value&) const;
  };
  template <class L>
  reader<L> at(const tile&, std::size_t) const;
};

/// Accepts any arguments.
struct any_visitor {
  template <class... T>
  void operator()(T&&...) const {}
};

/// Stand-in for a backend. Used in concepts only.
struct any_backend {
  static constexpr bool deferred = false;
  template <class T>
  struct buffer {
    T* data() const;
    std::size_t size() const;
    std::size_t bytes() const;
  };
  template <class T>
  buffer<T> make_buffer(std::size_t) const;
  template <class Kernel>
  void launch(std::size_t, const Kernel&) const;
  template <class T>
  void copy_in(T*, const T*, std::size_t) const;
  template <class T>
  void copy_out(T*, const T*, std::size_t) const;
};

/// Step context that concepts pass to a rule of type R.
template <class R>
using any_step_context = step_context<typename R::backend_type, float, float>;

struct any_archive {
  static constexpr bool reading = true;
  template <class T>
  void scalar(T&) {}
  template <class T>
  void local(T&) {}
  template <class T>
  void vector(T&, std::size_t) {}
  template <class Buffer, class B>
  void buffer(Buffer&, B&) {}
  template <class Buffer, class B>
  void buffer(Buffer&, B&, std::size_t) {}
  template <class T>
  void back_up(T&) {}
};

}  // namespace detail

}}  // namespace onebit
