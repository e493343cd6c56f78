// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/concepts/backend.hpp>
#include <onebit/core/config.hpp>
#include <onebit/core/element_types.hpp>
#include <type_traits>

/// Ways to run kernels: with lanes for several words, and several kernels in one launch.
namespace onebit { inline namespace v0_3 {

// Several words at a time, for the lanes of a warp, where a word takes one register per lane. Loads
// of all words precede the arithmetic; addresses, loops and masks are computed once for all words.

namespace detail {

/// Lanes for N consecutive words, made of the lanes L for one word. A loop over words steps by
/// `words`.
///
/// Wide lanes have no `fold`, since sums add word after word (see add_words), and no load or store
/// of a partial word, since tiles that end with one use L itself.
template <class L, unsigned N>
struct wide_lanes {
  static constexpr unsigned words = N;
  struct value {
    typename L::value word[N];
  };
  struct bits {
    typename L::bits word[N];
  };

  ONEBIT_HD static bool first_lane() { return L::first_lane(); }
  template <class T>
  ONEBIT_HD static void store_scalar(T* p, T x) {
    L::store_scalar(p, x);
  }
  ONEBIT_HD static void raise(std::uint32_t* flag) { L::raise(flag); }

  ONEBIT_HD static bits load_bits(const std::uint32_t* p) {
    bits r;
    for (unsigned j = 0; j < N; ++j) r.word[j] = L::load_bits(p + j);
    return r;
  }
  ONEBIT_HD static void store_bits(std::uint32_t* p, const bits& b) {
    for (unsigned j = 0; j < N; ++j) L::store_bits(p + j, b.word[j]);
  }
  ONEBIT_HD static value load(const float* p) {
    value r;
    for (unsigned j = 0; j < N; ++j) r.word[j] = L::load(p + 32 * j);
    return r;
  }
  ONEBIT_HD static void store(float* p, const value& v) {
    for (unsigned j = 0; j < N; ++j) L::store(p + 32 * j, v.word[j]);
  }
  template <Storable T>
  ONEBIT_HD static value load_as(const T* p, std::uint32_t) {
    value r;
    for (unsigned j = 0; j < N; ++j) r.word[j] = L::load_as(p + 32 * j, 32);
    return r;
  }
  template <Storable T>
  ONEBIT_HD static void store_as(T* p, const value& v, std::uint32_t) {
    for (unsigned j = 0; j < N; ++j) L::store_as(p + 32 * j, v.word[j], 32);
  }
  template <Storable T>
  ONEBIT_HD static value unrounded(const value& a, const value& b) {
    value r;
    for (unsigned j = 0; j < N; ++j) r.word[j] = L::template unrounded<T>(a.word[j], b.word[j]);
    return r;
  }
  ONEBIT_HD static value load_squares(const bf16* p) {
    value r;
    for (unsigned j = 0; j < N; ++j) r.word[j] = L::load_squares(p + 32 * j);
    return r;
  }
  ONEBIT_HD static void store_squares(bf16* p, const value& a, std::uint32_t key) {
    for (unsigned j = 0; j < N; ++j) L::store_squares(p + 32 * j, a.word[j], key + j);
  }
  ONEBIT_HD static value stochastic_bf16(const value& a, std::uint32_t key) {
    value r;
    for (unsigned j = 0; j < N; ++j) r.word[j] = L::stochastic_bf16(a.word[j], key + 32 * j);
    return r;
  }

  ONEBIT_HD static value set(float x) {
    value r;
    for (unsigned j = 0; j < N; ++j) r.word[j] = L::set(x);
    return r;
  }
#define ONEBIT_OF_EACH(name)                                               \
  template <class... Values>                                               \
  ONEBIT_HD static value(name)(const Values&... v) {                       \
    value r;                                                               \
    for (unsigned j = 0; j < N; ++j) r.word[j] = (L::name)(part(v, j)...); \
    return r;                                                              \
  }
  ONEBIT_OF_EACH(add)
  ONEBIT_OF_EACH(sub)
  ONEBIT_OF_EACH(mul)
  ONEBIT_OF_EACH(div)
  ONEBIT_OF_EACH(max)
  ONEBIT_OF_EACH(sqrt)
  ONEBIT_OF_EACH(abs)
  ONEBIT_OF_EACH(fma)
  ONEBIT_OF_EACH(bound)
  ONEBIT_OF_EACH(select)
  ONEBIT_OF_EACH(with_sign)
  ONEBIT_OF_EACH(with_sign_of)
  ONEBIT_OF_EACH(keep)
#undef ONEBIT_OF_EACH
  /// Returns g / (sqrt(x) + eps).
  ONEBIT_HD static value over_root(const value& g, const value& x, float eps) {
    value r;
    L::template over_roots<N>(r.word, g.word, x.word, eps);
    return r;
  }
  ONEBIT_HD static bits not_negative(const value& v) {
    bits r;
    for (unsigned j = 0; j < N; ++j) r.word[j] = L::not_negative(v.word[j]);
    return r;
  }
  ONEBIT_HD static bits positive(const value& v) {
    bits r;
    for (unsigned j = 0; j < N; ++j) r.word[j] = L::positive(v.word[j]);
    return r;
  }

