/* SPDX-FileCopyrightText: 2026 The onebit authors
 * SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L

#include "ranks.h"

#ifdef TRAIN_WITH_MPI
#include <mpi.h>
#endif
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* -- a transport of one's own: what onebit_transport asks for ------------------------------------
 */

static int send_all(int socket, const char* bytes, size_t n) {
  while (n > 0) {
    const ssize_t sent = write(socket, bytes, n);
    if (sent <= 0) return 1;
    bytes += sent;
    n -= (size_t)sent;
  }
  return 0;
}
static int receive_all(int socket, char* bytes, size_t n) {
  while (n > 0) {
    const ssize_t received = read(socket, bytes, n); /* 0: the other rank is gone */
    if (received <= 0) return 1;
    bytes += received;
    n -= (size_t)received;
  }
  return 0;
}
/* Slot r of `send`, which are `stride` bytes apart, to rank r. With each other rank, one after the
 * other; the lower one sends first, so that no two wait for each other. */
static int exchange(const ranks* all, const char* send, size_t stride, char* receive,
                    size_t bytes) {
  for (int r = 0; r < all->size; ++r) {
    const char* to = send + (size_t)r * stride;
    char* from = receive + (size_t)r * bytes;
    const int peer = all->peers[r];
    if (r == all->rank) {
      memcpy(from, to, bytes);
    } else if (r > all->rank) {
      if (send_all(peer, to, bytes) != 0 || receive_all(peer, from, bytes) != 0) return 1;
    } else {
      if (receive_all(peer, from, bytes) != 0 || send_all(peer, to, bytes) != 0) return 1;
    }
  }
  return 0;
}
static int all_to_all(void* all, const void* send, void* receive, size_t bytes) {
  return exchange(all, send, bytes, receive, bytes);
}
int ranks_all_gather(void* context, const void* send, void* receive, size_t bytes) {
  const ranks* all = context;
#ifdef TRAIN_WITH_MPI
  if (all->is_mpi) {
    return MPI_Allgather(send, (int)bytes, MPI_BYTE, receive, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
  }
#endif
  return exchange(all, send, 0, receive, bytes);
}

onebit_comm* ranks_comm(ranks* all) {
  onebit_comm* comm = NULL;
  const onebit_transport own = {all->rank, all->size, all, all_to_all, ranks_all_gather, NULL};
  const onebit_status status =
      all->is_mpi ? onebit_comm_mpi_world(60, &comm) : onebit_comm_callbacks(&own, &comm);
  if (status != ONEBIT_OK) fprintf(stderr, "%s\n", onebit_last_error());
  return comm;
}

/* -- processes -----------------------------------------------------------------------------------
 */

static int is_mpirun(void) {
#ifdef TRAIN_WITH_MPI
  return getenv("OMPI_COMM_WORLD_SIZE") != NULL || getenv("PMI_SIZE") != NULL;
#else
  return 0;
#endif
}

int ranks_begin(ranks* all, int n) {
  static int sockets[max_ranks][max_ranks];
  memset(all, 0, sizeof *all);
  all->size = n;
  all->is_mpi = is_mpirun();
#ifdef TRAIN_WITH_MPI
  if (all->is_mpi) {
    if (MPI_Init(NULL, NULL) != MPI_SUCCESS) return 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &all->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &all->size);
    return 0;
  }
#endif
  (void)signal(SIGPIPE, SIG_IGN); /* writing to a rank that is gone fails, no more */
  for (int a = 0; a < n; ++a) {
    for (int b = a + 1; b < n; ++b) {
      int pair[2];
      if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return 1;
      sockets[a][b] = pair[0];
      sockets[b][a] = pair[1];
    }
  }
  for (int r = 1; r < n; ++r) {
    all->children[r] = (int)fork();
    if (all->children[r] < 0) return 1;
    if (all->children[r] == 0) {
      all->rank = r;
      break;
    }
  }
  for (int a = 0; a < n; ++a) {
    for (int b = 0; b < n; ++b) {
      if (a == b) continue;
      if (a == all->rank)
        all->peers[b] = sockets[a][b];
      else
        (void)close(sockets[a][b]); /* another rank's end: open here, it would never end there */
    }
  }
  return 0;
}

int ranks_end(ranks* all, int failed) {
#ifdef TRAIN_WITH_MPI
  if (all->is_mpi) {
    MPI_Finalize();
    return failed;
  }
#endif
  for (int r = 1; all->rank == 0 && r < all->size; ++r) {
    int status = 0;
    if (waitpid(all->children[r], &status, 0) < 0 || status != 0) failed = 1;
  }
  return failed;
}

void ranks_abort(void) {
#ifdef TRAIN_WITH_MPI
  if (is_mpirun()) MPI_Abort(MPI_COMM_WORLD, 1);
#endif
  exit(1);
}
