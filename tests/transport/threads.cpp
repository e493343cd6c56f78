// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Threads as ranks: what goes wrong on one must reach the others, soon, and as an exception.

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <onebit/transport/communicator.hpp>
#include <onebit/transport/threads.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/training.hpp"

using namespace std::chrono_literals;
using onebit_test::contains;
using onebit_test::on_ranks;
using onebit_test::thrown;
using onebit_test::training;

namespace {

void meet(onebit::threads& t) {
  const int mine = t.rank();
  std::vector<int> all(static_cast<std::size_t>(t.size()));
  t.all_gather(&mine, all.data(), sizeof mine);
  for (int r = 0; r < t.size(); ++r) CHECK(all[static_cast<std::size_t>(r)] == r);
}

}  // namespace

TEST_CASE("no ranks") {
  for (const int n : {0, -1}) {
    CHECK(thrown<onebit::invalid_input>([&] { onebit::run_threads(n, [](onebit::threads) {}); }) ==
          "onebit::run_threads: " + std::to_string(n) + " ranks; must be at least 1");
  }
}

TEST_CASE("a rank that throws releases the others, and its exception is the one that is told") {
  struct my_error : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  for (const int n : {1, 2, 5}) {
    for (const int odd : {0, n - 1}) {
      std::atomic<int> released = 0;
      const auto start = std::chrono::steady_clock::now();
      const auto text = thrown<my_error>([&] {
        onebit::run_threads(n, [&](onebit::threads t) {
          meet(t);
          if (t.rank() == odd) throw my_error("the disk is on fire");
          try {
            meet(t);
          } catch (const onebit::transport_error& e) {
            CHECK(std::string(e.what()) ==
                  contains{"rank " + std::to_string(odd) + " failed: the disk is on fire"});
            CHECK(std::string(e.what()) == contains{"[rank " + std::to_string(t.rank()) + "/"});
            ++released;
            CHECK_THROWS_AS(meet(t), onebit::transport_error);  // from now on, always
            throw;
          }
        });
      });
      CHECK(text == "the disk is on fire");
      CHECK(released == n - 1);
      CHECK(std::chrono::steady_clock::now() - start < 30s);
    }
  }
}

TEST_CASE("an exception of no known type is passed on too") {
  int caught = 0;
  try {
    onebit::run_threads(3, [](onebit::threads t) {
      if (t.rank() == 2) throw 42;
      meet(t);
    });
  } catch (int number) {
    caught = number;
  }
  CHECK(caught == 42);
}

TEST_CASE("a rank that never arrives: a time-out that names it") {
  for (const int absent : {0, 2}) {
    const auto told = on_ranks(
        3,
        [&](onebit::threads t) -> std::string {
          if (t.rank() == absent) {
            std::this_thread::sleep_for(500ms);
            return "absent";
          }
          return thrown<onebit::transport_error>([&] { meet(t); });
        },
        100ms);
    for (int r = 0; r < 3; ++r) {
      const auto& text = told[static_cast<std::size_t>(r)];
      if (r == absent) continue;
      CHECK(text == contains{"waited 100 ms in all_gather without rank " + std::to_string(absent) +
                             " [rank " + std::to_string(r) + "/3]"});
    }
  }
}

TEST_CASE("a rank that returns while others wait: they are told at once") {
  for (const bool split : {false, true}) {
    const auto start = std::chrono::steady_clock::now();
    const auto text = thrown<onebit::transport_error>([&] {
      onebit::run_threads(4, [&](onebit::threads t) {
        // the ranks 2 and 3 have a group of their own, which goes on
        auto own = t.split(t.rank() / 2, t.rank());
        if (t.rank() == 1) return;
        if (t.rank() >= 2) {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          float x = 1;
          own.all_reduce_sum(&x, 1);
          CHECK(x == 2);
          return;
        }
        float x = 1;
        (split ? own : t).all_reduce_sum(&x, 1);
      });
    });
    CHECK(text == contains{"has returned, and takes part no more: "});
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));
  }
}

TEST_CASE("a rank that comes too late is told as well") {
  const auto told = on_ranks(
      2,
      [&](onebit::threads t) {
        if (t.rank() == 1) std::this_thread::sleep_for(400ms);
        return thrown<onebit::transport_error>([&] { meet(t); });
      },
      50ms);
  for (const auto& text : told) CHECK(text == contains{"waited 50 ms in all_gather"});
}

TEST_CASE("the longest of all time-outs does not overflow") {
  for (const auto timeout : {std::chrono::milliseconds::max(), std::chrono::milliseconds(10min)}) {
    onebit::run_threads(
        2,
        [](onebit::threads t) {
          if (t.rank() == 1) std::this_thread::sleep_for(50ms);
          for (int i = 0; i < 3; ++i) meet(t);
        },
        timeout);
  }
}

