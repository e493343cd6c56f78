// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <onebit/concepts.hpp>
#include <onebit/element.hpp>
#include <onebit/layout.hpp>
#include <onebit/now.hpp>
#include <onebit/tiled.hpp>
#include <string>
#include <type_traits>

/// How v, or sqrt(v) + eps, is stored while it is constant: as floats, in bf16, in 8 bits.
namespace onebit::inline v0_1 {

/// How a word of 32 numbers that are not negative is stored in `bytes` bytes, of any alignment that
/// divides them: sqrt(v) + eps of 1-bit Adam and 1-bit LAMB, which is above 0 (2^-126 where there
/// is no v) and must stay so, or v of 0/1 Adam, of which 0 must stay 0; infinity may come. L is one
/// word. `dither`: in (-1/2, 1/2), what is added before rounding, in steps from a number to the
/// next; 0 rounds to nearest, and what `load` gave should be stored again as it was, with any:
/// tensors that rest are, at each refresh. `name`: ranks and checkpoints compare it. `idle`: what
/// memory without tensors is filled with, byte by byte.
template <class S>
concept VarianceStorage = requires(std::byte* out, const std::byte* in,
                                   const detail::any_lanes::value& v) {
  { S::bytes } -> std::convertible_to<std::size_t>;
  { S::idle } -> std::convertible_to<std::byte>;
  std::string(S::name);
  { S::template load<detail::any_lanes>(in) } -> std::same_as<detail::any_lanes::value>;
  S::template store<detail::any_lanes>(out, v, v);
};

namespace detail {

/// A word of denominators in 33 bytes: d = 2^(e + 1) (q / 255)^4, q from 1 to 255 and e common to
/// all 32. A step of q is 4 / q of d, twice what rounding can miss it by: 1.6% to 1.9% for the
/// largest of the word, 6% to 7% for one of a 200th of it, 23% to 28% for one of a 50,000th.
struct byte_word {
  static constexpr std::size_t bytes = 33;
  static constexpr const char* name = "8 bits";
  /// Of words of nothing but this: denominators that are positive, and divide 0.
  static constexpr std::byte idle{65};

  template <class L>
  static ONEBIT_HD typename L::value load(const std::byte* in) {
    const auto q = L::add(L::load_as(reinterpret_cast<const int8*>(in), 32), L::set(128.0F));
    const auto root = L::mul(q, L::set(1.0F / 255));
    const auto square = L::mul(root, root);
    return L::mul(L::mul(square, square), L::set(power_of_two(static_cast<std::uint32_t>(in[32]))));
  }
  template <class L>
  static ONEBIT_HD void store(std::byte* out, const typename L::value& d,
                              const typename L::value& dither) {
    const std::uint32_t top = exponent_of(L::fold_size(d));
    const std::uint32_t e = top < 64 ? 65 : top > 190 ? 191 : top + 1;  // of d: 2^-63 to 2^63
    const auto root = L::sqrt(L::sqrt(L::mul(d, L::set(power_of_two(254 - e)))));
    const auto q = L::max(L::add(L::mul(root, L::set(255.0F)), dither), L::set(1.0F));
    L::store_as(reinterpret_cast<int8*>(out), L::bound(L::sub(q, L::set(128.0F)), 127), 32);
    out[32] = static_cast<std::byte>(e);  // by all lanes of a warp, the same
  }
};

/// A word of variances in 33 bytes, as their roots: as near to those as byte_word is. What is 0
/// stays 0, and what is not does not become 0, but for what is next to no float (3e-44).
struct byte_root {
  static constexpr std::size_t bytes = byte_word::bytes;
  static constexpr const char* name = byte_word::name;
  static constexpr std::byte idle{128};  ///< of words of zeros

  template <class L>
  static ONEBIT_HD typename L::value load(const std::byte* in) {
    const auto root = byte_word::load<L>(in);
    return L::mul(root, root);
  }
  template <class L>
  static ONEBIT_HD void store(std::byte* out, const typename L::value& v,
                              const typename L::value& dither) {
    byte_word::store<L>(out, L::sqrt(v), dither);
    auto* const codes = reinterpret_cast<int8*>(out);
    const auto none = L::select(L::positive(v), L::load_as(codes, 32), L::set(-128.0F));
    L::store_as(codes, none, 32);
  }
};

/// A word of either in bf16, 64 bytes: as near as a 128th, half of that where nothing is added.
struct half_word {
  static constexpr std::size_t bytes = 64;
  static constexpr const char* name = "bf16";
  static constexpr std::byte idle{0x3F};  ///< 0.746

