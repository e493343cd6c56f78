// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A job of two ranks that saves itself all the time is killed: at random moments, and after each
// system call of rank 0 in a save, one after the other. After each kill the newest checkpoint whose
// save had returned, or a newer one, must be loaded, with the parameters and the state of a job
// that was never killed; and the next save must leave nothing but the checkpoints that are kept.
//
//   test_kill_saves [random kills for each mode and directory, 6] [directory...]
//
// The directories are by default those for temporary files and for shared memory. System calls are
// gone through in the last one. The job is in the locale LC_ALL, or else in one that groups
// digits.

#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <locale>
#include <onebit/extras/checkpoint_files.hpp>
#include <optional>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "../support/locales.hpp"
#include "../support/scratch.hpp"
#include "../support/training.hpp"

using namespace onebit_test;
namespace fs = std::filesystem;

namespace {

constexpr int n_ranks = 2;

/// One rank's part of the job. Its first steps are dense; the others are compressed.
struct trainer {
  training<> data;
  decltype(onebit::one_bit_adam(data.groups(), std::declval<onebit::threads>(), frozen_after(3))) o;

  explicit trainer(const onebit::threads& t)
      : o(onebit::one_bit_adam(data.groups(), t, frozen_after(3))) {}
  void save(const fs::path& root, int keep) {
    onebit::save_all(
        o, root, [&](std::ostream& out) { data.write(out); }, keep);
  }
  std::uint64_t load(const fs::path& root) {
    const auto step = onebit::load_latest(o, root, [&](std::istream& in) { data.read(in); });
    return step.value_or(0);
  }
  [[nodiscard]] std::uint64_t digest() {
    onebit::detail::digest d;
    d.add(data.digest());
    d.add(saved(o));
    return d.value();
  }
};

struct mode {
  const char* name;
  int keep;
  int saves;  ///< of each step
};
constexpr mode modes[] = {{"keep 1", 1, 1},
                          {"keep 2", 2, 1},
                          {"keep 1, each step three times", 1, 3},
                          {"keep 2, each step three times", 2, 3}};

/// Goes on from what is there, and writes to `out` the step of each save that has returned, until
/// it is killed. One that is traced is in the last save of its first step.
[[noreturn]] void train_and_save(const fs::path& root, const mode& m, int out, bool is_traced) {
  onebit::run_threads(n_ranks, [&](onebit::threads t) {
    trainer own(t);
    std::uint64_t step = own.load(root);
    const auto tell = [&] {
      if (t.rank() == 0 && write(out, &step, sizeof step) != sizeof step) std::abort();
    };
    tell();
    for (;;) {
      (void)train(own.o, own.data);
      for (int i = 0; i < m.saves; ++i) {
        if (is_traced && i + 1 == m.saves && t.rank() == 0) {
          if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(EXIT_FAILURE);
          (void)raise(SIGSTOP);
        }
        own.save(root, m.keep);
        step = own.o.steps();
        tell();
      }
      if (is_traced) _exit(EXIT_SUCCESS);
    }
  });
  std::abort();
}

/// A job that is never killed, as it is after each step.
class reference {
 public:
  const std::vector<std::uint64_t>& at(std::uint64_t step) {
    while (known_.size() <= step) extend(known_.size() + 500);
    return known_[step];
  }

 private:
  void extend(std::size_t n) {
    std::vector<std::vector<std::uint64_t>> digests(n, std::vector<std::uint64_t>(n_ranks));
    onebit::run_threads(n_ranks, [&](onebit::threads t) {
      trainer own(t);
      for (auto& of_step : digests) {
        of_step[static_cast<std::size_t>(t.rank())] = own.digest();
        (void)train(own.o, own.data);
      }
    });
    known_ = std::move(digests);
  }
  std::vector<std::vector<std::uint64_t>> known_;
};

struct tally {
  int kills = 0, whole = 0, newer = 0, unfinished = 0, strays = 0, lost = 0;
};

/// Starts the job, waits for `until(child)`, kills it, and gives the newest step whose save had
/// returned; nothing, where it ended before.
template <class F>
std::optional<std::uint64_t> kill_job(const fs::path& root, const mode& m, bool is_traced,
                                      const F& until) {
  int ends[2];
  if (pipe(ends) != 0) std::abort();
  const pid_t child = fork();
  if (child < 0) std::abort();
  if (child == 0) train_and_save(root, m, ends[1], is_traced);
  close(ends[1]);
  std::uint64_t step = 0, newest = 0;
  if (read(ends[0], &newest, sizeof newest) != sizeof newest) newest = 0;
  const bool has_ended = !until(child);
  int status = 0;
  if (!has_ended) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
  }
  while (read(ends[0], &step, sizeof step) == sizeof step) newest = step;
  close(ends[0]);
  if (has_ended || !WIFSIGNALED(status)) return std::nullopt;
  return newest;
}

