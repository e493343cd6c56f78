// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/concepts/moments.hpp>
#include <onebit/concepts/plan.hpp>
#include <onebit/core/digest.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/core/words.hpp>
#include <onebit/kernel/context.hpp>
#include <onebit/kernel/launch.hpp>
#include <onebit/kernel/moments.hpp>
#include <onebit/kernel/scalars.hpp>
#include <onebit/step/residuals.hpp>
#include <onebit/step/tensors.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

/// Moments of Adam that come from another optimizer, or go to one.
namespace onebit { inline namespace v0_3 {

/// Moments of one tensor, from another optimizer: as many elements of each as the tensor has.
struct given_moments {
  /// @{
  /// Averages of gradients and of their squares.
  std::span<const float> m, v;
  /// @}
  /// Number of gradients in m and v (torch's `step`), for bias correction alone. Not given: that of
  /// start_from, or 0 if both are all 0.
  std::optional<std::uint64_t> steps{};
};

/// Moments of one tensor of a running optimizer. Converts to given_moments.
struct tensor_moments {
  /// @{
  /// Averages of gradients and of their squares, before bias correction.
  std::vector<float> m, v;
  /// @}
  operator given_moments() const { return {m, v, {}}; }  ///< views of both
};

namespace detail {

/// Copies moments of tensors to the flat axis: m to flat[0], v to flat[1]. Throws invalid_input.
[[gnu::cold]] inline void flatten(const std::vector<given_moments>& moments,
                                  const std::vector<std::size_t>& sizes,
                                  std::vector<float> (&flat)[2], const std::string& where) {
  if (moments.size() != sizes.size()) {
    throw invalid_input(error_text("start_from: moments of ", moments.size(), " tensors for ",
                                   sizes.size(), where));
  }
  std::size_t first = 0;
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    const given_moments& g = moments[t];
    if (g.m.size() != sizes[t] || g.v.size() != sizes[t]) {
      throw invalid_input(error_text("start_from: tensor ", t, " has ", sizes[t],
                                     " parameters, but ", g.m.size(), " of m and ", g.v.size(),
                                     " of v", where));
    }
    for (std::size_t i = 0; i < sizes[t]; ++i) {
      if (!std::isfinite(g.m[i]) || !(g.v[i] >= 0 && g.v[i] <= 0x1p126F)) {
        throw invalid_input(
            error_text("start_from: tensor ", t, " element ", i, " has m ", g.m[i], " and v ",
                       g.v[i], "; both must be finite, v not negative and at most 2^126", where));
      }
      flat[0][first + i] = g.m[i];
      flat[1][first + i] = g.v[i];
    }
    first += words_of(sizes[t]) * word_elements;
  }
}

/// Returns how many gradients are in given moments, after `steps` steps.
[[gnu::cold]] inline std::uint64_t gradients_in(const given_moments& g, std::uint64_t steps) {
  const auto is_zero = [](float x) { return x == 0; };
  const bool empty =
      std::all_of(g.m.begin(), g.m.end(), is_zero) && std::all_of(g.v.begin(), g.v.end(), is_zero);
  return g.steps.value_or(empty ? 0 : steps);
}

/// Sets the moments of all tensors of engine e, as after `steps` steps. Throws invalid_input if a
/// step is done or has `begun`.
template <class E>
[[gnu::cold]] void take_moments(E& e, const std::vector<given_moments>& moments,
                                std::uint64_t steps, bool begun) {
  if (begun || e.step > 0 || e.rule.frozen()) {
    throw invalid_input(error_text("start_from: step ", e.step, " has begun or is done; ",
                                   "moments can be given before the first step only",
                                   e.comm.where()));
  }
  std::vector<float> flat[2];
  for (auto& f : flat) f.assign(e.average.axis().n_words() * word_elements, 0.0F);
  flatten(moments, e.tensors.sizes, flat, e.comm.where());
  e.rule.take(flat[0].data(), flat[1].data());
  e.given_moments = true;
  if constexpr (requires { e.schedule.start_warning(steps); }) {
    const std::string text = e.schedule.start_warning(steps);
    const bool tells = e.hooks.warn != nullptr && e.comm.rank() == 0 && e.comm.size() > 1;
    if (!text.empty() && tells) e.hooks.warn(text);
  }
  std::vector<std::uint64_t> counts;
  for (const given_moments& g : moments) counts.push_back(gradients_in(g, steps));
  digest of_given;
  of_given.add(steps);
  of_given.add(counts.data(), counts.size() * sizeof(std::uint64_t));
  for (const auto& f : flat) of_given.add(f.data(), f.size() * sizeof(float));
  e.given_digest = static_cast<std::uint32_t>(of_given.value() ^ of_given.value() >> 32U) | 1U;
  if (!e.rule.updated(step_plan{}).corrected) return;
  step_scalars s = e.fetch();
  s.bias = bias_after(e.rule.own_moments(), steps);
  e.backend().copy_in(e.now(), &s, 1);
  e.tensors.count_steps(e.backend(), counts);
}

/// The previous mean message as the next message takes it up: right after a refresh, elements that
/// it has made active have had beta1 times theirs taken off the residual (woken_message).
template <class View>
struct taken_up_field {
  View previous;
  active_mask before;
  const tensor_scalars* scalars;

