// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <ios>
#include <istream>
#include <memory>
#include <onebit/core/archive.hpp>
#include <onebit/core/digest.hpp>
#include <onebit/core/error.hpp>
#include <onebit/extras/checkpoint_directory.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

/// What the ranks do together on a directory of checkpoints.
namespace onebit { inline namespace v0_3 { namespace detail { namespace files {

/// What a rank tells the others. `call` is a digest of the call's name.
struct news {
  std::uint64_t call = 0, succeeded = 0, x = 0, y = 0;
};

/// Gathers news from every rank. Collective: throws rank_mismatch if ranks are in other calls.
template <class Optimizer>
std::vector<news> tell_all(Optimizer& o, const char* what, news mine) {
  digest name;
  name.add(std::string_view(what));
  mine.call = name.value();
  std::vector<news> all(static_cast<std::size_t>(o.size()));
  auto comm = o.transport();
  const auto odd = [&](const std::string& why) {
    return rank_mismatch(error_text(what,
                                    ": not every rank calls it now; all ranks must, at the same "
                                    "step: ",
                                    why, comm.where()));
  };
  try {
    comm.host_all_gather(&mine, all.data(), sizeof mine, what);
  } catch (const rank_mismatch& e) {
    throw odd(e.what());
  } catch (const transport_error& e) {
    throw transport_error(error_text(what, ": ", e.what()));
  }
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].call != mine.call) throw odd(join({"rank ", r, " is in another call"}));
  }
  return all;
}
/// Runs f(x, y); gathers x and y from all ranks. Collective: throws on all if f throws on one.
template <class Optimizer, class F>
std::vector<news> together(Optimizer& o, const char* what, const fs::path& root, const F& f) {
  std::exception_ptr failure;
  news mine;
  try {
    f(mine.x, mine.y);
    mine.succeeded = 1;
  } catch (...) {  // whatever it is: the others wait
    failure = std::current_exception();
  }
  auto all = tell_all(o, what, mine);
  try {
    if (failure) std::rethrow_exception(failure);
  } catch (const checkpoint_error&) {
    throw;
  } catch (const invalid_input&) {
    throw;
  } catch (const fs::filesystem_error& e) {
    throw checkpoint_error(
        error_text("checkpoint: ", e.what(), hint_of(e.path1(), e.code().value())));
  } catch (const std::exception& e) {
    throw checkpoint_error(e.what());
  }
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (all[r].succeeded == 0) {
      throw peer_failed(
          error_text(what, ": failed on rank ", r, ", which says why, under ", root.string()));
    }
  }
  return all;
}
/// The error of ranks that do not see the same files.
[[nodiscard, gnu::cold]] inline checkpoint_error not_shared(const char* what, std::size_t rank,
                                                            const std::string& sees) {
  return checkpoint_error(
      error_text(what, ": rank ", rank, sees,
                 ": the ranks have different directories under one name; give all "
                 "ranks one directory that they share"));
}

/// Writes the file of a rank, and reads back that both parts are where a start looks for them.
/// Returns its entry for the manifest.
template <class Optimizer, class WriteOwn>
[[nodiscard]] file_sum write_rank(Optimizer& o, const fs::path& directory, std::size_t rank,
                                  const WriteOwn& write_own) {
  const fs::path path = directory / rank_name(rank);
  std::uint64_t length = 0;
  const auto put_length = [&](std::ostream& out) {
    out.write(reinterpret_cast<const char*>(&length), sizeof length);
  };
  write_file(path, [&](std::ostream& out, file_buffer& file) {
    put_length(out);
    file.count_from(sizeof length);
    write_own(out);
    if (!out) throw path_error("writing", path);
    out.seekp(0, std::ios::end);  // write_own may have gone back
    length = static_cast<std::uint64_t>(out.tellp());
    o.save(out);
    file.count_from(0);
    out.seekp(0);
    put_length(out);
  });
  const auto found = sum_of(path);
  if (!found) throw path_error("reading back", path);
  const auto in = open_rank(directory, rank, true);
  if (static_cast<std::uint64_t>(in->tellg()) != sizeof length + length) {
    throw checkpoint_error(error_text("save_all: reading back ", path.string(), ": not ", length,
                                      " bytes of the trainer, as written, but ",
                                      static_cast<std::uint64_t>(in->tellg()) - sizeof length));
  }
  check_state(*in, path, found->bytes);
  return *found;
}

