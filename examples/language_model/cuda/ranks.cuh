// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// One process per GPU: finds its rank among all processes, and makes the NCCL communicator.
#pragma once

#include <nccl.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "common/id_file.hpp"
#include "memory.cuh"

#ifdef EXAMPLE_WITH_MPI
#include <mpi.h>
#endif

namespace language_model::device {

inline void check(ncclResult_t code) {
  if (code != ncclSuccess) throw std::runtime_error(ncclGetLastError(nullptr));
}

inline int number_in_environment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::stoi(text);
}
inline int local_rank_of_environment() {
  return number_in_environment("LOCAL_RANK", number_in_environment("RANK", 0));
}

// Rank of this process, and the id of the communicator, which rank 0 makes and all ranks need.
struct place {
  int rank = 0, size = 1, local_rank = 0;
  ncclUniqueId id{};
};

// Finds the place from RANK, WORLD_SIZE and LOCAL_RANK (set by torchrun) and a file that rank 0
// writes (for its owner alone, since the id lets a process join); or from MPI.
inline place find_place(const std::string& id_file) {
  place p;
#ifdef EXAMPLE_WITH_MPI
  if (std::getenv("RANK") == nullptr) {
    MPI_Comm node = MPI_COMM_NULL;
    MPI_Comm_rank(MPI_COMM_WORLD, &p.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &p.size);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &p.local_rank);
    MPI_Comm_free(&node);
    if (p.rank == 0) check(ncclGetUniqueId(&p.id));
    MPI_Bcast(&p.id, sizeof p.id, MPI_BYTE, 0, MPI_COMM_WORLD);
    return p;
  }
#endif
  p.rank = number_in_environment("RANK", 0);
  p.size = number_in_environment("WORLD_SIZE", 1);
  p.local_rank = local_rank_of_environment();
  if (p.size > 1 && id_file.empty()) throw std::runtime_error("several ranks need --id-file");
  if (p.rank > 0) {
    common::await(id_file, p.id.internal, sizeof p.id.internal, std::chrono::minutes(1));
  } else {
    check(ncclGetUniqueId(&p.id));
    if (p.size > 1) common::publish(id_file, p.id.internal, sizeof p.id.internal);
  }
  return p;
}

// A stream and the communicator, on this process's device.
class gpu {
 public:
  gpu(const place& here, const std::string& id_file) {
    int n_devices = 0;
    check(cudaGetDeviceCount(&n_devices));
    if (here.local_rank >= n_devices) {
      throw std::runtime_error("rank " + std::to_string(here.rank) + " is number " +
                               std::to_string(here.local_rank) + " on this machine, which has " +
                               std::to_string(n_devices) +
                               " CUDA devices; NCCL needs one for each");
    }
    check(cudaSetDevice(here.local_rank));
    check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    check(ncclCommInitRank(&communicator_, here.size, here.id, here.rank));
    if (here.rank == 0 && !id_file.empty()) std::filesystem::remove(id_file);
  }
  gpu(const gpu&) = delete;
  gpu& operator=(const gpu&) = delete;
  ~gpu() {
    if (abandoned_) return;
    (void)ncclCommDestroy(communicator_);
    (void)cudaStreamDestroy(stream_);
  }
  cudaStream_t stream() const { return stream_; }
  ncclComm_t communicator() const { return communicator_; }
  // Leaves stream and communicator undestroyed. For use after an error, when the communicator may
  // be aborted or wait for lost ranks, and the process ends.
  void abandon() { abandoned_ = true; }

 private:
  cudaStream_t stream_ = nullptr;
  ncclComm_t communicator_ = nullptr;
  bool abandoned_ = false;
};

}  // namespace language_model::device
