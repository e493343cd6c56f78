// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <onebit/core/error.hpp>
#include <onebit/core/number_text.hpp>
#include <onebit/kernel/scalars.hpp>
#include <onebit/transport/communicator.hpp>
#include <optional>
#include <string>
#include <string_view>

/// Report of one step, and its text forms.
namespace onebit { inline namespace v0_3 {

/// What a step made of the ranks' gradients.
enum class phase : std::uint8_t {
  dense,       ///< an exact average: baseline and warm-up
  compressed,  ///< a compressed exchange
  local        ///< each rank its own step: 0/1 Adam between two exchanges; parameters differ then
};

/// Returns "dense", "compressed" or "local".
[[nodiscard]] constexpr std::string_view to_string(phase p) {
  return p == phase::dense ? "dense" : p == phase::local ? "local" : "compressed";
}

/// Report of one step on this rank.
// (What a new member must reach: CONTRIBUTING.md.)
struct report {
  std::uint64_t step = 0;              ///< from 0; used again after a step that all ranks skipped
  onebit::phase phase = phase::dense;  ///< what the step made of the ranks' gradients
  /// True if the step also brought v up to date over the ranks (pending: would). A local step
  /// communicates only then.
  bool refreshed = false;
  /// True if a rank saw a non-finite gradient or vetoed, and no rank changed anything. In a local
  /// step without a refresh: true if this rank did, and left its gradient out, while the others
  /// went on.
  bool skipped = false;
  /// True if the outcome is not known yet, on a deferred backend (CUDA): optimizer::settle waits
  /// for it. The seconds are then those of the host, which only enqueues; a replayed graph reports
  /// no bytes.
  bool pending = false;
  /// Norm of the mean gradient before clipping, in steps that average gradients. In steps that
  /// refresh v: an estimate from a sketch with one sum for 128 elements, with a standard deviation
  /// of 1 / sqrt(2 sums): 12% with 4096 parameters, below 1% from 640,000 on. In other steps:
  /// norm of this rank's gradient over its usual ratio to the mean's norm; empty without clipping
  /// and without a veto. Empty also in skipped or pending steps.
  std::optional<float> gradient_norm{};
  /// Share of skipped steps among all since the optimizer was built, 0 to 1; empty while pending.
  std::optional<float> skipped_share{};
  /// Bytes sent since the optimizer was built, over those of ring allreduces of floats, 2 (W-1)/W
  /// 4n a step. Empty with one rank, and on a deferred backend: replayed graphs count no bytes.
  std::optional<float> sent_of_dense{};
  std::uint64_t bytes_sent = 0;           ///< by this rank, in all collectives of the step
  std::uint64_t bytes_between_nodes = 0;  ///< part of bytes_sent, in a hierarchical exchange
  std::uint32_t collectives = 0;          ///< number of collectives in the step
  double encode_seconds = 0;              ///< passes before and between the collectives
  double communicate_seconds = 0;         ///< collectives, with the wait for slower ranks
  double update_seconds = 0;              ///< passes after the collectives
};

namespace detail {

/// Formats x for JSON; "null" if it is not finite.
template <class T>
[[nodiscard, gnu::cold]] std::string json_number(T x) {
  return std::isfinite(x) ? number_text(x) : "null";
}
template <class T>
[[nodiscard, gnu::cold]] std::string json_number(const std::optional<T>& x) {
  return x ? json_number(*x) : "null";
}

}  // namespace detail

/// Formats a report as one line for logs:
/// step 12 compressed: 4.85 ms = 0.34 encode + 4.10 communicate + 0.41 update, 78.42 kB in 2
/// collectives, gradient norm 0.53
[[nodiscard, gnu::cold]] inline std::string to_string(const report& r) {
  using detail::two_decimals;
  const auto ms = [](double seconds) { return two_decimals(1e3 * seconds); };
  const auto sent = static_cast<double>(r.bytes_sent);
  const bool many = r.bytes_sent >= 1000000;
  std::string text = detail::join({"step ",
                                   r.step,
                                   " ",
                                   to_string(r.phase),
                                   r.refreshed ? " with a refresh of v" : "",
                                   r.skipped ? ", skipped" : "",
                                   r.pending ? ", pending" : "",
                                   ": ",
                                   ms(r.encode_seconds + r.communicate_seconds + r.update_seconds),
                                   " ms = ",
                                   ms(r.encode_seconds),
                                   " encode + ",
                                   ms(r.communicate_seconds),
                                   " communicate + ",
                                   ms(r.update_seconds),
                                   " update, ",
                                   two_decimals(sent / (many ? 1e6 : 1e3)),
                                   many ? " MB in " : " kB in ",
                                   r.collectives,
                                   " collectives"});
  if (r.gradient_norm)
    text += ", gradient norm " + two_decimals(static_cast<double>(*r.gradient_norm));
  const auto percent = [](float share) { return two_decimals(100 * static_cast<double>(share)); };
  if (r.skipped_share && *r.skipped_share > 0)
    text += ", " + percent(*r.skipped_share) + "% of all steps skipped";
  if (r.sent_of_dense)
    text += ", " + percent(*r.sent_of_dense) + "% of the bytes of float ring allreduces so far";
  return text;
}

/// Formats a report as a JSON object on one line, without a line end. Keys are the names of
/// members. Numbers read back unchanged; empty and non-finite values are null.
[[nodiscard, gnu::cold]] inline std::string to_json(const report& r) {
  using detail::json_number;
  std::string text =
      detail::join({"{\"step\":", r.step, ",\"phase\":\"", to_string(r.phase), "\""});
  const auto add = [&](const char* name, detail::text_part value) {
    text += detail::join({",\"", name, "\":", value});
  };
  add("refreshed", r.refreshed ? "true" : "false");
  add("skipped", r.skipped ? "true" : "false");
  add("pending", r.pending ? "true" : "false");
  add("gradient_norm", json_number(r.gradient_norm));
  add("skipped_share", json_number(r.skipped_share));
  add("sent_of_dense", json_number(r.sent_of_dense));
  add("bytes_sent", r.bytes_sent);
  add("bytes_between_nodes", r.bytes_between_nodes);
  add("collectives", r.collectives);
  add("encode_seconds", json_number(r.encode_seconds));
  add("communicate_seconds", json_number(r.communicate_seconds));
  add("update_seconds", json_number(r.update_seconds));
  return text + "}";
}

namespace detail {

/// Measures bytes and times of one step on a communicator.
class step_meter {
 public:
  step_meter(const communicator& comm, phase p, bool averages_beside, std::uint64_t step,
             std::uint64_t across)
      : comm_(&comm), before_(comm.sent()), across_(across) {
    report_.step = step;
    report_.phase = p;
    report_.refreshed = averages_beside;
  }
  /// Starts the clock, which `leave` stops: begin, ready and step are separate calls.
  void enter() { start_ = clock::now(); }
  void leave() { before_communicated_ += clock::now() - start_; }
  /// Bytes that this rank has sent in this step so far.
  [[nodiscard]] std::uint64_t bytes_sent() const { return (comm_->sent() - before_).bytes_sent; }
  /// Marks the end of communication and the start of the update.
  void communicated() { communicated_ = clock::now(); }

