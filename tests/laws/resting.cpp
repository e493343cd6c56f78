// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Tensors without a gradient in a step, groups that are frozen, and groups with betas and eps of
// their own: as if each were trained by itself, in its own steps and with its own options.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <sstream>

#include "../support/training.hpp"
#include "compositions.hpp"
#include "residuals.hpp"
#include "shared.hpp"

using namespace onebit_test;
using namespace onebit_test::compositions;

namespace {

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
const std::vector<std::size_t> sizes = {300, 4500};

/// Tensor 1 rests in these steps.
bool rests(std::uint64_t step, bool from_start) {
  return (from_start && step < 2) || step == 4 || step == 7;
}

void gradients_without_parameters(training<>& data, int rank, std::uint64_t step) {
  data.compute_gradients(rank, step);
  for (auto& g : data.grads) {
    for (std::size_t i = 0; i < g.size(); ++i) {
      g[i] = noise(step * 7919 + static_cast<std::uint64_t>(rank) * 31 + i);
    }
  }
}

/// Tensor 1's parameters, of an optimizer over both in which it rests, and of one of its own that
/// only takes the steps in which it does not.
template <class Make>
void expect_as_if_alone(int n, const Make& make, bool from_start = true) {
  on_ranks(n, [&](onebit::threads t) {
    training<> both(sizes), alone(sizes);
    std::vector<onebit::param_group<>> own(1);
    own[0].tensors.push_back({alone.params[1], alone.grads[1]});
    own[0].lr_factor = 0.5F;
    auto a = make(both.groups(), t);
    auto b = make(own, t);
    for (std::uint64_t step = 0; step < 12; ++step) {
      gradients_without_parameters(both, t.rank(), step);
      alone.grads = both.grads;
      if (rests(step, from_start)) {
        both.grads[1].assign(sizes[1], not_a_number);
        a.rest(1);
      }
      const auto before = both.params[1];
      CHECK_FALSE(a.step(0.01F).skipped);
      if (rests(step, from_start)) {
        CHECK(both.params[1] == before);
      } else {
        CHECK_FALSE(b.step(0.01F).skipped);
      }
      CHECK(both.params[1] == alone.params[1]);
    }
    return 0;
  });
}

/// An optimizer of this composition over tensors of which the second rests from `first` on, for
/// three steps; f(optimizer, data) looks at it before and after.
template <class Make, class F>
void with_rest(int n, std::uint64_t first, const Make& make, const F& f) {
  on_ranks(n, [&](onebit::threads t) {
    training<> data(sizes);
    auto o = make(data, t);
    for (std::uint64_t i = 0; i < first; ++i) CHECK_FALSE(train(o, data).skipped);
    const auto before = data.params[1];
    for (int i = 0; i < 3; ++i) {
      data.compute_gradients(t.rank(), o.steps());
      data.grads[1].assign(sizes[1], not_a_number);
      o.rest(1);
      CHECK_FALSE(o.step(0.01F).skipped);
    }
    f(t, o, data, before);
    for (int i = 0; i < 6; ++i) CHECK_FALSE(train(o, data).skipped);
    CHECK(data.params[1] != before);
    return 0;
  });
}

}  // namespace

TEST_CASE("a tensor that rests is trained as if alone, in its own steps [rest]") {
  for (const int n : {1, 2, 3}) {
    CAPTURE(n);
    expect_as_if_alone(n, [](auto groups, auto t) { return onebit::adam(groups, t); });
    expect_as_if_alone(
        n, [](auto groups, auto t) { return onebit::one_bit_adam(groups, t, frozen_after(100)); });
    const auto averaging = [](auto groups, auto t) {
      onebit::zero_one_adam_options o;
      o.schedule.warmup_steps = 100;
      o.schedule.kappa = 100;
      return onebit::zero_one_adam(groups, t, o, onebit::gather_scatter<onebit::identity>{});
    };
    // (a first gradient that comes after the first step is rounded otherwise)
    expect_as_if_alone(n, averaging, false);
  }
  // norms of layers are summed by tile, and tiles end where chunks do
  expect_as_if_alone(1, [](auto groups, auto t) { return onebit::lamb(groups, t); });
}