 private:
  template <class Words>
  ONEBIT_HD static const auto& part(const Words& w, unsigned j) {
    if constexpr (std::is_class_v<Words>) {
      return w.word[j];
    } else {
      return w;
    }
  }
};

template <class L>
struct lanes_within {
  using lanes = L;
};
template <class L, unsigned N>
struct lanes_within<wide_lanes<L, N>> {
  using lanes = L;
};

/// Lanes for one word that the wide lanes L are made of; L itself if L holds one word.
template <class L>
using one_word = typename detail::lanes_within<L>::lanes;

}  // namespace detail

/// Returns word j, j < L::words, of a value of L.
template <class L, class Value>
ONEBIT_HD auto& word_of(Value& v, [[maybe_unused]] unsigned j) {
  if constexpr (L::words == 1) {
    return v;
  } else {
    return v.word[j];
  }
}

/// Returns g / (sqrt(x) + eps), each operation rounded.
template <class L>
ONEBIT_HD typename L::value over_root(const typename L::value& g, const typename L::value& x,
                                      float eps) {
  if constexpr (L::words > 1) {
    return L::over_root(g, x, eps);
  } else {
    return L::div(g, L::add(L::sqrt(x), L::set(eps)));
  }
}

/// Adds the words of v to `sum`, a word of 32 sums, one word after the other.
template <class L, class Sum>
ONEBIT_HD void add_words(Sum& sum, const typename L::value& v) {
  for (unsigned j = 0; j < L::words; ++j) sum = detail::one_word<L>::add(sum, word_of<L>(v, j));
}
/// Adds the squares of the words of v to `sum`, one word after the other.
template <class L, class Sum>
ONEBIT_HD void add_squares(Sum& sum, const typename L::value& v) {
  for (unsigned j = 0; j < L::words; ++j) {
    sum = detail::one_word<L>::fma(word_of<L>(v, j), word_of<L>(v, j), sum);
  }
}

namespace detail {

/// Calls kernel(L{}, i). If L declares `at_once`, a TileKernel gets lanes for `at_once` words
/// instead, for tiles that consist of whole words, their number a multiple of `at_once`.
template <class L, class Kernel>
ONEBIT_HD void run_wide(const Kernel& kernel, std::size_t i) {
  if constexpr (detail::TileKernel<Kernel> && requires { L::at_once; }) {
    if (kernel.tile_at(i).n % (32 * L::at_once) == 0) {
      return kernel(detail::wide_lanes<L, L::at_once>{}, i);
    }
  }
  kernel(L{}, i);
}

}  // namespace detail

// Kernels in one launch: on a device a launch costs as much as a pass over a megabyte.

namespace detail {

/// n calls of a kernel, as a part of a launch.
template <class Kernel>
struct calls {
  Kernel kernel;
  std::size_t n = 0;
};
template <class Kernel>
calls(Kernel, std::size_t) -> calls<Kernel>;

template <class... Parts>
struct side_by_side {
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {}
};
template <class Kernel, class... Rest>
struct side_by_side<calls<Kernel>, Rest...> {
  calls<Kernel> first;
  side_by_side<Rest...> rest;

  template <class L>
  ONEBIT_HD void operator()(L lanes, std::size_t i) const {
    if (i < first.n) return run_wide<L>(first.kernel, i);
    rest(lanes, i - first.n);
  }
};
[[nodiscard]] inline side_by_side<> abreast() { return {}; }
template <class Kernel, class... Rest>
[[nodiscard]] side_by_side<calls<Kernel>, Rest...> abreast(const calls<Kernel>& first,
                                                           const Rest&... rest) {
  return {first, abreast(rest...)};
}

/// Runs kernels that do not depend on each other. On a deferred backend one launch runs them all.
template <class B, class... Kernels>
void launch_together(B& backend, const calls<Kernels>&... parts) {
  if constexpr (B::deferred) {
    backend.launch((parts.n + ...), detail::abreast(parts...));
  } else {
    (backend.launch(parts.n, parts.kernel), ...);
  }
}

/// Kernel whose call i runs call i of `first`, then call i of `second`.
template <class First, class Second>
struct in_turn {
  static constexpr bool serial = true;
  First first;
  Second second;

  template <class L>
  ONEBIT_HD void operator()(L lanes, std::size_t i) const {
    first(lanes, i);
    second(lanes, i);
  }
};

template <class First, class Second>
in_turn(First, Second) -> in_turn<First, Second>;

/// Kernel that runs `first`, then `second` on each tile, so that data which both read are in cache.
template <class First, class Second>
struct tile_by_tile {
  First first;
  Second second;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    run_wide<L>(first, i);
    run_wide<L>(second, i);
  }
};

template <class First, class Second>
tile_by_tile(First, Second) -> tile_by_tile<First, Second>;

/// Kernel that runs all calls of `each`, then one call of `after`. The call of `each` that ends
/// last runs `after`, which sees the results of all calls.
template <class Each, class After>
struct then_once {
  static constexpr bool serial = true;
  calls<Each> each;
  After after;
  std::uint32_t* n_ended;  ///< counter of ended calls; 0 before and after the launch

  /// Number of calls to launch: at least 1, since `after` runs also if `each` has no calls.
  [[nodiscard]] ONEBIT_HD std::size_t launches() const { return each.n == 0 ? 1 : each.n; }
  template <class L>
  ONEBIT_HD void operator()(L lanes, std::size_t i) const {
    if (i < each.n) each.kernel(lanes, i);
    if (L::last_of(launches(), n_ended)) after(lanes, 0);
  }
};

/// Runs all calls of `each`, then one call of `after`. On a deferred backend this is one launch.
template <class B, class Each, class After>
void launch_then_once(B& backend, const calls<Each>& each, const After& after,
                      [[maybe_unused]] std::uint32_t* n_ended) {
  if constexpr (B::deferred) {
    const detail::then_once<Each, After> all{each, after, n_ended};
    backend.launch(all.launches(), all);
  } else {
    backend.launch(each.n, each.kernel);
    backend.launch(1, after);
  }
}

}  // namespace detail

}}  // namespace onebit
