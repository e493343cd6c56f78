// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/concepts.hpp>
#include <onebit/error.hpp>
#include <onebit/launches.hpp>
#include <onebit/vocabulary.hpp>
#include <onebit/wide_lanes.hpp>
#include <utility>
#include <vector>

/// The step in progress, as kernels see it: its numbers lie in the backend's memory, and whether it
/// is called off is one word there, `skip`. So no step waits for the host, a captured CUDA graph
/// replays with new numbers, and whatever interrupts a step is said in one place.
namespace onebit::inline v0_1 {

/// How a rank can be out of step.
enum class odd : std::uint32_t {
  step,   ///< it is at another one
  place,  ///< it is in another exchange, or at another optimizer
  terms,  ///< it was told another rate, scale, or other group options, or plans another step
  part    ///< it holds another part of the model, and does something else
};

struct step_scalars {
  bias_decay bias{1, 1};  ///< of a tensor that has the rule's betas and never rested
  float lr = 0;
  float inverse_loss_scale = 1;  ///< multiplies every gradient as it is read
  float clip = 1;                ///< multiplies the mean gradient as it is read
  float mean_norm = -1;          ///< of the mean gradient, where it is known; else negative
  float own_norm = -1;           ///< of this rank's gradient, likewise, before it was clipped
  float noise = 0;               ///< own_norm / mean_norm, in the steps that averaged; 0: not known
  std::uint32_t number = 0;      ///< of the step: what status words carry
  std::uint32_t terms = 0;       ///< a digest of what the step was told: they carry that too
  std::uint32_t optimizer = 0;   ///< its number, the same on all ranks
  std::uint32_t rank = 0;        ///< this one
  std::uint32_t bad = 0;         ///< this rank saw a non-finite value since it last sealed a slot
  std::uint32_t skip = 0;        ///< called off: nothing that lasts may change in this step
  std::uint32_t odd_rank = 0;    ///< 1 + a rank that is out of step; stays until the host is told
  odd odd_in = odd::step;        ///< in what
  std::uint32_t odd_word = 0;    ///< the step or the place that it told
  std::uint32_t own_word = 0;    ///< and the one that this rank would have told
  std::uint32_t n_skipped = 0;   ///< steps, since the optimizer was built
};

/// Status words count steps modulo this.
inline constexpr std::uint64_t status_steps = std::uint64_t{1} << 31U;

/// Which slot of which exchange: bits of a word. The bucket's number is below `served`.
namespace slot_place {
inline constexpr std::uint32_t served = 1U << 16U;  ///< an average, not a message
inline constexpr std::uint32_t exact = 1U << 17U;   ///< floats
inline constexpr std::uint32_t first_optimizer = 1U << 18U, n_optimizers = 1U << 14U;
}  // namespace slot_place

namespace detail {

/// a b, not to be contracted with what follows: bits must not depend on the instruction set.
ONEBIT_HD double product(double a, double b) { return fma(a, b, 0.0); }
/// What a moment with this bias is multiplied by; 1 for one that has seen nothing.
ONEBIT_HD float correction(double bias) {
  return bias < 1 ? static_cast<float>(1 / (1 - bias)) : 1.0F;
}

/// What the host does to a step that cannot go on.
struct call_off_kernel {
  static constexpr bool serial = true;
  step_scalars* now;
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    L::store_scalar(&now->skip, std::uint32_t{1});
  }
};

/// A kernel that does nothing in a step that was called off.
template <class Kernel>
struct unless_skipped {
  static constexpr bool serial = SerialKernel<Kernel>, rare = RareKernel<Kernel>;
  Kernel kernel;
  const step_scalars* now;

  [[nodiscard]] ONEBIT_HD const auto& tile_at(std::size_t i) const requires TileKernel<Kernel> {
    return kernel.tile_at(i);
  }
  template <class L>
  ONEBIT_HD void operator()(L lanes, std::size_t i) const {
    if (now->skip == 0) kernel(lanes, i);
  }
};

}  // namespace detail

/// Launches a kernel that changes what lasts: nothing happens where the step was called off before.
template <class B, class Kernel>
void launch_commit(B& backend, const step_scalars* now, std::size_t n, const Kernel& kernel) {
  backend.launch(n, detail::unless_skipped<Kernel>{kernel, now});
}

/// Copies n 4-byte words, or zeroes them: index i does 4096 of them.
struct copy_kernel {
  static constexpr bool rare = true;
  const void* from;  ///< null: zeros
  void* to;
  std::size_t n;

  static constexpr std::size_t piece = 4096;
  [[nodiscard]] std::size_t launches() const { return (n + piece - 1) / piece; }

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const std::size_t end = (i + 1) * piece < n ? (i + 1) * piece : n;
    for (std::size_t k = i * piece; k < end; k += 32) {
      const auto left = static_cast<std::uint32_t>(end - k < 32 ? end - k : 32);
      const auto v =
          from == nullptr ? L::set(0.0F) : L::load(static_cast<const float*>(from) + k, left);
      L::store(static_cast<float*>(to) + k, v, left);
    }
  }
};

/// A buffer of a backend.
template <class B, class T>
using buffer_of = decltype(std::declval<B&>().template make_buffer<T>(0));

/// Copies a vector into a backend's buffer.
template <class B, class T>
[[nodiscard]] buffer_of<B, T> to_buffer(B& backend, const std::vector<T>& from) {
  auto buffer = backend.template make_buffer<T>(from.size());
  backend.copy_in(buffer.data(), from.data(), from.size());
  return buffer;
}

