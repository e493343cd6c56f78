// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Checkpoints of all ranks in a directory: complete or absent, the newest that is whole is loaded.

#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <onebit/checkpoint_directory/checkpoint_files.hpp>
#include <onebit/onebit.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/failing_allocations.hpp"
#include "support/scratch.hpp"
#include "support/training.hpp"

using onebit_test::contains;
using onebit_test::on_ranks;
using onebit_test::saved;
using onebit_test::scratch;
using onebit_test::thrown;
using onebit_test::training;
namespace fs = std::filesystem;

namespace {

auto make(training<>& data, const onebit::threads& t) {
  return onebit::one_bit_adam(data.groups(), t, onebit_test::frozen_after(3));
}

/// One rank's trainer, its optimizer, and the two callbacks.
struct trainer {
  training<> data;
  decltype(make(data, std::declval<onebit::threads>())) o;

  explicit trainer(const onebit::threads& t) : o(make(data, t)) {}
  void run(int steps) {
    for (int i = 0; i < steps; ++i) (void)train(o, data);
  }
  void save(const fs::path& root, int keep = onebit::default_kept_checkpoints) {
    onebit::save_all(
        o, root,
        [&](std::ostream& out) {
          for (const auto& p : data.params) {
            out.write(reinterpret_cast<const char*>(p.data()),
                      static_cast<std::streamsize>(p.size() * sizeof(float)));
          }
        },
        keep);
  }
  std::optional<std::uint64_t> load(const fs::path& root) {
    return onebit::load_latest(o, root, [&](std::istream& in) {
      for (auto& p : data.params) {
        in.read(reinterpret_cast<char*>(p.data()),
                static_cast<std::streamsize>(p.size() * sizeof(float)));
      }
    });
  }
  [[nodiscard]] std::string state() { return saved(o) + std::to_string(data.digest()); }
};

std::vector<std::string> names_in(const fs::path& path) {
  std::vector<std::string> names;
  for (const auto& e : fs::directory_iterator(path)) names.push_back(e.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}
using strings = std::vector<std::string>;

/// The states of 3 ranks that load what is there and take `steps` steps; empty: nothing was loaded.
strings resumed(const fs::path& root, int steps, std::uint64_t expected) {
  return on_ranks(3, [&](onebit::threads t) -> std::string {
    trainer own(t);
    const auto before = own.state();
    const auto step = own.load(root);
    if (!step) {
      CHECK(own.state() == before);
      return {};
    }
    CHECK(*step == expected);
    own.run(steps);
    return own.state();
  });
}

}  // namespace

TEST_CASE("save_all, load_latest: the bits of a run that never stopped, the newest are kept") {
  const scratch root;
  const fs::path nested = root.path / "a" / "b";
  const auto whole = on_ranks(3, [&](onebit::threads t) {
    trainer own(t);
    CHECK_FALSE(own.load(nested));  // nothing there yet
    for (int i = 0; i < 4; ++i) {
      own.run(2);
      own.save(nested);
      own.save(nested);  // the same step again
    }
    own.run(3);
    return own.state();
  });
  CHECK(names_in(nested) == strings{"step-6", "step-8"});
  CHECK(names_in(nested / "step-8") == strings{"manifest", "rank-0", "rank-1", "rank-2"});
  CHECK(resumed(nested, 3, 8) == whole);
}

TEST_CASE("what only has the name of a step is neither loaded nor counted nor removed") {
  const scratch root;
  fs::create_directory(root.path / "step-002");
  std::ofstream(root.path / "step-0") << "a note";
  std::ofstream(root.path / "step-9") << "another";
  (void)on_ranks(2, [&](onebit::threads t) {
    trainer own(t);
    CHECK_FALSE(own.load(root.path));
    for (int i = 0; i < 4; ++i) {
      own.run(1);
      own.save(root.path);
    }
    CHECK(own.load(root.path) == std::optional<std::uint64_t>(4));
    return 0;
  });
  CHECK(names_in(root.path) == strings{"step-0", "step-002", "step-3", "step-4", "step-9"});
}

TEST_CASE("whatever is damaged or missing of the newest: the one before is loaded") {
  const auto at = [](const fs::path& file, std::streamoff place) {
    std::fstream f(file, std::ios::binary | std::ios::in | std::ios::out);
    f.seekp(place);
    f.put('~');
  };
  for (int damage = 0; damage < 8; ++damage) {
    CAPTURE(damage);
    const scratch root;
    const auto older = on_ranks(3, [&](onebit::threads t) {
      trainer own(t);
      own.run(4);
      own.save(root.path);
      const auto state = own.state();
      own.run(2);
      own.save(root.path);
      return state;
    });
    const fs::path newest = root.path / "step-6";
    if (damage == 0) at(newest / "rank-1", 1000);
    if (damage == 1) fs::resize_file(newest / "rank-2", 500);
    if (damage == 2) fs::remove(newest / "rank-0");
    if (damage == 3) at(newest / "manifest", 30);
    if (damage == 4) fs::resize_file(newest / "manifest", 40);
    if (damage == 5) fs::remove(newest / "manifest");
    if (damage == 6) fs::rename(newest, root.path / "step-6.part");
    if (damage == 7) std::ofstream(newest / "rank-0", std::ios::app) << "more";
    CHECK(resumed(root.path, 0, 4) == older);
    if (damage < 3) {  // and then there is none
      fs::remove_all(root.path / "step-4");
      CHECK_THROWS_AS((void)resumed(root.path, 0, 0), onebit::checkpoint_error);
    }
  }
}

TEST_CASE(
    "after a step back: the step that was damaged is saved anew, later ones go, this one stays") {
  for (const int keep : {1, 2}) {
    const scratch root;
    const auto states = on_ranks(3, [&](onebit::threads t) {
      trainer own(t);
      for (int i = 0; i < 3; ++i) {  // 4, 8, 12, of which one or two are left
        own.run(4);
        own.save(root.path, 3);
      }
      if (t.rank() == 0) {
        for (const char* name : {"step-8", "step-12"}) {
          std::fstream f(root.path / name / "rank-1",
                         std::ios::binary | std::ios::in | std::ios::out);
          f.seekp(700);
          f.put('~');
        }
      }
      (void)onebit::detail::files::tell_all(own.o, {});  // all ranks see the damage
      CHECK(own.load(root.path) == 4);
      own.run(4);
      own.save(root.path, keep);
      return own.state();
    });
    CHECK(names_in(root.path) == (keep == 1 ? strings{"step-8"} : strings{"step-4", "step-8"}));
    CHECK(resumed(root.path, 0, 8) == states);
  }
}

TEST_CASE("where no checkpoint is whole the job does not start anew, and remove them") {
  const scratch root;
  on_ranks(2, [&](onebit::threads t) {
    trainer own(t);
    for (int i = 0; i < 2; ++i) {
      own.run(2);
      own.save(root.path);
    }
    return 0;
  });
  for (const char* step : {"step-2", "step-4"}) {
    std::ofstream(root.path / step / "rank-1", std::ios::app) << "x";
  }
  const auto loads = [&] {
    return on_ranks(2, [&](onebit::threads t) {
      trainer own(t);
      return thrown<onebit::checkpoint_error>([&] {
        const bool loaded = own.load(root.path).has_value();
        CHECK_FALSE(loaded);
      });
    });
  };
  for (const std::string& told : loads()) {
    CHECK(told == contains{" is whole, not step-4, step-2; repair one, or move them away"});
  }
  // those that were half removed are no checkpoints
  for (const char* step : {"step-2", "step-4"}) fs::remove(root.path / step / "manifest");
  CHECK(loads() == strings{"thrown: nothing", "thrown: nothing"});
}

TEST_CASE("a root that cannot be read is an error, not a job that starts anew") {
  const scratch root;
  std::ofstream(root.path / "file") << "no directory";
  const auto told = on_ranks(2, [&](onebit::threads t) {
    trainer own(t);
    return thrown<onebit::checkpoint_error>([&] { (void)own.load(root.path / "file"); });
  });
  CHECK(told[0] != "thrown: nothing");
  CHECK(told[1] == contains{"load_latest: failed on rank 0"});
}

TEST_CASE("an allocation that fails says nothing of the files: no older checkpoint is loaded") {
  const scratch root;
  on_ranks(3, [&](onebit::threads t) {
    trainer own(t);
    for (int i = 0; i < 2; ++i) {
      own.run(4);
      own.save(root.path);
    }
    return 0;
  });
  // not on rank 0, which lists a directory: libstdc++ does that where nothing may throw
  for (const int victim : {1, 2}) {
    int at = 0;
    for (bool was_reached = true; was_reached; ++at) {
      CAPTURE(victim);
      CAPTURE(at);
      std::atomic<bool> failed{false};
      const auto load = [&](onebit::threads t) {
        trainer own(t);
        std::optional<std::uint64_t> step = 8;
        if (t.rank() == victim) onebit_test::allocations_left = at;
        try {
          step = own.load(root.path);
        } catch (const std::exception&) {  // an error may be, but nothing else is loaded
        }
        if (t.rank() == victim) failed = onebit_test::allocations_left < 0;
        onebit_test::allocations_left = -1;
        CHECK(step == std::optional<std::uint64_t>(8));
      };
      onebit::run_threads(3, load);
      was_reached = failed;
    }
    CHECK(at > 20);
  }
}

TEST_CASE("a rank that cannot write: all are told, older checkpoints are as they were") {
  const scratch root;
  const auto told = on_ranks(3, [&](onebit::threads t) {
    trainer own(t);
    own.run(2);
    own.save(root.path);
    own.run(2);
    const auto text = thrown<onebit::checkpoint_error>([&] {
      onebit::save_all(own.o, root.path, [&](std::ostream& out) {
        if (t.rank() == 1) out.setstate(std::ios::badbit);
      });
    });
    return text;
  });
  CHECK(told[0] == contains{"save_all: failed on rank 1"});
  CHECK(told[1] == contains{"bytes failed; is the disk full"});
  CHECK(names_in(root.path) == strings{"step-2", "step-4.part"});
  (void)on_ranks(3, [&](onebit::threads t) {  // what was left over is in nobody's way
    trainer own(t);
    CHECK(own.load(root.path) == 2);
    own.run(2);
    own.save(root.path);
    return 0;
  });
  CHECK(names_in(root.path) == strings{"step-2", "step-4"});
}

TEST_CASE("a directory of another number of ranks: the job goes on; keep 0, other options") {
  const scratch root;
  on_ranks(2, [&](onebit::threads t) {
    trainer own(t);
    own.run(5);
    CHECK(thrown<onebit::invalid_input>([&] { own.save(root.path, 0); }) == contains{"keep is 0"});
    own.save(root.path, 1);
    return 0;
  });
  for (const int n : {1, 3, 5}) {
    const auto digests = on_ranks(n, [&](onebit::threads t) {
      trainer own(t);
      CHECK(own.load(root.path) == 5);
      CHECK(own.o.steps() == 5);
      own.run(3);
      return own.data.digest();
    });
    for (const auto d : digests) CHECK(d == digests[0]);
  }
  on_ranks(2, [&](onebit::threads t) {
    training<> data;
    auto other = onebit::one_bit_adam(data.groups(), t, onebit_test::frozen_after(4));
    CHECK(thrown<onebit::checkpoint_error>([&] {
            (void)onebit::load_latest(other, root.path, [](std::istream& in) {
              in.ignore(4 * (33 + 5000 + 1 + 64 + 700));
            });
          }) == contains{"freeze after"});
    return 0;
  });
}
