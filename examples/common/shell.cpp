// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#include "shell.hpp"

#include <array>
#include <cstdio>
#include <stdexcept>

namespace common {

std::string quoted(const std::string& path) {
  std::string to = "'";
  for (const char c : path) to += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return to + "'";
}

command_result output_of(const std::string& command) {
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot start a shell to run: " + command);
  command_result result;
  std::array<char, 65536> buffer;
  for (std::size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    result.output.append(buffer.data(), n);
  }
  result.status = pclose(pipe);
  return result;
}

}  // namespace common
