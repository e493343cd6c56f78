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
#include <onebit/core/config.hpp>
#include <onebit/core/digest.hpp>
#include <onebit/core/error.hpp>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// A job's checkpoints on disk, complete or absent: whatever is killed, whenever.
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

/// What every rank says. Collective.
template <class Optimizer>
std::vector<std::array<std::uint64_t, 3>> tell_all(Optimizer& o,
                                                   const std::array<std::uint64_t, 3>& mine) {
  std::vector<std::array<std::uint64_t, 3>> all(static_cast<std::size_t>(o.size()));
  o.transport().host_all_gather(mine.data(), all.data(), sizeof mine);
  return all;
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
  auto all = tell_all(o, mine);
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

/// A job's checkpoints on disk, complete or absent: whatever is killed, whenever.
///
/// @verbatim
///   <root>/step-<n>/rank-<r>     one file per rank: 8 bytes, the length of the trainer's part; the
///                                trainer's part; the optimizer's
///   <root>/step-<n>/manifest     text: for each rank's file its bytes and their CRC-32C; written
///                                last, and sealed by a CRC-32C of its own lines
/// @endverbatim
///
/// A directory is written as step-<n>.part, every file of it flushed to the device, and renamed.
/// The root must be one directory for all ranks. POSIX.
namespace onebit::inline v0_1 {

/// How many checkpoints `save_all` leaves.
inline constexpr int default_kept_checkpoints = 2;

/// Saves all ranks under `root`. `write_own(out)` writes what the trainer needs on this rank: its
/// parameters, at least. Of the checkpoints of earlier steps the newest are left, `keep` with this
/// one; those of later steps go: they are of a run that was taken back, or damaged.
///
/// Collective. Throws checkpoint_error on all ranks when one fails; older checkpoints are then as
/// they were.
template <class Optimizer, class WriteOwn>
void save_all(Optimizer& optimizer, const std::filesystem::path& root, const WriteOwn& write_own,
              int keep = default_kept_checkpoints) {
  namespace files = detail::files;
  namespace fs = std::filesystem;
  if (keep < 1) {
    throw invalid_input(detail::message("save_all: keep is ", keep, "; must be at least 1"));
  }
  const std::uint64_t step = optimizer.steps();
  const fs::path whole = root / files::step_name(step), part = whole.string() + ".part";
  const auto rank = static_cast<std::size_t>(optimizer.rank());
  (void)files::together(optimizer, "save_all", [&](auto&, auto&) {
    if (rank != 0) return;
    fs::create_directories(root);
    fs::remove_all(part);
    fs::create_directory(part);
  });
  const auto written = files::together(optimizer, "save_all", [&](auto& bytes, auto& crc) {
    const fs::path file = part / files::rank_name(rank);
    {
      std::ofstream out(file, std::ios::binary);
      std::uint64_t length = 0;
      out.write(reinterpret_cast<const char*>(&length), sizeof length);
      write_own(static_cast<std::ostream&>(out));
      length = static_cast<std::uint64_t>(out.tellp()) - sizeof length;
      optimizer.save(out);
      out.seekp(0);
      out.write(reinterpret_cast<const char*>(&length), sizeof length);
      out.close();
      if (!out) {
        throw checkpoint_error(detail::message("checkpoint: writing ", file.string(), " failed"));
      }
    }
    files::flush_to_device(file);
    const auto sum = files::sum_of(file);
    if (!sum) {
      throw checkpoint_error(
          detail::message("checkpoint: ", file.string(), " cannot be read back"));
    }
    bytes = sum->bytes;
    crc = sum->crc;
  });
  (void)files::together(optimizer, "save_all", [&](auto&, auto&) {
    if (rank != 0) return;
    std::vector<files::file_sum> sums;
    for (const auto& told : written) {
      sums.push_back({told[1], static_cast<std::uint32_t>(told[2])});
    }
    files::write_text(part / "manifest", files::manifest_of(step, sums));
    files::flush_to_device(part);
    const fs::path former = whole.string() + ".former";
    fs::remove_all(former);
    if (fs::exists(whole)) fs::rename(whole, former);
    fs::rename(part, whole);
    files::flush_to_device(root);
    fs::remove_all(former);
    int n_kept = 0;
    for (const std::uint64_t other : files::all_steps(root)) {
      if (other <= step && n_kept < keep) {
        ++n_kept;
        continue;
      }
      // its manifest goes first: what is half removed is no checkpoint
      fs::remove(root / files::step_name(other) / "manifest");
      fs::remove_all(root / files::step_name(other));
    }
  });
}

/// Loads the newest checkpoint under `root` of which all files are whole: `read_own(in)` reads what
/// `write_own` wrote, then the optimizer is loaded. The step that it is of; nothing, where there is
/// no checkpoint: then nothing has changed. Rank 0 tells on stderr of those that it passed over. A
/// job of another number of ranks goes on (optimizer::load_old_job), where
/// its rule can: rank r's trainer reads what rank r mod the old number wrote.
///
/// Collective. Throws checkpoint_error on all ranks when there are checkpoints, and none is whole:
/// a job that started anew would soon remove them. And when a whole one does not fit
/// (optimizer::load says why), or memory fails; `read_own` may have changed its part then, the
/// optimizer has not.
template <class Optimizer, class ReadOwn>
std::optional<std::uint64_t> load_latest(Optimizer& optimizer, const std::filesystem::path& root,
                                         const ReadOwn& read_own,
                                         resume_with with = resume_with::same_options) {
  namespace files = detail::files;
  using news = std::array<std::uint64_t, 3>;
  const auto rank = static_cast<std::size_t>(optimizer.rank());
  const auto n_ranks = static_cast<std::size_t>(optimizer.size());
  std::vector<std::uint64_t> steps;
  std::string passed_over;
  (void)files::together(optimizer, "load_latest", [&](auto&, auto&) {
    if (rank == 0) steps = files::all_steps(root);
  });
  for (std::size_t i = 0;; ++i) {
    const bool is_left = i < steps.size();
    const auto told =
        files::tell_all(optimizer, news{is_left ? 1U : 0U, is_left ? steps[i] : 0, 0});
    if (told[0][0] == 0) {
      if (passed_over.empty()) return std::nullopt;
      throw checkpoint_error(
          detail::message("load_latest: no checkpoint under ", root.string(), " is whole, not ",
                          passed_over, "; repair one, or move them away to start from nothing"));
    }
    const std::uint64_t step = told[0][1];
    const auto directory = root / files::step_name(step);
    std::size_t n_files = 0;
    const auto looked = files::together(optimizer, "load_latest", [&](auto& whole, auto& there) {
      // what is not whole throws nothing; a failed allocation does, and says nothing of the files
      const auto manifest = files::manifest_at(root, step);
      n_files = manifest ? manifest->size() : 0;
      there = files::has_manifest(root, step) ? 1 : 0;
      whole = n_files > 0 && files::are_whole(directory, *manifest, rank, n_ranks) ? 1 : 0;
    });
    const auto is_whole = [](const news& one) { return one[1] != 0; };
    if (!std::all_of(looked.begin(), looked.end(), is_whole)) {
      if (looked[0][2] == 0) continue;  // half removed: it is no checkpoint
      passed_over += (passed_over.empty() ? "" : ", ") + files::step_name(step);
      if (rank == 0) files::tell_passed_over(directory);
      continue;
    }
    std::unique_ptr<std::ifstream> in;
    (void)files::together(optimizer, "load_latest", [&](auto&, auto&) {
      in = files::open_rank(directory, rank % n_files, false);
      read_own(static_cast<std::istream&>(*in));
      in = files::open_rank(directory, rank % n_files, true);
    });
    if (n_files == n_ranks) {
      optimizer.load(*in, with);
    } else if constexpr (Optimizer::resumes) {
      optimizer.load_old_job(
          n_files, [&](std::size_t r) { return files::open_rank(directory, r, true); }, with);
    } else {
      throw checkpoint_error(detail::message("load_latest: the checkpoint of step ", step,
                                             " is of ", n_files, " ranks, this job has ", n_ranks,
                                             ", and its rule cannot go on with others"));
    }
    return step;
  }
}

}  // namespace onebit::inline v0_1
