// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// What steps take for parameters of 2 bytes, and how they round them: masters that are not their
// parameters', stochastic rounding.

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <onebit/any_optimizer.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "../support/training.hpp"

using namespace onebit_test;
using onebit::any_element;
using onebit::bf16;
using onebit::fp16;

namespace {

using groups = std::vector<onebit::param_group<any_element>>;

/// A tensor of bf16 and one of fp16, with masters.
struct with_masters {
  static constexpr std::size_t n = 4500;  // a tile, and a part of one that ends within a word
  std::vector<bf16> x, x_grads;
  std::vector<fp16> y, y_grads;
  std::vector<float> x_master, y_master;

  with_masters() : x(n), x_grads(n), y(n), y_grads(n), x_master(n), y_master(n) { write(0); }
  /// Weights around so much, in 2 bytes: none that the masters of others round to.
  void write(float middle) {
    for (std::size_t i = 0; i < n; ++i) {
      x[i] = onebit::to_bf16(middle + noise(i));
      y[i] = onebit::to_fp16(middle + noise(n + i));
    }
  }
  void set_masters() {
    for (std::size_t i = 0; i < n; ++i) {
      x_master[i] = onebit::to_float(x[i]);
      y_master[i] = onebit::to_float(y[i]);
    }
  }
  [[nodiscard]] groups tensors() {
    groups g(1);
    g[0].weight_decay = 0.01F;
    g[0].tensors = {{std::span(x), std::span(x_grads), x_master},
                    {std::span(y), std::span(y_grads), y_master}};
    return g;
  }
  void step(onebit::any_optimizer& o) {
    for (std::size_t i = 0; i < n; ++i) {
      const float g =
          noise(7919 * (o.steps() + 1) + 104729 * static_cast<unsigned>(o.rank() + 1) + i);
      x_grads[i] = onebit::to_bf16(g);
      y_grads[i] = onebit::to_fp16(g);
    }
    CHECK_FALSE(o.step(1e-3F).skipped);
  }
  [[nodiscard]] bool operator==(const with_masters& o) const {
    return x == o.x && y == o.y && x_master == o.x_master && y_master == o.y_master;
  }
};

struct algorithm {
  const char* name;
  bool has_anchor;
  onebit::any_optimizer (*make)(const groups&, onebit::threads, onebit::host);
};
const algorithm algorithms[] = {
    {"adam", false,
     [](const groups& g, onebit::threads t, onebit::host on) -> onebit::any_optimizer {
       return onebit::adam(g, t, {}, on);
     }},
    {"lamb", false,
     [](const groups& g, onebit::threads t, onebit::host on) -> onebit::any_optimizer {
       return onebit::lamb(g, t, {}, on);
     }},
    {"one_bit_adam", false,
     [](const groups& g, onebit::threads t, onebit::host on) -> onebit::any_optimizer {
       return onebit::one_bit_adam(g, t, frozen_after(3), on);
     }},
    {"one_bit_lamb", false,
     [](const groups& g, onebit::threads t, onebit::host on) -> onebit::any_optimizer {
       return onebit::one_bit_lamb(g, t, {.freeze = {.after = 3}, .refreshes = 4}, on);
     }},
    {"zero_one_adam", true,
     [](const groups& g, onebit::threads t, onebit::host on) -> onebit::any_optimizer {
       return onebit::zero_one_adam(
           g, t,
           {.schedule = {.kappa = 2, .warmup_steps = 4, .doubling_steps = 2, .max_interval = 4}},
           on);
     }},
};

/// Trains twice: with masters of the parameters' values, and with what `other` leaves there. The
/// same bits after each step, on every instruction set.
template <class F>
void check_same(const F& other) {
  for (const auto set : {onebit::isa::scalar, onebit::host::best_isa()}) {
    for (const algorithm& a : algorithms) {
      CAPTURE(std::string(a.name));
      on_ranks(2, [&](onebit::threads t) {
        with_masters good, bad;
        good.set_masters();
        other(bad, 0, t.rank(), a);
        auto o = a.make(good.tensors(), t, onebit::host(1, set));
        auto p = a.make(bad.tensors(), t, onebit::host(1, set));
        for (std::uint64_t i = 1; i <= 12; ++i) {
          good.step(o);
          bad.step(p);
          CHECK(good == bad);
          if (other(bad, i, t.rank(), a)) {
            good.x = bad.x;
            good.y = bad.y;
            good.set_masters();
          }
        }
        return 0;
      });
    }
  }
}

}  // namespace