TEST_CASE("parameters that rest stay as they are in every phase and composition [rest]") {
  for (const std::uint64_t first : {1, 3, 5}) {
    CAPTURE(first);
    const auto stays = [](const auto&, auto&, const training<>& data, const auto& before) {
      CHECK(std::memcmp(data.params[1].data(), before.data(), before.size() * sizeof(float)) == 0);
    };
    with_rest(2, first, plain, stays);
    with_rest(3, first, scattered, stays);
    with_rest(2, first, bucketed, stays);
    with_rest(2, first, gathered, stays);
    with_rest(4, first, by_node, stays);
    with_rest(
        2, first,
        [](auto& data, auto t) {
          onebit::one_bit_lamb_options o;
          o.freeze.after = 3;
          return onebit::one_bit_lamb(data.groups(), t, o);
        },
        stays);
  }
}

TEST_CASE(
    "compressed, m of a tensor that rests and what is owed of it stay the same in sum [rest]") {
  using optimizer =
      decltype(scattered(std::declval<training<>&>(), std::declval<onebit::threads>()));
  constexpr std::size_t n = 3;
  std::vector<training<>> data(n, training<>(sizes));
  std::vector<std::optional<optimizer>> all(n);
  const auto sum = [&] {
    by_element total = {std::vector<double>(sizes[0]), std::vector<double>(sizes[1])};
    for (auto& o : all) add_residuals(*o, total);
    auto& o = *all[0];
    const auto m = o.copy(o.exchange().previous(o.active()), 1);
    for (std::size_t i = 0; i < m.size(); ++i) total[1][i] += static_cast<double>(m[i]);
    return total[1];
  };
  std::vector<double> before, after;
  onebit::run_threads(static_cast<int>(n), [&](onebit::threads t) {
    const auto r = static_cast<std::size_t>(t.rank());
    all[r].emplace(scattered(data[r], t));
    const auto meet = [](onebit::threads& ranks) {
      std::array<int, n> all_here{};
      const int here = 1;
      ranks.all_gather(&here, all_here.data(), sizeof here);
    };
    const auto look = [&](std::vector<double>& at) {
      meet(t);
      if (r == 0) at = sum();
      meet(t);
    };
    for (int i = 0; i < 6; ++i) CHECK_FALSE(train(*all[r], data[r]).skipped);
    look(before);
    for (int i = 0; i < 5; ++i) {
      all[r]->rest(1);
      CHECK_FALSE(train(*all[r], data[r]).skipped);
    }
    look(after);
  });
  double largest = 0, error = 0;
  for (std::size_t i = 0; i < sizes[1]; ++i) {
    largest = std::max(largest, std::abs(before[i]));
    error = std::max(error, std::abs(after[i] - before[i]));
  }
  CHECK(largest > 0.01);
  CHECK(error < 5 * 4 * 1e-7 * largest);  // five steps, a handful of roundings in each
}

TEST_CASE(
    "0/1 Adam: a tensor that rests since the last exchange stays; before, it has moved [rest]") {
  for (const int n : {2, 3}) {
    on_ranks(n, [&](onebit::threads t) {
      training<> data(sizes);
      auto o = skipping(data, t);
      bool moved = false;
      for (int i = 0; i < 24; ++i) {
        const auto before = data.params[1];
        const bool rest = i % 6 >= 2;
        data.compute_gradients(t.rank(), o.steps());
        if (rest) {
          data.grads[1].assign(sizes[1], not_a_number);
          o.rest(1);
        }
        const bool was_local = moved;
        const onebit::report r = o.step(0.01F);
        CHECK_FALSE(r.skipped);
        const bool exchanged = r.phase == onebit::phase::compressed;
        // local steps made before it rested are exchanged while it rests
        if (rest && !(exchanged && was_local)) CHECK(data.params[1] == before);
        if (!rest) CHECK(data.params[1] != before);
        moved = exchanged ? false : moved || !rest;
      }
      // exchanged in the end, all ranks are equal
      while (o.rule().moved()) (void)train(o, data);
      onebit::detail::digest d;
      d.add(data.digest());
      std::vector<std::uint64_t> all(static_cast<std::size_t>(n));
      const std::uint64_t mine = d.value();
      o.transport().host_all_gather(&mine, all.data(), sizeof mine);
      for (const auto other : all) CHECK(other == all[0]);
      return 0;
    });
  }
}