/// Lets a traced job return from `n` system calls; false, where it has ended.
bool return_from(int n, pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);  // stopped by itself
  for (int i = 0; i < 2 * n && WIFSTOPPED(status); ++i) {
    ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    waitpid(child, &status, 0);
  }
  return WIFSTOPPED(status);
}

std::vector<std::string> names_in(const fs::path& root) {
  std::vector<std::string> names;
  for (const auto& e : fs::directory_iterator(root)) names.push_back(e.path().filename().string());
  return names;
}

/// What is loaded after a kill, and what the next save leaves.
void check(const fs::path& root, const mode& m, std::uint64_t newest, reference& never_killed,
           tally& sum) {
  for (const std::string& name : names_in(root)) {
    if (name.find('.') != name.npos) {
      ++sum.unfinished;
      break;
    }
  }
  std::uint64_t loaded = 0;
  std::vector<std::uint64_t> found(n_ranks);
  std::string error;
  try {
    onebit::run_threads(n_ranks, [&](onebit::threads t) {
      trainer own(t);
      const std::uint64_t step = own.load(root);
      found[static_cast<std::size_t>(t.rank())] = own.digest();
      if (t.rank() == 0) loaded = step;
      (void)train(own.o, own.data);
      own.save(root, m.keep);
    });
  } catch (const std::exception& e) {
    error = e.what();
  }
  ++sum.kills;
  const bool is_whole = error.empty() && loaded >= newest && found == never_killed.at(loaded);
  sum.whole += is_whole ? 1 : 0;
  sum.lost += is_whole ? 0 : 1;
  sum.newer += is_whole && loaded > newest ? 1 : 0;
  if (!is_whole) {
    std::cout << "FAILED: saved " << newest << ", loaded " << loaded << " " << error << std::endl;
  }
  // the newest is the one that was just saved; of those before at most keep - 1
  std::vector<std::string> names = names_in(root);
  const auto is_stray = [&](const std::string& name) {
    return name.find('.') != name.npos || !fs::exists(root / name / "manifest");
  };
  const auto n_strays = std::count_if(names.begin(), names.end(), is_stray) +
                        std::max<std::ptrdiff_t>(0, std::ssize(names) - m.keep);
  sum.strays += static_cast<int>(n_strays);
  if (n_strays > 0) std::cout << "FAILED: " << n_strays << " strays after the next save\n";
}

}  // namespace

int main(int argc, char** argv) {
  const int n_kills = argc > 1 ? std::atoi(argv[1]) : 6;
  std::vector<fs::path> directories(argv + std::min(argc, 2), argv + argc);
  if (directories.empty()) {
    directories = {fs::temp_directory_path()};
    if (access("/dev/shm", W_OK) == 0) directories.emplace_back("/dev/shm");
  }
  const char* const its_locale = std::getenv("LC_ALL");
  std::locale::global(its_locale != nullptr ? std::locale(its_locale) : german_numbers());
  std::cout << "locale " << std::locale().name() << ", which prints 36804 as "
            << (std::ostringstream() << 36804).str() << "\n";
  std::mt19937 random(1);
  bool failed = n_kills < 1;
  std::cout << "directory, mode: kills, whole (newer than the last that returned), with unfinished "
               "directories, strays after the next save, lost\n";
  for (const fs::path& directory : directories) {
    setenv("TMPDIR", directory.c_str(), 1);
    for (const mode& m : modes) {
      const scratch root;
      reference never_killed;
      tally at_random, after_calls;
      for (int i = 0; i < n_kills; ++i) {
        const std::chrono::microseconds after(random() % 30000);
        const auto newest = kill_job(root.path, m, false, [&](pid_t) {
          std::this_thread::sleep_for(after);
          return true;
        });
        check(root.path, m, newest.value(), never_killed, at_random);
      }
      const bool calls = m.keep == 1 && &directory == &directories.back();
      for (int n = 1; calls; ++n) {
        const auto newest =
            kill_job(root.path, m, true, [n](pid_t child) { return return_from(n, child); });
        if (!newest) break;
        check(root.path, m, *newest, never_killed, after_calls);
      }
      for (const tally* sum : {&at_random, &after_calls}) {
        if (sum->kills == 0) continue;
        std::cout << directory.string() << ", " << m.name
                  << (sum == &at_random ? ", at random" : ", after each call") << ": " << sum->kills
                  << ", " << sum->whole << " (" << sum->newer << "), " << sum->unfinished << ", "
                  << sum->strays << ", " << sum->lost << std::endl;
        failed = failed || sum->whole != sum->kills || sum->strays > 0;
      }
      if (calls && after_calls.kills == 0) std::cout << "system calls cannot be traced here\n";
    }
  }
  return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
