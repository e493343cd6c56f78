// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <onebit/collective/passes.hpp>
#include <onebit/collective/sender.hpp>
#include <onebit/concepts.hpp>
#include <onebit/tiled.hpp>

/// What exchanges share when they start, from a momentum or from a checkpoint.
namespace onebit::inline v0_1 {

/// Scales a momentum that is handed over to what the compressor carries or sends of it.
template <Compressor C, class B>
[[gnu::cold]] void take_over(sender<C, B>& s, handover<buffer_of<B, float>>& given) {
  s.backend().launch(s.axis().tiles().size(),
                     scale_in_place_kernel{given.momentum.data(), s.tiles(), given.factors,
                                           sender<C, B>::carries ? given.numbers : nullptr});
}

/// Stores the flat axis as the message of each of n ranks, all the same.
template <Compressor C, class B>
[[gnu::cold]] void store_flat(sender<C, B>& s, const float* flat, std::byte* slots, int n = 1) {
  const std::size_t message = s.format().slot_bytes * static_cast<std::size_t>(s.axis().n_slots());
  for (int r = 0; r < n; ++r) {
    s.backend().launch(
        s.axis().tiles().size(),
        store_field_kernel<flat_field>{
            {flat}, s.tiles(), s.format(), slots + static_cast<std::size_t>(r) * message});
  }
}

/// Writes whether an exchange has started; reading, puts aside what it holds, in `places`, and
/// gives it memory as if it had just started, or none.
template <class X, class Archive, class... Places>
void archive_start(X& x, Archive& a, bool keeps_agreed, Places&... places) {
  bool started = x.started();
  a.local(started);
  if constexpr (Archive::reading) {
    (a.put_aside(places), ...);
    x.sender().put_aside(a);
    x.start(started ? x.allocate(keeps_agreed, true) : typename X::space{}, {});
  }
}

}  // namespace onebit::inline v0_1
