// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The bits of every training, as they were recorded: a grid of algorithm x collective x element
// types, each run on the host (scalar, best instruction set, three threads) and on emulated warps
// behind an emulated stream, and compared with recorded.hpp.
//
// With the macro ONEBIT_BITS_FULL every combination runs, without it those that `lean` of the
// algorithms selects. To record anew (only where bits are meant to change), build with
// ONEBIT_BITS_FULL and run
//
//   ONEBIT_BITS_RECORD=tests/bits/recorded.hpp test_bits
//
// which writes that file: test cases that did not run keep their values.

#ifndef ONEBIT_TESTS_BITS_GRID_HPP
#define ONEBIT_TESTS_BITS_GRID_HPP

#include <doctest/doctest.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <onebit/onebit.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "../support/emulated.hpp"
#include "../support/tile_codecs.hpp"
#include "trainer.hpp"

namespace onebit_test::bits {

// --- the axes of the grid -------------------------------------------------------------------

/// Types of collectives; `none` for the baselines.
enum class kind { none, sign, blocks, identity, int8, all_gather, hierarchical };
enum class element { f32, f32_const, bf16, fp16 };
enum class place { host, warps };

/// What is compiled: an optimizer of this collective, with these elements, there.
struct pairing {
  kind collective;
  element elements;
  place where;
  friend constexpr bool operator==(const pairing&, const pairing&) = default;
};

struct collective_case {
  std::string_view name;
  kind type;
  int n_ranks;
};
inline constexpr collective_case collectives[] = {
    {"none", kind::none, 3},
    {"whole", kind::sign, 2},
    {"buckets", kind::sign, 3},
    {"per_vector", kind::sign, 3},
    {"per_chunk", kind::sign, 4},
    {"blocks", kind::blocks, 3},
    {"identity", kind::identity, 3},
    {"int8", kind::int8, 4},
    {"all_gather", kind::all_gather, 3},
    {"two_levels", kind::hierarchical, 4},
    {"threes", kind::hierarchical, 6},  // 1/3 is not exact
    {"one_per_node", kind::hierarchical, 3},
};

/// The collective of that name.
template <kind Kind>
auto make_collective([[maybe_unused]] std::string_view name) {
  using onebit::granularity;
  if constexpr (Kind == kind::none) {
    return std::monostate{};
  } else if constexpr (Kind == kind::sign) {
    onebit::sign<> codec{granularity::layer(), 1};
    if (name == "per_vector") codec.scales = granularity::vector();
    if (name == "per_chunk") codec.scales = granularity::chunk();
    return onebit::gather_scatter{codec, name == "buckets" ? std::size_t{1500} : 0};
  } else if constexpr (Kind == kind::blocks) {
    return onebit::gather_scatter{onebit::sign<onebit::l1_scale>{granularity::block(64), 1}};
  } else if constexpr (Kind == kind::identity) {
    return onebit::gather_scatter<onebit::identity>{};
  } else if constexpr (Kind == kind::int8) {
    return onebit::gather_scatter<int8_tile>{};
  } else if constexpr (Kind == kind::all_gather) {
    return onebit::all_gather{onebit::sign<>{granularity::layer(), 1}};
  } else {
    const int ranks_per_node = name == "one_per_node" ? 1 : name == "threes" ? 3 : 2;
    return onebit::hierarchical{onebit::sign<>{granularity::layer(), 1}, ranks_per_node};
  }
}

struct element_case {
  std::string_view name;
  element type;
  bool with_masters;
  float loss_scale;
};
inline constexpr element_case elements[] = {
    {"float", element::f32, false, 3},    {"const", element::f32_const, false, 3},
    {"bf16", element::bf16, false, 1000}, {"bf16+masters", element::bf16, true, 1000},
    {"fp16", element::fp16, false, 100},  {"fp16+masters", element::fp16, true, 100},
};

#ifdef ONEBIT_BITS_FULL
inline constexpr bool full = true;
#else
inline constexpr bool full = false;
#endif

template <class Algorithm>
constexpr bool is_selected(const pairing& p) {
  if (Algorithm::compresses == (p.collective == kind::none)) return false;
  if (p == pairing{kind::int8, p.elements, place::warps}) return false;  // hosts only
  return full || std::ranges::find(Algorithm::lean, p) != std::end(Algorithm::lean);
}

// --- the test -------------------------------------------------------------------------------

using run_on_host = std::function<rank_run(onebit::threads, const onebit::host&)>;
using run_on_warps =
    std::function<rank_run(onebit::basic_threads<emulated_memory>, const emulated&)>;

/// The runs of one algorithm, each compared with what was recorded, or recorded.
class ledger {
 public:
  explicit ledger(std::string algorithm) : algorithm_(std::move(algorithm)) {}

  /// A case of the grid: runs it where a function is given.
  void run(const collective_case& c, const element_case& e, const run_on_host& on_host,
           const run_on_warps& on_warps);
  /// After all cases: is anything else recorded?
  void finish();

 private:
  std::string algorithm_;
  std::set<std::string> names_, differing_;
  int n_runs_ = 0;
};

template <element E>
auto make_trainer(const element_case& e) {
  using onebit::bf16;
  using onebit::fp16;
  if constexpr (E == element::f32) {
    return trainer<float, float>(e.with_masters, e.loss_scale);
  } else if constexpr (E == element::f32_const) {
    return trainer<float, const float>(e.with_masters, e.loss_scale);
  } else if constexpr (E == element::bf16) {
    return trainer<bf16, bf16>(e.with_masters, e.loss_scale);
  } else {
    return trainer<fp16, fp16>(e.with_masters, e.loss_scale);
  }
}

/// All runs of one type of collective and elements.
template <kind Kind, element E, class Algorithm>
void run_pairing(const Algorithm& algorithm, ledger& runs) {
  for (const collective_case& c : collectives) {
    for (const element_case& e : elements) {
      if (c.type != Kind || e.type != E || !algorithm.takes(E)) continue;
      if (Algorithm::compresses == (Kind == kind::none)) continue;
      const auto f = [&](const auto& transport, const auto& backend) {
        auto data = make_trainer<E>(e);
        auto optimizer =
            algorithm(data.groups(), transport, make_collective<Kind>(c.name), backend);
        return train(optimizer, data, transport.rank());
      };
      run_on_host host;
      run_on_warps warps;
      if constexpr (is_selected<Algorithm>({Kind, E, place::host})) host = f;
      if constexpr (is_selected<Algorithm>({Kind, E, place::warps})) warps = f;
      runs.run(c, e, host, warps);
    }
  }
}

template <kind Kind, class Algorithm>
void run_kind(const Algorithm& algorithm, ledger& runs) {
  run_pairing<Kind, element::f32>(algorithm, runs);
  run_pairing<Kind, element::f32_const>(algorithm, runs);
  run_pairing<Kind, element::bf16>(algorithm, runs);
  run_pairing<Kind, element::fp16>(algorithm, runs);
}

/// The test of one algorithm.
template <class Algorithm>
void check_bits(const Algorithm& algorithm) {
  ledger runs(algorithm.name());
  run_kind<kind::none>(algorithm, runs);
  run_kind<kind::sign>(algorithm, runs);
  run_kind<kind::blocks>(algorithm, runs);
  run_kind<kind::identity>(algorithm, runs);
  run_kind<kind::int8>(algorithm, runs);
  run_kind<kind::all_gather>(algorithm, runs);
  run_kind<kind::hierarchical>(algorithm, runs);
  runs.finish();
}

}  // namespace onebit_test::bits

#endif  // ONEBIT_TESTS_BITS_GRID_HPP
