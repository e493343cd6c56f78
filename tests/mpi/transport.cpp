// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The MPI transport on as many ranks as mpirun was given.

#include "conformance/transport.hpp"

#include <doctest/doctest.h>
#include <mpi.h>

#include <onebit/error.hpp>
#include <onebit/transport/counting.hpp>
#include <onebit/transport/mpi.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "support/training.hpp"

using onebit_test::contains;
using onebit_test::thrown;

namespace {

/// Waits for all ranks and tells whether all succeeded, so that a failure leaves none behind.
bool all_agree(bool mine) {
  int ok = mine ? 1 : 0;
  MPI_Allreduce(MPI_IN_PLACE, &ok, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
  return ok != 0;
}

}  // namespace

TEST_CASE("conforms to the concept") {
  onebit::mpi transport(MPI_COMM_WORLD);
  for (const auto& failure : onebit_test::transport_failures(transport)) FAIL_CHECK(failure);
  onebit::counting<onebit::mpi> counted{transport};
  for (const auto& failure : onebit_test::transport_failures(counted)) FAIL_CHECK(failure);
}

TEST_CASE("rank and size are those of the communicator") {
  int rank = -1, size = -1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const onebit::mpi transport(MPI_COMM_WORLD);
  CHECK(transport.rank() == rank);
  CHECK(transport.size() == size);
}

TEST_CASE("works on a part of the ranks, in the communicator's own order") {
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &part);
  {
    onebit::mpi transport(part);
    MPI_Comm_free(&part);  // the transport has its own
    const int mine = rank;
    std::vector<int> all(static_cast<std::size_t>(transport.size()));
    transport.all_gather(&mine, all.data(), sizeof mine);
    for (std::size_t i = 1; i < all.size(); ++i) CHECK(all[i] == all[i - 1] - 2);
    for (const auto& failure : onebit_test::transport_failures(transport)) FAIL_CHECK(failure);
  }
  MPI_Barrier(MPI_COMM_WORLD);
}

TEST_CASE("copies and moved handles work on") {
  std::optional<onebit::mpi> first(std::in_place, MPI_COMM_WORLD);
  onebit::mpi copy = *first;
  onebit::mpi moved = std::move(*first);
  first.reset();
  float one = 1;
  copy.all_reduce_sum(&one, 1);
  moved.all_reduce_sum(&one, 1);
  const auto n = static_cast<float>(copy.size());
  CHECK(one == n * n);
}

TEST_CASE("its messages do not meet the trainer's own on the same communicator") {
  onebit::mpi transport(MPI_COMM_WORLD);
  const int left = (transport.rank() + transport.size() - 1) % transport.size();
  const int right = (transport.rank() + 1) % transport.size();
  int out = transport.rank(), in = -1;
  MPI_Request requests[2];
  MPI_Irecv(&in, 1, MPI_INT, left, MPI_ANY_TAG, MPI_COMM_WORLD, &requests[0]);
  for (const auto& failure : onebit_test::transport_failures(transport)) FAIL_CHECK(failure);
  MPI_Isend(&out, 1, MPI_INT, right, 7, MPI_COMM_WORLD, &requests[1]);
  MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
  CHECK(in == left);
}

TEST_CASE("an invalid communicator is a transport_error, not the end of the program") {
  CHECK(thrown<onebit::transport_error>([] { onebit::mpi{MPI_COMM_NULL}; }) ==
        "onebit::mpi: the communicator is MPI_COMM_NULL");
}

TEST_CASE("an error code of MPI becomes a transport_error with MPI's own words") {
  // Messages that are longer than the receiver expects: every rank that receives one must notice.
  // What MPI does to the others is its own business, so this uses a communicator of its own, and
  // no rank waits for another afterwards.
  onebit::mpi transport(MPI_COMM_WORLD);
  if (transport.size() != 2) return;
  std::vector<char> send(64), receive(64);
  std::string text;
  if (transport.rank() == 0) {
    text = thrown<onebit::transport_error>(
        [&] { transport.all_to_all(send.data(), receive.data(), 4); });
    CHECK(text == contains{"onebit::mpi: MPI_Alltoall failed with code "});
    CHECK(text == contains{"[rank 0/2]"});
  } else {
    text = thrown<onebit::transport_error>(
        [&] { transport.all_to_all(send.data(), receive.data(), 16); });
  }
  CHECK(all_agree(true));
}

TEST_CASE("slots beyond the range of an int" * doctest::skip()) {
  // 2 GiB per slot: run by hand, with --no-skip, where every rank has (1 + ranks) times that.
  onebit::mpi transport(MPI_COMM_WORLD);
  const std::size_t slot = (std::size_t{2} << 30) + 5;
  const auto n = static_cast<std::size_t>(transport.size());
  std::vector<char> own(slot, static_cast<char>(transport.rank() + 1)), all(slot * n);
  transport.all_gather(own.data(), all.data(), slot);
  for (std::size_t r = 0; r < n; ++r) {
    CHECK(all[r * slot] == static_cast<char>(r + 1));
    CHECK(all[r * slot + slot - 1] == static_cast<char>(r + 1));
  }
}
