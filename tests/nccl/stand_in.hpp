// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A stand-in for NCCL and the CUDA runtime, for machines without a device: device memory is the
// host's, streams do at once what they are given, and the ranks of a communicator are threads. It
// fails when told to, and tells what it was asked.

#ifndef ONEBIT_TESTS_NCCL_STAND_IN_HPP
#define ONEBIT_TESTS_NCCL_STAND_IN_HPP

#include <doctest/doctest.h>
#include <nccl.h>

#include <cstddef>
#include <onebit/transport/threads.hpp>
#include <string>
#include <vector>

struct ncclComm {
  onebit::threads ranks;
};

namespace onebit_test {

/// The script and the record of one rank; every thread has its own.
struct stand_in {
  static stand_in& of_this_rank();

  ncclResult_t next = ncclSuccess;        ///< what the next call answers instead of doing anything
  ncclResult_t on_the_way = ncclSuccess;  ///< what ncclCommGetAsyncError tells
  int in_progress = 0;     ///< not 0: calls answer ncclInProgress, and so many questions as well
  bool stuck = false;      ///< the streams never finish
  bool capturing = false;  ///< the user's stream is
  cudaError_t cuda = cudaSuccess;  ///< what the streams tell

  int questions_left = 0;
  std::vector<std::string> calls;  ///< each collective, record and wait with its stream
  std::vector<ncclComm_t> aborted;
  int destroyed = 0, open_groups = 0;
  int aborts_outside_of_a_group = 0;
  int streams = 0, events = 0, allocations = 0;  ///< alive
  int shrink_flags = -1;                         ///< of the last ncclCommShrink

  // The group of sends and receives that is open: slots lie one after the other.
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t slot_bytes = 0;
  ncclComm_t in_group = nullptr;
};

/// The trainer's stream.
inline cudaStream_t user_stream() {
  static int place = 0;
  return reinterpret_cast<cudaStream_t>(&place);
}

/// Calls f(communicator, record) on n ranks, each with a record that is new, and expects that
/// nothing is left over.
template <class F>
void on_stand_ins(int n, const F& f) {
  onebit::run_threads(n, [&](onebit::threads t) {
    stand_in& record = stand_in::of_this_rank();
    record = {};
    ncclComm comm{t};
    f(&comm, record);
    CHECK(record.streams == 0);
    CHECK(record.events == 0);
    CHECK(record.allocations == 0);
    CHECK(record.open_groups == 0);
    CHECK(record.aborts_outside_of_a_group == 0);
  });
}

}  // namespace onebit_test

#endif  // ONEBIT_TESTS_NCCL_STAND_IN_HPP
