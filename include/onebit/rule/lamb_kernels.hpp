// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/core/concepts.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/core/param_group.hpp>
#include <onebit/core/step_context.hpp>
#include <onebit/core/step_state.hpp>
#include <onebit/rule/following.hpp>
#include <onebit/rule/moments.hpp>

/// The passes of LAMB and 1-bit LAMB. Norms are sums of squares: per tile in float, over tiles in
/// double, then one float.
namespace onebit::inline v0_1 {

/// What LAMB keeps of a layer.
struct lamb_layer {
  double average = 0;      ///< of the coefficient over the warm-up, starting from 0
  double last_factor = 1;  ///< of the compressed phase
  double sketch_bias = 1;  ///< 1 minus what the weights in the direction's sketch sum up to
  float coefficient = 1;   ///< of the step in progress
  float k = 1;             ///< momentum scaling
  float inverse_k = 1;
  float direction = 0;  ///< ||m / (sqrt(v) + eps)||, as the last refresh found it; 0: not yet
  float ratio = 0;      ///< the part of all squares that was left in the mean gradient then
  float size = 0;       ///< of the agreed direction, in the first step after that; 0: not yet
  float growth = 1;     ///< what the direction is multiplied by, since it has grown
  float unused = 0;     ///< no padding: the bytes are part of checkpoints
};

namespace detail {

ONEBIT_HD float norm_of(double sum_of_squares) { return static_cast<float>(sqrt(sum_of_squares)); }
ONEBIT_HD double clamp_to(double x, double low, double high) {
  if (x > high) x = high;
  return x < low ? low : x;
}

/// u = m c / (sqrt(v c_v) + eps) + wd x
template <class L>
ONEBIT_HD typename L::value lamb_direction(const typename L::value& m, float correction,
                                           const typename L::value& denominator,
                                           const typename L::value& x, float weight_decay) {
  return L::fma(L::set(weight_decay), x, L::div(L::mul(m, L::set(correction)), denominator));
}

/// m and v from the mean gradient; per tile ||x||^2, ||u||^2 and ||v||_1.
template <class View, class P, class G>
struct lamb_moments_kernel {
  View gradient;
  const tile* tiles;
  const tensor_entry<P, G>* tensors;
  const tensor_scalars* scalars;
  float *m, *v, *sum_v, *sum_x, *sum_u;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    using one = one_word<L>;
    const tile t = tiles[i];
    const tensor_entry<P, G>& tensor = tensors[t.tensor];
    const auto g_at = gradient.template at<L>(t, i);
    const parameters_of<L, P> params(tensor, t);
    const float decay = tensor.weight_decay;
    const tensor_scalars of = scalars[t.tensor];
    auto vs = one::set(0.0F), xs = one::set(0.0F), us = one::set(0.0F);
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      float* m_word = m + (t.word + k) * 32;
      float* v_word = v + (t.word + k) * 32;
      const auto g = g_at(k);
      const auto m_new = of.c.template next_momentum<L>(L::load(m_word), g);
      const auto v_new = of.c.template next_variance<L>(L::load(v_word), g);
      const auto x = params.load(k);
      L::store(m_word, m_new);
      L::store(v_word, v_new);
      const auto d = of.c.template denominator<L>(v_new, of.v_correction);
      const auto u = lamb_direction<L>(m_new, of.m_correction, d, x, decay);
      add_words<L>(vs, v_new);
      add_squares<L>(xs, x);
      add_squares<L>(us, u);
    }
    L::store_scalar(sum_v + i, one::fold(vs));
    L::store_scalar(sum_x + i, one::fold(xs));
    L::store_scalar(sum_u + i, one::fold(us));
  }
};

/// The layer's coefficient from the norms, and its average, unless it rests.
template <class P, class G>
struct lamb_coefficient_kernel {
  static constexpr bool serial = true;
  const tile_range* tensor_tiles;
  const tensor_entry<P, G>* tensors;
  const float *sum_x, *sum_u;
  lamb_layer* layers;
  double least, most, beta;  ///< clips of the coefficient, and what its average keeps

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    if (tensors[i].rests) return;
    const tile_range r = tensor_tiles[i];
    const float x = norm_of(L::sum(sum_x + r.begin, r.end - r.begin)),
                u = norm_of(L::sum(sum_u + r.begin, r.end - r.begin));
    double c = 1;
    if (x != 0 && u != 0) c = clamp_to(static_cast<double>(x / u), least, most);
    lamb_layer layer = layers[i];
    // explicit fma, here and below: some instruction sets would contract it, others not
    if (c != 1) layer.average = fma(beta, layer.average, (1 - beta) * c);
    layer.coefficient = static_cast<float>(c);
    L::store_scalar(layers + i, layer);
  }
};

