// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Law 3: the dense mean is a naive loop over the ranks, bit for bit.

#include <algorithm>
#include <cmath>
#include <onebit/testing/collective.hpp>
#include <type_traits>

#include "../support/training.hpp"

using namespace onebit_test;

namespace {

using in_rank_order = dense_model<onebit::dense_sum::rank_order>;
using by_transport = dense_model<onebit::dense_sum::transport>;
using by_transport_in_bf16 = dense_model<onebit::dense_sum::transport_in_bf16>;
using in_bf16 = dense_model<onebit::dense_sum::in_bf16>;
using in_int8 = dense_model<onebit::dense_sum::in_int8>;
using two_identity = gather_scatter_of<onebit::identity>;
using one_identity = all_gather_of<onebit::identity>;

float value(int rank, std::size_t step, std::size_t i) {
  const auto r = static_cast<std::uint64_t>(rank);
  return std::ldexp(noise(51, r, step, i), static_cast<int>(hashed(52, r, step, i) % 40) - 20);
}

flat naive_mean(int w, std::size_t step, const std::vector<bool>& real) {
  flat mean(real.size(), 0.0F);
  const float inverse = 1.0F / static_cast<float>(w);
  for (std::size_t i = 0; i < mean.size(); ++i) {
    if (!real[i]) continue;
    volatile float sum = value(0, step, i);
    for (int r = 1; r < w; ++r) sum = sum + value(r, step, i);
    mean[i] = sum * inverse;
  }
  return mean;
}

}  // namespace

TEST_CASE("law 3: dense in rank order is the naive loop; identity through any exchange is dense") {
  std::vector<std::vector<std::size_t>> all_sizes = {odd_sizes(), {100003}};
  for (const std::size_t n : counts{0, 1, 7, 31, 32, 33, 1000, 4097}) all_sizes.push_back({n});
  for (const auto& sizes : all_sizes) {
    for (const int w : {1, 2, 3, 4, 5, 8}) {
      CAPTURE(sizes);
      CAPTURE(w);
      constexpr std::size_t steps = 2;
      const auto run = [&](auto model) {
        return on_ranks(w, [&](onebit::threads t) {
          return exchange<decltype(model)>(t, sizes, steps, value);
        });
      };
      const auto dense = run(in_rank_order{}), gathered = run(two_identity{}),
                 all = run(one_identity{}), transport = run(by_transport{});
      const auto n_ranks = static_cast<std::size_t>(w);
      for (std::size_t step = 0; step < steps; ++step) {
        const flat expected = naive_mean(w, step, dense[0].real);
        for (std::size_t r = 0; r < n_ranks; ++r) {
          CHECK(first_difference(dense[r].agreed[step], expected) == none);
          CHECK(first_difference(gathered[r].agreed[step], expected) == none);
          CHECK(first_difference(all[r].agreed[step], expected) == none);
          // threads too sum in rank order; other transports may sum in any order, and are as close
          // as w - 1 additions and one product can be
          std::size_t n_far = 0;
          for (std::size_t i = 0; i < expected.size(); ++i) {
            double magnitude = 0;
            for (int other = 0; other < w; ++other) {
              magnitude += std::fabs(static_cast<double>(value(other, step, i))) / w;
            }
            const double error = std::fabs(static_cast<double>(transport[r].agreed[step][i]) -
                                           static_cast<double>(expected[i]));
            n_far += error <= 2.0 * w * 6.0e-8 * magnitude ? 0U : 1U;
          }
          CHECK(n_far == 0);
        }
      }
    }
  }
}

