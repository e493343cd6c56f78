// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// v in 8 bits, in bf16, and in a storage of one's own, while it is constant: how near it is, what
// it takes, and that nothing else changes.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <sstream>

#include "../support/training.hpp"

using namespace onebit_test;

namespace {

using lanes = onebit::portable_lanes;
using word = onebit::detail::byte_word;

/// A word of denominators there and back, with this added before rounding.
lanes::value there_and_back(const lanes::value& d, float dither = 0) {
  std::byte bytes[word::bytes];
  word::store<lanes>(bytes, d, lanes::set(dither));
  return word::load<lanes>(bytes);
}

template <class V>
constexpr auto make_with = [](auto& data, auto t, std::uint64_t refreshes) {
  onebit::one_bit_adam_options o = frozen_after(3);
  o.refreshes = refreshes;
  return onebit::one_bit_adam<V>(data.groups(), t, o);
};
constexpr auto make = make_with<onebit::int8>;

/// Makes 1-bit Adam, or 1-bit LAMB, with v stored as V.
template <class V>
struct of_adam {
  auto operator()(auto& data, auto t, std::uint64_t refreshes) const {
    return make_with<V>(data, t, refreshes);
  }
};
template <class V>
struct of_lamb {
  auto operator()(auto& data, auto t, std::uint64_t) const {
    const onebit::one_bit_lamb_options o{.freeze = {.after = 3}};
    return onebit::one_bit_lamb<V>(data.groups(), t, o);
  }
};

onebit::zero_one_adam_options rarely_refreshed() {
  onebit::zero_one_adam_options o;
  o.adam.beta2 = 0.99;
  o.schedule = {.kappa = 1, .warmup_steps = 8, .doubling_steps = 6, .max_interval = 4};
  return o;  // v is refreshed in steps 0, 1, 3, 7, 15, 31, 63, and no float after step 15
}

/// The largest of the word stands for all: 4 bytes for 32 elements.
struct largest_of_word {
  static constexpr std::size_t bytes = 4;
  static constexpr std::byte idle{0x3F};
  static constexpr const char* name = "the largest of a word";
  template <class L>
  static ONEBIT_HD typename L::value load(const std::byte* in) {
    float d;
    std::memcpy(&d, in, sizeof d);
    return L::set(d);
  }
  template <class L>
  static ONEBIT_HD void store(std::byte* out, const typename L::value& d,
                              const typename L::value&) {
    const float most = L::fold_max(d);
    std::memcpy(out, &most, sizeof most);
  }
};

}  // namespace

TEST_CASE("a denominator in 8 bits is as near as its distance from the largest of its word says") {
  for (const double largest : {1e-17, 1e-8, 3e-4, 1.0, 1e4, 1e18}) {
    for (const double smaller : {1.0, 200.0, 5e4}) {
      double worst = 0;
      for (int i = 0; i < 500; ++i) {
        lanes::value d;
        for (int l = 0; l < 32; ++l) {
          const double at = largest / smaller * (1 - 0.5 * (l * 500 + i) / 16000);
          d.lane[l] = static_cast<float>(at);
        }
        d.lane[7] = static_cast<float>(largest);
        const lanes::value back = there_and_back(d);
        for (int l = 0; l < 32; ++l) {
          const double exact = static_cast<double>(d.lane[l]);
          worst = std::max(worst, std::fabs(static_cast<double>(back.lane[l]) / exact - 1));
        }
      }
      CAPTURE(largest);
      CAPTURE(smaller);
      // half a step of q is 2 / q of d, q >= 255 (d / 4 largest)^(1/4)
      const double least_q = 255 * std::pow(1 / (4 * smaller), 0.25);
      CHECK(worst < 2 / least_q + 5 / (least_q * least_q));
    }
  }
}

TEST_CASE("a denominator in 8 bits is never 0, and by chance it is the right one on average") {
  lanes::value d = lanes::set(0.0F);
  for (int l = 0; l < 32; ++l) CHECK(there_and_back(d).lane[l] > 0);
  d.lane[3] = 1;
  for (int l = 0; l < 32; ++l) CHECK(there_and_back(d).lane[l] > 0);
  // rounded up as often as it is nearer to the upper one
  d = lanes::set(0.7F);
  const double q = 255 * std::pow(0.7, 0.25), up = q - std::floor(q);
  int n_up = 0;
  constexpr int n = 1000;
  for (int i = 0; i < n; ++i) {
    const float x = there_and_back(d, (static_cast<float>(i) + 0.5F) / n - 0.5F).lane[0];
    n_up += std::fabs(255 * std::pow(static_cast<double>(x), 0.25) - std::ceil(q)) < 0.1;
  }
  CHECK(std::fabs(n_up / static_cast<double>(n) - up) < 0.01);
}

