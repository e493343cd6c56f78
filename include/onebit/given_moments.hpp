// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/concepts.hpp>
#include <onebit/error.hpp>
#include <onebit/layout.hpp>
#include <onebit/now.hpp>
#include <onebit/numbers.hpp>
#include <span>
#include <string>
#include <vector>

/// Moments that another framework's Adam has made.
namespace onebit::inline v0_1 {

/// The moments of one tensor, from elsewhere: as many of each as it has parameters.
struct given_moments {
  /// @{
  /// The averages of gradients, and of their squares.
  std::span<const float> m, v;
  /// @}
};

namespace detail {

/// Moments of tensors of these sizes to the flat axis, m and v. Throws invalid_input.
[[gnu::cold]] inline void flatten(const std::vector<given_moments>& moments,
                                  const std::vector<std::size_t>& sizes,
                                  std::vector<float> (&flat)[2], const std::string& where) {
  if (moments.size() != sizes.size()) {
    throw invalid_input(
        message("start_from: moments of ", moments.size(), " tensors for ", sizes.size(), where));
  }
  std::size_t first = 0;
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    const given_moments& g = moments[t];
    if (g.m.size() != sizes[t] || g.v.size() != sizes[t]) {
      throw invalid_input(message("start_from: tensor ", t, " has ", sizes[t], " parameters, but ",
                                  g.m.size(), " of m and ", g.v.size(), " of v", where));
    }
    for (std::size_t i = 0; i < sizes[t]; ++i) {
      if (!std::isfinite(g.m[i]) || !(g.v[i] >= 0 && std::isfinite(g.v[i]))) {
        throw invalid_input(message("start_from: tensor ", t, " element ", i, " has m ", g.m[i],
                                    " and v ", g.v[i], "; both must be finite, v not negative",
                                    where));
      }
      flat[0][first + i] = g.m[i];
      flat[1][first + i] = g.v[i];
    }
    first += (sizes[t] + word_elements - 1) / word_elements * word_elements;
  }
}

}  // namespace detail

/// The moments of an engine's tensors, of so many steps, before its first one; `begun`: it has.
template <class E>
[[gnu::cold]] void take_moments(E& e, const std::vector<given_moments>& moments,
                                std::uint64_t steps, bool begun) {
  if (begun || e.step > 0) {
    throw invalid_input(detail::message("start_from: step ", e.step, " has begun or is done; ",
                                        "moments can be given before the first step only",
                                        e.comm.where()));
  }
  std::vector<float> flat[2];
  for (auto& f : flat) f.assign(e.average.axis().n_words() * word_elements, 0.0F);
  detail::flatten(moments, e.tensors.sizes, flat, e.comm.where());
  e.rule.take(flat[0].data(), flat[1].data());
  if (!e.rule.seen(step_plan{}).corrected) return;
  step_scalars s;
  e.backend().copy_out(&s, e.now(), 1);
  s.bias = detail::bias_after(e.rule.own_moments(), steps);
  e.backend().copy_in(e.now(), &s, 1);
  e.tensors.count_steps(e.backend(), steps);
}

}  // namespace onebit::inline v0_1
