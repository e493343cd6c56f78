// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint.hpp"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "common/random.hpp"

namespace language_model {

using common::fnv1a;

namespace {

constexpr std::string_view magic = "onebit language model checkpoint 1\n";

}  // namespace

checkpoint_files::checkpoint_files(std::string directory, std::string algorithm, int rank)
    : directory_(std::move(directory)),
      prefix_(std::move(algorithm) + ".step"),
      suffix_(".rank" + std::to_string(rank) + ".checkpoint") {
  std::filesystem::create_directories(directory_);
}

std::string checkpoint_files::path(std::int64_t step) const {
  return directory_ + "/" + prefix_ + std::to_string(step) + suffix_;
}

std::vector<std::int64_t> checkpoint_files::steps() const {
  std::vector<std::int64_t> found;
  for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(prefix_) || !name.ends_with(suffix_)) continue;
    std::int64_t step = 0;
    const char* end = name.data() + name.size() - suffix_.size();
    const auto parsed = std::from_chars(name.data() + prefix_.size(), end, step);
    if (parsed.ec == std::errc{} && parsed.ptr == end) found.push_back(step);
  }
  std::sort(found.begin(), found.end());
  return found;
}

void checkpoint_files::write(std::int64_t step, const fingerprint& run,
                             const std::string& content) const {
  std::string head(magic);
  for (const auto& [name, value] : run) head += name + " " + value + "\n";
  head += "\n";
  const std::uint64_t hash = fnv1a(content, fnv1a(head));

  const std::string temporary = path(step) + ".tmp";
  std::ofstream out(temporary, std::ios::binary);
  out << head << content;
  out.write(reinterpret_cast<const char*>(&hash), sizeof hash);
  out.close();
  if (!out) throw std::runtime_error("cannot write '" + temporary + "'");
  std::filesystem::rename(temporary, path(step));
}

std::string checkpoint_files::read(std::int64_t step, const fingerprint& run) const {
  const std::string from = path(step);
  std::ifstream in(from, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(in), {}};
  if (!in) throw std::runtime_error("cannot read '" + from + "'");

  std::uint64_t hash = 0;
  const std::size_t size = bytes.size() - std::min(bytes.size(), sizeof hash);
  if (bytes.size() >= sizeof hash) std::memcpy(&hash, bytes.data() + size, sizeof hash);
  bytes.resize(size);
  if (!bytes.starts_with(magic) || fnv1a(bytes) != hash) {
    throw std::runtime_error("'" + from + "' is damaged or no checkpoint of this program (" +
                             std::to_string(size) + " bytes, whose checksum does not match)");
  }

  std::istringstream head(bytes.substr(magic.size(), bytes.find("\n\n") + 1 - magic.size()));
  for (const auto& [name, value] : run) {
    std::string line;
    std::getline(head, line);
    if (line != name + " " + value) {
      throw std::runtime_error("cannot resume from '" + from + "': it was written with " + line +
                               ", but this run has " + name + " " + value);
    }
  }
  return bytes.substr(bytes.find("\n\n") + 2);
}

void checkpoint_files::remove_before(std::int64_t step) const {
  for (const std::int64_t old : steps()) {
    if (old < step) std::filesystem::remove(path(old));
  }
}

}  // namespace language_model
