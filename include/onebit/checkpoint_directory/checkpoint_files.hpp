// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
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
#include <system_error>
#include <utility>
#include <vector>

/// Checkpoints of a job on disk. A checkpoint is complete or absent, even if processes are killed.
namespace onebit::inline v0_2::detail::files {

namespace fs = std::filesystem;

inline constexpr const char* part_suffix = ".part";      ///< suffix of an incomplete save
inline constexpr const char* former_suffix = ".former";  ///< suffix of a checkpoint being replaced

/// Returns a hint for errors on paths of an unfinished save that another job may have caused.
[[nodiscard, gnu::cold]] inline const char* hint_of(const fs::path& path, int error) {
  const std::string name = (path / "").string();
  const bool is_unfinished = name.find(std::string(part_suffix) + "/") != name.npos ||
                             name.find(std::string(former_suffix) + "/") != name.npos;
  return is_unfinished && (error == ENOENT || error == EEXIST || error == ENOTEMPTY)
             ? "; it changed during the save: does another job save under this root?"
             : "";
}
/// Returns the error of an operation on a path, with the text of `error` unless it is 0.
[[nodiscard, gnu::cold]] inline checkpoint_error path_error(const char* what, const fs::path& path,
                                                            int error = errno) {
  std::string text = message("checkpoint: ", what, " ", path.string(), " failed");
  if (error != 0) text += ": " + std::generic_category().message(error);
  return checkpoint_error(text + hint_of(path, error));
}

/// Flushes a file or directory to the device. Throws checkpoint_error.
[[gnu::cold]] inline void flush_to_device(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const int error = fd >= 0 && ::fsync(fd) == 0 ? 0 : errno;
  if (fd >= 0) ::close(fd);
  if (error != 0) throw path_error("flushing", path, error);
}

/// Writes a file by calling f(stream), and flushes it to the device. Throws checkpoint_error, and
/// what f throws.
template <class F>
void write_file(const fs::path& path, const F& f) {
  std::ofstream out;
  errno = 0;
  try {
    out.exceptions(std::ios::badbit | std::ios::failbit);  // throws while errno is still set
    out.open(path, std::ios::binary);
    f(static_cast<std::ostream&>(out));
    out.close();
  } catch (const std::exception&) {
    if (out) throw;
    throw path_error("writing", path);
  }
  flush_to_device(path);
}

/// Entry of the manifest for one file. The digest is not a CRC-32C, since a file consists of
/// sections that end in their own CRC-32C: the CRC-32C over a section and its CRC is constant.
struct file_sum {
  std::uint64_t bytes = 0;
  std::uint64_t digest = 0;
  friend bool operator==(const file_sum&, const file_sum&) = default;
};

/// Opens a file to read; the stream is not open if the file does not exist. Throws on other errors:
/// they do not prove damage, and a checkpoint that counts as damaged is soon removed.
[[nodiscard, gnu::cold]] inline std::ifstream open_file(const fs::path& path) {
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in && errno != ENOENT) throw path_error("opening", path);
  return in;
}
/// Returns size and digest of a file; nothing if it does not exist or cannot be read.
[[nodiscard, gnu::cold]] inline std::optional<file_sum> sum_of(const fs::path& path) {
  std::ifstream in = open_file(path);
  if (!in) return std::nullopt;
  std::vector<char> piece(std::size_t{1} << 20U);
  digest contents;
  std::uint64_t bytes = 0;
  while (in.read(piece.data(), static_cast<std::streamsize>(piece.size())), in.gcount() > 0) {
    contents.add(piece.data(), static_cast<std::size_t>(in.gcount()));
    bytes += static_cast<std::uint64_t>(in.gcount());
  }
  if (in.bad()) return std::nullopt;
  return file_sum{bytes, contents.value()};
}

[[nodiscard]] inline std::string step_name(std::uint64_t step) {
  return "step-" + std::to_string(step);
}
[[nodiscard]] inline std::string rank_name(std::size_t rank) {
  return "rank-" + std::to_string(rank);
}

