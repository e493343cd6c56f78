// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The NCCL transport against a stand-in: what it calls, on which stream, and what it does when that
// fails. What NCCL and devices do themselves is tested in devices.cpp.

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <onebit/testing/transport.hpp>
#include <onebit/transport/communicator.hpp>
#include <onebit/transport/nccl.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "nccl/stand_in.hpp"
#include "support/training.hpp"

using namespace std::chrono_literals;
using onebit_test::contains;
using onebit_test::on_stand_ins;
using onebit_test::stand_in;
using onebit_test::thrown;
using onebit_test::user_stream;

TEST_CASE("conforms, with communicators that block and such that do not") {
  for (const int n : {1, 3, 4}) {
    for (const int in_progress : {0, 3}) {
      on_stand_ins(n, [&](ncclComm_t comm, stand_in& record) {
        record.in_progress = record.questions_left = in_progress;
        onebit::nccl transport(comm, user_stream());
        for (const auto& failure : onebit_test::transport_failures(transport)) FAIL_CHECK(failure);
        for (const auto& failure : onebit_test::split_failures(transport)) FAIL_CHECK(failure);
        for (const auto& failure : onebit_test::request_failures(transport)) FAIL_CHECK(failure);
        onebit::communicator erased(transport);
        for (const auto& failure : onebit_test::split_failures(erased)) FAIL_CHECK(failure);
        for (const auto& failure : onebit_test::request_failures(erased)) FAIL_CHECK(failure);
        erased.wait();
        CHECK(record.aborted.empty());
        CHECK(record.destroyed > 0);  // the parts, and never the caller's own
      });
    }
  }
}

TEST_CASE("what is called on which stream") {
  on_stand_ins(1, [](ncclComm_t comm, stand_in& record) {
    onebit::nccl transport(comm, user_stream());
    std::vector<float> a(64), b(64);
    using names = std::vector<std::string>;
    transport.all_to_all(a.data(), b.data(), 8);
    transport.all_gather(a.data(), b.data(), 3);
    transport.all_reduce_sum(a.data(), 8);
    std::vector<onebit::bf16> halves(8, onebit::to_bf16(3.0F));
    transport.all_reduce_sum(halves.data(), 8);
    CHECK(record.calls == names{"alltoall user", "gather user", "reduce user", "reduce user"});
    CHECK(halves == std::vector<onebit::bf16>(8, onebit::to_bf16(3.0F)));

    record.calls.clear();
    transport.all_to_all(nullptr, nullptr, 0);
    transport.all_gather(nullptr, nullptr, 0);
    transport.all_reduce_sum(static_cast<float*>(nullptr), 0);
    transport.start_all_gather(nullptr, nullptr, 0).wait();
    CHECK(transport.start_all_to_all(nullptr, nullptr, 0).test());
    CHECK(record.calls.empty());

    auto request = transport.start_all_to_all(a.data(), b.data(), 8);
    const names started = {"record user", "wait side", "alltoall side", "record side"};
    CHECK(record.calls == started);
    request.wait();
    request.wait();
    CHECK(record.calls.size() == 5);
    CHECK(record.calls.back() == "wait user");

    record.calls.clear();
    { const auto unfinished = transport.start_all_gather(a.data(), b.data(), 8); }
    CHECK(record.calls ==
          names{"record user", "wait side", "gather side", "record side", "wait user"});

    record.calls.clear();  // a test that finds it done is all that is needed
    {
      auto tested = transport.start_all_gather(a.data(), b.data(), 8);
      record.stuck = true;
      CHECK_FALSE(tested.test());
      record.stuck = false;
      CHECK(tested.test());
    }
    CHECK(record.calls.back() == "record side");

    record.calls.clear();  // an event of a capture that was thrown away is none to wait for
    {
      record.capturing = true;
      auto captured = transport.start_all_gather(a.data(), b.data(), 8);
      auto unfinished = transport.start_all_gather(a.data(), b.data(), 8);
      captured.wait();
      CHECK(record.calls.back() == "wait user");
      record.capturing = false;
    }
    CHECK(std::count(record.calls.begin(), record.calls.end(), "wait user") == 1);

    std::vector<onebit::detail::nccl_request> many;
    for (int i = 0; i < 9; ++i) many.push_back(transport.start_all_gather(a.data(), b.data(), 8));
    CHECK(record.events == 9);
    many.clear();
    for (int i = 0; i < 9; ++i) many.push_back(transport.start_all_gather(a.data(), b.data(), 8));
    CHECK(record.events == 9);
  });
}

