// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A rank's own v in bf16 beside one in double. Rounded to nearest, v would not fall where gradients
// do: 235 times the true v after the last change below, in other libraries.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/onebit.hpp>
#include <set>
#include <sstream>
#include <vector>

#include "../support/training.hpp"

using onebit_test::noise;
using onebit_test::on_ranks;

namespace {

/// Takes the gradients of tile i into a rank's squares.
struct take_in_kernel {
  onebit::step_tables<float, float> tables;
  onebit::detail::direction_units units;
  onebit::detail::growth_sums growth;
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    onebit::detail::take_squares_in<L>(units, growth, i, tables.tiles[i], tables);
  }
};

/// One rank with one tensor: rho is 1, and refreshes take the squares in exactly.
class one_rank {
 public:
  static constexpr std::size_t n = 1024;

  explicit one_rank(double beta2) : beta2_(beta2) {
    scalars_.c = onebit::detail::make_moments({0.9, beta2});
  }

  /// Takes in `grads`, in a refresh or not; advances `exact`.
  void step(bool refreshes) {
    if (refreshes) {
      for (std::size_t i = 0; i < n; ++i) mean_[i] = since(i);
      backend_.launch(1, onebit::detail::refresh_variance_kernel<onebit::flat_field, float, float>{
                             {{mean_.data()}, v_.data(), &scalars_, &rho_},
                             &tile_,
                             &tensor_,
                             &now_,
                             {active_.data()},
                             active_.data(),
                             units(),
                             v_.data(),
                             since_.data()});
      scalars_.decay_since = 1;
    } else {
      backend_.launch(
          1, take_in_kernel{{&tile_, &tiles_, sums_.data(), &tensor_, &scalars_, &now_, {}},
                            units(),
                            {sums_.data(), sums_.data() + 1}});
    }
    scalars_.decay_since *= static_cast<double>(scalars_.c.beta2);
    ++now_.given.number;
    for (std::size_t i = 0; i < n; ++i) {
      const auto g = static_cast<double>(grads[i]);
      exact[i] = beta2_ * exact[i] + (1 - beta2_) * g * g;
    }
  }
  /// The rank's v after the last step.
  [[nodiscard]] double own(std::size_t i) const {
    return scalars_.decay_since * static_cast<double>(value(v_, i)) + static_cast<double>(since(i));
  }
  [[nodiscard]] float since(std::size_t i) const { return value(since_, i); }
  [[nodiscard]] bool is_active(std::size_t i) const {
    return (active_[i / 32] >> i % 32 & 1U) != 0;
  }

  std::vector<float> grads = std::vector<float>(n);
  std::vector<double> exact = std::vector<double>(n);

 private:
  [[nodiscard]] static float value(const std::vector<onebit::bf16>& words, std::size_t i) {
    return onebit::to_float(words[i / 32 * 32 + onebit::detail::place_of_square(i % 32)]);
  }
  [[nodiscard]] onebit::detail::direction_units units() const {
    return {v_.data(), since_.data(), &rho_};
  }
  onebit::host backend_{1};
  onebit::tile tile_{.n = n};
  onebit::tile_range tiles_{0, 1};
  std::vector<float> params_ = std::vector<float>(n), mean_ = std::vector<float>(n),
                     sums_ = std::vector<float>(3);
  std::vector<onebit::bf16> v_ = std::vector<onebit::bf16>(n),
                            since_ = std::vector<onebit::bf16>(n);
  std::vector<std::uint32_t> active_ = std::vector<std::uint32_t>(n / 32);
  onebit::detail::tensor_entry<float, float> tensor_{params_.data(), grads.data()};
  onebit::detail::tensor_scalars scalars_{};
  onebit::step_scalars now_{};
  float rho_ = 1;
  double beta2_;
};

struct spread {
  double mean = 0, deviation = 0;
};
spread of_ratios(const one_rank& rank) {
  spread s;
  for (std::size_t i = 0; i < one_rank::n; ++i) s.mean += rank.own(i) / rank.exact[i];
  s.mean /= one_rank::n;
  for (std::size_t i = 0; i < one_rank::n; ++i) {
    s.deviation += std::pow(rank.own(i) / rank.exact[i] - s.mean, 2) / one_rank::n;
  }
  s.deviation = std::sqrt(s.deviation);
  return s;
}

}  // namespace

TEST_CASE("a rank's own v: in the mean the true one, also after gradients fell by 1000") {
  for (const double beta2 : {0.9, 0.99, 0.999, 0.9999}) {
    for (const std::uint64_t gap : {1U, 16U, 200U}) {
      CAPTURE(beta2);
      CAPTURE(gap);
      one_rank rank(beta2);
      for (std::uint64_t step = 0; step < 10000; ++step) {
        for (std::size_t i = 0; i < one_rank::n; ++i) {
          rank.grads[i] = noise(step * one_rank::n + i) * (step < 5000 ? 1.0F : 1e-3F);
        }
        rank.step(step % gap == 0);
        if (step + 1 == 1000 || step + 1 == 5000 || step + 1 == 10000) {
          CAPTURE(step);
          const spread s = of_ratios(rank);
          const double most = step + 1 < 10000 ? 0.05 : 0.2;
          CHECK(s.mean == doctest::Approx(1).epsilon(0.01));
          CHECK(s.deviation < (gap == 1 ? most : most / 2));
        }
      }
    }
  }
}