TEST_CASE("a number in bf16 is as near as a unit, on average itself, and what is stored stays") {
  using half = onebit::detail::half_word;
  const auto stored = [](float x, float dither) {
    std::byte bytes[half::bytes];
    half::store<lanes>(bytes, lanes::set(x), lanes::set(dither));
    return half::load<lanes>(bytes).lane[13];
  };
  for (std::uint64_t i = 0; i < 3000; ++i) {
    const float x = std::ldexp(1 + std::fabs(noise(2 * i)), static_cast<int>(i % 120) - 60),
                dither = noise(2 * i + 1) / 2.01F;
    const float nearest = onebit::to_float(onebit::to_bf16(x));
    CHECK(stored(x, 0) == nearest);
    CHECK(std::fabs(stored(x, dither) - x) <= x * 0x1p-7F);
    CHECK(stored(nearest, dither) == nearest);
    CHECK(stored(std::ldexp(1.0F, static_cast<int>(i % 120) - 60), dither) ==
          std::ldexp(1.0F, static_cast<int>(i % 120) - 60));
  }
  CHECK(stored(0, 0.3F) == 0);
  // what is too large stays a number
  for (const float x : {INFINITY, 3.4e38F}) {
    for (const float dither : {-0.3F, 0.0F, 0.3F}) CHECK(stored(x, dither) >= 0x1p126F);
  }
  for (const float x : {1.001F, 1.9990F, 1.3F, 1.503F}) {
    double sum = 0;
    constexpr int n = 4096;
    for (int i = 0; i < n; ++i) {
      sum += static_cast<double>(stored(x, (static_cast<float>(i) + 0.5F) / n - 0.5F));
    }
    // a unit is 2^-7 here: off by less than what so many draws leave
    CHECK(std::fabs(sum / n - static_cast<double>(x)) < 2 * 0x1p-7 / n);
  }
}

TEST_CASE("v in bf16, and in a storage of one's own: bytes per parameter, and who says so") {
  const auto each = [](auto v, std::uint64_t refreshes) {
    return on_ranks(4, [&](onebit::threads t) {
      training<> data({40000, 33, 4096});
      auto o = make_with<decltype(v)>(data, t, refreshes);
      while (o.steps() < 20) CHECK_FALSE(train(o, data).skipped);
      for (const auto other : o.tell_all(data.digest())) CHECK(other == data.digest());
      return static_cast<double>(o.state_bytes()) / static_cast<double>(o.n_parameters());
    });
  };
  // as above, with 2 and 1/8 in place of 33/32
  CHECK(each(onebit::bf16{}, 0).at(0) < 6.27 + 4.0 / 4);
  CHECK(each(onebit::bf16{}, 0).at(0) > 6.2 + 4.0 / 4);
  CHECK(each(largest_of_word{}, 0).at(0) < 4.4 + 4.0 / 4);

  // a checkpoint says how v was stored
  on_ranks(1, [&](onebit::threads t) {
    training<> data;
    auto own = make_with<largest_of_word>(data, t, 0);
    auto halves = make_with<onebit::bf16>(data, t, 0);
    std::istringstream in(saved(halves));
    std::string said;
    try {
      own.load(in);
    } catch (const onebit::checkpoint_error& e) {
      said = e.what();
    }
    CAPTURE(said);
    CHECK(said.find("bf16") != std::string::npos);
    CHECK(said.find("the largest of a word") != std::string::npos);
    return 0;
  });
}

