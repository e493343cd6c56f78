// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// No step allocates after the first two of its phase, and what an optimizer holds is what it says.
// A program of its own, because it replaces operator new.

#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>
#include <onebit/collective/hierarchical.hpp>
#include <onebit/onebit.hpp>
#include <string>
#include <vector>

#include "support/training.hpp"

namespace {

std::atomic<std::uint64_t> n_allocations{0};
std::atomic<std::int64_t> live_bytes{0};

// Each block is preceded by its size, in as many bytes as keep the alignment.
void* allocate(std::size_t n, std::size_t alignment) {
  const std::size_t front = alignment < 16 ? 16 : alignment;
  auto* block =
      static_cast<std::byte*>(std::aligned_alloc(front, front + (n + front - 1) / front * front));
  if (block == nullptr) throw std::bad_alloc();
  ++n_allocations;
  live_bytes += static_cast<std::int64_t>(n);
  *reinterpret_cast<std::size_t*>(block + front - sizeof(std::size_t)) = n;
  return block + front;
}
void release(void* p, std::size_t alignment) noexcept {
  if (p == nullptr) return;
  const std::size_t front = alignment < 16 ? 16 : alignment;
  auto* user = static_cast<std::byte*>(p);
  live_bytes -=
      static_cast<std::int64_t>(*reinterpret_cast<std::size_t*>(user - sizeof(std::size_t)));
  std::free(user - front);
}

}  // namespace

void* operator new(std::size_t n) { return allocate(n, 16); }
void* operator new[](std::size_t n) { return allocate(n, 16); }
void* operator new(std::size_t n, std::align_val_t a) {
  return allocate(n, static_cast<std::size_t>(a));
}
void* operator new[](std::size_t n, std::align_val_t a) {
  return allocate(n, static_cast<std::size_t>(a));
}
void operator delete(void* p) noexcept { release(p, 16); }
void operator delete[](void* p) noexcept { release(p, 16); }
void operator delete(void* p, std::size_t) noexcept { release(p, 16); }
void operator delete[](void* p, std::size_t) noexcept { release(p, 16); }
void operator delete(void* p, std::align_val_t a) noexcept {
  release(p, static_cast<std::size_t>(a));
}
void operator delete[](void* p, std::align_val_t a) noexcept {
  release(p, static_cast<std::size_t>(a));
}
void operator delete(void* p, std::size_t, std::align_val_t a) noexcept {
  release(p, static_cast<std::size_t>(a));
}
void operator delete[](void* p, std::size_t, std::align_val_t a) noexcept {
  release(p, static_cast<std::size_t>(a));
}

namespace {

using onebit_test::on_ranks;
using onebit_test::training;

/// All ranks wait for each other without allocating.
void wait_for_all(onebit::threads& t) {
  std::byte mine{}, all[64];
  t.all_gather(&mine, all, 1);
}

/// The allocations of all ranks and threads together in each of 12 steps.
template <class Make>
std::vector<std::uint64_t> allocations_per_step(int n, const Make& make) {
  return on_ranks(n, [&](onebit::threads t) {
    training<> data;
    auto optimizer = make(data, t);
    std::vector<std::uint64_t> counts(12);
    for (auto& count : counts) {
      data.compute_gradients(t.rank(), optimizer.steps());
      wait_for_all(t);
      const auto before = n_allocations.load();
      wait_for_all(t);
      (void)optimizer.step(0.01F);
      wait_for_all(t);
      count = n_allocations.load() - before;
      wait_for_all(t);
    }
    return counts;
  })[0];
}

/// The first two steps of a phase may allocate. The compressed phase begins with step 6, the freeze
/// with it, if there are more than `alone` ranks: with so many nothing travels, and nothing
/// freezes.
template <class Make>
void check_steps(int alone, const Make& make, const std::vector<int>& n_ranks = {1, 2, 3}) {
  for (const int n : n_ranks) {
    for (const int n_threads : {1, 2}) {
      CAPTURE(n);
      CAPTURE(n_threads);
      const bool freezes = n > alone;
      const auto counts = allocations_per_step(
          n, [&](auto& data, auto t) { return make(data, t, onebit::host(n_threads)); });
      for (std::size_t i = 0; i < counts.size(); ++i) {
        CAPTURE(i);
        if (i < 2 || (freezes && (i == 6 || i == 7))) continue;
        CHECK(counts[i] == 0);
      }
      CHECK(counts[0] > 0);  // or the counter is blind
      if (freezes) CHECK(counts[6] > 0);
    }
  }
}
constexpr int any_number = 1000;  // a baseline never freezes

onebit::one_bit_adam_options frozen_after_6() {
  onebit::one_bit_adam_options o;
  o.freeze.after = 6;
  o.refreshes = 0;
  return o;
}

}  // namespace

