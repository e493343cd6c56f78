// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Residuals in 8 bits: what a word of them can say, and that what rounding loses is bounded by the
// values that lie there, and is nothing on average.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <onebit/backend/lanes.hpp>
#include <onebit/onebit.hpp>
#include <string>
#include <vector>

#include "../conformance/collective.hpp"
#include "../support/storages.hpp"
#include "../support/training.hpp"

using namespace onebit_test;

namespace {

using lanes = onebit::portable_lanes;
using storage = onebit::residuals_in_int8;
using word = std::array<float, 32>;
using code = std::array<unsigned char, storage::per_word>;

code stored(const word& values, const lanes::value& dither = lanes::set(0)) {
  code c{};
  storage::store<lanes>(c.data(), lanes::load(values.data()), dither);
  return c;
}
word loaded(const code& c) {
  word values{};
  lanes::store(values.data(), storage::load<lanes>(c.data()));
  return values;
}
lanes::value dither(std::size_t at, std::uint32_t step) {
  return onebit::detail::dither<lanes>(onebit::detail::dither_of_lanes<lanes>(), at, step);
}
/// Of magnitudes that differ by up to 2^20, with both signs.
word values_of(std::uint64_t seed) {
  word values{};
  for (std::size_t i = 0; i < 32; ++i) {
    values[i] = std::ldexp(noise(91, seed, 0, i), -static_cast<int>(hashed(92, seed, 0, i) % 21));
  }
  return values;
}
float largest_of(const word& values) {
  float most = 0;
  for (const float x : values) most = std::max(most, std::fabs(x));
  return most;
}

}  // namespace

TEST_CASE("residuals in 8 bits: signs stay, what is lost is below a 64th of the largest") {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    const word values = values_of(seed);
    for (const bool chance : {false, true}) {
      const auto by = chance ? dither(seed, 7) : lanes::set(0);
      const code c = stored(values, by);
      const word there = loaded(c);
      const float bound = largest_of(values) / 64;
      for (std::size_t i = 0; i < 32; ++i) {
        CHECK((there[i] >= 0) == (values[i] >= 0));
        CHECK(std::fabs(there[i] - values[i]) <= bound);
      }
      CHECK(stored(there) == c);  // what was there can be put back
    }
  }
}

TEST_CASE("residuals in 8 bits: values at the edges") {
  word values{};
  CHECK(loaded(stored(values)) == values);  // zeros are zeros: padding, elements that sleep
  CHECK(stored(values) == code{});          // and what nothing was ever stored in
  values[3] = -0.0F;
  CHECK_FALSE(std::signbit(loaded(stored(values))[3]));  // as sign has it: not below 0
  values[5] = -1e-39F;                                   // below what has 24 bits
  CHECK(loaded(stored(values))[5] < 0);
  values[6] = 1;
  CHECK(loaded(stored(values))[5] < 0);
  values[7] = 1e30F;  // beyond what gradients may be: bounded, finite
  for (const float x : loaded(stored(values))) CHECK(std::isfinite(x));
  for (const float x : {1.0F, 1.984375F, 1.9999999F, 2.0F}) {  // both sides of a power of two
    word one{};
    one[0] = x;
    CHECK(std::fabs(loaded(stored(one))[0] - x) <= x / 64);
  }
  for (const float x : {1.0F, -1.0F, -0x1p-60F, -0x1p63F}) {  // half a unit less than 64
    for (const float by : {-0.5F, -0.4999999F, 0.0F, 0.4999999F}) {
      word one{};
      one[31] = x;
      const code c = stored(one, lanes::set(by));
      CHECK(stored(loaded(c)) == c);
    }
  }
}

TEST_CASE("residuals in 8 bits: chance has every value alike often, in every lane") {
  std::array<std::array<int, 8>, 32> eighths{};
  std::array<double, 32> sum{};
  constexpr int steps = 8000;
  for (std::uint32_t step = 0; step < steps; ++step) {
    word d{};
    lanes::store(d.data(), dither(5, step));
    for (std::size_t i = 0; i < 32; ++i) {
      REQUIRE(d[i] >= -0.5F);
      REQUIRE(d[i] < 0.5F);
      ++eighths[i][static_cast<std::size_t>((d[i] + 0.5F) * 8)];
      sum[i] += static_cast<double>(d[i]);
    }
  }
  for (std::size_t i = 0; i < 32; ++i) {
    // a mean of 8000 has a standard deviation of 0.0032, a count of 29.6
    CHECK(std::fabs(sum[i] / steps) < 0.016);
    for (const int n : eighths[i]) CHECK(std::abs(n - steps / 8) < 150);
  }
}

