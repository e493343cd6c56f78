// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The compressed mean by itself.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <onebit/collective/all_gather.hpp>
#include <onebit/collective/hierarchical.hpp>
#include <onebit/compressed_allreduce.hpp>
#include <onebit/core/element_types.hpp>
#include <onebit/testing/scripted.hpp>
#include <onebit/transport/alone.hpp>
#include <span>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../../examples/int8_per_tile.hpp"
#include "laws/residuals.hpp"
#include "support/ranks.hpp"

namespace {

using namespace onebit_test;

const std::vector<std::size_t> allreduce_sizes = {33, 0, 5000, 1, 9001};

/// One rank's data: T is float, bf16 or fp16.
template <class T = float>
struct rank_data {
  std::vector<std::vector<T>> values;

  rank_data() {
    for (const std::size_t n : allreduce_sizes) values.emplace_back(n);
  }
  /// Those of a call, of any rank: between -1 and 1, by a hash.
  void fill(int rank, std::uint64_t call) {
    std::uint32_t at = 0;
    for (auto& v : values) {
      for (T& x : v) {
        std::uint64_t h = (++at * 0x9E3779B97F4A7C15U) ^ (call * 0xC2B2AE3D27D4EB4FU) ^
                          (static_cast<std::uint64_t>(rank) * 0x165667B19E3779F9U);
        h = (h ^ (h >> 29U)) * 0xBF58476D1CE4E5B9U;
        const auto y = static_cast<float>(h >> 40U) * 0x1p-23F - 1.0F;
        x = onebit::from_float<T>(y * std::exp2(-static_cast<float>(at % 7)));
      }
    }
  }
  [[nodiscard]] std::vector<std::span<T>> spans() {
    return std::vector<std::span<T>>(values.begin(), values.end());
  }
  friend bool operator==(const rank_data& a, const rank_data& b) {
    for (std::size_t t = 0; t < a.values.size(); ++t) {
      const std::size_t n = a.values[t].size();
      if (n > 0 && std::memcmp(a.values[t].data(), b.values[t].data(), n * sizeof(T)) != 0)
        return false;
    }
    return true;
  }
};

/// The means of so many calls, on one rank.
template <class T, class Mean>
std::vector<rank_data<T>> means_of(Mean& allreduce, std::uint64_t first, std::uint64_t end) {
  std::vector<rank_data<T>> means;
  for (std::uint64_t call = first; call < end; ++call) {
    rank_data<T> data;
    data.fill(allreduce.rank(), call);
    REQUIRE(allreduce.mean(data.spans()) == onebit::outcome::kept);
    means.push_back(std::move(data));
  }
  return means;
}

template <class T, class C>
auto make(onebit::threads t, const C& collective) {
  return onebit::compressed_allreduce<C, T>(t, allreduce_sizes, collective);
}

/// f of every kind of exchange.
template <class F>
void with_collectives(const F& f) {
  f(onebit::gather_scatter<onebit::sign<>>{});
  f(onebit::gather_scatter{onebit::sign<>{}, 4096});
  f(onebit::all_gather<onebit::sign<>>{});
  f(onebit::hierarchical{onebit::sign<>{}, 2});
  f(onebit::hierarchical{onebit::sign<>{}, 4});  // one node
  f(onebit::gather_scatter<int8_per_tile>{});
}

/// What each rank owes on average, by element; the state's own fields, by the law's reader.
template <class Mean>
struct as_optimizer {
  Mean& mean;
  [[nodiscard]] auto& exchange() { return mean.exchange(); }
  [[nodiscard]] int size() const { return mean.size(); }
  [[nodiscard]] onebit::active_mask active() { return mean.exchange().mask(); }
};

}  // namespace