inline constexpr std::uint64_t manifest_format = 2;

[[nodiscard, gnu::cold]] inline std::string manifest_of(std::uint64_t step,
                                                        const std::vector<file_sum>& ranks) {
  std::ostringstream text;
  text << "onebit checkpoint " << manifest_format << "\nstep " << step << "\nranks " << ranks.size()
       << "\n";
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    text << "rank " << r << " bytes " << ranks[r].bytes << " digest " << ranks[r].digest << "\n";
  }
  const std::string lines = std::move(text).str();
  return lines + "end " + std::to_string(crc32c(lines.data(), lines.size())) + "\n";
}

/// Parses a manifest. Returns the entries of its ranks; nothing if the manifest is damaged.
[[nodiscard, gnu::cold]] inline std::optional<std::vector<file_sum>> read_manifest(
    std::istream& in, std::uint64_t step) {
  constexpr std::size_t most = std::size_t{1} << 24U;  // bytes: enough for 300,000 ranks
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
  std::uint64_t format = 0, its_step = 0, n = 0;
  if (!skip("onebit checkpoint ") || !number(format) || format != manifest_format) return {};
  if (!skip("\nstep ") || !number(its_step) || its_step != step) return {};
  if (!skip("\nranks ") || !number(n) || n > text.size() || !skip("\n")) return {};
  std::vector<file_sum> ranks;
  for (std::uint64_t r = 0; r < n; ++r) {
    std::uint64_t its_rank = 0;
    file_sum sum;
    if (!skip("rank ") || !number(its_rank) || its_rank != r || !skip(" bytes ") ||
        !number(sum.bytes) || !skip(" digest ") || !number(sum.digest) || !skip("\n")) {
      return {};
    }
    ranks.push_back(sum);
  }
  const std::uint32_t lines = crc32c(text.data(), text.size() - rest.size());
  std::uint32_t written = 0;
  if (!skip("end ") || !number(written) || written != lines || rest != "\n") return {};
  return ranks;
}

/// Returns a step's directory: `.former` if a kill between two renames has left only that one.
[[nodiscard, gnu::cold]] inline fs::path place_of(const fs::path& root, std::uint64_t step) {
  const fs::path whole = root / step_name(step);
  std::error_code failed;
  const fs::path former = whole.string() + former_suffix;
  return !fs::is_directory(whole, failed) && fs::is_directory(former, failed) ? former : whole;
}
[[nodiscard, gnu::cold]] inline std::optional<std::vector<file_sum>> manifest_at(
    const fs::path& root, std::uint64_t step) {
  std::ifstream in = open_file(place_of(root, step) / "manifest");
  return in ? read_manifest(in, step) : std::nullopt;
}

/// Presence of a manifest, which may be damaged. Manifests are written last and removed first.
enum manifest_state : std::uint64_t { is_absent, is_there, is_of_another_format };

[[nodiscard, gnu::cold]] inline manifest_state state_of_manifest(const fs::path& directory) {
  std::error_code failed;
  if (!fs::exists(directory / "manifest", failed) && !failed) return is_absent;
  std::ifstream in(directory / "manifest", std::ios::binary);
  std::uint64_t format = 0;
  in.ignore(sizeof "onebit checkpoint " - 1) >> format;
  return in && format != manifest_format ? is_of_another_format : is_there;
}
[[gnu::cold]] inline void tell_passed_over(const fs::path& directory, const char* why) {
  std::fprintf(stderr, "onebit: load_latest: %s is %s, and is passed over\n",
               directory.string().c_str(), why);
}