TEST_CASE_TEMPLATE("v in bf16 in 1-bit Adam and 1-bit LAMB: parameters near those of floats", Makes,
                   std::pair<of_adam<onebit::bf16>, of_adam<float>>,
                   std::pair<of_lamb<onebit::bf16>, of_lamb<float>>) {
  on_ranks(2, [&](onebit::threads t) {
    const Makes make;
    training<> halves({40000, 33}), floats({40000, 33});
    auto a = make.first(halves, t, 0);
    auto b = make.second(floats, t, 0);
    while (a.steps() < 24) {
      CHECK_FALSE(train(a, halves).skipped);
      CHECK_FALSE(train(b, floats).skipped);
    }
    const auto n = static_cast<double>(a.n_parameters());
    const auto saved_bytes = static_cast<double>(b.state_bytes() - a.state_bytes());
    CHECK(saved_bytes > 1.99 * n);
    double moved = 0, apart = 0;
    std::size_t n_apart_asleep = 0;
    const training<> first({40000, 33});
    for (std::size_t i = 0; i < 40000; ++i) {
      moved += std::fabs(static_cast<double>(floats.params[0][i] - first.params[0][i]));
      apart += std::fabs(static_cast<double>(floats.params[0][i] - halves.params[0][i]));
    }
    CHECK(apart < 0.01 * moved);
    for (std::size_t i = 5; i < 33; i += 17) {  // without gradients, nor decay
      n_apart_asleep += halves.params[1][i] != first.params[1][i];
    }
    CHECK(n_apart_asleep == 0);
    return 0;
  });
}

TEST_CASE_TEMPLATE("small v: what never had a gradient stays where it is, after a thaw, too", Make,
                   of_adam<float>, of_adam<onebit::int8>, of_adam<onebit::bf16>,
                   of_adam<largest_of_word>, of_lamb<onebit::bf16>) {
  on_ranks(2, [&](onebit::threads t) {
    const std::vector<std::size_t> sizes = {33, 4000, 700};  // the first has decay
    const training<> first(sizes);
    training<> data(sizes);
    auto o = Make{}(data, t, 0);
    while (o.steps() < 24) {
      if (o.steps() == 9) o.thaw(6);
      CHECK_FALSE(train(o, data).skipped);
    }
    std::size_t n_moved = 0, n_asleep_moved = 0;
    for (std::size_t k = 1; k < sizes.size(); ++k) {
      for (std::size_t i = 0; i < sizes[k]; ++i) {
        const bool moved = data.params[k][i] != first.params[k][i];
        (i % 17 == 5 ? n_asleep_moved : n_moved) += moved;
      }
    }
    CHECK(n_moved > 4000);
    CHECK(n_asleep_moved == 0);
    return 0;
  });
}

TEST_CASE("0/1 Adam with v in bf16: bytes per parameter, parameters near those of floats") {
  on_ranks(2, [&](onebit::threads t) {
    training<> halves({40000, 33}), floats({40000, 33});
    auto a = onebit::zero_one_adam<onebit::bf16>(halves.groups(), t, rarely_refreshed());
    auto b = onebit::zero_one_adam(floats.groups(), t, rarely_refreshed());
    while (a.steps() < 36) {
      CHECK_FALSE(train(a, halves).skipped);
      CHECK_FALSE(train(b, floats).skipped);
    }
    const auto n = static_cast<double>(a.n_parameters());
    CHECK(static_cast<double>(a.state_bytes()) < (14.4 + 4.0 / 2) * n);
    double moved = 0, apart = 0;
    const training<> first({40000, 33});
    for (std::size_t i = 0; i < 40000; ++i) {
      moved += std::fabs(static_cast<double>(floats.params[0][i] - first.params[0][i]));
      apart += std::fabs(static_cast<double>(floats.params[0][i] - halves.params[0][i]));
    }
    CHECK(apart < 0.01 * moved);
    return 0;
  });
}

TEST_CASE("v in 8 bits: bytes per parameter, equal ranks, and parameters near those of floats") {
  on_ranks(4, [&](onebit::threads t) {
    training<> bytes({40000, 33, 4096}), floats({40000, 33, 4096});
    onebit::one_bit_adam_options o = frozen_after(3);
    auto a = make(bytes, t, 0);
    auto b = onebit::one_bit_adam(floats.groups(), t, o);
    for (int i = 0; i < 20; ++i) {
      CHECK_FALSE(train(a, bytes).skipped);
      CHECK_FALSE(train(b, floats).skipped);
    }
    // carried 4, v 33/32, what was agreed and the mask 1/8 each, 1 for the server with 4 ranks;
    // scales, and words that are not full, are the rest
    const double each =
        static_cast<double>(a.state_bytes()) / static_cast<double>(a.n_parameters());
    CHECK(each < 5.3 + 4.0 / 4);
    double moved = 0, apart = 0;
    training<> first({40000, 33, 4096});
    for (std::size_t i = 0; i < 40000; ++i) {
      moved += std::fabs(static_cast<double>(floats.params[0][i] - first.params[0][i]));
      apart += std::fabs(static_cast<double>(floats.params[0][i] - bytes.params[0][i]));
    }
    CHECK(apart < 0.02 * moved);
    for (const auto other : a.tell_all(bytes.digest())) CHECK(other == bytes.digest());
    return 0;
  });
}

