// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Whole trainings over NCCL, one thread for each device of this machine, up to four: every
// algorithm and exchange has the bits of the host over threads, step by step, from graphs, and with
// gradients announced one by one; bad gradients change nothing; so does a transport that fails.
//
// NCCL takes a device once for each host. Two processes that pass for two hosts share one device
// (the folder is new and empty: old ids are refused):
//
//   for rank in 0 1; do
//     NCCL_HOSTID=$rank NCCL_SOCKET_IFNAME=lo ONEBIT_NCCL_RANK=$rank ONEBIT_NCCL_IDS=FOLDER/id \
//       test_nccl_trainings &
//   done

#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <onebit/collective/hierarchical.hpp>
#include <onebit/transport/nccl.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "../../examples/common/id_file.hpp"
#include "cuda/device.cuh"
#include "cuda/trainings.hpp"

using namespace onebit_test;

namespace {

enum class way { plain, graphs, announced };
constexpr way ways[] = {way::plain, way::graphs, way::announced};

/// One of two processes that share device 0: its rank and where the communicators' ids are left.
struct process {
  int rank;
  std::string ids;
  int n_communicators = 0;

  /// nullptr where this process has every rank.
  static process* here() {
    static const char* const rank = std::getenv("ONEBIT_NCCL_RANK");
    if (rank == nullptr) return nullptr;
    const char* const ids = std::getenv("ONEBIT_NCCL_IDS");
    if (ids == nullptr) throw std::runtime_error("ONEBIT_NCCL_RANK without ONEBIT_NCCL_IDS");
    static process one{std::atoi(rank), ids};
    return &one;
  }
  /// The id of the next communicator, which rank 0 makes.
  ncclUniqueId next() {
    const std::string file = ids + "." + std::to_string(n_communicators++);
    ncclUniqueId id;
    if (rank == 0) {
      REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
      common::publish(file, &id, sizeof id);
    } else {
      common::await(file, &id, sizeof id, std::chrono::seconds(60));
    }
    return id;
  }
};

template <class F>
auto on_device(int index, int rank, int n, const ncclUniqueId& id, const F& f) {
  onebit::detail::check_cuda(cudaSetDevice(index), "cudaSetDevice");
  cuda_device device;
  ncclComm_t comm = nullptr;
  if (ncclCommInitRank(&comm, n, id, rank) != ncclSuccess) {
    throw std::runtime_error(ncclGetLastError(nullptr));
  }
  auto result = f(onebit::nccl(comm, device.handle()), device);
  (void)ncclCommDestroy(comm);
  return result;
}

/// What f(transport, device) returns on n ranks, each with a device of its own; as one of two
/// processes, what it returns here, twice.
template <class F>
auto on_devices(int n, const F& f) {
  using result = decltype(f(std::declval<onebit::nccl>(), std::declval<cuda_device&>()));
  process* const here = process::here();
  ncclUniqueId id;
  if (here != nullptr && n > 1) {
    id = here->next();
    return std::vector<result>(static_cast<std::size_t>(n), on_device(0, here->rank, n, id, f));
  }
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  std::vector<result> results(static_cast<std::size_t>(n));
  onebit::run_threads(n, [&](onebit::threads t) {
    results[static_cast<std::size_t>(t.rank())] = on_device(t.rank(), t.rank(), n, id, f);
  });
  return results;
}

/// The last tensors are announced before the step, from the end; the first two are not.
template <class Optimizer>
void announce(Optimizer& o, std::size_t n_tensors, float lr) {
  o.begin(lr);
  for (std::size_t t = n_tensors; t-- > 2;) o.ready(t);
}

template <class Optimizer, class Model>
trajectory steps_by(way w, Optimizer& o, Model& data, cudaStream_t stream) {
  if (w == way::plain) return steps(o, data);
  const script& s = data.plan();
  onebit::cuda_graphs graphs(stream);
  std::size_t most = 0;
  for (std::uint64_t call = 0; call < s.calls; ++call) {
    data.load(call);
    const float lr = script::lr(call);
    if (w == way::announced) announce(o, s.sizes.size(), lr);
    (void)(w == way::graphs ? o.step_with(graphs, lr) : o.step(lr));
    data.keep(call);
    most = std::max(most, graphs.size());
  }
  CHECK(o.settle() != onebit::outcome::pending);
  if (w == way::graphs) CHECK(most > 0);
  return data.digests(0, s.calls);
}

/// Every way on n devices, and the host's ranks. On a deferred backend a skipped step counts for
/// some schedules, and not on the host: then the ways are compared with each other.
template <class Make>
void check_ways(const char* name, int n, const Make& make, const script& s = {},
                bool as_on_the_host = true) {
  INFO(std::string(name));
  CAPTURE(n);
  std::vector<trajectory> expected;
  if (as_on_the_host) {
    expected = on<host_device>(n, [&](auto transport, host_device& device) {
      model<host_device> data(device, transport.rank(), transport.size(), s);
      auto o = make(data.groups(), transport, device.backend());
      return steps(o, data);
    });
  }
  for (const way w : ways) {
    CAPTURE(static_cast<int>(w));
    auto got = on_devices(n, [&](onebit::nccl transport, cuda_device& device) {
      model<cuda_device> data(device, transport.rank(), transport.size(), s);
      auto o = make(data.groups(), transport, device.backend());
      const trajectory t = steps_by(w, o, data, device.handle());
      CHECK(o.n_skipped() == s.bad.size());
      return t;
    });
    if (expected.empty()) expected = got;
    const process* const here = process::here();
    if (here != nullptr && n > 1) {  // the other process compares what it has
      got[static_cast<std::size_t>(1 - here->rank)] =
          expected[static_cast<std::size_t>(1 - here->rank)];
    }
    CHECK(difference(got, expected) == "none");
    for (const std::uint64_t call : s.bad) {
      if (call > 0) CHECK(got[0][call] == got[0][call - 1]);
    }
  }
}

/// Calls f(name, make) for the algorithms that compress, with an exchange.
template <class C, class F>
void each_compressed(const C& c, const F& f) {
  f("one_bit_adam", one_bit_adam_with(c));
  f("one_bit_lamb", one_bit_lamb_with(c));
  f("zero_one_adam", zero_one_adam_with(c));
}
template <class F>
void each_dense(const F& f) {
  f("adam", [](const auto& g, auto t, auto b) { return onebit::adam(g, t, {}, b); });
  f("lamb", [](const auto& g, auto t, auto b) { return onebit::lamb(g, t, {}, b); });
}

int n_devices() {
  return process::here() != nullptr ? 2 : std::min(onebit::cuda_device_count(), 4);
}
std::vector<int> numbers_of_devices() {
  return n_devices() > 2 ? std::vector<int>{2, n_devices()} : std::vector<int>{n_devices()};
}

/// Every kind of step, in three buckets.
const std::vector<std::size_t> few = {33, 0, 700, 1, 4200, 64};
const script brief{.calls = 24, .sizes = few};

/// NCCL's transport, whose collectives throw on every rank when there is nothing left of a number,
/// as they do when a communicator was aborted.
class breaking : public onebit::nccl {
 public:
  struct broken {};
  breaking(onebit::nccl inner, std::shared_ptr<int> left)
      : onebit::nccl(std::move(inner)), left_(std::move(left)) {}
  void all_to_all(const void* send, void* receive, std::size_t n) {
    count();
    onebit::nccl::all_to_all(send, receive, n);
  }
  void all_gather(const void* send, void* receive, std::size_t n) {
    count();
    onebit::nccl::all_gather(send, receive, n);
  }
  [[nodiscard]] auto start_all_to_all(const void* send, void* receive, std::size_t n) {
    count();
    return onebit::nccl::start_all_to_all(send, receive, n);
  }
  [[nodiscard]] auto start_all_gather(const void* send, void* receive, std::size_t n) {
    count();
    return onebit::nccl::start_all_gather(send, receive, n);
  }

