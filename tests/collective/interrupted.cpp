// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Exchanges in buckets and on two levels that something comes between: a transport that fails, also
// while gradients are announced; checkpoints in the middle of a step; ranks that disagree; and
// shapes that leave ranks, buckets or nodes without work.

#include <doctest/doctest.h>

#include <chrono>
#include <cstdint>
#include <limits>
#include <memory>
#include <onebit/collective/hierarchical.hpp>
#include <onebit/onebit.hpp>
#include <onebit/testing/scripted.hpp>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../support/training.hpp"

using onebit_test::cases;
using onebit_test::contains;
using onebit_test::on_ranks;
using onebit_test::saved;
using onebit_test::script;
using onebit_test::scripted;
using onebit_test::thrown;
using onebit_test::train;
using onebit_test::training;

namespace {

const onebit::hierarchical levels{onebit::sign<>{}, 2};
const onebit::gather_scatter buckets{onebit::sign<>{}, 700};

struct one_bit_adam_maker {
  static constexpr std::uint64_t freezes_before = 3;  // where ranks or nodes have something to say
  std::uint64_t refreshes = 16;
  template <class Groups, class T, class Collective>
  auto operator()(const Groups& groups, T transport, Collective collective) const {
    return onebit::one_bit_adam(
        groups, transport,
        onebit::one_bit_adam_options{
            .adam = {.beta2 = 0.99}, .freeze = {.after = 3}, .refreshes = refreshes},
        collective);
  }
};
struct zero_one_maker {
  static constexpr std::uint64_t freezes_before = 3;  // the first step that does not average
  template <class Groups, class T, class Collective>
  auto operator()(const Groups& groups, T transport, Collective collective) const {
    return onebit::zero_one_adam(
        groups, transport,
        onebit::zero_one_adam_options{
            .adam = {.beta2 = 0.99},
            .schedule = {.kappa = 2, .warmup_steps = 4, .doubling_steps = 3, .max_interval = 2}},
        collective);
  }
};

/// What a step leaves.
struct state {
  std::uint64_t parameters = 0;
  std::string checkpoint;
  friend bool operator==(const state&, const state&) = default;
};
template <class Optimizer, class Data>
state state_of(Optimizer& o, const Data& data) {
  return {data.digest(), saved(o)};
}

/// Announces the tensors from the last to the first, if `early`, and steps.
template <class Optimizer>
onebit::report step(Optimizer& o, training<>& data, bool early) {
  data.compute_gradients(o.rank(), o.steps());
  if (early) {
    o.begin(0.01F);
    for (std::size_t t = data.params.size(); t-- > 0;) o.ready(t);
  }
  return o.step(0.01F);
}

constexpr std::uint64_t n_steps = 8;

/// Each collective of each step fails on all ranks, with and without delivering, before the step
/// works: nothing may change (but the freeze stays done, by the first try of the step behind it),
/// and the step leaves what it leaves undisturbed.
template <class Make, class Collective>
void check_faults(int n, const Make& make, const Collective& collective, bool early = false) {
  CAPTURE(early);
  const auto whole = on_ranks(n, [&](onebit::threads t) {
    training<> data;
    auto o = make(data.groups(), t, collective);
    std::vector<std::pair<state, std::uint32_t>> states;
    for (std::uint64_t i = 0; i < n_steps; ++i) {
      const auto report = step(o, data, early);
      states.emplace_back(state_of(o, data), report.collectives);
    }
    return states;
  });
  onebit::run_threads(
      n,
      [&](onebit::threads t) {
        const auto& expected = whole[static_cast<std::size_t>(t.rank())];
        const auto told = std::make_shared<script>();
        training<> data;
        auto o = make(data.groups(), scripted(t, told), collective);
        for (std::uint64_t i = 0; i < n_steps; ++i) {
          CAPTURE(i);
          for (std::uint32_t k = 0; k < 2 * expected[i].second; ++k) {
            CAPTURE(k);
            const state before = state_of(o, data);
            told->fail_at = told->calls + k / 2;
            told->fail_after_delivery = k % 2 == 1;
            CHECK(thrown<onebit::transport_error>([&] { (void)step(o, data, early); }) ==
                  "scripted: the network is down");
            const state after = state_of(o, data);
            const bool freezes = i == Make::freezes_before && k == 0;
            CHECK(after.parameters == before.parameters);
            CHECK((after != before) == freezes);
            CHECK(o.steps() == i);
          }
          told->fail_at = script::never;
          CHECK_FALSE(step(o, data, early).skipped);
          const bool same = state_of(o, data) == expected[i].first;
          CHECK(same);
        }
      },
      std::chrono::seconds(60));
}

}  // namespace

TEST_CASE("a transport that fails on two levels: nothing changes") {
  check_faults(4, one_bit_adam_maker{}, levels);
  check_faults(4, zero_one_maker{}, levels);
}

TEST_CASE(
    "a transport that fails in a bucket: nothing changes, nor while gradients are announced") {
  for (const bool early : {false, true}) {
    check_faults(3, one_bit_adam_maker{}, buckets, early);
    check_faults(2, zero_one_maker{}, buckets, early);
  }
}