TEST_CASE("masters that nobody has set, or that are of others: the parameters count") {
  check_same([](with_masters& data, std::uint64_t steps, int rank, const algorithm&) {
    if (steps > 0) return false;
    for (std::size_t i = 0; i < data.n; ++i) {  // on each rank others
      data.x_master[i] = rank == 0 ? 0.0F : 5.0F + noise(i);
      data.y_master[i] = rank == 0 ? std::numeric_limits<float>::quiet_NaN() : 5.0F + noise(i);
    }
    return true;
  });
}

TEST_CASE("weights that a trainer writes between two steps without their masters count") {
  check_same([](with_masters& data, std::uint64_t steps, int, const algorithm& a) {
    if (steps == 0) data.set_masters();
    if (steps != 2 && (steps != 7 || a.has_anchor)) return false;
    data.write(3.0F * static_cast<float>(steps));
    return true;
  });
}

TEST_CASE("a parameter that is NaN counts, others keep their masters") {
  on_ranks(1, [](onebit::threads t) {
    with_masters data;
    data.set_masters();
    auto o = algorithms[0].make(data.tensors(), t, onebit::host());
    data.step(o);
    const auto before = data;
    data.x[40] = {0x7FC0};
    data.y[41] = {0x7E00};
    data.step(o);
    for (std::size_t i = 0; i < data.n; ++i) {
      CHECK(std::isnan(data.x_master[i]) == (i == 40));
      CHECK(std::isnan(onebit::to_float(data.x[i])) == (i == 40));
      CHECK(std::isnan(data.y_master[i]) == (i == 41));
      CHECK(std::isnan(onebit::to_float(data.y[i])) == (i == 41));
      if (i != 40) CHECK(std::fabs(data.x_master[i] - before.x_master[i]) < 2e-3F);
    }
    return 0;
  });
}

TEST_CASE("masters within the rounding of their parameters are what steps act on") {
  on_ranks(1, [](onebit::threads t) {
    with_masters data;
    data.set_masters();
    data.x[3] = onebit::to_bf16(1.0F);
    data.x_master[3] = 1.003F;
    auto o = algorithms[0].make(data.tensors(), t, onebit::host());
    for (std::size_t i = 0; i < data.n; ++i) data.x_grads[i] = bf16{}, data.y_grads[i] = fp16{};
    CHECK_FALSE(o.step(1e-3F).skipped);
    CHECK(data.x_master[3] == 1.003F - 1e-5F * 1.003F);
    return 0;
  });
}

namespace {

/// bf16 alone, in a group that rounds stochastically.
struct short_training {
  static constexpr std::size_t n = 9001;
  std::vector<bf16> x = std::vector<bf16>(n), grads = std::vector<bf16>(n);

  explicit short_training(bool at_one = false) {
    for (std::size_t i = 0; i < n; ++i) x[i] = onebit::to_bf16(at_one ? 1.0F : noise(i));
  }
  template <class P = any_element>
  [[nodiscard]] std::vector<onebit::param_group<P>> tensors(bool stochastic = true) {
    std::vector<onebit::param_group<P>> g(1);
    g[0].weight_decay = 0.1F;
    g[0].stochastic_rounding = stochastic;
    for (std::size_t first = 0; first < n; first += 4500) {
      const std::size_t most = n - first < 4500 ? n - first : 4500;
      g[0].tensors.push_back(
          {std::span(x).subspan(first, most), std::span(grads).subspan(first, most)});
    }
    return g;
  }
  template <class Optimizer>
  void step(Optimizer& o) {
    for (std::size_t i = 0; i < n; ++i) {
      grads[i] = onebit::to_bf16(
          noise(7919 * (o.steps() + 1) + 104729 * static_cast<unsigned>(o.rank() + 1) + i));
    }
    CHECK_FALSE(o.step(1e-3F).skipped);
  }
  [[nodiscard]] double mean() const {
    double sum = 0;
    for (const bf16 v : x) sum += static_cast<double>(onebit::to_float(v));
    return sum / static_cast<double>(n);
  }
  void decay(onebit::any_optimizer o) {
    for (int i = 0; i < 2000; ++i) CHECK_FALSE(o.step(1e-4F).skipped);
  }
};

}  // namespace

