// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <onebit/concepts/stand_ins.hpp>

/// Values to bits, and back.
namespace onebit { inline namespace v0_3 {

namespace detail {

/// A compressor that encodes word by word, fused into the passes that produce and use the values:
/// `sign`, `identity`. compressor/sign.hpp documents each member. `decode` and `residual` must
/// accept a smaller scale than `scale` returned, since a rule may bound scales. residual(y, s) is y
/// minus its decoded value, or y itself for a scale of 0: nothing was sent.
template <class C>
concept WordCompressor = requires(const C c, std::byte* out, const std::byte* in, double statistic,
                                  std::uint64_t n, const detail::any_lanes::value& v) {
  { c.word_bytes } -> std::convertible_to<std::size_t>;           // bytes of an encoded word
  { C::scaled } -> std::convertible_to<bool>;                     // true: messages carry scales
  { c.scale_granularity() } -> std::convertible_to<granularity>;  // which elements share a scale
  { c.scale(statistic, n) } -> std::convertible_to<float>;  // scale, from the sum over n elements
  c.template encode<detail::any_lanes>(out, v);             // encodes a word, without its scale
  { c.template decode<detail::any_lanes>(in, 1.0F) } -> std::same_as<detail::any_lanes::value>;
  // adds a word to the sum of the scale; must be non-finite if a value is
  { c.template accumulate<detail::any_lanes>(v, v) } -> std::same_as<detail::any_lanes::value>;
  { c.template residual<detail::any_lanes>(v, 1.0F) } -> std::same_as<detail::any_lanes::value>;
};

/// The short way to write a compressor: a codec for tiles of n floats, 1 to 4096. The library keeps
/// the residual. On the host `encode` may throw, which takes the step back; `decode` also runs in
/// updates, and must not throw. On a device one lane of a warp calls both, if they are ONEBIT_HD.
template <class C>
concept TileCompressor = requires(const C c, const float* values, std::size_t n, std::byte* out,
                                  const std::byte* in, float* decoded) {
  { c.tile_bytes(n) } -> std::convertible_to<std::size_t>;  // must not depend on the values
  c.encode(values, n, out);  // writes all tile_bytes(n) bytes; values may be NaN or infinite
  { c.decode(in, n, decoded) }
  noexcept;
};

}  // namespace detail

template <class C>
concept Compressor = detail::WordCompressor<C> || detail::TileCompressor<C>;

#define ONEBIT_NEEDS(type, member, ...) \
  static_assert(__VA_ARGS__, "onebit: this type is no " type ": " member " is missing or differs")
/// Checks a compressor: one assertion per member, so that the compiler names the one that is
/// missing.
template <class C>
consteval void check_compressor() {
  using lanes = detail::any_lanes;
  using value = lanes::value;
  using byte = std::byte;
  using size = std::size_t;
  constexpr bool word = !detail::TileCompressor<C> &&
                        (
                            requires { C::scaled; } || requires(const C c) { c.word_bytes; } ||
                            requires(const C c) { c.scale_granularity(); } ||
                            requires(const C c) { c.scale(0.0, 1); });
  ONEBIT_NEEDS(
      "Compressor", "std::size_t tile_bytes(std::size_t n) const",
      word || requires(const C c, size n) {
        { c.tile_bytes(n) } -> std::convertible_to<size>;
      });
  ONEBIT_NEEDS(
      "Compressor", "void encode(const float* values, std::size_t n, std::byte* out) const",
      word || requires(const C c, const float* v, size n, byte* out) { c.encode(v, n, out); });
  ONEBIT_NEEDS(
      "Compressor", "void decode(const std::byte* in, std::size_t n, float* values) const noexcept",
      word || requires(const C c, const byte* in, size n, float* v) {
        { c.decode(in, n, v) }
        noexcept;
      });
  // by word, as in onebit/compressor/sign.hpp
  ONEBIT_NEEDS(
      "Compressor", "static constexpr std::size_t word_bytes", !word || requires(const C c) {
        { c.word_bytes } -> std::convertible_to<size>;
      });
  ONEBIT_NEEDS(
      "Compressor", "static constexpr bool scaled", !word || requires {
        { C::scaled } -> std::convertible_to<bool>;
      });
  ONEBIT_NEEDS(
      "Compressor", "granularity scale_granularity() const", !word || requires(const C c) {
        { c.scale_granularity() } -> std::convertible_to<granularity>;
      });
  ONEBIT_NEEDS(
      "Compressor", "float scale(double sum, std::uint64_t n) const",
      !word || requires(const C c, std::uint64_t n) {
        { c.scale(0.0, n) } -> std::convertible_to<float>;
      });
  ONEBIT_NEEDS(
      "Compressor", "encode<L>(std::byte* out, const L::value& y) const",
      !word ||
          requires(const C c, byte* out, const value& v) { c.template encode<lanes>(out, v); });
  ONEBIT_NEEDS(
      "Compressor", "L::value decode<L>(const std::byte* in, float scale) const",
      !word || requires(const C c, const byte* in) {
        { c.template decode<lanes>(in, 1.0F) } -> std::same_as<value>;
      });
  ONEBIT_NEEDS(
      "Compressor", "L::value accumulate<L>(const L::value& sum, const L::value& y) const",
      !word || requires(const C c, const value& v) {
        { c.template accumulate<lanes>(v, v) } -> std::same_as<value>;
      });
  ONEBIT_NEEDS(
      "Compressor", "L::value residual<L>(const L::value& y, float scale) const",
      !word || requires(const C c, const value& v) {
        { c.template residual<lanes>(v, 1.0F) } -> std::same_as<value>;
      });
  static_assert(
      !requires { requires !C::has_residual; },
      "onebit: remove has_residual from this compressor: where it loses nothing, its residual(y, "
      "scale) returns 0 (but y if scale is 0)");
}

#undef ONEBIT_NEEDS

}}  // namespace onebit
