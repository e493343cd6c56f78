// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Calls of other programs: their output, and file names quoted for the shell.
#pragma once

#include <string>

namespace common {

// Puts a path in single quotes for the shell: only a single quote is special inside.
std::string quoted(const std::string& path);

struct command_result {
  int status = 0;
  std::string output;
};

// Runs a shell command and collects what it prints.
command_result output_of(const std::string& command);

}  // namespace common