TEST_CASE_TEMPLATE(
    "small v: bad steps of every kind change nothing, a checkpoint goes on, it thaws", Make,
    of_adam<onebit::int8>, of_adam<onebit::bf16>, of_adam<largest_of_word>, of_lamb<onebit::bf16>) {
  const Make make;
  for (const std::uint64_t refreshes : {0, 2}) {
    const auto run = [&](bool disturbed) {
      return on_ranks(2, [&](onebit::threads t) {
        training<> data;
        std::optional o = make(data, t, refreshes);
        for (int i = 0; i < 24; ++i) {
          if (i == 18) o->thaw(2);
          if (disturbed) {
            const std::string before = saved(*o);
            const auto params = data.params;
            data.compute_gradients(t.rank(), o->steps());
            if (t.rank() == 1) data.grads[2][77] = NAN;
            CHECK(o->step(0.01F).skipped);
            CHECK(data.params == params);
            // but for counters of the schedule, which the next step repeats, nothing has changed
            if (i % 5 == 4 && i < 18) {
              std::istringstream in(saved(*o));
              o.reset();
              o.emplace(make(data, t, refreshes));
              o->load(in);
              CHECK(saved(*o) == before);
            }
          }
          CHECK_FALSE(train(*o, data).skipped);
        }
        return data.digest();
      });
    };
    CHECK(run(true) == run(false));
  }
}

TEST_CASE("v in 8 bits: elements whose first gradient comes after the freeze move as with floats") {
  on_ranks(2, [&](onebit::threads t) {
    training<> bytes({640}), floats({640});
    onebit::one_bit_adam_options o = frozen_after(3);
    o.refreshes = 2;
    auto a = onebit::one_bit_adam<onebit::int8>(bytes.groups(), t, o);
    auto b = onebit::one_bit_adam(floats.groups(), t, o);
    for (std::uint64_t step = 0; step < 14; ++step) {
      bytes.compute_gradients(t.rank(), step);
      for (std::size_t i = 0; i < 640; i += 8) {
        if (step < 4)
          bytes.grads[0][i] = 0;  // late, beside elements that were there from the start
      }
      floats.grads = bytes.grads;
      CHECK_FALSE(a.step(0.01F).skipped);
      CHECK_FALSE(b.step(0.01F).skipped);
    }
    const training<> first({640});
    double moved = 0, apart = 0;
    for (std::size_t i = 0; i < 640; i += 8) {
      moved += std::fabs(static_cast<double>(floats.params[0][i] - first.params[0][i]));
      apart += std::fabs(static_cast<double>(floats.params[0][i] - bytes.params[0][i]));
    }
    CHECK(moved > 0.5);
    CHECK(apart < 0.05 * moved);  // d is as near as 3%, and what is compressed is not the same then
    return 0;
  });
}

TEST_CASE("a variance in 8 bits: 0 stays 0, what is not does not become 0, its root is as near") {
  using root = onebit::detail::byte_root;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    float v[32], got[32];
    float most = 0;
    for (std::size_t i = 0; i < 32; ++i) {
      const float x = std::ldexp(1.5F + noise(seed * 64 + i) / 4, -static_cast<int>(i));
      v[i] = i % 5 == 3 ? 0.0F : x;
      most = std::max(most, v[i]);
    }
    std::byte bytes[root::bytes];
    const float dither = noise(seed * 64 + 40) / 2.1F;  // in (-1/2, 1/2)
    root::store<lanes>(bytes, lanes::load(v), lanes::set(dither));
    lanes::store(got, root::load<lanes>(bytes));
    for (std::size_t i = 0; i < 32; ++i) {
      CHECK((got[i] == 0) == (v[i] == 0));
      if (v[i] == 0) continue;
      // a step of q is 4 / q of the root, and chance is less than a step off
      const double d = std::sqrt(static_cast<double>(v[i])),
                   q = 255 * std::pow(d / std::sqrt(static_cast<double>(most)) / 2, 0.25);
      CHECK(std::fabs(std::sqrt(static_cast<double>(got[i])) - d) <= d * (4 / (q - 1)) * 1.1);
    }
    // what it says is stored as it is, by whatever chance
    std::byte again[root::bytes];
    root::store<lanes>(again, lanes::load(got), lanes::set(0.498F));
    CHECK(std::equal(bytes, bytes + root::bytes, again));
  }
}