TEST_CASE(
    "compressed_allreduce: all ranks get the same mean; what it leaves out is owed "
    "[compressed_allreduce]") {
  with_collectives([](const auto& collective) {
    CAPTURE(collective.name());
    constexpr std::uint64_t calls = 12;
    struct rank_result {
      std::vector<rank_data<>> means;
      by_element sum;  // of the rank's share of all data, less what it owes
    };
    const auto all = on_ranks(4, [&](onebit::threads t) {
      auto allreduce = make<float>(t, collective);
      rank_result r{means_of<float>(allreduce, 0, calls), {}};
      CHECK(allreduce.steps() == calls);
      for (const std::size_t n : allreduce_sizes) r.sum.emplace_back(n, 0.0);
      as_optimizer<decltype(allreduce)> o{allreduce};
      add_residuals(o, r.sum);
      for (auto& tensor : r.sum) {
        for (double& x : tensor) x = -x;
      }
      rank_data<> data;
      for (std::uint64_t call = 0; call < calls; ++call) {
        data.fill(t.rank(), call);
        for (std::size_t k = 0; k < r.sum.size(); ++k) {
          for (std::size_t i = 0; i < r.sum[k].size(); ++i)
            r.sum[k][i] += static_cast<double>(data.values[k][i]) / 4;
        }
      }
      return r;
    });
    double farthest = 0;
    for (std::size_t t = 0; t < allreduce_sizes.size(); ++t) {
      for (std::size_t i = 0; i < allreduce_sizes[t]; ++i) {
        double difference = 0;
        for (const auto& r : all) difference += r.sum[t][i];
        for (const auto& mean : all[0].means) difference -= static_cast<double>(mean.values[t][i]);
        farthest = std::max(farthest, std::abs(difference));
      }
    }
    CHECK(farthest < 2e-5);  // 12 calls, a few roundings each, of values up to 8
    for (const auto& r : all) CHECK(r.means == all[0].means);
  });
}

TEST_CASE_TEMPLATE("compressed_allreduce: without compression it is the mean, in every type", T,
                   float, onebit::bf16, onebit::fp16) {
  const auto all = on_ranks(3, [](onebit::threads t) {
    auto allreduce = make<T>(t, onebit::gather_scatter<onebit::identity>{});
    return means_of<T>(allreduce, 0, 1);
  });
  std::vector<rank_data<T>> data(3);
  for (int r = 0; r < 3; ++r) data[static_cast<std::size_t>(r)].fill(r, 0);
  rank_data<T> expected = data[0];
  for (std::size_t k = 0; k < expected.values.size(); ++k) {
    for (std::size_t i = 0; i < expected.values[k].size(); ++i) {
      float sum = 0;
      for (const auto& d : data) sum += onebit::to_float(d.values[k][i]);
      expected.values[k][i] = onebit::from_float<T>(sum * (1.0F / 3.0F));
    }
  }
  for (const auto& means : all) CHECK(means[0] == expected);
}

TEST_CASE(
    "compressed_allreduce: bad data are skipped by all ranks, and change nothing "
    "[compressed_allreduce]") {
  with_collectives([](const auto& collective) {
    CAPTURE(collective.name());
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), 1e38F}) {
      on_ranks(4, [&](onebit::threads t) {
        auto undisturbed = make<float>(t, collective);
        auto allreduce = make<float>(t, collective);
        CHECK(means_of<float>(undisturbed, 0, 2) == means_of<float>(allreduce, 0, 2));
        rank_data<> data;
        data.fill(t.rank(), 2);
        if (t.rank() == 1) data.values[4][77] = bad;
        const rank_data<> before = data;
        CHECK(allreduce.mean(data.spans()) == onebit::outcome::skipped);
        CHECK(data == before);
        CHECK(means_of<float>(undisturbed, 3, 6) == means_of<float>(allreduce, 3, 6));
        return 0;
      });
    }
  });
}

TEST_CASE(
    "compressed_allreduce: in parts, in any order that all take, the same bits "
    "[compressed_allreduce]") {
  with_collectives([](const auto& collective) {
    CAPTURE(collective.name());
    on_ranks(4, [&](onebit::threads t) {
      auto whole = make<float>(t, collective);
      auto parts = make<float>(t, collective);
      auto started = make<float>(t, collective);
      for (std::uint64_t call = 0; call < 4; ++call) {
        const auto expected = means_of<float>(whole, call, call + 1)[0];
        rank_data<> data;
        parts.begin(data.spans());
        data.fill(t.rank(), call);
        for (std::size_t k = allreduce_sizes.size(); k-- > 1;) parts.ready(k);  // not tensor 0
        CHECK(parts.wait() == onebit::outcome::kept);
        CHECK(data == expected);
        data.fill(t.rank(), call);
        started.start(data.spans());
        CHECK(started.wait() == onebit::outcome::kept);
        CHECK(data == expected);
      }
      return 0;
    });
  });
}

