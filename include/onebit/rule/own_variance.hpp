// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/core/config.hpp>
#include <onebit/core/element_types.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/kernel/context.hpp>
#include <onebit/kernel/launch.hpp>
#include <onebit/kernel/moments.hpp>
#include <onebit/kernel/scalars.hpp>

/// A rank's own v in compressed steps (refreshing_rule), and the directions that are divided by it.
///
///     v      of the last refresh, equal on all ranks             2 bytes per element, in bf16
///     since  this rank's squares since the refresh, weighted     2 bytes
///
/// k steps after a refresh the rank's v is beta2^k v + since. Both are rounded at random where they
/// are stored: rounded to nearest, v would never fall. A refresh averages `since`. In one sum with
/// v, the noise of rounding would drown it.
namespace onebit { inline namespace v0_3 { namespace detail {

/// Returns the key of the random rounding of v in this step, the same on all ranks.
ONEBIT_HD std::uint32_t key_of_variance(const step_scalars* now) {
  return rounding_key_of(now, 0x2545F491U, 0);
}
/// Returns the key of the random rounding of this rank's squares.
ONEBIT_HD std::uint32_t key_of_squares(const step_scalars* now) {
  return rounding_key_of(now, 0x9FB21C65U, now->given.rank + 1);
}

/// Converts gradients to directions: divides by sqrt(v) + eps. v is this rank's own, with the
/// square of this very gradient taken in, as in Adam; or constant.
struct direction_units {
  /// v of the last refresh, in bf16; without `since` a constant 1 / (sqrt(v) + eps), in floats.
  /// Both null: momenta are sent. (One pointer for both: devices are short of registers.)
  const void* divisor = nullptr;
  const bf16* since = nullptr;    ///< this rank's squares; null if v is constant
  const float* rho = nullptr;     ///< by tensor: own squares have the weight rho^2
  const float* growth = nullptr;  ///< by tensor: above `sudden` the weight is rho; or null

  /// From this ratio on, of a tensor's squared norm to the one that v expects, its gradients have
  /// grown at once.
  static constexpr float sudden = 10;

  /// Weight of a tensor's own squares.
  [[nodiscard]] ONEBIT_HD float weight_of(std::size_t tensor) const {
    const float r = rho[tensor] < 0 ? -rho[tensor] : rho[tensor];
    return growth != nullptr && growth[tensor] > sudden ? r : r * r;
  }

  /// Reader of one tile.
  template <class L>
  struct reader {
    const void* divisor;  ///< of the tile
    const bf16* since;
    float decay, next_decay;  ///< of v, before this step and with it
    float beta2, weight, correction, eps;

    /// Returns v of the last refresh.
    ONEBIT_HD typename L::value v(std::uint32_t k) const {
      return L::load_squares(static_cast<const bf16*>(divisor) + 32 * k);
    }
    /// Returns the rank's v of word k before this step.
    ONEBIT_HD typename L::value own(std::uint32_t k) const {
      return L::fma(v(k), L::set(decay), L::load_squares(since + 32 * k));
    }
    /// Returns the squares since the refresh, with those of a gradient: beta2 since + weight g^2.
    ONEBIT_HD typename L::value next_since(std::uint32_t k, const typename L::value& g) const {
      return L::fma(L::mul(g, L::set(weight)), g,
                    L::mul(L::load_squares(since + 32 * k), L::set(beta2)));
    }
    /// Takes a gradient into the squares. Only for rules, whose memory they are.
    ONEBIT_HD void take_in(std::uint32_t k, const typename L::value& g, std::uint32_t key) const {
      L::store_squares(const_cast<bf16*>(since) + 32 * k, next_since(k, g), key + k);
    }
    /// Returns the direction of a gradient of word k; g if momenta are sent. NaN stays NaN.
    ONEBIT_HD typename L::value operator()(std::uint32_t k, const typename L::value& g) const {
      if (since != nullptr) {
        // v with the square of g, corrected for its bias: each factor times the correction
        const auto squares =
            L::fma(L::mul(g, L::set(weight * correction)), g,
                   L::mul(L::load_squares(since + 32 * k), L::set(beta2 * correction)));
        const auto corrected = L::fma(v(k), L::set(next_decay * correction), squares);
        return over_root<L>(g, corrected, eps);
      }
      if (divisor == nullptr) return g;
      return L::mul(g, L::load(static_cast<const float*>(divisor) + 32 * k));
    }
  };
  /// Returns the reader of a tile.
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, const tensor_scalars& moments) const {
    const std::size_t place = t.word * 32;
    const moments_constants& c = moments.c;
    if (since == nullptr) {
      const auto* const inverse = static_cast<const float*>(divisor);
      return {inverse == nullptr ? nullptr : inverse + place, nullptr, 0, 0, 0, 0, 0, 0};
    }
    return {static_cast<const bf16*>(divisor) + place,
            since + place,
            static_cast<float>(moments.decay_since),
            static_cast<float>(product(moments.decay_since, static_cast<double>(c.beta2))),
            c.beta2,
            weight_of(t.tensor) * c.one_minus_beta2,
            moments.v_correction,
            c.eps};
  }
};

/// Starts the rank's own v from v in floats: rounds it, and has no squares since. The key of the
/// rounding has no step in it: a job that was loaded right before knows no step yet.
struct start_own_kernel {
  static constexpr bool one_isa = true;
  const tile* tiles;
  const float* from;
  bf16 *v, *since;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const std::uint32_t key = mixed(0x6C8E9CF5U);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      const std::size_t place = (t.word + k) * 32;
      L::store_squares(v + place, L::load(from + place),
                       key + static_cast<std::uint32_t>(t.word + k));
      L::store_squares(since + place, L::set(0.0F), 0);
    }
  }
};

