// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The suite of the Backend concept. Models: see host_model in models.hpp (available, make, name).

#ifndef ONEBIT_TESTS_CONFORMANCE_BACKEND_HPP
#define ONEBIT_TESTS_CONFORMANCE_BACKEND_HPP

#include <memory>
#include <vector>

#include "buffers.hpp"
#include "models.hpp"

namespace onebit_test::backend_suite {

struct count_calls {
  std::uint32_t* counts;
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    L::store_scalar(counts + i, counts[i] + 1);
  }
};

/// y = a x + y, rounded once.
struct axpy {
  const float* x;
  float* y;
  float a;
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t word) const {
    float* to = y + 32 * word;
    L::store(to, L::fma(L::set(a), L::load(x + 32 * word), L::load(to)));
  }
};

struct raise_one {
  std::uint32_t* flag;
  std::size_t which;
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    if (i == which) L::raise(flag);
  }
};

template <class B, class T>
void check_buffer(B& backend) {
  for (const std::size_t n : {std::size_t{0}, std::size_t{1}, std::size_t{33}, std::size_t{5000}}) {
    auto b = backend.template make_buffer<T>(n);
    REQUIRE(b.size() == n);
    CHECK(b.bytes() == n * sizeof(T));
    CHECK(reinterpret_cast<std::uintptr_t>(b.data()) % 64 == 0);
    CHECK(downloaded(backend, b) == std::vector<T>(n));
    std::vector<T> sevens(n, static_cast<T>(7));
    backend.copy_in(b.data(), sevens.data(), n);
    sevens.assign(n, static_cast<T>(8));  // copy_in is done with it
    CHECK(downloaded(backend, b) == std::vector<T>(n, static_cast<T>(7)));
    const T* const where = b.data();
    auto moved = std::move(b);
    CHECK(moved.data() == where);
    CHECK(moved.size() == n);
    b = std::move(moved);
    CHECK(b.data() == where);
    b = {};
    CHECK(b.size() == 0);
    CHECK(b.data() == nullptr);
  }
}

}  // namespace onebit_test::backend_suite

TEST_CASE_TEMPLATE_DEFINE("backend", Model, backend_conformance) {
  using namespace onebit_test;
  if (!Model::available()) {
    MESSAGE("skipped: this machine cannot run ", Model::name());
    return;
  }
  auto backend = Model::make();
  static_assert(onebit::Backend<decltype(backend)>);

  backend_suite::check_buffer<decltype(backend), float>(backend);
  backend_suite::check_buffer<decltype(backend), double>(backend);
  backend_suite::check_buffer<decltype(backend), std::uint64_t>(backend);
  backend_suite::check_buffer<decltype(backend), std::byte>(backend);

  // every index once, and nothing beyond
  for (const std::size_t n : counts{0, 1, 2, 3, 5, 64, 10007}) {
    auto counts = backend.template make_buffer<std::uint32_t>(n + 1);
    for (std::uint32_t times = 1; times <= 3; ++times) {
      backend.launch(n, backend_suite::count_calls{counts.data()});
      std::vector<std::uint32_t> expected(n + 1, times);
      expected.back() = 0;
      CHECK(downloaded(backend, counts) == expected);
    }
  }

  // a launch sees what the one before wrote, and a copy what was launched
  constexpr std::size_t n_words = 1001;
  flat x(32 * n_words), expected(32 * n_words);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    x[i] = noise(1, 0, 0, i);
    expected[i] = noise(1, 1, 0, i);
  }
  auto x_buffer = uploaded(backend, x), y = uploaded(backend, expected);
  for (int round = 0; round < 50; ++round) {
    const float a = noise(1, 2, 0, static_cast<std::uint64_t>(round));
    backend.launch(n_words, backend_suite::axpy{x_buffer.data(), y.data(), a});
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expected[i] = std::fma(a, x[i], expected[i]);
    }
  }
  x_buffer = {};  // only once the launches are through with it
  CHECK(first_difference(downloaded(backend, y), expected) == none);

  for (const std::size_t which : counts{0, 17, 999}) {
    auto flag = backend.template make_buffer<std::uint32_t>(1);
    backend.launch(which, backend_suite::raise_one{flag.data(), which});
    CHECK(downloaded(backend, flag).front() == 0);
    backend.launch(1000, backend_suite::raise_one{flag.data(), which});
    CHECK(downloaded(backend, flag).front() == 1);
  }

  // a kernel object lives as long as it is needed, whatever becomes of the caller's
  auto flag = backend.template make_buffer<std::uint32_t>(1);
  {
    auto kernel = std::make_unique<backend_suite::raise_one>();
    *kernel = {flag.data(), 3};
    backend.launch(4, *kernel);
    kernel->which = 5;
  }
  backend.wait();
  CHECK(downloaded(backend, flag).front() == 1);
}

#endif  // ONEBIT_TESTS_CONFORMANCE_BACKEND_HPP
