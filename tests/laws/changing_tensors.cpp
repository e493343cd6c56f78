// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Tensors come and go in a job that runs. Those that stay go on as if nothing had happened: to the
// bit where steps are dense, else with all that was owed of them; new ones are as if they were
// trained alone from there on.

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <onebit/any_optimizer.hpp>
#include <onebit/collective/hierarchical.hpp>
#include <onebit/compress/exact_below.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "../support/training.hpp"
#include "compositions.hpp"
#include "owed.hpp"
#include "shared.hpp"

using namespace onebit_test;
using namespace onebit_test::compositions;

namespace {

using groups = std::vector<onebit::param_group<>>;
constexpr std::size_t sizes[] = {100, 5000, 64, 0, 33};

/// Tensors with a number each, whose gradients and first values depend on it and not on their
/// place.
struct layers {
  explicit layers(std::size_t n_all = 7) : params(n_all), grads(n_all) {
    for (std::size_t i = 0; i < n_all; ++i) {
      params[i].resize(sizes[i % 5]);
      grads[i].resize(sizes[i % 5]);
      for (std::size_t k = 0; k < params[i].size(); ++k) params[i][k] = noise(i * 1000003 + k);
    }
  }
  [[nodiscard]] groups groups_of(const std::vector<std::size_t>& which) {
    groups g(1);
    g[0].weight_decay = 0.01F;
    for (const std::size_t i : which) g[0].tensors.push_back({params[i], grads[i]});
    return g;
  }
  void compute_gradients(int rank, std::uint64_t step) {
    for (std::size_t i = 0; i < params.size(); ++i) {
      for (std::size_t k = 0; k < params[i].size(); ++k) {
        const auto seed = (step * 64 + static_cast<std::uint64_t>(rank)) * 1000003 + i * 50021 + k;
        grads[i][k] = k % 17 == 5 ? 0 : noise(seed) + 0.3F * params[i][k];
      }
    }
  }
  template <class O>
  void train(O& o, std::uint64_t step) {
    compute_gradients(o.rank(), step);
    CHECK_FALSE(o.step(0.01F / static_cast<float>(1 + step % 3)).skipped);
  }
  std::vector<std::vector<float>> params, grads;
};

const std::vector<std::size_t> before = {0, 1, 2, 3, 4};
const std::vector<std::size_t> after = {4, 5, 2, 1, 6};  // 0 and 3 go, 5 and 6 come
const std::vector<std::size_t> from = {4, onebit::new_tensor, 2, 1, onebit::new_tensor};

/// Optimizers of groups.
constexpr auto make_adam = [](const groups& g, auto t) { return onebit::adam(g, t); };
constexpr auto make_lamb = [](const groups& g, auto t) { return onebit::lamb(g, t); };
constexpr auto make_lion = [](const groups& g, auto t) { return onebit::lion(g, t); };
constexpr auto make_one_bit = [](const groups& g, auto t) {
  return onebit::one_bit_adam(g, t, frozen_after(3));
};

/// Groups as compositions ask for them.
struct as_data {
  std::vector<onebit::param_group<>> g;
  [[nodiscard]] const auto& groups() const { return g; }
};

}  // namespace

TEST_CASE("changing tensors, dense steps: the bits of tensors that were there all along, or came") {
  const auto check = [](const auto& make, bool to_the_bit) {
    for (const int w : {1, 2, 3}) {
      const auto trained = on_ranks(w, [&](onebit::threads t) {
        layers data, alone;
        auto o = make(data.groups_of(before), t);
        std::uint64_t step = 0;
        for (; step < 5; ++step) data.train(o, step);
        o.change_tensors(data.groups_of(after), from);
        CHECK(o.steps() == 5);
        CHECK(o.n_parameters() == 33 + 100 + 64 + 5000 + 5000);
        for (; step < 11; ++step) data.train(o, step);

        auto all = make(alone.groups_of(before), t);
        for (step = 0; step < 11; ++step) alone.train(all, step);
        layers late;
        auto only = make(late.groups_of({5, 6}), t);
        for (step = 5; step < 11; ++step) late.train(only, step);
        const auto compare = [&](const layers& wanted, std::size_t i) {
          if (to_the_bit) CHECK(data.params[i] == wanted.params[i]);
          for (std::size_t k = 0; k < data.params[i].size(); ++k) {
            CHECK(std::fabs(data.params[i][k] - wanted.params[i][k]) < 1e-6F);
          }
        };
        for (const std::size_t i : {4, 2, 1}) compare(alone, i);
        for (const std::size_t i : {5, 6}) compare(late, i);
        return data.params;
      });
      for (const auto& p : trained) CHECK(p == trained[0]);
    }
  };
  SUBCASE("Adam") { check(make_adam, true); }
  // a layer's norms are sums over its tiles, which end where another rank's chunk begins
  SUBCASE("LAMB") { check(make_lamb, false); }
  SUBCASE("Lion") { check(make_lion, true); }
  SUBCASE("1-bit Adam in its warm-up") {
    check([](const groups& g, auto t) { return onebit::one_bit_adam(g, t, frozen_after(40)); },
          true);
  }
  SUBCASE("1-bit LAMB in its warm-up") {
    check(
        [](const groups& g, auto t) {
          onebit::one_bit_lamb_options o;
          o.freeze.after = 40;
          return onebit::one_bit_lamb(g, t, o);
        },
        false);
  }
}

