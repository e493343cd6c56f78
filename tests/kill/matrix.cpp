// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The kill matrix: a job is struck in one place, must end in time with an error that says what is
// known on every rank that is left, and the job that is started again from its checkpoints must end
// with the bits of one that nothing struck.
//
//   test_kill [--long] [--only <kind>] [--ranks <n>] [--worker <kill_worker> --mpirun <program and
//   options>]
//
// Over threads in this process, and, given a worker, over MPI with real processes. Without --long
// a few cases of each kind.

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "../support/scratch.hpp"
#include "job.hpp"

using namespace onebit_test;
using namespace onebit_test::kill;
namespace fs = std::filesystem;
using clock_type = std::chrono::steady_clock;

namespace {

constexpr std::chrono::milliseconds deadline(1000);

struct verdict {
  std::string failure;  ///< empty: as it must be
  bool struck = true;   ///< the fault's place was reached
  double waited = 0;    ///< seconds, the longest of all ranks after the fault
};

std::string to_text(kind k, int n, const fault& f) {
  std::ostringstream out;
  out << kind_names[static_cast<int>(k)] << ", " << n << " ranks, "
      << what_names[static_cast<int>(f.what)] << " of rank " << f.victim << " in "
      << where_names[static_cast<int>(f.where)] << " " << f.step;
  if (f.what != what::nan) out << ", " << f.at << (f.after ? " after" : "");
  return std::move(out).str();
}

using digests = std::vector<std::uint64_t>;

digests run_threads(kind k, int n, const fs::path& root, const fault& f) {
  return on_ranks(
      n, [&](onebit::threads t) { return run(k, t, root, f); }, std::chrono::seconds(20));
}

/// What a job ends with that nothing struck; computed once.
const digests& undisturbed(kind k, int n) {
  static std::map<std::pair<kind, int>, digests> known;
  digests& d = known[{k, n}];
  if (d.empty()) {
    const scratch root;
    d = run_threads(k, n, root.path, {});
  }
  return d;
}
/// The same with the same bad gradient, which in a local step counts on one rank.
digests expected(kind k, int n, const fault& f) {
  if (f.what != what::nan) return undisturbed(k, n);
  const scratch root;
  return run_threads(k, n, root.path, f);
}

verdict strike_threads(kind k, int n, const fault& f) {
  const scratch root;
  verdict v;
  const auto start = clock_type::now();
  try {
    const digests d = run_threads(k, n, root.path, f);
    if (f.what == what::nan) {
      // another rank's bad gradient is as good as this one's: all skip and try again
      const bool same = d == undisturbed(k, n);
      const bool has_local_steps = k == kind::zero_one_adam;
      if (!same && !has_local_steps) v.failure = "other bits than without";
      return v;
    }
    v.struck = false;
    if (d != undisturbed(k, n)) v.failure = "other bits, though nothing was struck";
    return v;
  } catch (const std::exception&) {
    v.waited = std::chrono::duration<double>(clock_type::now() - start).count();
    if (v.waited > 10) v.failure = "a rank waited for its time-out";
  }
  try {
    if (run_threads(k, n, root.path, {}) != undisturbed(k, n)) {
      v.failure = "resumed: other bits than never struck";
    }
  } catch (const std::exception& e) {
    v.failure = std::string("resumed: ") + e.what();
  }
  return v;
}

// -- real processes ---------------------------------------------------------------------------

struct programs {
  std::string worker, mpirun;
};

/// Runs the worker; true when all ranks ended well.
bool run_processes(const programs& p, kind k, int n, const fs::path& root, const fault& f) {
  std::ostringstream line;
  line << "timeout -s KILL 60 " << p.mpirun << " -n " << n << " " << p.worker << " "
       << static_cast<int>(k) << " " << static_cast<int>(f.what) << " " << static_cast<int>(f.where)
       << " " << f.victim << " " << f.step << " " << f.at << " " << (f.after ? 1 : 0) << " "
       << root.string() << " " << deadline.count() << " > " << (root / "output").string()
       << " 2>&1";
  return std::system(line.str().c_str()) == 0;
}
std::string read(const fs::path& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return std::move(text).str();
}
digests read_digests(const fs::path& root, int n) {
  digests d;
  for (int r = 0; r < n; ++r) {
    d.push_back(std::strtoull(read(root / ("digest-" + std::to_string(r))).c_str(), nullptr, 10));
  }
  return d;
}

/// What the survivors of a fault were told, each in time. On two levels, or with shards, a rank may
/// wait for one that waits for the victim: then some other rank names it.
void check_survivors(kind k, int n, const fault& f, const fs::path& root, verdict& v) {
  bool is_named = false, was_told = false;
  for (int r = 0; r < n && v.failure.empty(); ++r) {
    if (r == f.victim) continue;
    std::istringstream told(read(root / ("error-" + std::to_string(r))));
    double ms = -1;
    std::string text;
    told >> ms;
    std::getline(told, text);
    const std::string who = "rank " + std::to_string(r) + " ";
    // mpirun ends the others as soon as one is killed: who was told nothing did not wait either
    if (ms < 0 && f.what == what::kill) continue;
    if (ms < 0) v.failure = who + "was told nothing: " + read(root / "output").substr(0, 500);
    v.waited = std::max(v.waited, ms / 1000);
    if (ms > static_cast<double>(deadline.count()) + 1000) v.failure = who + "waited too long";
    const bool names_victim = text.find("rank " + std::to_string(f.victim)) != std::string::npos;
    is_named = is_named || names_victim;
    was_told = was_told || ms >= 0;
    const bool must_name = !is_layered(k) || text.find(": rank ") == std::string::npos;
    if (ms >= 0 && !names_victim && must_name) {
      v.failure = who + "was not told whom it missed:" + text;
    }
  }
  if (was_told && !is_named && v.failure.empty()) v.failure = "no rank names the victim";
}

verdict strike_processes(const programs& p, kind k, int n, const fault& f) {
  const scratch root;
  verdict v;
  const auto start = clock_type::now();
  const bool ended_well = run_processes(p, k, n, root.path, f);
  const double seconds = std::chrono::duration<double>(clock_type::now() - start).count();
  if (seconds > 50) {
    v.failure = "the job hung: " + read(root.path / "output").substr(0, 500);
    return v;
  }
  if (ended_well) {
    v.struck = f.what == what::nan;
    if (read_digests(root.path, n) != expected(k, n, f)) v.failure = "other bits than threads";
    return v;
  }
  if (f.what == what::nan) {
    v.failure = "a bad gradient ended the job: " + read(root.path / "output").substr(0, 500);
    return v;
  }
  check_survivors(k, n, f, root.path, v);
  if (!v.failure.empty()) return v;
  for (int r = 0; r < n; ++r) fs::remove(root.path / ("error-" + std::to_string(r)));
  if (!run_processes(p, k, n, root.path, {})) {
    v.failure =
        "resumed: " + read(root.path / "error-0") + read(root.path / "output").substr(0, 500);
  } else if (read_digests(root.path, n) != undisturbed(k, n)) {
    v.failure = "resumed: other bits than never struck";
  }
  return v;
}

// -- the matrix -------------------------------------------------------------------------------

struct test {
  kind k;
  int n;
  fault f;
};

/// The places of a kind: each of its phases, saving and loading.
std::vector<fault> places(kind k, bool all) {
  // warm-up, the step of the freeze, refreshes and compressed steps; or exchanges and local steps
  std::vector<std::uint64_t> at = {1, 3, 4, 6, 9};
  if (k == kind::adam) at = {0, 7};
  if (k == kind::zero_one_adam) at = {0, 4, 5, 6, 8};
  if (!all) at = {1, 6};
  std::vector<fault> list;
  for (const std::uint64_t s : at) {
    for (const int c : all ? std::vector<int>{0, 1, 3} : std::vector<int>{0}) {
      list.push_back({what::nothing, where::step, 0, s, c, false});
      if (all) list.push_back({what::nothing, where::step, 0, s, c, true});
    }
  }
  for (const int c : all ? std::vector<int>{0, 1, 2} : std::vector<int>{2}) {
    list.push_back({what::nothing, where::save, 0, 8, c, false});
    list.push_back({what::nothing, where::save, 0, 8, c, true});
  }
  for (const int c : all ? std::vector<int>{0, 1} : std::vector<int>{}) {
    list.push_back({what::nothing, where::load, 0, 0, c, false});
    list.push_back({what::nothing, where::build, 0, 0, c, true});
  }
  return list;
}

/// Can so many ranks make one?
bool fits(kind k, int n) {
  if (has_shards(k)) return n % 2 == 0;
  return k != kind::by_node || n % 4 == 0;
}

std::vector<test> over_threads(bool all) {
  std::vector<test> tests;
  const std::vector<int> sizes = all ? std::vector<int>{2, 3, 4, 5, 8} : std::vector<int>{2, 4};
  for (int k = 0; k < n_kinds; ++k) {
    for (const int n : sizes) {
      if (has_shards(static_cast<kind>(k)) && n % 2 != 0) continue;
      if (!all && k >= static_cast<int>(kind::shards) && n < 4) continue;
      for (fault f : places(static_cast<kind>(k), all)) {
        for (const what w : {what::exception, what::nan}) {
          if (w == what::nan && (f.where != where::step || f.at != 0 || f.after)) continue;
          f.what = w;
          for (int v = 0; v < n; v += all ? 1 : n - 1) {
            f.victim = v;
            tests.push_back({static_cast<kind>(k), n, f});
          }
        }
      }
    }
  }
  return tests;
}

std::vector<test> over_mpi(bool all) {
  std::vector<test> tests;
  if (!all) {
    const auto at = [](what w, where p, std::uint64_t s, int c, bool after = false) {
      return fault{w, p, 1, s, c, after};
    };
    return {{kind::one_bit_adam, 3, at(what::stop, where::step, 6, 1)},
            {kind::one_bit_adam, 2, at(what::kill, where::step, 3, 0)},
            {kind::buckets, 3, at(what::exception, where::step, 6, 3)},
            {kind::zero_one_adam, 2, at(what::allocation, where::step, 0, 0)},
            {kind::one_bit_adam, 3, at(what::nan, where::step, 6, 0)},
            {kind::by_node, 4, at(what::stop, where::step, 6, 1)},
            {kind::one_bit_adam, 2, at(what::kill, where::save, 8, 2)}};
  }
  for (int k = 1; k < n_kinds; ++k) {
    for (const int n : {2, 3, 4, 5, 8}) {
      if (!fits(static_cast<kind>(k), n)) continue;
      int turn = 0;
      for (fault f : places(static_cast<kind>(k), true)) {
        // what strikes and whom goes round: each pair with each place, over the sizes; with many
        // processes every fourth place
        const std::array<what, 3> kinds = {what::kill, what::stop, what::exception};
        f.what = kinds[static_cast<std::size_t>(n > 4 ? turn / 4 + k : turn + n) % 3];
        f.victim = (n > 4 ? turn / 4 * 3 + k : turn) % n;
        if (n <= 4 || turn % 4 == k % 4) tests.push_back({static_cast<kind>(k), n, f});
        ++turn;
      }
      for (const std::uint64_t s : {1U, 3U, 6U}) {
        tests.push_back({static_cast<kind>(k), n, {what::nan, where::step, n - 1, s, 0, false}});
        tests.push_back(
            {static_cast<kind>(k), n, {what::allocation, where::step, n - 1, s, 0, false}});
      }
    }
  }
  return tests;
}

struct tally {
  int cases = 0, struck = 0, failed = 0;
  double longest = 0;

