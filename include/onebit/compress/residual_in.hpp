// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <onebit/concepts.hpp>
#include <onebit/element.hpp>
#include <onebit/layout.hpp>
#include <onebit/vocabulary.hpp>
#include <string>
#include <type_traits>
#include <utility>

/// How residuals are stored between two steps: as floats, or in 8 bits.
namespace onebit::inline v0_1 {

/// How a word of 32 residuals is stored: `per_word` objects of a trivial type `element`, all of
/// whose bits are 0 where all residuals are. Values that lose something in it keep their sign (of
/// -0.0 it is +), and what `load` gave is stored again, with a dither of 0, so that `load` gives
/// the same. `rounds`: `store` makes use of a dither in [-1/2, 1/2), another for each element and
/// step, the same on every backend. What it is called (`const char* name`), if it says so, ranks
/// and checkpoints compare: storages that do not cannot be told apart.
template <class S>
concept ResidualStorage = requires(typename S::element* out, const typename S::element* in,
                                   const detail::any_lanes::value& v) {
  { S::per_word } -> std::convertible_to<std::size_t>;
  { S::rounds } -> std::convertible_to<bool>;
  { S::template load<detail::any_lanes>(in) } -> std::same_as<detail::any_lanes::value>;
  S::template store<detail::any_lanes>(out, v, v);
};

template <class S>
concept NamedStorage = ResidualStorage<S> && requires {
  std::string(S::name);
};

/// Residuals as they are: 4 bytes per element.
struct residuals_in_float {
  /// @{
  /// See ResidualStorage.
  using element = float;
  static constexpr std::size_t per_word = word_elements;
  static constexpr bool rounds = false;

  template <class L>
  ONEBIT_HD static typename L::value load(const float* in) {
    return L::load(in);
  }
  template <class L>
  ONEBIT_HD static void store(float* out, const typename L::value& v, const typename L::value&) {
    L::store(out, v);
  }
  /// @}
};

/// Residuals in 33 bytes for a word of 32: signs, magnitudes from 0 to 127, and a power of two that
/// all share. What is stored differs from what was meant by less than a 64th of the largest of the
/// word, up or down by chance, so that on average nothing is lost; chance is a function of element
/// and step, the same on every backend. Signs are those of what was sent: a negative value stays
/// below 0, however small it is.
struct residuals_in_int8 {
  /// @{
  /// See ResidualStorage.
  using element = unsigned char;
  static constexpr std::size_t per_word = word_elements + 1;
  static constexpr bool rounds = true;

  template <class L>
  ONEBIT_HD static typename L::value load(const unsigned char* in) {
    const auto q = L::load_as(reinterpret_cast<const int8*>(in), 32);
    const auto size = L::select(L::not_negative(q), q, L::add(q, L::set(below_zero)));
    return L::mul(size, L::set(power_of_two(in[word_elements])));
  }
  /// `dither`: in [-1/2, 1/2), what is added to magnitudes before they are rounded; with 0 what
  /// `load` gave is stored as it was, byte for byte, but for the unit of a word of which nothing is
  /// left (2^-70 and less, rounded to 0).
  template <class L>
  ONEBIT_HD static void store(unsigned char* out, const typename L::value& v,
                              const typename L::value& dither) {
    // the largest is 64 to 127 units before and after it is rounded: the unit stays the same
    const float most = L::fold_size(v);
    const std::uint32_t top = exponent_of(most);
    const std::uint32_t unit = most > 0 ? (top < 64 ? 64 : top > 190 ? 190 : top) - 6 : 0;
    const auto size = L::add(L::mul(L::abs(v), L::set(power_of_two(254 - unit))), dither);
    const auto up = L::bound(L::max(size, L::set(0.0F)), 127);
    const auto q = L::select(L::not_negative(v), up, L::sub(L::set(below_minus_one), up));
    L::store_as(reinterpret_cast<int8*>(out), q, 32);
    out[word_elements] = static_cast<unsigned char>(unit);  // by all lanes of a warp, the same
  }
  /// @}

