// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Training over MPI gives the bits of training over threads; and ranks that disagree are told.

#include <doctest/doctest.h>
#include <mpi.h>

#include <cstdint>
#include <limits>
#include <onebit/collective/hierarchical.hpp>
#include <onebit/onebit.hpp>
#include <onebit/transport/mpi.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "support/training.hpp"

using onebit_test::contains;
using onebit_test::on_ranks;
using onebit_test::saved;
using onebit_test::thrown;
using onebit_test::training;

namespace {

onebit::one_bit_adam_options frozen_after(std::uint64_t n) {
  onebit::one_bit_adam_options o;
  o.freeze.after = n;
  return o;
}
const auto plain = [](auto& data, auto t) { return onebit::adam(data.groups(), t); };
const auto scattered = [](auto& data, auto t) {
  return onebit::one_bit_adam(data.groups(), t, frozen_after(3));
};
const auto gathered = [](auto& data, auto t) {
  return onebit::one_bit_adam(data.groups(), t, frozen_after(3),
                              onebit::all_gather<onebit::sign<onebit::l1_scale>>{});
};
const auto layered = [](auto& data, auto t) {
  onebit::one_bit_lamb_options o;
  o.freeze.after = 3;
  return onebit::one_bit_lamb(data.groups(), t, o);
};
const auto skipping = [](auto& data, auto t) {
  onebit::zero_one_adam_options o;
  o.schedule.kappa = 1;
  o.schedule.warmup_steps = 3;
  o.schedule.doubling_steps = 2;
  o.schedule.max_interval = 2;
  return onebit::zero_one_adam(data.groups(), t, o);
};

const auto bucketed = [](auto& data, auto t) {
  return onebit::one_bit_adam(data.groups(), t, frozen_after(3),
                              onebit::gather_scatter{onebit::sign<>{}, 1000});
};
const auto by_node = [](auto& data, auto t) {
  return onebit::one_bit_adam(data.groups(), t, frozen_after(3),
                              onebit::hierarchical{onebit::sign<>{}, t.size() % 2 == 0 ? 2 : 1});
};

/// Parameters and state of one rank after each of 10 steps, one of which is skipped. `announces`:
/// tensors are announced before each step, all but the first.
template <class Make, class T>
std::uint64_t trajectory(const Make& make, const T& transport, bool announces = false) {
  training<> data;
  auto optimizer = make(data, transport);
  onebit::detail::digest d;
  for (int i = 0; i < 10; ++i) {
    data.compute_gradients(transport.rank(), optimizer.steps());
    if (i == 6 && transport.rank() == transport.size() - 1) {
      data.grads[2][4321] = std::numeric_limits<float>::infinity();
    }
    if (announces) {
      optimizer.begin(0.01F);
      for (std::size_t t = data.params.size(); t-- > 1;) optimizer.ready(t);
    }
    const auto report = optimizer.step(0.01F);
    d.add(report.bytes_sent);
    d.add(report.collectives);
    d.add(static_cast<int>(report.skipped));
    d.add(data.digest());
    d.add(saved(optimizer));
  }
  return d.value();
}

template <class Make>
void check_same_as_threads(const Make& make, bool announces = false) {
  const onebit::mpi transport(MPI_COMM_WORLD);
  std::uint64_t expected[64] = {};
  if (transport.rank() == 0) {  // threads need one process; the others wait for its results
    const auto all =
        on_ranks(transport.size(), [&](onebit::threads t) { return trajectory(make, t); });
    std::copy(all.begin(), all.end(), expected);
  }
  MPI_Bcast(expected, 64, MPI_UINT64_T, 0, MPI_COMM_WORLD);
  CHECK(trajectory(make, transport, announces) == expected[transport.rank()]);
}

}  // namespace

