// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <onebit/core/config.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

/// The exceptions that onebit throws. Every message names the problem, with its numbers, and what
/// to do about it. Messages about a job of several ranks end in `[rank r/W]`.
namespace onebit::inline v0_2 {

/// Base class of all exceptions that onebit throws on purpose.
class error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Invalid input: sizes that do not match, an option out of range, a non-finite learning rate.
class invalid_input : public error {
 public:
  using error::error;
};

/// Ranks disagree: their sizes, options, parameters or steps differ.
class rank_mismatch : public error {
 public:
  using error::error;
};

/// A transport failed: a rank has left, a time-out, or an error code of MPI or NCCL.
class transport_error : public error {
 public:
  using error::error;
};

/// A backend failed: an error code of CUDA.
class backend_error : public error {
 public:
  using error::error;
};

/// A checkpoint is truncated or damaged, not of onebit, or of another configuration.
class checkpoint_error : public error {
 public:
  using error::error;
};

namespace detail {

/// A load or a save failed on another rank. The exception on that rank has the reason.
class peer_failed : public checkpoint_error {
 public:
  using checkpoint_error::checkpoint_error;
};

/// Part of a text: characters or a number.
class text_part {
 public:
  text_part(std::string_view text) : text_(text), kind_(kind::text) {}
  text_part(const char* text) : text_part(std::string_view(text)) {}
  text_part(const std::string& text) : text_part(std::string_view(text)) {}
  text_part(std::signed_integral auto x) : signed_(x), kind_(kind::signed_number) {}
  text_part(std::unsigned_integral auto x) : unsigned_(x), kind_(kind::unsigned_number) {}
  text_part(std::floating_point auto x) : real_(static_cast<double>(x)), kind_(kind::real) {}

  /// Appends the part to `out`; floating-point numbers get `digits` significant digits.
  void append_to(std::string& out, int digits) const {
    char number[64];
    int n = 0;
    switch (kind_) {
      case kind::text:
        out.append(text_);
        return;
      case kind::signed_number:
        n = std::snprintf(number, sizeof number, "%lld", signed_);
        break;
      case kind::unsigned_number:
        n = std::snprintf(number, sizeof number, "%llu", unsigned_);
        break;
      case kind::real:
        n = std::snprintf(number, sizeof number, "%.*g", digits, real_);
        break;
    }
    out.append(number, static_cast<std::size_t>(n));
  }

 private:
  enum class kind : std::uint8_t { text, signed_number, unsigned_number, real };
  union {
    std::string_view text_;
    long long signed_;
    unsigned long long unsigned_;
    double real_;
  };
  kind kind_;
};

[[nodiscard, gnu::cold]] inline std::string join(int digits,
                                                 std::initializer_list<text_part> parts) {
  std::string out;
  for (const text_part& part : parts) part.append_to(out, digits);
  return out;
}

/// Returns an error message joined from parts. Called only when an error is about to be thrown.
template <class... Parts>
[[nodiscard, gnu::cold]] std::string message(const Parts&... parts) {
  return join(6, {"onebit::", text_part(parts)...});
}

/// Default handler of warnings: prints to stderr.
[[gnu::cold]] inline void warn_on_stderr(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
}
/// Returns the suffix of an error message that names the rank with the error.
[[nodiscard, gnu::cold]] inline std::string rank_suffix(int rank, int size) {
  return join(6, {" [rank ", rank, "/", size, "]"});
}

}  // namespace detail

/// Returns options as text that ranks and checkpoints compare; different numbers give other texts.
template <class... Parts>
[[nodiscard]] std::string describe(const Parts&... parts) {
  return detail::join(17, {detail::text_part(parts)...});
}

}  // namespace onebit::inline v0_2
