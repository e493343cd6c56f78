// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/concepts/backend.hpp>
#include <onebit/concepts/moments.hpp>
#include <onebit/core/config.hpp>
#include <onebit/core/element_types.hpp>
#include <utility>
#include <vector>

/// Scalars of the step in progress. They lie in the backend's memory, where kernels read them. One
/// of them, `verdict.skip`, calls the step off. So no step waits for the host, a captured CUDA
/// graph replays with new scalars, and everything that interrupts a step sets the same flag.
namespace onebit { inline namespace v0_3 {

namespace detail {

/// Ways in which another rank can be out of step with this one.
enum class mismatch : std::uint32_t {
  step,       ///< the rank is at another step
  tag,        ///< the rank is in another exchange, or calls another optimizer
  arguments,  ///< the rank has another lr, loss scale or group options, or plans another step
  part,       ///< the rank holds another part of the model, and takes another kind of step
  missing,    ///< no message of the rank has arrived: its slot is empty
  sender      ///< the rank's slot has the message of another rank
};

/// What a step and its optimizer are told.
struct given_numbers {
  float lr = 0;
  float inverse_loss_scale = 1;  ///< multiplies every gradient as it is read
  std::uint32_t number = 0;      ///< of the step, modulo status_steps; sent in each status
  std::uint32_t digest = 0;      ///< of the step's arguments; sent in each status
  std::uint32_t optimizer = 0;   ///< number of the optimizer, equal on all ranks
  std::uint32_t rank = 0;        ///< number of this rank
  std::uint32_t marks = 0;       ///< 1: a status also says which rank sent it
};

/// Norms of gradients; negative: not known.
struct gradient_norms {
  float mean = -1;          ///< of the mean gradient
  float own = -1;           ///< of this rank's gradient before clipping
  float own_over_mean = 0;  ///< own / mean, averaged over steps that know both; 0: not known
  float clip = 1;           ///< multiplies the mean gradient as it is read
};

/// Whether the step counts; if it does not, why.
struct step_verdict {
  std::uint32_t skip = 0;             ///< 1: called off, nothing that lasts may change
  std::uint32_t nonfinite = 0;        ///< 1: a bad value here since this rank's last status
  std::uint32_t bad_rank = 0;         ///< 1 + first rank that reported a bad value; 0: none
  std::uint32_t mismatched_rank = 0;  ///< 1 + rank out of step, until the host reads it; 0: none
  mismatch mismatched_in = mismatch::step;
  std::uint32_t their_value = 0;  ///< step or tag that the mismatched rank sent
  std::uint32_t own_value = 0;    ///< step or tag that this rank would have sent
  std::uint32_t written = 0;      ///< 1 + tensor that the trainer wrote after a local step; 0: none
  std::uint32_t differs = 0;      ///< 1: this refresh found that gradients differ between ranks
};

/// What is counted from step to step.
struct step_counts {
  std::uint32_t n_skipped = 0;          ///< skipped steps since the optimizer was built
  std::uint32_t n_skipped_in_row = 0;   ///< up to the last step
  std::uint32_t n_equal_refreshes = 0;  ///< in a row, with equal gradients on all ranks
  std::uint32_t refreshed = 0;          ///< 1: the last step that was kept refreshed v
};

}  // namespace detail

/// Scalars of the step in progress: one object, in the backend's memory.
struct step_scalars {
  detail::bias_decay bias{1, 1};  ///< of a tensor with the rule's betas that has never rested
  detail::given_numbers given{};
  detail::gradient_norms norms{};
  detail::step_verdict verdict{};
  detail::step_counts counts{};
};

namespace detail {

/// Modulus of the step number in a status: 31 bits.
inline constexpr std::uint64_t status_steps = std::uint64_t{1} << 31U;

}  // namespace detail

/// Bits of a slot's tag: the bucket below from_server, two flags, and the optimizer's number.
namespace message_tag {
inline constexpr std::uint32_t from_server = 1U << 16U;  ///< an average, not a rank's message
inline constexpr std::uint32_t exact = 1U << 17U;  ///< elements of 2 or 4 bytes: not compressed
inline constexpr std::uint32_t first_optimizer = 1U << 18U, n_optimizers = 1U << 14U;
}  // namespace message_tag

namespace detail {

/// Returns the part of a hash key that all elements share in this step: of the step's number, of
/// what is rounded (`use`, an odd constant), and of a rank (1 + its number), or 0 where all ranks
/// shall round alike.
ONEBIT_HD std::uint32_t rounding_key_of(const step_scalars* now, std::uint32_t use,
                                        std::uint32_t rank) {
  const std::uint32_t of_step = mixed(now->given.number ^ use);
  return mixed((of_step ^ of_step >> 16U) + rank * 0x9E3779B9U);
}

/// Calls a step off on behalf of the host: sets `skip`, or, with `by_message`, `nonfinite`, which
/// the status of the next message carries to the other ranks.
struct call_off_kernel {
  static constexpr bool serial = true;
  step_scalars* now;
  bool by_message = false;
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    L::store_scalar(by_message ? &now->verdict.nonfinite : &now->verdict.skip, std::uint32_t{1});
  }
};

/// Wrapper that runs `kernel` unless the step was called off.
template <class Kernel>
struct unless_skipped {
  static constexpr bool serial = SerialKernel<Kernel>, one_isa = OneIsaKernel<Kernel>;
  Kernel kernel;
  const step_scalars* now;

