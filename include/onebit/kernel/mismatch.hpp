// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/core/error.hpp>
#include <onebit/kernel/scalars.hpp>
#include <string>

/// The host's reading of a step's scalars: which rank is out of step, and what to do about it.
namespace onebit { inline namespace v0_3 { namespace detail {

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
  const auto rank = s.verdict.mismatched_rank - 1;
  switch (s.verdict.mismatched_in) {
    case mismatch::part:
      if (s.verdict.their_value != s.verdict.own_value) {
        throw rank_mismatch(error_text("model-parallel group: rank ", rank, " is at step ",
                                       s.verdict.their_value, " while this rank is at step ",
                                       s.verdict.own_value, "; all must step equally often",
                                       where));
      }
      throw rank_mismatch(
          error_text("model-parallel group: rank ", rank,
                     " averages, exchanges, clips or vetoes otherwise than ", "this rank in step ",
                     s.given.number, "; give all the same options and schedules, and each part ",
                     "of the model two ranks or more (one alone never compresses)", where));
    case mismatch::tag:
      throw rank_mismatch(error_text(
          "exchange: in step ", s.given.number, " rank ", rank, " sent ",
          to_string_of_tag(s.verdict.their_value), " where this rank sent ",
          to_string_of_tag(s.verdict.own_value),
          "; all ranks must call their optimizers in the same order, and announce the same ",
          "tensors by ready() (objects are counted from 0, as rank 0 built them)", where));
    case mismatch::arguments:
      throw rank_mismatch(error_text(
          "exchange: rank ", rank, " was told other numbers for step ", s.given.number,
          " than this rank (lr ", s.given.lr,
          "): its lr, loss scale or group options differ, now or ",
          "in an earlier local step, or are invalid, or its trainer wrote to parameters after a ",
          "local step; give all ranks the same", where));
    case mismatch::missing:
      throw rank_mismatch(error_text("exchange: in step ", s.given.number, " no message of rank ",
                                     rank, " has come: its slot is empty; the transport (or your ",
                                     "Gather) must write each rank's bytes into its slot (MPI may ",
                                     "lose those of ranks in containers of their own)", where));
    case mismatch::sender:
      throw rank_mismatch(error_text("exchange: in step ", s.given.number, " the slot of rank ",
                                     rank, " has the message of rank ", s.verdict.their_value,
                                     "; the transport must write each rank's bytes into its slot",
                                     where));
    case mismatch::step:
      break;
  }
  throw rank_mismatch(error_text(
      "exchange: rank ", rank, " is at step ", s.verdict.their_value,
      " while this rank is at step ", s.verdict.own_value,
      "; all ranks must call step() or mean() equally often and load checkpoints of the same step",
      where));
}

/// Fetches the step's scalars to the host; waits for all launched kernels. Clears mismatched_rank
/// and `written` in the backend's memory, so that each is reported once.
template <class B>
[[nodiscard]] step_scalars take_mismatch(B& backend, step_scalars* now) {
  step_scalars s;
  backend.copy_out(&s, now, 1);
  if (s.verdict.mismatched_rank != 0 || s.verdict.written != 0) {
    step_scalars taken = s;
    taken.verdict.mismatched_rank = taken.verdict.written = 0;
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
  if (s.verdict.written != 0) detail::throw_written(s.given.number, s.verdict.written - 1, where);
  if (s.verdict.mismatched_rank != 0) detail::throw_odd_rank(s, where);
  return s;
}

}  // namespace detail

}}  // namespace onebit