TEST_CASE("changing tensors, compressed: what is agreed and owed of those that stay is kept") {
  const auto check = [](const auto& make, const auto& momentum_share) {
    for (const int w : {2, 3, 4}) {
      if (w != 4 && momentum_share == 2) continue;  // two nodes of two
      const auto sums = on_ranks(w, [&](onebit::threads t) {
        layers data;
        as_data given{data.groups_of(before)};
        auto o = make(given, t);
        for (std::uint64_t step = 0; step < 9; ++step) data.train(o, step);
        // beta1 m + what is owed, in all
        const auto sum_of = [&](const std::vector<std::size_t>& which) {
          by_element sum;
          for (const std::size_t i : which) sum.emplace_back(data.params[i].size());
          add_residuals(o, sum);
          for (auto& x : sum) {
            for (double& y : x) {
              double all = 0;
              for (const double one : o.tell_all(y)) all += one;
              y = all;
            }
          }
          return sum;
        };
        const auto agreed_of = [&](std::size_t k, std::size_t n) {
          if (momentum_share == 0) return std::vector<float>(n, 0.0F);  // it does not last
          return o.copy(o.exchange().agreed(o.live()), k);
        };
        by_element m;
        for (std::size_t k = 0; k < before.size(); ++k) {
          const auto values = agreed_of(k, data.params[before[k]].size());
          m.emplace_back(values.begin(), values.end());
        }
        const auto old = sum_of(before);
        o.change_tensors(data.groups_of(after), from);
        const auto now = sum_of(after);
        for (std::size_t k = 0; k < after.size(); ++k) {
          const auto m_now = agreed_of(k, data.params[after[k]].size());
          for (std::size_t i = 0; i < m_now.size(); ++i) {
            const bool is_new = from[k] == onebit::new_tensor;
            const double m_then = is_new ? 0 : m[from[k]][i], owed = is_new ? 0 : old[from[k]][i];
            const double then = 0.9 * m_then + owed;
            const double here = 0.9 * static_cast<double>(m_now[i]) + now[k][i];
            if (!(std::fabs(here - then) <= 1e-6 * (1 + std::fabs(then)))) {
              CAPTURE(k);
              CAPTURE(i);
              CHECK(here == doctest::Approx(then).epsilon(1e-6));
            }
          }
        }
        for (std::uint64_t step = 9; step < 14; ++step) data.train(o, step);
        return data.params;
      });
      if (momentum_share == 0) continue;  // between two exchanges the ranks differ
      for (const auto& p : sums) CHECK(p == sums[0]);
    }
  };
  SUBCASE("gather-scatter") { check(scattered, 1); }
  SUBCASE("buckets") { check(bucketed, 1); }
  SUBCASE("all-gather") { check(gathered, 1); }
  SUBCASE("two levels") { check(by_node, 2); }
  SUBCASE("0/1 Adam") { check(skipping, 0); }
}

