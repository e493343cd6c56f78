// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Measurements of --measure: the network under MPI, and the passes on this host.
#pragma once

#include "cost_model.hpp"

namespace advisor {

struct measurement {
  cost::network network;            // a link that no ranks use stays empty
  cost::passes compression;         // of the host backend
  double dense_update_ns = 0;       // Adam's, per parameter
  double allreduce_seconds = 0;     // of MPI_Allreduce of ...
  double allreduce_parameters = 0;  // ... this number of floats
};

// Collective over MPI_COMM_WORLD, takes a few seconds. Throws onebit::invalid_input with fewer than
// two ranks, or if the nodes have different numbers of ranks.
measurement measure(double parameters);

// Initialises MPI, and finalises it at the end. first(): true in the process that prints.
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