  /// Returns the report. `across`: bytes sent to other nodes so far; a negative norm: not known.
  [[nodiscard]] report finish(outcome o, std::uint64_t across, float gradient_norm) {
    const auto seconds = [](auto d) { return std::chrono::duration<double>(d).count(); };
    const auto end = clock::now();
    if (communicated_ == clock::time_point{}) communicated_ = end;
    const traffic sent = comm_->sent() - before_;
    report_.skipped = o == outcome::skipped;
    report_.pending = o == outcome::pending;
    report_.refreshed = report_.refreshed && !report_.skipped;
    if (gradient_norm >= 0) report_.gradient_norm = gradient_norm;
    report_.bytes_sent = sent.bytes_sent;
    report_.bytes_between_nodes = across - across_;
    report_.collectives = sent.collectives;
    report_.communicate_seconds = sent.seconds;
    report_.encode_seconds =
        seconds(before_communicated_ + (communicated_ - start_)) - sent.seconds;
    report_.update_seconds = seconds(end - communicated_);
    return report_;
  }

 private:
  using clock = std::chrono::steady_clock;
  const communicator* comm_;
  traffic before_;
  std::uint64_t across_;
  report report_;
  clock::time_point start_ = clock::now();
  clock::duration before_communicated_{};
  clock::time_point communicated_{};
};

}  // namespace detail

}}  // namespace onebit