/// Writes v of the last refresh in floats.
struct widen_kernel {
  static constexpr bool one_isa = true;
  const tile* tiles;
  const bf16* v;
  float* to;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      const std::size_t place = (t.word + k) * 32;
      L::store(to + place, L::load_squares(v + place));
    }
  }
};

// -- a refresh ------------------------------------------------------------------------------------

/// Exchanges the next rho for the one in use, by tensor.
struct swap_rho_kernel {
  static constexpr bool serial = true;
  float *next, *rho;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const float was = rho[i], will = next[i];
    L::store_scalar(rho + i, will);
    L::store_scalar(next + i, was);
  }
};

/// This rank's squares since the last refresh. Squares taken in with the weight rho are scaled back
/// to rho^2: the mean over the ranks is rho^2 times the mean of their squares.
struct own_squares_field {
  const bf16* since;
  const float *weighted, *unweighted;  ///< see growth_state; or null

  template <class L>
  struct reader {
    const bf16* since;
    float part;
    ONEBIT_HD typename L::value operator()(std::uint32_t k) const {
      return L::mul(L::load_squares(since + 32 * k), L::set(part));
    }
    ONEBIT_HD typename L::value operator()(std::uint32_t k, const typename L::value& base) const {
      return L::add(base, (*this)(k));
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t) const {
    // sums that overflow say nothing
    const float all = weighted == nullptr ? 0.0F : weighted[t.tensor];
    const float part = all > 0 ? unweighted[t.tensor] / all : 1.0F;
    return {since + t.word * 32, part < 1 ? part : 1.0F};
  }
};

/// What a refresh makes of v, k steps after the last one: beta2^k v + rho q, q the mean of the
/// ranks' squares since then. `mean` is q times the square of `old_rho`.
template <class View>
struct refreshed_variance {
  View mean;
  const bf16* v;
  const tensor_scalars* scalars;
  const float* old_rho;  ///< by tensor: of the last refresh; as `rho`, maybe negative

  template <class L>
  struct reader {
    typename View::template reader<L> mean;
    const bf16* v;
    float decay, weight;
    ONEBIT_HD typename L::value operator()(std::uint32_t k) const {
      return L::fma(mean(k), L::set(weight), L::mul(L::load_squares(v + 32 * k), L::set(decay)));
    }
  };
  /// Returns the reader of a tile: i is its index in the layout of `mean`.
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t i, const float* rho) const {
    const float old = old_rho[t.tensor];
    return {mean.template at<L>(t, i), v + t.word * 32,
            static_cast<float>(scalars[t.tensor].decay_since),
            L::abs_scalar(rho[t.tensor]) / (old * old)};
  }
};

/// Refreshes v. Each rank's own v starts from it, with this step's gradient. Active elements stay
/// active; those with v > 0 become active.
template <class View, class P, class G>
struct refresh_variance_kernel {
  refreshed_variance<View> refreshed;
  const tile* tiles;
  const tensor_entry<P, G>* tensors;
  const step_scalars* now;
  active_mask before;
  std::uint32_t* active;
  direction_units units;  ///< with the new rho
  bf16 *v, *since;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const auto v_at = refreshed.template at<L>(t, i, units.rho);
    const gradients_of<L, G> gradient(tensors[t.tensor], t, now);
    const auto weight =
        L::set(units.weight_of(t.tensor) * refreshed.scalars[t.tensor].c.one_minus_beta2);
    const std::uint32_t key = key_of_variance(now), own_key = key_of_squares(now);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      const std::size_t word = t.word + k, place = word * 32;
      const auto of_word = static_cast<std::uint32_t>(word);
      const auto v_new = v_at(k), g = gradient.load_kept(k);
      L::store_squares(v + place, v_new, key + of_word);
      L::store_squares(since + place, L::mul(L::mul(g, weight), g), own_key + of_word);
      std::uint32_t lives = 0;
      L::store_bits(&lives, L::positive(v_new));
      L::store_scalar(active + word, lives | before.words[word]);
    }
  }
};