template <class P, class G>
struct lamb_dense_update_kernel {
  const tile* tiles;
  const tensor_entry<P, G>* tensors;
  const tensor_scalars* scalars;
  const float *m, *v;
  const lamb_layer* layers;
  const step_scalars* now;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile t = tiles[i];
    const tensor_entry<P, G>& tensor = tensors[t.tensor];
    const parameters_of<L, P> params(tensor, t, now);
    const auto step = L::set(-(tensor.rate(now) * layers[t.tensor].coefficient));
    const float decay = tensor.weight_decay;
    const tensor_scalars of = scalars[t.tensor];
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      const auto x = params.load(k);
      const auto m_k = L::load(m + (t.word + k) * 32);
      const auto d = of.c.template denominator<L>(L::load(v + (t.word + k) * 32), of.v_correction);
      const auto u = lamb_direction<L>(m_k, of.m_correction, d, x, decay);
      params.store(k, L::fma(step, u, x));
    }
  }
};

/// The next local momentum as a message: base + k (beta1 m + (1 - beta1) g), g in `units`.
template <class View, class P, class G>
struct lamb_message {
  View previous;
  const tensor_entry<P, G>* tensors;
  const tensor_scalars* scalars;
  const lamb_layer* layers;
  const step_scalars* now;
  direction_units units;

  template <class L>
  struct reader {
    typename View::template reader<L> previous;
    gradients_of<L, G> gradient;
    float k, inverse_k;
    moments_constants c;
    direction_units::reader<L> in_units;
    ONEBIT_HD typename L::value operator()(std::uint32_t w, const typename L::value& base) const {
      const auto m = L::mul(previous(w), L::set(inverse_k));
      const auto next = c.template next_momentum<L>(m, in_units(w, gradient.load(w)));
      return L::fma(next, L::set(k), base);
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t index) const {
    const lamb_layer& layer = layers[t.tensor];
    const tensor_scalars& of = scalars[t.tensor];
    return {previous.template at<L>(t, index),
            gradients_of<L, G>(tensors[t.tensor], t, now),
            layer.k,
            layer.inverse_k,
            of.c,
            units.at<L>(t, of)};
  }
};

/// The second variance, from the gradient that the agreed momenta imply; per tile ||m/d||^2,
/// ||u||^2 and the largest d / (sqrt(fresh) + eps), d = sqrt(v) + eps.
template <class View, class P, class G>
struct lamb_fresh_kernel {
  View latest, previous;
  const float* first_momentum;  ///< of the warm-up: not `previous`, in the first compressed step
  active_mask active;
  const tile* tiles;
  const tensor_entry<P, G>* tensors;
  const tensor_scalars* scalars;
  const lamb_layer* layers;
  flat_field inverses;  ///< 1 / d
  float *fresh, *sum_m, *sum_u, *largest;

  // no tile_at: a device has no registers for several words of so much
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    using one = one_word<L>;
    const tile t = tiles[i];
    const tensor_entry<P, G>& tensor = tensors[t.tensor];
    const parameters_of<L, P> params(tensor, t);
    const auto latest_at = latest.template at<L>(t, i);
    const auto previous_at = previous.template at<L>(t, i);
    const auto inverse_at = inverses.template at<L>(t, i);
    const auto inverse_k = L::set(layers[t.tensor].inverse_k);
    const tensor_scalars of = scalars[t.tensor];
    const auto inverse = L::set(tensor.rests ? 0.0F : 1.0F / of.c.one_minus_beta1);
    const auto decay = L::set(tensor.weight_decay), m_correction = L::set(of.m_correction);
    auto ms = one::set(0.0F), us = one::set(0.0F), most = one::set(0.0F);
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      const std::size_t word = t.word + k;
      const auto m = L::mul(latest_at(k), inverse_k);
      const auto m_old = first_momentum != nullptr ? L::load(first_momentum + word * 32)
                                                   : L::mul(previous_at(k), inverse_k);
      const auto g = L::mul(L::fma(L::set(-of.c.beta1), m_old, m), inverse);
      const auto w = of.c.template next_variance<L>(L::load(fresh + word * 32), g);
      const auto inverse_d = inverse_at(k);
      const auto fresh_d = of.c.template denominator<L>(w, of.v_correction);
      const auto ratio = L::div(L::set(1.0F), L::mul(inverse_d, fresh_d));
      const auto kept = active.template keep<L>(word, ratio);
      for (unsigned j = 0; j < L::words; ++j) most = one::max(most, word_of<L>(kept, j));
      const auto prelim = L::mul(L::mul(m, m_correction), inverse_d);
      const auto u = L::fma(decay, params.load(k), prelim);
      L::store(fresh + word * 32, w);
      add_squares<L>(ms, prelim);
      add_squares<L>(us, u);
    }
    L::store_scalar(sum_m + i, one::fold(ms));
    L::store_scalar(sum_u + i, one::fold(us));
    L::store_scalar(largest + i, one::fold_max(most));
  }
};

