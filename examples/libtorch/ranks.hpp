// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Ranks as processes of this machine that communicate by Gloo. Elsewhere torchrun and a store on
// the network take this part.
#pragma once

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

namespace libtorch_example {

using group_pointer = c10::intrusive_ptr<c10d::Backend>;
using store_pointer = c10::intrusive_ptr<c10d::Store>;

/// Runs f(group, store) in n processes; this process is rank 0. Returns the exit status. Call it
/// before torch starts threads.
inline int run_ranks(int n, const std::function<void(group_pointer, store_pointer)>& f) {
  std::string folder = std::filesystem::temp_directory_path() / "onebit-libtorch-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) throw std::runtime_error("cannot make " + folder);
  std::vector<pid_t> others;
  int rank = 0;
  for (int r = 1; r < n && rank == 0; ++r) {
    const pid_t child = fork();
    if (child < 0) throw std::runtime_error("cannot start rank " + std::to_string(r));
    if (child == 0) {
      rank = r;
      prctl(PR_SET_PDEATHSIG, SIGKILL);
    } else {
      others.push_back(child);
    }
  }
  int status = EXIT_SUCCESS;
  try {
    const auto store = c10::make_intrusive<c10d::FileStore>(folder + "/store", n);
    auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::minutes(2));
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    f(c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, n, options), store);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
    status = EXIT_FAILURE;
  }
  if (rank != 0) std::_Exit(status);
  for (const pid_t child : others) {
    int of_child = 0;
    if (waitpid(child, &of_child, 0) != child || of_child != 0) status = EXIT_FAILURE;
  }
  std::filesystem::remove_all(folder);
  return status;
}

}  // namespace libtorch_example