TEST_CASE("ranks that make different calls, or of different sizes: all are told, and can go on") {
  const auto told = on_ranks(3, [](onebit::threads t) {
    std::string texts;
    std::vector<float> a(30), b(30);
    for (int round = 0; round < 200; ++round) {
      const auto other_call = thrown<onebit::rank_mismatch>([&] {
        if (t.rank() == 1) {
          t.all_gather(a.data(), b.data(), 8);
        } else {
          t.all_to_all(a.data(), b.data(), 8);
        }
      });
      const auto other_size = thrown<onebit::rank_mismatch>(
          [&] { t.all_gather(a.data(), b.data(), t.rank() == 2 ? 12 : 8); });
      const auto other_sum =
          thrown<onebit::rank_mismatch>([&] { t.all_reduce_sum(a.data(), t.rank() == 0 ? 3 : 4); });
      texts = other_call + "\n" + other_size + "\n" + other_sum;
      meet(t);
    }
    return texts;
  });
  for (int r = 0; r < 3; ++r) {
    const auto& text = told[static_cast<std::size_t>(r)];
    CHECK(text ==
          contains{"rank 0 calls all_to_all of 8 bytes while rank 1 calls all_gather of 8"});
    CHECK(text ==
          contains{"rank 0 calls all_gather of 8 bytes while rank 2 calls all_gather of 12"});
    CHECK(text ==
          contains{"rank 0 calls all_reduce_sum of 12 bytes while rank 1 calls all_reduce_sum"});
    CHECK(text == contains{"[rank " + std::to_string(r) + "/3]"});
    CHECK(text != contains{"thrown: "});
  }
}

TEST_CASE("nothing is carried by calls of 0 bytes, and null pointers are welcome") {
  onebit::run_threads(3, [](onebit::threads t) {
    t.all_to_all(nullptr, nullptr, 0);
    t.all_gather(nullptr, nullptr, 0);
    t.all_reduce_sum(static_cast<float*>(nullptr), 0);
  });
}

TEST_CASE("many ranks, many collectives, one after the other") {
  onebit::run_threads(16, [](onebit::threads t) {
    std::vector<float> x(33);
    for (int i = 0; i < 50; ++i) {
      meet(t);
      for (std::size_t k = 0; k < x.size(); ++k) x[k] = static_cast<float>(t.rank() + i);
      t.all_reduce_sum(x.data(), x.size());
      CHECK(x[32] == static_cast<float>(120 + 16 * i));
    }
  });
}

TEST_CASE("two groups of threads at once do not meet") {
  std::vector<std::thread> threads;
  for (int g = 0; g < 2; ++g) {
    threads.emplace_back([] {
      onebit::run_threads(2, [](onebit::threads t) {
        for (int i = 0; i < 100; ++i) meet(t);
      });
    });
  }
  for (auto& t : threads) t.join();
}

TEST_CASE("two threads that call as one rank at once: all are told") {
  // with a transport for each optimizer, in any order
  const auto digests = on_ranks(3, [](onebit::threads t) {
    training<> data_a, data_b({900, 64});
    auto a = onebit::adam(data_a.groups(), t.split(0, t.rank()));
    auto b = onebit::adam(data_b.groups(), t.split(0, t.rank()));
    const auto run = [](auto& optimizer, auto& data) {
      for (int i = 0; i < 50; ++i) (void)train(optimizer, data);
    };
    std::thread beside([&] { run(b, data_b); });
    run(a, data_a);
    beside.join();
    onebit::detail::digest d;
    d.add(data_a.digest());
    d.add(data_b.digest());
    return d.value();
  });
  CHECK(digests == std::vector(3, digests[0]));

  // one thread waits, another comes
  std::atomic<int> n_told = 0;
  onebit::run_threads(2, [&](onebit::threads t) {
    const auto attempt = [&] {
      CHECK(thrown<onebit::transport_error>([&] { meet(t); }) ==
            contains{"threads: two threads call all_gather and all_gather at once as rank 0; give "
                     "each optimizer a transport of its own: split(0, rank()) [rank "});
      ++n_told;
    };
    if (t.rank() == 0) {
      std::thread beside(attempt);
      attempt();
      beside.join();
    } else {
      while (n_told < 2) std::this_thread::yield();
      attempt();
    }
  });
  CHECK(n_told == 3);
}

TEST_CASE("a wire counts what leaves a rank, also when the call fails") {
  onebit::run_threads(4, [](onebit::threads t) {
    onebit::communicator c(t);
    CHECK(c.rank() == t.rank());
    CHECK(c.size() == 4);
    std::vector<float> a(64), b(64);
    c.all_to_all(a.data(), b.data(), 8);
    CHECK(c.sent().bytes_sent == 24);
    c.all_gather(a.data(), b.data(), 8);
    CHECK(c.sent().bytes_sent == 48);
    c.all_reduce_sum(a.data(), 16);
    CHECK(c.sent().bytes_sent == 48 + 96);
    CHECK(c.sent().collectives == 3);
    CHECK_THROWS_AS(c.all_gather(a.data(), b.data(), t.rank() == 0 ? 4 : 8), onebit::rank_mismatch);
    CHECK(c.sent().collectives == 4);
    c.all_gather(nullptr, nullptr, 0);  // also one that carries nothing
    CHECK(c.sent().collectives == 5);
    CHECK(c.sent().seconds > 0);
  });
}
