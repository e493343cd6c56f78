// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <onebit/concepts.hpp>
#include <onebit/error.hpp>

/// The step in progress, as kernels see it: its numbers lie in the backend's memory, and whether it
/// is called off is decided there. So no step waits for the host, and a captured CUDA graph replays
/// with new numbers.
namespace onebit {

struct step_scalars {
  float lr = 0;
  float inverse_loss_scale = 1;  ///< multiplies every gradient as it is read
  float m_correction = 1;        ///< of the moments' bias, for the dense step
  float v_correction = 1;
  std::uint32_t number = 0;    ///< of the step: what status words carry
  std::uint32_t bad = 0;       ///< this rank saw a non-finite value since it last sealed a slot
  std::uint32_t skip = 0;      ///< a rank did: nothing that lasts may change in this step
  std::uint32_t odd_rank = 0;  ///< 1 + a rank that is at another step; stays until the host is told
  std::uint32_t odd_step = 0;  ///< and which
  std::uint32_t n_skipped = 0;  ///< steps, since the optimizer was built
};

/// Status words count steps modulo this.
inline constexpr std::uint64_t status_steps = std::uint64_t{1} << 31U;

namespace detail {

/// Sets the numbers of the next step.
struct begin_step_kernel {
  step_scalars* now;
  float lr, inverse_loss_scale, m_correction, v_correction;
  std::uint32_t number;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    L::store_scalar(&now->lr, lr);
    L::store_scalar(&now->inverse_loss_scale, inverse_loss_scale);
    L::store_scalar(&now->m_correction, m_correction);
    L::store_scalar(&now->v_correction, v_correction);
    L::store_scalar(&now->number, number);
    L::store_scalar(&now->bad, std::uint32_t{0});
    L::store_scalar(&now->skip, std::uint32_t{0});
  }
};

/// Counts the step if it was called off.
struct end_step_kernel {
  step_scalars* now;
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    if (now->skip != 0) L::store_scalar(&now->n_skipped, now->n_skipped + 1);
  }
};

/// A kernel that does nothing in a step that was called off, or only then.
template <class Kernel, bool Skipped>
struct if_skipped {
  Kernel kernel;
  const step_scalars* now;

  template <class L>
  ONEBIT_HD void operator()(L lanes, std::size_t i) const {
    if ((now->skip != 0) == Skipped) kernel(lanes, i);
  }
};

}  // namespace detail

/// Copies n 4-byte words, or zeroes them: index i does 4096 of them.
struct copy_kernel {
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

/// Launches a kernel that changes what lasts: nothing happens when the step was called off. Where
/// the host knows the outcome, it does not come here in such a step.
template <class B, class Kernel>
void launch_commit(B& backend, const step_scalars* now, std::size_t n, const Kernel& kernel) {
  if constexpr (B::deferred) {
    backend.launch(n, detail::if_skipped<Kernel, false>{kernel, now});
  } else {
    backend.launch(n, kernel);
  }
}

/// Launches a kernel that takes a called-off step back.
template <class B, class Kernel>
void launch_rollback(B& backend, const step_scalars* now, std::size_t n, const Kernel& kernel) {
  if constexpr (B::deferred) {
    backend.launch(n, detail::if_skipped<Kernel, true>{kernel, now});
  } else {
    backend.launch(n, kernel);
  }
}

/// Copies as many bytes as the smaller of two buffers has, whole 4-byte words, unless the step was
/// called off.
template <class B, class Buffer>
void commit_copy(B& backend, const step_scalars* now, const Buffer& from, Buffer& to) {
  const copy_kernel copy{from.data(), to.data(), std::min(from.bytes(), to.bytes()) / 4};
  launch_commit(backend, now, copy.launches(), copy);
}

/// What became of the step, read by the host: waits for all that was launched. Throws rank_mismatch
/// when a rank was at another step, once.
template <class B>
[[nodiscard]] outcome settle(B& backend, step_scalars* now, int rank, int size) {
  step_scalars s;
  backend.copy_out(&s, now, 1);
  if (s.odd_rank != 0) {
    step_scalars told = s;
    told.odd_rank = 0;
    backend.copy_in(now, &told, 1);
    throw rank_mismatch(detail::message(
        "exchange: rank ", s.odd_rank - 1, " is at step ", s.odd_step, " while this rank is at ",
        "step ", s.number,
        "; all ranks must call step() equally often and load checkpoints of the same step",
        detail::rank_suffix(rank, size)));
  }
  return s.skip != 0 ? outcome::skipped : outcome::agreed;
}

/// The same where that costs nothing; `pending` on a backend whose kernels may not have run yet:
/// there the step goes on, and its commits do nothing if it was called off.
template <class B>
[[nodiscard]] outcome outcome_so_far(B& backend, step_scalars* now, int rank, int size) {
  if constexpr (B::deferred) {
    return outcome::pending;
  } else {
    return settle(backend, now, rank, size);
  }
}

}  // namespace onebit