TEST_CASE("small messages between the hosts") {
  on_stand_ins(3, [](ncclComm_t comm, stand_in& record) {
    onebit::nccl transport(comm, user_stream());
    CHECK(record.allocations == 0);
    for (const std::size_t n : {std::size_t{1}, std::size_t{100}, std::size_t{7}}) {
      const std::vector<int> mine(n, transport.rank());
      std::vector<int> all(3 * n);
      transport.host_all_gather(mine.data(), all.data(), n * sizeof(int));
      for (std::size_t i = 0; i < all.size(); ++i) CHECK(all[i] == static_cast<int>(i / n));
      CHECK(record.allocations == 1);
    }
    transport.host_all_gather(nullptr, nullptr, 0);
  });
}

TEST_CASE("a code of NCCL becomes a transport_error with its words, and nothing is aborted") {
  on_stand_ins(1, [](ncclComm_t comm, stand_in& record) {
    onebit::nccl transport(comm, user_stream());
    float x = 1;
    record.next = ncclInvalidArgument;
    CHECK(thrown<onebit::transport_error>([&] { transport.all_reduce_sum(&x, 1); }) ==
          "onebit::nccl: ncclAllReduce failed with code 4: a word of NCCL: its last words "
          "[rank 0/1]");
    record.next = ncclInvalidUsage;
    CHECK(thrown<onebit::transport_error>([&] { (void)transport.start_all_gather(&x, &x, 4); }) ==
          contains{"ncclAllGather failed with code 5"});
    record.cuda = cudaErrorIllegalAddress;
    CHECK(thrown<onebit::transport_error>([&] { transport.wait(); }) ==
          "onebit::nccl: cudaStreamQuery failed with code 700: the device has come off the bus "
          "[rank 0/1]");
    record.cuda = cudaSuccess;
    transport.all_reduce_sum(&x, 1);
    CHECK(record.aborted.empty());
    record.next = ncclInvalidArgument;
    CHECK(thrown<onebit::transport_error>([&] {
            onebit::nccl{comm, user_stream()};
          }) == contains{"ncclCommCuDevice failed with code 4"});
    CHECK(thrown<onebit::transport_error>([] {
            onebit::nccl{nullptr, user_stream()};
          }) == "onebit::nccl: the communicator is null");
  });
}

