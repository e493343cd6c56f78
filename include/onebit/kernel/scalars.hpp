// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <onebit/concepts/backend.hpp>
#include <onebit/concepts/moments.hpp>
#include <onebit/core/config.hpp>
#include <onebit/core/error.hpp>
#include <string>
#include <utility>
#include <vector>

/// Scalars of the step in progress. They lie in the backend's memory, where kernels read them. One
/// of them, `skip`, calls the step off. So no step waits for the host, a captured CUDA graph
/// replays with new scalars, and everything that interrupts a step sets the same flag.
namespace onebit { inline namespace v0_3 {

/// Ways in which another rank can be out of step with this one.
enum class mismatch : std::uint32_t {
  step,       ///< the rank is at another step
  tag,        ///< the rank is in another exchange, or calls another optimizer
  arguments,  ///< the rank has another lr, loss scale or group options, or plans another step
  part,       ///< the rank holds another part of the model, and takes another kind of step
  missing,    ///< no message of the rank has arrived: its slot is empty
  sender      ///< the rank's slot has the message of another rank
};

/// Scalars of the step in progress: one object, in the backend's memory.
struct step_scalars {
  bias_decay bias{1, 1};  ///< bias of a tensor with the rule's betas that has never rested
  float lr = 0;
  float inverse_loss_scale = 1;  ///< multiplies every gradient as it is read
  float clip = 1;                ///< multiplies the mean gradient as it is read
  float mean_norm = -1;          ///< norm of the mean gradient; negative: not known
  float own_norm = -1;  ///< norm of this rank's gradient before clipping; negative: not known
  float own_over_mean =
      0;  ///< own_norm / mean_norm, averaged over steps that know both; 0: not known
  std::uint32_t number = 0;     ///< number of the step, modulo status_steps; sent in each status
  std::uint32_t digest = 0;     ///< digest of the step's arguments; sent in each status
  std::uint32_t optimizer = 0;  ///< number of the optimizer, equal on all ranks
  std::uint32_t rank = 0;       ///< number of this rank
  std::uint32_t marks = 0;      ///< 1: a status also says which rank sent it
  std::uint32_t nonfinite = 0;  ///< 1: this rank saw a non-finite value since its last status
  std::uint32_t skip = 0;       ///< 1: the step is called off, and nothing that lasts may change
  std::uint32_t mismatched_rank = 0;  ///< 1 + rank out of step, until the host reads it; 0: none
  mismatch mismatched_in = mismatch::step;  ///< kind of the mismatch
  std::uint32_t their_value = 0;            ///< step or tag that the mismatched rank sent
  std::uint32_t own_value = 0;              ///< step or tag that this rank would have sent
  std::uint32_t written = 0;    ///< 1 + tensor that the trainer wrote after a local step; 0: none
  std::uint32_t bad_rank = 0;   ///< 1 + first rank that reported a bad value in this step; 0: none
  std::uint32_t n_skipped = 0;  ///< skipped steps since the optimizer was built
  std::uint32_t n_skipped_in_row = 0;  ///< skipped steps in a row, up to the last step
  std::uint32_t differs = 0;  ///< 1: this refresh found that gradients differ between ranks
  std::uint32_t n_equal_refreshes =
      0;                        ///< refreshes in a row that found equal gradients on all ranks
  std::uint32_t refreshed = 0;  ///< 1: the last step that was kept refreshed v
};

/// Modulus of the step number in a status: 31 bits.
inline constexpr std::uint64_t status_steps = std::uint64_t{1} << 31U;

/// Bits of a slot's tag: the bucket below from_server, two flags, and the optimizer's number.
namespace message_tag {
inline constexpr std::uint32_t from_server = 1U << 16U;  ///< an average, not a rank's message
inline constexpr std::uint32_t exact = 1U << 17U;  ///< elements of 2 or 4 bytes: not compressed
inline constexpr std::uint32_t first_optimizer = 1U << 18U, n_optimizers = 1U << 14U;
}  // namespace message_tag

namespace detail {

/// Returns a b, never contracted with a following sum: bits must not depend on instruction sets.
ONEBIT_HD double product(double a, double b) { return fma(a, b, 0.0); }
/// Returns 1 / (1 - bias), which corrects a moment; 1 for a moment that has seen no gradient.
ONEBIT_HD float correction(double bias) {
  return bias < 1 ? static_cast<float>(1 / (1 - bias)) : 1.0F;
}

/// Calls a step off on behalf of the host: sets `skip`, or, with `by_message`, `nonfinite`, which
/// the status of the next message carries to the other ranks.
struct call_off_kernel {
  static constexpr bool serial = true;
  step_scalars* now;
  bool by_message = false;
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    L::store_scalar(by_message ? &now->nonfinite : &now->skip, std::uint32_t{1});
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
    if (now->skip == 0) kernel(lanes, i);
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

/// Describes a message_tag for error messages.
[[nodiscard, gnu::cold]] inline std::string to_string_of_tag(std::uint32_t tag) {
  return join({(tag & message_tag::from_server) != 0 ? "the average" : "the messages",
               (tag & message_tag::exact) != 0 ? " of whole elements" : "", " of bucket ",
               tag % message_tag::from_server, " of the object with number ",
               tag / message_tag::first_optimizer});
}

/// Explains that the trainer has written to a tensor where an exchange would lose it.
[[nodiscard, gnu::cold]] inline std::string written_text(std::uint64_t step, std::size_t tensor) {
  return error_text(
      "optimizer: before step ", step, " the trainer wrote to the parameters of tensor ", tensor,
      " after a local step, where those of the ranks differ: the next exchange ",
      "would lose it; write after a step whose report.phase is not local, on all ranks ",
      "alike, or set max_interval to 1");
}
[[noreturn, gnu::cold]] inline void throw_written(std::uint64_t step, std::size_t tensor,
                                                  const std::string& where) {
  throw invalid_input(written_text(step, tensor) + where);
}

[[noreturn, gnu::cold]] inline void throw_odd_rank(const step_scalars& s,
                                                   const std::string& where) {
  const auto rank = s.mismatched_rank - 1;
  switch (s.mismatched_in) {
    case mismatch::part:
      if (s.their_value != s.own_value) {
        throw rank_mismatch(error_text("model-parallel group: rank ", rank, " is at step ",
                                       s.their_value, " while this rank is at step ", s.own_value,
                                       "; all must step equally often", where));
      }
      throw rank_mismatch(
          error_text("model-parallel group: rank ", rank,
                     " averages, exchanges, clips or vetoes otherwise than ", "this rank in step ",
                     s.number, "; give all the same options and schedules, and each part ",
                     "of the model two ranks or more (one alone never compresses)", where));
    case mismatch::tag:
      throw rank_mismatch(error_text(
          "exchange: in step ", s.number, " rank ", rank, " sent ", to_string_of_tag(s.their_value),
          " where this rank sent ", to_string_of_tag(s.own_value),
          "; all ranks must call their optimizers in the same order, and announce the same ",
          "tensors by ready() (objects are counted from 0, as rank 0 built them)", where));
    case mismatch::arguments:
      throw rank_mismatch(error_text(
          "exchange: rank ", rank, " was told other numbers for step ", s.number,
          " than this rank (lr ", s.lr, "): its lr, loss scale or group options differ, now or ",
          "in an earlier local step, or are invalid, or its trainer wrote to parameters after a ",
          "local step; give all ranks the same", where));
    case mismatch::missing:
      throw rank_mismatch(error_text("exchange: in step ", s.number, " no message of rank ", rank,
                                     " has come: its slot is empty; the transport (or your ",
                                     "Gather) must write each rank's bytes into its slot", where));
    case mismatch::sender:
      throw rank_mismatch(error_text(
          "exchange: in step ", s.number, " the slot of rank ", rank, " has the message of rank ",
          s.their_value, "; the transport must write each rank's bytes into its slot", where));
    case mismatch::step:
      break;
  }
  throw rank_mismatch(error_text(
      "exchange: rank ", rank, " is at step ", s.their_value, " while this rank is at step ",
      s.own_value,
      "; all ranks must call step() or mean() equally often and load checkpoints of the same step",
      where));
}

}  // namespace detail

/// Returns the outcome of a step from its scalars.
[[nodiscard]] inline outcome outcome_of(const step_scalars& now) {
  return now.skip != 0 ? outcome::skipped : outcome::kept;
}
/// Returns the norm of the mean gradient, or an estimate from this rank's (report::gradient_norm);
/// negative: not known.
[[nodiscard]] inline float gradient_norm_of(const step_scalars& now) {
  if (now.skip != 0) return -1;
  if (now.mean_norm >= 0 || now.own_norm < 0) return now.mean_norm;
  return now.own_over_mean > 0 ? now.own_norm / now.own_over_mean : now.own_norm;
}

/// Fetches the step's scalars to the host; waits for all launched kernels. Clears mismatched_rank
/// and `written` in the backend's memory, so that each is reported once.
template <class B>
[[nodiscard]] step_scalars take_mismatch(B& backend, step_scalars* now) {
  step_scalars s;
  backend.copy_out(&s, now, 1);
  if (s.mismatched_rank != 0 || s.written != 0) {
    step_scalars taken = s;
    taken.mismatched_rank = taken.written = 0;
    backend.copy_in(now, &taken, 1);
  }
  return s;
}
/// Calls take_mismatch, and throws rank_mismatch if a rank was out of step, or invalid_input if
/// the trainer has written to parameters after a local step.
template <class B>
[[nodiscard]] step_scalars fetch_scalars(B& backend, step_scalars* now, int rank, int size) {
  const step_scalars s = take_mismatch(backend, now);
  const std::string where = detail::rank_suffix(rank, size);
  if (s.written != 0) detail::throw_written(s.number, s.written - 1, where);
  if (s.mismatched_rank != 0) detail::throw_odd_rank(s, where);
  return s;
}

// Constants and biases of the moments, by tensor: a tensor may have its own betas and may rest.

namespace detail {
/// Smallest normal and largest finite float.
inline constexpr double least_float = 0x1p-126, most_float = 0x1.fffffep127;
}  // namespace detail

/// Throws invalid_input unless both betas are in [0, 1) and eps is a positive normal float.
[[gnu::cold]] inline void validate(const char* options, const moments& of,
                                   const std::string& where = {}) {
  const auto in = [](double beta) { return beta >= 0 && beta < 1; };
  if (!in(of.beta1) || !in(of.beta2)) {
    throw invalid_input(detail::error_text(options, ": beta1 is ", of.beta1, ", beta2 ", of.beta2,
                                           "; both must be in [0, 1)", where));
  }
  if (!(of.eps <= detail::most_float && of.eps >= detail::least_float)) {
    throw invalid_input(detail::error_text(options, ": eps is ", of.eps, ", must be at least ",
                                           detail::least_float, " and finite as a float", where));
  }
}

/// Constants of the recurrences of m and v: computed in double, rounded once to float.
struct moments_constants {
  float beta1 = 1, one_minus_beta1 = 0, beta2 = 1, one_minus_beta2 = 0, eps = 1;