  template <class L>
  struct reader {
    typename View::template reader<L> previous;
    active_mask before;
    std::size_t word;
    float beta1;
    ONEBIT_HD typename L::value operator()(std::uint32_t k) const {
      const auto value = previous(k);
      return before.template select<L>(word + k, value, L::mul(value, L::set(beta1)));
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t index) const {
    return {previous.template at<L>(t, index), before, t.word, scalars[t.tensor].own_beta1};
  }
};

/// Writes the moments of a rule in its compressed phase to m and v, on the flat axis. Collective.
template <class E, class Buffer>
[[gnu::cold]] void compressed_moments(E& e, Buffer& m, Buffer& v) {
  const auto n_ranks = static_cast<std::size_t>(e.comm.size());
  const auto per_node = static_cast<std::size_t>(e.exchange.ranks_per_node());
  const auto make_flat = [&] { return e.backend().template make_buffer<float>(m.size()); };
  const auto at = e.at();
  auto sum = make_flat(), squares = make_flat();
  add_own_squares(e, n_ranks, squares.data());
  e.comm.all_reduce_sum(squares.data(), squares.size());
  e.rule.write_variance(squares, at, v.data());
  if constexpr (!decltype(e.rule)::local_steps) {
    add_residuals(e, n_ranks, per_node, sum.data());
    e.comm.all_reduce_sum(sum.data(), sum.size());
    const auto previous = e.exchange.previous();
    using field = taken_up_field<std::remove_const_t<decltype(previous)>>;
    const active_mask before = e.fetch().counts.refreshed != 0 ? e.refresh.before() : active_mask{};
    e.backend().launch(
        at.n_tiles(),
        add_field_kernel<field>{{previous, before, at.scalars}, {at.tiles}, {sum.data()}, 1.0F});
  }
  e.rule.write_moments(flat_field{sum.data()}, at, m.data(), v.data());
}

/// Implements optimizer::moments. Collective.
template <class E>
[[nodiscard, gnu::cold]] std::vector<tensor_moments> moments_of(E& e) {
  if (!e.ranks_alike()) {
    throw invalid_input(
        error_text("moments: after ", e.step,
                   " steps the ranks are between two exchanges, where their moments "
                   "differ; call it after a step whose phase is not local",
                   e.comm.where()));
  }
  e.wait();
  e.tensors.copy_changes(e.backend());  // addresses of memory that has moved
  const std::size_t n = e.average.axis().n_words() * word_elements;
  std::vector<float> flat[2] = {std::vector<float>(n), std::vector<float>(n)};
  const auto read = [&](const float* m, const float* v) {
    e.backend().copy_out(flat[0].data(), m, n);
    e.backend().copy_out(flat[1].data(), v, n);
  };
  if (e.rule.frozen()) {
    auto m = e.backend().template make_buffer<float>(n),
         v = e.backend().template make_buffer<float>(n);
    compressed_moments(e, m, v);
    e.wait();
    read(m.data(), v.data());
  } else {
    read(e.rule.momentum(), e.rule.variance());
  }
  // so that start_from(moments, steps) corrects as this optimizer does, also where tensors rested
  std::vector<tensor_scalars> scalars(e.tensors.size());
  e.backend().copy_out(scalars.data(), e.tensors.scalars.data(), scalars.size());
  const bool corrected = e.rule.updated(step_plan{}).corrected;
  const auto factor = [&](double then, double now) {
    return corrected && now < 1 && then < 1 ? static_cast<float>((1 - then) / (1 - now)) : 1.0F;
  };
  std::vector<tensor_moments> all(e.tensors.size());
  std::size_t first = 0;
  for (std::size_t t = 0; t < all.size(); ++t) {
    const std::size_t size = e.tensors.sizes[t];
    const bias_decay then = bias_after(e.tensors.host_options[t].of, e.step), now = scalars[t].bias;
    const float factors[2] = {factor(then.m, now.m), factor(then.v, now.v)};
    std::vector<float>* const to[2] = {&all[t].m, &all[t].v};
    for (int k = 0; k < 2; ++k) {
      for (std::size_t i = 0; i < size; ++i) to[k]->push_back(flat[k][first + i] * factors[k]);
    }
    first += words_of(size) * word_elements;
  }
  return all;
}

}  // namespace detail
}}  // namespace onebit
