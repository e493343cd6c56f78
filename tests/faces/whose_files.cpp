// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// What a save removes: what its own job has saved or loaded, and nothing else. What it is told that
// stands in its way; and what ranks are told that see other files, or make other calls.

#include <doctest/doctest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <onebit/extras/checkpoint_files.hpp>
#include <onebit/onebit.hpp>
#include <string>
#include <vector>

#include "support/scratch.hpp"
#include "support/training.hpp"

using namespace onebit_test;
namespace fs = std::filesystem;

namespace {

using strings = std::vector<std::string>;

/// Threads that call `before` on the way into each gather of this rank.
struct hooked {
  onebit::threads inner;
  std::function<void()>* before;
  [[nodiscard]] int rank() const { return inner.rank(); }
  [[nodiscard]] int size() const { return inner.size(); }
  void all_to_all(const void* s, void* r, std::size_t n) { inner.all_to_all(s, r, n); }
  void all_gather(const void* s, void* r, std::size_t n, onebit::detail::call_name what = {}) {
    if (*before) (*before)();
    inner.all_gather(s, r, n, what);
  }
  void all_reduce_sum(float* x, std::size_t n) { inner.all_reduce_sum(x, n); }
};

struct trainer {
  std::function<void()> before_gather;
  training<> data{{33, 700}};
  decltype(onebit::adam(data.groups(), std::declval<hooked>())) o;

