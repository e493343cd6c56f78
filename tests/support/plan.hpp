// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A training with 1-bit Adam as a plan, and all that a rank has in it, step by step.

#ifndef ONEBIT_TESTS_SUPPORT_PLAN_HPP
#define ONEBIT_TESTS_SUPPORT_PLAN_HPP

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <onebit/onebit.hpp>
#include <onebit/testing/values.hpp>
#include <string>
#include <vector>

#include "ranks.hpp"
#include "tile_codecs.hpp"

namespace onebit_test {

struct plan {
  std::vector<std::size_t> sizes = odd_sizes();
  std::vector<group_spec> groups{};  ///< empty: one group of all tensors
  int ranks = 2;
  std::size_t steps = 10;
  float lr = 0.01F;
  std::uint64_t seed = 1;
  int exponent = 0;  ///< gradients are multiplied by 2^exponent
  onebit::one_bit_adam_options options = [] {
    onebit::one_bit_adam_options o;
    o.max_step = 0;  // the reference implementations have no bound
    o.freeze.after = 4;
    o.refreshes = 0;
    return o;
  }();
  /// Called after gradients are filled, before the step.
  std::function<void(memory&, int rank, std::size_t step)> disturb{};

  std::vector<group_spec> all_groups() const {
    if (groups.empty()) return {{sizes.size(), 1, 0}};
    return groups;
  }
  /// Returns gradients of very different sizes; 0 before the freeze in every 37th element.
  float gradient(int rank, std::size_t step, std::size_t i) const {
    if (i % 37 == 5 && step < options.freeze.after) return 0;
    const float x = noise(seed, static_cast<std::uint64_t>(rank), step + 1, i);
    const int e = static_cast<int>(i % 7) - 3 + exponent;
    if (e < -126 || e > 127) return std::ldexp(x, e);
    return x * std::bit_cast<float>(static_cast<std::uint32_t>(e + 127) << 23U);  // faster ldexp
  }
  void fill(memory& m, int rank, std::size_t step) const {
    std::size_t at = 0;
    for (flat& g : m.grads) {
      for (float& x : g) x = gradient(rank, step, at++);
    }
    if (disturb) disturb(m, rank, step);
  }
};

/// Results of a training on one rank.
struct trace {
  std::vector<flat> params;  ///< by step: all tensors, concatenated
  std::vector<onebit::report> reports;
  std::string checkpoint;
  /// On the flat axis (of the server: its chunk); empty if nothing was exchanged.
  flat agreed, worker_residual, server_residual, scales;
};

/// Trains with 1-bit Adam on one rank.
template <class G = float, class Collective>
trace train(onebit::threads transport, const plan& p, Collective collective,
            onebit::host backend = onebit::host()) {
  memory own(p.sizes);
  const int rank = transport.rank();
  auto o = onebit::one_bit_adam(own.groups<G>(p.all_groups()), transport, p.options, collective,
                                backend);
  trace t;
  for (std::size_t step = 0; step < p.steps; ++step) {
    p.fill(own, rank, step);
    t.reports.push_back(o.step(p.lr));
    t.params.push_back(own.all_params());
  }
  t.checkpoint = saved(o);
  auto& x = o.exchange();
  CHECK(x.started() == (p.ranks > 1 && p.steps > p.options.freeze.after));
  if (!x.started()) return t;  // with one rank exchanges never start
  t.agreed = copied(x.previous(o.active()), x.sender(), backend);
  t.scales.assign(x.sender().scales().begin(), x.sender().scales().end());
  t.worker_residual = copied(x.sender().residual({}), x.sender(), backend);
  const auto& server = x.server_residual();
  t.server_residual.assign(server.data(), server.data() + server.size());
  return t;
}

}  // namespace onebit_test

#endif  // ONEBIT_TESTS_SUPPORT_PLAN_HPP
