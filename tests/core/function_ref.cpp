// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#include <doctest/doctest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <onebit/core/function_ref.hpp>
#include <string>
#include <utility>

namespace {

using onebit::function_ref;

int n_run = 0;

void run(std::uint64_t key, function_ref<void()> enqueue) {
  n_run += static_cast<int>(key);
  enqueue();
}
int doubled(int x) { return 2 * x; }

// As a step does: with key 3.
void start(onebit::step_runner runner, int& n_enqueued) {
  runner(3, [&] { ++n_enqueued; });
}

}  // namespace

TEST_CASE("a runner of steps: whatever can be called with a key and what it may call") {
  int n = 0;
  start([](std::uint64_t, const auto& enqueue) { enqueue(); }, n);
  CHECK(n == 1);
  start([](auto, const std::function<void()>& enqueue) { enqueue(); }, n);
  CHECK(n == 2);
  start([](auto, auto enqueue) { return enqueue(), true; }, n);  // what it returns is dropped
  CHECK(n == 3);
  n_run = 0;
  start(run, n);
  start(&run, n);
  CHECK(n == 5);
  CHECK(n_run == 6);

  int n_mine = 0;
  auto counts = [&n_mine, unique = std::make_unique<int>(2)](auto, const auto& enqueue) mutable {
    n_mine += (*unique)++;
    enqueue();
  };
  start(counts, n);
  start(std::ref(counts), n);
  start(std::move(counts), n);
  CHECK(n == 8);
  CHECK(n_mine == 2 + 3 + 4);

  const std::function<void(std::uint64_t, const std::function<void()>&)> erased =
      [](std::uint64_t, const std::function<void()>& enqueue) { enqueue(); };
  start(erased, n);
  start(std::cref(erased), n);
  CHECK(n == 10);
  start([](std::uint64_t, const auto&) {}, n);  // replays: enqueues nothing
  CHECK(n == 10);
}

TEST_CASE("a reference to what is called: results, arguments, copies") {
  const auto text = [](std::string s, int& n) { return s + std::to_string(++n); };
  const function_ref<std::string(std::string, int&)> first = text;
  const auto second = first;
  int n = 4;
  CHECK(first("a", n) == "a5");
  CHECK(second("b", n) == "b6");
  CHECK(function_ref<long(int)>(doubled)(21) == 42L);
}