namespace {

constexpr auto make_compact = [](auto& data, auto t) {
  return onebit::zero_one_adam<onebit::int8, onebit::bf16>(
      data.groups(), t, rarely_refreshed(),
      onebit::gather_scatter{onebit::residual_in<onebit::int8, onebit::sign<>>{}});
};

}  // namespace

TEST_CASE("0/1 Adam, v in 8 bits, m in bf16: bytes per parameter, parameters near the floats'") {
  const std::vector<std::size_t> sizes = {1 << 18, 33, 100000};
  for (const int w : {2, 8}) {
    on_ranks(w, [&](onebit::threads t) {
      training<> small(sizes), smaller(sizes), floats(sizes);
      auto a =
          onebit::zero_one_adam<onebit::int8, onebit::bf16>(small.groups(), t, rarely_refreshed());
      auto b = make_compact(smaller, t);
      auto c = onebit::zero_one_adam(floats.groups(), t, rarely_refreshed());
      while (a.steps() < 36) {
        CHECK_FALSE(train(a, small).skipped);
        CHECK_FALSE(train(b, smaller).skipped);
        CHECK_FALSE(train(c, floats).skipped);
        if (b.steps() == 15) CHECK(b.state_bytes() > 10 * b.n_parameters());  // v still moves
      }
      const auto n = static_cast<double>(a.n_parameters());
      CHECK(static_cast<double>(a.state_bytes()) < (11.4 + 4.0 / w) * n);
      CHECK(static_cast<double>(b.state_bytes()) < (8.35 + 1.04 / w) * n);
      const training<> first(sizes);
      double moved = 0, apart = 0;
      for (std::size_t i = 0; i < sizes[0]; ++i) {
        moved += std::fabs(static_cast<double>(floats.params[0][i] - first.params[0][i]));
        apart += std::fabs(static_cast<double>(floats.params[0][i] - small.params[0][i]));
      }
      CHECK(apart < 0.05 * moved);
      return 0;
    });
  }
}

TEST_CASE("0/1 Adam with small state: bad steps change nothing, a checkpoint goes on, it thaws") {
  const auto run = [&](bool disturbed) {
    return on_ranks(2, [&](onebit::threads t) {
      training<> data;
      std::optional o = make_compact(data, t);
      for (int i = 0; i < 48; ++i) {
        if (i == 40) o->thaw(6);
        const auto plan = o->schedule().plan(o->steps(), 0.01F);
        if (disturbed && (plan.average_gradient || plan.exchange)) {
          const std::string before = saved(*o);
          const auto params = data.params;
          data.compute_gradients(t.rank(), o->steps());
          if (t.rank() == 1) data.grads[2][77] = NAN;
          CHECK(o->step(0.01F).skipped);
          CHECK(data.params == params);
          CAPTURE(i);
          CHECK(saved(*o) == before);
          if (i % 5 == 4 || i > 28) {
            // ranks of 0/1 Adam differ between exchanges, and an optimizer is built on equal ones
            const training<> fresh;
            data.params = fresh.params;
            o.reset();
            o.emplace(make_compact(data, t));
            for (std::size_t k = 0; k < params.size(); ++k) {
              std::copy(params[k].begin(), params[k].end(), data.params[k].begin());
            }
            std::istringstream in(before);
            o->load(in);
            CHECK(saved(*o) == before);
          }
        }
        CHECK_FALSE(train(*o, data).skipped);
      }
      return data.digest() + o->state_bytes();
    });
  };
  CHECK(run(true) == run(false));
}
