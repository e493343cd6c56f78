// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <istream>
#include <memory>
#include <onebit/checkpoint_directory.hpp>
#include <onebit/error.hpp>
#include <onebit/vocabulary.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

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
    const auto told = optimizer.tell_all(news{is_left ? 1U : 0U, is_left ? steps[i] : 0, 0});
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