TEST_CASE("residuals in 8 bits: small values are not lost on average") {
  // a 1000th of the largest, an 8th of a unit: to nearest it would be 0 for ever
  word values{};
  values[0] = 1;
  for (std::size_t i = 1; i < 32; ++i) values[i] = 1e-3F * (i % 2 == 0 ? 1.0F : -1.0F);
  std::array<double, 32> sum{};
  constexpr int steps = 20000;
  for (std::uint32_t step = 0; step < steps; ++step) {
    const word there = loaded(stored(values, dither(9, step)));
    for (std::size_t i = 0; i < 32; ++i) sum[i] += static_cast<double>(there[i]);
  }
  const double unit = 1.0 / 64;
  for (std::size_t i = 1; i < 32; ++i) {
    // a mean of 20000 of 0 or a unit: 5 standard deviations, and 2^-12 of a unit for the sign
    const double p = 1e-3 / unit;
    const double bound = 5 * unit * std::sqrt(p * (1 - p) / steps) + unit / 4096;
    CHECK(std::fabs(sum[i] / steps - static_cast<double>(values[i])) <= bound);
  }
}

TEST_CASE("residuals in 8 bits: sums over 300 steps follow the messages") {
  // In each step a worker loses less than a 64th of the largest carried value of a word, and the
  // server as much of its own; by chance, so that sums of losses grow as the root of the steps.
  using compact = onebit::residual_in<onebit::int8, onebit::sign<>>;
  constexpr std::size_t steps = 300;
  const std::vector<std::size_t> sizes = {33, 1000};
  const messages message = [](int rank, std::size_t step, std::size_t i) {
    return 0.25F + noise(43, static_cast<std::uint64_t>(rank), step, i);  // with a bias
  };
  const auto ranks = on_ranks(3, [&](onebit::threads t) {
    return exchange<gather_scatter_of<compact>>(t, sizes, steps, message);
  });
  double largest = 0, worst = 0;
  for (std::size_t i = 0; i < ranks[0].real.size(); ++i) {
    if (!ranks[0].real[i]) continue;
    double in = 0, out = 0;
    for (std::size_t step = 0; step < steps; ++step) {
      for (int r = 0; r < 3; ++r) in += static_cast<double>(message(r, step, i)) / 3;
      out += static_cast<double>(ranks[0].agreed[step][i]);
      worst = std::max(worst, std::fabs(in - out));
    }
    for (const auto& r : ranks) {
      for (std::size_t step = 0; step < steps; ++step) {
        largest = std::max(largest, std::fabs(static_cast<double>(r.worker_residual[step][i])));
      }
    }
  }
  CHECK(largest < 20);
  // residuals of workers and server, and 5 standard deviations of two losses a step
  CHECK(worst < 3 * largest + 5 * 2 * largest / 64 * std::sqrt(static_cast<double>(steps)));
}

TEST_CASE("residuals in a storage of one's own") {
  const auto train_with = [](const auto& codec) {
    return on_ranks(3, [&](onebit::threads transport) {
      training data;
      auto o = onebit::one_bit_adam(data.groups(), transport, {.freeze = {.after = 4}},
                                    onebit::gather_scatter{codec});
      while (o.steps() < 30) train(o, data);
      std::vector<double> all{static_cast<double>(o.state_bytes())};
      for (const auto& p : data.params) all.insert(all.end(), p.begin(), p.end());
      return all;
    })[0];
  };
  const auto floats = train_with(onebit::sign<>{});
  const auto halves = train_with(onebit::residual_in<in_bf16, onebit::sign<>>{});
  CHECK(halves[0] < floats[0]);
  double moved = 0, apart = 0;
  const training before;
  std::size_t i = 1;
  for (const auto& p : before.params) {
    for (const float x : p) {
      moved += std::fabs(floats[i] - static_cast<double>(x));
      apart += std::fabs(floats[i] - halves[i]);
      ++i;
    }
  }
  CHECK(apart > 0);
  CHECK(apart < moved / 4);  // signs that turn by rounding turn back by error feedback
}

namespace {

struct called_bf16 : in_bf16 {
  static constexpr const char* name = "bf16";
};

/// A compressor without a name, as one may write it.
struct unnamed : onebit::sign<> {
  void name() const = delete;
};

}  // namespace

TEST_CASE("residuals in a storage of one's own: what it is called tells it from others") {
  const onebit::sign<> codec;
  CHECK(onebit::residual_in<called_bf16, onebit::sign<>>{}.name() ==
        codec.name() + ", residuals in bf16");
  CHECK(onebit::residual_in<in_bf16, onebit::sign<>>{}.name() ==
        codec.name() + ", residuals in a form of their own");
  CHECK(onebit::residual_in<onebit::residuals_in_int8, onebit::sign<>>{}.name() ==
        onebit::residual_in<onebit::int8, onebit::sign<>>{}.name());
  CHECK(onebit::residual_in<onebit::int8, unnamed>{}.name() == "custom, residuals in 8 bits");
}

