// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Masters that are not their parameters': steps take the parameters.

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <onebit/any_optimizer.hpp>
#include <string>
#include <utility>
#include <vector>

#include "../support/training.hpp"

using namespace onebit_test;
using onebit::any_element;
using onebit::bf16;
using onebit::fp16;

namespace {

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
  [[nodiscard]] std::vector<onebit::param_group<any_element>> groups() {
    std::vector<onebit::param_group<any_element>> g(1);
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
  onebit::any_optimizer (*make)(with_masters&, onebit::threads, onebit::host);
};
const algorithm algorithms[] = {
    {"adam", false,
     [](with_masters& data, onebit::threads t, onebit::host on) -> onebit::any_optimizer {
       return onebit::adam(data.groups(), t, {}, on);
     }},
    {"lamb", false,
     [](with_masters& data, onebit::threads t, onebit::host on) -> onebit::any_optimizer {
       return onebit::lamb(data.groups(), t, {}, on);
     }},
    {"one_bit_adam", false,
     [](with_masters& data, onebit::threads t, onebit::host on) -> onebit::any_optimizer {
       return onebit::one_bit_adam(data.groups(), t, frozen_after(3), {}, on);
     }},
    {"one_bit_lamb", false,
     [](with_masters& data, onebit::threads t, onebit::host on) -> onebit::any_optimizer {
       return onebit::one_bit_lamb(data.groups(), t, {.freeze = {.after = 3}, .refreshes = 4}, {},
                                   on);
     }},
    {"zero_one_adam", true,
     [](with_masters& data, onebit::threads t, onebit::host on) -> onebit::any_optimizer {
       return onebit::zero_one_adam(data.groups(), t, {.schedule = {.kappa = 2, .warmup_steps = 4}},
                                    {}, on);
     }},
};

/// Trains twice: with masters of the parameters' values, and with what `other` leaves there. The
/// same bits after each step, on every instruction set.
template <class F>
void check_same(const F& other) {
  for (const auto set : {onebit::isa::scalar, onebit::isa::avx2, onebit::isa::avx512}) {
    if (set > onebit::host::best_isa()) continue;
    for (const algorithm& a : algorithms) {
      CAPTURE(std::string(a.name));
      on_ranks(2, [&](onebit::threads t) {
        with_masters good, bad;
        good.set_masters();
        other(bad, 0, t.rank(), a);
        auto o = a.make(good, t, onebit::host(1, set));
        auto p = a.make(bad, t, onebit::host(1, set));
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
    auto o = algorithms[0].make(data, t, onebit::host());
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
    auto o = algorithms[0].make(data, t, onebit::host());
    for (std::size_t i = 0; i < data.n; ++i) data.x_grads[i] = bf16{}, data.y_grads[i] = fp16{};
    CHECK_FALSE(o.step(1e-3F).skipped);
    CHECK(data.x_master[3] == 1.003F - 1e-5F * 1.003F);
    return 0;
  });
}
