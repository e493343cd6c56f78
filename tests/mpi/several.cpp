// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Several optimizers over one MPI transport: each talks on communicators of its own, so that ranks
// may interleave them in different orders, also in threads.

#include <doctest/doctest.h>
#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <onebit/onebit.hpp>
#include <onebit/transport/mpi.hpp>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "support/training.hpp"

using onebit_test::contains;
using onebit_test::saved;
using onebit_test::thrown;
using onebit_test::training;

namespace {

auto in_buckets(training<>& data, const onebit::mpi& transport) {
  return onebit::one_bit_adam(data.groups(), transport, onebit_test::frozen_after(2),
                              onebit::gather_scatter{onebit::sign<>{}, 1000});
}

const std::vector<std::size_t> other_sizes = {900, 3100, 40};
constexpr int n_steps = 6;

template <class Optimizer>
std::uint64_t state_of(Optimizer& optimizer, const training<>& data) {
  onebit::detail::digest d;
  d.add(data.digest());
  d.add(saved(optimizer));
  return d.value();
}

void ignore(MPI_Comm*, int*, ...) {}  // a handler of the trainer

/// One optimizer after n_steps steps, with nothing beside it.
std::uint64_t alone(const std::vector<std::size_t>& sizes) {
  training<> data(sizes);
  auto optimizer = in_buckets(data, onebit::mpi(MPI_COMM_WORLD));
  for (int i = 0; i < n_steps; ++i) (void)train(optimizer, data);
  return state_of(optimizer, data);
}

}  // namespace

TEST_CASE("two optimizers whose announcements interleave otherwise on some ranks") {
  const std::uint64_t expected_a = alone(onebit_test::mixed_sizes), expected_b = alone(other_sizes);
  const onebit::mpi transport(MPI_COMM_WORLD);
  training<> data_a, data_b(other_sizes);
  auto a = in_buckets(data_a, transport), b = in_buckets(data_b, transport);
  for (int i = 0; i < n_steps; ++i) {
    const float lr = 0.01F / static_cast<float>(1 + i % 3);
    data_a.compute_gradients(transport.rank(), a.steps());
    data_b.compute_gradients(transport.rank(), b.steps());
    if (i >= 2) {
      a.begin(lr);
      b.begin(lr);
      const auto all_of = [](auto& optimizer, const training<>& data) {
        for (std::size_t t = data.params.size(); t-- > 0;) optimizer.ready(t);
      };
      if (transport.rank() % 2 == 0) {
        all_of(a, data_a);
        all_of(b, data_b);
      } else {
        all_of(b, data_b);
        all_of(a, data_a);
      }
    }
    CHECK_FALSE(a.step(lr).skipped);
    CHECK_FALSE(b.step(lr).skipped);
  }
  CHECK(state_of(a, data_a) == expected_a);
  CHECK(state_of(b, data_b) == expected_b);
}

TEST_CASE("a compressed_allreduce and an optimizer: free order, too") {
  const onebit::mpi transport(MPI_COMM_WORLD);
  training<> data;
  auto optimizer = in_buckets(data, transport);
  for (int i = 0; i < 2; ++i) (void)train(optimizer, data);
  const onebit::gather_scatter signs{onebit::sign<>{}, 1000};
  onebit::compressed_allreduce mean(transport, {4000}, signs), before(transport, {4000}, signs);
  std::vector<float> own(4000), expected;
  for (std::size_t i = 0; i < own.size(); ++i) own[i] = onebit_test::noise(i);
  expected = own;
  (void)before.mean(expected);
  data.compute_gradients(transport.rank(), optimizer.steps());
  optimizer.begin(0.01F);
  const auto announce = [&] {
    for (std::size_t t = data.params.size(); t-- > 0;) optimizer.ready(t);
  };
  if (transport.rank() % 2 == 0) {
    announce();
    mean.start(own);
  } else {
    mean.start(own);
    announce();
  }
  CHECK_FALSE(optimizer.step(0.01F).skipped);
  CHECK(mean.wait() == onebit::outcome::kept);
  CHECK(own == expected);
}

TEST_CASE("optimizers in two threads: bits, and the error handler of MPI_COMM_WORLD, stay") {
  int level = 0;
  MPI_Query_thread(&level);
  REQUIRE(level == MPI_THREAD_MULTIPLE);
  MPI_Errhandler before = MPI_ERRHANDLER_NULL, own = MPI_ERRHANDLER_NULL;
  MPI_Comm_get_errhandler(MPI_COMM_WORLD, &before);
  MPI_Comm_create_errhandler(&ignore, &own);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, own);
  const auto is_own = [&] {
    MPI_Errhandler now = MPI_ERRHANDLER_NULL;
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &now);
    const bool same = now == own;
    if (now != MPI_ERRHANDLER_NULL) MPI_Errhandler_free(&now);
    return same;
  };
  {
    const std::uint64_t expected_a = alone(onebit_test::mixed_sizes),
                        expected_b = alone(other_sizes);
    const onebit::mpi transport(MPI_COMM_WORLD);
    training<> data_a, data_b(other_sizes);
    auto a = in_buckets(data_a, transport), b = in_buckets(data_b, transport);
    std::atomic<int> n_running = 2;
    std::exception_ptr failed[2];
    const auto run = [&](auto& optimizer, training<>& data, std::exception_ptr& error) {
      try {
        for (int i = 0; i < n_steps; ++i) (void)train(optimizer, data);
      } catch (...) {
        error = std::current_exception();
      }
      --n_running;
    };
    std::thread first([&] { run(a, data_a, failed[0]); });
    std::thread second([&] { run(b, data_b, failed[1]); });
    bool stayed = true;
    while (n_running > 0) {
      stayed = is_own() && stayed;
      std::this_thread::yield();
    }
    first.join();
    second.join();
    for (const auto& error : failed) {
      if (error) std::rethrow_exception(error);
    }
    CHECK(stayed);
    CHECK(is_own());
    CHECK(state_of(a, data_a) == expected_a);
    CHECK(state_of(b, data_b) == expected_b);
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, before);
  MPI_Errhandler_free(&own);
  MPI_Errhandler_free(&before);
}

TEST_CASE("800 optimizers over one transport") {
  const onebit::mpi transport(MPI_COMM_WORLD);
  if (transport.size() != 2) return;
  std::vector<float> x(800 * 33), g(x.size(), 0.5F);
  const auto build = [&](std::size_t i) {
    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({std::span(&x[i * 33], 33), std::span(&g[i * 33], 33)});
    return onebit::adam(groups, transport);
  };
  std::vector<decltype(build(0))> all;
  for (std::size_t i = 0; i < 800; ++i) all.push_back(build(i));
  for (auto& one : all) CHECK_FALSE(one.step(0.01F).skipped);
  CHECK(x[0] < 0);
  CHECK(x.front() == x.back());
}

#if defined(MPICH_VERSION) && !defined(I_MPI_VERSION)  // others end at what the machine has
TEST_CASE("more optimizers than MPI has communicators: an error with the numbers") {
  const onebit::mpi transport(MPI_COMM_WORLD);
  if (transport.size() != 2) return;
  std::vector<onebit::mpi> all;
  const auto text = thrown<onebit::transport_error>([&] {
    for (int i = 0; i < 1100; ++i) all.push_back(transport.duplicate());
  });
  CHECK(all.size() > 1000);
  CHECK(text == contains{"MPI_Comm_dup failed with code "});
  CHECK(text == contains{"holds 2 communicators until it is destroyed, and MPICH has 2045"});
  all.pop_back();
  CHECK(transport.duplicate().size() == transport.size());
}
#endif
