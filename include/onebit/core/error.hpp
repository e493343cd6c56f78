// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <onebit/core/number_text.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

/// The exceptions that onebit throws. Every message names the problem, with its numbers, and what
/// to do about it. Messages about a job of several ranks end in `[rank r/W]`.
namespace onebit { inline namespace v0_3 {

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
  text_part(float x) : float_(x), kind_(kind::float_number) {}
  text_part(std::floating_point auto x)
      : double_(static_cast<double>(x)), kind_(kind::double_number) {}

  void append_to(std::string& out) const {
    switch (kind_) {
      case kind::text:
        out.append(text_);
        break;
      case kind::signed_number:
        out += number_text(signed_);
        break;
      case kind::unsigned_number:
        out += number_text(unsigned_);
        break;
      case kind::float_number:
        out += number_text(float_);
        break;
      case kind::double_number:
        out += number_text(double_);
        break;
    }
  }

 private:
  enum class kind : std::uint8_t {
    text,
    signed_number,
    unsigned_number,
    float_number,
    double_number
  };
  union {
    std::string_view text_;
    long long signed_;
    unsigned long long unsigned_;
    float float_;
    double double_;
  };
  kind kind_;
};

/// Joins parts. Numbers are in their shortest form that is unique.
[[nodiscard, gnu::cold]] inline std::string join(std::initializer_list<text_part> parts) {
  std::string out;
  for (const text_part& part : parts) part.append_to(out);
  return out;
}

/// Returns an error message joined from parts. Called only when an error is about to be thrown.
template <class... Parts>
[[nodiscard, gnu::cold]] std::string error_text(const Parts&... parts) {
  return join({"onebit::", text_part(parts)...});
}

/// Default handler of warnings: prints to stderr.
[[gnu::cold]] inline void warn_on_stderr(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
}
/// Returns the suffix of an error message that names the rank with the error.
[[nodiscard, gnu::cold]] inline std::string rank_suffix(int rank, int size) {
  return join({" [rank ", rank, "/", size, "]"});
}

}  // namespace detail

/// Returns options as text that ranks and checkpoints compare; different numbers give other texts.
template <class... Parts>
[[nodiscard]] std::string describe(const Parts&... parts) {
  return detail::join({detail::text_part(parts)...});
}

}}  // namespace onebit
