// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <onebit/error.hpp>
#include <onebit/step_in_progress.hpp>
#include <optional>
#include <string>
#include <utility>

namespace onebit::inline v0_1 {

/// What lasts, and the step that it is in, if it is in one: that goes first, and is taken back.
template <class E>
struct running {
  template <class... Args>
  explicit running(Args&&... args) : lasting(std::forward<Args>(args)...) {}

  /// Throws invalid_input between begin() and step().
  [[nodiscard]] E& between_steps() {
    if (open) throw invalid_input(has_begun());
    return lasting;
  }
  [[nodiscard, gnu::cold]] std::string has_begun() const {
    return detail::message("optimizer: step ", lasting.step,
                           " has begun; call this before begin() or after step()",
                           lasting.comm.where());
  }
  /// Why nothing may be loaded now; empty: it may.
  [[nodiscard, gnu::cold]] std::string refusal() const { return open ? has_begun() : ""; }

  /// Closes a step that is over, however it ended.
  struct close_after {
    running& r;
    ~close_after() {
      if (r.open->over()) r.open.reset();
    }
  };

  E lasting;
  std::optional<step_in_progress<E>> open;
};

}  // namespace onebit::inline v0_1
