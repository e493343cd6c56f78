// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <onebit/core/error.hpp>
#include <onebit/kernel/param_group.hpp>
#include <onebit/kernel/scalars.hpp>
#include <onebit/step/tensors.hpp>
#include <onebit/transport/communicator.hpp>
#include <optional>
#include <string>
#include <vector>

/// What an optimizer tells its trainer beside the report, and asks it.
namespace onebit { inline namespace v0_3 { namespace detail {

/// Functions of the trainer. Empty: none. They are set one by one, since only a veto is collective.
template <class P, class G>
struct hooks {
  std::function<void(const std::string& text)> warn = &warn_on_stderr;  ///< optimizer::warn_with
  std::function<bool(float norm)> veto;                                 ///< optimizer::veto_with
  std::function<std::vector<param_group<P, G>>()> groups;               ///< optimizer::rebind_with
};

/// What the host knows of a step once it is over: for the step counts, the report and warnings.
struct step_outcome {
  outcome kind = outcome::pending;
  bool is_known = false;                ///< false: a later call waits for it
  std::optional<step_scalars> scalars;  ///< if they were fetched
  float gradient_norm = -1;             ///< negative: not known
};

/// Counts all steps, skipped or not, and warns of what goes on for long.
class step_watch {
 public:
  /// Interval in steps at which the host fetches outcomes that the next step does not need.
  static constexpr std::uint64_t steps_unwatched = 128;

  void count_attempt(std::uint64_t sent) {
    ++n_attempts_;
    bytes_sent_ += sent;
  }
  [[nodiscard]] bool must_look() const { return n_attempts_ % steps_unwatched == 0; }
  /// Returns report::skipped_share.
  [[nodiscard]] float share_of(std::uint32_t n_skipped) const {
    return static_cast<float>(static_cast<double>(n_skipped) / static_cast<double>(n_attempts_));
  }
  /// Returns report::sent_of_dense.
  [[nodiscard]] std::optional<float> sent_of_dense(int n_ranks, std::size_t n_elements) const {
    const auto size = static_cast<double>(n_ranks);
    const double dense = 2 * (size - 1) / size * 4 * static_cast<double>(n_elements);
    if (!(dense > 0)) return std::nullopt;
    return static_cast<float>(static_cast<double>(bytes_sent_) /
                              (dense * static_cast<double>(n_attempts_)));
  }

  /// Warns after 10 skipped steps in a row, and whenever their number has doubled: on rank 0 and on
  /// each rank that called them off. Warns once if all ranks had equal gradients in 10 refreshes in
  /// a row. `local`: the step sent nothing. `looks`: gradients are still in memory, so that the bad
  /// element can be named.
  template <class E>
  [[gnu::cold]] void look(E& e, const step_scalars& now, bool local, bool looks) {
    const std::uint32_t n = now.counts.n_skipped_in_row;
    if (n == 0) next_warning_ = 10;
    if (e.hooks.warn == nullptr) return;
    if (now.counts.n_equal_refreshes >= 10 && e.comm.rank() == 0) warn_of_equal_gradients(e);
    if (n < next_warning_) return;
    next_warning_ = 2 * n;
    const std::string why = why_skipped(e, now, local, looks);
    if (why.empty()) return;
    e.hooks.warn(error_text("optimizer: ", n, " steps in a row were skipped, ",
                            now.counts.n_skipped, " in all, the last at step ", now.given.number,
                            ": ", why, e.comm.where()));
  }

 private:
  template <class E>
  void warn_of_equal_gradients(E& e) {
    if (warned_equal_gradients_) return;
    warned_equal_gradients_ = true;
    e.hooks.warn(error_text(
        "optimizer: in the last 10 refreshes of v all ranks had the same gradients: if the "
        "trainer averages them, leave that out, since the optimizer does; if all ranks read the "
        "same examples, give each its own",
        e.comm.where()));
  }
  /// Returns what this rank knows of a skipped step; empty: others say it.
  template <class E>
  [[nodiscard]] static std::string why_skipped(E& e, const step_scalars& now, bool local,
                                               bool looks) {
    // What this rank did itself.
    if (e.vetoed) return "vetoed on this rank";
    std::string why;
    try {
      if (looks) why = first_bad_gradient(e.tensors, e.backend(), now.given.inverse_loss_scale);
    } catch (const std::exception&) {
      // the warning does without the element
    }
    if (!why.empty()) return why;
    if (local) return "what this rank carries is not finite";

    // What others did: rank 0 speaks for all.
    if (e.comm.rank() != 0) return {};
    if (!looks) return "step() says which gradient, when it next waits";
    const bool known = now.verdict.bad_rank != 0;
    const std::string who = known ? join({"rank ", now.verdict.bad_rank - 1}) : "another rank";
    return join({"by a non-finite gradient or a veto of ", who,
                 known && E::splits ? ", or of a rank whose message it sent on" : "", ", or what ",
                 known ? "it carries" : "ranks carry",
                 " has overflowed (rates that jump do that)"});
  }

  std::uint64_t n_attempts_ = 0, bytes_sent_ = 0;  ///< in all steps, skipped or not
  std::uint32_t next_warning_ = 10;                ///< warns at this number of skips in a row
  bool warned_equal_gradients_ = false;
};

}}}  // namespace onebit::detail
