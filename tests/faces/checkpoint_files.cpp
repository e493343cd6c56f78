// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Checkpoints of all ranks in a directory: complete or absent, the newest that is whole is loaded.

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <onebit/extras/checkpoint_files.hpp>
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
        o, root, [&](std::ostream& out) { data.write(out); }, keep);
  }
  std::optional<std::uint64_t> load(const fs::path& root) {
    return onebit::load_latest(o, root, [&](std::istream& in) { data.read(in); });
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

TEST_CASE("a trainer that reads more than it wrote is told so, on all ranks; the optimizer stays") {
  const scratch root;
  const auto told = on_ranks(2, [&](onebit::threads t) {
    trainer own(t);
    own.run(4);
    own.save(root.path);
    const auto before = saved(own.o);
    const auto refused = [&](int rank, std::size_t n_more) {
      return thrown<onebit::checkpoint_error>([&] {
        (void)onebit::load_latest(own.o, root.path, [&](std::istream& in) {
          own.data.read(in);
          std::string more(t.rank() == rank ? n_more : 0, ' ');
          in.read(more.data(), static_cast<std::streamsize>(more.size()));
          if (t.rank() == rank && n_more == 0) std::getline(in, more, '\n').ignore(1 << 20);
        });
      });
    };
    const auto a_word = refused(1, 8), all = refused(0, std::size_t{1} << 20U);
    CHECK(refused(1, 0) != "");
    CHECK(saved(own.o) == before);
    CHECK(own.load(root.path) == 4);
    return strings{a_word, all};
  });
  constexpr const char* what = "load_latest: read_own reads more than the ";
  CHECK(told[1][0] == contains{what});
  CHECK(told[0][1] == contains{what});
  for (const auto& rank : told) {
    for (const auto& text : rank) CHECK(text != "");
  }
}

TEST_CASE("run_threads tells the rank whose load failed, not one that only heard of it") {
  for (int i = 0; i < 8; ++i) {
    const scratch root;
    const auto text = thrown<std::runtime_error>([&] {
      onebit::run_threads(3, [&](onebit::threads t) {
        trainer own(t);
        own.run(4);
        own.save(root.path);
        (void)onebit::load_latest(own.o, root.path, [&](std::istream& in) {
          own.data.read(in);
          if (t.rank() == 2) throw std::runtime_error("no memory for the counter");
        });
      });
    });
    CHECK(text == contains{"no memory for the counter"});
  }
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
  for (int damage = 0; damage < 11; ++damage) {
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
    if (damage == 8) {
      fs::rename(newest / "rank-0", root.path / "other");
      fs::rename(newest / "rank-1", newest / "rank-0");
      fs::rename(root.path / "other", newest / "rank-1");
    }
    const auto over = fs::copy_options::overwrite_existing;
    if (damage == 9) fs::copy_file(newest / "rank-0", newest / "rank-2", over);
    if (damage == 10) fs::copy_file(root.path / "step-4" / "rank-1", newest / "rank-1", over);
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
      (void)onebit::detail::files::tell_all(own.o, "the test", {});  // all ranks see the damage
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
    CHECK(told ==
          contains{" are damaged or incomplete: step-4, step-2; repair one, or move them away"});
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

TEST_CASE("a file that is there and cannot be opened is an error: no older checkpoint is loaded") {
  for (const char* file : {"rank-1", "manifest"}) {
    const scratch root;
    const auto told = on_ranks(2, [&](onebit::threads t) {
      trainer own(t);
      for (int i = 0; i < 2; ++i) {
        own.run(1);
        own.save(root.path);
      }
      const fs::path newest = root.path / "step-2" / file;
      if (t.rank() == 0) {
        fs::remove(newest);
        fs::create_symlink(newest, newest);
      }
      (void)onebit::detail::files::tell_all(own.o, "the test", {});  // all ranks see it
      return thrown<onebit::checkpoint_error>([&] { (void)own.load(root.path); });
    });
    CHECK(told[1] == contains{std::string("step-2/") + file + " failed: Too many levels"});
  }
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
  CHECK(told[0] == contains{root.path.string()});
  CHECK(told[1] == contains{"writing " + (root.path / "step-4.part/rank-1").string() + " failed"});
  CHECK(names_in(root.path) == strings{"step-2"});
}

TEST_CASE("a file that cannot grow, as on a full disk: the reason is told, nothing is left") {
  const scratch root;
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  on_ranks(1, [&](onebit::threads t) {
    trainer own(t);
    own.run(1);
    own.save(root.path);
    own.run(1);
    for (const rlim_t bytes : {10U, 30000U}) {  // in the trainer's part, in the optimizer's
      const rlimit small{bytes, before.rlim_max};
      const auto text = thrown<onebit::checkpoint_error>([&] {
        onebit::save_all(own.o, root.path, [&](std::ostream& out) {
          setrlimit(RLIMIT_FSIZE, &small);
          out << std::string(20, 'x') << std::flush;
        });
      });
      setrlimit(RLIMIT_FSIZE, &before);
      CHECK(text == contains{"step-2.part/rank-0 failed: File too large"});
      CHECK(names_in(root.path) == strings{"step-1"});
    }
    own.save(root.path);
    return 0;
  });
  std::signal(SIGXFSZ, handler);
  CHECK(names_in(root.path) == strings{"step-1", "step-2"});
  if (!fs::exists("/dev/full")) return;
  const auto small = [](std::ostream& out, auto&) { out << "written when the file is closed"; };
  CHECK(thrown<onebit::checkpoint_error>([&] {
          onebit::detail::files::write_file("/dev/full", small);
        }) == contains{"checkpoint: writing /dev/full failed: No space left on device"});
}

TEST_CASE("what saves that were killed have left goes before the next save; nothing else") {
  const scratch root;
  fs::create_directories(root.path / "step-1.part");
  std::ofstream(root.path / "step-1.part" / "rank-3") << "a part";
  fs::create_directory(root.path / "step-70.part");
  fs::create_directories(root.path / "step-71.part" / "deeper");  // nobody's here
  fs::create_directory(root.path / "step-2.partial");
  fs::create_directory(root.path / "step-02.part");
  std::ofstream(root.path / "step-3.part") << "a note";
  on_ranks(2, [&](onebit::threads t) {
    trainer own(t);
    own.run(1);
    own.save(root.path);
    if (t.rank() == 0) fs::copy(root.path / "step-1", root.path / "step-1.former");
    own.run(1);
    own.save(root.path);
    return 0;
  });
  CHECK(names_in(root.path) == strings{"step-02.part", "step-1", "step-2", "step-2.partial",
                                       "step-3.part", "step-71.part"});
}

TEST_CASE("a kill between the two renames of a repeated save: the former checkpoint is loaded") {
  for (const bool next_fails : {false, true}) {
    const scratch root;
    const auto states = on_ranks(3, [&](onebit::threads t) {
      trainer own(t);
      own.run(4);
      own.save(root.path, 1);
      return own.state();
    });
    fs::copy(root.path / "step-4", root.path / "step-4.part");
    fs::rename(root.path / "step-4", root.path / "step-4.former");
    CHECK(resumed(root.path, 0, 4) == states);
    CHECK(names_in(root.path) == strings{"step-4.former", "step-4.part"});  // may be read-only
    on_ranks(3, [&](onebit::threads t) {
      trainer own(t);
      CHECK(own.load(root.path) == 4);
      own.run(1);
      const auto text = thrown<onebit::checkpoint_error>([&] {
        onebit::save_all(own.o, root.path, [&](std::ostream& out) {
          if (next_fails) out.setstate(std::ios::badbit);
        });
      });
      CHECK((text == "thrown: nothing") == !next_fails);
      return 0;
    });
    CHECK(names_in(root.path) == (next_fails ? strings{"step-4"} : strings{"step-4", "step-5"}));
    fs::remove_all(root.path / "step-5");
    CHECK(resumed(root.path, 0, 4) == states);
  }
}

TEST_CASE("a directory without its manifest is not one of those that are kept") {
  const scratch root;
  on_ranks(2, [&](onebit::threads t) {
    trainer own(t);
    for (int i = 0; i < 3; ++i) {
      own.run(1);
      own.save(root.path);
      if (t.rank() == 0 && i == 1) fs::remove(root.path / "step-2" / "manifest");
    }
    return 0;
  });
  // it is not what the job has saved, so the job leaves it; the next one has seen it
  CHECK(names_in(root.path) == strings{"step-1", "step-2", "step-3"});
  on_ranks(2, [&](onebit::threads t) {
    trainer own(t);
    CHECK(own.load(root.path) == 3);
    own.run(1);
    own.save(root.path);
    return 0;
  });
  CHECK(names_in(root.path) == strings{"step-3", "step-4"});
}

TEST_CASE("a file of the user in the place of a step: an error with its path, and it is left") {
  const scratch root;
  std::ofstream(root.path / "step-1") << "a note";
  on_ranks(1, [&](onebit::threads t) {
    trainer own(t);
    own.run(1);
    CHECK(thrown<onebit::checkpoint_error>([&] { own.save(root.path); }) ==
          contains{(root.path / "step-1").string() +
                   " is in the way of step 1, and is no checkpoint of onebit; move it away"});
    CHECK(thrown<onebit::checkpoint_error>([&] { own.save(root.path / "step-1" / "root"); }) ==
          contains{"Not a directory [" + (root.path / "step-1" / "root").string()});
    return 0;
  });
  CHECK(names_in(root.path) == strings{"step-1"});
  CHECK(fs::is_regular_file(root.path / "step-1"));
}

TEST_CASE("another job, or whatever removes the directory during a save: it is told which one") {
  const scratch root;
  on_ranks(1, [&](onebit::threads t) {
    trainer own(t), other(t);
    own.run(1);
    other.run(1);
    const auto save_beside = [&](const auto& f) {
      return thrown<onebit::checkpoint_error>(
          [&] { onebit::save_all(own.o, root.path, [&](std::ostream&) { f(); }); });
    };
    const contains why{
        "step-1.part/rank-0 failed: No such file or directory; it changed during"
        " the save: does another job save under this root?"};
    CHECK(save_beside([&] { other.save(root.path); }) == why);
    CHECK(names_in(root.path) == strings{"step-1"});
    CHECK(other.load(root.path) == 1);
    CHECK(save_beside([] {}) == contains{"there is step-1, which this optimizer neither loaded"});
    CHECK(own.load(root.path) == 1);
    CHECK(save_beside([&] { fs::remove_all(root.path / "step-1.part"); }) == why);
    CHECK(names_in(root.path) == strings{"step-1"});
    CHECK(save_beside([&] { fs::remove_all(root.path); }) == why);
    CHECK_FALSE(fs::exists(root.path));
    fs::create_directory(root.path);
    CHECK(thrown<onebit::checkpoint_error>([&] {
            onebit::detail::files::together(own.o, "save_all", root.path, [&](auto&, auto&) {
              fs::rename(root.path / "step-1.part", root.path / "step-1");
            });
          }) == contains{"step-1]; it changed during the save"});
    return 0;
  });
}

TEST_CASE("a checkpoint of another format is told to be one, not damaged") {
  const scratch root;
  fs::create_directory(root.path / "step-3");
  std::ofstream(root.path / "step-3" / "manifest")
      << "onebit checkpoint 1\nstep 3\nranks 0\nend 0\n";
  on_ranks(2, [&](onebit::threads t) {
    trainer own(t);
    CHECK(thrown<onebit::checkpoint_error>([&] { (void)own.load(root.path); }) ==
          contains{" are damaged or incomplete: step-3 (of another format); repair one"});
    return 0;
  });
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
