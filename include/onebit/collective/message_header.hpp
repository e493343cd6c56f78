// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/collective/message.hpp>
#include <onebit/concepts/rule.hpp>
#include <onebit/core/config.hpp>
#include <onebit/core/element_types.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/kernel/scalars.hpp>
#include <vector>

/// Header of a message: scales, and the status that tells other ranks of the sender's step and bad
/// values. A few scalars a call: serial kernels.
namespace onebit { inline namespace v0_3 { namespace detail {

/// Scale shared by `n_active` elements of a range of tiles, and its place in a slot.
struct scale_entry {
  tile_range tiles;
  std::uint32_t chunk = 0;
  std::uint32_t place = 0;  ///< index among the scales of its slot
  std::uint32_t group = 0;
  std::uint32_t first_tensor = 0, last_tensor = 0;  ///< tensors of its elements
  std::uint64_t n_active = 0;
  tile_range segments{};  ///< of a group: its parts, one per chunk
};

/// Builds the scale entries of an axis: groups for the worker phase, segments for the server phase.
[[gnu::cold]] inline void make_scale_entries(const layout& axis,
                                             std::vector<detail::scale_entry>& groups,
                                             std::vector<detail::scale_entry>& segments) {
  const auto entry = [&](tile_range r, std::uint32_t chunk, std::uint32_t place,
                         std::uint32_t group) {
    detail::scale_entry e{r, chunk, place, group};
    for (auto i = r.begin; i < r.end; ++i) e.n_active += axis.tiles()[i].n;
    if (r.begin < r.end) {
      e.first_tensor = axis.tiles()[r.begin].tensor;
      e.last_tensor = axis.tiles()[r.end - 1].tensor;
    }
    return e;
  };
  for (const tile_range& g : axis.groups()) groups.push_back(entry(g, 0, 0, 0));
  std::uint32_t place = 0, last_chunk = 0;
  for (const segment& s : axis.segments()) {
    if (s.chunk != last_chunk) place = 0;
    last_chunk = s.chunk;
    tile_range& parts = groups[s.group].segments;
    const auto at = static_cast<std::uint32_t>(segments.size());
    parts = {parts.end == 0 ? at : parts.begin, at + 1};
    segments.push_back(entry(s.tiles, s.chunk, place++, s.group));
  }
}

/// Computes scale i from its tiles' sums, in the fixed order; raises `nonfinite` if not finite.
template <class C>
struct scale_kernel {
  static constexpr bool serial = true;
  C codec;
  const scale_entry* entries;
  const float* sums;
  float* scales;    ///< by entry, or null
  std::byte* slot;  ///< where the scales are written, or null
  std::size_t scales_at;
  step_scalars* now;
  scale_bound bound;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const scale_entry& e = entries[i];
    const double sum = L::sum(sums + e.tiles.begin, e.tiles.end - e.tiles.begin);
    float s = codec_traits<C>::scale(codec, sum, e.n_active);
    // without active elements the scale is 0, whatever the sum is
    if (!(L::abs_scalar(s) <= largest_float && sum - sum == 0)) L::raise(&now->verdict.nonfinite);
    if (codec_traits<C>::scaled && bound.most > 0 && s > most_of(e)) s = most_of(e);
    if (scales != nullptr) L::store_scalar(scales + i, s);
    if (slot != nullptr) {
      L::store_scalar(detail::aligned_as<float>(slot + scales_at) + e.place, s);
    }
  }

 private:
  /// Largest bound of the tensors that share a scale.
  [[nodiscard]] ONEBIT_HD float most_of(const scale_entry& e) const {
    if (bound.factors == nullptr) return bound.most;
    float factor = 0;
    for (auto t = e.first_tensor; t <= e.last_tensor; ++t) {
      factor = bound.factors[t] > factor ? bound.factors[t] : factor;
    }
    return bound.most * factor;
  }
};

/// Computes the scale of a group and copies it into the slots of all chunks that hold parts of it.
template <class C>
struct group_scale_kernel {
  static constexpr bool serial = true;
  detail::scale_kernel<C> scale;
  const detail::scale_entry* segments;  ///< null: slots have no scales
  std::byte* slots;
  slot_format format;

  template <class L>
  ONEBIT_HD void operator()(L lanes, std::size_t i) const {
    scale(lanes, i);
    if (segments == nullptr) return;
    const tile_range parts = scale.entries[i].segments;
    for (auto k = parts.begin + L::own_index(); k < parts.end; k += L::n_indices()) {
      std::byte* scales = slots + segments[k].chunk * format.slot_bytes + format.scales_at;
      detail::aligned_as<float>(scales)[segments[k].place] = scale.scales[i];
    }
  }
};

/// Returns what a rank adds to the digest in its status, so that no other rank's is taken for it; 0
/// without marks.
[[nodiscard]] ONEBIT_HD std::uint32_t mark_of(const step_scalars* now, std::uint32_t rank) {
  return now->given.marks != 0 ? mixed(rank + 1) : 0U;
}

[[nodiscard]] ONEBIT_HD slot_status* status_of(const slot_format& f, std::byte* slots,
                                               std::size_t slot) {
  return detail::aligned_as<slot_status>(slots + slot * f.slot_bytes + f.status_at);
}

/// Writes the status of n slots and clears now->verdict.nonfinite, which the status reports.
struct status_kernel {
  static constexpr bool serial = true;
  step_scalars* now;
  std::byte* slots;
  slot_format format;
  std::uint32_t n;
  std::uint32_t part;  ///< tag bits: the bucket, and from_server for an average

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    const detail::slot_status status{(now->given.number << 1U) | now->verdict.nonfinite,
                                     format.tag(now, part),
                                     now->given.digest ^ detail::mark_of(now, now->given.rank)};
    for (auto j = L::own_index(); j < n; j += L::n_indices()) {
      *detail::status_of(format, slots, j) = status;
    }
    L::store_scalar(&now->verdict.nonfinite, std::uint32_t{0});
  }
};

/// Senders of received slots: n ranks in turn, `stride` apart, `slots_each` slots each. `first`
/// grows by 1 per `slots_per_shift` slots, the bucket by 1 per `slots_per_bucket` slots.
struct slot_senders {
  std::uint32_t n;
  std::uint32_t slots_each = 1, first = 0, stride = 1;
  std::uint32_t slots_per_shift = 0xFFFFFFFFU, slots_per_bucket = 0xFFFFFFFFU;

