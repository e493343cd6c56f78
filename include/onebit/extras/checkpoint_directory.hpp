// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <ios>
#include <istream>
#include <locale>
#include <memory>
#include <onebit/core/archive.hpp>
#include <onebit/core/digest.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/number_text.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

/// The files of a directory of checkpoints: how they are written and read back, and which of them
/// are onebit's own. Nothing here communicates.
///
/// Only these names are ever written or removed: step-N, step-N.part and step-N.former, and
/// in them `manifest` and rank-R. What others have put into step-N stays there, also if its
/// checkpoint is replaced; without one, the directory stays. A link is removed itself; what it
/// leads to stays.
namespace onebit { inline namespace v0_3 { namespace detail { namespace files {

namespace fs = std::filesystem;

inline constexpr const char* part_suffix = ".part";      ///< of what is being written, or removed
inline constexpr const char* former_suffix = ".former";  ///< of a checkpoint being replaced

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
  std::string text = error_text("checkpoint: ", what, " ", path.string(), " failed");
  if (error != 0) text += ": " + std::generic_category().message(error);
  return checkpoint_error(text + hint_of(path, error));
}

// -- writing -------------------------------------------------------------------------------------

/// Flushes a file or directory to the device. Throws checkpoint_error.
[[gnu::cold]] inline void flush_to_device(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const int error = fd >= 0 && ::fsync(fd) == 0 ? 0 : errno;
  if (fd >= 0) ::close(fd);
  if (error != 0) throw path_error("flushing", path, error);
}

/// File whose positions may count from a later byte than its first: a trainer's part begins at its
/// position 0. Remembers if a write was cut short: an iterator that writes tells its stream
/// nothing.
class file_buffer final : public std::filebuf {
 public:
  void count_from(std::streamoff byte) { start_ = byte; }
  [[nodiscard]] bool was_cut_short() const { return cut_short_; }

 protected:
  pos_type seekoff(off_type by, std::ios::seekdir from, std::ios::openmode mode) override {
    const pos_type before = std::filebuf::seekoff(0, std::ios::cur, mode);
    const pos_type at = std::filebuf::seekoff(from == std::ios::beg ? by + start_ : by, from, mode);
    if (at != failed && off_type(at) >= start_) return at - start_;
    if (before != failed) std::filebuf::seekpos(before, mode);
    return failed;
  }
  pos_type seekpos(pos_type at, std::ios::openmode mode) override {
    return seekoff(off_type(at), std::ios::beg, mode);
  }
  std::streamsize xsputn(const char* data, std::streamsize n) override {
    const std::streamsize written = std::filebuf::xsputn(data, n);
    cut_short_ = cut_short_ || written < n;
    return written;
  }
  int_type overflow(int_type c) override {
    const int_type done = std::filebuf::overflow(c);
    cut_short_ = cut_short_ || traits_type::eq_int_type(done, traits_type::eof());
    return done;
  }

