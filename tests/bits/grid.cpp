// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#include "grid.hpp"

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iomanip>
#include <map>
#include <sstream>

#include "recorded.hpp"

namespace onebit_test::bits {

namespace {

constexpr std::chrono::seconds timeout{60};

std::vector<rank_run> on_hosts(int n, const onebit::host& backend, const run_on_host& f) {
  std::vector<rank_run> runs(static_cast<std::size_t>(n));
  onebit::run_threads(
      n,
      [&](onebit::threads t) {
        const onebit::host own(backend.threads(), backend.instruction_set());
        runs[static_cast<std::size_t>(t.rank())] = f(t, own);
      },
      timeout);
  return runs;
}

std::vector<rank_run> on_emulated(int n, const run_on_warps& f) {
  std::vector<emulated> backends(static_cast<std::size_t>(n));
  for (auto& b : backends) b = emulated();
  std::vector<emulated_memory> memories(backends.begin(), backends.end());
  std::vector<rank_run> runs(backends.size());
  onebit::run_threads(
      memories,
      [&](onebit::basic_threads<emulated_memory> t) {
        const auto r = static_cast<std::size_t>(t.rank());
        runs[r] = f(t, backends[r]);
      },
      timeout);
  return runs;
}

/// Of all ranks together: one digest over all steps, what it was after each step in 4 bits.
struct whole_run {
  std::uint64_t digest = 0;
  std::string steps{};
  std::uint64_t bytes = 0, collectives = 0;
};

whole_run to_whole(const std::vector<rank_run>& ranks) {
  whole_run all;
  for (std::size_t step = 0; step < n_steps; ++step) {
    for (const rank_run& rank : ranks) add_to(all.digest, rank.digests[step]);
    all.steps += "0123456789abcdef"[all.digest >> 60U];
  }
  for (const rank_run& rank : ranks) {
    all.bytes += rank.bytes;
    all.collectives += rank.collectives;
  }
  return all;
}

std::string hex(std::uint64_t x) {
  std::ostringstream out;
  out << "0x" << std::hex << std::setw(16) << std::setfill('0') << x;
  return std::move(out).str();
}

/// What a failing check shows. A deferred backend's reports need not know the traffic.
std::string to_text(const whole_run& run, bool with_traffic) {
  std::string text = hex(run.digest);
  if (with_traffic) {
    text += ", " + std::to_string(run.bytes) + " bytes, " + std::to_string(run.collectives) +
            " collectives";
  }
  return text;
}

/// What recorded.hpp says, and where to write it anew.
struct recording {
  std::map<std::string, whole_run> runs;
  const char* path = std::getenv("ONEBIT_BITS_RECORD");

  recording() {
    for (const recorded_run& r : recorded) {
      runs[std::string(r.name)] = {r.digest, std::string(r.steps), r.bytes, r.collectives};
    }
  }
  void write() const {
    std::ofstream out(path);
    out << "// SPDX-FileCopyrightText: 2026 The onebit authors\n"
           "// SPDX-License-Identifier: Apache-2.0\n\n"
           "// Written by the program that reads it: see grid.hpp.\n\n"
           "#ifndef ONEBIT_TESTS_BITS_RECORDED_HPP\n"
           "#define ONEBIT_TESTS_BITS_RECORDED_HPP\n\n"
           "#include <cstdint>\n#include <string_view>\n\n"
           "namespace onebit_test::bits {\n\n"
           "/// What all ranks did together.\n"
           "struct recorded_run {\n"
           "  std::string_view name;   ///< algorithm, collective, elements\n"
           "  std::uint64_t digest;    ///< of the parameters after every step\n"
           "  std::string_view steps;  ///< the digest's highest 4 bits after each step\n"
           "  std::uint64_t bytes, collectives;\n"
           "};\n\n"
           "// clang-format off\n"
           "inline constexpr recorded_run recorded[] = {\n";
    for (const auto& [name, run] : runs) {
      out << "    {\"" << name << "\", " << hex(run.digest) << ", \"" << run.steps << "\", "
          << run.bytes << ", " << run.collectives << "},\n";
    }
    out << "};\n// clang-format on\n\n"
           "}  // namespace onebit_test::bits\n\n"
           "#endif  // ONEBIT_TESTS_BITS_RECORDED_HPP\n";
    if (!out.flush()) throw std::runtime_error(std::string("bits: cannot write ") + path);
  }
};

recording& records() {
  static recording all;
  return all;
}

}  // namespace

void ledger::run(const collective_case& c, const element_case& e, const run_on_host& on_host,
                 const run_on_warps& on_warps) {
  const std::string name = algorithm_ + ", " + std::string(c.name) + ", " + std::string(e.name);
  names_.insert(name);
  CAPTURE(name);
  recording& all = records();
  bool is_first = true;
  const auto compare = [&](const std::string& where, const std::vector<rank_run>& ranks,
                           bool with_traffic) {
    CAPTURE(where);
    ++n_runs_;
    const whole_run found = to_whole(ranks);
    if (all.path != nullptr && is_first) all.runs[name] = found;
    is_first = false;
    const auto at = all.runs.find(name);
    CHECK_MESSAGE(at != all.runs.end(), "nothing is recorded");
    if (at == all.runs.end()) return;
    const whole_run& expected = at->second;
    std::size_t equal_steps = 0;  // give or take one in 16 times
    while (equal_steps < n_steps && found.steps[equal_steps] == expected.steps[equal_steps]) {
      ++equal_steps;
    }
    CAPTURE(equal_steps);
    const std::string is = to_text(found, with_traffic);
    const std::string was = to_text(expected, with_traffic);
    CHECK(is == was);
    if (is != was) differing_.insert(name);
  };
  if (on_host) {
    using onebit::host;
    const auto run = [&](const char* where, const host& backend) {
      compare(where, on_hosts(c.n_ranks, backend, on_host), true);
    };
    run("host, scalar", host(1, onebit::isa::scalar));
    run("host, best instructions", host(1));
    run("host, three threads", host(3));
  }
  if (on_warps) compare("emulated warps", on_emulated(c.n_ranks, on_warps), false);
}

void ledger::finish() {
  recording& all = records();
  CHECK(n_runs_ > 0);
  const auto is_own = [&](const std::string& name) { return name.starts_with(algorithm_ + ", "); };
  if (all.path == nullptr) {
    for (const auto& [name, run] : all.runs) {
      if (!is_own(name)) continue;
      CHECK_MESSAGE(names_.contains(name), name, ": recorded, but not in the grid");
    }
    return;
  }
  REQUIRE_MESSAGE(full, "record with ONEBIT_BITS_FULL, all cases");
  // no value for what depends on the backend
  std::erase_if(all.runs, [&](const auto& x) {
    return is_own(x.first) && (!names_.contains(x.first) || differing_.contains(x.first));
  });
  all.write();
}

}  // namespace onebit_test::bits
