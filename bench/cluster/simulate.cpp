// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The exchanges of onebit's optimizer steps as an MPI program, for simulated time: bytes and order
// of the messages are those of the library, their contents are not there. Runs under smpirun, see
// run.sh; prints one JSON line for each kind of step.
//
//   simulate RANKS_PER_NODE PARAMETERS DENSE_BYTES COMPUTE_SECONDS KIND...
//
// DENSE_BYTES        of an uncompressed element on the wire
// COMPUTE_SECONDS    of one step, whatever its kind
// KIND               ring: allreduce; gather_scatter: the dense mean as the library does it;
//                    flat: compressed, among all ranks; hierarchical: summed in full inside the
//                    node, compressed between nodes; all_gather: compressed, one phase

#include <mpi.h>
#include <smpi/smpi.h>

#include <climits>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

constexpr double flops_per_second = 1e12;  // of the hosts in platform.cpp

/// Where messages come from and go to: one block for all, since nobody looks at what is in it.
char* shared_block(std::size_t bytes) {
  static char* block = nullptr;
  static std::size_t size = 0;
  if (bytes > size) {
    size = bytes;
    block = static_cast<char*>(SMPI_SHARED_MALLOC(bytes));
  }
  return block;
}

/// A communicator.
struct group {
  MPI_Comm comm = MPI_COMM_WORLD;
  int size = 1;
  int rank = 0;

  explicit group(MPI_Comm c) : comm(c) {
    MPI_Comm_size(comm, &size);
    MPI_Comm_rank(comm, &rank);
  }
  /// The ranks of equal colour, in the order of the world.
  static group of_colour(int colour) {
    MPI_Comm part = MPI_COMM_NULL;
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_split(MPI_COMM_WORLD, colour, rank, &part);
    return group(part);
  }
};

