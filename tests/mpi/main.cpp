// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The main function of the test program that runs under mpirun: a failure on any rank fails all
// ranks, and a run with another number of ranks than ONEBIT_EXPECT_RANKS fails, because a test
// that quietly ran on fewer ranks has tested nothing.

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <mpi.h>

#include <cstdlib>
#include <iostream>
#include <onebit/transport/mpi.hpp>
#include <sstream>
#include <string>

#include "support/ranks.hpp"

TEST_CASE("the MPI library, for everywhere.sh" * doctest::skip()) {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string library(text, static_cast<std::size_t>(length));
  std::cout << "library: " << library.substr(0, library.find_first_of(",\n")) << std::endl;
}

TEST_CASE("alone under another library's launcher, for everywhere.sh" * doctest::skip()) {
  std::cout << onebit_test::thrown<onebit::transport_error>([] { onebit::mpi{MPI_COMM_WORLD}; })
            << std::endl;
}

TEST_CASE("fails on the last rank, when asked for" * doctest::skip()) {
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  CHECK(rank != size - 1);
}

int main(int argc, char** argv) {
  // several.cpp trains in two threads; all else needs no level.
  int provided = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);

  const char* expected = std::getenv("ONEBIT_EXPECT_RANKS");
  if (expected != nullptr && std::atoi(expected) != size) {
    if (rank == 0) std::cerr << "expected " << expected << " ranks but got " << size << std::endl;
    MPI_Finalize();
    return EXIT_FAILURE;
  }

  // Rank 0 reports as it goes; the others only when they failed, and before they wait for anyone.
  std::ostringstream report;
  doctest::Context context(argc, argv);
  if (rank != 0) context.setCout(&report);
  const int failed = context.run() != 0 ? 1 : 0;
  if (failed != 0 && rank != 0) {
    std::cerr << "[rank " << rank << "/" << size << "]\n" << report.str() << std::endl;
  }

  int n_failed = 0;
  MPI_Allreduce(&failed, &n_failed, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (n_failed != 0 && rank == 0) {
    std::cerr << n_failed << " of " << size << " ranks failed" << std::endl;
  }
  MPI_Finalize();
  return n_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