/// Something that a step replaces: what holds, and what will hold if the step is kept. `keep` is
/// the only place that knows how: it swaps the two where the host can see what became of the step,
/// and copies, unless the step was called off, where it cannot. Either side may be empty: then
/// there is nothing to keep. T has whole 4-byte words.
template <class B, class T>
class two_sided {
 public:
  using buffer = buffer_of<B, T>;

  two_sided() = default;
  two_sided(buffer&& current, buffer&& next)
      : current_(std::move(current)), next_(std::move(next)) {}

  [[nodiscard]] T* current() { return current_.data(); }
  [[nodiscard]] const T* current() const { return current_.data(); }
  [[nodiscard]] T* next() { return next_.data(); }
  /// Elements of either side.
  [[nodiscard]] std::size_t size() const { return current_.size(); }
  [[nodiscard]] std::size_t next_size() const { return next_.size(); }
  [[nodiscard]] std::size_t bytes() const { return current_.bytes(); }
  [[nodiscard]] std::size_t next_bytes() const { return next_.bytes(); }

  void set_current(buffer&& values) noexcept { current_ = std::move(values); }
  void set_next(buffer&& values) noexcept { next_ = std::move(values); }

  /// Ends the step for this buffer.
  void keep(B& backend, const step_scalars* now) {
    const auto rest = keeping(now);
    if constexpr (B::deferred) backend.launch(rest.n, rest.kernel);
  }
  /// The same, but for calls that are left to launch.
  [[nodiscard]] calls<detail::unless_skipped<copy_kernel>> keeping(const step_scalars* now) {
    const bool both = current_.size() > 0 && next_.size() > 0;
    const copy_kernel copy{next_.data(), current_.data(), current_.bytes() / 4};
    const step_scalars* const seen = host_view<B>(now);
    if (seen == nullptr) return {{copy, now}, both ? copy.launches() : 0};
    if (both && seen->skip == 0) std::swap(current_, next_);
    return {{copy, now}, 0};
  }

  template <class Archive>
  void archive(Archive& a, B& backend) {
    a.buffer(current_, backend);
  }
  /// The same, of so many elements.
  template <class Archive>
  void archive(Archive& a, B& backend, std::size_t n) {
    a.buffer(current_, backend, n);
  }

 private:
  buffer current_, next_;
};

/// What became of a step.
enum class outcome : std::uint8_t {
  agreed,
  skipped,
  pending  ///< on a backend that runs behind the host: not known yet
};

namespace detail {

/// A place (slot.hpp) in words.
[[nodiscard, gnu::cold]] inline std::string to_string_of_place(std::uint32_t place) {
  return join(6,
              {(place & slot_place::served) != 0 ? "the average" : "the messages",
               (place & slot_place::exact) != 0 ? " of whole elements" : "", " of bucket ",
               place % slot_place::served, " of optimizer ", place / slot_place::first_optimizer});
}

[[noreturn, gnu::cold]] inline void throw_odd_rank(const step_scalars& s,
                                                   const std::string& where) {
  const auto rank = s.odd_rank - 1;
  switch (s.odd_in) {
    case odd::part:
      throw rank_mismatch(message(
          "model-parallel group: rank ", rank, " does something else than this one in step ",
          s.number, "; all must average, exchange and clip in the same steps (options that ",
          "differ, or a part with one rank, which never compresses)", where));
    case odd::place:
      throw rank_mismatch(message(
          "exchange: in step ", s.number, " rank ", rank, " sent ", to_string_of_place(s.odd_word),
          " where this rank sent ", to_string_of_place(s.own_word),
          "; all ranks must call their optimizers in the same order, and announce the same ",
          "tensors by ready()", where));
    case odd::terms:
      throw rank_mismatch(
          message("exchange: rank ", rank, " was told other numbers for step ", s.number,
                  " than this rank (lr ", s.lr, "): another lr, loss scale or option of a group, ",
                  "here or in a local step before, or one that was refused", where));
    case odd::step:
      break;
  }
  throw rank_mismatch(message(
      "exchange: rank ", rank, " is at step ", s.odd_word, " while this rank is at step ",
      s.own_word,
      "; all ranks must call step() equally often and load checkpoints of the same step", where));
}

}  // namespace detail

/// What became of the step that has these numbers.
[[nodiscard]] inline outcome outcome_of(const step_scalars& now) {
  return now.skip != 0 ? outcome::skipped : outcome::agreed;
}
/// Of the mean gradient, as far as it is known: see report::gradient_norm.
[[nodiscard]] inline float gradient_norm_of(const step_scalars& now) {
  if (now.skip != 0) return -1;
  if (now.mean_norm >= 0 || now.own_norm < 0) return now.mean_norm;
  return now.noise > 0 ? now.own_norm / now.noise : now.own_norm;
}

/// The step's numbers, read by the host: waits for all that was launched. That a rank was odd is
/// told once.
template <class B>
[[nodiscard]] step_scalars take_odd(B& backend, step_scalars* now) {
  step_scalars s;
  backend.copy_out(&s, now, 1);
  if (s.odd_rank != 0) {
    step_scalars told = s;
    told.odd_rank = 0;
    backend.copy_in(now, &told, 1);
  }
  return s;
}
/// The same; throws rank_mismatch when a rank was out of step.
template <class B>
[[nodiscard]] step_scalars settle(B& backend, step_scalars* now, int rank, int size) {
  const step_scalars s = take_odd(backend, now);
  if (s.odd_rank != 0) detail::throw_odd_rank(s, detail::rank_suffix(rank, size));
  return s;
}

}  // namespace onebit::inline v0_1
