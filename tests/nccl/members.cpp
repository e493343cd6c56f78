// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Memory that NCCL registers, and communicators that shrink, against the stand-in.

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <onebit/backend/cuda_memory.cuh>
#include <onebit/onebit.hpp>
#include <onebit/transport/nccl.hpp>
#include <onebit/transport/nccl_memory.hpp>
#include <optional>
#include <string>
#include <vector>

#include "nccl/stand_in.hpp"
#include "support/training.hpp"

using namespace std::chrono_literals;
using onebit_test::contains;
using onebit_test::noise;
using onebit_test::on_stand_ins;
using onebit_test::stand_in;
using onebit_test::thrown;
using onebit_test::user_stream;

namespace {

constexpr std::size_t large = std::size_t{1} << 20U;

/// What is no message, and what comes back.
struct plain_memory final : onebit::cuda_memory_resource {
  int alive = 0;
  void* allocate(std::size_t bytes, cudaStream_t) override {
    ++alive;
    return ::operator new(bytes);
  }
  void deallocate(void* p, std::size_t, cudaStream_t) noexcept override {
    --alive;
    ::operator delete(p);
  }
};

}  // namespace

#if NCCL_VERSION_CODE >= 21900
TEST_CASE("messages are registered with the whole family, all else is not") {
  for (const int in_progress : {0, 2}) {
    on_stand_ins(1, [&](ncclComm_t comm, stand_in& record) {
      record.in_progress = in_progress;
      plain_memory plain;
      {
        onebit::nccl transport(comm, user_stream());
        std::optional<onebit::nccl> part = transport.split(0, 0);
        onebit::nccl_memory messages(transport, plain);
        onebit::cuda_resource_of resource(messages);
        onebit::cuda_memory_resource& memory = resource;
        void* const state = memory.allocate(large, user_stream());
        void* const small = memory.allocate_message(1000, user_stream());
        CHECK(plain.alive == 2);
        void* const one = memory.allocate_message(large, user_stream());
        void* const two = memory.allocate_message(large, user_stream());
        CHECK(plain.alive == 2);
        CHECK(record.registrations == 4);
        CHECK(messages.n_registered() == 2);
        memory.deallocate(one, large, user_stream());
        CHECK(record.registrations == 2);
        memory.deallocate(small, 1000, user_stream());
        memory.deallocate(state, large, user_stream());
        part.reset();  // with what was registered with it
        --record.registrations;
        memory.deallocate(two, large, user_stream());
        CHECK(messages.n_registered() == 0);
        CHECK(plain.alive == 0);
      }
      CHECK(record.registered == 4);
    });
  }
}

TEST_CASE("what NCCL refuses to register is other memory, or an error") {
  on_stand_ins(1, [](ncclComm_t comm, stand_in& record) {
    plain_memory plain;
    onebit::nccl transport(comm, user_stream());
    onebit::nccl_memory may(transport, plain);
    record.refuses_registration = 1;
    void* p = may.allocate_message_async(large, 256, user_stream());
    CHECK(may.n_registered() == 0);
    CHECK(record.allocations == 1);
    may.deallocate_async(p, large, 256, user_stream());
    record.refuses_memory = true;
    p = may.allocate_message_async(large, 256, user_stream());
    CHECK(plain.alive == 1);
    may.deallocate_async(p, large, 256, user_stream());

    onebit::nccl_memory must(transport, plain, {.must_register = true});
    const auto told = [&](const char* text) {
      CHECK(thrown<onebit::transport_error>(
                [&] { (void)must.allocate_message_async(large, 256, user_stream()); }) == text);
      CHECK(record.allocations == 0);
    };
    told(
        "onebit::nccl_memory: ncclMemAlloc failed with code 1: a word of NCCL: its last words "
        "[rank 0/1]");
    record.refuses_memory = false;
    record.refuses_registration = 1;
    told(
        "onebit::nccl_memory: ncclCommRegister failed with code 2: a word of NCCL: its last words "
        "[rank 0/1]");

    onebit::nccl_memory off(transport, plain, {.registers = false});
    p = off.allocate_message_async(large, 256, user_stream());
    CHECK(plain.alive == 1);
    off.deallocate_async(p, large, 256, user_stream());
    CHECK(plain.alive == 0);
  });
}

TEST_CASE("registered memory that outlives its communicators") {
  for (const bool keeps : {false, true}) {
    on_stand_ins(1, [&](ncclComm_t comm, stand_in& record) {
      plain_memory plain;
      std::optional<onebit::nccl> transport(
          onebit::nccl(comm, user_stream(), {.timeout = 20ms, .keep_for_shrink = keeps}));
      std::optional messages(onebit::nccl_memory(*transport, plain));
      void* const p = messages->allocate_message_async(large, 256, user_stream());
      void* const q = messages->allocate_message_async(large, 256, user_stream());
      record.stuck = true;
      CHECK_THROWS_AS(transport->wait(), onebit::transport_error);
      CHECK(record.aborted.size() == (keeps ? 0 : 1));
      record.stuck = false;
      void* const late = messages->allocate_message_async(large, 256, user_stream());
      CHECK(plain.alive == 1);
      for (void* const each : {p, q, late}) {
        messages->deallocate_async(each, large, 256, user_stream());
        CHECK(record.aborted.size() == 1);  // NCCL gives up what was registered
      }
      record.registrations = 0;
      messages.reset();
      transport.reset();
      CHECK(record.aborted.size() == 1);
    });
  }
}

