// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// These includes name no file: they stop the compiler at the first error.
#if __cplusplus < 202002L
#error "onebit needs -std=c++20, in one file if the others call it through onebit/c/onebit.h"
#include <onebit needs -std=c++20>
#elif !defined(__cpp_exceptions)
#error "onebit needs exceptions, in one file if the others call it through onebit/c/onebit.h"
#include <onebit needs exceptions>
#endif

#include <cfenv>
#include <cstddef>
#include <cstdint>
#include <optional>

/// The vocabulary of the library.
///
/// word     32 elements of the flat axis; one uint32_t of signs, bit i is element i
/// tile     1024 to 4096 elements of one tensor in one chunk, or what is left of it: the unit of
///          work and of partial sums; see words_of_tiles
/// chunk    the contiguous words that one rank serves (averages) in gather-scatter
/// bucket   chunks that travel together; in a hierarchy the share of one rank of each node
/// segment  tiles of a chunk that share a scale; group: tiles that do in the message of one rank
/// slot     the bytes that one rank sends to another in one collective
/// field    index -> value: `at<L>(tile, index)` gives a reader, word within the tile -> 32 values
/// message  a field that starts from a base: its reader takes (word, base)
///
/// compensated  what a worker has encoded, residual included; its next residual is rebuilt from it
/// active       elements that have variance: the others send and receive 0, without a residual
/// previous     the mean message of the last exchange that was kept
/// latest       that of the exchange of this step
///
/// Worker, server, residual, scale, momentum, variance and freeze are the papers' words.

/// major * 10000 + minor * 100 + patch
#define ONEBIT_VERSION 200

/// Marks per-element arithmetic: compiled for the host (inlined into a runner that carries the
/// target attribute of one instruction set) and, under nvcc, for the device.
#if defined(__CUDACC__)
#define ONEBIT_HD __host__ __device__ __forceinline__
#else
#define ONEBIT_HD __attribute__((always_inline)) inline
#endif

#if defined(__FAST_MATH__) || (defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__)
#error "onebit detects non-finite gradients and promises equal bits: compile without -ffast-math"
#endif

namespace onebit::inline v0_2 {

inline constexpr std::size_t word_elements = 32;    ///< elements whose bits are sent together
inline constexpr std::size_t tile_elements = 4096;  ///< most elements of a unit of work and of sums
/// Tiles of floats that a kernel call may hold in memory that its lanes share: 48 KiB of a device.
inline constexpr std::uint32_t tile_rooms = 3;
inline constexpr std::size_t tile_words = tile_elements / word_elements;  ///< the same in words

struct bf16;          // element_types.hpp
struct tile;          // layout.hpp
class layout;         // layout.hpp
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

/// What one step does. Every rank makes the same plan from the same numbers.
struct step_plan {
  bool average_gradient = true;  ///< exact mean of the gradients
  bool exchange = false;         ///< compressed exchange of the rule's message
  /// Mean of the squares that ranks keep of their own gradients, from which v is refreshed. Where v
  /// follows, an average in the compressed phase is that.
  bool average_squares = false;
  bool frozen = false;        ///< the warm-up is over: what the rule freezes is frozen before it
  bool ends_warm_up = false;  ///< the next plan hangs on whether this step is skipped
  bool last_average = false;  ///< of many steps: its memory is given back

  /// A step in which nothing travels, for rules that have one.
  [[nodiscard]] bool local() const { return !average_gradient && !exchange && !average_squares; }
};

/// What an exchange needs memory for, beside its messages.
struct exchange_memory {
  bool previous = false;     ///< what was agreed in the last exchange, which messages read
  bool accumulates = false;  ///< messages of local steps, which it adds up
  /// Compensated values, which start as zeros: no momentum is handed over to become them.
  bool compensated = true;
};

/// The largest scale with which a message is sent. What it cuts stays in the residual.
struct scale_bound {
  float most = 0;                  ///< 0: any scale
  const float* factors = nullptr;  ///< by tensor: of `most`; null: 1
};

/// p, which lies in the memory of a backend B, where the host may look there at once; null where
/// what was launched runs behind the host.
template <class B, class T>
[[nodiscard]] constexpr T* host_view(T* p) {
  return B::deferred ? nullptr : p;
}

/// What a checkpoint must have in common with the optimizer that loads it, beside algorithm,
/// tensors and messages.
enum class resume_with : std::uint8_t {
  same_options,
  other_options  ///< of its rule and groups; a schedule goes on as it was
};

/// Adam's numbers, of a group or of all.
struct moments {
  /// @{
  /// As adam_options has them.
  double beta1 = 0, beta2 = 0, eps = 1;
  /// @}
};
/// Those that a group has of its own.
struct group_moments {
  /// @{
  /// Empty: the rule's.
  std::optional<double> beta1{}, beta2{}, eps{};
  /// @}
  /// Whether one of them is its own.
  [[nodiscard]] bool any() const { return beta1 || beta2 || eps; }
  friend bool operator==(const group_moments&, const group_moments&) = default;
};

/// Moments are averages that start from 0, and so a factor 1 - this too small.
struct bias_decay {
  /// @{
  /// Beta to the power of the gradients taken in.
  double m = 0, v = 0;
  /// @}
};
/// Whether a step corrects the bias of m and v; and which of them take a gradient in.
struct moments_updated {
  /// @{
  /// In this order.
  bool corrected = false, m = false, v = false;
  /// @}
};

namespace detail {

/// Arithmetic as the standard has it while it lives: rounded to nearest, subnormals as they are, no
/// traps. A library built with fast-math changes that for every thread that loads it, and bits must
/// not depend on it.
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

/// Lanes that only exist in concepts: stands for whatever a backend hands to a kernel.
struct any_lanes {
  struct value {};
  struct bits {};
  static value set(float);
  static value min(const value&, const value&);
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

/// Fields, messages and archives that only exist in concepts.
struct any_field {
  template <class L>
  struct reader {
    typename L::value operator()(std::uint32_t) const;
    typename L::value operator()(std::uint32_t, const typename L::value&) const;
  };
  template <class L>
  reader<L> at(const tile&, std::size_t) const;
};

/// Takes whatever it is given.
struct any_visitor {
  template <class... T>
  void operator()(T&&...) const {}
};

/// A backend that only exists in concepts.
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

/// The axis as a rule of type R sees it.
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

}  // namespace onebit::inline v0_2
