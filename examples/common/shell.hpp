// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Other programs' help: what they print, and file names as they want them.
#pragma once

#include <string>

namespace common {

// For the shell: nothing is special between single quotes but the single quote.
std::string quoted(const std::string& path);

struct command_result {
  int status = 0;
  std::string output;
};

// Runs a shell command and collects what it prints.
command_result output_of(const std::string& command);

}  // namespace common