 private:
  void count() {
    if ((*left_)-- == 0) throw broken{};
  }
  std::shared_ptr<int> left_;
};

/// Two processes train; rank 1 ends in the middle. Rank 0 hears of it from the step, or, where the
/// host need not know what became of one, from settle(), soon after the time-out; and can then let
/// everything go.
void lose_a_rank(way w, std::uint64_t freeze_after) {
  process* const here = process::here();
  REQUIRE(here != nullptr);
  constexpr auto timeout = std::chrono::seconds(3);
  onebit::detail::check_cuda(cudaSetDevice(0), "cudaSetDevice");
  cuda_device device;
  ncclComm_t comm = nullptr;
  REQUIRE(ncclCommInitRank(&comm, 2, here->next(), here->rank) == ncclSuccess);
  onebit::nccl transport(comm, device.handle(), {.timeout = timeout});
  model<cuda_device> data(device, here->rank, 2, brief);
  auto o = onebit::one_bit_adam(
      data.groups(), transport,
      onebit::one_bit_adam_options{.freeze = {.after = freeze_after}, .refreshes = 0},
      onebit::gather_scatter<onebit::sign<>>{}, device.backend());
  std::string told;
  const auto start = std::chrono::steady_clock::now();
  {
    onebit::cuda_graphs graphs(device.handle());
    for (std::uint64_t call = 0; call < brief.calls && told.empty(); ++call) {
      if (here->rank == 1 && call == brief.calls / 2) std::_Exit(0);
      data.load(call);
      try {
        const float lr = script::lr(call);
        const auto r = w == way::graphs ? o.step_with(graphs, lr) : o.step(lr);
        if (r.pending) (void)o.settle();
      } catch (const onebit::transport_error& e) {
        told = e.what();
      }
    }
    if (w == way::graphs) CHECK(graphs.size() > 0);
  }
  CHECK(told == contains{w == way::graphs ? "not aborted, since captured graphs hold them"
                                          : "the communicators were aborted"});
  CHECK(thrown<onebit::transport_error>([&] { (void)o.settle(); }) ==
        contains{"the communicators have failed: "});
  if (w == way::graphs) transport.abort();
  CHECK(cudaStreamSynchronize(device.handle()) == cudaSuccess);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  MESSAGE(told << "; all over after " << seconds.count() << " s");
  CHECK(seconds.count() < 4.0 * static_cast<double>(timeout.count()));
}

}  // namespace

