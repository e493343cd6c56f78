// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

/// The exceptions that onebit throws. Every message says what was found, with its numbers, and what
/// to do about it; where ranks are involved it ends in `[rank r/W]`.
namespace onebit {

/// Base of everything that onebit throws on purpose.
class error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Sizes that do not fit together, options out of range, a learning rate that is not finite.
class invalid_input : public error {
 public:
  using error::error;
};

/// Ranks that disagree: other sizes, options, parameters, or another step.
class rank_mismatch : public error {
 public:
  using error::error;
};

/// A transport that failed: a peer that left, a time-out, an error code of MPI or NCCL.
class transport_error : public error {
 public:
  using error::error;
};

/// A backend that failed: an error code of CUDA.
class backend_error : public error {
 public:
  using error::error;
};

/// A checkpoint that is truncated, damaged, foreign or of another configuration.
class checkpoint_error : public error {
 public:
  using error::error;
};

namespace detail {

/// Builds an error message from its parts. Only ever called on the way to a throw.
template <class... Parts>
[[nodiscard]] std::string message(const Parts&... parts) {
  std::ostringstream out;
  out << "onebit::";
  (out << ... << parts);
  return std::move(out).str();
}

/// The suffix that names the rank on which an error arose.
[[nodiscard]] inline std::string rank_suffix(int rank, int size) {
  return " [rank " + std::to_string(rank) + "/" + std::to_string(size) + "]";
}

}  // namespace detail
}  // namespace onebit
