// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The suite of transports for the transport among threads, and the proof that the suite notices
// transports that are wrong. Its instance for MPI is in tests/mpi.

#include <onebit/testing/transport.hpp>

#include "../support/plan.hpp"

using namespace onebit_test;

namespace {

/// A threads transport with one mistake.
enum class mistake { none, order, drops_a_byte, sums_twice, rank_dependent_sum, loses_nan };

struct broken {
  onebit::threads inner;
  mistake how = mistake::none;

  int rank() const { return inner.rank(); }
  int size() const { return inner.size(); }
  void all_to_all(const void* send, void* receive, std::size_t n) {
    inner.all_to_all(send, receive, n);
    auto* to = static_cast<std::byte*>(receive);
    if (how == mistake::drops_a_byte && n > 1 && size() > 1) to[n - 1] = std::byte{0};
  }
  void all_gather(const void* send, void* receive, std::size_t n) {
    inner.all_gather(send, receive, n);
    auto* to = static_cast<std::byte*>(receive);
    if (how == mistake::order && size() > 1) std::swap_ranges(to, to + n, to + n);
  }
  void all_reduce_sum(float* data, std::size_t n) {
    inner.all_reduce_sum(data, n);
    for (std::size_t i = 0; i < n; ++i) {
      if (how == mistake::sums_twice) data[i] *= 2;
      if (how == mistake::rank_dependent_sum && rank() == 1) {
        data[i] = std::nextafter(data[i], data[i] + 1);
      }
      if (how == mistake::loses_nan && std::isnan(data[i])) data[i] = 0;
    }
  }
};

}  // namespace

TEST_CASE("transport: threads, any number of ranks, also without their type") {
  for (const int w : {1, 2, 3, 5, 8}) {
    for (const auto& failures :
         on_ranks(w, [](onebit::threads t) { return transport_failures(t); })) {
      for (const std::string& failure : failures) FAIL_CHECK(failure);
    }
    for (const auto& failures : on_ranks(w, [](onebit::threads t) {
           onebit::communicator any(t);
           return transport_failures(any);
         })) {
      CHECK(failures.empty());
    }
  }
}

TEST_CASE("transport: the suite notices mistakes") {
  const auto n_failures = [](mistake how) {
    std::size_t n = 0;
    for (const auto& failures : on_ranks(3, [&](onebit::threads t) {
           broken transport{t, how};
           return transport_failures(transport);
         })) {
      n += failures.size();
    }
    return n;
  };
  CHECK(n_failures(mistake::none) == 0);
  for (const mistake how : {mistake::order, mistake::drops_a_byte, mistake::sums_twice,
                            mistake::rank_dependent_sum, mistake::loses_nan}) {
    CAPTURE(static_cast<int>(how));
    CHECK(n_failures(how) > 0);
  }
}
