// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <istream>
#include <memory>
#include <onebit/digest.hpp>
#include <onebit/error.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// What is in a directory of checkpoints.
namespace onebit::inline v0_1::detail::files {

namespace fs = std::filesystem;

/// Throws checkpoint_error unless what was written to the file or directory is on the device.
[[gnu::cold]] inline void flush_to_device(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool done = fd >= 0 && ::fsync(fd) == 0;
  if (fd >= 0) ::close(fd);
  if (!done) throw checkpoint_error(message("checkpoint: flushing ", path.string(), " failed"));
}

/// What the manifest says of a file.
struct file_sum {
  std::uint64_t bytes = 0;
  std::uint32_t crc = 0;
  friend bool operator==(const file_sum&, const file_sum&) = default;
};

[[nodiscard, gnu::cold]] inline std::optional<file_sum> sum_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  std::vector<char> piece(std::size_t{1} << 20U);
  file_sum sum;
  while (in.read(piece.data(), static_cast<std::streamsize>(piece.size())), in.gcount() > 0) {
    const auto n = static_cast<std::size_t>(in.gcount());
    sum.crc = crc32c(piece.data(), n, sum.crc);
    sum.bytes += n;
  }
  if (in.bad()) return std::nullopt;
  return sum;
}

[[nodiscard]] inline std::string step_name(std::uint64_t step) {
  return "step-" + std::to_string(step);
}
[[nodiscard]] inline std::string rank_name(std::size_t rank) {
  return "rank-" + std::to_string(rank);
}

[[nodiscard, gnu::cold]] inline std::string manifest_of(std::uint64_t step,
                                                        const std::vector<file_sum>& ranks) {
  std::ostringstream text;
  text << "onebit checkpoint 1\nstep " << step << "\nranks " << ranks.size() << "\n";
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    text << "rank " << r << " bytes " << ranks[r].bytes << " crc32c " << ranks[r].crc << "\n";
  }
  const std::string lines = std::move(text).str();
  return lines + "end " + std::to_string(crc32c(lines.data(), lines.size())) + "\n";
}

/// What a manifest says of its ranks; nothing, where it is not whole.
[[nodiscard, gnu::cold]] inline std::optional<std::vector<file_sum>> read_manifest(
    std::istream& in, std::uint64_t step) {
  constexpr std::size_t most = std::size_t{1} << 24U;  // bytes: of 300,000 ranks
  std::string text;
  char piece[4096];
  while (in.read(piece, sizeof piece), in.gcount() > 0) {
    text.append(piece, static_cast<std::size_t>(in.gcount()));
    if (text.size() > most) return std::nullopt;
  }
  std::string_view rest = text;
  const auto skip = [&](std::string_view word) {
    const bool there = rest.substr(0, word.size()) == word;
    if (there) rest.remove_prefix(word.size());
    return there;
  };
  const auto number = [&](auto& x) {
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), x);
    if (error != std::errc()) return false;
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    return true;
  };
  std::uint64_t its_step = 0, n = 0;
  if (!skip("onebit checkpoint 1\nstep ") || !number(its_step) || its_step != step) return {};
  if (!skip("\nranks ") || !number(n) || n > text.size() || !skip("\n")) return {};
  std::vector<file_sum> ranks;
  for (std::uint64_t r = 0; r < n; ++r) {
    std::uint64_t its_rank = 0;
    file_sum sum;
    if (!skip("rank ") || !number(its_rank) || its_rank != r || !skip(" bytes ") ||
        !number(sum.bytes) || !skip(" crc32c ") || !number(sum.crc) || !skip("\n")) {
      return {};
    }
    ranks.push_back(sum);
  }
  const std::uint32_t lines = crc32c(text.data(), text.size() - rest.size());
  std::uint32_t written = 0;
  if (!skip("end ") || !number(written) || written != lines || rest != "\n") return {};
  return ranks;
}
[[nodiscard, gnu::cold]] inline std::optional<std::vector<file_sum>> manifest_at(
    const fs::path& root, std::uint64_t step) {
  std::ifstream in(root / step_name(step) / "manifest", std::ios::binary);
  return in ? read_manifest(in, step) : std::nullopt;
}

/// Whether there is a manifest, whole or not: the last to be written, the first to be removed.
[[nodiscard, gnu::cold]] inline bool has_manifest(const fs::path& root, std::uint64_t step) {
  std::error_code failed;
  return fs::exists(root / step_name(step) / "manifest", failed) || failed;
}
[[gnu::cold]] inline void tell_passed_over(const fs::path& directory) {
  std::fprintf(stderr, "onebit: load_latest: %s is not whole, and is passed over\n",
               directory.string().c_str());
}

/// All directories that are there of steps, newest first: whole or not. What else has such a name
/// (step-7.tar, a file step-7, step-007) is the user's. Throws where the root cannot be read.
[[nodiscard, gnu::cold]] inline std::vector<std::uint64_t> all_steps(const fs::path& root) {
  std::vector<std::uint64_t> steps;
  if (!fs::exists(root)) return steps;
  for (const auto& entry : fs::directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    std::uint64_t step = 0;
    if (name.rfind("step-", 0) != 0) continue;
    const auto parsed = std::from_chars(name.data() + 5, name.data() + name.size(), step);
    std::error_code failed;
    if (parsed.ec != std::errc() || step_name(step) != name) continue;
    if (entry.is_directory(failed)) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end(), std::greater<>());
  return steps;
}

[[gnu::cold]] inline void write_text(const fs::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) throw checkpoint_error(message("checkpoint: writing ", path.string(), " failed"));
  flush_to_device(path);
}

/// Runs f on this rank; collective: throws on all when it threw on one.
template <class Optimizer, class F>
std::vector<std::array<std::uint64_t, 3>> together(Optimizer& o, const char* what, const F& f) {
  std::string failure;
  std::array<std::uint64_t, 3> mine{1, 0, 0};  // that it went well, and what f has to tell
  try {
    f(mine[1], mine[2]);
  } catch (const std::exception& e) {
    failure = e.what();
    mine[0] = 0;
  }
  auto all = o.tell_all(mine);
  if (!failure.empty()) throw checkpoint_error(failure);
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r][0] == 0) throw checkpoint_error(message(what, ": failed on rank ", r));
  }
  return all;
}

/// A rank's file, at the trainer's part or behind it.
[[nodiscard, gnu::cold]] inline std::unique_ptr<std::ifstream> open_rank(const fs::path& directory,
                                                                         std::size_t rank,
                                                                         bool behind) {
  auto in = std::make_unique<std::ifstream>(directory / rank_name(rank), std::ios::binary);
  std::uint64_t length = 0;
  in->read(reinterpret_cast<char*>(&length), sizeof length);
  if (behind) in->seekg(static_cast<std::streamoff>(sizeof length + length));
  if (!*in) {
    throw checkpoint_error(
        message("checkpoint: ", (directory / rank_name(rank)).string(), " is too short"));
  }
  return in;
}
/// Are the files whole of which rank `rank` of n looks after?
[[nodiscard, gnu::cold]] inline bool are_whole(const fs::path& directory,
                                               const std::vector<file_sum>& files, std::size_t rank,
                                               std::size_t n) {
  for (std::size_t r = rank; r < files.size(); r += n) {
    if (sum_of(directory / rank_name(r)) != files[r]) return false;
  }
  return true;
}

}  // namespace onebit::inline v0_1::detail::files