  void add(const test& t, const verdict& v) {
    ++cases;
    struck += v.struck ? 1 : 0;
    longest = std::max(longest, v.waited);
    if (v.failure.empty()) return;
    ++failed;
    std::cout << "FAILED: " << to_text(t.k, t.n, t.f) << ": " << v.failure << std::endl;
  }
  void print(const char* name) const {
    std::cout << name << ": " << cases << " cases, " << struck << " struck, " << failed
              << " failed, longest wait " << longest << " s" << std::endl;
  }
};

/// Every allocation of an operation fails in turn, until there are no more. (Of a save of rank 0,
/// up to the first one that does no harm: libstdc++ lists directories where nothing may throw.)
void fail_allocations(bool all, const std::string& only, tally& sum) {
  for (int k = 0; k < n_kinds; ++k) {
    if (!only.empty() && only != kind_names[k]) continue;
    std::vector<fault> at = {{what::allocation, where::step, 1, 0, 0, false},
                             {what::allocation, where::step, 1, 3, 0, false},
                             {what::allocation, where::step, 0, 4, 0, false},
                             {what::allocation, where::save, 0, 4, 0, false},
                             {what::allocation, where::save, 1, 4, 0, false},
                             {what::allocation, where::load, 1, 0, 0, false},
                             {what::allocation, where::build, 1, 0, 0, false}};
    if (!all) at.resize(2);
    for (fault f : at) {
      const int most = all ? 400 : 12;
      for (f.at = 0; f.at < most; ++f.at) {
        const test t{static_cast<kind>(k), is_layered(static_cast<kind>(k)) ? 4 : 2, f};
        allocation_failed = false;
        verdict v = strike_threads(t.k, t.n, t.f);
        const bool harmed = v.struck || !v.failure.empty();
        const bool stops = f.where == where::save && f.victim == 0;
        if (!harmed && (stops || !allocation_failed)) break;
        v.struck = true;
        sum.add(t, v);
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  bool all = false;
  std::string only;
  int ranks = 0;
  programs p;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--long") {
      all = true;
    } else if (arg == "--only" && i + 1 < argc) {
      only = argv[++i];
    } else if (arg == "--ranks" && i + 1 < argc) {
      ranks = std::atoi(argv[++i]);
    } else if (arg == "--worker" && i + 1 < argc) {
      p.worker = argv[++i];
    } else if (arg == "--mpirun" && i + 1 < argc) {
      p.mpirun = argv[++i];
    } else {
      std::cerr << "test_kill [--long] [--only <kind>] [--ranks <n>] [--worker <kill_worker> "
                   "--mpirun <program>]\n";
      return EXIT_FAILURE;
    }
  }
  int failed = 0;
  tally threads, allocations, processes;
  const auto wanted = [&](const test& t) {
    return (only.empty() || only == kind_names[static_cast<int>(t.k)]) &&
           (ranks == 0 || ranks == t.n);
  };
  for (const test& t : over_threads(all)) {
    if (wanted(t)) threads.add(t, strike_threads(t.k, t.n, t.f));
  }
  threads.print("threads");
  if (ranks == 0) fail_allocations(all, only, allocations);
  allocations.print("allocations");
  failed = threads.failed + allocations.failed;
  if (!p.worker.empty()) {
    for (const test& t : over_mpi(all)) {
      if (wanted(t)) processes.add(t, strike_processes(p, t.k, t.n, t.f));
    }
    processes.print("processes");
    failed += processes.failed;
  }
  for (const tally* t : {&threads, &processes}) {
    if (all || t->struck == t->cases) continue;
    std::cout << "FAILED: " << t->cases - t->struck << " faults have no such place" << std::endl;
    ++failed;
  }
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