/// The layer's factor and coefficient, unless it rests.
template <class P, class G>
struct lamb_factor_kernel {
  static constexpr bool serial = true;
  const tile_range* tensor_tiles;
  const tensor_entry<P, G>* tensors;
  const float *sum_m, *sum_u, *largest;
  lamb_layer* layers;
  double least, greatest, threshold;  ///< clips of the factor, and of its change

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    if (tensors[i].rests) return;
    const tile_range r = tensor_tiles[i];
    const std::size_t n = r.end - r.begin;
    const bool decays = tensors[i].weight_decay > 0;
    const float most = L::largest(largest + r.begin, n, 0.0F);
    double f = most > 0 ? static_cast<double>(most) : 1.0;
    if (decays) {
      const float m = norm_of(L::sum(sum_m + r.begin, n)), u = norm_of(L::sum(sum_u + r.begin, n));
      double rho = u > 0 ? static_cast<double>(m / u) : 1.0;
      if (rho > 1) rho = 1;
      f = fma(f, rho, 1.0) - rho;
    }
    lamb_layer layer = layers[i];
    f = clamp_to(f, least, greatest);
    f = clamp_to(f, layer.last_factor * (1 - threshold), layer.last_factor * (1 + threshold));
    layer.last_factor = f;
    layer.coefficient = static_cast<float>(layer.average * f);
    L::store_scalar(layers + i, layer);
  }
};

}  // namespace detail

}  // namespace onebit::inline v0_1

/// Where v follows: the norm of the direction from a sketch.
///
/// The norm of what was agreed is no norm of a direction: each element has the size of its scale.
/// A sketch is linear, and needs no gradient of all ranks: each adds up its own g / d, with signs
/// that are the same on all, into 64 sums a tile, averaged over steps as m is. The mean of the
/// ranks' sketches is the sketch of the exact direction, and its squares add up to those of the
/// direction, to a relative sqrt(2 / 64) a tile.
namespace onebit::inline v0_1::detail {

/// Per tile ||x||^2.
template <class P, class G>
struct parameter_norm_kernel {
  const tile* tiles;
  const tensor_entry<P, G>* tensors;
  float* sums;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile t = tile_at(i);
    const parameters_of<L, P> params(tensors[t.tensor], t);
    auto sum = one_word<L>::set(0.0F);
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) add_squares<L>(sum, params.load(k));
    L::store_scalar(sums + i, one_word<L>::fold(sum));
  }
};

/// The layer's coefficient, ||x|| over the norm of direction and decay, unless it rests or no
/// refresh has been yet; how much bias the sketch has left after this step.
template <class P, class G>
struct followed_coefficient_kernel {
  static constexpr bool serial = true;
  const tile_range* tensor_tiles;
  const tensor_entry<P, G>* tensors;
  const tensor_scalars* scalars;
  const float* sum_x;
  lamb_layer* layers;
  double least, most;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    if (tensors[i].rests) return;
    const tile_range r = tensor_tiles[i];
    lamb_layer layer = layers[i];
    layer.sketch_bias = product(layer.sketch_bias, static_cast<double>(scalars[i].c.beta1));
    if (layer.direction > 0) {
      const double x = sqrt(L::sum(sum_x + r.begin, r.end - r.begin)),
                   decay = static_cast<double>(tensors[i].weight_decay) * x,
                   m = product(static_cast<double>(layer.direction),
                               static_cast<double>(layer.growth)),
                   u = sqrt(fma(decay, decay, product(m, m)));
      layer.coefficient = x > 0 ? static_cast<float>(clamp_to(x / u, least, most)) : 1.0F;
    }
    L::store_scalar(layers + i, layer);
  }
};

