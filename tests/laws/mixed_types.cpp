// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Tensors of several element types in one optimizer: each as if all were of its type.

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <onebit/sharded.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "../support/training.hpp"
#include "shared.hpp"

using namespace onebit_test;
using onebit::any_element;

namespace {

/// A tensor of each type, the 16-bit ones also with masters.
struct mixed_training {
  static constexpr std::size_t n = 700;
  std::vector<float> params, grads, master, master_half;
  std::vector<onebit::bf16> short_params, short_grads, with_master, with_master_grads;
  std::vector<onebit::fp16> half_params, half_grads;

  mixed_training() : params(n), grads(n), master(n), master_half(n) {
    short_params.resize(n), short_grads.resize(n), with_master.resize(n);
    with_master_grads.resize(n), half_params.resize(n), half_grads.resize(n);
    for (std::size_t i = 0; i < n; ++i) {
      const float x = noise(i);
      params[i] = x;
      short_params[i] = onebit::to_bf16(x);
      half_params[i] = onebit::to_fp16(x);
      master[i] = x;
      with_master[i] = onebit::to_bf16(x);
    }
  }
  [[nodiscard]] std::vector<onebit::param_group<any_element>> groups() {
    std::vector<onebit::param_group<any_element>> g(2);
    g[0].weight_decay = 0.01F;
    g[0].tensors = {{std::span(params), std::span(grads)},
                    {std::span(short_params), std::span(short_grads)}};
    g[1].tensors = {{std::span(half_params), std::span(half_grads)},
                    {std::span(with_master), std::span(with_master_grads), master}};
    return g;
  }
  void compute_gradients(int rank, std::uint64_t step) {
    for (std::size_t i = 0; i < n; ++i) {
      const float g = noise(7919 * (step + 1) + 104729 * static_cast<unsigned>(rank + 1) + i);
      grads[i] = g;
      short_grads[i] = with_master_grads[i] = onebit::to_bf16(g);
      half_grads[i] = onebit::to_fp16(g);
    }
  }
  [[nodiscard]] std::uint64_t digest() const {
    onebit::digest d;
    const auto add = [&d](const auto& v) { d.add(v.data(), v.size() * sizeof v[0]); };
    add(params), add(short_params), add(half_params), add(with_master), add(master);
    return d.value();
  }
};

template <class O>
onebit::report train(O& o, mixed_training& data) {
  data.compute_gradients(o.rank(), o.steps());
  return o.step(0.01F);
}

constexpr auto make_mixed = [](mixed_training& data, auto t) {
  return onebit::one_bit_adam(data.groups(), t, frozen_after(3));
};

}  // namespace

TEST_CASE("dense: a tensor among those of other types has the bits that it has among its own") {
  on_ranks(2, [&](onebit::threads t) {
    mixed_training all, alone;
    auto o = onebit::adam(all.groups(), t);
    const auto sum = onebit::dense_sum::rank_order;
    std::vector<onebit::param_group<float, const float>> f(1);
    f[0].weight_decay = 0.01F;
    f[0].tensors.push_back({alone.params, alone.grads});
    std::vector<onebit::param_group<onebit::bf16>> b(2);
    b[0].weight_decay = 0.01F;
    b[0].tensors.push_back({alone.short_params, alone.short_grads});
    b[1].tensors.push_back({alone.with_master, alone.with_master_grads, alone.master});
    std::vector<onebit::param_group<onebit::fp16>> h(1);
    h[0].tensors.push_back({alone.half_params, alone.half_grads});
    auto of = onebit::adam(f, t, {}, onebit::host{}, sum);
    auto ob = onebit::adam(b, t, {}, onebit::host{}, sum);
    auto oh = onebit::adam(h, t, {}, onebit::host{}, sum);
    for (int i = 0; i < 5; ++i) {
      CHECK_FALSE(train(o, all).skipped);
      alone.compute_gradients(t.rank(), o.steps() - 1);
      CHECK_FALSE(of.step(0.01F).skipped);
      CHECK_FALSE(ob.step(0.01F).skipped);
      CHECK_FALSE(oh.step(0.01F).skipped);
      CHECK(all.digest() == alone.digest());
    }
    return 0;
  });
}

