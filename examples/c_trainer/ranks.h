/* SPDX-FileCopyrightText: 2026 The onebit authors
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef ONEBIT_EXAMPLES_C_TRAINER_RANKS_H
#define ONEBIT_EXAMPLES_C_TRAINER_RANKS_H

#include <onebit/c/onebit.h>
#include <stddef.h>

/* Ranks for a trainer in C: processes that this one forks, each pair joined by a socket, or, where
 * it was compiled with TRAIN_WITH_MPI and is run by mpirun, those of MPI_COMM_WORLD. */

enum { max_ranks = 16 };

typedef struct ranks {
  int rank, size;
  int is_mpi;
  int peers[max_ranks];    /* a socket to each other rank */
  int children[max_ranks]; /* of rank 0 */
} ranks;

/* 0, on each rank; anything else: there are none. */
int ranks_begin(ranks* all, int n);
/* On each rank. What main shall return: on rank 0 it is not 0 when a rank failed. */
int ranks_end(ranks* all, int failed);
/* Ends this rank; the others hear of it. */
void ranks_abort(void);
/* What each rank says, in their order; not 0: a rank is gone. */
int ranks_all_gather(void* all, const void* send, void* receive, size_t bytes);
/* For onebit. */
onebit_comm* ranks_comm(ranks* all);

#endif /* ONEBIT_EXAMPLES_C_TRAINER_RANKS_H */