/// Throws on all ranks if rank 0 has no checkpoint left, but another rank sees one. Collective.
template <class Optimizer>
void refuse_if_others_see(Optimizer& o, const fs::path& root) {
  const auto seen = together(o, "load_latest", root, [&](auto& n, auto&) {
    for (const step_directory& d : checkpoints_in(root)) n += manifest_in(d.path) ? 1 : 0;
  });
  for (std::size_t r = 0; r < seen.size(); ++r) {
    if (seen[r].x == seen[0].x) continue;
    throw not_shared("load_latest", r,
                     join({" sees ", seen[r].x, " checkpoints under ", root.string(),
                           ", rank 0 sees ", seen[0].x}));
  }
}

[[gnu::cold]] inline void tell_passed_over(const fs::path& directory, const char* why) {
  std::fprintf(stderr, "onebit: load_latest: %s is %s, and is passed over\n",
               directory.string().c_str(), why);
}
/// Returns `known` with all checkpoints under a root; those passed over count as damaged.
[[nodiscard, gnu::cold]] inline known_checkpoints with_all_of(
    const fs::path& root, const std::vector<fs::path>& passed_over, known_checkpoints known) {
  for (const step_directory& d : checkpoints_in(root)) {
    const auto identity = identity_of(root, d);
    if (!identity) continue;
    const auto place = std::find(passed_over.begin(), passed_over.end(), d.path);
    known[*identity] = place == passed_over.end() && files_of(d.path, d.step).has_value();
  }
  return known;
}

}}}}  // namespace onebit::detail::files