  /// Returns v after a gradient: beta2 v + (1 - beta2) g^2.
  template <class L>
  ONEBIT_HD typename L::value next_variance(const typename L::value& v,
                                            const typename L::value& g) const {
    return L::fma(L::mul(g, L::set(one_minus_beta2)), g, L::mul(v, L::set(beta2)));
  }
  /// Returns m after a gradient: beta1 m + (1 - beta1) g.
  template <class L>
  ONEBIT_HD typename L::value next_momentum(const typename L::value& m,
                                            const typename L::value& g) const {
    return L::fma(g, L::set(one_minus_beta1), L::mul(m, L::set(beta1)));
  }
  /// Returns sqrt(v correction) + eps.
  template <class L>
  ONEBIT_HD typename L::value denominator(const typename L::value& v, float correction = 1) const {
    return L::add(L::sqrt(L::mul(v, L::set(correction))), L::set(eps));
  }
};

/// Computes the constants from betas and eps.
ONEBIT_HD moments_constants make_moments(const moments& of) {
  return {static_cast<float>(of.beta1), static_cast<float>(1 - of.beta1),
          static_cast<float>(of.beta2), static_cast<float>(1 - of.beta2),
          static_cast<float>(of.eps)};
}

namespace detail {

/// Options of a tensor for one step, as the host sets them.
struct tensor_options {
  moments of{};
  std::uint32_t rests = 0;  ///< 1: the tensor has no gradient in this step
  std::uint32_t unused = 0;
};

}  // namespace detail

/// Kernel-side constants and biases of a tensor's moments.
struct tensor_scalars {
  moments_constants c{};   ///< if the tensor rests: constants that leave m and v unchanged
  float m_correction = 1;  ///< bias correction of m in this step: 1 / (1 - bias)
  float v_correction = 1;  ///< bias correction of v
  float own_beta1 = 1;     ///< beta1 of the tensor's group, also if the tensor rests
  bias_decay bias{1, 1};   ///< after the kept steps: 1 minus the sum of the weights in the moment
  double since = 1;        ///< product of beta2 over the steps since the last freeze or refresh
};

namespace detail {

/// Computes the constants of each tensor from the options that the host has set.
struct set_options_kernel {
  static constexpr bool serial = true;
  const tensor_options* options;
  tensor_scalars* scalars;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tensor_options t = options[i];
    moments_constants c = make_moments(t.of);
    L::store_scalar(&scalars[i].own_beta1, c.beta1);
    if (t.rests != 0) c = {1, 0, 1, 0, c.eps};
    L::store_scalar(&scalars[i].c, c);
  }
};

/// Resets `since` of all tensors, after a freeze or a refresh.
struct begin_since_kernel {
  static constexpr bool serial = true;
  tensor_scalars* scalars;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    L::store_scalar(&scalars[i].since, 1.0);
  }
};

/// Biases of all moments, and the rule by which a step changes them.
struct moments_in_step {
  const tensor_options* options;
  tensor_scalars* scalars;
  std::uint32_t n_tensors;
  moments of;  ///< betas of the rule
  moments_updated updated;

