// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Built, not run: the installed MPI transport compiles and links.

#include <onebit/onebit.hpp>
#include <onebit/transport/mpi.hpp>
#include <vector>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  {
    std::vector<float> w(10), g(10, 1.f);
    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({w, g});
    auto optimizer = onebit::adam(groups, onebit::mpi(MPI_COMM_WORLD));
    optimizer.step(0.1f);
  }
  MPI_Finalize();
}
