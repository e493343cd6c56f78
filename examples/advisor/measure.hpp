// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// What --measure finds out: the network under MPI and the passes on this host.
#pragma once

#include "cost_model.hpp"

namespace advisor {

struct measurement {
  cost::network network;            // a link that no ranks use stays empty
  cost::passes compression;         // of the host backend
  double dense_update_ns = 0;       // Adam's, per parameter
  double allreduce_seconds = 0;     // of as many floats, by MPI_Allreduce ...
  double allreduce_parameters = 0;  // ... and how many they were
};

// Collective over MPI_COMM_WORLD, a few seconds. Throws onebit::invalid_input with fewer than two
// ranks, or where the nodes have different numbers of ranks.
measurement measure(double parameters);

// MPI from the first of these to the last: whether this process is the one that prints.
class mpi_session {
 public:
  mpi_session();
  ~mpi_session();
  mpi_session(const mpi_session&) = delete;
  mpi_session& operator=(const mpi_session&) = delete;
  bool first() const { return first_; }

 private:
  bool first_ = true;
};

}  // namespace advisor