TEST_CASE("a group of its own betas and eps is trained as if they were the options' [rest]") {
  on_ranks(2, [&](onebit::threads t) {
    training<> both(sizes), alone(sizes);
    auto groups = both.groups();
    groups[1].own = {.beta1 = 0.8, .beta2 = 0.95, .eps = 1e-4};
    std::vector<onebit::param_group<>> own(1);
    own[0].tensors.push_back({alone.params[1], alone.grads[1]});
    own[0].lr_factor = 0.5F;
    auto a = onebit::adam(groups, t);
    auto b = onebit::adam(own, t, {.beta1 = 0.8, .beta2 = 0.95, .eps = 1e-4});
    for (std::uint64_t step = 0; step < 8; ++step) {
      if (step == 4) {  // betas may change
        a.set_group(1, {0.5F, 0, {.beta1 = 0.7, .eps = 1e-4}});
        b.set_group(0, {0.5F, 0, {.beta1 = 0.7, .beta2 = 0.999}});
      }
      gradients_without_parameters(both, t.rank(), step);
      alone.grads = both.grads;
      CHECK_FALSE(a.step(0.01F).skipped);
      CHECK_FALSE(b.step(0.01F).skipped);
      CHECK(both.params[1] == alone.params[1]);
    }
    return 0;
  });
  // in every phase: the numbers of all groups, given by group, are those of the options
  const auto same = [](const auto& make) {
    on_ranks(2, [&](onebit::threads t) {
      training<> a(sizes), b(sizes);
      auto groups = b.groups();
      for (auto& g : groups) g.own = {.beta1 = 0.85, .beta2 = 0.99, .eps = 1e-6};
      auto by_options = make(a.groups(), t, 0.85, 0.99, 1e-6);
      auto by_group = make(groups, t, 0.9, 0.999, 1e-8);
      for (int i = 0; i < 9; ++i) {
        CHECK_FALSE(train(by_options, a).skipped);
        CHECK_FALSE(train(by_group, b).skipped);
        CHECK(a.params == b.params);
      }
      return 0;
    });
  };
  same([](auto groups, auto t, double beta1, double beta2, double eps) {
    onebit::one_bit_adam_options o = frozen_after(3);
    o.refreshes = 2;
    o.adam.beta1 = beta1, o.adam.beta2 = beta2, o.adam.eps = eps;
    return onebit::one_bit_adam(groups, t, o);
  });
  same([](auto groups, auto t, double beta1, double beta2, double eps) {
    onebit::one_bit_lamb_options o;
    o.freeze.after = 3;
    o.lamb.beta1 = beta1, o.lamb.beta2 = beta2, o.lamb.eps = eps;
    return onebit::one_bit_lamb(groups, t, o);
  });
  same([](auto groups, auto t, double beta1, double beta2, double eps) {
    onebit::zero_one_adam_options o;
    o.schedule.warmup_steps = 3;
    o.schedule.max_interval = 2;
    o.adam.beta1 = beta1, o.adam.beta2 = beta2, o.adam.eps = eps;
    return onebit::zero_one_adam(groups, t, o);
  });
}

TEST_CASE("a group rests until it is told otherwise, and needs no ready() [rest]") {
  on_ranks(2, [&](onebit::threads t) {
    training<> data(sizes);
    auto groups = data.groups();
    groups[1].rests = true;
    auto o = onebit::one_bit_adam(groups, t, {.freeze = {.after = 3}},
                                  onebit::gather_scatter{onebit::sign<>{}, 1000});
    const auto first = data.params[1];
    for (int i = 0; i < 6; ++i) {
      data.compute_gradients(t.rank(), o.steps());
      data.grads[1].assign(sizes[1], not_a_number);
      o.begin(0.01F);
      o.ready(0);
      CHECK_FALSE(o.step(0.01F).skipped);
      CHECK(data.params[1] == first);
    }
    o.set_group(1, {1.0F, 0.0F});
    // elements that had no variance get it in a refresh
    for (int i = 0; i < 6; ++i) CHECK_FALSE(train(o, data).skipped);
    CHECK(data.params[1] != first);
    return 0;
  });
}