#else
TEST_CASE("an NCCL that registers nothing") {
  on_stand_ins(1, [](ncclComm_t comm, stand_in&) {
    plain_memory plain;
    const onebit::nccl transport(comm, user_stream());
    onebit::nccl_memory messages(transport, plain);
    void* const p = messages.allocate_message_async(large, 256, user_stream());
    CHECK(plain.alive == 1);
    messages.deallocate_async(p, large, 256, user_stream());
    CHECK(thrown<onebit::transport_error>([&] {
            onebit::nccl_memory(transport, plain, {.must_register = true});
          }) == contains{"registers no memory; 2.19 is the first that does [rank 0/1]"});
  });
}
#endif

#if NCCL_VERSION_CODE >= 22700
TEST_CASE("the ranks that stay have a smaller transport") {
  for (const bool failed : {false, true}) {
    on_stand_ins(3, [&](ncclComm_t comm, stand_in& record) {
      onebit::nccl transport(comm, user_stream(), {.timeout = 20ms, .keep_for_shrink = failed});
      if (transport.rank() == 1) {  // lost
        (void)comm->ranks.split(1, 0);
        return;
      }
      if (failed) {
        record.stuck = true;
        CHECK(thrown<onebit::transport_error>([&] { transport.wait(); }) ==
              contains{"waited 20 ms for the stream; shrink() leaves lost ranks out [rank "});
        CHECK(thrown<onebit::transport_error>([&] { transport.wait(); }) ==
              contains{"the communicators have failed: waited 20 ms for the stream [rank "});
        CHECK(record.aborted.empty());
      }
      {
        onebit::nccl left = transport.shrink({1});
        CHECK(record.shrink_flags == (failed ? NCCL_SHRINK_ABORT : NCCL_SHRINK_DEFAULT));
        CHECK(left.size() == 2);
        CHECK(left.rank() == transport.rank() / 2);
        const int mine = transport.rank();
        int all[2] = {};
        left.host_all_gather(&mine, all, sizeof mine);
        CHECK(all[0] == 0);
        CHECK(all[1] == 2);
      }
      CHECK(record.destroyed == 1);
      CHECK(record.aborted.empty());
    });
  }
}

TEST_CASE("a list that is none, and communicators that are gone") {
  on_stand_ins(2, [](ncclComm_t comm, stand_in& record) {
    onebit::nccl transport(comm, user_stream(), {.timeout = 20ms});
    const int other = 1 - transport.rank();
    for (const std::vector<int>& list :
         {std::vector<int>{}, {-1}, {2}, {other, other}, {transport.rank()}}) {
      CHECK(thrown<onebit::invalid_input>([&] { (void)transport.shrink(list); }) ==
            contains{"nccl: shrink: needs a list of other ranks, each once [rank "});
    }
    record.stuck = true;
    CHECK_THROWS_AS(transport.wait(), onebit::transport_error);
    CHECK(thrown<onebit::transport_error>([&] { (void)transport.shrink({other}); }) ==
          contains{"the communicators were aborted: waited 20 ms for the stream"});
    record.stuck = false;
  });
}

TEST_CASE("a job goes on without a rank as over any other transport") {
  const auto train = [](auto transport, const auto& leave) {
    std::vector<float> x(3000), grad(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = noise(i);
    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({x, grad});
    auto o = onebit::one_bit_adam(groups, transport, {.freeze = {.after = 3}, .refreshes = 0});
    const int rank = transport.rank();
    for (std::uint64_t step = 0; step < 12; ++step) {
      if (step == 6 && !leave(o, transport)) break;
      for (std::size_t i = 0; i < grad.size(); ++i) {
        grad[i] = noise(step * 7919 + static_cast<std::uint64_t>(rank) * 104729 + i);
      }
      (void)o.step(0.01F);
    }
    return x;
  };
  std::vector<std::vector<float>> over_threads(3), over_nccl(3);
  onebit::run_threads(3, [&](onebit::threads t) {
    over_threads[static_cast<std::size_t>(t.rank())] = train(t, [](auto& o, onebit::threads all) {
      const onebit::threads part = all.split(all.rank() == 2 ? 1 : 0, all.rank());
      if (all.rank() != 2) o.regroup(part);
      return all.rank() != 2;
    });
  });
  on_stand_ins(3, [&](ncclComm_t comm, stand_in&) {
    const onebit::nccl transport(comm, user_stream());
    over_nccl[static_cast<std::size_t>(transport.rank())] =
        train(transport, [&](auto& o, const onebit::nccl& all) {
          if (all.rank() == 2) {
            (void)comm->ranks.split(1, 0);
            return false;
          }
          o.regroup(all.shrink({2}));
          return true;
        });
  });
  CHECK(over_nccl == over_threads);
  CHECK(over_nccl[0] == over_nccl[1]);
}
#endif