TEST_CASE("a step that has begun is not saved, and no checkpoint is loaded into it") {
  onebit::run_threads(2, [](onebit::threads t) {
    training<> data;
    auto o = one_bit_adam_maker{}(data.groups(), t, buckets);
    for (int i = 0; i < 5; ++i) (void)train(o, data);
    const state before = state_of(o, data);
    data.compute_gradients(o.rank(), o.steps());
    o.begin(0.01F);
    o.ready(5);
    std::ostringstream out;
    CHECK(thrown<onebit::invalid_input>([&] { o.save(out); }) == contains{"step 5 has begun"});
    CHECK(out.str().empty());
    std::istringstream in(before.checkpoint);
    CHECK(thrown<onebit::checkpoint_error>([&] { o.load(in); }) == contains{"step 5 has begun"});
    CHECK_FALSE(o.step(0.01F).skipped);
    CHECK(o.steps() == 6);
  });
}

TEST_CASE("an optimizer moves while a step has begun") {
  const auto digests = [](bool moves) {
    return on_ranks(2, [&](onebit::threads t) {
      training<> data;
      auto o = one_bit_adam_maker{}(data.groups(), t, buckets);
      for (int i = 0; i < 6; ++i) {
        data.compute_gradients(o.rank(), o.steps());
        o.begin(0.01F);
        o.ready(5);
        if (moves) {
          auto other = std::move(o);
          other.ready(4);
          (void)other.step(0.01F);
          o = std::move(other);
        } else {
          o.ready(4);
          (void)o.step(0.01F);
        }
      }
      return data.digest();
    });
  };
  CHECK(digests(true) == digests(false));
}

TEST_CASE("buckets over gradients that are only read: the same bits, also announced and skipped") {
  const auto finish = [](auto& o, training<>& data, bool early) {
    for (std::uint64_t i = 0; i < n_steps; ++i) {
      for (int times = 0; times < 2; ++times) {
        const state before = state_of(o, data);
        data.compute_gradients(o.rank(), o.steps());
        if (o.rank() == static_cast<int>(i) % o.size()) {
          data.grads[2][7] = std::numeric_limits<float>::quiet_NaN();
        }
        o.begin(0.01F);
        for (std::size_t k = data.grads.size(); k-- > 0 && early;) o.ready(k);
        CHECK(o.step(0.01F).skipped);
        const bool freezes = i == one_bit_adam_maker::freezes_before && times == 0;
        CHECK((state_of(o, data) != before) == freezes);
      }
      CHECK_FALSE(step(o, data, early).skipped);
    }
    return data.digest();
  };
  for (const bool early : {false, true}) {
    const auto written = on_ranks(3, [&](onebit::threads t) {
      training<> data;
      auto o = one_bit_adam_maker{}(data.groups(), t, buckets);
      return finish(o, data, early);
    });
    const auto read = on_ranks(3, [&](onebit::threads t) {
      training<> data;
      std::vector<onebit::param_group<float, const float>> groups;
      for (const auto& g : data.groups()) {
        groups.push_back({{}, g.lr_factor, g.weight_decay});
        for (const auto& x : g.tensors) groups.back().tensors.push_back({x.params, x.grads});
      }
      auto o = one_bit_adam_maker{}(groups, t, buckets);
      return finish(o, data, early);
    });
    CHECK(read == written);
  }
}

TEST_CASE("ranks that disagree about nodes or buckets: all are told, none waits") {
  const auto say = [](int n, const auto& collective_of) {
    return on_ranks(
        n,
        [&](onebit::threads t) -> std::string {
          training<> data;
          try {
            (void)one_bit_adam_maker{}(data.groups(), t, collective_of(t.rank()));
          } catch (const onebit::rank_mismatch& e) {
            return e.what();
          } catch (const std::exception& e) {
            return std::string("another: ") + e.what();
          }
          return "nothing";
        },
        std::chrono::seconds(5));
  };
  for (const int odd : {1, 3, 4}) {
    for (const auto& text : say(4, [&](int r) {
           return onebit::hierarchical{onebit::sign<>{}, r == 2 ? odd : 2};
         })) {
      CHECK(text == contains{"rank 2 has "});
    }
  }
  for (const auto& text : say(3, [](int r) {
         return onebit::gather_scatter{onebit::sign<>{}, std::size_t{r == 2 ? 64U : 1000U}};
       })) {
    CHECK(text == contains{"rank 2 has "});
  }
}

