// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#include "measure.hpp"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <limits>
#include <onebit/onebit.hpp>
#include <onebit/transport/mpi.hpp>
#include <string>
#include <vector>

namespace advisor {
namespace {

using onebit::mpi;

// Sub-communicator, freed at the end. The transport keeps its own duplicate.
class part {
 public:
  part(MPI_Comm of, int colour, int key) { MPI_Comm_split(of, colour, key, &comm_); }
  explicit part(MPI_Comm of) {
    MPI_Comm_split_type(of, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &comm_);
  }
  part(const part&) = delete;
  part& operator=(const part&) = delete;
  ~part() {
    if (comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
  }
  MPI_Comm get() const { return comm_; }
  int rank() const {
    int r = 0;
    MPI_Comm_rank(comm_, &r);
    return r;
  }
  int size() const {
    int n = 1;
    MPI_Comm_size(comm_, &n);
    return n;
  }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

double largest(double x) {
  MPI_Allreduce(MPI_IN_PLACE, &x, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return x;
}

// Seconds of the slowest rank in the best of several rounds, since disturbances only add time.
template <class F>
double best_time(const F& f) {
  using clock = std::chrono::steady_clock;
  double best = 0, sum = 0;
  for (int i = 0; i < 4 || (i < 50 && sum < 2.5); ++i) {
    MPI_Barrier(MPI_COMM_WORLD);
    const auto start = clock::now();
    f();
    const double seconds = largest(std::chrono::duration<double>(clock::now() - start).count());
    sum += seconds;
    if (i == 1 || (i > 1 && seconds < best)) best = seconds;  // the first round warms up
  }
  return best;
}

// Fits latency and bandwidth to two sizes of slots, each timed in the W-1 turns of an all-gather,
// in which a rank receives from one rank at a time. Ranks that take no part wait. The smaller size
// is above the sizes for which MPI has other algorithms.
cost::link fit(mpi* ranks, int n_ranks) {
  const std::size_t large = std::clamp<std::size_t>((std::size_t{64} << 20) / n_ranks,
                                                    std::size_t{256} << 10, std::size_t{4} << 20);
  const std::size_t small = std::size_t{16} << 10;
  const std::size_t slots = ranks == nullptr ? 0 : static_cast<std::size_t>(n_ranks);
  std::vector<std::byte> send(ranks == nullptr ? 0 : large), receive(slots * large);
  const double turns = n_ranks - 1;
  const auto turn = [&](std::size_t slot) {
    return best_time([&] {
             if (ranks == nullptr) return;
             ranks->all_gather(send.data(), receive.data(), slot);
           }) /
           turns;
  };
  const double short_turn = turn(small), long_turn = turn(large);
  const double per_byte =
      std::max(1e-15, (long_turn - short_turn) / static_cast<double>(large - small));
  return {1 / per_byte, std::max(0.0, short_turn - static_cast<double>(small) * per_byte)};
}

// Parameters and gradients. A step may overwrite gradients: call fill() before each step.
struct model {
  std::vector<float> x, grad;
  std::vector<onebit::param_group<>> groups{1};

  explicit model(std::size_t n) : x(n, 0.5F), grad(n) { groups[0].tensors.push_back({x, grad}); }
  void fill() {
    for (std::size_t i = 0; i < grad.size(); ++i) {
      grad[i] = static_cast<float>(i * 2654435761U % 2001) / 1000.0F - 1;
    }
  }
};

void time_passes(mpi world, std::size_t n, measurement& m) {
  const double to_ns = 1e9 / static_cast<double>(n);
  model a(n);
  onebit::one_bit_adam_options options;
  options.freeze.after = 12;
  options.refreshes = 1;  // rarer and rarer refreshes: the fastest step has none
  auto compressed = onebit::one_bit_adam(a.groups, world, options);
  constexpr double never = std::numeric_limits<double>::infinity();
  double encode = never, update = never, dense_update = never, sum = 0;
  // As in best_time: the best of many steps, since other work on the machine only adds time.
  for (int i = 0; i < 16 || (i < 200 && sum < 1); ++i) {
    a.fill();
    const onebit::report r = compressed.step(1e-4F);
    const double own = largest(r.encode_seconds), moved = largest(r.update_seconds);
    sum += largest(r.encode_seconds + r.update_seconds + r.communicate_seconds);
    if (r.phase == onebit::phase::compressed) {
      encode = std::min(encode, own);
      update = std::min(update, moved);
    } else if (i > 1) {  // the first steps touch new memory
      dense_update = std::min(dense_update, moved);
    }
  }
  m.dense_update_ns = dense_update * to_ns;
  // encode_seconds includes serving: 1/8 byte per parameter, of about 16.6 bytes assumed here.
  const double ns_per_byte = encode * to_ns / 16.6;
  m.compression = {16.4 * ns_per_byte, 0.125 * ns_per_byte, update * to_ns, 8 * ns_per_byte};
}

}  // namespace

measurement measure(double parameters) {
  const part node(MPI_COMM_WORLD);
  const part across(MPI_COMM_WORLD, node.rank(), 0);
  mpi world(MPI_COMM_WORLD), inside(node.get()), between(across.get());
  measurement m;
  m.network.ranks = world.size();
  m.network.ranks_per_node = static_cast<int>(largest(node.size()));
  if (world.size() < 2) throw onebit::invalid_input("advisor: --measure needs two ranks or more");
  if (largest(node.size() != m.network.ranks_per_node ? 1 : 0) > 0) {
    throw onebit::invalid_input("advisor: --measure needs equally many ranks on every node");
  }
  if (inside.size() > 1) m.network.inside = fit(&inside, inside.size());
  // One rank of each node takes part, so that the network card is not shared.
  if (between.size() > 1) {
    m.network.between = fit(node.rank() == 0 ? &between : nullptr, between.size());
  }
  const auto n = static_cast<std::size_t>(std::clamp(parameters, 1024.0, 4194304.0));
  std::vector<float> values(n);
  m.allreduce_parameters = static_cast<double>(n);
  // MPI_Allreduce, as trainers call it: the transport's allreduce has a deadline and takes longer.
  m.allreduce_seconds = best_time([&] {
    MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(n), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
  });
  time_passes(world, n, m);
  return m;
}

mpi_session::mpi_session() {
  MPI_Init(nullptr, nullptr);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  first_ = rank == 0;
}
mpi_session::~mpi_session() { MPI_Finalize(); }

}  // namespace advisor
