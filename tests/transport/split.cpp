// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Transports over a part of the ranks: who is in which, what they count, and what ends them.

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <onebit/testing/scripted.hpp>
#include <onebit/testing/transport.hpp>
#include <onebit/transport/communicator.hpp>
#include <onebit/transport/threads.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/failing_allocations.hpp"
#include "support/training.hpp"

using namespace std::chrono_literals;
using onebit_test::contains;
using onebit_test::on_ranks;
using onebit_test::thrown;

namespace {

template <class T>
void meet(T& t) {
  const int mine = t.rank();
  std::vector<int> all(static_cast<std::size_t>(t.size()));
  t.all_gather(&mine, all.data(), sizeof mine);
}

void check_none(const std::vector<std::vector<std::string>>& failures) {
  for (const auto& of_rank : failures) {
    for (const auto& failure : of_rank) FAIL_CHECK(failure);
  }
}

}  // namespace

TEST_CASE("parts of threads conform, whatever their sizes and order") {
  for (const int n : {1, 3, 4, 6}) {
    check_none(on_ranks(n, [](onebit::threads t) { return onebit_test::split_failures(t); }));
  }
}

TEST_CASE("parts of wrapped transports conform") {
  check_none(on_ranks(
      4, [](onebit::threads t) { return onebit_test::split_failures(onebit::communicator(t)); }));
  check_none(on_ranks(3, [](onebit::threads t) {
    const auto told = std::make_shared<onebit_test::script>();
    return onebit_test::split_failures(onebit_test::scripted(t, told));
  }));
}

TEST_CASE("what a part carries, the whole counts as well") {
  onebit::run_threads(4, [](onebit::threads t) {
    onebit::communicator whole(t);
    std::vector<float> a(64), b(64);
    {
      auto part = whole.split(t.rank() == 3 ? 1 : 0, 0);
      CHECK(part.size() == (t.rank() == 3 ? 1 : 3));
      CHECK(whole.sent().collectives == 0);
      const std::uint64_t others = t.rank() == 3 ? 0 : 2;
      part.all_gather(a.data(), b.data(), 8);
      CHECK(part.sent().bytes_sent == 8 * others);
      CHECK(part.sent().collectives == 1);
      CHECK(whole.sent().bytes_sent == 8 * others);
      CHECK(whole.sent().collectives == 1);
      CHECK(whole.sent().seconds >= part.sent().seconds);
      auto alone = part.split(part.rank(), 0);  // and so does the whole of the whole
      alone.all_to_all(a.data(), b.data(), 8);
      CHECK(alone.sent().collectives == 1);
      CHECK(part.sent().collectives == 2);
      CHECK(whole.sent().collectives == 2);
      whole.all_to_all(a.data(), b.data(), 4);
      CHECK(part.sent().collectives == 2);
      CHECK(whole.sent().bytes_sent == 8 * others + 12);
    }
    auto part = onebit::communicator(t).split(0, 0);  // outlives what it came from
    part.all_gather(a.data(), b.data(), 8);
    CHECK(part.sent().bytes_sent == 24);
  });
}

TEST_CASE("a script goes on counting in the parts") {
  onebit::run_threads(2, [](onebit::threads t) {
    const auto told = std::make_shared<onebit_test::script>();
    told->fail_at = 1;
    onebit_test::scripted whole(t, told);
    auto part = whole.split(0, 0);
    meet(whole);
    CHECK_THROWS_AS(meet(part), onebit::transport_error);
    meet(part);
  });
}

TEST_CASE("an allocation that fails on one rank in a split: the others are told, whenever it is") {
  for (const int victim : {0, 1, 2}) {
    for (long at = 0;; ++at) {
      CAPTURE(victim);
      CAPTURE(at);
      std::atomic<int> n_failed{0}, n_told{0};
      const auto split = [&](onebit::threads t) {
        if (t.rank() == victim) onebit_test::allocations_left = at;
        try {
          (void)t.split(t.rank() / 2, 0);
        } catch (const std::bad_alloc&) {
          ++n_failed;
          throw;
        } catch (const onebit::transport_error&) {
          ++n_told;
        }
        onebit_test::allocations_left = -1;
      };
      try {
        onebit::run_threads(3, split, 20s);
      } catch (const std::bad_alloc&) {
      }
      CHECK(n_told == 2 * n_failed);
      if (n_failed == 0) {
        CHECK(at > 0);
        break;
      }
    }
  }
}

TEST_CASE("a negative color: all ranks are told which, and can go on") {
  for (const auto& text : on_ranks(3, [](onebit::threads t) {
         const auto told =
             thrown<onebit::invalid_input>([&] { (void)t.split(t.rank() == 1 ? -4 : 0, 0); });
         meet(t);
         return told;
       })) {
    CHECK(text == contains{"split: rank 1 has color -4; must not be negative [rank "});
  }
}

TEST_CASE("a rank that does not split while others do: all are told") {
  for (const auto& text : on_ranks(3, [](onebit::threads t) {
         return thrown<onebit::rank_mismatch>([&] {
           if (t.rank() == 2) {
             meet(t);
           } else {
             (void)t.split(0, 0);
           }
         });
       })) {
    CHECK(text == contains{"rank 0 calls split of 0 bytes while rank 2 calls all_gather"});
  }
}

TEST_CASE("a rank that fails releases those that wait in other parts, at any depth") {
  for (const bool deep : {false, true}) {
    std::atomic<int> released = 0;
    const auto start = std::chrono::steady_clock::now();
    const auto text = thrown<std::runtime_error>([&] {
      onebit::run_threads(6, [&](onebit::threads t) {
        auto part = t.split(t.rank() == 0 ? 1 : 0, 0);
        auto inner = part.split(0, 0);
        meet(t);  // all have split
        if (t.rank() == 0) throw std::runtime_error("out of paper");
        auto& used = deep ? inner : part;
        try {
          for (;;) meet(used);
        } catch (const onebit::transport_error& e) {
          CHECK(std::string(e.what()) == contains{"rank 0 failed: out of paper [rank "});
          ++released;
          CHECK_THROWS_AS((void)part.split(0, 0), onebit::transport_error);
          CHECK_THROWS_AS(meet(t), onebit::transport_error);
        }
      });
    });
    CHECK(text == "out of paper");
    CHECK(released == 5);
    CHECK(std::chrono::steady_clock::now() - start < 30s);
  }
}

TEST_CASE("a part that waited too long leaves the whole as it was") {
  const auto told = on_ranks(
      3,
      [](onebit::threads t) -> std::string {
        auto part = t.split(t.rank() / 2, 0);
        std::string text;
        if (t.rank() == 0) text = thrown<onebit::transport_error>([&] { meet(part); });
        std::this_thread::sleep_for(t.rank() == 0 ? 0ms : 100ms);
        meet(t);
        return text;
      },
      200ms);
  CHECK(told[0] == contains{"waited 200 ms in all_gather without rank 1 [rank 0/2]"});
}