TEST_CASE("two levels: a rank at another step is told by its number, on all ranks") {
  const onebit::hierarchical three{onebit::sign<>{}, 3};
  for (int odd = 0; odd < 6; ++odd) {
    CAPTURE(odd);
    onebit::run_threads(6, [&](onebit::threads t) {
      const auto told = std::make_shared<script>();
      training<> data;
      auto o = one_bit_adam_maker{0}(data.groups(), scripted(t, told), three);
      for (int i = 0; i < 4; ++i) (void)train(o, data);
      told->fail_at = t.rank() == odd ? told->calls + 3 : script::never;  // the last of the step
      told->fail_after_delivery = true;
      if (t.rank() == odd) {
        CHECK_THROWS_AS((void)train(o, data), onebit::transport_error);
      } else {
        (void)train(o, data);
      }
      const state before = state_of(o, data);
      const auto text = thrown<onebit::rank_mismatch>([&] { (void)train(o, data); });
      if (t.rank() != odd) {
        CHECK(text == contains{"rank " + std::to_string(odd) + " is at step 4 while this rank"});
      } else {
        CHECK(text == contains{"is at step 5 while this rank is at step 4"});
      }
      const bool same = state_of(o, data) == before;
      CHECK(same);
    });
  }
}

TEST_CASE("two levels: elements without variance are carried in local steps") {
  onebit::run_threads(4, [](onebit::threads t) {
    training<> data({64});
    auto o = zero_one_maker{}(data.groups(), t, levels);
    const auto gathered = [&] {
      const float* carried = o.exchange().exact().compensated().values;
      return std::vector<float>(carried, carried + 64);
    };
    int n_local = 0;
    while (n_local < 2) {
      const auto plan = o.schedule().due_in(o.steps(), 0.01F);
      const bool alone = !plan.average && !plan.exchange;
      data.compute_gradients(t.rank(), o.steps());
      for (std::size_t i = 0; i < 32; ++i) data.grads[0][i] = alone ? 1.0F : 0.0F;
      (void)o.step(0.01F);
      if (!alone) continue;
      ++n_local;
      const auto sums = gathered();
      REQUIRE(sums.size() == 64);
      for (std::size_t i = 0; i < 32; ++i) CHECK(sums[i] > 0.0F);
      CHECK(sums[32] != 0.0F);
    }
  });
}

namespace {

/// Trains, with a bad gradient somewhere in each step's first try; all ranks must hold the same.
template <class Make, class Collective>
void check_shape(int n, const std::vector<std::size_t>& sizes, const Make& make,
                 const Collective& collective, bool early) {
  const auto states = on_ranks(n, [&](onebit::threads t) {
    training<> data(sizes);
    std::string half;
    training<> later(sizes);  // the parameters of that checkpoint
    auto o = make(data.groups(), t, collective);
    auto other = make(later.groups(), t, collective);
    for (std::uint64_t i = 0; i < n_steps; ++i) {
      if (i == 5) {
        half = saved(o);
        for (std::size_t k = 0; k < sizes.size(); ++k) later.params[k] = data.params[k];
      }
      const auto plan = o.schedule().due_in(o.steps(), 0.01F);
      const bool alone = !plan.exchange && !plan.average;
      bool freezes = i == Make::freezes_before && n > 1;
      for (std::size_t bad = 0; bad < sizes.size() && !alone; ++bad) {
        if (sizes[bad] == 0) continue;
        const state before = state_of(o, data);
        data.compute_gradients(o.rank(), o.steps());
        if (static_cast<std::uint64_t>(t.rank()) == (i + bad) % static_cast<std::uint64_t>(n)) {
          data.grads[bad].back() = std::numeric_limits<float>::infinity();
        }
        o.begin(0.01F);
        for (std::size_t k = sizes.size(); k-- > 0 && early;) o.ready(k);
        CHECK(o.step(0.01F).skipped);
        CHECK((state_of(o, data) != before) == std::exchange(freezes, false));
      }
      CHECK_FALSE(step(o, data, early).skipped);
    }
    std::istringstream in(half);
    other.load(in);
    while (other.steps() < n_steps) (void)step(other, later, early);
    const bool same = state_of(other, later) == state_of(o, data);
    CHECK(same);
    return data.digest();
  });
  if constexpr (std::is_same_v<Make, one_bit_adam_maker>) {
    for (const auto& s : states) CHECK(s == states[0]);
  }
}

}  // namespace

TEST_CASE("shapes that leave ranks, buckets or nodes without work") {
  const std::vector<std::vector<std::size_t>> shapes = {{},        {0},  {0, 0, 0},       {1},
                                                        {0, 1, 0}, {33}, {1, 1, 1, 1, 1}, {4097}};
  for (const auto& sizes : shapes) {
    CAPTURE(sizes.size());
    CAPTURE(sizes.empty() ? 0 : sizes.back());
    for (const bool early : {false, true}) {
      for (const int n : cases({1, 3}, {5})) {
        CAPTURE(n);
        const onebit::gather_scatter small{onebit::sign<>{}, 32};
        check_shape(n, sizes, one_bit_adam_maker{}, small, early);
        check_shape(n, sizes, zero_one_maker{}, small, early);
      }
    }
    for (const auto& nodes :
         cases<std::pair<int, int>>({{4, 2}, {6, 3}}, {{6, 2}, {8, 4}, {8, 2}})) {
      const int n = nodes.first, per_node = nodes.second;
      CAPTURE(n);
      CAPTURE(per_node);
      const onebit::hierarchical two{onebit::sign<>{}, per_node};
      check_shape(n, sizes, one_bit_adam_maker{}, two, false);
      check_shape(n, sizes, zero_one_maker{}, two, false);
    }
  }
}