  [[nodiscard]] ONEBIT_HD std::uint32_t rank(std::uint32_t slot) const {
    return first + slot / slots_each % n * stride + slot / slots_per_shift;
  }
};

/// Checks the status of n received slots: calls the step off if a rank saw a bad value or is out of
/// step. All ranks read the same and decide alike. Zeroes the status: checkpoints hold slots.
struct check_kernel {
  static constexpr bool serial = true;
  step_scalars* now;
  std::byte* slots;
  slot_format format{};  ///< of the encoder that runs the check
  std::uint32_t n;
  std::uint32_t part;      ///< tag bits of the first slot
  bool propagate = false;  ///< repeats a skip in the next status, so that other nodes learn of it:
                           ///< on all levels of a hierarchy but the last
  detail::slot_senders ranks;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    std::uint32_t skip = now->verdict.skip;
    bool bad = false;
    for (auto r = L::own_index(); r < n; r += L::n_indices()) {
      const detail::slot_status own = expected(r), found = *detail::status_of(format, slots, r);
      bad =
          bad || found.step != own.step << 1U || found.tag != own.tag || found.digest != own.digest;
    }
    if (L::any(bad)) {
      skip = 1;
      for (std::uint32_t r = 0; r < n && now->verdict.mismatched_rank == 0; ++r)
        tell_mismatch<L>(r);
    }
    L::store_scalar(&now->verdict.skip, skip);
    if (propagate && skip != 0) L::store_scalar(&now->verdict.nonfinite, std::uint32_t{1});
    for (auto r = L::own_index(); r < n; r += L::n_indices()) {
      *detail::status_of(format, slots, r) = {};
    }
  }

 private:
  /// Status of a rank that is in the same step and saw no bad value.
  [[nodiscard]] ONEBIT_HD detail::slot_status expected(std::uint32_t r) const {
    return {now->given.number & 0x7FFFFFFFU, format.tag(now, part + r / ranks.slots_per_bucket),
            now->given.digest ^ detail::mark_of(now, ranks.rank(r))};
  }
  /// Returns 1 + the rank whose status this is, if it is in this step, among the first 4096; or 0.
  [[nodiscard]] ONEBIT_HD std::uint32_t sender_of(const detail::slot_status& found) const {
    for (std::uint32_t k = 0; k < 4096 && now->given.marks != 0; ++k) {
      if ((found.digest ^ now->given.digest) == detail::mark_of(now, k)) return k + 1;
    }
    return 0;
  }
  template <class L>
  ONEBIT_HD void tell_mismatch(std::uint32_t r) const {
    const detail::slot_status own = expected(r), found = *detail::status_of(format, slots, r);
    const bool same_step = found.step >> 1U == own.step, same_tag = found.tag == own.tag;
    if (same_step && same_tag && found.digest == own.digest) {
      if ((found.step & 1U) != 0 && now->verdict.bad_rank == 0)
        L::store_scalar(&now->verdict.bad_rank, ranks.rank(r) + 1);
      return;
    }
    L::store_scalar(&now->verdict.mismatched_rank, ranks.rank(r) + 1);
    const bool is_empty = found.step == 0 && found.tag == 0 && found.digest == 0 && own.digest != 0;
    const std::uint32_t sender = is_empty || !same_step || !same_tag ? 0 : sender_of(found);
    L::store_scalar(&now->verdict.mismatched_in, is_empty     ? mismatch::missing
                                                 : !same_step ? mismatch::step
                                                 : !same_tag  ? mismatch::tag
                                                 : sender > 0 ? mismatch::sender
                                                              : mismatch::arguments);
    L::store_scalar(&now->verdict.their_value, sender > 0  ? sender - 1
                                               : same_step ? found.tag
                                                           : found.step >> 1U);
    L::store_scalar(&now->verdict.own_value, same_step ? own.tag : own.step);
  }
};

/// Calls the step off if the sum over ranks of the scales at one place is not finite.
struct finite_scales_kernel {
  static constexpr bool serial = true;
  step_scalars* now;
  const std::byte* slots;
  slot_format format;
  std::uint32_t n;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t place) const {
    float sum = 0;
    for (std::uint32_t r = 0; r < n; ++r) {
      sum +=
          detail::load_scalar<float>(slots + r * format.slot_bytes + format.scales_at + 4 * place);
    }
    if (!(L::abs_scalar(sum) <= largest_float)) L::raise(&now->verdict.skip);
  }
};

/// Sums the active elements of entry i over its tiles.
struct total_active_kernel {
  static constexpr bool serial = true;
  const std::uint32_t* counts;
  scale_entry* entries;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile_range r = entries[i].tiles;
    L::store_scalar(&entries[i].n_active, L::sum_counts(counts + r.begin, r.end - r.begin));
  }
};

}  // namespace detail

}}  // namespace onebit