/// x from what was agreed and the layer's coefficient; and, where v follows, so that directions are
/// agreed, what this rank keeps: squares of its own gradient, and of the gradient over its
/// denominator the sketch. That denominator has the squares since the last refresh in it, times the
/// ratio of all elements: else an element whose gradients have just grown would be most of the
/// norm. 12 bytes per element and a bit; 24 where v follows.
template <class View, class P, class G>
struct lamb_update_kernel {
  View latest;
  const tile* tiles;
  const tensor_entry<P, G>* tensors;
  const tensor_scalars* scalars;
  const lamb_layer* layers;
  active_mask active;
  const float* inverses;           ///< 1 / (sqrt(v) + eps)
  float *squares, *sketch, *sums;  ///< or null; by tile, of the agreed direction's squares
  const step_scalars* now;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    using one = one_word<L>;
    const tile t = tile_at(i);
    const tensor_entry<P, G>& tensor = tensors[t.tensor];
    const tensor_scalars of = scalars[t.tensor];
    const auto latest_at = latest.template at<L>(t, i);
    const parameters_of<L, P> params(tensor, t, now);
    const auto step = L::set(-(tensor.rate(now) * layers[t.tensor].coefficient));
    const auto inverse_k = L::set(layers[t.tensor].inverse_k);
    const auto decay = L::set(tensor.weight_decay), correction = L::set(of.m_correction);
    auto size = one::set(0.0F);
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      const auto x = params.load(k);
      auto u = L::mul(L::mul(latest_at(k), inverse_k), correction);
      if (squares == nullptr) u = L::mul(u, L::load(inverses + (t.word + k) * 32));
      add_squares<L>(size, u);
      params.store(k, L::fma(step, L::fma(decay, x, u), x));
    }
    if (squares == nullptr) return;
    L::store_scalar(sums + i, one::fold(size));
    const gradients_of<L, G> gradient(tensor, t, now);
    // of v as it stands there
    const auto then = static_cast<double>(detail::correction(of.bias.v / of.since));
    const double since = of.since * static_cast<double>(of.c.beta2);
    const auto old_weight = L::set(static_cast<float>(since / then)),
               weight = L::set(layers[t.tensor].ratio);
    auto even = one::set(0.0F), odd = one::set(0.0F);
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      const std::size_t word = t.word + k;
      const auto g = gradient.load(k);
      const auto s = of.c.template next_variance<L>(L::load(squares + word * 32), g);
      L::store(squares + word * 32, s);
      const auto was = root_of<L>(L::load(inverses + word * 32), of.c.eps);
      const auto root = active.template keep<L>(word, was);
      const auto v = L::fma(s, weight, L::mul(L::mul(root, old_weight), root));
      const auto own = L::div(g, of.c.template denominator<L>(v, of.v_correction));
      for (unsigned j = 0; j < L::words; ++j) {
        const std::uint32_t signs = sketch_signs(word + j);
        auto& sum = (k + j) % 2 == 0 ? even : odd;
        sum = one::add(sum, one::with_sign(one::load_bits(&signs), word_of<L>(own, j)));
      }
    }
    float* const place = sketch + i * sketch_floats;
    one::store(place, of.c.template next_momentum<one>(one::load(place), even));
    one::store(place + 32, of.c.template next_momentum<one>(one::load(place + 32), odd));
  }
};

/// The longest step of a layer, in those of LAMB: learning rate times ||x||.
inline constexpr float longest_step = 4;

/// How the agreed direction of a layer has grown since the first step after a refresh; 1 where it
/// has shrunk. Its elements have the size of their scales, so that its norm is no norm of a
/// direction; but where gradients grow it grows as they do, long before the next refresh. Without
/// that a recurrent net's gradients, once they grew, made steps of many times LAMB's size, and its
/// loss went up to where it had begun.
///
/// It is at least what keeps steps within `longest_step`: a refresh may have found a direction that
/// is far too small.
struct direction_growth_kernel {
  static constexpr bool serial = true;
  const tile_range* tensor_tiles;
  const float* sums;
  lamb_layer* layers;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile_range r = tensor_tiles[i];
    const float size = norm_of(L::sum(sums + r.begin, r.end - r.begin));
    lamb_layer layer = layers[i];
    if (!(layer.size > 0)) layer.size = size;
    const float growth = layer.size > 0 && size > layer.size ? size / layer.size : 1.0F;
    const float least = layer.direction > 0 ? size / (longest_step * layer.direction) : 1.0F;
    layer.growth = growth > least ? growth : least;
    L::store_scalar(layers + i, layer);
  }
};