TEST_CASE("what a checkpoint has of tensors that rested [rest]") {
  for (const int steps : {2, 5}) {
    const auto run = [&](bool reload) {
      return on_ranks(2, [&](onebit::threads t) {
        training<> data(sizes);
        std::optional o = scattered(data, t);
        for (int i = 0; i < steps; ++i) {
          if (i % 2 == 1) o->rest(1);
          CHECK_FALSE(train(*o, data).skipped);
        }
        if (reload) {
          std::istringstream state(saved(*o));
          o.reset();
          o.emplace(scattered(data, t));
          o->load(state);
        }
        for (int i = 0; i < 5; ++i) CHECK_FALSE(train(*o, data).skipped);
        return data.digest();
      });
    };
    CHECK(run(true) == run(false));
  }
}

TEST_CASE("ranks of which one lets a tensor rest part, and are told [rest]") {
  for (const int before : {1, 4}) {
    const auto told = on_ranks(3, [&](onebit::threads t) {
      training<> data(sizes);
      auto o = scattered(data, t);
      for (int i = 0; i < before; ++i) (void)train(o, data);
      const auto params = data.params;
      data.compute_gradients(t.rank(), o.steps());
      if (t.rank() == 1) o.rest(1);
      const std::string text = thrown<onebit::rank_mismatch>([&] { (void)o.step(0.01F); });
      CHECK(data.params == params);
      CHECK_FALSE(train(o, data).skipped);
      return text;
    });
    for (const auto& text : told) {
      CHECK(
          text ==
          contains{"whether tensor 1 rests: yes on rank 1, no on rank 0 (2 of 3 ranks are alike)"});
    }
  }
}

TEST_CASE("moments of groups that cannot be are refused [rest]") {
  on_ranks(2, [&](onebit::threads t) {
    training<> data(sizes);
    auto groups = data.groups();
    groups[1].own.beta2 = 1.0;
    CHECK(thrown<onebit::invalid_input>([&] { (void)onebit::adam(groups, t); }) ==
          contains{"group 1: beta1 is 0.9, beta2 1"});
    auto o = scattered(data, t);
    CHECK(thrown<onebit::invalid_input>([&] {
            o.set_group(1, {1, 0, {.eps = 0.0}});
          }) == contains{"group 1: eps is 0"});
    CHECK(thrown<onebit::invalid_input>([&] { o.rest(2); }) == contains{"rest(2) of 2 tensors"});
    for (int i = 0; i < 5; ++i) (void)train(o, data);
    CHECK(thrown<onebit::invalid_input>([&] {
            o.set_group(1, {1, 0, {.eps = 1e-3}});
          }) == contains{"group 1 gets another eps"});
    CHECK_FALSE(train(o, data).skipped);
    return 0;
  });
}

TEST_CASE(
    "a tensor that rests in a step that is skipped leaves no trace, in the first compressed one "
    "[rest]") {
  const auto run = [&](bool disturbed, bool rest) {
    return on_ranks(2, [&](onebit::threads t) {
      training<> data(sizes);
      auto o = scattered(data, t);
      for (int i = 0; i < 8; ++i) {
        if (disturbed && i == 3) {
          data.compute_gradients(t.rank(), o.steps());
          data.grads[0][3] = not_a_number;
          if (rest) o.rest(1);
          CHECK(o.step(0.01F).skipped);
        }
        CHECK_FALSE(train(o, data).skipped);
      }
      return data.digest();
    });
  };
  CHECK(run(true, true) == run(false, false));
  CHECK(run(true, false) == run(false, false));
}

TEST_CASE(
    "other rates of a group leave what it has of its own, and a refused step a rest, as it is "
    "[rest]") {
  on_ranks(1, [&](onebit::threads t) {
    training<> data(sizes);
    auto groups = data.groups();
    groups[1].rests = true;
    groups[1].own.beta1 = 0.5;
    auto o = onebit::adam(groups, t);
    o.set_group(1, 1.0F, 0.1F);
    auto before = data.params[1];
    CHECK_FALSE(train(o, data).skipped);
    CHECK(data.params[1] == before);
    before = data.params[0];
    o.rest(0);
    CHECK(thrown<onebit::invalid_input>([&] { (void)o.step(not_a_number); }) == contains{"nan"});
    CHECK_FALSE(train(o, data).skipped);
    CHECK(data.params[0] == before);
    return 0;
  });
}
