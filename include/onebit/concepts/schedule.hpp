// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <onebit/concepts/plan.hpp>
#include <onebit/concepts/stand_ins.hpp>
#include <string>

/// When ranks average and exchange.
namespace onebit { inline namespace v0_3 {

/// Defaults of a Schedule: a base for schedules that need not define all members.
struct schedule_defaults {
  static constexpr bool compresses = true;  ///< false: never exchanges, so needs no memory for it
  /// Called after each step, unless all ranks are known to have skipped it. Changes the state.
  void done(std::uint64_t, float) {}
  /// Text for the user after a kept step with `next_needs_outcome`; empty: none.
  [[nodiscard]] std::string warning() const { return {}; }
  /// Passes each variable of the state to `a`, for checkpoints: see detail::payload_reader.
  template <class Archive>
  void archive(Archive&) {}
};

/// Decides which steps average or exchange. Steps count from 0. Not asked with one rank (in a
/// hierarchy: one node).
template <class S>
concept Schedule = requires(S s, const S fixed, std::uint64_t step, float lr,
                            detail::any_archive a) {
  { fixed.due_in(step, lr) } -> std::same_as<due>;  // changes nothing; equal on all ranks
  s.done(step, lr);                                 // these three: see schedule_defaults
  { fixed.warning() } -> std::convertible_to<std::string>;
  s.archive(a);
  { S::compresses } -> std::convertible_to<bool>;
};

}}  // namespace onebit
