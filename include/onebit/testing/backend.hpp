// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Conformance suite of the Backend concept. Models: available(), make(), name(); see host_model.

#include <bit>
#include <cstring>
#include <memory>
#include <onebit/collective/message.hpp>
#include <onebit/compressor/rounded.hpp>
#include <onebit/compressor/sign.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/kernel/launch.hpp>
#include <onebit/testing/buffers.hpp>
#include <onebit/testing/values.hpp>
#include <span>
#include <vector>

namespace onebit { inline namespace v0_3 { namespace testing {
namespace backend_suite {

struct count_calls {
  std::uint32_t* counts;
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    L::store_scalar(counts + i, counts[i] + 1);
  }
};

/// Computes y = a x + y, rounded once.
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

struct raise_each {
  static constexpr bool serial = true;
  std::uint32_t* flags;
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    L::raise(flags + i);
  }
};

struct count_raised {
  static constexpr bool serial = true;
  const std::uint32_t* flags;
  std::size_t n;
  std::uint64_t* total;
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    L::store_scalar(total, *total + L::sum_counts(flags, n));
  }
};

/// Writes the mean of the ranks' messages on the flat axis.
template <class C>
struct mean_kernel {
  onebit::detail::mean_view<C> mean;
  const onebit::tile* tiles;
  float* to;

  [[nodiscard]] ONEBIT_HD const onebit::tile& tile_at(std::size_t i) const { return tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const onebit::tile t = tile_at(i);
    const auto mean_at = mean.template at<L>(t, i);
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      L::store(to + (t.word + k) * 32, mean_at(k));
    }
  }
};

/// Checks that means are sums in rank order, for scales (or floats) of all kinds, zeros included,
/// and for tiles of whole and of partial words.
template <class C, class B>
void check_mean(B& backend, const C& codec, int n_ranks) {
  constexpr bool signs = requires { requires C::one_sign; };
  constexpr std::size_t per_word = signs ? 1 : 32;  // 32-bit units in a word of 32 elements
  const std::vector<std::size_t> sizes = {4096, 4096 + 384, 1000, 40};
  const onebit::layout axis(sizes, 1, onebit::granularity::layer());
  std::vector<std::uint64_t> offsets;
  const onebit::detail::slot_format format = onebit::detail::make_slot_format(codec, axis, offsets);
  const auto n = static_cast<std::size_t>(n_ranks);
  const auto any = [](std::size_t r, std::uint64_t what, std::size_t i) {
    return (r + i) % 3 == 0 ? (i % 2 == 0 ? 0.0F : -0.0F) : noise(2, r, what, i);
  };
  std::vector<flat> said(n), scales(n);
  std::vector<std::byte> slots(n * format.slot_bytes);
  for (std::size_t r = 0; r < n; ++r) {
    for (std::size_t w = 0; w < axis.n_words() * per_word; ++w) {
      said[r].push_back(signs ? noise(2, r, 0, w) : any(r, 0, w));
    }
    for (std::size_t s = 0; s < axis.slot_segments(); ++s) scales[r].push_back(any(r, 1, s));
    std::byte* slot = slots.data() + r * format.slot_bytes;
    std::memcpy(slot, said[r].data(), said[r].size() * sizeof(float));
    std::memcpy(slot + format.scales_at, scales[r].data(), scales[r].size() * sizeof(float));
  }
  flat expected(axis.n_words() * 32);
  const float inverse = 1.0F / static_cast<float>(n_ranks);
  for (const onebit::tile& t : axis.tiles()) {
    for (std::size_t i = 0; i < t.n_words() * 32; ++i) {
      float sum = -0.0F;
      for (std::size_t r = 0; r < n; ++r) {
        if (signs) {
          const auto word = std::bit_cast<std::uint32_t>(said[r][t.word + i / 32]);
          const float scale = scales[r][t.segment];
          sum += (word >> i % 32 & 1U) != 0 ? scale : -scale;
        } else {
          sum += said[r][t.word * 32 + i];
        }
      }
      expected[t.word * 32 + i] = sum * inverse;
    }
  }
  const auto tiles = uploaded(backend, axis.tiles());
  const auto there = uploaded(backend, slots);
  auto to = backend.template make_buffer<float>(expected.size());
  backend.launch(
      axis.tiles().size(),
      mean_kernel<C>{{codec, format, there.data(), n_ranks, inverse, {}}, tiles.data(), to.data()});
  const flat found = downloaded(backend, to);
  CHECK(std::memcmp(found.data(), expected.data(), expected.size() * sizeof(float)) == 0);
}

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
    sevens.assign(n, static_cast<T>(8));  // copy_in must have read it
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

}  // namespace backend_suite

