// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A program for MPI ranks whose arguments are --NAME=VALUE.

#ifndef ONEBIT_BENCH_MPI_PROGRAM_HPP
#define ONEBIT_BENCH_MPI_PROGRAM_HPP

#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace onebit_bench {

inline std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> parts;
  std::istringstream in(list);
  for (std::string one; std::getline(in, one, ',');) parts.push_back(one);
  return parts;
}

/// Calls known(name, value) for each argument; it returns false where it does not know the name.
template <class F>
void each_argument(int argc, char** argv, const F& known) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto equals = argument.find('=');
    const std::string value(equals == std::string::npos ? "" : argument.substr(equals + 1));
    if (!known(argument.substr(0, equals), value)) {
      throw std::runtime_error("unknown argument " + argument);
    }
  }
}

/// Calls run(argc, argv) between MPI_Init and MPI_Finalize; what it throws ends all ranks.
template <class F>
int mpi_program(const char* name, int argc, char** argv, const F& run) {
  MPI_Init(&argc, &argv);
  try {
    run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s: %s\n", name, e.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
    std::_Exit(1);  // MPICH 4.1.3 to 5.0.2 may return from MPI_Abort
  }
  MPI_Finalize();
  return 0;
}

}  // namespace onebit_bench

#endif  // ONEBIT_BENCH_MPI_PROGRAM_HPP