TEST_CASE("the bits of threads: Adam") { check_same_as_threads(plain); }
TEST_CASE("the bits of threads: 1-bit Adam, gather-scatter") { check_same_as_threads(scattered); }
TEST_CASE("the bits of threads: 1-bit Adam, all-gather") { check_same_as_threads(gathered); }
TEST_CASE("the bits of threads: averages in bf16") {
  check_same_as_threads([](auto& data, auto t) {
    onebit::one_bit_adam_options o = frozen_after(3);
    o.warm_up_sum = onebit::dense_sum::in_bf16;
    return onebit::one_bit_adam(data.groups(), t, o);
  });
}
TEST_CASE("the bits of threads: 1-bit LAMB") { check_same_as_threads(layered); }
TEST_CASE("the bits of threads: 0/1 Adam") { check_same_as_threads(skipping); }

TEST_CASE("the bits of threads: buckets under way at once") { check_same_as_threads(bucketed); }
TEST_CASE("the bits of threads: buckets that start before the step") {
  check_same_as_threads(bucketed, true);
}
TEST_CASE("the bits of threads: buckets that some ranks announce, or other ones, or none") {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  check_same_as_threads(bucketed, rank % 2 == 0);
}
TEST_CASE("the bits of threads: two levels") { check_same_as_threads(by_node); }

TEST_CASE("MPI's own sum: all ranks hold the same bits") {
  const onebit::mpi transport(MPI_COMM_WORLD);
  training<> data;
  auto optimizer =
      onebit::adam(data.groups(), transport, {}, onebit::host{}, onebit::dense_sum::transport);
  for (int i = 0; i < 5; ++i) CHECK_FALSE(train(optimizer, data).skipped);
  std::uint64_t mine = data.digest(), first = mine;
  MPI_Bcast(&first, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
  CHECK(mine == first);
}

TEST_CASE("ranks that disagree: all are told, and the next attempt works") {
  const onebit::mpi transport(MPI_COMM_WORLD);
  const int odd = transport.size() - 1;
  if (odd == 0) return;
  const bool is_odd = transport.rank() == odd;
  training<> data;
  CHECK(thrown<onebit::rank_mismatch>([&] {
          (void)onebit::one_bit_adam(data.groups(), transport, frozen_after(is_odd ? 4 : 5));
        }) == contains{"the ranks disagree: rank " + std::to_string(odd)});

  auto wrong = data.groups();
  if (is_odd) wrong[1].weight_decay = -1;
  const auto build = [&] { (void)onebit::adam(wrong, transport); };
  if (is_odd) {
    CHECK(thrown<onebit::invalid_input>(build) == contains{"group 1 has weight_decay -1"});
  } else {
    CHECK(thrown<onebit::rank_mismatch>(build) == contains{"rejected its input"});
  }

  // A compressor that only one rank finds fault with must not leave the others waiting either.
  const onebit::sign<> codec{onebit::granularity::block(is_odd ? 33 : 32)};
  const auto cut = [&] {
    (void)onebit::one_bit_adam(data.groups(), transport, frozen_after(4),
                               onebit::gather_scatter{codec});
  };
  if (is_odd) {
    CHECK(thrown<onebit::invalid_input>(cut) == contains{"block of 33"});
  } else {
    CHECK(thrown<onebit::rank_mismatch>(cut) == contains{"rejected its input"});
  }

  auto optimizer = onebit::adam(data.groups(), transport);
  CHECK_FALSE(train(optimizer, data).skipped);
}

TEST_CASE("a damaged checkpoint on one rank: no rank loads, and training goes on") {
  const onebit::mpi transport(MPI_COMM_WORLD);
  training<> data;
  auto optimizer = scattered(data, transport);
  for (int i = 0; i < 5; ++i) (void)train(optimizer, data);
  const auto whole = saved(optimizer);
  std::istringstream in(transport.rank() == 0 ? whole.substr(0, whole.size() / 2) : whole);
  const auto text = thrown<onebit::checkpoint_error>([&] { optimizer.load(in); });
  CHECK(text == contains{transport.rank() == 0 ? "truncated" : "rank 0 could not read"});
  CHECK(saved(optimizer) == whole);
  std::istringstream again(whole);
  optimizer.load(again);
  CHECK_FALSE(train(optimizer, data).skipped);
}