TEST_CASE_TEMPLATE_DEFINE("backend", Model, backend_conformance) {
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

  // launch calls the kernel once per index, and for no other index
  for (const std::size_t n : counts{0, 1, 2, 3, 5, 64, 10007}) {
    auto called = backend.template make_buffer<std::uint32_t>(n + 1);
    for (std::uint32_t times = 1; times <= 3; ++times) {
      backend.launch(n, backend_suite::count_calls{called.data()});
      std::vector<std::uint32_t> expected(n + 1, times);
      expected.back() = 0;
      CHECK(downloaded(backend, called) == expected);
    }
  }

  // several kernels in one launch
  for (const std::size_t n : counts{0, 1, 9, 3001}) {
    auto few = backend.template make_buffer<std::uint32_t>(n + 1);
    auto many = backend.template make_buffer<std::uint32_t>(5000);
    using backend_suite::count_calls;
    onebit::detail::launch_together(
        backend, onebit::detail::calls{count_calls{few.data()}, n},
        onebit::detail::calls{count_calls{many.data()}, std::size_t{5000}},
        onebit::detail::calls{count_calls{few.data() + n}, std::size_t{1}});
    CHECK(downloaded(backend, few) == std::vector<std::uint32_t>(n + 1, 1));
    CHECK(downloaded(backend, many) == std::vector<std::uint32_t>(5000, 1));

    auto flags = backend.template make_buffer<std::uint32_t>(n);
    auto n_ended = backend.template make_buffer<std::uint32_t>(1);
    auto total = backend.template make_buffer<std::uint64_t>(1);
    for (std::uint64_t times = 1; times <= 3; ++times) {
      onebit::detail::launch_then_once(
          backend, onebit::detail::calls{backend_suite::raise_each{flags.data()}, n},
          backend_suite::count_raised{flags.data(), n, total.data()}, n_ended.data());
      CHECK(downloaded(backend, total).front() == times * n);
      CHECK(downloaded(backend, n_ended).front() == 0);
    }
    // the same as a single kernel, as devices run it
    const onebit::detail::then_once<backend_suite::raise_each, backend_suite::count_raised> both{
        onebit::detail::calls{backend_suite::raise_each{flags.data()}, n},
        backend_suite::count_raised{flags.data(), n, total.data()}, n_ended.data()};
    backend.launch(both.launches(), both);
    CHECK(downloaded(backend, total).front() == 4 * n);
    CHECK(downloaded(backend, n_ended).front() == 0);
  }

  for (const int n_ranks : {1, 2, 4, 5, 6, 8, 9, 13, 16, 17, 40}) {
    CAPTURE(n_ranks);
    backend_suite::check_mean(backend, onebit::sign<>{}, n_ranks);
    backend_suite::check_mean(backend, onebit::rounded{}, n_ranks);
  }

  // launches run in order, and a copy sees the results of all launches before it
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
  x_buffer = {};  // must wait for the launches that read it
  CHECK(first_difference(downloaded(backend, y), expected) == none);

  for (const std::size_t which : counts{0, 17, 999}) {
    auto flag = backend.template make_buffer<std::uint32_t>(1);
    backend.launch(which, backend_suite::raise_one{flag.data(), which});
    CHECK(downloaded(backend, flag).front() == 0);
    backend.launch(1000, backend_suite::raise_one{flag.data(), which});
    CHECK(downloaded(backend, flag).front() == 1);
  }

  // launch copies the kernel: the caller may change or destroy its own
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

}}}  // namespace onebit::testing
