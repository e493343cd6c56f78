// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <onebit/collective/two_level.hpp>
#include <onebit/collective/two_phase.hpp>
#include <onebit/compress/identity.hpp>
#include <onebit/concepts.hpp>
#include <onebit/error.hpp>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

/// Full precision inside a node, compressed between nodes: the policy.
namespace onebit {

/// Collective policy: exact inside nodes of `ranks_per_node` ranks with consecutive numbers,
/// gather-scatter with error feedback between them. 0: the transport says how many ranks share a
/// node, if it can. With one node the exchange is exact; with one rank per node it is
/// gather_scatter's.
template <class C>
struct hierarchical {
  static_assert((check_compressor<C>(), true));
  static_assert(WordCompressor<C>, "onebit: hierarchical takes WordCompressors");
  C codec{};
  int ranks_per_node = 0;

  [[nodiscard]] std::string name() const {
    return "hierarchical, " + std::to_string(ranks_per_node) + " ranks per node, of " +
           policy_name(codec);
  }

  /// Collective. Throws invalid_input when the ranks do not divide into such nodes.
  template <class T, class B, bool Accumulates>
  auto bind(T& transport, const B& backend, std::span<const std::size_t> sizes) const {
    using exchange = two_level<C, Accumulates, T, B>;
    using exact = two_phase<basic_identity<Accumulates>, T, B>;
    using flat = two_phase<C, T, B>;
    int n = ranks_per_node;
    if constexpr (requires { transport.ranks_per_node(); }) {
      if (n == 0) n = transport.ranks_per_node();
    }
    if (n < 1 || transport.size() % n != 0) {
      throw invalid_input(
          detail::message("hierarchical: ", transport.size(), " ranks in nodes of ", n,
                          "; give the number of ranks on each node, the same on all",
                          detail::rank_suffix(transport.rank(), transport.size())));
    }
    using either = exchange_by_levels<exact, flat, exchange>;
    if (transport.size() == n) {
      return either(std::in_place_type<exact>, basic_identity<Accumulates>{}, transport, backend,
                    sizes);
    }
    if (n == 1) return either(std::in_place_type<flat>, codec, transport, backend, sizes);
    return either(std::in_place_type<exchange>, codec, transport, backend, sizes, n);
  }

 private:
  template <class... Exchanges>
  class exchange_by_levels {
   public:
    template <class U, class... Args>
    explicit exchange_by_levels(std::in_place_type_t<U> which, Args&&... args)
        : exchange_(which, std::forward<Args>(args)...) {}
    template <class F>
    decltype(auto) with(F&& f) {
      return std::visit(std::forward<F>(f), exchange_);
    }

   private:
    std::variant<Exchanges...> exchange_;
  };
};

template <class C>
hierarchical(C, int) -> hierarchical<C>;

}  // namespace onebit