TEST_CASE(
    "compressed_allreduce: saved and loaded it goes on as if never stopped; reset it is new "
    "[compressed_allreduce]") {
  with_collectives([](const auto& collective) {
    CAPTURE(collective.name());
    on_ranks(4, [&](onebit::threads t) {
      auto first = make<float>(t, collective);
      const auto new_means = means_of<float>(first, 0, 3);
      std::stringstream file;
      first.save(file);
      const auto expected = means_of<float>(first, 3, 6);
      auto second = make<float>(t, collective);
      (void)means_of<float>(second, 8, 9);
      // a file that is damaged on one rank: nothing is loaded on any
      std::string damaged = file.str();
      if (t.rank() == 2) damaged[damaged.size() / 2] ^= 1;
      std::stringstream before, after;
      second.save(before);
      std::istringstream bad(damaged);
      CHECK_THROWS_AS(second.load(bad), onebit::checkpoint_error);
      second.save(after);
      CHECK(before.str() == after.str());
      second.load(file);
      CHECK(second.steps() == 3);
      CHECK(means_of<float>(second, 3, 6) == expected);
      second.reset();
      CHECK(means_of<float>(second, 0, 3) == new_means);
      return 0;
    });
  });
}

TEST_CASE("compressed_allreduce: a network that fails changes nothing [compressed_allreduce]") {
  with_collectives([](const auto& collective) {
    CAPTURE(collective.name());
    onebit::run_threads(4, [&](onebit::threads t) {
      auto undisturbed = make<float>(t, collective);
      const auto told = std::make_shared<script>();
      onebit::compressed_allreduce allreduce(scripted(t, told), allreduce_sizes, collective);
      for (std::uint64_t call = 0; call < 3; ++call) {
        const std::uint64_t first = told->calls;
        const auto expected = means_of<float>(undisturbed, call, call + 1)[0];
        rank_data<> data;
        data.fill(t.rank(), call);
        const rank_data<> before = data;
        for (std::uint64_t k = 0; k < 2; ++k) {
          told->fail_at = told->calls;
          told->fail_after_delivery = k == 1;
          CHECK_THROWS_AS(allreduce.mean(data.spans()), onebit::transport_error);
          CHECK(data == before);
        }
        told->fail_at = script::never;
        CHECK(allreduce.mean(data.spans()) == onebit::outcome::kept);
        CHECK(told->calls > first);
        CHECK(data == expected);
      }
    });
  });
}