TEST_CASE("stochastic rounding: a decay too small for bf16 is not lost") {
  // an element goes down by 2^-8 about five times: its standard deviation is 0.009
  const double most = 5 * 0.009 / std::sqrt(static_cast<double>(short_training::n));
  for (const algorithm& a : {algorithms[0], algorithms[2]}) {
    on_ranks(2, [&](onebit::threads t) {
      CAPTURE(std::string(a.name));
      short_training stochastic(true), nearest(true);
      stochastic.decay(a.make(stochastic.tensors(), t, onebit::host(1)));
      CHECK(std::fabs(stochastic.mean() - std::exp(-0.02)) < most);
      nearest.decay(a.make(nearest.tensors(false), t, onebit::host(1)));
      CHECK(nearest.mean() == 1);
      return 0;
    });
  }
}

TEST_CASE(
    "stochastic rounding: the same bits on all ranks and instruction sets, and after a load") {
  for (const algorithm& a : algorithms) {
    CAPTURE(std::string(a.name));
    const auto train = [&](onebit::isa set, bool stochastic, bool reloads) {
      return on_ranks(2, [&](onebit::threads t) {
        short_training data;
        std::vector<std::vector<bf16>> after_steps;
        auto o = a.make(data.tensors(false), t, onebit::host(1, set));
        for (int i = 0; i < 13; ++i) {
          if (i == 6 && stochastic) o.set_group(0, data.tensors()[0].options());
          data.step(o);
          after_steps.push_back(data.x);
          if (i != 8 || !reloads) continue;
          std::istringstream in(saved(o));
          o = a.make(data.tensors(false), t, onebit::host(1, set));
          o.load(in);
          o.set_group(0, data.tensors()[0].options());
        }
        o.verify();
        return after_steps;
      });
    };
    const auto x = train(onebit::isa::scalar, true, false);
    CHECK(x[0].back() == x[1].back());
    CHECK(train(onebit::isa::scalar, true, true) == x);
    CHECK(train(onebit::isa::scalar, false, false) != x);
    CHECK(train(onebit::host::best_isa(), true, false) == x);
  }
  on_ranks(1, [](onebit::threads t) {
    short_training any, typed;
    auto o = onebit::adam(any.tensors(), t);
    auto p = onebit::adam(typed.tensors<bf16>(), t);
    for (int i = 0; i < 5; ++i) any.step(o), typed.step(p);
    CHECK(any.x == typed.x);
    return 0;
  });
}

TEST_CASE("stochastic rounding is of bf16 without masters, and the same on all ranks") {
  on_ranks(2, [](onebit::threads t) {
    with_masters data;
    data.set_masters();
    std::vector<float> wide(4), wide_grads(4);
    auto g = data.tensors();
    g[0].stochastic_rounding = true;
    const auto refusal = [&] {
      return thrown<onebit::invalid_input>([&] { (void)onebit::adam(g, t); });
    };
    CHECK(refusal() == contains{"its tensor 0 is bf16 with masters: remove the option, or put"});
    g[0].tensors[0].master = {};
    CHECK(refusal() == contains{"its tensor 1 is fp16: remove the option"});
    g[0].tensors[1] = {std::span(wide), std::span(wide_grads)};
    CHECK(refusal() == contains{"its tensor 1 is float: remove the option"});

    short_training own;
    CHECK(thrown<onebit::rank_mismatch>([&] {
            (void)onebit::adam(own.tensors(t.rank() == 0), t);
          }) == contains{"stochastic_rounding"});
    auto o = onebit::adam(own.tensors(false), t);
    auto p = onebit::adam(data.tensors(), t);
    onebit::group_options on = own.tensors()[0].options();
    CHECK(thrown<onebit::invalid_input>([&] { p.set_group(0, on); }) == contains{"with masters"});
    o.set_group(0, on);
    own.step(o);
    const std::string file = saved(o);  // it holds what set_group gave
    o.set_group(0, own.tensors(false)[0].options());
    std::istringstream in(file);
    o.load(in);
    CHECK(saved(o) == file);
    on.stochastic_rounding = t.rank() == 0;
    o.set_group(0, on);
    CHECK(thrown<onebit::rank_mismatch>([&] { (void)o.step(1e-3F); }) ==
          contains{"stochastic_rounding of group 0: 0 on rank 1, 1 on rank 0"});
    return 0;
  });
}