/// Returns step and suffix of all checkpoint directories, damaged or not, newest first. Ignores
/// other entries (step-7.tar, a file step-7, step-007): they belong to the user. Throws if the root
/// cannot be read.
[[nodiscard, gnu::cold]] inline std::vector<std::pair<std::uint64_t, std::string>> all_directories(
    const fs::path& root) {
  std::vector<std::pair<std::uint64_t, std::string>> all;
  if (!fs::exists(root)) return all;
  for (const auto& entry : fs::directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    std::uint64_t step = 0;
    if (name.rfind("step-", 0) != 0) continue;
    const char* const end = name.data() + name.size();
    const auto parsed = std::from_chars(name.data() + 5, end, step);
    const std::string suffix(parsed.ptr, end);
    std::error_code failed;
    if (parsed.ec != std::errc() || step_name(step) + suffix != name) continue;
    if (!suffix.empty() && suffix != part_suffix && suffix != former_suffix) continue;
    if (entry.is_directory(failed)) all.emplace_back(step, suffix);
  }
  std::sort(all.begin(), all.end(), std::greater<>());
  return all;
}
/// Returns the steps that have a checkpoint, damaged or not, newest first.
[[nodiscard, gnu::cold]] inline std::vector<std::uint64_t> all_steps(const fs::path& root) {
  std::vector<std::uint64_t> steps;
  for (const auto& [step, suffix] : all_directories(root)) {
    if (suffix != part_suffix && (steps.empty() || steps.back() != step)) steps.push_back(step);
  }
  return steps;
}

/// Removes a checkpoint, manifest first, so that a partly removed directory is no checkpoint.
[[gnu::cold]] inline void remove_checkpoint(const fs::path& directory) {
  fs::remove(directory / "manifest");
  fs::remove_all(directory);
}
/// Cleans up after saves that failed or were killed: removes their files, and renames a `.former`
/// checkpoint back unless its replacement is there.
[[gnu::cold]] inline void clear_unfinished(const fs::path& root) {
  for (const auto& [step, suffix] : all_directories(root)) {
    if (suffix.empty()) continue;
    const fs::path whole = root / step_name(step), other = whole.string() + suffix;
    if (suffix == former_suffix && !fs::is_directory(whole)) {
      fs::rename(other, whole);
    } else {
      remove_checkpoint(other);
    }
  }
}

/// Gathers three numbers from every rank. Collective.
template <class Optimizer>
std::vector<std::array<std::uint64_t, 3>> tell_all(Optimizer& o,
                                                   const std::array<std::uint64_t, 3>& mine) {
  std::vector<std::array<std::uint64_t, 3>> all(static_cast<std::size_t>(o.size()));
  o.transport().host_all_gather(mine.data(), all.data(), sizeof mine);
  return all;
}
/// Runs f(x, y); gathers {1, x, y} from all ranks. Collective: throws on all if f throws on one.
template <class Optimizer, class F>
std::vector<std::array<std::uint64_t, 3>> together(Optimizer& o, const char* what,
                                                   const fs::path& root, const F& f) {
  std::string failure;
  std::array<std::uint64_t, 3> mine{0, 0, 0};  // success, and two results of f
  try {
    f(mine[1], mine[2]);
    mine[0] = 1;
  } catch (const fs::filesystem_error& e) {
    failure = message("checkpoint: ", e.what(), hint_of(e.path1(), e.code().value()));
  } catch (const std::exception& e) {
    failure = e.what();
  }
  auto all = tell_all(o, mine);
  if (!failure.empty()) throw checkpoint_error(failure);
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r][0] == 0) {
      throw peer_failed(
          message(what, ": failed on rank ", r, ", which says why, under ", root.string()));
    }
  }
  return all;
}

/// Opens the file of a rank at the trainer's part, or, with `behind`, at the optimizer's part.
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
/// True if the files that rank `rank` of n checks (every n-th) agree with the manifest.
[[nodiscard, gnu::cold]] inline bool are_whole(const fs::path& directory,
                                               const std::vector<file_sum>& files, std::size_t rank,
                                               std::size_t n) {
  for (std::size_t r = rank; r < files.size(); r += n) {
    if (sum_of(directory / rank_name(r)) != files[r]) return false;
  }
  return true;
}

}  // namespace onebit::inline v0_2::detail::files