namespace {

float rounded(float x) { return onebit::to_float(onebit::to_bf16(x)); }

/// Exchanges halves and floats, and calls check(what a rank sent of the halves, the floats' bytes,
/// w). `rounds`: the transport adds up, and gives bf16, which threads round once.
template <class Halves, class Floats, class Check>
void check_halves(bool rounds, const Check& check) {
  for (const auto& sizes : {odd_sizes(), std::vector<std::size_t>{1000}}) {
    for (const int w : {1, 2, 3, 5}) {
      CAPTURE(w);
      const auto run = [&](auto model) {
        return on_ranks(
            w, [&](onebit::threads t) { return exchange<decltype(model)>(t, sizes, 2, value); });
      };
      const auto halves = run(Halves{}), floats = run(Floats{});
      for (std::size_t step = 0; step < 2; ++step) {
        const auto& real = halves[0].real;
        flat expected(real.size(), 0.0F);
        for (std::size_t i = 0; i < expected.size(); ++i) {
          if (!real[i]) continue;
          if (w == 1) {
            expected[i] = value(0, step, i);  // nothing travels, nothing is rounded
            continue;
          }
          volatile float sum = rounded(value(0, step, i));
          for (int r = 1; r < w; ++r) sum = sum + rounded(value(r, step, i));
          if (rounds) sum = rounded(sum);
          expected[i] = rounded(sum * (1.0F / static_cast<float>(w)));
        }
        for (const exchange_trace& r : halves) {
          CHECK(first_difference(r.agreed[step], expected) == none);
          check(r.sent[step], floats[0].sent[step].bytes_sent, static_cast<std::uint64_t>(w));
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("dense in bf16: messages and their mean are rounded once each, in half of the bytes") {
  check_halves<in_bf16, in_rank_order>(
      false, [](const onebit::traffic& sent, std::uint64_t floats, std::uint64_t w) {
        CHECK(sent.collectives == (w > 1 ? 2U : 0U));
        // but for what a slot has behind its elements: the sum of squares, and the status
        const std::uint64_t behind = 2 * (w - 1) * 16;
        CHECK(2 * (sent.bytes_sent - behind) == floats - behind);
      });
}

TEST_CASE("dense in bf16 by the transport: half of the bytes of a ring, and the statuses") {
  check_halves<by_transport_in_bf16, by_transport>(
      true, [](const onebit::traffic& sent, std::uint64_t floats, std::uint64_t w) {
        CHECK(sent.collectives == (w > 1 ? 2U : 0U));
        // but for 16 bytes a slot behind its elements, 12 bytes of status that each rank gathers,
        // and what dividing by w cuts off
        const std::uint64_t behind = (w - 1) * (2 * 16 + 12);
        const std::uint64_t twice = 2 * (sent.bytes_sent - behind) + behind;
        CHECK(twice <= floats + 2);
        CHECK(twice + 2 >= floats);
      });
}

TEST_CASE("dense in bf16 by the transport: one that has no such sum is refused, on all ranks") {
  struct floats_only {
    onebit::threads inner;
    [[nodiscard]] int rank() const { return inner.rank(); }
    [[nodiscard]] int size() const { return inner.size(); }
    void all_to_all(const void* s, void* r, std::size_t n) { inner.all_to_all(s, r, n); }
    void all_gather(const void* s, void* r, std::size_t n) { inner.all_gather(s, r, n); }
    void all_reduce_sum(float* d, std::size_t n) { inner.all_reduce_sum(d, n); }
  };
  static_assert(!onebit::detail::HalfSummingTransport<floats_only>);
  const auto told = on_ranks(2, [](onebit::threads t) {
    return thrown<onebit::invalid_input>([&] {
      const std::vector<std::size_t> sizes = {10};
      onebit::detail::dense_average<onebit::host>(onebit::dense_sum::transport_in_bf16,
                                                  onebit::communicator(floats_only{t}),
                                                  onebit::host{}, sizes);
    });
  });
  for (const auto& text : told) {
    CHECK(text == contains{"this transport has no all_reduce_sum(onebit::bf16* data"});
  }
}

namespace {

/// 32 values as int8 with a common power of two, from the definition.
void round_word(float* word) {
  float most = 0;
  for (int i = 0; i < 32; ++i) most = std::max(most, std::fabs(word[i]));
  const int e = std::max(most > 0 ? std::ilogb(most) : -200, -120);
  for (int i = 0; i < 32; ++i) {
    const double q = std::nearbyint(std::ldexp(static_cast<double>(word[i]), 6 - e));
    word[i] = static_cast<float>(std::ldexp(std::clamp(q, -127.0, 127.0), e - 6)) + 0.0F;
  }
}

}  // namespace

TEST_CASE("dense in int8: by word, messages and their mean are rounded once each") {
  for (const auto& sizes : {odd_sizes(), std::vector<std::size_t>{1000}}) {
    for (const int w : {2, 3, 5}) {
      CAPTURE(w);
      const auto ranks =
          on_ranks(w, [&](onebit::threads t) { return exchange<in_int8>(t, sizes, 2, value); });
      for (std::size_t step = 0; step < 2; ++step) {
        const auto& real = ranks[0].real;
        flat expected(real.size(), 0.0F);
        for (int r = 0; r < w; ++r) {
          flat message(real.size(), 0.0F);
          for (std::size_t i = 0; i < real.size(); ++i) {
            if (real[i]) message[i] = value(r, step, i);
          }
          for (std::size_t k = 0; k < real.size(); k += 32) round_word(message.data() + k);
          for (std::size_t i = 0; i < real.size(); ++i) {
            expected[i] = r == 0 ? message[i] : expected[i] + message[i];
          }
        }
        for (float& x : expected) x *= 1.0F / static_cast<float>(w);
        for (std::size_t k = 0; k < real.size(); k += 32) round_word(expected.data() + k);
        for (const exchange_trace& r : ranks) {
          CHECK(first_difference(r.agreed[step], expected) == none);
          const std::size_t words =
              (real.size() / 32 + static_cast<std::size_t>(w) - 1) / static_cast<std::size_t>(w);
          CHECK(r.sent[step].bytes_sent ==
                static_cast<std::uint64_t>(2 * (w - 1)) * ((33 * words + 3) / 4 * 4 + 16));
        }
      }
    }
  }
}

TEST_CASE(
    "dense: values without a finite sum of squares are a skipped step on all ranks, in all "
    "modes") {
  const auto check = [](auto model) {
    const messages too_large = [](int rank, std::size_t step, std::size_t i) {
      return step == 1 && i == 33 ? 3e38F : value(rank, step, i);
    };
    const auto ranks = on_ranks(3, [&](onebit::threads t) {
      return exchange<decltype(model)>(t, {100, 7}, 3, too_large);
    });
    for (const exchange_trace& r : ranks) {
      CHECK(r.skipped == std::vector<bool>{false, true, false});
      constexpr bool rounds = std::is_same_v<decltype(model), in_bf16> ||
                              std::is_same_v<decltype(model), in_int8> ||
                              std::is_same_v<decltype(model), by_transport_in_bf16>;
      if (!rounds) {
        CHECK(first_difference(r.agreed[2], naive_mean(3, 2, r.real)) == none);
      }
    }
  };
  check(in_rank_order{});
  check(by_transport{});
  check(by_transport_in_bf16{});
  check(in_bf16{});
  check(in_int8{});
  check(two_identity{});
}

TEST_CASE("dense: values at both ends of the range come through") {
  const messages extreme = [](int rank, std::size_t, std::size_t i) {
    switch (i % 5) {
      case 0:
        return 1e-45F;  // the mean of equal denormals is one again
      case 1:
        return 8e17F;  // larger ones have no sum of squares: 50 of them reach 3.2e37
      case 2:
        return rank == 0 ? 1e18F : -1e18F;
      case 3:
        return -0.0F;
      default:
        return rank % 2 == 0 ? 1e-40F : -1e-40F;
    }
  };
  for (const int w : {1, 2, 4}) {
    const auto ranks = on_ranks(
        w, [&](onebit::threads t) { return exchange<in_rank_order>(t, {50}, 1, extreme); });
    for (const exchange_trace& r : ranks) {
      REQUIRE_FALSE(r.skipped[0]);
      for (std::size_t i = 0; i < 50; ++i) {
        volatile float sum = extreme(0, 0, i);
        for (int other = 1; other < w; ++other) sum = sum + extreme(other, 0, i);
        CHECK(r.agreed[0][i] == sum * (1.0F / static_cast<float>(w)));
      }
    }
  }
}

TEST_CASE("averages take room for a few buckets where gradients are scratch, else 4 bytes each") {
  constexpr std::size_t n = std::size_t{1} << 20U;
  const auto bytes_each = [&]<class G>(std::type_identity<G>) {
    return on_ranks(3, [&](onebit::threads t) {
      std::vector<float> params(n, 1.0F), grads(n, 0.5F);
      std::vector<onebit::param_group<float, G>> groups(1);
      groups[0].tensors.push_back({params, grads});
      auto o = onebit::one_bit_adam(groups, t, {}, onebit::gather_scatter{onebit::sign<>{}, 8192});
      (void)o.step(0.01F);
      CHECK(std::count(params.begin(), params.end(), params[0]) == n);
      CHECK(params[0] < 1);
      return static_cast<double>(o.work_bytes()) / n;
    })[0];
  };
  // messages of 8 buckets are 0.25 bytes for each of the 2^20 elements; two axes have tables
  CHECK(bytes_each(std::type_identity<float>{}) < 0.75);
  const double only_read = bytes_each(std::type_identity<const float>{});
  CHECK(only_read > 4);
  CHECK(only_read < 4.75);
}