TEST_CASE("a rank's own v: a positive square stays positive, and 0 stays 0") {
  one_rank rank(0.999);
  for (std::size_t i = 0; i < one_rank::n; ++i) {
    rank.grads[i] = i % 4 == 0 ? 0.0F : 3e-20F * static_cast<float>(i % 4);  // squares 9e-43 on
  }
  for (int step = 0; step < 50; ++step) rank.step(step % 10 == 0);
  for (std::size_t i = 0; i < one_rank::n; ++i) {
    CAPTURE(i);
    CHECK((rank.since(i) > 0) == (i % 4 != 0));
    CHECK(rank.is_active(i) == (i % 4 != 0));
  }
}

TEST_CASE("a rank's own v: no two roundings of a job draw from one key") {
  std::set<std::uint32_t> keys;
  std::size_t n = 0;
  for (std::uint32_t step = 0; step < 500; ++step) {
    onebit::step_scalars now{.given = {.number = step}};
    const auto add = [&](std::uint32_t key) {
      keys.insert(key);
      ++n;
    };
    add(onebit::detail::mixed(step + 1));  // of parameters: parameters_of
    add(onebit::detail::key_of_variance(&now));
    add(onebit::detail::rounding_key<onebit::rounded>(&now, true));
    for (now.given.rank = 0; now.given.rank < 8; ++now.given.rank) {
      add(onebit::detail::key_of_squares(&now));
      add(onebit::detail::rounding_key<onebit::rounded>(&now, false));
    }
  }
  CHECK(keys.size() == n);
}

TEST_CASE("a rank's own v: ranks round v alike, and their squares each for itself") {
  struct moments {
    std::vector<float> v, since;
  };
  const auto of_ranks = on_ranks(2, [](onebit::threads t) {
    std::vector<float> x(4096), g(4096);
    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({x, g});
    auto o = onebit::one_bit_adam(groups, t);
    o.warn_with(nullptr);
    for (std::uint64_t step = 0; step < 40; ++step) {
      for (std::size_t i = 0; i < g.size(); ++i) g[i] = noise(step * g.size() + i);
      CHECK_FALSE(o.step(1e-3F).skipped);
    }
    const auto copied = [&](const onebit::bf16* values) {
      return o.copy(onebit::detail::own_squares_field{values, nullptr, nullptr}, 0);
    };
    return moments{copied(o.rule().agreed_variance()), copied(o.rule().own_squares().since)};
  });
  CHECK(of_ranks[0].v == of_ranks[1].v);
  std::size_t n_other = 0;
  for (std::size_t i = 0; i < 4096; ++i) n_other += of_ranks[0].since[i] != of_ranks[1].since[i];
  CHECK(n_other > 1000);
  CHECK(n_other < 4096);
}

TEST_CASE(
    "a rank's own v: a job that was saved right before it starts goes on with the same bits") {
  const auto check = [](const auto& make) {
    for (std::uint64_t at = 4; at <= 7; ++at) {  // the first compressed step is step 5
      CAPTURE(at);
      onebit::run_threads(2, [&](onebit::threads t) {
        std::vector<float> x(4096, 1), g(4096), again;
        std::stringstream file;
        const auto train = [&](auto& o, std::vector<float>& params, std::uint64_t from) {
          o.warn_with(nullptr);
          for (std::uint64_t step = from; step < 9; ++step) {
            if (step == at && &params == &x) {
              o.save(file);
              again = x;
            }
            const auto seed = (step * 2 + static_cast<std::uint64_t>(t.rank())) * g.size();
            for (std::size_t i = 0; i < g.size(); ++i) g[i] = noise(seed + i);
            CHECK_FALSE(o.step(1e-3F).skipped);
          }
        };
        std::vector<onebit::param_group<>> groups(1);
        groups[0].tensors = {{x, g}};
        auto first = make(groups, t);
        train(first, x, 0);
        groups[0].tensors = {{again, g}};
        auto second = make(groups, t);
        second.load(file);
        train(second, again, at);
        CHECK(again == x);
      });
    }
  };
  check([](const auto& g, auto t) { return onebit::one_bit_adam(g, t); });
  check([](const auto& g, auto t) { return onebit::one_bit_lamb(g, t); });
  check([](const auto& g, auto t) {
    return onebit::zero_one_adam(g, t, {.schedule = {.warmup_steps = 9}});
  });
}

TEST_CASE("a rank's own v: the same whatever type parameters have, and eps never underflows") {
  const auto trained = [](auto element) {
    using T = decltype(element);
    return on_ranks(2, [](onebit::threads t) {
      std::vector<T> x(1000, onebit::from_float<T>(1)), g(1000);
      std::vector<onebit::param_group<T>> groups(1);
      groups[0].tensors.push_back({x, g});
      auto o = onebit::one_bit_adam(groups, t);
      for (std::uint64_t step = 0; step < 40; ++step) {
        for (std::size_t i = 0; i < g.size(); ++i) {  // the same number in all three types
          const float sign = noise(step * g.size() + i) < 0 ? -1.0F : 1.0F;
          g[i] = onebit::from_float<T>(sign * (i % 2 == 0 ? 0x1p-20F : 0x1p-3F));
        }
        CHECK_FALSE(o.step(1e-2F).skipped);
      }
      std::size_t n_moved = 0;
      for (const T value : x) {
        CHECK(std::isfinite(onebit::to_float(value)));
        n_moved += onebit::to_float(value) != 1.0F;
      }
      CHECK(n_moved > 900);
      return o.copy(onebit::detail::own_squares_field{o.rule().agreed_variance(), nullptr, nullptr},
                    0);
    })[0];
  };
  const auto of_float = trained(0.0F);
  CHECK(trained(onebit::fp16{}) == of_float);
  CHECK(trained(onebit::bf16{}) == of_float);
}