/// Checkpoints of a job on disk. A checkpoint is complete or absent, even if processes are killed.
///
/// @verbatim
///   <root>/step-<n>/rank-<r>     one file per rank: 8 bytes, the length of the trainer's part; the
///                                trainer's part; the optimizer's part
///   <root>/step-<n>/manifest     text: bytes and 64-bit digest of each rank's file; written last;
///                                ends with a CRC-32C of its own lines
/// @endverbatim
///
/// A save writes to step-<n>.part, flushes every file to the device, and renames the directory. An
/// existing checkpoint of the step is renamed to step-<n>.former before, and removed afterwards.
/// The root must be one directory that all ranks see, used by one job only. Needs POSIX.
namespace onebit::inline v0_2 {

/// Default number of checkpoints that `save_all` keeps.
inline constexpr int default_kept_checkpoints = 2;

/// Saves all ranks under `root`. `write_own(out)` writes the trainer's data of this rank, at least
/// its parameters; `out` throws if writing fails. Keeps the newest `keep` checkpoints up to this
/// one, and removes older ones. Also removes checkpoints of later steps, which are damaged or from
/// a run that went back to an earlier checkpoint, and first the remains of saves that were killed.
///
/// Cost: each rank writes its file, flushes it and reads it back. Collective. If a rank fails, all
/// throw checkpoint_error; on the failing rank the error names the path and the system's reason.
/// The files of this save are then removed, and older checkpoints stay.
template <class Optimizer, class WriteOwn>
void save_all(Optimizer& optimizer, const std::filesystem::path& root, const WriteOwn& write_own,
              int keep = default_kept_checkpoints) {
  namespace files = detail::files;
  namespace fs = std::filesystem;
  if (keep < 1) {
    throw invalid_input(detail::message("save_all: keep is ", keep, "; must be at least 1"));
  }
  const std::uint64_t step = optimizer.steps();
  const fs::path whole = root / files::step_name(step), part = whole.string() + files::part_suffix;
  const auto rank = static_cast<std::size_t>(optimizer.rank());
  try {
    (void)files::together(optimizer, "save_all", root, [&](auto&, auto&) {
      if (rank != 0) return;
      fs::create_directories(root);
      files::clear_unfinished(root);
      if (::mkdir(part.c_str(), 0777) != 0) throw files::path_error("creating", part);
    });
    const auto written = files::together(optimizer, "save_all", root, [&](auto& bytes, auto& sum) {
      const fs::path file = part / files::rank_name(rank);
      files::write_file(file, [&](std::ostream& out) {
        std::uint64_t length = 0;
        out.write(reinterpret_cast<const char*>(&length), sizeof length);
        write_own(out);
        length = static_cast<std::uint64_t>(out.tellp()) - sizeof length;
        optimizer.save(out);
        out.seekp(0);
        out.write(reinterpret_cast<const char*>(&length), sizeof length);
      });
      const auto found = files::sum_of(file);
      if (!found) throw files::path_error("reading back", file);
      bytes = found->bytes;
      sum = found->digest;
    });
    (void)files::together(optimizer, "save_all", root, [&](auto&, auto&) {
      if (rank != 0) return;
      std::vector<files::file_sum> sums;
      for (const auto& told : written) sums.push_back({told[1], told[2]});
      files::write_file(part / "manifest",
                        [&](std::ostream& out) { out << files::manifest_of(step, sums); });
      files::flush_to_device(part);
      if (fs::is_directory(whole)) fs::rename(whole, whole.string() + files::former_suffix);
      fs::rename(part, whole);
      files::flush_to_device(root);
      files::clear_unfinished(root);
      int n_kept = 0;
      for (const std::uint64_t other : files::all_steps(root)) {
        const fs::path directory = root / files::step_name(other);
        const bool has_manifest = files::state_of_manifest(directory) != files::is_absent;
        if (other <= step && n_kept < keep && has_manifest) {
          ++n_kept;
        } else {
          files::remove_checkpoint(directory);
        }
      }
    });
  } catch (...) {
    try {
      if (rank == 0) files::clear_unfinished(root);
    } catch (const std::exception&) {  // the next save tries again, and reports
    }
    throw;
  }
}

/// Loads the newest undamaged checkpoint under `root`: `read_own(in)` reads the data that
/// `write_own` wrote, then the optimizer is loaded. Returns the checkpoint's number of steps; if
/// there is no checkpoint, changes nothing and returns nothing. Rank 0 reports damaged checkpoints
/// on stderr. The number of ranks may differ if the rule supports it (optimizer::load_old_job): the
/// trainer of rank r then reads the data of rank r mod the old number. `root` may be read-only.
///
/// Cost: the ranks together read all files of the checkpoint once, then each rank its own file.
/// Collective. Throws checkpoint_error on all ranks if there are checkpoints but all are damaged,
/// since a new job would soon remove them. Also throws if the checkpoint does not fit
/// (optimizer::load says why), a file cannot be opened, `read_own` reads beyond the data of
/// `write_own`, or memory runs out: then only the trainer's data may have changed.
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
  (void)files::together(optimizer, "load_latest", root, [&](auto&, auto&) {
    if (rank == 0) steps = files::all_steps(root);
  });
  for (std::size_t i = 0;; ++i) {
    const bool is_left = i < steps.size();
    const auto told =
        files::tell_all(optimizer, news{is_left ? 1U : 0U, is_left ? steps[i] : 0, 0});
    if (told[0][0] == 0) {
      if (passed_over.empty()) return std::nullopt;
      throw checkpoint_error(detail::message("load_latest: all checkpoints under ", root.string(),
                                             " are damaged or incomplete: ", passed_over,
                                             "; repair one, or move them away to start anew"));
    }
    const std::uint64_t step = told[0][1];
    const auto directory = files::place_of(root, step);
    std::size_t n_files = 0;
    const auto looked =
        files::together(optimizer, "load_latest", root, [&](auto& whole, auto& there) {
          // damaged files do not throw; a failed allocation does, and proves no damage
          const auto manifest = files::manifest_at(root, step);
          n_files = manifest ? manifest->size() : 0;
          there = files::state_of_manifest(directory);
          whole = n_files > 0 && files::are_whole(directory, *manifest, rank, n_ranks) ? 1 : 0;
        });
    const auto is_whole = [](const news& one) { return one[1] != 0; };
    if (!std::all_of(looked.begin(), looked.end(), is_whole)) {
      if (looked[0][2] == files::is_absent) continue;  // partly removed: no checkpoint
      const bool is_foreign = looked[0][2] == files::is_of_another_format;
      passed_over += (passed_over.empty() ? "" : ", ") + files::step_name(step) +
                     (is_foreign ? " (of another format)" : "");
      if (rank == 0)
        files::tell_passed_over(directory, is_foreign ? "of another format" : "not whole");
      continue;
    }
    std::unique_ptr<std::ifstream> in;
    (void)files::together(optimizer, "load_latest", root, [&](auto&, auto&) {
      const auto own = files::open_rank(directory, rank % n_files, false);
      const auto begin = own->tellg();
      read_own(static_cast<std::istream&>(*own));
      in = files::open_rank(directory, rank % n_files, true);
      own->clear();  // clears eof, since only the position matters
      const auto has = in->tellg() - begin;
      if (own->tellg() - begin > has) {
        throw checkpoint_error(detail::message("load_latest: read_own reads more than the ", has,
                                               " bytes that write_own wrote"));
      }
    });
    if (n_files == n_ranks) {
      optimizer.load(*in, with);
    } else if constexpr (Optimizer::resumes) {
      optimizer.load_old_job(
          n_files, [&](std::size_t r) { return files::open_rank(directory, r, true); }, with);
    } else {
      throw checkpoint_error(detail::message("load_latest: the checkpoint of step ", step,
                                             " is of ", n_files, " ranks, this job has ", n_ranks,
                                             ", and its rule is no ResumingRule"));
    }
    return step;
  }
}

}  // namespace onebit::inline v0_2