/// Checkpoints of a job on disk. A checkpoint is complete or absent, even if processes are killed.
///
/// @verbatim
///   <root>/step-<n>/rank-<r>     one file per rank: 8 bytes, the length of the trainer's part; the
///                                trainer's part; the optimizer's part
///   <root>/step-<n>/manifest     text: bytes and 64-bit digest of each rank's file; written last;
///                                ends with a CRC-32C of its own lines
/// @endverbatim
///
/// A save writes to step-<n>.part, flushes every file to the device, reads all of it back, and
/// renames the directory. An existing checkpoint of the step is renamed to step-<n>.former before,
/// and removed afterwards. Files are the same in every locale. The root must be one directory that
/// all ranks see, used by one job only. Needs POSIX.
namespace onebit { inline namespace v0_3 {

/// Default number of checkpoints that `save_all` keeps.
inline constexpr int default_kept_checkpoints = 2;

/// Saves all ranks under `root`. `write_own(out)` writes the trainer's data of this rank, at least
/// its parameters; `out` throws if writing fails, its position 0 is the first byte of that data,
/// and its locale is the classic one.
///
/// Keeps the newest `keep` checkpoints up to this one. Removes others only if this optimizer has
/// loaded or saved them, or found them in `load_latest`: older ones, and later ones, which are
/// damaged or from a run that went back; and what saves that were killed have left. What others
/// have put into its folder stays there; of a link only the link goes. Throws checkpoint_error
/// before it writes or removes anything if this or a later step is there from another run, or if
/// this step's name is taken by what is no checkpoint.
///
/// Cost: each rank writes its file, flushes it and reads it back. Collective. If a rank fails, all
/// throw checkpoint_error (invalid_input for `keep` below 1, on that rank); on the failing rank the
/// error names the path and the system's reason. The files of this save are then removed, and older
/// checkpoints stay.
template <class Optimizer, class WriteOwn>
void save_all(Optimizer& optimizer, const std::filesystem::path& root, const WriteOwn& write_own,
              int keep = default_kept_checkpoints) {
  namespace files = detail::files;
  namespace fs = std::filesystem;
  constexpr const char* what = "save_all";
  const std::uint64_t step = optimizer.steps();
  const fs::path whole = root / files::step_name(step), part = whole.string() + files::part_suffix;
  const auto rank = static_cast<std::size_t>(optimizer.rank());
  detail::known_checkpoints& known = optimizer.checkpoints();
  bool has_begun = false;
  try {
    const auto begun = files::together(optimizer, what, root, [&](auto& of_step, auto&) {
      if (keep < 1) {
        throw invalid_input(detail::error_text("save_all: keep is ", keep, "; must be at least 1"));
      }
      of_step = step;
      if (rank != 0) return;
      files::check_place(root, step, known);
      fs::create_directories(root);
      has_begun = true;
      files::clear_unfinished(root, known);
      if (::mkdir(part.c_str(), 0777) != 0) throw files::path_error("creating", part);
    });
    for (std::size_t r = 0; r < begun.size(); ++r) {
      if (begun[r].x == begun[0].x) continue;
      throw rank_mismatch(detail::error_text("save_all: rank ", r, " is at step ", begun[r].x,
                                             ", rank 0 at step ", begun[0].x));
    }
    const auto written = files::together(optimizer, what, root, [&](auto& bytes, auto& sum) {
      if (rank != 0 && !fs::is_directory(part)) return;  // told below, with what rank 0 sees
      const files::file_sum own = files::write_rank(optimizer, part, rank, write_own);
      bytes = own.bytes;
      sum = own.digest;
    });
    std::vector<files::file_sum> sums;
    for (std::size_t r = 0; r < written.size(); ++r) {
      if (written[r].x == 0) {
        throw files::not_shared(what, r,
                                " has no " + part.string() + ", which rank 0 has made and filled");
      }
      sums.push_back({written[r].x, written[r].y});
    }
    (void)files::together(optimizer, what, root, [&](auto&, auto&) {
      if (rank != 0) return;
      for (std::size_t r = 0; r < sums.size(); ++r) {
        std::error_code failed;
        const fs::path file = part / files::rank_name(r);
        if (fs::file_size(file, failed) == sums[r].bytes && !failed) continue;
        throw files::not_shared(what, 0, " lacks " + file.string() + ", as that rank wrote it");
      }
      const std::string manifest = files::manifest_of(step, sums);
      files::write_file(part / "manifest", [&](std::ostream& out, auto&) {
        out.write(manifest.data(), static_cast<std::streamsize>(manifest.size()));
      });
      files::flush_to_device(part);
      // nothing is replaced or removed before a start would take what replaces it
      if (files::files_of(part, step) != sums) throw files::path_error("reading back", part, 0);
      known[files::identity_of(root, {step, "", part}).value()] = true;
      if (fs::exists(fs::symlink_status(whole))) {
        fs::rename(whole, whole.string() + files::former_suffix);
      }
      fs::rename(part, whole);
      files::flush_to_device(root);
      if (files::files_of(whole, step) != sums) throw files::path_error("reading back", whole, 0);
      files::remove_old(root, step, keep, known);
    });
  } catch (...) {
    try {
      if (has_begun) files::clear_unfinished(root, known, step);
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
  constexpr const char* what = "load_latest";
  const auto rank = static_cast<std::size_t>(optimizer.rank());
  const auto n_ranks = static_cast<std::size_t>(optimizer.size());
  std::vector<files::step_directory> found;
  std::vector<std::filesystem::path> passed_over;
  std::string damaged;  // their names
  detail::known_checkpoints known;
  const auto learn = [&] {
    if (rank == 0) known = files::with_all_of(root, passed_over, optimizer.checkpoints());
  };
  (void)files::together(optimizer, what, root, [&](auto&, auto&) {
    if (rank == 0) found = files::checkpoints_in(root);
  });
  for (std::size_t i = 0;; ++i) {
    const bool is_left = i < found.size();
    const auto told = files::together(optimizer, what, root, [&](auto& step, auto& state) {
      if (!is_left) return;
      step = found[i].step;
      state = found[i].suffix.empty() ? 1 : 2;  // 0: none is left
    });
    if (told[0].y == 0) {
      if (passed_over.empty()) {
        files::refuse_if_others_see(optimizer, root);
        (void)files::together(optimizer, what, root, [&](auto&, auto&) { learn(); });
        optimizer.checkpoints() = std::move(known);
        return std::nullopt;
      }
      throw checkpoint_error(detail::error_text("load_latest: all checkpoints under ",
                                                root.string(),
                                                " are damaged or incomplete: ", damaged,
                                                "; repair one, or move them away to start anew"));
    }
    const std::uint64_t step = told[0].x;
    const std::filesystem::path directory =
        root / (files::step_name(step) + (told[0].y == 2 ? files::former_suffix : ""));
    std::size_t n_files = 0;
    bool is_foreign = false;
    const auto looked = files::together(optimizer, what, root, [&](auto& whole, auto& manifest) {
      // damaged files do not throw; a failed allocation does, and proves no damage
      const auto text = files::manifest_in(directory);
      const auto sums = text ? files::read_manifest(*text, step) : std::nullopt;
      n_files = sums ? sums->size() : 0;
      is_foreign = text && files::is_of_another_format(*text);
      if (text)
        manifest = detail::crc32c(text->data(), text->size()) + std::uint64_t{1};  // 0: absent
      whole = n_files > 0 && files::are_whole(directory, *sums, rank, n_ranks) ? 1 : 0;
    });
    for (std::size_t r = 0; r < looked.size(); ++r) {
      if (looked[r].y == looked[0].y) continue;
      const std::string file = (directory / "manifest").string();
      throw files::not_shared(what, r,
                              looked[r].y == 0   ? " has no " + file + ", which rank 0 has"
                              : looked[0].y == 0 ? " has " + file + ", which rank 0 has not"
                                                 : " has another " + file + " than rank 0");
    }
    const auto is_whole = [](const files::news& one) { return one.x != 0; };
    if (!std::all_of(looked.begin(), looked.end(), is_whole)) {
      if (looked[0].y == 0) continue;  // partly removed: no checkpoint
      passed_over.push_back(directory);
      damaged += (damaged.empty() ? "" : ", ") + directory.filename().string() +
                 (is_foreign ? " (of another format)" : "");
      if (rank == 0) {
        files::tell_passed_over(directory, is_foreign ? "of another format" : "not whole");
      }
      continue;
    }
    std::unique_ptr<std::ifstream> in;
    (void)files::together(optimizer, what, root, [&](auto&, auto&) {
      const auto own = files::open_rank(directory, rank % n_files, false);
      const auto begin = own->tellg();
      read_own(static_cast<std::istream&>(*own));
      in = files::open_rank(directory, rank % n_files, true);
      own->clear();  // clears eof, since only the position matters
      const auto has = in->tellg() - begin;
      if (own->tellg() - begin > has) {
        throw checkpoint_error(detail::error_text("load_latest: read_own reads more than the ", has,
                                                  " bytes that write_own wrote"));
      }
      learn();
    });
    if (n_files == n_ranks) {
      optimizer.load(*in, with);
    } else if constexpr (Optimizer::resumes) {
      optimizer.load_old_job(
          n_files, [&](std::size_t r) { return files::open_rank(directory, r, true); }, with);
    } else {
      throw checkpoint_error(detail::error_text("load_latest: the checkpoint of step ", step,
                                                " is of ", n_files, " ranks, this job has ",
                                                n_ranks, ", and its rule is no ResumingRule"));
    }
    optimizer.checkpoints() = std::move(known);
    return step;
  }
}

}}  // namespace onebit