/// One message to a rank and one from a rank.
void send_receive(const group& g, std::size_t bytes, int to, int from) {
  if (bytes > INT_MAX / 2) {
    std::fprintf(stderr, "simulate: %zu bytes are too many for one message\n", bytes);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  const int n = static_cast<int>(bytes);
  char* p = shared_block(2 * bytes);
  MPI_Sendrecv(p, n, MPI_BYTE, to, 0, p + n, n, MPI_BYTE, from, 0, g.comm, MPI_STATUS_IGNORE);
}

// The algorithms that MPI libraries take for large messages, spelled out, so that nothing but the
// messages is simulated; `library` calls the library's own instead, which also copies.

bool library = false;

/// Pairwise: in turn i, to the i-th rank ahead and from the i-th behind.
void all_to_all(const group& g, std::size_t slot) {
  if (library) {
    const int n = static_cast<int>(slot);
    char* p = shared_block(2 * slot * static_cast<std::size_t>(g.size));
    MPI_Alltoall(p, n, MPI_BYTE, p + slot * static_cast<std::size_t>(g.size), n, MPI_BYTE, g.comm);
    return;
  }
  for (int i = 1; i < g.size; ++i) {
    send_receive(g, slot, (g.rank + i) % g.size, (g.rank + g.size - i) % g.size);
  }
}

/// A ring: in each turn, to the next rank what came from the one before.
void pass_on(const group& g, std::size_t slot, int turns) {
  for (int i = 0; i < turns; ++i) {
    send_receive(g, slot, (g.rank + 1) % g.size, (g.rank + g.size - 1) % g.size);
  }
}

void all_gather(const group& g, std::size_t slot) {
  if (!library) return pass_on(g, slot, g.size - 1);
  const int n = static_cast<int>(slot);
  char* p = shared_block((static_cast<std::size_t>(g.size) + 1) * slot);
  MPI_Allgather(p, n, MPI_BYTE, p + slot, n, MPI_BYTE, g.comm);
}

/// Reduce-scatter and all-gather on a ring.
void all_reduce(const group& g, std::size_t bytes) {
  if (!library) {
    return pass_on(g, bytes / static_cast<std::size_t>(g.size), 2 * (g.size - 1));
  }
  static MPI_Op nothing = MPI_OP_NULL;  // the sum takes no simulated time, nor a real one
  if (nothing == MPI_OP_NULL) {
    MPI_Op_create([](void*, void*, int*, MPI_Datatype*) {}, 1, &nothing);
  }
  char* p = shared_block(2 * bytes);
  MPI_Allreduce(p, p + bytes, static_cast<int>(bytes), MPI_BYTE, nothing, g.comm);
}

/// As message_header.hpp: the words of a chunk, their scale if they have one, the status.
std::size_t slot_bytes(double elements, int chunks, double word_bytes, bool scaled) {
  const auto words = static_cast<std::size_t>((elements + 31) / 32);
  const auto n = static_cast<std::size_t>(chunks);
  return (words + n - 1) / n * static_cast<std::size_t>(word_bytes) + (scaled ? 16 : 12);
}

struct exchanges {
  double n;
  double dense_bytes;
  group world, local, across;

  void ring() const { all_reduce(world, static_cast<std::size_t>(n * dense_bytes)); }
  void gather_scatter() const {
    const std::size_t slot = slot_bytes(n, world.size, 32 * dense_bytes, false);
    all_to_all(world, slot);
    all_gather(world, slot);
  }
  void flat() const { compressed(world, n); }
  void hierarchical() const {
    const double share = n / local.size;
    if (local.size > 1) all_to_all(local, slot_bytes(n, local.size, 32 * dense_bytes, false));
    if (across.size > 1) compressed(across, share);
    if (local.size > 1) all_gather(local, slot_bytes(n, local.size, 4, true));
  }
  void one_phase() const { all_gather(world, slot_bytes(n, 1, 4, true)); }

  bool run(const std::string& kind) const {
    if (kind == "ring") return ring(), true;
    if (kind == "gather_scatter") return gather_scatter(), true;
    if (kind == "flat") return flat(), true;
    if (kind == "hierarchical") return hierarchical(), true;
    if (kind == "all_gather") return one_phase(), true;
    return false;
  }

 private:
  static void compressed(const group& g, double elements) {
    const std::size_t slot = slot_bytes(elements, g.size, 4, true);
    all_to_all(g, slot);
    all_gather(g, slot);
  }
};

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc < 6) {
    std::fprintf(stderr, "usage: simulate RANKS_PER_NODE PARAMETERS DENSE_BYTES SECONDS KIND...\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  const int ranks_per_node = std::atoi(argv[1]);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  exchanges e{std::atof(argv[2]), std::atof(argv[3]), group(MPI_COMM_WORLD),
              group::of_colour(rank / ranks_per_node), group::of_colour(rank % ranks_per_node)};
  library = std::getenv("CLUSTER_LIBRARY") != nullptr;
  const double compute = std::atof(argv[4]);

  for (int i = 5; i < argc; ++i) {
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    smpi_execute_flops(compute * flops_per_second);
    const double before = MPI_Wtime();
    if (!e.run(argv[i])) {
      std::fprintf(stderr, "simulate: no kind '%s'\n", argv[i]);
      MPI_Abort(MPI_COMM_WORLD, 2);
    }
    const double end = MPI_Wtime();
    double mine[2] = {end - before, end - start};
    double slowest[2] = {0, 0};
    MPI_Reduce(mine, slowest, 2, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0) {
      std::printf(
          "{\"network\": \"%s\", \"nodes\": %d, \"ranks_per_node\": %d, \"gbit\": %s, "
          "\"inside_gbit\": %s, "
          "\"latency_us\": %s, \"inside_latency_us\": %s, \"parameters\": %.0f, "
          "\"dense_bytes\": %g, \"exchange\": \"%s\", \"seconds\": %.6f, "
          "\"step_seconds\": %.6f}\n",
          std::getenv("CLUSTER_NETWORK"), e.world.size / ranks_per_node, ranks_per_node,
          std::getenv("CLUSTER_GBIT"), std::getenv("CLUSTER_INSIDE_GBIT"),
          std::getenv("CLUSTER_LATENCY_US"), std::getenv("CLUSTER_INSIDE_LATENCY_US"), e.n,
          e.dense_bytes, argv[i], slowest[0], slowest[1]);
      std::fflush(stdout);
    }
  }
  MPI_Finalize();
  return 0;
}
