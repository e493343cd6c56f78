// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Memory that the host can not touch: threads that carry it, and host transports made to carry it.

#include <doctest/doctest.h>

#include <chrono>
#include <cstring>
#include <onebit/testing/scripted.hpp>
#include <onebit/testing/transport.hpp>
#include <onebit/transport/communicator.hpp>
#include <onebit/transport/memory.hpp>
#include <onebit/transport/staged.hpp>
#include <onebit/transport/threads.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "support/fake_device.hpp"
#include "support/training.hpp"

using namespace std::chrono_literals;
using onebit_test::contains;
using onebit_test::fake_buffer;
using onebit_test::fake_memory;
using onebit_test::through_device;
using onebit_test::thrown;

namespace {

using device_threads = onebit::basic_threads<fake_memory>;

/// Every rank with a stream of its own.
std::vector<fake_memory> streams(int n) {
  std::vector<fake_memory> all;
  for (int r = 0; r < n; ++r) all.emplace_back();
  return all;
}

/// Both suites.
template <class T>
void check_conforms(T transport) {
  for (const auto& failure : onebit_test::transport_failures(transport)) FAIL_CHECK(failure);
  for (const auto& failure : onebit_test::split_failures(transport)) FAIL_CHECK(failure);
}

/// A transport that takes device memory when told so, as a CUDA-aware MPI does.
class aware {
 public:
  aware(device_threads inner, fake_memory own, bool is_aware)
      : inner_(std::move(inner)), own_(std::move(own)), aware_(is_aware) {}
  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int size() const { return inner_.size(); }
  [[nodiscard]] bool device_aware() const { return aware_; }
  void all_to_all(const void* send, void* receive, std::size_t n) {
    inner_.all_to_all(send, receive, n);
  }
  void all_gather(const void* send, void* receive, std::size_t n) {
    inner_.all_gather(send, receive, n);
  }
  void all_reduce_sum(float* data, std::size_t n) {
    CHECK_FALSE(aware_);  // as MPI_Iallreduce, which may not take device memory
    inner_.all_reduce_sum(data, n);
    own_.wait();
  }
  void all_reduce_sum_on_device(float* data, std::size_t n) {
    inner_.all_reduce_sum(data, n);
    own_.wait();
  }
  [[nodiscard]] aware split(int color, int key) const {
    return {inner_.split(color, key), own_, aware_};
  }

 private:
  device_threads inner_;
  fake_memory own_;  ///< its stream, of which the caller knows nothing
  bool aware_;
};

/// Only what a Transport must have.
class bare {
 public:
  explicit bare(onebit::threads inner) : inner_(std::move(inner)) {}
  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int size() const { return inner_.size(); }
  void all_to_all(const void* s, void* r, std::size_t n) { inner_.all_to_all(s, r, n); }
  void all_gather(const void* s, void* r, std::size_t n) { inner_.all_gather(s, r, n); }
  void all_reduce_sum(float* data, std::size_t n) { inner_.all_reduce_sum(data, n); }

 private:
  onebit::threads inner_;
};

// What a transport can do beside the three collectives is asked for by concepts, and a wrapper can
// what it wraps can.
template <class T>
concept nothing_more =
    onebit::Transport<T> && !onebit::detail::StartingTransport<T> &&
    !onebit::detail::SplittingTransport<T> && !onebit::detail::NodeAwareTransport<T> &&
    !onebit::detail::HostGatheringTransport<T> && !onebit::detail::WaitingTransport<T> &&
    !onebit::detail::DeviceAwareTransport<T>;
using staged_bare = onebit::staged<bare, fake_memory>;
using staged_threads = onebit::staged<onebit::threads, fake_memory>;
static_assert(nothing_more<bare>);
static_assert(onebit::detail::HostGatheringTransport<staged_bare> &&
              !onebit::detail::SplittingTransport<staged_bare> &&
              !onebit::detail::NodeAwareTransport<staged_bare>);
static_assert(onebit::detail::SplittingTransport<onebit::threads> &&
              onebit::detail::SplittingTransport<staged_threads> &&
              !onebit::detail::NodeAwareTransport<staged_threads>);
static_assert(!onebit::detail::HostGatheringTransport<onebit::threads> &&
              onebit::detail::HostGatheringTransport<device_threads>);
static_assert(!onebit::detail::StartingTransport<onebit::threads> &&
              !onebit::detail::WaitingTransport<onebit::threads>);
static_assert(onebit::detail::DeviceAwareTransport<aware> &&
              !onebit::detail::DeviceAwareTransport<onebit::threads>);

}  // namespace

TEST_CASE("threads wait for the stream they were given, before they meet and before they part") {
  for (const int n : {1, 3, 4}) {
    const auto all = streams(n);
    onebit::run_threads(all, [&](device_threads t) {
      check_conforms(through_device(t, all[static_cast<std::size_t>(t.rank())]));
    });
    for (const auto& memory : all) {
      CHECK_FALSE(memory.told().freed_in_use);
      CHECK(memory.told().host_bytes == 0);
    }
  }
}