 private:
  /// Makes -1 - q of a magnitude q -(q + 2^-12): also of 0, which would lose its sign.
  static constexpr float below_zero = 1 - 0x1p-12F;
  /// Minus a magnitude makes -1 - q, also where the largest, of 64 units, has lost half a one: ties
  /// go to even, and -64.5 would be 63 units, of which the next to store it makes halves.
  static constexpr float below_minus_one = -1 - 0x1p-16F;
};

namespace detail {

/// What lanes have of a dither: from -31/64 to 31/64, in steps of a 32nd.
template <class L>
ONEBIT_HD typename L::value dither_of_lanes() {
  auto d = L::set(0.0F);
  for (std::uint32_t bit = 0; bit < 5; ++bit) {  // lanes whose number has the bit
    const std::uint32_t blocks[] = {0xAAAAAAAA, 0xCCCCCCCC, 0xF0F0F0F0, 0xFF00FF00, 0xFFFF0000};
    const float weight = 0.25F / static_cast<float>(1U << bit);
    d = L::add(d, L::with_sign(L::load_bits(blocks + bit), L::set(weight)));
  }
  return d;
}
/// From -1/2 to 1/2, for each element of a word another, and for each word and step others: that of
/// the lanes, all moved on by the same.
template <class L>
ONEBIT_HD typename L::value dither(const typename L::value& of_lanes, std::size_t word,
                                   std::uint32_t step) {
  const std::uint32_t chance = mixed(static_cast<std::uint32_t>(word) + step * 0x9E3779B9U);
  const auto d = L::add(of_lanes, L::set(static_cast<float>(chance >> 8U) * 0x1p-24F));
  const auto less = L::sub(d, L::set(1.0F));
  return L::select(L::not_negative(L::sub(d, L::set(0.5F))), less, d);
}

}  // namespace detail

static_assert(ResidualStorage<residuals_in_float> && ResidualStorage<residuals_in_int8>);

/// A compressor that says how residuals are stored: `using residual_storage = ...`.
template <class C>
concept StoringCompressor = requires {
  requires ResidualStorage<typename C::residual_storage>;
};

namespace detail {

template <class C>
struct storage_of {
  using type = residuals_in_float;
};
template <StoringCompressor C>
struct storage_of<C> {
  using type = typename C::residual_storage;
};
template <class T>
using storage_in = std::conditional_t<std::is_same_v<T, int8>, residuals_in_int8, T>;

}  // namespace detail

/// How residuals of C are stored.
template <class C>
using residual_storage_of = typename detail::storage_of<C>::type;

/// The compressor C, its residuals stored by Storage: `int8` (residuals_in_int8), or a
/// ResidualStorage of yours. For gather_scatter and all_gather.
///
///     onebit::gather_scatter{onebit::residual_in<onebit::int8, onebit::sign<>>{}}
///
/// In int8 the state is 1.03 + 1.03/W bytes per element in place of 4 + 4/W. A compressed step
/// reads and writes 6 bytes per element less, and 3 more where it saves in the gradients what it
/// may have to put back; on a CPU it takes as long or less (bench_steps, one_bit_adam_8_bits), on a
/// GPU longer, by an estimate: what rounds costs more instructions than these bytes take time.
template <class Storage, WordCompressor C>
  requires(bool{C::carries})
struct residual_in : C {
  using residual_storage = detail::storage_in<Storage>;  ///< see StoringCompressor
  static_assert(ResidualStorage<residual_storage>,
                "onebit: a residual storage needs element, per_word, rounds, load<L>(in) and "
                "store<L>(out, value, dither)");
  /// Where C is a MixedCompressor: what it is on tiles of a kind.
  [[nodiscard]] ONEBIT_HD residual_in of(std::uint32_t kind) const { return {C::of(kind)}; }
  /// What ranks and checkpoints compare.
  [[nodiscard]] std::string name() const {
    std::string whole = "custom";
    if constexpr (Named<C>) whole = C::name();
    whole += ", residuals in ";
    if constexpr (std::is_same_v<residual_storage, residuals_in_int8>) {
      return whole + "8 bits";
    } else if constexpr (NamedStorage<residual_storage>) {
      return whole + residual_storage::name;
    } else {
      return whole + "a form of their own";
    }
  }
};

}  // namespace onebit::inline v0_1