// Each in two processes of its own (tests/gpu.sh): one of them ends.
TEST_CASE("nccl lost rank: step by step" * doctest::skip()) { lose_a_rank(way::plain, 4); }
TEST_CASE("nccl lost rank: from graphs" * doctest::skip()) { lose_a_rank(way::graphs, 4); }
TEST_CASE("nccl lost rank: in a step that waits" * doctest::skip()) { lose_a_rank(way::plain, 0); }

TEST_CASE("nccl trainings: averages") {
  for (const int n : numbers_of_devices()) {
    each_dense([n](const char* name, const auto& make) { check_ways(name, n, make, brief); });
  }
}

TEST_CASE("nccl trainings: gather_scatter, whole and in buckets") {
  for (const int n : {1, 2, n_devices()}) {
    for (const std::size_t bucket : {std::size_t{0}, std::size_t{3000}}) {
      if (n > n_devices() || (n == 1 && bucket > 0)) continue;
      CAPTURE(bucket);
      onebit::gather_scatter<onebit::sign<>> c;
      if (bucket > 0) c.bucket_elements = bucket;
      each_compressed(
          c, [n](const char* name, const auto& make) { check_ways(name, n, make, brief); });
    }
  }
}

TEST_CASE("nccl trainings: all_gather") {
  each_compressed(onebit::all_gather<onebit::sign<>>{}, [](const char* name, const auto& make) {
    check_ways(name, n_devices(), make, brief);
  });
}

TEST_CASE("nccl trainings: hierarchical") {
  if (n_devices() % 2 != 0) return;
  each_compressed(
      onebit::hierarchical{onebit::sign<>{}, 2},
      [](const char* name, const auto& make) { check_ways(name, n_devices(), make, brief); });
}

TEST_CASE("nccl trainings: bad gradients change nothing, on any rank, in any way") {
  const script late{.calls = 24, .bad = {14, 20, 21}, .sizes = few},
      early{.calls = 24, .bad = {2, 5, 13, 20}, .sizes = few};
  const onebit::gather_scatter<onebit::sign<>> c;
  const int n = n_devices();
  // Without refreshes: sketches take their signs by the number of the step, which a skipped step
  // keeps on the host.
  check_ways("one_bit_adam", n, one_bit_adam_with(c, 0), late);
  check_ways("papers::one_bit_lamb", n, papers_one_bit_lamb_with(c), late);
  each_dense([&](const char* name, const auto& make) { check_ways(name, n, make, early, false); });
  check_ways("one_bit_adam", n, one_bit_adam_with(c, 0), early, false);
  check_ways("one_bit_lamb", n, one_bit_lamb_with(c), early, false);
}

TEST_CASE("nccl trainings: a collective that fails, and the step again") {
  const auto check = [](const char* name, const auto& make) {
    INFO(std::string(name));
    const script s{.calls = 17, .sizes = few};
    const int n = std::min(2, n_devices());
    const auto train = [&](int at, way w, std::atomic<bool>& has_failed) {
      return on_devices(n, [&](onebit::nccl inner, cuda_device& device) {
        const auto left = std::make_shared<int>(-1);
        model<cuda_device> data(device, inner.rank(), inner.size(), s);
        auto o = make(data.groups(), breaking(inner, left), device.backend());
        *left = at;
        onebit::cuda_graphs graphs(device.handle());
        for (std::uint64_t call = 0; call < s.calls;) {
          data.load(call);
          try {
            const float lr = script::lr(call);
            if (w == way::announced) announce(o, s.sizes.size(), lr);
            (void)(w == way::graphs ? o.step_with(graphs, lr) : o.step(lr));
          } catch (const breaking::broken&) {
            has_failed = true;  // of both ranks the same
            continue;
          }
          data.keep(call++);
        }
        CHECK(o.settle() == onebit::outcome::kept);
        return data.digests(0, s.calls);
      });
    };
    std::atomic<bool> failed{false};
    const auto expected = train(-1, way::plain, failed);
    REQUIRE(!failed);
    for (const way w : ways) {
      for (int at = 1;; at += 11) {
        CAPTURE(static_cast<int>(w));
        CAPTURE(at);
        failed = false;
        const auto got = train(at, w, failed);
        CHECK(difference(got, expected) == "none");
        if (!failed) break;
      }
    }
  };
  onebit::gather_scatter<onebit::sign<>> buckets;
  buckets.bucket_elements = 2000;
  check("one_bit_adam", one_bit_adam_with(buckets));
  check("one_bit_lamb", one_bit_lamb_with(buckets));
  check("zero_one_adam", zero_one_adam_with(buckets));
}
