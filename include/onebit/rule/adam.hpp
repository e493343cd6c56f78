// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/concepts/backend.hpp>
#include <onebit/concepts/moments.hpp>
#include <onebit/concepts/rule.hpp>
#include <onebit/concepts/stand_ins.hpp>
#include <onebit/core/config.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/kernel/context.hpp>
#include <onebit/kernel/param_group.hpp>
#include <onebit/kernel/scalars.hpp>
#include <onebit/rule/moments.hpp>
#include <onebit/rule/own_variance.hpp>
#include <onebit/rule/refreshing.hpp>
#include <type_traits>
#include <utility>

/// The rule of Adam and 1-bit Adam: dense steps, and updates from mean messages.
namespace onebit { inline namespace v0_3 {

namespace detail {

/// Dense Adam step: updates m, v and x from the exact mean gradient.
template <class View, class P, class G>
struct adam_dense_kernel {
  View gradient;
  step_tables<P, G> tables;
  float *m, *v;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tables.tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile t = tile_at(i);
    const tensor_entry<P, G>& tensor = tables.tensors[t.tensor];
    const auto gradient_at = gradient.template at<L>(t, i);
    const parameters_of<L, P> params(tensor, t, tables.now);
    const float rate = tensor.rate(tables.now);
    const auto c = tables.scalars[t.tensor].c;
    const auto correction = L::set(tables.scalars[t.tensor].m_correction);
    const float v_correction = tables.scalars[t.tensor].v_correction;
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      float* m_word = m + (t.word + k) * 32;
      float* v_word = v + (t.word + k) * 32;
      const auto g = gradient_at(k);
      const auto m_new = c.template next_momentum<L>(L::load(m_word), g);
      const auto v_new = c.template next_variance<L>(L::load(v_word), g);
      L::store(m_word, m_new);
      L::store(v_word, v_new);
      const auto d = c.template denominator<L>(v_new, v_correction);
      params.move(k, rate, tensor.weight_decay, L::div(L::mul(m_new, correction), d));
    }
  }
};

/// Update of the compressed phase: x -= lr (u c + weight_decay x), u the latest mean direction, c
/// the bias correction of m. Also updates this rank's v, if it has its own. Reads and writes 8
/// bytes and a bit per element; 18 with a v of its own; 4 more if momenta are sent. With a `Layer`
/// type, lr is multiplied by the layer's coefficient.
template <class View, class P, class G, class Layer = void>
struct adam_update_kernel {
  View latest;
  step_tables<P, G> tables;
  const float* inverses;          ///< if momenta are sent: 1 / (sqrt(v) + eps); else null
  bool takes_squares = false;     ///< into this rank's own v
  direction_units units{};        ///< of that v
  const Layer* layers = nullptr;  ///< by tensor; unused without a `Layer` type
  growth_sums growth{};           ///< of that v

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tables.tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile t = tile_at(i);
    const tensor_entry<P, G>& tensor = tables.tensors[t.tensor];
    const auto latest_at = latest.template at<L>(t, i);
    const parameters_of<L, P> params(tensor, t, tables.now);
    float rate = tensor.rate(tables.now);
    if constexpr (!std::is_void_v<Layer>) rate *= layers[t.tensor].coefficient;
    const auto correction = L::set(tables.scalars[t.tensor].m_correction);
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      auto u = L::mul(latest_at(k), correction);
      if (inverses != nullptr) u = L::mul(u, L::load(inverses + (t.word + k) * 32));
      params.move(k, rate, tensor.weight_decay, u);
    }
    if (takes_squares) take_squares_in<L>(units, growth, i, t, tables);
  }
};

}  // namespace detail

/// Adam, and 1-bit Adam after its dense steps. The rule only computes: collectives communicate.
///
/// State: m and v, 8 bytes per element, in dense steps; then the state of refreshing_rule.
/// Source: 1-bit Adam, algorithm 1; eps outside the root and decoupled weight decay, as in the
/// authors' code. The refresh of v is this library's own.
template <Backend B>
class adam_rule : public freezing_rule<B, adam_options> {
  using base = freezing_rule<B, adam_options>;
  using base::m_, base::v_;

 public:
  adam_rule(adam_options options, B backend, direction_options directions = {})
      : base(options, std::move(backend), directions) {
    validate(options);
  }
  /// Dense step: updates x, m and v from the mean gradient. One pass, 28 bytes per element.
  template <class View, class P, class G>
  void dense_update(const View& gradient, const step_context<B, P, G>& at) {
    at.launch(detail::adam_dense_kernel<View, P, G>{gradient, at, m_.data(), v_.data()});
  }

  /// Updates x from the latest mean message, and this rank's v.
  template <class View, class P, class G, class Update>
  void compressed_update(const View& latest, const View&, const step_context<B, P, G>& at,
                         const Update& update) {
    update(detail::adam_update_kernel<View, P, G>{
        latest, at, base::directions() ? nullptr : base::inverse(), base::update_takes_squares(),
        base::units(), nullptr, base::growth_sums(at)});
    base::note_growth(at);
  }
};

static_assert(ResumingRule<adam_rule<detail::any_backend>> &&
              RefreshingRule<adam_rule<detail::any_backend>>);

}}  // namespace onebit
