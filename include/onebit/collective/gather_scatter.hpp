// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <onebit/collective/two_phases.hpp>
#include <onebit/compress/identity.hpp>
#include <onebit/concepts.hpp>
#include <onebit/layout.hpp>
#include <onebit/policy_checks.hpp>
#include <onebit/transport/wire.hpp>
#include <span>
#include <string>
#include <utility>

/// The compressed allreduce of the papers, as a policy: every rank averages one chunk.
namespace onebit::inline v0_1 {

/// Collective policy: gather-scatter with error feedback on both sides.
///
/// `bucket_elements` cuts the flat axis into buckets of about as many elements, each an exchange of
/// its own with its own scales. On a transport that can start collectives one bucket travels while
/// others are encoded, and gradients announced by optimizer::ready travel before the last of them
/// is known. 0: one bucket. The dense averages of the warm-up use the same buckets, or
/// some of 2^22 elements.
template <class C>
struct gather_scatter : collective_defaults {
  static_assert((check_compressor<C>(), true));
  C codec{};                        ///< the compressor
  std::size_t bucket_elements = 0;  ///< 0: one bucket

  gather_scatter() = default;
  /// @{
  /// See Collective.
  explicit(false) gather_scatter(C c, std::size_t elements = 0)
      : codec(std::move(c)), bucket_elements(elements) {}

  [[nodiscard, gnu::cold]] std::string name() const {
    return "gather_scatter of " + policy_name(codec) +
           (bucket_elements == 0 ? "" : " in buckets of " + std::to_string(bucket_elements));
  }
  template <class B, bool Accumulates>
  using exchange = gather_scatter_exchange<codec_for<Accumulates, C>, B>;
  template <class B, bool Accumulates>
  [[nodiscard, gnu::cold]] exchange<B, Accumulates> bind(const wire& w, const B& backend,
                                                         std::span<const std::size_t> sizes) const {
    return {for_rule<Accumulates>(codec), w, backend, sizes, n_buckets(sizes, bucket_elements)};
  }
  /// @}
};

static_assert(Collective<gather_scatter<identity>>);

}  // namespace onebit::inline v0_1
