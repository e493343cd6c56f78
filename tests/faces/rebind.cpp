// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Memory that moves between steps: the bits of memory that does not.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <iterator>
#include <onebit/extras/by_name.hpp>
#include <onebit/transport/threads.hpp>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/ranks.hpp"

using namespace onebit;
using onebit_test::contains;
using onebit_test::thrown;

namespace {

constexpr std::size_t sizes[] = {100, 0, 4099, 33};
constexpr std::size_t n_tensors = std::size(sizes);

template <class T>
float wide(T x) {
  if constexpr (std::is_same_v<T, float>) {
    return x;
  } else {
    return to_float(x);
  }
}

/// Tensors whose memory may move.
template <class P, class G>
struct moving {
  using stored = std::remove_const_t<G>;
  std::vector<P> x[n_tensors];
  std::vector<stored> g[n_tensors];
  std::vector<float> master[n_tensors];

  moving() {
    for (std::size_t t = 0; t < n_tensors; ++t) {
      x[t].resize(sizes[t]);
      g[t].resize(sizes[t]);
      for (std::size_t i = 0; i < sizes[t]; ++i)
        x[t][i] = from_float<P>(0.01F * static_cast<float>(i % 17));
      if (std::is_same_v<P, float>) continue;
      for (const P p : x[t]) master[t].push_back(wide(p));
    }
  }
  std::vector<param_group<P, G>> groups() {
    std::vector<param_group<P, G>> all(2);
    for (std::size_t t = 0; t < n_tensors; ++t) {
      all[t < 3 ? 0 : 1].tensors.push_back({x[t], g[t], master[t]});
    }
    return all;
  }
  /// To other memory; where it was there is nothing that a step may use.
  void move(std::vector<std::vector<float>>& left) {
    for (std::size_t t = 0; t < n_tensors; ++t) {
      auto moved = x[t];
      x[t].swap(moved);
      std::fill(moved.begin(), moved.end(), from_float<P>(std::nanf("")));
      auto moved_g = g[t];
      g[t].swap(moved_g);
      std::fill(moved_g.begin(), moved_g.end(), from_float<stored>(std::nanf("")));
      auto moved_master = master[t];
      master[t].swap(moved_master);
      std::fill(moved_master.begin(), moved_master.end(), std::nanf(""));
      // kept: the next vector must not get the same memory
      old_x.push_back(std::move(moved));
      old_g.push_back(std::move(moved_g));
      left.push_back(std::move(moved_master));
    }
  }
  void differentiate(int step, int rank) {
    for (std::size_t t = 0; t < n_tensors; ++t) {
      for (std::size_t i = 0; i < sizes[t]; ++i) {
        const auto k = (i * 7 + static_cast<std::size_t>(step * 13 + rank * 5)) % 23;
        g[t][i] = from_float<stored>(wide(x[t][i]) + 0.1F * (static_cast<float>(k) - 11.0F));
      }
    }
  }
  bool operator==(const moving& other) const {
    for (std::size_t t = 0; t < n_tensors; ++t) {
      if (sizes[t] == 0) continue;
      if (std::memcmp(x[t].data(), other.x[t].data(), sizes[t] * sizeof(P)) != 0) return false;
    }
    return true;
  }

  std::vector<std::vector<P>> old_x;
  std::vector<std::vector<stored>> old_g;
};

template <class P, class G>
void trains_alike(const std::string& name, const option_map& options) {
  run_threads(2, [&](threads comm) {
    moving<P, G> a, b;
    std::vector<std::vector<float>> left;
    any_optimizer x = make_optimizer(name, options, a.groups(), comm);
    any_optimizer y = make_optimizer(name, options, b.groups(), comm);
    x.warn_with(nullptr);
    y.warn_with(nullptr);
    for (int step = 0; step < 10; ++step) {
      if (step % 3 == comm.rank()) {  // each rank's memory at its own times
        a.move(left);
        CHECK(x.rebind(a.groups()) == n_tensors - 1);  // one is empty
      } else {
        CHECK(x.rebind(a.groups()) == 0);
      }
      a.differentiate(step, comm.rank());
      b.differentiate(step, comm.rank());
      CHECK_FALSE(x.step(0.01F).skipped);
      CHECK_FALSE(y.step(0.01F).skipped);
    }
    CHECK(a == b);
  });
}

}  // namespace

