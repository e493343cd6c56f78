// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Law 8: what never had a gradient before the freeze never moves by one afterwards, counts in no
// scale and leaves nothing in a residual; weight decay still acts.

#include "shared.hpp"

using namespace onebit_test;
using onebit::granularity;

namespace {

bool dead(std::size_t tensor, std::size_t i) {
  // single elements, whole words, and all of tensor 2
  return tensor == 2 || i % 5 == 3 || (i >= 64 && i < 128);
}

void silence(memory& m, std::size_t step, std::size_t freeze_after) {
  for (std::size_t k = 0; k < m.grads.size(); ++k) {
    for (std::size_t i = 0; i < m.grads[k].size(); ++i) {
      if (!dead(k, i)) {
        if (m.grads[k][i] == 0) m.grads[k][i] = 0.125F;  // the plan has dead elements of its own
        continue;
      }
      // nothing before the freeze; large gradients on every rank after it
      m.grads[k][i] = step < freeze_after ? 0.0F : (i % 2 == 0 ? 1e3F : -1e3F);
    }
  }
}

plan dead_plan(int ranks) {
  plan p;
  p.sizes = {300, 40, 100, 33};
  p.groups = {{1, 1.0F, 0.0F}, {2, 0.5F, 0.25F}, {1, 1.0F, 0.0F}};
  p.ranks = ranks;
  p.steps = 10;
  p.disturb = [after = p.options.freeze.after](memory& m, int, std::size_t step) {
    silence(m, step, after);
  };
  return p;
}

template <class Collective>
void check(const plan& p, const Collective& collective) {
  CAPTURE(onebit::policy_name(collective));
  CAPTURE(p.ranks);
  for (const trace& t :
       on_ranks(p.ranks, [&](onebit::threads x) { return train(x, p, collective); })) {
    const memory start(p.sizes);
    std::size_t at = 0, word = 0, n_moved = 0, n_stuck = 0, n_wrong_decay = 0, n_held = 0;
    for (std::size_t k = 0; k < p.sizes.size(); ++k) {
      const bool decays = k == 1 || k == 2;
      for (std::size_t i = 0; i < p.sizes[k]; ++i, ++at) {
        const float x0 = start.params[k][i], x = t.params.back()[at];
        if (!dead(k, i)) {
          n_stuck += x == x0 ? 1U : 0U;
          continue;
        }
        n_held += t.agreed.at(word * 32 + i) != 0 ? 1U : 0U;
        if (!decays) {
          n_moved += bits_of(x) == bits_of(x0) ? 0U : 1U;
        } else {
          float expected = x0;
          for (std::size_t step = 0; step < p.steps; ++step) {
            expected = std::fma(-(p.lr * 0.5F), std::fma(0.25F, expected, 0.0F), expected);
          }
          n_wrong_decay += bits_of(x) == bits_of(expected) ? 0U : 1U;
        }
      }
      word += (p.sizes[k] + 31) / 32;
    }
    CHECK(n_moved == 0);
    CHECK(n_stuck == 0);
    CHECK(n_wrong_decay == 0);
    CHECK(n_held == 0);
  }
}

}  // namespace

TEST_CASE("law 8: elements without a gradient before the freeze are never moved by one") {
  for (const int w : {2, 3, 5}) {
    const plan p = dead_plan(w);
    for (const granularity g : {granularity::vector(), granularity::layer(), granularity::chunk(),
                                granularity::block(32)}) {
      check(p, onebit::gather_scatter{onebit::sign<onebit::l2_scale>{g}});
      check(p, onebit::all_gather{onebit::sign<onebit::l1_scale>{g}});
    }
    check(p, onebit::gather_scatter<ternary>{});
    check(p, onebit::all_gather<int8_tile>{});
    check(p, onebit::gather_scatter<onebit::identity>{});
  }
}

TEST_CASE("law 8: with one rank nothing is frozen: they move as with Adam, as soon as they can") {
  const plan p = dead_plan(1);
  const auto adam = on_ranks(1, [&](onebit::threads t) {
    memory own(p.sizes);
    auto o = onebit::adam(own.groups<float>(p.all_groups()), t,
                          {.beta1 = p.options.adam.beta1, .beta2 = p.options.adam.beta2});
    for (std::size_t step = 0; step < p.steps; ++step) {
      p.fill(own, 0, step);
      o.step(p.lr);
    }
    return own.all_params();
  })[0];
  const flat one_bit = on_ranks(1,
                                [&](onebit::threads t) {
                                  return train(t, p, onebit::gather_scatter<onebit::sign<>>{});
                                })[0]
                           .params.back();
  const flat start = memory(p.sizes).all_params();
  CHECK(first_difference(one_bit, adam) == none);
  for (std::size_t i = 0; i < start.size(); ++i) CHECK(one_bit[i] != start[i]);
}

TEST_CASE("law 8: scales are those of the elements that live") {
  // All live messages have magnitude 0.5: every scale is 0.5 exactly, however many are dead, and
  // however large their gradients. Dead sets have scale 0.
  plan p = dead_plan(2);
  p.options.adam.beta1 = 0.0;  // the message is the gradient
  p.steps = p.options.freeze.after + 1;
  p.disturb = [after = p.options.freeze.after](memory& m, int, std::size_t step) {
    for (flat& g : m.grads) {
      for (std::size_t i = 0; i < g.size(); ++i) g[i] = i % 3 == 0 ? 0.5F : -0.5F;
    }
    silence(m, step, after);
  };
  for (const granularity g : {granularity::vector(), granularity::layer(), granularity::chunk(),
                              granularity::block(64)}) {
    CAPTURE(onebit::to_string(g));
    const auto check_scales = [&](const auto& collective) {
      for (const trace& s :
           on_ranks(2, [&](onebit::threads t) { return train(t, p, collective); })) {
        std::size_t n_half = 0, n_zero = 0;
        for (const float x : s.scales) {
          n_half += x == 0.5F ? 1U : 0U;
          n_zero += x == 0.0F ? 1U : 0U;
        }
        CHECK(n_half > 0);
        CHECK(n_half + n_zero == s.scales.size());
        if (g == granularity::layer()) CHECK((n_half == 3 && n_zero == 1));
        if (g == granularity::block(64)) CHECK(n_zero >= 3);  // a block of tensor 0, tensor 2
        for (const float x : s.agreed) CHECK((std::fabs(x) == 0.5F || x == 0.0F));
      }
    };
    check_scales(onebit::gather_scatter{onebit::sign<onebit::l2_scale>{g, 1}});
    check_scales(onebit::gather_scatter{onebit::sign<onebit::l1_scale>{g, 1}});
    check_scales(onebit::all_gather{onebit::sign<onebit::l2_scale>{g, 1}});
  }
}

TEST_CASE("law 8: a rank that is alone with its gradients is enough to live") {
  plan p;
  p.sizes = {64};
  p.ranks = 3;
  p.steps = 6;
  p.disturb = [](memory& m, int rank, std::size_t step) {
    for (std::size_t i = 0; i < 64; ++i) {
      m.grads[0][i] = rank == 2 && step == 1 && i < 10 ? 0.5F : 0.0F;
    }
  };
  for (const trace& t : on_ranks(3, [&](onebit::threads x) {
         return train(x, p, onebit::gather_scatter<onebit::sign<>>{});
       })) {
    const memory start(p.sizes);
    for (std::size_t i = 0; i < 64; ++i) {
      CHECK((t.params.back()[i] != start.params[0][i]) == (i < 10));
      CHECK((t.agreed[i] != 0) == (i < 10));
    }
  }
}
