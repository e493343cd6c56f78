// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/concepts.hpp>
#include <onebit/layout.hpp>
#include <onebit/now.hpp>
#include <string>

/// One sign an element and nothing else: votes.
namespace onebit::inline v0_1 {

/// What a value that is 0 is counted as, where a bit must say something: +-1.2e-38, which messages
/// start from in the place of a residual. Any vote is 1e38 times as large.
///
/// The sides depend on element, step and rank alone, so they are the same on every backend (but
/// that a skipped step counts on a deferred one). They turn in every step: what only coins decide
/// moves to and fro, and nowhere in the long run. Those of ranks 2i and 2i + 1 are opposite: where
/// all but some ranks have nothing to say, the coins cancel but for one, and the others decide. Of
/// a server: its own side, for a tie.
struct coin {
  const step_scalars* now;
  bool served;

  template <class L>
  struct access {
    std::uint32_t pair, flip;
    std::size_t word;

    ONEBIT_HD typename L::value load(std::uint32_t k) const {
      std::uint32_t sides[L::words];
      for (unsigned j = 0; j < L::words; ++j) {
        sides[j] = mixed(static_cast<std::uint32_t>(word + k + j) + pair * 0x9E3779B9U) ^ flip;
      }
      return L::with_sign(L::load_bits(sides), L::set(1.17549435e-38F));
    }
    ONEBIT_HD typename L::value residual(std::uint32_t, const typename L::value& side) const {
      return side;
    }
    ONEBIT_HD void begin() const {}
    ONEBIT_HD void replace(std::uint32_t, const typename L::value&,
                           const typename L::value&) const {}
  };
  template <class L>
  ONEBIT_HD access<L> at(const tile& t, std::size_t) const {
    const std::uint32_t pair = served ? 0x10000U : now->rank / 2;
    const bool turned = ((now->number + (served ? 0 : now->rank)) & 1U) != 0;
    return {pair, turned ? ~0U : 0U, t.word};
  }
};

/// C(y) = sign(y), 0 by a coin. No scale, and no residual: what a bit loses is lost.
///
/// Of votes +-1 gather_scatter makes the majority: sums of them are exact in float up to 2^24
/// ranks, so that the order does not matter, and a tie, which an even number of ranks can have,
/// falls to a coin that its server tosses: as often to either side, and the same on all ranks,
/// since all hear the server's bit. all_gather makes the mean of the votes. Cost: 4 bytes on the
/// wire per word of 32 elements, and no memory. Source: Distributed Lion (arXiv 2404.00438),
/// algorithm 1, MaVo and Avg; the coin is ours.
struct unit_sign {
  /// @{
  /// See WordCompressor.
  static constexpr std::size_t word_bytes = 4;
  static constexpr bool scaled = false;
  static constexpr bool carries = false;
  /// See BoundedCompressor.
  static constexpr bool bounded = true;

  /// What messages start from, where nothing is carried.
  [[nodiscard]] static coin start(const step_scalars* now, bool served) { return {now, served}; }

  [[nodiscard]] static std::string name() { return "unit sign"; }
  [[nodiscard]] constexpr granularity scale_granularity() const { return granularity::vector(); }

  /// As identity: 1, or NaN as soon as a value is not finite.
  ONEBIT_HD float scale(double sum, std::uint64_t) const { return static_cast<float>(sum) + 1.0F; }
  template <class L>
  ONEBIT_HD typename L::value accumulate(const typename L::value& sum,
                                         const typename L::value& y) const {
    return L::fma(y, L::set(0.0F), sum);
  }
  template <class L>
  ONEBIT_HD void encode(std::byte* out, const typename L::value& y) const {
    L::store_bits(reinterpret_cast<std::uint32_t*>(out), L::not_negative(y));
  }
  template <class L>
  ONEBIT_HD typename L::value decode(const std::byte* in, float) const {
    const auto bits = L::load_bits(reinterpret_cast<const std::uint32_t*>(in));
    return L::with_sign(bits, L::set(1.0F));
  }
  template <class L>
  ONEBIT_HD typename L::value residual(const typename L::value& y, float) const {
    return L::sub(y, L::with_sign_of(y, L::set(1.0F)));
  }
  /// @}
};

static_assert(WordCompressor<unit_sign>);

}  // namespace onebit::inline v0_1
