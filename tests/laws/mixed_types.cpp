// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Tensors of several element types in one optimizer: each as if all were of its type.

#include <algorithm>
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
    onebit::detail::digest d;
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
      CHECK_FALSE(onebit::testing::train(a, typed).skipped);
      CHECK_FALSE(onebit::testing::train(b, untyped).skipped);
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