TEST_CASE("a host transport is staged") {
  for (const int n : {1, 2, 5}) {
    const auto all = streams(n);
    onebit::run_threads(n, [&](onebit::threads t) {
      const auto& memory = all[static_cast<std::size_t>(t.rank())];
      check_conforms(through_device(onebit::staged(t, memory), memory));
      check_conforms(through_device(
          onebit::communicator(onebit::staged(onebit::communicator(t), memory)), memory));
    });
    for (const auto& memory : all) {
      CHECK_FALSE(memory.told().freed_in_use);
      CHECK(memory.told().host_bytes == 0);
    }
  }
}

TEST_CASE("staging costs one wait per collective, and memory for the largest one") {
  onebit::run_threads(2, [](onebit::threads t) {
    const fake_memory memory;
    onebit::staged transport(t, memory);
    fake_buffer a(4096), b(4096);
    transport.all_gather(a.data(), b.data(), 1024);
    const std::size_t bytes = memory.told().host_bytes;
    CHECK(bytes >= 3 * 1024);
    const std::size_t waits = memory.told().waits, copies = memory.told().copies;
    auto copy = transport;  // shares the staging
    transport.all_to_all(a.data(), b.data(), 512);
    copy.all_gather(a.data(), b.data(), 1024);
    transport.all_reduce_sum(reinterpret_cast<float*>(a.data()), 256);
    CHECK(memory.told().waits == waits + 3);
    CHECK(memory.told().copies == copies + 6);
    CHECK(memory.told().host_bytes == bytes);
    transport.all_to_all(nullptr, nullptr, 0);
    CHECK(memory.told().copies == copies + 6);
  });
}

TEST_CASE("a transport that takes device memory gets it, after a wait, with nothing staged") {
  for (const bool is_aware : {true, false}) {
    const auto all = streams(3);
    onebit::run_threads(all, [&](device_threads t) {
      const fake_memory memory;
      const aware inner(t, all[static_cast<std::size_t>(t.rank())], is_aware);
      const onebit::staged transport(inner, memory);
      fake_buffer send(12), receive(36);
      const std::vector<int> mine = {t.rank(), 10 + t.rank(), 20 + t.rank()};
      std::vector<int> got(9);
      memory.copy(send.data(), mine.data(), 12);  // still under way
      auto used = transport;
      used.all_to_all(send.data(), receive.data(), 4);
      memory.copy(got.data(), receive.data(), 36);
      memory.wait();
      for (int r = 0; r < 3; ++r) CHECK(got[static_cast<std::size_t>(r)] == 10 * t.rank() + r);
      CHECK((memory.told().host_bytes == 0) == is_aware);
      check_conforms(through_device(transport, memory));
    });
  }
}

TEST_CASE("small messages between the hosts go on host memory, counted") {
  const auto gathers = [](auto transport) {
    const int mine = 3 * transport.rank();
    std::vector<int> all(static_cast<std::size_t>(transport.size()));
    transport.host_all_gather(&mine, all.data(), sizeof mine);
    for (int r = 0; r < transport.size(); ++r) CHECK(all[static_cast<std::size_t>(r)] == 3 * r);
    CHECK(transport.sent().bytes_sent == 4 * static_cast<std::size_t>(transport.size() - 1));
    CHECK(transport.sent().collectives == 1);
  };
  onebit::run_threads(streams(3), [&](device_threads t) { gathers(onebit::communicator(t)); });
  onebit::run_threads(3, [&](onebit::threads t) {
    gathers(onebit::communicator(onebit::staged(t, fake_memory())));
  });
}

TEST_CASE("plain memory is passed through") {
  onebit::run_threads(
      2, [](onebit::threads t) { check_conforms(onebit::staged(t, onebit::host_memory{})); });
}

TEST_CASE("a device that fails on one rank: the others are released, and none reads what is gone") {
  for (const std::size_t fail_at : {std::size_t{0}, std::size_t{1}, std::size_t{2}}) {
    const auto all = streams(3);
    all[1].told().fail_at = fail_at;
    const auto start = std::chrono::steady_clock::now();
    CHECK(thrown<std::runtime_error>([&] {
            onebit::run_threads(all, [](device_threads t) {
              fake_buffer a(64), b(64);
              for (int i = 0; i < 2; ++i) t.all_gather(a.data(), b.data(), 8);
              t.all_reduce_sum(reinterpret_cast<float*>(a.data()), 4);
            });
          }) == "the device is lost");
    CHECK(std::chrono::steady_clock::now() - start < 30s);
  }
}

TEST_CASE("staging survives a collective that failed") {
  onebit::run_threads(2, [](onebit::threads t) {
    const auto told = std::make_shared<onebit_test::script>();
    told->fail_at = 0;
    const fake_memory memory;
    through_device transport(onebit::staged(onebit_test::scripted(t, told), memory), memory);
    const int mine = t.rank();
    int all[2] = {7, 7};
    CHECK_THROWS_AS(transport.all_gather(&mine, all, sizeof mine), onebit::transport_error);
    transport.all_gather(&mine, all, sizeof mine);
    CHECK(all[0] == 0);
    CHECK(all[1] == 1);
  });
}

TEST_CASE("no ranks, with memories") {
  CHECK(thrown<onebit::invalid_input>([] {
          onebit::run_threads(std::vector<fake_memory>{}, [](const device_threads&) {});
        }) == "onebit::run_threads: 0 ranks; must be at least 1");
}
