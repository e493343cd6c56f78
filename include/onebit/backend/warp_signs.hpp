// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/concepts.hpp>

namespace onebit::inline v0_1::detail {

/// On a warp: the sum over slots, in their order, of one sign an element times one scale a slot,
/// for four words at a time. The bits are those of L::with_sign(bits, scale) of one slot added
/// after the other.
///
/// Each lane loads a word of a slot, and 32 words from 8 slots change places, so that each lane has
/// all signs of its own elements: a byte for each. What 5 slots sum up to hangs on 5 signs only,
/// and each lane holds one of the 32 sums; further slots are added one by one.
template <class Warp>
class warp_sign_sum {
 public:
  /// `words` and `scale` in the first of n slots that lie `stride` bytes apart.
  ONEBIT_HD warp_sign_sum(const std::byte* words, const std::byte* scale, std::size_t stride, int n)
      : words_(words + own_slot() * stride + Warp::lane() / n_slots * 4),
        scales_(scale + own_slot() * stride),
        round_(n_slots * stride),
        n_(n) {
    const float own = load_scale(0, n);
    for (unsigned s = 0; s < n_tabled; ++s) {
      sum_of_own_ = added(sum_of_own_, Warp::shuffle(own, s), Warp::lane() << (31 - s));
    }
    for (unsigned s = n_tabled; s < n_slots; ++s) scale_[s - n_tabled] = Warp::shuffle(own, s);
  }

  /// Of words k to k + 3.
  ONEBIT_HD void operator()(float (&sum)[4], std::uint32_t k) const {
    std::uint32_t signs = load_signs(k, 0, n_);
    for (unsigned j = 0; j < 4; ++j) sum[j] = Warp::shuffle(sum_of_own_, signs >> 8 * j);
    if (n_ <= static_cast<int>(n_tabled)) return;
    for (unsigned s = n_tabled; s < n_slots; ++s) add(sum, scale_[s - n_tabled], signs, s);
    for (int first = n_slots; first < n_; first += n_slots) {
      const std::size_t ahead = static_cast<std::size_t>(first) / n_slots * round_;
      const float own = load_scale(ahead, n_ - first);
      signs = load_signs(k, ahead, n_ - first);
      for (unsigned s = 0; s < n_slots; ++s) add(sum, Warp::shuffle(own, s), signs, s);
    }
  }

 private:
  static constexpr unsigned n_slots = 8, n_tabled = 5;

  ONEBIT_HD static unsigned own_slot() { return Warp::lane() % n_slots; }
  // where there is no slot, 0 is taken away: that changes nothing, not even the sign of a 0
  ONEBIT_HD float load_scale(std::size_t ahead, int n) const {
    const bool here = static_cast<int>(own_slot()) < n;
    return here ? *reinterpret_cast<const float*>(scales_ + ahead) : 0.0F;
  }
  ONEBIT_HD std::uint32_t load_signs(std::uint32_t k, std::size_t ahead, int n) const {
    const bool here = static_cast<int>(own_slot()) < n;
    const std::byte* p = words_ + ahead + 4 * k;
    return transposed_(here ? *reinterpret_cast<const std::uint32_t*>(p) : 0U);
  }
  ONEBIT_HD static float added(float sum, float scale, std::uint32_t sign) {
    return Warp::add(sum, Warp::with_sign(scale, sign));
  }
  ONEBIT_HD static void add(float (&sum)[4], float scale, std::uint32_t signs, unsigned slot) {
    for (unsigned j = 0; j < 4; ++j) sum[j] = added(sum[j], scale, signs << (31 - 8 * j - slot));
  }

  typename Warp::transposition transposed_;
  const std::byte *words_, *scales_;
  std::size_t round_;  ///< bytes of 8 slots
  int n_;
  float sum_of_own_ = -0.0F;  ///< of the first slots' scales, with the bits of the lane's number
  float scale_[n_slots - n_tabled];
};

}  // namespace onebit::inline v0_1::detail
