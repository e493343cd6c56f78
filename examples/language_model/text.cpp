// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#include "text.hpp"

#include <array>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>

#include "common/random.hpp"
#include "common/shell.hpp"

namespace language_model {
namespace {

constexpr std::size_t fewest_bytes = 5000;

// Removes the verse, such as "Ge1:1 ", from each line: it would only teach the model to count.
std::string strip_verses(const std::string& lines) {
  std::string stripped;
  stripped.reserve(lines.size());
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);) {
    const std::size_t space = line.find(' ');
    if (space == std::string::npos) continue;
    stripped.append(line, space + 1);
    stripped += '\n';
  }
  return stripped;
}

std::string king_james() {
  const auto [status, bytes] = common::output_of("bible -f 'gen1:1-rev22:21' 2>/dev/null");
  if (status != 0 || bytes.empty()) {
    throw std::runtime_error(
        "the program bible, which prints the King James text, is missing or failed (status " +
        std::to_string(status) +
        "): install it with 'apt-get install bible-kjv', or give another text with --text FILE");
  }
  return strip_verses(bytes);
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("--text: cannot read '" + path + "'");
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

text text::load(const std::string& path) {
  const std::string bytes = path.empty() ? king_james() : read_file(path);
  if (bytes.size() < fewest_bytes) {
    throw std::runtime_error("the text " + (path.empty() ? "of bible" : "'" + path + "'") +
                             " has " + std::to_string(bytes.size()) + " bytes; at least " +
                             std::to_string(fewest_bytes) + " are needed");
  }
  return text(bytes);
}

text::text(const std::string& bytes) : hash_(common::fnv1a(bytes)) {
  std::array<bool, 256> occurs{};
  for (const char c : bytes) occurs[static_cast<unsigned char>(c)] = true;
  std::array<unsigned char, 256> token{};
  int count = 0;
  for (std::size_t byte = 0; byte < 256; ++byte) {
    if (occurs[byte]) token[byte] = static_cast<unsigned char>(count++);
  }
  vocabulary_ = (count + 15) / 16 * 16;
  tokens_.reserve(bytes.size());
  for (const char c : bytes) tokens_.push_back(token[static_cast<unsigned char>(c)]);
}

std::pair<text, text> text::split() const {
  const auto cut = tokens_.end() - static_cast<std::ptrdiff_t>(tokens_.size() / 5);
  std::pair<text, text> parts(*this, *this);
  parts.first.tokens_.assign(tokens_.begin(), cut);
  parts.second.tokens_.assign(cut, tokens_.end());
  return parts;
}

void text::copy_window(batch& to, std::size_t at, std::size_t begin, int context) const {
  for (std::size_t i = 0; i < static_cast<std::size_t>(context); ++i) {
    to.input[at + i] = tokens_[begin + i];
    to.target[at + i] = tokens_[begin + i + 1];
  }
}

void text::draw(batch& to, int sequences, int context, std::uint64_t seed, std::uint64_t step,
                int rank) const {
  const auto length = static_cast<std::size_t>(context);
  to.input.resize(static_cast<std::size_t>(sequences) * length);
  to.target.resize(to.input.size());
  common::counter_random random{seed, common::fnv1a("batch"), step,
                                static_cast<std::uint64_t>(rank)};
  for (std::size_t at = 0; at < to.input.size(); at += length) {
    copy_window(to, at, random.below(training_size() - length), context);
  }
}

void text::held_out(batch& to, int sequences, int context, int index, int count) const {
  const auto length = static_cast<std::size_t>(context);
  const auto windows = static_cast<std::size_t>(sequences);
  to.input.resize(windows * length);
  to.target.resize(to.input.size());
  const std::size_t room = tokens_.size() - training_size() - length;
  for (std::size_t i = 0; i < windows; ++i) {
    const std::size_t window = static_cast<std::size_t>(index) * windows + i;
    const std::size_t begin = room * window / (static_cast<std::size_t>(count) * windows);
    copy_window(to, i * length, training_size() + begin, context);
  }
}

}  // namespace language_model