TEST_CASE("trainings whose memory moves have the bits of those whose memory stays [rebind]") {
  const option_map freezing{{"after", "3"}, {"beta2", "0.99"}};
  const option_map local{{"warmup_steps", "3"}, {"doubling_steps", "2"}};
  trains_alike<float, float>("adam", {});
  trains_alike<float, float>("lamb", {});
  trains_alike<float, float>("one_bit_adam", freezing);
  trains_alike<float, float>("one_bit_lamb", freezing);
  trains_alike<float, float>("zero_one_adam", local);
  trains_alike<float, const float>("one_bit_adam", freezing);
  trains_alike<bf16, bf16>("zero_one_adam", local);
}

TEST_CASE("what is not the same tensors is refused, and changes nothing [rebind]") {
  run_threads(1, [](threads comm) {
    moving<float, float> a, other;
    auto o = adam(a.groups(), comm);
    any_optimizer any = adam(other.groups(), comm);
    const auto why = [&](const std::vector<param_group<>>& groups) {
      return thrown<invalid_input>([&] { (void)o.rebind(groups); });
    };
    auto groups = a.groups();
    groups.pop_back();
    CHECK(why(groups) == contains{"rebind: 1 groups, but the optimizer has 2"});
    groups = a.groups();
    groups[1].tensors.pop_back();
    CHECK(why(groups) == contains{"rebind: group 1 has 0 tensors, but had 1"});
    groups = a.groups();
    groups[0].tensors[2].params = groups[0].tensors[2].params.first(4000);
    CHECK(why(groups) ==
          contains{"rebind: tensor 2 has 4000 params and 0 masters, but had 4099 and 0"});
    groups = a.groups();
    groups[0].tensors[2].grads = groups[0].tensors[2].grads.first(4000);
    CHECK(why(groups) == contains{"4099 params but 4000 grads"});
    groups = a.groups();
    groups[1].tensors[0].params = groups[0].tensors[0].params.first(33);
    CHECK(why(groups) == contains{"overlap in memory"});
    groups = a.groups();
    groups[0].tensors[0].params = {static_cast<float*>(nullptr), 100};
    CHECK(why(groups) == contains{"which is null"});
    a.differentiate(0, 0);
    o.begin(0.1F);
    CHECK(why(a.groups()) == contains{"step 0 has begun"});
    CHECK_FALSE(o.step(0.1F).skipped);

    other.differentiate(0, 0);
    CHECK_FALSE(any.step(0.1F).skipped);
    CHECK(a == other);
    const std::vector<param_group<float, const float>> constant(2);
    CHECK(thrown<invalid_input>([&] { (void)any.rebind(constant); }) ==
          contains{"of other element types"});
  });
}

TEST_CASE("options of groups stay what they are [rebind]") {
  run_threads(1, [](threads comm) {
    std::vector<float> x(8, 1.0F), g(8, 1.0F), moved(8, 1.0F);
    std::vector<param_group<>> groups(1);
    groups[0].tensors = {{x, g}};
    groups[0].lr_factor = 0.5F;
    auto o = adam(groups, comm);
    groups[0].tensors = {{moved, g}};
    groups[0].lr_factor = 7;
    CHECK(o.rebind(groups) == 1);
    (void)o.step(0.1F);
    CHECK(x[0] == 1);
    CHECK(moved[0] == doctest::Approx(0.95));
  });
}

TEST_CASE("tensors of several element types [rebind]") {
  run_threads(1, [](threads comm) {
    std::vector<float> x(8, 1.0F), g(8, 1.0F), moved(8, 1.0F);
    std::vector<bf16> y(8, to_bf16(1.0F)), h(8, to_bf16(1.0F)), moved_y(8, to_bf16(1.0F));
    const auto span = [](auto& v) { return onebit::detail::any_span(std::span(v)); };
    std::vector<param_group<any_element>> groups(1);
    groups[0].tensors = {{span(x), span(g)}, {span(y), span(h)}};
    any_optimizer o = adam(groups, comm);
    CHECK(o.rebind(groups) == 0);
    groups[0].tensors = {{span(moved), span(g)}, {span(moved_y), span(h)}};
    CHECK(o.rebind(groups) == 2);
    (void)o.step(0.5F);
    CHECK(x[0] == 1);
    CHECK(moved[0] == doctest::Approx(0.5));
    CHECK(to_float(y[0]) == 1);
    CHECK(to_float(moved_y[0]) == doctest::Approx(0.5));
    groups[0].tensors[0].grads = span(h);
    CHECK(thrown<invalid_input>([&] { (void)o.rebind(groups); }) ==
          contains{"rebind: tensor 0 has other types of elements"});
  });
}