/// Writes what a refresh would make of v, without this step's gradient and with the rho in use.
template <class View>
struct write_variance_kernel {
  static constexpr bool one_isa = true;
  refreshed_variance<View> refreshed;
  const tile* tiles;
  float* to;  ///< may be the memory of `mean`

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const auto v_at = refreshed.template at<L>(t, i, refreshed.old_rho);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) L::store(to + (t.word + k) * 32, v_at(k));
  }
};

// -- a step ---------------------------------------------------------------------------------------

/// Sums by tile of a rank's squares and of its v before them, from which its growth comes.
struct growth_sums {
  float *squares = nullptr, *variances = nullptr;

  template <class L>
  struct of_tile {
    using word_lanes = one_word<L>;
    typename word_lanes::value squares = word_lanes::set(0.0F), variances = word_lanes::set(0.0F);
    ONEBIT_HD void add(const typename L::value& g, const typename L::value& v) {
      add_squares<L>(squares, g);
      add_words<L>(variances, v);
    }
  };
  template <class L>
  ONEBIT_HD void store(std::size_t i, const of_tile<L>& sums) const {
    L::store_scalar(squares + i, one_word<L>::fold(sums.squares));
    L::store_scalar(variances + i, one_word<L>::fold(sums.variances));
  }
};

/// Takes the gradients of tile i into this rank's squares.
template <class L, class P, class G>
ONEBIT_HD void take_squares_in(const direction_units& units, const growth_sums& growth,
                               std::size_t i, const tile& t, const step_tables<P, G>& tables) {
  const gradients_of<L, G> gradient(tables.tensors[t.tensor], t, tables.now);
  const auto in_units = units.at<L>(t, tables.scalars[t.tensor]);
  const std::uint32_t key = key_of_squares(tables.now) + static_cast<std::uint32_t>(t.word);
  growth_sums::of_tile<L> sums;
  for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
    const auto g = gradient.load_kept(k);
    sums.add(g, in_units.own(k));
    in_units.take_in(k, g, key);
  }
  growth.store<L>(i, sums);
}

inline constexpr std::size_t growth_arrays = 3;  ///< of growth_state

/// What a rank knows of a tensor's growth, from its own gradients: arrays by tensor, one after the
/// other. All null if the rule does not note it.
template <class T>
struct growth_state {
  T* growth = nullptr;      ///< squared norm over what v expected, in the last step that noted it
  T* weighted = nullptr;    ///< squares noted since the last refresh, weighted
  T* unweighted = nullptr;  ///< the same squares, all with the weight rho^2
  std::size_t n = 0;        ///< number of tensors

  growth_state(T* memory, std::size_t n_floats) {
    if (n_floats == 0) return;
    n = n_floats / growth_arrays;
    growth = memory;
    weighted = growth + n;
    unweighted = weighted + n;
  }
  /// Restarts what is summed up between refreshes.
  [[nodiscard]] copy_kernel restart() const { return {nullptr, weighted, 2 * n}; }
};

/// Brings growth_state up to date after a step. v expects v / rho of a rank's squares.
struct growth_kernel {
  static constexpr bool serial = true;
  const tile_range* tensor_tiles;
  const tensor_scalars* scalars;
  growth_sums sums;
  direction_units units;
  growth_state<float> state;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile_range r = tensor_tiles[i];
    const std::size_t n = r.end - r.begin;
    const double squares = L::sum(sums.squares + r.begin, n),
                 v = product(L::sum(sums.variances + r.begin, n),
                             static_cast<double>(scalars[i].v_correction));
    const float rho = L::abs_scalar(units.rho[i]), beta2 = scalars[i].c.beta2;
    const auto by = [&](float sum, float weight) {
      return fmaf(weight, static_cast<float>(squares), product_of(beta2, sum));
    };
    L::store_scalar(state.weighted + i, by(state.weighted[i], units.weight_of(i)));
    L::store_scalar(state.unweighted + i, by(state.unweighted[i], rho * rho));
    const double found = squares > 0 && v > 0 ? product(squares, static_cast<double>(rho)) / v : 0;
    L::store_scalar(state.growth + i, static_cast<float>(found));
  }
  /// Returns a b, never contracted.
  ONEBIT_HD static float product_of(float a, float b) { return fmaf(a, b, 0.0F); }
};

}}}  // namespace onebit::detail