TEST_CASE("all floats, without their type, are trained to the same bits in every phase") {
  on_ranks(3, [&](onebit::threads t) {
    training<> typed, untyped;
    std::vector<onebit::param_group<any_element>> groups;
    for (const auto& g : untyped.groups()) {
      groups.push_back({{}, g.lr_factor, g.weight_decay});
      for (const auto& x : g.tensors) groups.back().tensors.push_back({x.params, x.grads});
    }
    auto a = onebit::one_bit_adam(typed.groups(), t, frozen_after(3));
    auto b = onebit::one_bit_adam(groups, t, frozen_after(3));
    for (int i = 0; i < 8; ++i) {
      CHECK_FALSE(onebit_test::train(a, typed).skipped);
      CHECK_FALSE(onebit_test::train(b, untyped).skipped);
      CHECK(typed.params == untyped.params);
    }
    return 0;
  });
}

TEST_CASE("of several types: ranks agree, a bad step changes nothing, a checkpoint goes on") {
  const auto digests = on_ranks(2, [&](onebit::threads t) {
    mixed_training data;
    std::optional o = make_mixed(data, t);
    for (int i = 0; i < 9; ++i) {
      CHECK_FALSE(train(*o, data).skipped);
      const auto before = data.digest();
      const std::string state = saved(*o);
      data.compute_gradients(t.rank(), o->steps());
      if (t.rank() == 1) {  // a NaN in another type each time
        data.short_grads[3] = {static_cast<std::uint16_t>(i % 2 == 0 ? 0x7FC0 : 0)};
        data.half_grads[4] = {static_cast<std::uint16_t>(i % 2 == 1 ? 0x7E00 : 0)};
      }
      CHECK(o->step(0.01F).skipped);
      CHECK(data.digest() == before);
      if (i % 3 == 2) {
        std::istringstream in(state);
        o.reset();
        o.emplace(make_mixed(data, t));
        o->load(in);
      }
    }
    return data.digest();
  });
  CHECK(digests[0] == digests[1]);
}

namespace {

/// The same training twice, of bf16 parameters: once with masters, once with what these lack.
struct twice {
  static constexpr std::size_t sizes[] = {33, 0, 1000, 1, 4128};
  std::vector<std::vector<float>> master;
  std::vector<std::vector<onebit::bf16>> rounded, high, grads;
  std::vector<std::vector<onebit::low_half>> low;