TEST_CASE(
    "compressed_allreduce: what does not fit is said, with its numbers [compressed_allreduce]") {
  const auto message_of = [](const auto& f) {
    try {
      f();
    } catch (const onebit::error& e) {
      return std::string(e.what());
    }
    return std::string("nothing was thrown");
  };
  const auto says = [](const std::string& text, const char* part) {
    CAPTURE(text);
    CHECK(text.find(part) != std::string::npos);
  };
  onebit::run_threads(2, [&](onebit::threads t) {
    says(message_of([&] { onebit::compressed_allreduce x(t, {t.rank() == 0 ? 10U : 11U}); }),
         "elements of tensor 0: 11 on rank 1, 10 on rank 0");
    onebit::compressed_allreduce a(t, {10}), b(t, {10});
    std::vector<float> data(10, 1.0F), few(9);
    says(message_of([&] { a.mean(few); }), "tensor 0 has 9 elements, built for 10");
    says(message_of([&] { a.ready(0); }), "ready(0) of 1 tensors without begin()");
    says(message_of([&] { a.wait(); }), "wait() without begin()");
    says(message_of([&] { a.settle(); }), "settle before any call");
    a.begin(data);
    says(message_of([&] { a.settle(); }), "settle between begin() and wait()");
    says(message_of([&] { a.begin(data); }), "begin between begin() and wait()");
    says(message_of([&] { a.ready(1); }), "ready(1) of 1 tensors");
    says(message_of([&] { a.reset(); }), "reset between begin() and wait()");
    CHECK(a.wait() == onebit::outcome::kept);
    CHECK(b.mean(data) == onebit::outcome::kept);
    // two of them in another order: found in the call, by all
    auto& mine = t.rank() == 0 ? a : b;
    says(message_of([&] { mine.mean(data); }), "all ranks must call their optimizers in the same");
    for (const float x : data) CHECK(x == data[0]);
    CHECK(a.mean(data) == onebit::outcome::kept);
  });
  // memory that cannot be, here on both ranks alike
  onebit::run_threads(2, [&](onebit::threads t) {
    onebit::compressed_allreduce two(t, {10, 10});
    std::vector<float> data(15);
    const std::vector<std::span<float>> overlap = {std::span(data).first(10),
                                                   std::span(data).last(10)};
    says(message_of([&] { two.mean(overlap); }), "overlap");
    float* const nowhere = nullptr;
    says(message_of([&] {
           two.mean(std::vector<std::span<float>>{{nowhere, 10}, {nowhere, 10}});
         }),
         "tensor 0 has 10 data at address 0, which is null");
    says(message_of([&] {
           onebit::compressed_allreduce x(t, {5, static_cast<std::size_t>(-10)});
         }),
         "tensor 1 has 18446744073709551606 elements, more than memory can hold");
    onebit::compressed_allreduce of_floats(t, {10});
    std::stringstream file;
    of_floats.save(file);
    onebit::compressed_allreduce<onebit::gather_scatter<onebit::sign<>>, onebit::bf16> other(t,
                                                                                             {10});
    says(message_of([&] { other.load(file); }), "float");
  });
  onebit::compressed_allreduce alone(onebit::alone(), {3});
  std::vector<float> data = {1, 2, 3};
  CHECK(alone.mean(data) == onebit::outcome::kept);
  CHECK(data == std::vector<float>{1, 2, 3});
}

TEST_CASE(
    "compressed_allreduce: two at a time, and moved while they are in a call "
    "[compressed_allreduce]") {
  onebit::run_threads(2, [](onebit::threads t) {
    const std::size_t n = 5000;
    const onebit::gather_scatter buckets{onebit::identity{}, 4096};
    onebit::compressed_allreduce a(t, {n, n}, buckets), b(t, {n, n}, buckets);
    std::vector<std::vector<float>> data(
        4, std::vector<float>(n, 1.0F + static_cast<float>(t.rank())));
    const std::vector<std::span<float>> first = {data[0], data[1]}, second = {data[2], data[3]};
    a.start(first);
    b.start(second);
    CHECK(b.wait() == onebit::outcome::kept);
    auto moved = std::move(a);
    CHECK(moved.wait() == onebit::outcome::kept);
    for (const auto& tensor : data) {
      for (const float x : tensor) REQUIRE(x == 1.5F);
    }
  });
}

TEST_CASE(
    "compressed_allreduce: a mean that fp16 cannot hold is its largest, on all ranks "
    "[compressed_allreduce]") {
  onebit::run_threads(2, [](onebit::threads t) {
    onebit::compressed_allreduce<onebit::gather_scatter<onebit::sign<>>, onebit::fp16> mean(t,
                                                                                            {4096});
    std::vector<onebit::fp16> data(4096);
    for (int call = 0; call < 4; ++call) {
      for (std::size_t i = 0; i < data.size(); ++i)
        data[i] = onebit::to_fp16(i % 2 == 1 ? 65504.0F : call == 0 ? 0.0F : -65504.0F);
      CHECK(mean.mean(data) == onebit::outcome::kept);
      for (const auto x : data) REQUIRE(std::abs(onebit::to_float(x)) <= 65504.0F);
    }
  });
}