/// The layer's direction from the squares of the sketch, without the bias that the sketch had
/// before this step.
struct sketched_direction_kernel {
  static constexpr bool serial = true;
  const tile_range* tensor_tiles;
  const tensor_scalars* scalars;
  const float *sums, *ratio;
  lamb_layer* layers;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile_range r = tensor_tiles[i];
    L::store_scalar(&layers[i].ratio, *ratio);
    L::store_scalar(&layers[i].size, 0.0F);
    L::store_scalar(&layers[i].growth, 1.0F);
    const auto beta1 = static_cast<double>(scalars[i].c.beta1);
    const double weights = beta1 > 0 ? 1 - layers[i].sketch_bias / beta1 : 1;
    if (!(weights > 0)) return;
    const double norm = sqrt(L::sum(sums + r.begin, r.end - r.begin)) / weights;
    L::store_scalar(&layers[i].direction, static_cast<float>(norm));
  }
};

/// A sketch that starts anew.
struct restart_sketch_kernel {
  static constexpr bool serial = true;
  lamb_layer* layers;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    L::store_scalar(&layers[i].sketch_bias, 1.0);
  }
};

}  // namespace onebit::inline v0_1::detail

/// Momentum scaling in 1-bit LAMB: all layers' momentum is brought to one RMS before compression,
/// so that one scale fits all, and back.
namespace onebit::inline v0_1::detail {

/// Per tile ||m||^2, and ||v||_1.
struct lamb_size_kernel {
  static constexpr bool one_isa = true;
  const tile* tiles;
  const float *m, *v;
  float *sum_m, *sum_v;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    auto ms = L::set(0.0F), vs = L::set(0.0F);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      const auto y = L::load(m + (t.word + k) * 32);
      ms = L::fma(y, y, ms);
      vs = L::add(vs, L::load(v + (t.word + k) * 32));
    }
    L::store_scalar(sum_m + i, L::fold(ms));
    L::store_scalar(sum_v + i, L::fold(vs));
  }
};

/// k_l = mean over layers of R / R_l, R_l the RMS of the layer's momentum; 1 where v is 0 too.
/// Empty tensors are no layers. One call for all layers.
///
/// The momentum of a layer that had no gradient for a while is next to nothing, and k_l would blow
/// its next gradients up over all others: R_l counts as a tenth of the root of the mean of v at
/// least, which forgets a hundred times slower. (Noise alone keeps m at 0.23 of it.)
struct lamb_scaling_kernel {
  static constexpr bool serial = true;
  const tile_range* tensor_tiles;
  const tile* tiles;
  const float *sum_m, *sum_v;
  std::size_t n_layers;
  lamb_layer* layers;
  float* factors;
  bool scale;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    double total = 0;
    std::size_t n = 0;
    for (std::size_t i = 0; i < n_layers; ++i) {
      if (tensor_tiles[i].begin == tensor_tiles[i].end) continue;
      total += static_cast<double>(root_mean<L>(sum_m, i));
      ++n;
    }
    for (std::size_t i = 0; i < n_layers; ++i) {
      const float r = root_mean<L>(sum_m, i);
      double k = 1;
      const float least = 0.1F * root_mean<L>(sum_v, i);
      if (scale && total > 0 && (r > 0 || least > 0)) {
        k = total / static_cast<double>(n) / static_cast<double>(r > least ? r : least);
      }
      lamb_layer layer = layers[i];
      layer.k = static_cast<float>(k);
      layer.inverse_k = static_cast<float>(1 / k);
      layer.last_factor = 1;
      L::store_scalar(layers + i, layer);
      L::store_scalar(factors + i, layer.k);
    }
  }

 private:
  template <class L>
  ONEBIT_HD float root_mean(const float* sums, std::size_t i) const {
    const tile_range r = tensor_tiles[i];
    std::uint64_t n = 0;
    for (auto t = r.begin; t < r.end; ++t) n += tiles[t].n;
    if (n == 0) return 0;
    return static_cast<float>(sqrt(L::sum(sums + r.begin, r.end - r.begin)) /
                              sqrt(static_cast<double>(n)));
  }
};

/// The momentum from what was agreed of it.
template <class View>
struct lamb_unscaled_view {
  View previous;
  const lamb_layer* layers;

  template <class L>
  struct reader {
    typename View::template reader<L> previous;
    float inverse_k;
    ONEBIT_HD typename L::value operator()(std::uint32_t k) const {
      return L::mul(previous(k), L::set(inverse_k));
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t index) const {
    return {previous.template at<L>(t, index), layers[t.tensor].inverse_k};
  }
};

}  // namespace onebit::inline v0_1::detail