TEST_CASE("changing tensors, compressed: who stays trains on, who comes wakes when it may") {
  for (const int w : {2, 3}) {
    on_ranks(w, [](onebit::threads t) {
      layers data;
      onebit::one_bit_adam_options o = frozen_after(3);
      o.refreshes = 4;
      auto refreshed = onebit::one_bit_adam(data.groups_of(before), t, o);
      std::uint64_t step = 0;
      for (; step < 4; ++step) data.train(refreshed, step);
      const auto started = data.params[5];
      refreshed.change_tensors(data.groups_of(after), from);
      for (; step < 40; ++step) data.train(refreshed, step);
      double moved = 0;
      for (std::size_t k = 0; k < started.size(); ++k) {
        CHECK(std::isfinite(data.params[5][k]));
        moved += std::fabs(static_cast<double>(data.params[5][k] - started[k]));
      }
      CHECK(moved > 0.01 * static_cast<double>(started.size()));

      // frozen, without refreshes: until it thaws
      layers other;
      auto still = make_one_bit(other.groups_of(before), t);
      for (step = 0; step < 6; ++step) other.train(still, step);
      still.change_tensors(other.groups_of(after), from);
      const auto new_ones = other.params[6], old_ones = other.params[1];
      for (; step < 9; ++step) other.train(still, step);
      for (std::size_t k = 0; k < new_ones.size(); ++k) {
        // decay alone
        CHECK(std::fabs(other.params[6][k] - new_ones[k]) <= 0.0006F * std::fabs(new_ones[k]));
      }
      CHECK(other.params[1] != old_ones);
      still.thaw(4);
      for (; step < 15; ++step) other.train(still, step);
      CHECK(std::fabs(other.params[6][0] - new_ones[0]) > 0.01F);
      return 0;
    });
  }
}

TEST_CASE("changing tensors: to the same ones in other groups, and back, between any two steps") {
  const auto check = [](const auto& make) {
    const auto ends = on_ranks(2, [&](onebit::threads t) {
      layers data;
      as_data given{data.groups_of(before)};
      auto o = make(given, t);
      for (std::uint64_t step = 0; step < 16; ++step) {
        data.train(o, step);
        if (step % 2 == 0) {
          auto two = data.groups_of({4, 3, 2});
          two.push_back(data.groups_of({1, 0})[0]);
          o.change_tensors(two, {4, 3, 2, 1, 0});
        } else {
          o.change_tensors(data.groups_of(before), {4, 3, 2, 1, 0});
        }
        std::istringstream in(saved(o));  // checkpoints of it are whole
        o.load(in);
      }
      for (int i = 0; i < 3; ++i) data.train(o, 16 + static_cast<std::uint64_t>(i));
      double size = 0;
      for (const auto& p : data.params) {
        for (const float x : p) size += std::isfinite(x) ? std::fabs(static_cast<double>(x)) : 1e9;
      }
      CHECK(size < 1e5);
      return o.steps();
    });
    CHECK(ends[0] == 19);
  };
  SUBCASE("1-bit Adam") { check(scattered); }
  SUBCASE("two levels") { check(by_node); }
  SUBCASE("0/1 Adam") { check(skipping); }
  SUBCASE("Lion by votes") { check(voting); }
  SUBCASE("Lion with local steps") { check(voting_locally); }
  SUBCASE("1-bit LAMB") {
    check([](auto data, auto t) {
      onebit::one_bit_lamb_options o;
      o.freeze.after = 3;
      return onebit::one_bit_lamb(data.groups(), t, o);
    });
  }
  SUBCASE("v in 8 bits") {
    check([](auto data, auto t) {
      return onebit::one_bit_adam<onebit::int8>(data.groups(), t, frozen_after(3));
    });
  }
}

TEST_CASE("changing tensors: what cannot be is refused on all ranks, and nothing has changed") {
  const auto errors = on_ranks(3, [](onebit::threads t) {
    layers data;
    onebit::any_optimizer o = make_one_bit(data.groups_of(before), t);
    for (std::uint64_t step = 0; step < 6; ++step) data.train(o, step);
    const std::string state = saved(o);
    const bool odd = t.rank() == 1;
    std::string all;
    const auto refused = [&](const groups& g, const std::vector<std::size_t>& places) {
      try {
        o.change_tensors(g, places);
        all += "done\n";
      } catch (const onebit::error& e) {
        all += e.what() + std::string("\n");
      }
      CHECK(saved(o) == state);
    };
    refused(data.groups_of(after), odd ? std::vector<std::size_t>{4, 5} : from);
    refused(data.groups_of(after), odd ? std::vector<std::size_t>{4, 9, 2, 1, 9} : from);
    refused(data.groups_of({1, 0}), {0, odd ? std::size_t{0} : onebit::new_tensor});
    refused(data.groups_of({0, 1}), {odd ? std::size_t{1} : std::size_t{0}, onebit::new_tensor});
    refused(data.groups_of({5, 6}), odd ? std::vector<std::size_t>{0, onebit::new_tensor}
                                        : std::vector<std::size_t>(2, onebit::new_tensor));
    if (odd) data.params[5][3] = 7;
    refused(data.groups_of(after), from);
    if (odd) o.begin(0.01F);
    if (odd) {
      CHECK_THROWS_AS(o.change_tensors(data.groups_of(after), from), onebit::invalid_input);
    } else {
      CHECK_THROWS_AS(o.change_tensors(data.groups_of(after), from), onebit::rank_mismatch);
    }
    return all;
  });
  for (const char* text : {"2 places for 5 tensors", "tensor 1 was tensor 9 of 5",
                           "tensor 0 of 5000 parameters was "
                           "tensor 0 of 100",
                           "tensor 0 of 100 parameters was tensor 1 of 5000"}) {
    CAPTURE(errors[1]);
    CHECK(errors[1].find(text) != std::string::npos);
  }
  CAPTURE(errors[0]);
  CHECK(errors[0].find("rank 1 rejected its input") != std::string::npos);
  CHECK(errors[0].find("other initial parameter values") != std::string::npos);
  CHECK(errors[0].find("in another order") != std::string::npos);
}

