// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/concepts.hpp>
#include <onebit/layout.hpp>
#include <onebit/rule/lamb_kernels.hpp>

/// Momentum scaling in 1-bit LAMB: all layers' momentum is brought to one RMS before compression,
/// so that one scale fits all, and back.
namespace onebit::inline v0_1::detail {

/// Per tile ||m||^2, and ||v||_1.
struct lamb_size_kernel {
  static constexpr bool rare = true;
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
  View agreed;
  const lamb_layer* layers;

  template <class L>
  struct reader {
    typename View::template reader<L> agreed;
    float inverse_k;
    ONEBIT_HD typename L::value operator()(std::uint32_t k) const {
      return L::mul(agreed(k), L::set(inverse_k));
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t index) const {
    return {agreed.template at<L>(t, index), layers[t.tensor].inverse_k};
  }
};

}  // namespace onebit::inline v0_1::detail