namespace {

/// Trains, with steps that a rank calls off before each one that communicates; empty: they change
/// nothing. And what state the optimizer has at last, in bytes per parameter.
struct outcome_of_skips {
  std::string problem;
  double bytes = 0;
};
template <class G, class Make>
outcome_of_skips with_skips(onebit::threads transport, const std::vector<std::size_t>& sizes,
                            const Make& make) {
  training<G> data(sizes), undisturbed(sizes);
  auto o = make(data.groups(), transport);
  outcome_of_skips result;
  while (o.steps() < 20) {
    const std::uint64_t step = o.steps();
    const auto plan = o.schedule().plan(step, 0.01F);
    // the freeze stays done
    if ((plan.average_gradient || plan.exchange) && step != 4) {
      const std::uint64_t before = data.digest();
      const std::string state = saved(o);
      data.compute_gradients(o.rank(), step);
      if (o.rank() == static_cast<int>(step % 3)) {
        data.grads[2][step * 40] = std::numeric_limits<float>::infinity();
      }
      const bool skipped = o.step(0.01F).skipped;
      if (!skipped || data.digest() != before || saved(o) != state) {
        result.problem += " step " + std::to_string(step);
      }
    }
    train(o, data);
  }
  auto again = make(undisturbed.groups(), transport);
  while (again.steps() < 20) train(again, undisturbed);
  if (undisturbed.digest() != data.digest()) result.problem += " the end";
  result.bytes = static_cast<double>(o.state_bytes()) / static_cast<double>(o.n_parameters());
  return result;
}

}  // namespace

TEST_CASE("residuals in any storage are taken back as they were stored, tails of tensors too") {
  const auto by = [](const auto& codec) {
    return [codec](const auto& groups, auto t) {
      return onebit::one_bit_adam(groups, t, {.freeze = {.after = 4}, .refreshes = 0},
                                  onebit::gather_scatter{codec});
    };
  };
  const auto compact = by(onebit::residual_in<onebit::int8, onebit::sign<>>{});
  const auto halves = by(onebit::residual_in<in_bf16, onebit::sign<>>{});
  const auto twice = by(onebit::residual_in<in_two_floats, onebit::sign<>>{});
  const auto rarely = [](const auto& groups, auto t) {
    return onebit::zero_one_adam<onebit::int8, onebit::bf16>(
        groups, t,
        {.schedule = {.kappa = 1, .warmup_steps = 8, .doubling_steps = 6, .max_interval = 4}},
        onebit::gather_scatter{onebit::residual_in<onebit::int8, onebit::sign<>>{}});
  };
  const std::vector<std::size_t> sizes = {33, 0, 1000, 1, 31, 1 << 17};
  on_ranks(3, [&](onebit::threads t) {
    CHECK(with_skips<float>(t, sizes, compact).problem == "");
    CHECK(with_skips<const float>(t, sizes, compact).problem == "");
    CHECK(with_skips<float>(t, sizes, halves).problem == "");
    CHECK(with_skips<const float>(t, sizes, halves).problem == "");
    CHECK(with_skips<float>(t, sizes, twice).problem == "");
    const auto scratch = with_skips<float>(t, sizes, rarely);
    const auto read_only = with_skips<const float>(t, sizes, rarely);
    CHECK(scratch.problem == "");
    CHECK(read_only.problem == "");
    CHECK(read_only.bytes > scratch.bytes);
    CHECK(read_only.bytes <= scratch.bytes + 1.04);
    return 0;
  });
}

TEST_CASE("residuals in 8 bits: bytes of state per parameter") {
  for (const int n_ranks : {2, 4, 8}) {
    const auto bytes = on_ranks(n_ranks, [&](onebit::threads transport) {
      training data({1 << 18, 100000, 0, 3 << 15});
      const onebit::one_bit_adam_options o{.freeze = {.after = 4}, .refreshes = 0};
      auto optimizer = onebit::one_bit_adam<onebit::int8>(
          data.groups(), transport, o,
          onebit::gather_scatter{onebit::residual_in<onebit::int8, onebit::sign<>>{}});
      while (optimizer.steps() < 8) train(optimizer, data);
      return static_cast<double>(optimizer.state_bytes()) /
             static_cast<double>(optimizer.n_parameters());
    });
    for (const double b : bytes) CHECK(b <= 2.6 + 1.04 / n_ranks);
  }
}