TEST_CASE("an error on the way, or a wait too long: all of the family is aborted, once") {
  for (const int kind : {0, 1, 2, 3, 4}) {
    on_stand_ins(1, [&](ncclComm_t comm, stand_in& record) {
      const onebit::nccl_options options{.timeout = 50ms};
      onebit::nccl transport(comm, user_stream(), options);
      std::optional<onebit::nccl> part = transport.split(0, 0);
      float x = 1, y = 1;
      auto request = part->start_all_gather(&x, &y, 4);
      std::string text,
          expected = "a collective failed with code 6: a word of NCCL: its last words";
      if (kind == 0) {
        record.stuck = true;
        text = thrown<onebit::transport_error>([&] { part->wait(); });
        expected = "waited 50 ms for the stream";
      } else if (kind == 1) {
        record.on_the_way = ncclRemoteError;
        text = thrown<onebit::transport_error>([&] { transport.wait(); });
      } else if (kind == 2) {
        record.on_the_way = ncclRemoteError;
        record.stuck = true;
        text = thrown<onebit::transport_error>([&] { (void)request.test(); });
      } else if (kind == 3) {  // a communicator that does not block
        record.in_progress = 2;
        record.on_the_way = ncclRemoteError;
        text = thrown<onebit::transport_error>([&] { transport.all_reduce_sum(&x, 1); });
        expected = "ncclAllReduce failed with code 6: a word of NCCL: its last words";
      } else {
        record.in_progress = 1 << 30;
        text = thrown<onebit::transport_error>([&] { transport.all_reduce_sum(&x, 1); });
        expected = "waited 50 ms for ncclAllReduce";
      }
      CHECK(text == "onebit::nccl: " + expected + "; the communicators were aborted [rank 0/1]");
      CHECK(record.aborted.size() == 2);
      CHECK(record.aborted.front() == comm);
      const ncclComm_t its_own = record.aborted.back();

      const std::string gone = "onebit::nccl: the communicators have failed: " + expected;
      const auto told = [&](const auto& f) {
        CHECK(thrown<onebit::transport_error>(f) == gone + " [rank 0/1]");
      };
      told([&] { transport.all_to_all(&x, &y, 4); });
      told([&] { part->all_gather(&x, &y, 4); });
      told([&] { transport.all_reduce_sum(&x, 1); });
      told([&] { (void)transport.start_all_to_all(&x, &y, 4); });
      told([&] { request.wait(); });
      told([&] { transport.host_all_gather(&x, &y, 4); });
      told([&] { (void)transport.split(0, 0); });
      told([&] { transport.wait(); });
      part.reset();
      CHECK(record.aborted.size() == 2);
      CHECK(record.destroyed == 0);
      delete its_own;  // NCCL would have
    });
  }
}

TEST_CASE("a part that is left while work is stuck does not hold its rank up") {
  on_stand_ins(1, [](ncclComm_t comm, stand_in& record) {
    onebit::nccl transport(comm, user_stream(), {.timeout = 20ms});
    {
      const onebit::nccl part = transport.split(0, 0);
      record.stuck = true;
    }
    CHECK(record.aborted.size() == 2);
    CHECK(record.destroyed == 0);
    CHECK_THROWS_AS(transport.wait(), onebit::transport_error);
    delete record.aborted.back();
  });
}

TEST_CASE("communicators that captured graphs hold are aborted when the graphs are gone") {
  on_stand_ins(1, [](ncclComm_t comm, stand_in& record) {
    onebit::nccl transport(comm, user_stream(), {.timeout = 20ms});
    std::optional<onebit::nccl> part = transport.split(0, 0);
    float x = 1, y = 1;
    record.capturing = true;
    part->all_gather(&x, &y, 4);
    record.capturing = false;
    record.stuck = true;
    CHECK(thrown<onebit::transport_error>([&] { transport.wait(); }) ==
          "onebit::nccl: waited 20 ms for the stream; the communicators were not aborted, since "
          "captured graphs hold them: destroy these, then call abort() [rank 0/1]");
    CHECK(record.aborted.empty());
    CHECK(thrown<onebit::transport_error>([&] { part->all_gather(&x, &y, 4); }) ==
          contains{"the communicators have failed: waited 20 ms"});
    transport.abort();
    CHECK(record.aborted.size() == 2);
    transport.abort();
    CHECK(record.aborted.size() == 2);
    const ncclComm_t its_own = record.aborted.back();
    part.reset();
    CHECK(record.destroyed == 0);
    delete its_own;  // NCCL would have
  });
}

TEST_CASE("a negative color: all ranks are told which, and can go on") {
  on_stand_ins(3, [](ncclComm_t comm, stand_in&) {
    onebit::nccl transport(comm, user_stream());
    const int color = transport.rank() == 2 ? -1 : 0;
    CHECK(thrown<onebit::invalid_input>([&] { (void)transport.split(color, 0); }) ==
          contains{"nccl: split: rank 2 has color -1; must not be negative [rank "});
    CHECK(transport.split(0, 0).size() == 3);
  });
}
