// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The suite of the Compressor concept, of both kinds. A model has codec().

#ifndef ONEBIT_TESTS_CONFORMANCE_COMPRESSOR_HPP
#define ONEBIT_TESTS_CONFORMANCE_COMPRESSOR_HPP

#include <limits>

#include "models.hpp"

namespace onebit_test::compressor_suite {

/// Encodes word i, decodes it, encodes what came out once more, and rebuilds the residual.
template <class C>
struct word_round_trip {
  C codec;
  const float* values;
  std::byte* codes;
  std::byte* codes_again;
  float *decoded, *residuals, *sums;
  float scale;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const auto y = L::load(values + 32 * i);
    codec.template encode<L>(codes + C::word_bytes * i, y);
    const auto d = codec.template decode<L>(codes + C::word_bytes * i, scale);
    L::store(decoded + 32 * i, d);
    codec.template encode<L>(codes_again + C::word_bytes * i, d);
    L::store(residuals + 32 * i, codec.template residual<L>(y, scale));
    L::store_scalar(sums + i, L::fold(codec.template accumulate<L>(L::set(0.0F), y)));
  }
};

/// One tile through a TileCompressor: its bytes, and what they decode to.
template <class C>
std::pair<std::vector<std::byte>, flat> tile_round_trip(const C& codec, const flat& values) {
  constexpr std::size_t guard = 16;
  const std::size_t n_bytes = codec.tile_bytes(values.size());
  std::vector<std::byte> bytes(n_bytes + guard, std::byte{0xA5});
  codec.encode(values.data(), values.size(), bytes.data());
  for (std::size_t i = n_bytes; i < bytes.size(); ++i) REQUIRE(bytes[i] == std::byte{0xA5});
  flat decoded(values.size() + guard, 123.0F);
  codec.decode(bytes.data(), values.size(), decoded.data());
  for (std::size_t i = values.size(); i < decoded.size(); ++i) REQUIRE(decoded[i] == 123.0F);
  decoded.resize(values.size());
  return {bytes, decoded};
}

inline double norm(const flat& x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum);
}

/// ||y - C(y)|| <= sqrt(2) ||y||: true of all compressors here, and what keeps error feedback
/// bounded in practice. (L2 scales: ||y - C(y)||^2 = 2 ||y||^2 - 2 ||y||_1 ||y||_2 / sqrt(d).)
inline void check_distance(const flat& y, const flat& decoded) {
  flat difference(y.size());
  for (std::size_t i = 0; i < y.size(); ++i) difference[i] = y[i] - decoded[i];
  CHECK(norm(difference) <= 1.4143 * norm(y) + 1e-30);
}

inline flat message(std::uint64_t seed, std::size_t n) {
  flat y(n);
  for (std::size_t i = 0; i < n; ++i) {
    y[i] = std::ldexp(noise(seed, 0, 0, i), static_cast<int>(hashed(seed, 1, 0, i) % 8) - 4);
  }
  return y;
}

template <class C>
void check_word_compressor(const C& codec) {
  static_assert(std::is_trivially_copyable_v<C>);
  for (const onebit::isa set : instruction_sets()) {
    CAPTURE(std::string(onebit::to_string(set)));
    const onebit::host backend(1, set);
    constexpr std::size_t n_words = 40;
    flat y = message(3, 32 * n_words);
    y[0] = 0.0F, y[1] = -0.0F, y[2] = 1e-42F, y[3] = -1e-42F, y[4] = 1e18F, y[5] = -1e18F;
    flat decoded(y.size()), residuals(y.size()), sums(n_words);
    std::vector<std::byte> codes(C::word_bytes * n_words), again(C::word_bytes * n_words);
    const float scale = C::scaled ? 0.375F : 1.0F;
    backend.launch(n_words,
                   word_round_trip<C>{codec, y.data(), codes.data(), again.data(), decoded.data(),
                                      residuals.data(), sums.data(), scale});
    CHECK(codes == again);  // what is decoded encodes to the same bytes
    for (std::size_t i = 0; i < y.size(); ++i) {
      if (C::scaled) CHECK(std::fabs(decoded[i]) == scale);
      if (C::has_residual) {  // one subtraction of what the others decode
        CHECK(bits_of(residuals[i]) == bits_of(y[i] - decoded[i]));
      } else {
        CHECK(bits_of(decoded[i]) == bits_of(y[i]));
      }
    }
    // a value that is not finite makes the statistic so, in whatever lane and with whatever sign
    for (const float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN()}) {
      flat poisoned = message(4, 32 * n_words);
      for (std::size_t w = 0; w < n_words; ++w) poisoned[32 * w + w % 32] = bad;
      backend.launch(n_words,
                     word_round_trip<C>{codec, poisoned.data(), codes.data(), again.data(),
                                        decoded.data(), residuals.data(), sums.data(), scale});
      for (const float s : sums) CHECK_FALSE(std::isfinite(s));
    }
  }
  CHECK(std::isfinite(codec.scale(0.0, 0)));  // nothing live
  CHECK(std::isfinite(codec.scale(0.0, 5)));
  CHECK_FALSE(std::isfinite(codec.scale(std::numeric_limits<double>::infinity(), 5)));
  CHECK_FALSE(std::isfinite(codec.scale(std::nan(""), 5)));
}

template <class C>
void check_tile_compressor(const C& codec) {
  for (const std::size_t n : counts{1, 2, 3, 5, 31, 32, 33, 1000, 4095, 4096}) {
    CAPTURE(n);
    const flat y = message(5, n);
    const auto [bytes, decoded] = tile_round_trip(codec, y);
    const auto [bytes_again, decoded_again] = tile_round_trip(codec, y);
    CHECK(bytes == bytes_again);
    CHECK(first_difference(decoded, decoded_again) == none);
    check_distance(y, decoded);
    // zeros are zeros: an element that is not live stays where it is
    const auto [zero_bytes, zeros] = tile_round_trip(codec, flat(n, 0.0F));
    CHECK(zeros == flat(n, 0.0F));
    CHECK(codec.tile_bytes(n) <= 4 * n + 64);
  }
}

}  // namespace onebit_test::compressor_suite

TEST_CASE_TEMPLATE_DEFINE("compressor", Model, compressor_conformance) {
  using namespace onebit_test;
  const auto codec = Model::codec();
  using C = std::remove_const_t<decltype(codec)>;
  static_assert(onebit::Compressor<C>);
  CAPTURE(onebit::policy_name(codec));
  CHECK(onebit::policy_name(codec) != "custom");
  if constexpr (onebit::WordCompressor<C>) {
    compressor_suite::check_word_compressor(codec);
  } else {
    compressor_suite::check_tile_compressor(codec);
  }
}

#endif  // ONEBIT_TESTS_CONFORMANCE_COMPRESSOR_HPP
