// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// A progress bar on stderr; one line per tenth of the run if stderr is not a terminal.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace common {

class progress {
 public:
  progress(std::string label, std::int64_t first, std::int64_t last)
      : label_(std::move(label)),
        first_(first),
        last_(last),
        terminal_(isatty(STDERR_FILENO) == 1) {}

  // True if show(step, ...) would print.
  bool is_due(std::int64_t step) const {
    return step == last_ || (terminal_ ? clock::now() - shown_ > std::chrono::milliseconds(100)
                                       : step * 10 / last_ > tenth_);
  }

  void show(std::int64_t step, double loss, std::string_view phase) {
    if (!is_due(step)) return;
    const auto now = clock::now();
    shown_ = now;
    tenth_ = step * 10 / last_;
    const double elapsed = std::chrono::duration<double>(now - start_).count();
    const auto left = static_cast<int>(elapsed * static_cast<double>(last_ - step) /
                                       static_cast<double>(step - first_));
    const int phase_length = static_cast<int>(phase.size());
    if (terminal_) {
      const auto done = static_cast<std::size_t>(step * width / last_);
      const std::string bar = std::string(done, '#') + std::string(width - done, '.');
      std::fprintf(stderr, "\r%-14s [%s] %lld/%lld  loss %.3f  %.*s  ETA %d:%02d \033[K%s",
                   label_.c_str(), bar.c_str(), static_cast<long long>(step),
                   static_cast<long long>(last_), loss, phase_length, phase.data(), left / 60,
                   left % 60, step == last_ ? "\n" : "");
    } else {
      std::fprintf(stderr, "%-14s step %lld/%lld  loss %.3f  %.*s  ETA %d:%02d\n", label_.c_str(),
                   static_cast<long long>(step), static_cast<long long>(last_), loss, phase_length,
                   phase.data(), left / 60, left % 60);
    }
    std::fflush(stderr);
  }

 private:
  using clock = std::chrono::steady_clock;
  static constexpr std::size_t width = 30;
  std::string label_;
  std::int64_t first_;
  std::int64_t last_;
  bool terminal_;
  std::int64_t tenth_ = 0;
  clock::time_point start_ = clock::now();
  clock::time_point shown_ = start_;
};

}  // namespace common
