// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The file by which the NCCL trainer's ranks find each other.

#include "../examples/common/id_file.hpp"

#include <doctest/doctest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <string>

#include "support/ranks.hpp"
#include "support/scratch.hpp"

using onebit_test::contains;
using onebit_test::thrown;
namespace fs = std::filesystem;

TEST_CASE("an id file is whole, exclusive, its owner's, and of this run; else it is refused") {
  const onebit_test::scratch folder;
  const std::string file = (folder.path / "id").string();
  const std::array<char, 5> id = {'a', 0, 'c', 'd', 'e'};
  std::array<char, 5> read{};
  const auto await = [&] {
    common::await(file, read.data(), read.size(), std::chrono::milliseconds(50));
  };
  CHECK(thrown<std::runtime_error>(await) == contains{"rank 0 has not written it"});
  common::publish(file, id.data(), id.size());
  await();
  CHECK(read == id);
  CHECK(fs::status(file).permissions() == (fs::perms::owner_read | fs::perms::owner_write));
  CHECK(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()) == 1);
  CHECK(thrown<std::runtime_error>([&] { common::publish(file, id.data(), id.size()); }) ==
        contains{"is there already"});

  fs::permissions(file, fs::perms::group_read, fs::perm_options::add);
  CHECK(thrown<std::runtime_error>(await) == contains{"read or written by others"});
  fs::permissions(file, fs::perms::group_read, fs::perm_options::remove);
  fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::hours(1));
  CHECK(thrown<std::runtime_error>(await) == contains{"of an earlier run"});
  std::ofstream(file, std::ios::app) << "more";
  CHECK(thrown<std::runtime_error>(await) == contains{"has 9 bytes, not 5"});
  fs::resize_file(file, 2);
  CHECK(thrown<std::runtime_error>(await) == contains{"has 2 bytes, not 5"});
  fs::remove(file);
  fs::create_symlink("/dev/zero", file);
  CHECK(thrown<std::runtime_error>(await) == contains{file});
  CHECK(thrown<std::runtime_error>([&] { common::publish(file, id.data(), id.size()); }) ==
        contains{"is there already"});
}