TEST_CASE("steps do not allocate: Adam") {
  check_steps(any_number, [](auto& data, auto t, auto backend) {
    return onebit::adam(data.groups(), t, {}, backend);
  });
  check_steps(any_number, [](auto& data, auto t, auto backend) {
    return onebit::adam(data.groups(), t, {}, backend, onebit::dense_sum::transport);
  });
}
TEST_CASE("steps do not allocate: 1-bit Adam, gather-scatter") {
  check_steps(1, [](auto& data, auto t, auto backend) {
    return onebit::one_bit_adam(data.groups(), t, frozen_after_6(),
                                onebit::gather_scatter<onebit::sign<>>{}, backend);
  });
}
TEST_CASE("steps do not allocate: 1-bit Adam, all-gather") {
  check_steps(1, [](auto& data, auto t, auto backend) {
    return onebit::one_bit_adam(data.groups(), t, frozen_after_6(),
                                onebit::all_gather<onebit::sign<>>{}, backend);
  });
}
TEST_CASE("steps do not allocate: 1-bit Adam, in buckets") {
  check_steps(1, [](auto& data, auto t, auto backend) {
    return onebit::one_bit_adam(data.groups(), t, frozen_after_6(),
                                onebit::gather_scatter{onebit::sign<>{}, 1500}, backend);
  });
}
TEST_CASE("steps do not allocate: 1-bit Adam, on two levels") {
  const auto make = [](auto& data, auto t, auto backend) {
    return onebit::one_bit_adam(data.groups(), t, frozen_after_6(),
                                onebit::hierarchical{onebit::sign<>{}, 2}, backend);
  };
  check_steps(2, make, {2, 4});
}
TEST_CASE("steps do not allocate: gradients that are only read") {
  check_steps(1, [](auto& data, auto t, auto backend) {
    std::vector<onebit::param_group<float, const float>> groups;
    for (const auto& g : data.groups()) {
      groups.push_back({{}, g.lr_factor, g.weight_decay});
      for (const auto& x : g.tensors) groups.back().tensors.push_back({x.params, x.grads});
    }
    return onebit::one_bit_adam(groups, t, frozen_after_6(),
                                onebit::gather_scatter<onebit::sign<>>{}, backend);
  });
}
TEST_CASE("steps do not allocate: 1-bit LAMB") {
  check_steps(1, [](auto& data, auto t, auto backend) {
    onebit::one_bit_lamb_options o;
    o.freeze.after = 6;
    return onebit::one_bit_lamb(
        data.groups(), t, o,
        onebit::gather_scatter<onebit::sign<>>{{onebit::granularity::vector()}}, backend);
  });
}

/// Far from rank 0, so that " [rank 100/1000]", which ends its errors, is a text on the heap.
struct far_rank {
  int rank() const { return 100; }
  int size() const { return 1000; }
  void all_to_all(const void*, void*, std::size_t) {}
  void all_gather(const void*, void*, std::size_t) {}
  void all_reduce_sum(float*, std::size_t) {}
};

TEST_CASE("a step formats no text of an error before there is an error") {
  const onebit::communicator comm{far_rank{}};
  const auto before = n_allocations.load();
  const bool refused = !onebit::detail::why_not_numbers(1, 0.1F, 1, 1, comm).empty();
  CHECK(n_allocations.load() == before);
  CHECK(!refused);
  const std::string text = onebit::detail::why_not_numbers(1, -1, 1, 1, comm);
  CHECK(text.ends_with("[rank 100/1000]"));
}

TEST_CASE("state_bytes and work_bytes are what an optimizer holds on the heap") {
  const std::size_t n = std::size_t{1} << 20;
  for (const int w : {1, 2, 4}) {
    onebit::run_threads(w, [&](onebit::threads t) {
      training<> data({n});
      wait_for_all(t);
      const auto before = live_bytes.load();
      wait_for_all(t);
      onebit::one_bit_adam_options o;
      o.freeze.after = 2;
      o.refreshes = 0;
      auto optimizer = onebit::one_bit_adam(data.groups(), t, o);
      std::size_t told = 0;
      for (int i = 0; i < 4; ++i) {
        data.compute_gradients(t.rank(), optimizer.steps());
        (void)optimizer.step(0.01F);
        wait_for_all(t);
        const auto held =
            static_cast<std::size_t>(live_bytes.load() - before) / static_cast<std::size_t>(w);
        wait_for_all(t);
        told = optimizer.state_bytes() + optimizer.work_bytes();
        // The tables of three layouts: some 200 bytes each per tile of 4096 elements.
        CHECK(held >= told - told / 100);
        CHECK(held <= told + n / 4096 * 600 + 30000);
      }
    });
  }
}
