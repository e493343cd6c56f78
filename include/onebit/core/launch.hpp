// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/core/concepts.hpp>
#include <onebit/core/wide_lanes.hpp>

/// Kernels that share a launch: on a device each launch costs as much as a pass over a megabyte.
namespace onebit::inline v0_2 {

/// n calls of a kernel: a part of a launch.
template <class Kernel>
struct calls {
  Kernel kernel;
  std::size_t n = 0;
};
template <class Kernel>
calls(Kernel, std::size_t) -> calls<Kernel>;

namespace detail {

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

}  // namespace detail

/// Runs kernels that do not depend on each other; on a device in one launch.
template <class B, class... Kernels>
void launch_abreast(B& backend, const calls<Kernels>&... parts) {
  if constexpr (B::deferred) {
    backend.launch((parts.n + ...), detail::abreast(parts...));
  } else {
    (backend.launch(parts.n, parts.kernel), ...);
  }
}

/// Two kernels of one call, one after the other.
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

/// Two kernels over the same tiles, one after the other tile by tile: what both read is near.
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

/// n calls of `each`, and then one of `after`, by whoever is the last to end: it sees what all have
/// written.
template <class Each, class After>
struct then_once {
  static constexpr bool serial = true;
  calls<Each> each;
  After after;
  std::uint32_t* n_ended;  ///< 0 before and afterwards

  /// Without any call of `each` there is still the one of `after`.
  [[nodiscard]] ONEBIT_HD std::size_t launches() const { return each.n == 0 ? 1 : each.n; }
  template <class L>
  ONEBIT_HD void operator()(L lanes, std::size_t i) const {
    if (i < each.n) each.kernel(lanes, i);
    if (L::last_of(launches(), n_ended)) after(lanes, 0);
  }
};

namespace detail {

template <class B, class Kernel>
void launch_once(B& backend, const Kernel& kernel) {
  backend.launch(1, kernel);
}
template <class B, class First, class Second>
void launch_once(B& backend, const in_turn<First, Second>& both) {
  launch_once(backend, both.first);
  launch_once(backend, both.second);
}

}  // namespace detail

/// Runs them so; on a device in one launch. A host compiles each kernel once, not every pair.
template <class B, class Each, class After>
void launch_then_once(B& backend, const calls<Each>& each, const After& after,
                      [[maybe_unused]] std::uint32_t* n_ended) {
  if constexpr (B::deferred) {
    const then_once<Each, After> all{each, after, n_ended};
    backend.launch(all.launches(), all);
  } else {
    backend.launch(each.n, each.kernel);
    detail::launch_once(backend, after);
  }
}

}  // namespace onebit::inline v0_2