TEST_CASE("changing tensors: two levels, unequal new ones, none left, eps and rests") {
  SUBCASE("small tensors in full, on two levels: what is owed stays") {
    on_ranks(4, [](onebit::threads t) {
      layers data;
      auto o = onebit::one_bit_adam(data.groups_of(before), t, frozen_after(3),
                                    onebit::hierarchical{onebit::exact_below<>{65}, 2});
      for (std::uint64_t step = 0; step < 8; ++step) data.train(o, step);
      const auto sum_of = [&] {
        by_element sum;
        for (const std::size_t i : before) sum.emplace_back(data.params[i].size());
        add_residuals(o, sum);
        for (std::size_t k = 0; k < before.size(); ++k) {
          const auto m = o.copy(o.exchange().agreed(o.live()), k);
          for (std::size_t i = 0; i < m.size(); ++i) {
            double all = 0;
            for (const double one : o.tell_all(sum[k][i])) all += one;
            sum[k][i] = 0.9 * static_cast<double>(m[i]) + all;
          }
        }
        return sum;
      };
      const auto was = sum_of();
      o.change_tensors(data.groups_of(before), {0, 1, 2, 3, 4});
      const auto is = sum_of();
      for (std::size_t k = 0; k < was.size(); ++k) {
        for (std::size_t i = 0; i < was[k].size(); ++i) {
          if (!(std::fabs(was[k][i] - is[k][i]) < 1e-6)) CHECK(was[k][i] == is[k][i]);
        }
      }
      return 0;
    });
  }
  SUBCASE("new tensors are the same on all ranks, also where the others are not") {
    on_ranks(2, [](onebit::threads t) {
      layers data;
      as_data given{data.groups_of(before)};
      auto o = skipping(given, t);
      for (std::uint64_t step = 0; step < 40 && !o.rule().moved(); ++step) data.train(o, step);
      REQUIRE(o.rule().moved());
      if (t.rank() == 1) data.params[5][0] += 1;
      CHECK_THROWS_AS(o.change_tensors(data.groups_of({0, 5}), {0, onebit::new_tensor}),
                      onebit::rank_mismatch);
      if (t.rank() == 1) data.params[5][0] -= 1;
      o.change_tensors(data.groups_of({0, 5}), {0, onebit::new_tensor});
      return 0;
    });
  }
  SUBCASE("all go and others come while v is frozen: they stand still, and a checkpoint loads") {
    on_ranks(2, [](onebit::threads t) {
      layers data;
      auto o = make_one_bit(data.groups_of({0}), t);
      for (std::uint64_t step = 0; step < 6; ++step) data.train(o, step);
      o.change_tensors({onebit::param_group<>{}}, {});
      data.train(o, 6);
      o.change_tensors(data.groups_of({5}), {onebit::new_tensor});
      const auto there = data.params[5];
      data.train(o, 7);
      for (std::size_t i = 0; i < there.size(); ++i) {
        CHECK(std::fabs(data.params[5][i] - there[i]) <= 0.0002F * std::fabs(there[i]));  // decay
      }
      std::istringstream in(saved(o));
      o.load(in);
      return 0;
    });
  }
  SUBCASE("eps stays, and a rest is not forgotten") {
    on_ranks(2, [](onebit::threads t) {
      layers data;
      auto o = onebit::adam(data.groups_of({0, 1}), t);
      for (std::uint64_t step = 0; step < 3; ++step) data.train(o, step);
      auto other = data.groups_of({0, 1});
      other[0].own.eps = 1e-3;
      CHECK_THROWS_AS(o.change_tensors(other, {0, 1}), onebit::error);
      o.rest(1);
      o.change_tensors(data.groups_of({1, 0}), {1, 0});
      const auto there = data.params[1];
      data.train(o, 3);
      CHECK(data.params[1] == there);
      data.train(o, 4);
      CHECK(data.params[1] != there);
      return 0;
    });
  }
}
