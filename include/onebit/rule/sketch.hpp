// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/core/config.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/core/words.hpp>
#include <onebit/kernel/context.hpp>
#include <onebit/kernel/launch.hpp>
#include <onebit/kernel/moments.hpp>
#include <onebit/kernel/scalars.hpp>

/// Sketches of gradients. A sketch has one sum for 128 elements. The ranks average their sketches,
/// which are small, and compute from the mean the squared norm of the mean gradient. Its ratio to
/// the mean of the ranks' own squared norms is rho (see refreshing_rule).
///
/// `refresh_floats` is the one place that says which floats travel beside v in a refresh, in which
/// order. To add one: a member and a term of `n_beside` there; fill it in
/// refreshing_rule::floats_beside. If the ranks' gradients are equal it must be, too: else each
/// refresh reports a difference (take_beside_kernel). One that stays at home: a term of n_at_home.
namespace onebit { inline namespace v0_3 { namespace detail {

/// Returns random signs, a bit per element of a word, equal on all ranks. Without `step` they are
/// the same in all steps, for sketches that are averaged over steps (LAMB). Source: splitmix64.
ONEBIT_HD std::uint32_t sketch_signs(std::size_t word, std::uint32_t step = 0) {
  std::uint64_t h = (word + 1) * 0x9E3779B97F4A7C15U + step * 0xD1B54A32D192ED03U;
  h = (h ^ h >> 30U) * 0xBF58476D1CE4E5B9U;
  h = (h ^ h >> 27U) * 0x94D049BB133111EBU;
  return static_cast<std::uint32_t>(h >> 32U);
}

/// Words of a tile that one sum of the sketch of gradients covers. The last sum of a tile also
/// covers the words that are left over.
inline constexpr std::uint32_t words_per_sum = 4;
ONEBIT_HD std::uint32_t n_sketch_sums(const tile& t) {
  const std::uint32_t n = t.n_words() / words_per_sum;
  return n > 0 ? n : 1;
}
/// Index of the first sum of tile i: sums of different tiles do not overlap.
ONEBIT_HD std::size_t first_sketch_sum(const tile& t, std::size_t i) {
  return t.word / words_per_sum + i;
}

/// Sketches this rank's gradient: one sum of 128 elements each, with random signs that are equal on
/// all ranks and change in each step. Also sums, by tile, the squares of the sketch and of the
/// gradient. Sketches are linear: the squares of the ranks' mean sketch sum up to the squared norm
/// of the mean gradient, with a relative error of sqrt(2 / number of sums). The ratio of this sum
/// to the mean of the ranks' own sums is more precise: 1 if all gradients are equal.
template <class P, class G>
struct gradient_sketch_kernel {
  const tile* tiles;
  const tensor_entry<P, G>* tensors;
  const step_scalars* now;
  float *sketch, *sketch_squares, *squares;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const gradients_of<L, G> gradient(tensors[t.tensor], t, now);
    const std::uint32_t n = n_sketch_sums(t);
    float* const sums = sketch + first_sketch_sum(t, i);
    auto of_gradient = L::set(0.0F);
    float of_sketch = 0;
    for (std::uint32_t r = 0, k = 0; r < n; ++r) {
      const std::uint32_t end = r + 1 < n ? k + words_per_sum : t.n_words();
      auto sum = L::set(0.0F);
      for (; k < end; ++k) {
        const auto g = gradient.load(k);
        const std::uint32_t signs = sketch_signs(t.word + k, now->given.number);
        sum = L::add(sum, L::with_sign(L::load_bits(&signs), g));
        of_gradient = L::fma(g, g, of_gradient);
      }
      const float all = L::fold(sum);
      of_sketch = fmaf(all, all, of_sketch);
      L::store_scalar(sums + r, all);
    }
    L::store_scalar(sketch_squares + i, of_sketch);
    L::store_scalar(squares + i, L::fold(of_gradient));
  }
};

/// Sums the squares of a mean sketch of gradients, by tile.
struct mean_sketch_kernel {
  static constexpr bool serial = true;
  const tile* tiles;
  const float* sketch;
  float* squares;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const float* const sums = sketch + first_sketch_sum(t, i);
    float sum = 0;
    for (std::uint32_t r = 0; r < n_sketch_sums(t); ++r) sum = fmaf(sums[r], sums[r], sum);
    L::store_scalar(squares + i, sum);
  }
};

/// Sums this rank's squares: those of the sketch by tensor, those of the gradient over all tensors.
struct own_sums_kernel {
  static constexpr bool serial = true;
  const tile_range* tensor_tiles;
  const float *sketch_squares, *squares;  ///< by tile
  std::size_t n_tiles;
  float *own, *total;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile_range r = tensor_tiles[i];
    L::store_scalar(own + i, static_cast<float>(L::sum(sketch_squares + r.begin, r.end - r.begin)));
    if (i == 0) L::store_scalar(total, static_cast<float>(L::sum(squares, n_tiles)));
  }
};