  template <class L>
  static ONEBIT_HD typename L::value load(const std::byte* in) {
    return L::load_as(reinterpret_cast<const bf16*>(in), 32);
  }
  template <class L>
  static ONEBIT_HD void store(std::byte* out, const typename L::value& d,
                              const typename L::value& dither) {
    auto* const halves = reinterpret_cast<bf16*>(out);
    const auto rounded = [&](const typename L::value& v) {
      L::store_as(halves, v, 32);
      return L::load_as(halves, 32);
    };
    // of 128 to 255 units a bit more than half a unit to a bit more than one: to the next number
    const auto aside =
        L::select(L::not_negative(dither), L::set(1 + 0x1.02p-8F), L::set(1 - 0x1.02p-8F));
    const auto value = L::bound(d, 0x1p127F);  // of infinity there is no next
    const auto nearest = rounded(value);
    const auto step = L::abs(L::sub(rounded(L::mul(nearest, aside)), nearest));
    L::store_as(halves, L::add(value, L::mul(dither, step)), 32);
  }
};
/// The same of variances; those below 2^-134 become 0.
struct half_variances : half_word {
  static constexpr std::byte idle{};
};

/// How a rule stores what it calls V: as floats where V is float, though a type is named.
template <class V>
struct storage_of_v {
  using denominators = V;
  using variances = V;
};
template <>
struct storage_of_v<int8> {
  using denominators = byte_word;
  using variances = byte_root;
};
template <>
struct storage_of_v<float> : storage_of_v<int8> {};
template <>
struct storage_of_v<bf16> {
  using denominators = half_word;
  using variances = half_variances;
};
template <class V>
concept StoredVariance = VarianceStorage<typename storage_of_v<V>::denominators>;

/// For the name of an optimizer.
template <class V>
[[nodiscard, gnu::cold]] std::string v_is_in() {
  if constexpr (std::same_as<V, float>) {
    return {};
  } else {
    return std::string("with v in ") + storage_of_v<V>::denominators::name + " ";
  }
}

/// Packs denominators or variances; of elements that are not live, or below it, `least`. `dithers`:
/// rounds up or down by chance, as near as either is, so that small changes add up; chance is a
/// function of element and step, the same on every rank and backend.
template <class Word>
struct pack_kernel {
  static constexpr bool rare = true;
  const float* values;
  const tile* tiles;
  live_mask live;
  std::byte* words;
  const step_scalars* now;
  bool dithers;
  float least;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      const std::size_t word = t.word + k;
      auto dither = L::set(0.0F);
      for (std::uint32_t bit = 0; dithers && bit < 8; ++bit) {
        const std::uint32_t side =
            mixed(static_cast<std::uint32_t>(word) * 8 + bit + now->number * 0x9E3779B9U);
        const float weight = 0.25F / static_cast<float>(1U << bit);
        dither = L::add(dither, L::with_sign(L::load_bits(&side), L::set(weight)));
      }
      const auto kept = live.template keep<L>(word, L::load(values + word * 32));
      const auto d = L::max(kept, L::set(least));
      Word::template store<L>(words + word * Word::bytes, d, dither);
    }
  }
};

/// A denominator of what has no gradients, so that 0 divided by it is 0.
inline constexpr float least_denominator = 0x1p-126F;

template <class Word>
struct unpack_kernel {
  static constexpr bool rare = true;
  const std::byte* words;
  const tile* tiles;
  float* values;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      const std::size_t word = t.word + k;
      L::store(values + word * 32, Word::template load<L>(words + word * Word::bytes));
    }
  }
};

}  // namespace detail

/// A field of denominators or variances that are stored as Word says.
template <class Word>
struct stored_field {
  const std::byte* words;

  template <class L>
  struct reader {
    const std::byte* first;
    ONEBIT_HD typename L::value operator()(std::uint32_t k) const {
      typename L::value v;
      for (unsigned j = 0; j < L::words; ++j) {
        word_of<L>(v, j) = Word::template load<one_word<L>>(first + (k + j) * Word::bytes);
      }
      return v;
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t) const {
    return {words + t.word * Word::bytes};
  }
};

static_assert(VarianceStorage<detail::byte_word> && VarianceStorage<detail::byte_root> &&
              VarianceStorage<detail::half_word> && VarianceStorage<detail::half_variances>);

}  // namespace onebit::inline v0_1
