// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <onebit/concepts.hpp>
#include <onebit/transport/wire.hpp>
#include <string>
#include <type_traits>
#include <utility>

/// The concepts in words: one call per policy, so that a compiler says what is missing.
namespace onebit::inline v0_1 {

template <class Policy>
[[nodiscard]] std::string policy_name(const Policy& policy) {
  if constexpr (Named<Policy>) {
    return policy.name();
  } else {
    return "custom";
  }
}

/// One call per requirement, so that a compiler says in words what is missing.
template <class C>
consteval void check_compressor() {
  static_assert(Compressor<C>,
                "onebit: this type is no Compressor: write either the three members of a "
                "TileCompressor: tile_bytes(n), encode(values, n, out), decode(in, n, values) "
                "noexcept, all const, or the members of a WordCompressor as in "
                "onebit/compress/sign.hpp");
}

template <class T>
consteval void check_transport() {
  static_assert(
      requires(T t) {
        { t.rank() } -> std::convertible_to<int>;
      },
      "onebit: this type is no Transport: int rank() is missing");
  static_assert(
      requires(T t) {
        { t.size() } -> std::convertible_to<int>;
      },
      "onebit: this type is no Transport: int size() is missing");
  static_assert(
      requires(T t, const void* s, void* r, std::size_t n) { t.all_to_all(s, r, n); },
      "onebit: this type is no Transport: all_to_all(const void* send, void* receive, "
      "std::size_t slot_bytes) is missing");
  static_assert(
      requires(T t, const void* s, void* r, std::size_t n) { t.all_gather(s, r, n); },
      "onebit: this type is no Transport: all_gather(const void* send, void* receive, "
      "std::size_t slot_bytes) is missing");
  static_assert(
      requires(T t, float* d, std::size_t n) { t.all_reduce_sum(d, n); },
      "onebit: this type is no Transport: all_reduce_sum(float* data, std::size_t n) is "
      "missing");
}

template <class C, class T>
consteval void check_split() {
  static_assert(Collective<C>,
                "onebit: this type is no Collective: derive from collective_defaults and write "
                "exchange<B, Accumulates> and bind, as in onebit/collective/all_gather.hpp");
  if constexpr (Collective<C>) {
    static_assert(!C::splits || SplittingTransport<T>,
                  "onebit: this collective splits the transport, which has no split(color, key)");
  }
}

template <class B>
consteval void check_backend() {
  static_assert(Backend<B>,
                "onebit: this type is no Backend: it needs launch(n, kernel), make_buffer<T>(n), "
                "copy_in(to, from, n), copy_out(to, from, n) and a static bool `deferred` as in "
                "onebit/backend/host.hpp");
}

namespace detail {

/// A transport as collective policy C may use it, without its type.
template <class C, class T>
[[nodiscard]] wire wire_of(T transport) {
  check_transport<T>();
  check_split<C, T>();
  if constexpr (std::is_same_v<T, wire>) {
    return transport;
  } else {
    return wire(std::move(transport));
  }
}

}  // namespace detail

}  // namespace onebit::inline v0_1
