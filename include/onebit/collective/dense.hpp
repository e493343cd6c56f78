// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <onebit/collective/gather_scatter.hpp>
#include <onebit/compress/identity.hpp>
#include <onebit/concepts.hpp>
#include <onebit/error.hpp>
#include <span>

/// The uncompressed mean: of gradients, in the warm-up and in the baselines.
namespace onebit {

/// Who adds up the gradients.
enum class dense_sum : std::uint8_t {
  rank_order,  ///< all_to_all, sum in rank order, all_gather: the same bits on every transport
  transport    ///< the transport's own allreduce: its speed and its order of summation
};

namespace detail {

/// Divides the sum of all ranks by their number; raises `bad` where the result is not finite.
struct mean_in_place_kernel {
  const tile* tiles;
  slot_format format;
  std::byte* slots;
  float inverse;
  std::uint32_t* bad;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    auto* p =
        reinterpret_cast<float*>(slots + t.chunk * format.slot_bytes + format.payload_at(t, i));
    auto check = L::set(0.0F);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      const auto mean = L::mul(L::load(p + 32 * k), L::set(inverse));
      check = L::fma(mean, L::set(0.0F), check);
      L::store(p + 32 * k, mean);
    }
    if (!(L::fold(check) == 0.0F)) L::raise(bad);
  }
};

}  // namespace detail

/// Agrees on the mean of what the ranks produce, in fp32.
///
/// Cost: rank_order: 2 collectives, the volume of a ring allreduce, 2 (W-1)/W 4n bytes per rank,
/// plus a status word per slot; transport: 1 collective. Memory while in use: 8 bytes per element
/// and 4/W (rank_order), 4 (transport).
template <class T, class B>
class dense {
 public:
  dense(dense_sum mode, T& transport, B backend, std::span<const std::size_t> sizes)
      : mode_(mode), transport_(&transport), exchange_({}, transport, backend, sizes) {}

  using view = gathered_view<identity>;
  [[nodiscard]] view pending() { return exchange_.pending(); }
  [[nodiscard]] auto& local() { return exchange_.local(); }
  void release() { exchange_.release(); }
  [[nodiscard]] std::size_t work_bytes() const { return exchange_.work_bytes(); }

  /// Collective; waits.
  template <class Produce>
  outcome agree(const Produce& produce, std::uint64_t step) {
    exchange_.prepare();
    if (mode_ == dense_sum::rank_order || transport_->size() == 1) {
      return exchange_.agree(produce, no_undo{}, step);
    }
    return sum_by_transport(produce, step);
  }

 private:
  struct no_undo {};

  template <class Produce>
  outcome sum_by_transport(const Produce& produce, std::uint64_t step) {
    auto& local = exchange_.local();
    const slot_format& f = local.format();
    const auto w = static_cast<std::size_t>(transport_->size());
    std::byte* slots = exchange_.pending_slots();
    local.encode(produce, no_undo{}, step, slots);
    // The status words ride along as floats: slot r sums to the step of rank r, or to NaN.
    const auto rank = static_cast<std::size_t>(transport_->rank());
    const auto tag = static_cast<float>(step % (1U << 24U));
    const float mine = *local.bad() != 0 ? std::nanf("") : tag;
    for (std::size_t r = 0; r < w; ++r) {
      const float word = r == rank ? mine : 0.0F;
      std::memcpy(slots + r * f.slot_bytes + f.status_at, &word, sizeof word);
    }
    transport_->all_reduce_sum(reinterpret_cast<float*>(slots), w * f.slot_bytes / sizeof(float));
    bool skipped = false;
    for (std::size_t r = 0; r < w; ++r) {
      float word = 0;
      std::memcpy(&word, slots + r * f.slot_bytes + f.status_at, sizeof word);
      skipped = skipped || std::isnan(word);
      if (std::isnan(word) || word == tag) continue;
      throw rank_mismatch(detail::message(
          "dense: rank ", r, " is at step ", word, " while this rank is at step ", step,
          "; all ranks must call step() equally often and load checkpoints of the same step",
          detail::rank_suffix(transport_->rank(), transport_->size())));
    }
    if (skipped) return outcome::skipped;
    *local.bad() = 0;
    local.backend().launch(local.axis().tiles().size(),
                           detail::mean_in_place_kernel{local.tiles(), f, slots,
                                                        1.0F / static_cast<float>(w), local.bad()});
    return *local.bad() != 0 ? outcome::skipped : outcome::agreed;
  }

  dense_sum mode_;
  T* transport_;
  two_phase<identity, T, B> exchange_;
};

}  // namespace onebit