/// Replaces all floats beside v, a rule's own too, by their mean over the ranks. Raises `differs`
/// if one of them is off its mean by more than 1%, so a float may travel here only if equal
/// gradients make it equal on all ranks. Smaller differences may be rounding: floats travel as
/// roots in bf16.
template <class View>
struct take_beside_kernel {
  static constexpr bool one_isa = true;
  View mean;
  const tile* tiles;
  float* sums;
  step_scalars* now;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const auto value = mean.template at<L>(t, i);
    auto beyond = L::set(0.0F);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      float* const place = sums + (t.word + k) * 32;
      const auto own = L::load(place), of_all = value(k);
      const auto off = L::abs(L::sub(of_all, own));
      beyond = (L::max)(beyond, L::fma(L::abs(own), L::set(-0.01F), off));
      L::store(place, of_all);
    }
    if (L::fold_max(beyond) > 0) L::raise(&now->verdict.differs);
  }
};

/// Computes rho of the whole model (see refreshing_rule), and with it the norm of the mean
/// gradient.
struct mean_ratio_kernel {
  static constexpr bool serial = true;
  const float *own, *mean_squares, *total;  ///< by tensor, by tile, of all
  std::size_t n_tensors, n_tiles;
  float* rho;
  step_scalars* now;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    const double all = L::sum(own, n_tensors), mean = L::sum(mean_squares, n_tiles);
    double found = all > 0 ? mean / all : 1;
    found = found < 1 ? found : 1;
    L::store_scalar(rho, static_cast<float>(found));
    const double norm = sqrt(product(static_cast<double>(*total), found));
    L::store_scalar(&now->norms.mean, static_cast<float>(norm));
    if (!(all > 0))
      L::store_scalar(&now->verdict.differs, 1U);  // zero gradients do not count as equal
  }
};

/// Computes the next rho of each tensor: the mean of the old one and of what this step's sketch
/// says; the latter alone if the old one is negative, a first guess. A sketch of few sums is
/// imprecise: rho of the whole model is mixed in, with the weight of `prior` sums. A tensor without
/// gradients keeps its rho.
struct next_rho_kernel {
  static constexpr bool serial = true;
  static constexpr float prior = 16;
  static constexpr float least = 1e-4F;  ///< where gradients of the ranks cancel
  const tile* tiles;
  const tile_range* tensor_tiles;
  const float *own, *mean_squares;  ///< by tensor, by tile
  const float *model_rho, *rho;     ///< of the whole model; before this step
  float* next;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile_range r = tensor_tiles[i];
    float result = rho[i];
    if (own[i] > 0) {
      const tile &first = tiles[r.begin], &last = tiles[r.end - 1];
      const auto words = static_cast<float>(last.word + last.n_words() - first.word);
      const float n = words / static_cast<float>(words_per_sum);
      const double mean = L::sum(mean_squares + r.begin, r.end - r.begin);
      const auto part = static_cast<float>(mean / static_cast<double>(own[i]));
      const float mixed_in = fmaf(part < 1 ? part : 1.0F, n, *model_rho * prior) / (n + prior);
      const float found = mixed_in > least ? mixed_in : least;
      result = result < 0 ? found : 0.5F * (result + found);
    }
    L::store_scalar(next + i, result);
  }
};

/// Floats of a refresh, in the work space that squares_average lends: those that travel beside v,
/// then those that do not.
struct refresh_floats {
  float* sketch;     ///< sums of the gradient, this rank's, then the mean of all ranks'
  float* own;        ///< by tensor: squares of a rank's own sketch, likewise
  float* total;      ///< squares of a rank's own gradient, likewise
  float* more;       ///< what a rule adds, from a multiple of 32 floats on
  float* model_rho;  ///< rho of the whole model
  float* rho;        ///< by tensor: the next rho; after the step's end: the old one

  /// `n_more`: number of floats that a rule adds.
  refresh_floats(float* work, const layout& axis, std::size_t n_more) {
    const std::size_t n_tensors = axis.tensor_tiles().size();
    sketch = work;
    own = sketch + n_sums(axis);
    total = own + n_tensors;
    more = work + n_beside(axis);
    model_rho = more + n_more;
    rho = model_rho + 1;
  }
  /// Number of floats that travel for every rule.
  [[nodiscard]] static std::size_t n_beside(const layout& axis) {
    const std::size_t n = n_sums(axis) + axis.tensor_tiles().size() + 1;
    return words_of(n) * word_elements;
  }
  /// Number of floats that do not travel.
  [[nodiscard]] static std::size_t n_at_home(const layout& axis) {
    return axis.tensor_tiles().size() + 1;
  }

 private:
  [[nodiscard]] static std::size_t n_sums(const layout& axis) {
    return axis.n_words() / words_per_sum + axis.tiles().size() + 1;
  }
};

}}}  // namespace onebit::detail
