// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <onebit/collective/two_phase.hpp>
#include <onebit/compress/identity.hpp>
#include <onebit/concepts.hpp>
#include <onebit/error.hpp>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

/// The compressed allreduce of the papers as a policy: every rank averages one chunk.
namespace onebit {

namespace detail {

/// Buckets of about `bucket_elements` elements; 0: one for all.
[[nodiscard]] inline int n_buckets(std::span<const std::size_t> sizes,
                                   std::size_t bucket_elements) {
  if (bucket_elements == 0) return 1;
  std::size_t n = 0;
  for (const std::size_t s : sizes) n += s;
  const std::size_t buckets = (n + bucket_elements - 1) / bucket_elements;
  if (buckets > 65536) {
    throw invalid_input(message("gather_scatter: ", n, " elements in buckets of ", bucket_elements,
                                " are ", buckets, " buckets; at most 65536"));
  }
  return buckets == 0 ? 1 : static_cast<int>(buckets);
}

}  // namespace detail

/// The exchange that fits the number of ranks: `Compressed`, or with one rank an exact one.
template <class Compressed, bool Accumulates, class T, class B>
class exchange_for_ranks {
 public:
  template <class C>
  exchange_for_ranks(const C& codec, T& transport, const B& backend,
                     std::span<const std::size_t> sizes, int n_buckets = 1)
      : exchange_(make(codec, transport, backend, sizes, n_buckets)) {}

  template <class F>
  decltype(auto) with(F&& f) {
    return std::visit(std::forward<F>(f), exchange_);
  }

 private:
  using exact_codec = basic_identity<Accumulates>;
  using exact = two_phase<exact_codec, T, B>;
  static constexpr bool always_exact = std::is_same_v<Compressed, exact>;
  using either =
      std::conditional_t<always_exact, std::variant<exact>, std::variant<exact, Compressed>>;

  template <class C>
  static either make(const C& codec, T& transport, const B& backend,
                     std::span<const std::size_t> sizes, int n_buckets) {
    if constexpr (!always_exact) {
      if (transport.size() > 1) return Compressed(codec, transport, backend, sizes, n_buckets);
    }
    return exact(exact_codec{}, transport, backend, sizes, n_buckets);
  }
  either exchange_;
};

/// A bucket size for transports that can start collectives: of 2^17 to 2^22, this one was the
/// fastest with 4 MPI ranks at 1 and at 2.7 Gbit/s, and as good as smaller ones at 100 Mbit/s
/// (bench/network.sh). Smaller buckets cost latency, larger ones overlap less.
inline constexpr std::size_t default_bucket_elements = std::size_t{1} << 20U;

/// Collective policy: gather-scatter with error feedback on both sides. With one rank the exchange
/// is exact, and the algorithm the uncompressed one.
///
/// `bucket_elements` cuts the flat axis into buckets of about as many elements, each an exchange of
/// its own with its own scales. On a transport that can start collectives one bucket travels while
/// others are encoded, and gradients announced by optimizer::ready travel before the last of them
/// is known. 0: one bucket. The dense averages of the warm-up use the same buckets.
template <class C>
struct gather_scatter {
  static_assert((check_compressor<C>(), true));
  C codec{};
  std::size_t bucket_elements = 0;

  [[nodiscard]] std::string name() const {
    return "gather_scatter of " + policy_name(codec) +
           (bucket_elements == 0 ? "" : " in buckets of " + std::to_string(bucket_elements));
  }

  template <class T, class B, bool Accumulates>
  auto bind(T& transport, const B& backend, std::span<const std::size_t> sizes) const {
    const int buckets = detail::n_buckets(sizes, bucket_elements);
    if constexpr (std::is_same_v<C, identity>) {
      using exchange = two_phase<basic_identity<Accumulates>, T, B>;
      return exchange_for_ranks<exchange, Accumulates, T, B>(basic_identity<Accumulates>{},
                                                             transport, backend, sizes, buckets);
    } else {
      return exchange_for_ranks<two_phase<C, T, B>, Accumulates, T, B>(codec, transport, backend,
                                                                       sizes, buckets);
    }
  }
};

template <class C>
gather_scatter(C) -> gather_scatter<C>;
template <class C>
gather_scatter(C, std::size_t) -> gather_scatter<C>;

}  // namespace onebit