  twice() {
    for (const std::size_t n : sizes) {
      master.emplace_back(n), rounded.emplace_back(n), high.emplace_back(n);
      grads.emplace_back(n), low.emplace_back(n);
      for (std::size_t i = 0; i < n; ++i) {
        rounded.back()[i] = high.back()[i] = onebit::to_bf16(noise(n + i));
        master.back()[i] = onebit::to_float(rounded.back()[i]);
      }
    }
  }
  template <class E>
  [[nodiscard]] std::vector<onebit::param_group<E>> groups(bool with_low) {
    std::vector<onebit::param_group<E>> g(1);
    g[0].weight_decay = 0.01F;
    for (std::size_t t = 0; t < master.size(); ++t) {
      onebit::tensor<E> x{std::span(with_low ? high[t] : rounded[t]), std::span(grads[t])};
      if (with_low) x.master_low = low[t];
      if (!with_low) x.master = master[t];
      g[0].tensors.push_back(x);
    }
    return g;
  }
  void compute_gradients(int rank, std::uint64_t step, bool bad) {
    for (std::size_t t = 0; t < grads.size(); ++t) {
      for (std::size_t i = 0; i < grads[t].size(); ++i) {
        grads[t][i] = onebit::to_bf16(
            noise(7919 * (step + 1) + 104729 * static_cast<unsigned>(rank + 1) + 31 * t + i));
      }
    }
    if (bad && rank == 1) grads[2][7] = onebit::to_bf16(std::numeric_limits<float>::infinity());
  }
  /// How many floats differ, and how many parameters are not one that is nearest to its float.
  [[nodiscard]] std::pair<std::size_t, std::size_t> wrong() const {
    std::pair<std::size_t, std::size_t> n;
    for (std::size_t t = 0; t < master.size(); ++t) {
      for (std::size_t i = 0; i < master[t].size(); ++i) {
        const float x = master[t][i], p = onebit::to_float(high[t][i]);
        n.first += std::bit_cast<std::uint32_t>(onebit::joined(high[t][i], low[t][i])) !=
                   std::bit_cast<std::uint32_t>(x);
        n.second += std::fabs(p - x) > std::fabs(onebit::to_float(rounded[t][i]) - x);
      }
    }
    return n;
  }
};

template <class E, class Make>
void floats_of_masters(const std::string& name, const Make& built) {
  CAPTURE(name);
  on_ranks(2, [&](onebit::threads t) {
    twice data;
    auto a = built(data.groups<E>(false), t), b = built(data.groups<E>(true), t);
    for (std::uint64_t call = 0; call < 16; ++call) {
      const bool bad = call == 2 || call == 9;
      for (auto* o : {&a, &b}) {
        data.compute_gradients(t.rank(), call, bad);
        CHECK(o->step(0.01F).skipped == bad);
      }
      CHECK(data.wrong() == std::pair<std::size_t, std::size_t>{});
    }
    std::size_t n_moved = 0;  // low halves that say something
    for (const auto& x : data.low) {
      for (const onebit::low_half l : x) n_moved += l.bits != 0;
    }
    CHECK(n_moved > 5000);
    return 0;
  });
}

}  // namespace

TEST_CASE("bf16 parameters with the low halves of masters: the floats are those of masters") {
  using onebit::bf16;
  const auto one_bit = [](const auto& g, auto t) {
    return onebit::one_bit_adam(g, t, frozen_after(4));
  };
  floats_of_masters<bf16>("adam", [](const auto& g, auto t) { return onebit::adam(g, t); });
  floats_of_masters<bf16>("lamb", [](const auto& g, auto t) { return onebit::lamb(g, t); });
  floats_of_masters<bf16>("one_bit_adam", one_bit);
  floats_of_masters<any_element>("one_bit_adam, of any type", one_bit);
  floats_of_masters<bf16>("one_bit_lamb", [](const auto& g, auto t) {
    return onebit::one_bit_lamb(g, t, onebit::one_bit_lamb_options{.freeze = {.after = 4}});
  });
  floats_of_masters<bf16>("zero_one_adam", [](const auto& g, auto t) {
    return onebit::zero_one_adam(  // exchanges in every step: local ones leave bad gradients out
        g, t, {.schedule = {.kappa = 2, .warmup_steps = 5, .max_interval = 1}});
  });
  floats_of_masters<bf16>("one_bit_lion",
                          [](const auto& g, auto t) { return onebit::one_bit_lion(g, t, {}); });
}

TEST_CASE("low halves of masters: a parameter that is set to 0 is near 0 and trains on") {
  on_ranks(1, [&](onebit::threads t) {
    twice data;
    auto o = onebit::adam(data.groups<onebit::bf16>(true), t);
    for (std::uint64_t call = 0; call < 4; ++call) {
      data.compute_gradients(0, call, false);
      CHECK_FALSE(o.step(0.01F).skipped);
      if (call % 2 != 0) continue;
      std::size_t n_negative = 0;
      for (std::size_t k = 0; k < data.high.size(); ++k) {
        for (std::size_t i = 0; i < data.high[k].size(); ++i) {
          n_negative += data.low[k][i].bits < 0;
          data.high[k][i].bits = i % 2 == 0 ? 0x0000 : 0x8000;
          const float x = onebit::joined(data.high[k][i], data.low[k][i]);
          CHECK(std::fabs(x) < 1e-40F);
        }
      }
      CHECK(n_negative > 1000);
    }
    for (const auto& x : data.high) {
      for (const onebit::bf16 p : x) CHECK(std::fabs(onebit::to_float(p)) < 0.1F);
    }
    return 0;
  });
}

