// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Built, not run: the installed MPI transport compiles and links.

#include <onebit/onebit.hpp>
#include <onebit/transport/mpi.hpp>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  MPI_Finalize();
}