  [[nodiscard]] ONEBIT_HD bias_decay next(const bias_decay& bias, const moments& m,
                                          bool rests) const {
    if (!updated.corrected) return {0, 0};
    return {product(bias.m, updated.m && !rests ? m.beta1 : 1),
            product(bias.v, updated.v && !rests ? m.beta2 : 1)};
  }
  [[nodiscard]] ONEBIT_HD double next_since(std::size_t i) const {
    // as v is multiplied: by the float, 1 in a tensor that rests
    const float beta2 = updated.v ? scalars[i].c.beta2 : 1.0F;
    return product(scalars[i].since, static_cast<double>(beta2));
  }
  /// Returns the bias of tensor i after this step.
  [[nodiscard]] ONEBIT_HD bias_decay next(std::size_t i) const {
    return next(scalars[i].bias, options[i].of, options[i].rests != 0);
  }
};

/// Returns the bias of moments that have taken in a gradient in each of `steps` steps.
[[nodiscard, gnu::cold]] inline bias_decay bias_after(const moments& of, std::uint64_t steps) {
  return {std::pow(of.beta1, static_cast<double>(steps)),
          std::pow(of.beta2, static_cast<double>(steps))};
}

/// Writes the scalars of the next step: call i those of tensor i, call 0 also step_scalars.
struct begin_step_kernel {
  static constexpr bool serial = true;
  step_scalars* now;
  moments_in_step tensors;
  float lr, inverse_loss_scale;
  std::uint32_t number, digest;
  bool nonfinite;  ///< this rank cannot take the step: calls it off

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    if (i < tensors.n_tensors) {
      const bias_decay next = tensors.next(i);
      L::store_scalar(&tensors.scalars[i].m_correction, correction(next.m));
      L::store_scalar(&tensors.scalars[i].v_correction, correction(next.v));
    }
    if (i > 0) return;
    L::store_scalar(&now->lr, lr);
    L::store_scalar(&now->inverse_loss_scale, inverse_loss_scale);
    L::store_scalar(&now->clip, 1.0F);
    L::store_scalar(&now->mean_norm, -1.0F);
    L::store_scalar(&now->own_norm, -1.0F);
    L::store_scalar(&now->number, number);
    L::store_scalar(&now->digest, digest);
    L::store_scalar(&now->nonfinite, std::uint32_t{nonfinite ? 1U : 0U});
    L::store_scalar(&now->skip, std::uint32_t{nonfinite ? 1U : 0U});
    L::store_scalar(&now->differs, 0U);
    L::store_scalar(&now->bad_rank, 0U);
  }
};

/// Ends a step: counts it if it was skipped, else advances the biases of the moments. A local step
/// advances them in any case: all ranks then correct alike, also one that left its gradient out.
struct end_step_kernel {
  static constexpr bool serial = true;
  step_scalars* now;
  moments_in_step tensors;
  float largest_ratio;  ///< upper bound of own_over_mean: the root of W
  bool local, refreshes;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const bool is_done = now->skip == 0 || local;
    if (i < tensors.n_tensors && is_done) {
      L::store_scalar(&tensors.scalars[i].bias, tensors.next(i));
      L::store_scalar(&tensors.scalars[i].since, tensors.next_since(i));
    }
    if (i > 0) return;
    if (now->skip != 0) L::store_scalar(&now->n_skipped, now->n_skipped + 1);
    L::store_scalar(&now->n_skipped_in_row, now->skip != 0 ? now->n_skipped_in_row + 1 : 0U);
    if (!is_done) return;
    L::store_scalar(&now->refreshed, std::uint32_t{refreshes ? 1U : 0U});
    if (refreshes)
      L::store_scalar(&now->n_equal_refreshes, now->differs == 0 ? now->n_equal_refreshes + 1 : 0U);
    L::store_scalar(&now->bias, tensors.next(now->bias, tensors.of, false));
    if (now->mean_norm > 0 && now->own_norm >= 0)
      L::store_scalar(&now->own_over_mean, next_own_over_mean());
  }

 private:
  /// Returns the new own_over_mean, an exponential average over about ten values of own_norm /
  /// mean_norm, each between 1 (equal gradients on all ranks) and the root of W (independent
  /// noise).
  [[nodiscard]] ONEBIT_HD float next_own_over_mean() const {
    float ratio = now->own_norm / now->mean_norm;
    ratio = ratio < 1 ? 1 : ratio > largest_ratio ? largest_ratio : ratio;
    return now->own_over_mean > 0 ? fmaf(0.1F, ratio - now->own_over_mean, now->own_over_mean)
                                  : ratio;
  }
};

}  // namespace detail

}}  // namespace onebit