TEST_CASE("low halves of masters: moved, checked on all ranks, refused where they cannot be") {
  on_ranks(2, [&](onebit::threads t) {
    twice data;
    auto o = onebit::adam(data.groups<onebit::bf16>(true), t);
    o.verify_every(1);
    data.compute_gradients(t.rank(), 0, false);
    (void)o.step(0.01F);
    auto elsewhere = data.low;  // to other memory
    data.low.swap(elsewhere);
    for (auto& x : elsewhere) std::fill(x.begin(), x.end(), onebit::low_half{77});
    CHECK(o.rebind(data.groups<onebit::bf16>(true)) == 4);
    data.compute_gradients(t.rank(), 1, false);
    (void)o.step(0.01F);
    for (const auto& x : elsewhere) {
      CHECK(std::all_of(x.begin(), x.end(), [](onebit::low_half l) { return l.bits == 77; }));
    }
    if (t.rank() == 1) data.low[2][5].bits ^= 64;  // of one master
    data.compute_gradients(t.rank(), 2, false);
    CHECK_THROWS_AS(o.step(0.01F), onebit::rank_mismatch);
    return 0;
  });
  on_ranks(1, [&](onebit::threads t) {
    twice data;
    const auto refused = [&](const auto& groups) {
      return thrown<onebit::invalid_input>([&] { (void)onebit::adam(groups, t); });
    };
    auto groups = data.groups<onebit::bf16>(true);
    groups[0].tensors[2].master = data.master[2];
    CHECK(refused(groups) == contains{"1000 low halves of masters and 1000 masters"});
    groups = data.groups<onebit::bf16>(true);
    groups[0].tensors[2].master_low = std::span(data.low[2]).first(999);
    CHECK(refused(groups) == contains{"1000 params of 2 bytes, 999 low halves"});
    groups = data.groups<onebit::bf16>(true);
    groups[0].tensors[2].master_low = std::span(data.low[4]).first(1000);
    CHECK(refused(groups) == contains{"overlap in memory"});
    mixed_training other;
    std::vector<onebit::low_half> low(mixed_training::n);
    auto mixed = other.groups();
    mixed[1].tensors[0].master_low = low;  // of fp16
    CHECK(refused(mixed) == contains{"only with bf16 parameters"});
    auto o = onebit::adam(data.groups<onebit::bf16>(true), t);
    CHECK(thrown<onebit::invalid_input>([&] {
            (void)o.rebind(data.groups<onebit::bf16>(false));
          }) == contains{"33 masters and 0 low halves, but had 33, 0 and 33"});
    CHECK(thrown<onebit::invalid_input>([&] {
            (void)onebit::sharded_adam(data.groups<onebit::bf16>(true), t);
          }) == contains{"sharding::masters"});
    return 0;
  });
}

TEST_CASE("of several types: what cannot be is refused") {
  on_ranks(1, [&](onebit::threads t) {
    mixed_training data;
    auto groups = data.groups();
    groups[0].tensors[0].master = data.master;
    CHECK(thrown<onebit::invalid_input>([&] { (void)onebit::adam(groups, t); }) ==
          contains{"params of 4 bytes and 700 master parameters"});
    groups = data.groups();
    groups[0].tensors[1].grads = std::span(data.short_grads).first(5);
    CHECK(thrown<onebit::invalid_input>([&] { (void)onebit::adam(groups, t); }) ==
          contains{"has 700 params but 5 grads"});
    groups = data.groups();
    groups[0].tensors[1].params =
        std::span(reinterpret_cast<onebit::bf16*>(data.params.data()), data.params.size());
    CHECK(thrown<onebit::invalid_input>([&] { (void)onebit::adam(groups, t); }) ==
          contains{"overlap in memory"});
    return 0;
  });
}