  [[nodiscard]] ONEBIT_HD const auto& tile_at(std::size_t i) const requires TileKernel<Kernel> {
    return kernel.tile_at(i);
  }
  template <class L>
  ONEBIT_HD void operator()(L lanes, std::size_t i) const {
    if (now->verdict.skip == 0) kernel(lanes, i);
  }
};

}  // namespace detail

/// Launches a kernel that changes lasting state. Its calls do nothing once the step is called off.
template <class B, class Kernel>
void launch_unless_skipped(B& backend, const step_scalars* now, std::size_t n,
                           const Kernel& kernel) {
  backend.launch(n, detail::unless_skipped<Kernel>{kernel, now});
}

namespace detail {

/// Copies n 4-byte words, or zeroes them. Each call handles at most 1024 words: with larger pieces
/// few warps would do a small copy, and each would wait for memory many times.
struct copy_kernel {
  static constexpr bool one_isa = true;
  const void* from;  ///< null: zeros
  void* to;
  std::size_t n;

  static constexpr std::size_t piece = 1024;
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

}  // namespace detail

/// Buffer of elements T in the memory of a backend B.
template <class B, class T>
using buffer_of = decltype(std::declval<B&>().template make_buffer<T>(0));

/// Returns a copy of a vector in a new buffer of the backend.
template <class B, class T>
[[nodiscard]] buffer_of<B, T> to_buffer(B& backend, const std::vector<T>& from) {
  auto buffer = backend.template make_buffer<T>(from.size());
  backend.copy_in(buffer.data(), from.data(), from.size());
  return buffer;
}

/// Outcome of a step.
enum class outcome : std::uint8_t {
  kept,
  skipped,
  pending  ///< not known yet, on a deferred backend
};

namespace detail {

/// Returns the outcome of a step from its scalars.
[[nodiscard]] inline outcome outcome_of(const step_scalars& now) {
  return now.verdict.skip != 0 ? outcome::skipped : outcome::kept;
}

/// Returns the norm of the mean gradient, or an estimate from this rank's
/// (report::gradient_norm); negative: not known.
[[nodiscard]] inline float gradient_norm_of(const step_scalars& now) {
  if (now.verdict.skip != 0) return -1;
  if (now.norms.mean >= 0 || now.norms.own < 0) return now.norms.mean;
  return now.norms.own_over_mean > 0 ? now.norms.own / now.norms.own_over_mean : now.norms.own;
}

}  // namespace detail

}}  // namespace onebit