  explicit trainer(const onebit::threads& t)
      : o(onebit::adam(data.groups(), hooked{t, &before_gather})) {}
  void run(int steps) {
    for (int i = 0; i < steps; ++i) (void)train(o, data);
  }
  void save(const fs::path& root, int keep = 2) {
    onebit::save_all(
        o, root, [&](std::ostream& out) { data.write(out); }, keep);
  }
  std::optional<std::uint64_t> load(const fs::path& root) {
    return onebit::load_latest(o, root, [&](std::istream& in) { data.read(in); });
  }
};

/// All files under a folder, and what links lead to, with their contents.
std::map<std::string, std::string> tree(const fs::path& root) {
  std::map<std::string, std::string> all;
  for (const auto& e : fs::recursive_directory_iterator(root)) {
    std::string& text = all[fs::relative(e.path(), root).string()];
    if (e.is_symlink()) {
      text = "link to " + fs::read_symlink(e.path()).string();
    } else if (e.is_regular_file()) {
      std::ifstream in(e.path(), std::ios::binary);
      text.assign(std::istreambuf_iterator<char>(in), {});
    }
  }
  return all;
}
strings names_in(const fs::path& path) {
  strings names;
  for (const auto& e : fs::directory_iterator(path)) names.push_back(e.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}
void write(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << text;
}
/// The steps 1 to n, of a job of one rank.
void save_up_to(const fs::path& root, int n, int keep = 2) {
  on_ranks(1, [&](onebit::threads t) {
    trainer own(t);
    for (int i = 0; i < n; ++i) {
      own.run(1);
      own.save(root, keep);
    }
    return 0;
  });
}
std::string refused(const std::function<void()>& f) { return thrown<onebit::checkpoint_error>(f); }

/// What each rank of a job is told that goes wrong.
strings told(int n, const std::function<void(trainer&, int)>& f) {
  strings texts(static_cast<std::size_t>(n));
  try {
    onebit::run_threads(
        n,
        [&](onebit::threads t) {
          trainer own(t);
          try {
            f(own, t.rank());
          } catch (const std::exception& e) {
            texts[static_cast<std::size_t>(t.rank())] = e.what();
            throw;
          }
        },
        std::chrono::seconds(10));
  } catch (const std::exception&) {
  }
  return texts;
}

}  // namespace

TEST_CASE(
    "a job that forgets load_latest removes nothing of the job before, and is told [save_all]") {
  const scratch root;
  save_up_to(root.path, 6);  // 5 and 6 are left
  const auto before = tree(root.path);
  on_ranks(1, [&](onebit::threads t) {
    trainer own(t);
    for (int step = 1; step <= 6; ++step) {
      own.run(1);
      const std::string text = refused([&] { own.save(root.path); });
      CHECK(text == contains{"save_all: step " + std::to_string(step) + " is not saved: under "});
      CHECK(text == contains{step < 6
                                 ? "there is step-6, step-5, which this optimizer neither loaded "
                                   "nor saved"
                                 : "there is step-6, which"});
      CHECK(text == contains{"call load_latest before the first step"});
      CHECK(tree(root.path) == before);
    }
    // earlier ones of another job do no harm, and do not go
    for (int i = 0; i < 3; ++i) {
      own.run(1);
      own.save(root.path);
    }
    CHECK(names_in(root.path) == strings{"step-5", "step-6", "step-8", "step-9"});
    return 0;
  });
  on_ranks(1, [&](onebit::threads t) {
    trainer own(t), late(t);
    CHECK(own.load(root.path) == 9);
    own.run(1);
    own.save(root.path);  // these are its own since it has loaded
    CHECK(names_in(root.path) == strings{"step-10", "step-9"});
    // another job has saved since: it is not removed either
    late.run(12);
    late.save(root.path);
    own.run(1);
    CHECK(refused([&] { own.save(root.path); }) == contains{"there is step-12, which"});
    CHECK(names_in(root.path) == strings{"step-10", "step-12", "step-9"});
    return 0;
  });
}

TEST_CASE(
    "folders of the trainer with the name of a step stay; one in the way is named [save_all]") {
  const scratch root;
  write(root.path / "step-2" / "weights", "the trainer's");
  write(root.path / "step-3" / "manifest", "{}");
  write(root.path / "step-3" / "rank-0", "its own");
  write(root.path / "step-4.part" / "rank-0", "mine");
  write(root.path / "step-4.part" / "mine", "mine");
  write(root.path / "step-900" / "weights", "the trainer's");
  write(root.path / "step-901" / "rank-0", "of another saver");
  fs::create_directory(root.path / "step-902");
  auto kept = tree(root.path);
  on_ranks(1, [&](onebit::threads t) {
    trainer own(t);
    CHECK_FALSE(own.load(root.path / "nothing"));
    own.run(1);
    own.save(root.path, 1);
    for (const char* name : {"step-2", "step-3", "step-4.part"}) {
      own.run(1);
      const auto before = tree(root.path);
      CHECK(refused([&] { own.save(root.path, 1); }) ==
            contains{"/" + std::string(name) + " is in the way of step "});
      CHECK(tree(root.path) == before);
    }
    own.run(1);
    own.save(root.path, 1);
    return 0;
  });
  auto now = tree(root.path);
  for (const char* name : {"", "/manifest", "/rank-0"}) {
    CHECK(now.erase("step-5" + std::string(name)) == 1);
  }
  CHECK(now == kept);
}

TEST_CASE(
    "what a trainer puts into a checkpoint's folder stays when the checkpoint goes [save_all]") {
  const scratch root;
  on_ranks(1, [&](onebit::threads t) {
    trainer own(t);
    for (int i = 1; i <= 3; ++i) {
      own.run(1);
      own.save(root.path, 1);
      write(root.path / ("step-" + std::to_string(i)) / "config.json", "{}");
    }
    return 0;
  });
  CHECK(names_in(root.path / "step-1") == strings{"config.json"});
  CHECK(names_in(root.path / "step-3") == strings{"config.json", "manifest", "rank-0"});
}

TEST_CASE("what a trainer puts beside a checkpoint stays when the same step is saved again") {
  const scratch root;
  const fs::path whole = root.path / "step-1";
  on_ranks(1, [&](onebit::threads t) {
    trainer own(t);
    own.run(1);
    own.save(root.path);
    write(whole / "config.json", "{}");
    write(whole / "weights" / "0.bin", "w0");
    const auto files = names_in(whole);
    for (int i = 0; i < 3; ++i) {
      own.save(root.path);
      CHECK(names_in(root.path) == strings{"step-1"});
      CHECK(names_in(whole) == files);
    }
    auto kept = tree(whole);
    CHECK(kept["config.json"] == "{}");
    CHECK(kept["weights/0.bin"] == "w0");
    return 0;
  });
}

TEST_CASE("what a trainer puts beside a checkpoint stays when a save of the same step is killed") {
  const scratch root;
  const fs::path whole = root.path / "step-1", former = root.path / "step-1.former";
  // after the replacement is in place, and before the replaced one goes
  const auto kill = [&] {
    fs::rename(whole, former);
    fs::create_directory(whole);
    for (const char* name : {"manifest", "rank-0"}) fs::copy_file(former / name, whole / name);
  };
  on_ranks(1, [&](onebit::threads t) {
    trainer own(t);
    own.run(1);
    own.save(root.path);
    write(whole / "config.json", "{}");
    write(whole / "weights" / "0.bin", "w0");
    auto kept = tree(whole);
    kill();
    own.save(root.path);
    CHECK(names_in(root.path) == strings{"step-1"});
    CHECK(tree(whole) == kept);
    // the next job saves another step; what it finds under one name in both stays in both
    kill();
    write(whole / "config.json", "{1}");
    kept["config.json"] = "{1}";
    trainer next(t);
    CHECK(next.load(root.path) == 1);
    next.run(1);
    next.save(root.path);
    CHECK(tree(whole) == kept);
    CHECK(names_in(root.path / "step-2") == strings{"manifest", "rank-0"});
    CHECK(tree(former) == std::map<std::string, std::string>{{"config.json", "{}"}});
    // a replacement that is damaged goes, and what lies beside it stays
    fs::remove_all(former);
    kill();
    fs::resize_file(whole / "rank-0", 100);
    write(whole / "log", "of the second");
    kept["log"] = "of the second";
    next.run(1);
    next.save(root.path, 3);
    CHECK(tree(whole) == kept);
    CHECK_FALSE(fs::exists(former));
    return 0;
  });
}

TEST_CASE("a checkpoint that was moved to another disk, with a link in its place: only links go") {
  const scratch root, disk;
  save_up_to(root.path, 1);
  fs::copy(root.path / "step-1", disk.path / "whole", fs::copy_options::recursive);
  fs::rename(root.path / "step-1", disk.path / "step-1");
  fs::create_directory_symlink(disk.path / "step-1", root.path / "step-1");
  fs::copy_file(disk.path / "step-1" / "rank-0", disk.path / "rank");
  const auto before = tree(disk.path);
  on_ranks(1, [&](onebit::threads t) {
    trainer own(t);
    CHECK(own.load(root.path) == 1);
    own.save(root.path);  // the same step again
    CHECK(names_in(root.path) == strings{"step-1"});
    CHECK_FALSE(fs::is_symlink(root.path / "step-1"));
    // a link as a folder, and as a file, that is removed as too old
    fs::rename(root.path / "step-1", disk.path / "again");
    fs::create_directory_symlink(disk.path / "again", root.path / "step-1");
    own.run(1);
    own.save(root.path);
    fs::remove(root.path / "step-2" / "rank-0");
    fs::create_symlink(disk.path / "rank", root.path / "step-2" / "rank-0");
    for (int i = 0; i < 2; ++i) {
      own.run(1);
      own.save(root.path, 1);
    }
    return 0;
  });
  CHECK(names_in(root.path) == strings{"step-4"});
  CHECK(names_in(disk.path / "again") == strings{"manifest", "rank-0"});
  fs::remove_all(disk.path / "again");
  CHECK(tree(disk.path) == before);
}

TEST_CASE(
    "a writer that goes back to its start to write its header finds its own bytes there "
    "[save_all]") {
  const scratch root;
  on_ranks(2, [&](onebit::threads t) {
    trainer own(t);
    own.run(1);
    const auto save = [&](const auto& write_own) { onebit::save_all(own.o, root.path, write_own); };
    save([&](std::ostream& out) {
      CHECK(out.tellp() == std::streampos(0));
      out << "????";
      own.data.write(out);
      const auto end = out.tellp();
      out.seekp(0);
      out << 77 << ';';
      CHECK(out.tellp() == std::streampos(3));
      // not before its own first byte
      CHECK(out.rdbuf()->pubseekoff(-4, std::ios::cur) == std::streampos(-1));
      CHECK(out.rdbuf()->pubseekoff(-1, std::ios::beg) == std::streampos(-1));
      CHECK(out.rdbuf()->pubseekpos(std::streampos(-8)) == std::streampos(-1));
      CHECK(out.tellp() == std::streampos(3));
      out.seekp(0, std::ios::end);
      CHECK(out.tellp() == end);
      out.seekp(2);  // where it is left does not matter
    });
    trainer again(t);
    const auto found = onebit::load_latest(again.o, root.path, [&](std::istream& in) {
      int header = 0;
      in >> header;
      CHECK(header == 77);
      in.seekg(2, std::ios::cur);
      again.data.read(in);
    });
    CHECK(found == 1);
    CHECK(again.data.digest() == own.data.digest());
    // a failure that the writer hides
    own.run(1);
    const std::string text = refused([&] {
      save([&](std::ostream& out) {
        out.exceptions(std::ios::goodbit);
        if (t.rank() == 1) out.setstate(std::ios::badbit);
      });
    });
    CHECK(text == contains{t.rank() == 1 ? "step-2.part/rank-1 failed" : "failed on rank 1"});
    return 0;
  });
  CHECK(names_in(root.path) == strings{"step-1"});
}

TEST_CASE("nothing is replaced or removed before what replaces it was found whole [save_all]") {
  for (const bool same_step : {false, true}) {
    const scratch root;
    onebit::run_threads(2, [&](onebit::threads t) {
      trainer own(t);
      own.run(1);
      own.save(root.path, 1);
      if (!same_step) own.run(1);
      const fs::path part = root.path / (same_step ? "step-1.part" : "step-2.part");
      int n = 0;
      own.before_gather = [&] {  // cut short when it was written, before the manifest is
        if (++n == 2 && t.rank() == 1) fs::resize_file(part / "rank-1", 100);
      };
      CHECK(refused([&] { own.save(root.path, 1); }) ==
            contains{t.rank() == 0 ? "rank 0 lacks " + (part / "rank-1").string()
                                   : std::string("failed on rank 0")});
      own.before_gather = {};
      CHECK(own.load(root.path) == 1);
    });
    CHECK(names_in(root.path) == strings{"step-1"});
  }
}

TEST_CASE(
    "a replaced checkpoint is kept where its replacement is damaged, and is loaded [save_all]") {
  const scratch root;
  save_up_to(root.path, 2);
  fs::copy(root.path / "step-2", root.path / "step-2.former");
  fs::resize_file(root.path / "step-2" / "rank-0", 100);
  on_ranks(1, [&](onebit::threads t) {
    trainer own(t);
    CHECK(own.load(root.path) == 2);
    own.run(1);
    CHECK_THROWS((void)onebit::save_all(own.o, root.path, [](std::ostream&) { throw 1; }));
    CHECK(names_in(root.path) == strings{"step-1", "step-2"});
    trainer again(t);
    CHECK(again.load(root.path) == 2);
    return 0;
  });
}

TEST_CASE("a checkpoint without a manifest that can be read does not count as one that is kept") {
  const auto run = [](bool garbage) {
    CAPTURE(garbage);
    const scratch root;
    save_up_to(root.path, 3, 3);
    const fs::path manifest = root.path / "step-2" / "manifest";
    fs::remove(manifest);
    if (garbage) write(manifest, "onebit checkpoint 2\ngarbage\n");
    on_ranks(1, [&](onebit::threads t) {
      trainer own(t);
      CHECK(own.load(root.path) == 3);
      own.run(1);
      own.save(root.path, 3);
      CHECK(names_in(root.path) == strings{"step-1", "step-3", "step-4"});
      own.run(1);
      own.save(root.path, 3);
      CHECK(names_in(root.path) == strings{"step-3", "step-4", "step-5"});
      return 0;
    });
  };
  run(false);
  run(true);
}

TEST_CASE("save_all and load_latest on some ranks alone are named, on all ranks") {
  const scratch root;
  const auto alone = [&](int n, bool loads) {
    return told(n, [&](trainer& own, int rank) {
      own.run(1);
      if (rank == 0 && loads) (void)own.load(root.path);
      if (rank == 0 && !loads) own.save(root.path);
      own.run(1);
    });
  };
  for (const bool loads : {false, true}) {
    const std::string call = loads ? "load_latest" : "save_all";
    for (const std::string& text : alone(2, loads)) CHECK(text == contains{"rank 0 calls " + call});
    CHECK(alone(3, loads)[0] == contains{"onebit::" + call + ": not every rank calls it now"});
    CHECK(names_in(root.path).empty());
  }
  for (const auto& text : told(2, [&](trainer&own, int rank) {
         if (rank == 0) (void)own.load(root.path);
         if (rank == 1) own.save(root.path);
       })) {
    CHECK(text == contains{"rank 0 calls load_latest"});
    CHECK(text == contains{"rank 1 calls save_all"});
  }
  const auto late = told(2, [&](trainer& own, int rank) {
    if (rank == 0) own.save(root.path);
  });
  CHECK(late[0] == contains{"onebit::save_all: "});
}

TEST_CASE("ranks that see other directories are told so: no shared disk [save_all]") {
  const scratch base;
  const auto node = [&](int rank) { return base.path / (rank < 2 ? "a" : "b"); };
  constexpr const char* what = "the ranks have different directories under one name";
  const auto save = [&](bool apart) {
    return told(3, [&](trainer& own, int rank) {
      own.run(1);
      own.save(node(apart ? rank : 0));
    });
  };
  const auto load = [&] {
    return told(3, [&](trainer& own, int rank) {
      if (!own.load(node(rank))) throw std::runtime_error("starts anew");
    });
  };
  for (const auto& text : save(true)) {
    CHECK(text == contains{what});
    CHECK(text == contains{"save_all: rank 2 has no "});
  }
  CHECK(names_in(node(0)).empty());
  CHECK_FALSE(fs::exists(node(2)));

  CHECK(save(false) == strings(3));
  for (const auto& text : load()) CHECK(text == contains{"load_latest: rank 2 has no "});
  // the files lie where rank 0 is not
  fs::rename(node(0), node(2));
  for (const auto& text : load()) {
    CHECK(text == contains{"load_latest: rank 2 sees 1 checkpoints under "});
  }
  // another job's on the other disk
  CHECK(save(false) == strings(3));
  fs::remove_all(node(2));
  fs::copy(node(0), node(2), fs::copy_options::recursive);
  std::ofstream(node(2) / "step-1" / "manifest", std::ios::app) << "x";
  for (const auto& text : load()) CHECK(text == contains{"load_latest: rank 2 has another "});
}