 private:
  static inline const pos_type failed{off_type(-1)};
  std::streamoff start_ = 0;
  bool cut_short_ = false;
};

/// Writes a file by calling f(stream, file_buffer), and flushes it to the device. The stream is in
/// the classic locale, whatever the program's is. Throws checkpoint_error, and what f throws.
template <class F>
void write_file(const fs::path& path, const F& f) {
  file_buffer file;
  std::ostream out(&file);
  out.imbue(std::locale::classic());
  errno = 0;
  try {
    out.exceptions(std::ios::badbit | std::ios::failbit);  // throws while errno is still set
    if (file.open(path, std::ios::out | std::ios::binary) == nullptr)
      out.setstate(std::ios::badbit);
    f(out, file);
    if (file.close() == nullptr || file.was_cut_short()) out.setstate(std::ios::badbit);
    if (!out) throw path_error("writing", path);  // f has switched exceptions off
  } catch (const std::exception&) {
    if (out) throw;
    throw path_error("writing", path);
  }
  flush_to_device(path);
}

// -- reading -------------------------------------------------------------------------------------

/// Entry of the manifest for one file. The digest is not a CRC-32C, since a file consists of
/// sections that end in their own CRC-32C: the CRC-32C over a section and its CRC is constant.
struct file_sum {
  std::uint64_t bytes = 0;
  std::uint64_t digest = 0;
  friend bool operator==(const file_sum&, const file_sum&) = default;
};

/// Opens a file to read, in the classic locale; the stream is not open if the file does not exist.
/// Throws on other errors: they do not prove damage, and what counts as damaged is soon removed.
[[nodiscard, gnu::cold]] inline std::ifstream open_file(const fs::path& path) {
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in && errno != ENOENT && errno != ENOTDIR) throw path_error("opening", path);
  in.imbue(std::locale::classic());
  return in;
}
/// Returns size and digest of a file; nothing if it does not exist or cannot be read.
[[nodiscard, gnu::cold]] inline std::optional<file_sum> sum_of(const fs::path& path) {
  std::ifstream in = open_file(path);
  if (!in) return std::nullopt;
  std::vector<char> piece(std::size_t{1} << 20U);
  digest contents;
  std::uint64_t bytes = 0;
  while (in.read(piece.data(), static_cast<std::streamsize>(piece.size())).gcount() > 0) {
    contents.add(piece.data(), static_cast<std::size_t>(in.gcount()));
    bytes += static_cast<std::uint64_t>(in.gcount());
  }
  if (in.bad()) return std::nullopt;
  return file_sum{bytes, contents.value()};
}

[[nodiscard]] inline std::string step_name(std::uint64_t step) {
  return "step-" + number_text(step);
}
[[nodiscard]] inline std::string rank_name(std::size_t rank) { return "rank-" + number_text(rank); }

/// Opens the file of a rank at the trainer's part, or, with `behind`, at the optimizer's part.
[[nodiscard, gnu::cold]] inline std::unique_ptr<std::ifstream> open_rank(const fs::path& directory,
                                                                         std::size_t rank,
                                                                         bool behind) {
  auto in = std::make_unique<std::ifstream>(directory / rank_name(rank), std::ios::binary);
  in->imbue(std::locale::classic());
  std::uint64_t length = 0;
  in->read(reinterpret_cast<char*>(&length), sizeof length);
  if (behind) in->seekg(static_cast<std::streamoff>(sizeof length + length));
  if (!*in) {
    throw checkpoint_error(
        error_text("checkpoint: ", (directory / rank_name(rank)).string(), " is too short"));
  }
  return in;
}

/// Reads back that an optimizer's state begins at the position of `in` and ends by byte `end` of
/// its file. Throws checkpoint_error.
[[gnu::cold]] inline void check_state(std::istream& in, const fs::path& path, std::uint64_t end) {
  const payload_reader header(in);
  const auto payload = static_cast<std::uint64_t>(in.tellg());
  if (payload <= end && header.length() <= end - payload) return;
  throw checkpoint_error(error_text("checkpoint: reading back ", path.string(),
                                    ": it ends at byte ", end, ", but ", header.length(),
                                    " bytes follow byte ", payload));
}
[[gnu::cold]] inline void check_state(const fs::path& path) {
  std::ifstream in = open_file(path);
  check_state(in, path, fs::file_size(path));
}

// -- manifests -----------------------------------------------------------------------------------

inline constexpr std::string_view manifest_start = "onebit checkpoint ";
inline constexpr std::uint64_t manifest_format = 2;

[[nodiscard, gnu::cold]] inline std::string manifest_of(std::uint64_t step,
                                                        const std::vector<file_sum>& ranks) {
  std::string lines =
      join({manifest_start, manifest_format, "\nstep ", step, "\nranks ", ranks.size(), "\n"});
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    lines += join({"rank ", r, " bytes ", ranks[r].bytes, " digest ", ranks[r].digest, "\n"});
  }
  return lines + join({"end ", crc32c(lines.data(), lines.size()), "\n"});
}

/// Returns the text of a directory's manifest, or nothing if it has none. Throws as open_file.
[[nodiscard, gnu::cold]] inline std::optional<std::string> manifest_in(const fs::path& directory) {
  constexpr std::size_t most = std::size_t{1} << 24U;  // bytes: enough for 300,000 ranks
  std::ifstream in = open_file(directory / "manifest");
  if (!in) return std::nullopt;
  std::string text;
  char piece[4096];
  while (in.read(piece, sizeof piece).gcount() > 0 && text.size() <= most) {
    text.append(piece, static_cast<std::size_t>(in.gcount()));
  }
  return text;
}
/// Parses a manifest. Returns the entries of its ranks; nothing if the manifest is damaged.
[[nodiscard, gnu::cold]] inline std::optional<std::vector<file_sum>> read_manifest(
    std::string_view text, std::uint64_t step) {
  std::string_view rest = text;
  const auto skip = [&](std::string_view word) {
    const bool there = rest.starts_with(word);
    if (there) rest.remove_prefix(word.size());
    return there;
  };
  std::uint64_t format = 0, its_step = 0, n = 0;
  if (!skip(manifest_start) || !take_number(rest, format) || format != manifest_format) return {};
  if (!skip("\nstep ") || !take_number(rest, its_step) || its_step != step) return {};
  if (!skip("\nranks ") || !take_number(rest, n) || n > text.size() || !skip("\n")) return {};
  std::vector<file_sum> ranks;
  for (std::uint64_t r = 0; r < n; ++r) {
    std::uint64_t its_rank = 0;
    file_sum sum;
    if (!skip("rank ") || !take_number(rest, its_rank) || its_rank != r || !skip(" bytes ") ||
        !take_number(rest, sum.bytes) || !skip(" digest ") || !take_number(rest, sum.digest) ||
        !skip("\n")) {
      return {};
    }
    ranks.push_back(sum);
  }
  const std::uint32_t lines = crc32c(text.data(), text.size() - rest.size());
  std::uint32_t written = 0;
  if (!skip("end ") || !take_number(rest, written) || written != lines || rest != "\n") return {};
  return ranks;
}
/// True for a manifest of another version of onebit, whose files this one does not know.
[[nodiscard, gnu::cold]] inline bool is_of_another_format(std::string_view text) {
  if (!text.starts_with(manifest_start)) return false;
  text.remove_prefix(manifest_start.size());
  std::uint64_t format = 0;
  return take_number(text, format) && format != manifest_format;
}
/// Returns the files of a checkpoint by its manifest, as a start reads it; nothing if it is
/// damaged.
[[nodiscard, gnu::cold]] inline std::optional<std::vector<file_sum>> files_of(
    const fs::path& directory, std::uint64_t step) {
  const auto text = manifest_in(directory);
  return text ? read_manifest(*text, step) : std::nullopt;
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

// -- what is there, and whose it is --------------------------------------------------------------

/// Directory with the name of a checkpoint, damaged or not.
struct step_directory {
  std::uint64_t step = 0;
  std::string suffix;  ///< "", part_suffix or former_suffix
  fs::path path;
};
/// Returns all directories with the name of a checkpoint, newest first, and a replaced one behind
/// its replacement. Ignores other entries (step-7.tar, a file step-7, step-007): they belong to the
/// user. Throws if the root cannot be read.
[[nodiscard, gnu::cold]] inline std::vector<step_directory> directories_in(const fs::path& root) {
  std::vector<step_directory> all;
  if (!fs::exists(root)) return all;
  for (const auto& entry : fs::directory_iterator(root)) {
    const std::string name = entry.path().filename().string();
    std::string_view rest = name;
    std::uint64_t step = 0;
    if (!rest.starts_with("step-")) continue;
    rest.remove_prefix(5);
    if (!take_number(rest, step)) continue;
    const std::string suffix(rest);
    std::error_code failed;
    if (step_name(step) + suffix != name) continue;
    if (!suffix.empty() && suffix != part_suffix && suffix != former_suffix) continue;
    if (entry.is_directory(failed)) all.push_back({step, suffix, entry.path()});
  }
  std::sort(all.begin(), all.end(), [](const step_directory& a, const step_directory& b) {
    return a.step != b.step ? a.step > b.step : a.suffix < b.suffix;
  });
  return all;
}
/// Returns the directories that hold a checkpoint, or held one.
[[nodiscard, gnu::cold]] inline std::vector<step_directory> checkpoints_in(const fs::path& root) {
  auto all = directories_in(root);
  std::erase_if(all, [](const step_directory& d) { return d.suffix == part_suffix; });
  return all;
}

/// Returns the entries of a directory that a save may have written. `others`: whether there are
/// any other entries.
[[nodiscard, gnu::cold]] inline std::vector<fs::path> own_entries(const fs::path& directory,
                                                                  bool& others) {
  std::vector<fs::path> own;
  others = false;
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    std::string_view rest = name;
    std::size_t rank = 0;
    if (rest.starts_with("rank-")) rest.remove_prefix(5);
    const bool is_rank = take_number(rest, rank) && rank_name(rank) == name;
    if ((is_rank || name == "manifest") && !fs::is_directory(entry.symlink_status())) {
      own.push_back(entry.path());
    } else {
      others = true;
    }
  }
  // the manifest last: without it nobody would know whose the files are
  std::sort(own.begin(), own.end(), std::greater<>());
  return own;
}
/// True for the file of a rank: an optimizer's state stands where its first 8 bytes say.
[[nodiscard, gnu::cold]] inline bool holds_state(const fs::path& file) {
  std::ifstream in = open_file(file);
  std::uint64_t length = 0;
  char magic[sizeof checkpoint_magic] = {};
  in.read(reinterpret_cast<char*>(&length), sizeof length);
  in.seekg(static_cast<std::streamoff>(sizeof length + length));
  in.read(magic, sizeof magic);
  return in && std::memcmp(magic, checkpoint_magic, sizeof magic) == 0;
}
/// True if onebit wrote this directory: by its manifest, or, where that is damaged or gone, if
/// nothing but files of ranks is there, and one of them holds a state.
[[nodiscard, gnu::cold]] inline bool is_checkpoint(const fs::path& directory,
                                                   const std::optional<std::string>& manifest) {
  if (manifest && manifest->starts_with(manifest_start)) return true;
  bool others = false;
  const auto own = own_entries(directory, others);
  return !others && std::any_of(own.begin(), own.end(), holds_state);
}
/// Number of a checkpoint in `known_checkpoints`: of the root, the step and the manifest, which has
/// the digests of all files. Nothing for what onebit did not write, or in another format.
[[nodiscard, gnu::cold]] inline std::optional<std::uint64_t> identity_of(const fs::path& root,
                                                                         const step_directory& d) {
  const auto manifest = manifest_in(d.path);
  if (!is_checkpoint(d.path, manifest) || is_of_another_format(manifest.value_or(""))) return {};
  digest all;
  all.add(fs::weakly_canonical(root).string());
  all.add(d.step);
  all.add(manifest.value_or(""));
  return all.value();
}
/// True for a checkpoint that this object has loaded or saved.
[[nodiscard, gnu::cold]] inline bool is_known(const fs::path& root, const step_directory& d,
                                              const known_checkpoints& known) {
  const auto identity = identity_of(root, d);
  return identity && known.contains(*identity);
}

/// Throws unless a save of `step` can replace and remove what is in its way: what `known` has.
/// Changes nothing.
[[gnu::cold]] inline void check_place(const fs::path& root, std::uint64_t step,
                                      const known_checkpoints& known) {
  std::string later;
  for (const step_directory& d : checkpoints_in(root)) {
    if (d.step < step || is_known(root, d, known)) continue;
    if (!is_checkpoint(d.path, manifest_in(d.path))) continue;  // not onebit's: it stays
    later += (later.empty() ? "" : ", ") + d.path.filename().string();
  }
  if (!later.empty()) {
    throw checkpoint_error(error_text(
        "save_all: step ", step, " is not saved: under ", root.string(), " there is ", later,
        ", which this optimizer neither loaded nor saved, and which would be removed; call "
        "load_latest before the first step to go on from it, or give this job a root of its own, "
        "or move it away"));
  }
  const fs::path whole = root / step_name(step);
  const step_directory in_the_way[] = {{step, "", whole},
                                       {step, former_suffix, whole.string() + former_suffix},
                                       {step, part_suffix, whole.string() + part_suffix}};
  for (const step_directory& d : in_the_way) {
    const fs::file_status status = fs::symlink_status(d.path);
    if (!fs::exists(status)) continue;
    bool others = false;
    if (d.suffix == part_suffix) {
      others = !fs::is_directory(status);
      if (!others) (void)own_entries(d.path, others);
    } else {
      others = !fs::is_directory(d.path) || !is_known(root, d, known);
    }
    if (!others) continue;
    throw checkpoint_error(error_text("save_all: ", d.path.string(), " is in the way of step ",
                                      step, ", and is no checkpoint of onebit; move it away"));
  }
}

// -- removing ------------------------------------------------------------------------------------

/// Removes what a save has written, and the directory if it holds nothing else. Unlinks a link.
[[gnu::cold]] inline void remove_own(const fs::path& root, const step_directory& d) {
  if (fs::is_symlink(d.path)) {
    fs::remove(d.path);
    return;
  }
  fs::path directory = d.path;
  bool others = false;
  std::error_code failed;
  (void)own_entries(directory, others);
  if (!others && d.suffix != part_suffix) {
    // at once: a kill leaves a checkpoint, or remains that the next save clears
    const fs::path part = root / (step_name(d.step) + part_suffix);
    fs::rename(directory, part, failed);
    if (!failed) directory = part;
  }
  for (const fs::path& entry : own_entries(directory, others)) fs::remove(entry);
  if (!others) fs::remove(directory);
}
/// Moves what others have put into a replaced checkpoint to its replacement, under the same name.
[[gnu::cold]] inline void hand_over(const fs::path& former, const fs::path& whole) {
  if (fs::is_symlink(former)) return;  // what a link leads to stays
  bool others = false;
  const auto own = own_entries(former, others);
  if (!others) return;
  std::vector<fs::path> all;
  for (const auto& entry : fs::directory_iterator(former)) all.push_back(entry.path());
  for (const fs::path& entry : all) {
    const fs::path to = whole / entry.filename();
    const bool is_own = std::find(own.begin(), own.end(), entry) != own.end();
    std::error_code failed;  // what cannot be moved stays
    if (!is_own && !fs::exists(fs::symlink_status(to))) fs::rename(entry, to, failed);
  }
}
/// Clears what saves that failed or were killed have left: removes what they wrote, and of a
/// replaced checkpoint and its replacement, which is read for this, one. `only`: after a save of
/// this step that failed; a replacement that is in place is left to the next save.
[[gnu::cold]] inline void clear_unfinished(const fs::path& root, const known_checkpoints& known,
                                           std::optional<std::uint64_t> only = {}) {
  for (const step_directory& d : directories_in(root)) {
    if (only && d.step != *only) continue;
    if (d.suffix == part_suffix) {
      bool others = fs::is_symlink(d.path);
      if (!others) (void)own_entries(d.path, others);
      if (!others) remove_own(root, d);
    }
    if (d.suffix != former_suffix || !is_known(root, d, known)) continue;
    const step_directory whole{d.step, "", root / step_name(d.step)};
    if (fs::exists(fs::symlink_status(whole.path))) {
      if (only || !fs::is_directory(whole.path) || !is_known(root, whole, known)) continue;
      const auto files = files_of(whole.path, d.step);
      const bool is_whole = files && are_whole(whole.path, *files, 0, 1);
      const step_directory &spent = is_whole ? d : whole, &stays = is_whole ? whole : d;
      hand_over(spent.path, stays.path);
      remove_own(root, spent);
      if (is_whole) continue;
    }
    fs::rename(d.path, whole.path);
  }
}
/// Removes all but the newest `keep` checkpoints up to `step`, of those that `known` has, and what
/// the one of `step`, which has been read back, has replaced.
[[gnu::cold]] inline void remove_old(const fs::path& root, std::uint64_t step, int keep,
                                     known_checkpoints& known) {
  int n_kept = 0;
  for (const step_directory& d : checkpoints_in(root)) {
    const auto identity = identity_of(root, d);
    const auto place = identity ? known.find(*identity) : known.end();
    if (place == known.end()) continue;
    if (d.suffix == former_suffix) {
      if (d.step != step) continue;
      hand_over(d.path, root / step_name(step));
      remove_own(root, d);
    } else if (d.step <= step && n_kept < keep && place->second) {
      ++n_kept;
    } else {
      remove_own(root, d);
      known.erase(place);
    }
  }
}

}}}}  // namespace onebit::detail::files
