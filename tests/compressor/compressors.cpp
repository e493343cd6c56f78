// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#include <onebit/testing/compressor.hpp>

#include "../support/tile_codecs.hpp"

using namespace onebit::testing;
using onebit_test::int8_tile;
using onebit_test::ternary;

namespace {

template <class C>
struct plain {
  static C codec() { return {}; }
};
template <class Scale>
struct per_block {
  static onebit::sign<Scale> codec() { return {onebit::granularity::block(64)}; }
};
using sign_l2 = plain<onebit::sign<onebit::l2_scale>>;
using sign_l1 = plain<onebit::sign<onebit::l1_scale>>;
using sign_l2_block = per_block<onebit::l2_scale>;
using exact = plain<onebit::identity>;
using ternary_model = plain<ternary>;
using int8_model = plain<int8_tile>;

/// Not a compressor: what `decode` throws would leave parameters half updated.
struct decode_may_throw {
  std::size_t tile_bytes(std::size_t n) const { return 4 * n; }
  void encode(const float*, std::size_t, std::byte*) const {}
  void decode(const std::byte*, std::size_t, float*) const {}
};
struct encode_may_throw : decode_may_throw {
  void decode(const std::byte*, std::size_t, float*) const noexcept {}
};
static_assert(!onebit::Compressor<decode_may_throw> &&
              onebit::detail::TileCompressor<encode_may_throw>);

/// Plain floats, of which `spoilt` makes what is sent: of value i, and the tile's mean magnitude.
struct useless {
  const char* what;
  float (*spoilt)(float value, std::size_t i, float mean);

  std::string name() const { return what; }
  std::size_t tile_bytes(std::size_t n) const { return sizeof(float) * n; }
  void encode(const float* values, std::size_t n, std::byte* out) const {
    float sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += std::fabs(values[i]);
    for (std::size_t i = 0; i < n; ++i) {
      const float sent = spoilt(values[i], i, sum / static_cast<float>(n));
      std::memcpy(out + i * sizeof sent, &sent, sizeof sent);
    }
  }
  void decode(const std::byte* in, std::size_t n, float* values) const noexcept {
    std::memcpy(values, in, sizeof(float) * n);
  }
};
const useless useless_codecs[] = {
    {"nothing", [](float, std::size_t, float) { return 0.0F; }},
    {"one element in 100", [](float x, std::size_t i, float) { return i % 100 == 0 ? x : 0.0F; }},
    {"every second element", [](float x, std::size_t i, float) { return i % 2 == 0 ? x : 0.0F; }},
    {"magnitudes", [](float x, std::size_t, float) { return std::fabs(x); }},
    {"the other sign", [](float x, std::size_t, float) { return -x; }},
    {"a tenth of the scale",
     [](float x, std::size_t, float mean) { return std::copysign(mean / 10, x); }},
};

/// Encodes n values with a scale of their own, by the fold order of one tile.
template <class C>
struct whole_tile {
  C codec;
  const float* values;
  std::size_t n_words;
  std::uint64_t n;
  float* residuals;
  float* scale;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    auto sum = L::set(0.0F);
    for (std::size_t k = 0; k < n_words; ++k) {
      sum = codec.template accumulate<L>(sum, L::load(values + 32 * k));
    }
    const float s = codec.scale(static_cast<double>(L::fold(sum)), n);
    for (std::size_t k = 0; k < n_words; ++k) {
      L::store(residuals + 32 * k, codec.template residual<L>(L::load(values + 32 * k), s));
    }
    L::store_scalar(scale, s);
  }
};

template <class Scale>
void check_sign(bool l2, const onebit::sign<Scale>& codec = {}) {
  for (const onebit::isa set : instruction_sets()) {
    for (const std::size_t n : counts{1, 7, 31, 32, 33, 1000, 4096}) {
      CAPTURE(n);
      const std::size_t n_words = (n + 31) / 32;
      flat y(32 * n_words, 0.0F);
      double sum = 0;
      for (std::size_t i = 0; i < n; ++i) {
        y[i] = std::ldexp(noise(8, 0, 0, i), static_cast<int>(i % 5) - 2);
        const auto x = static_cast<double>(y[i]);
        sum += l2 ? x * x : std::fabs(x);
      }
      flat residuals(y.size());
      float s = 0;
      onebit::host(1, set).launch(
          1, whole_tile<onebit::sign<Scale>>{codec, y.data(), n_words, n, residuals.data(), &s});
      const double mean = sum / static_cast<double>(n);
      // n/32 + 5 float additions of positive terms, each within 2^-24: half of that under a root
      const double bound = (static_cast<double>(n_words) + 8) / (1 << 24);
      const double plain = l2 ? std::sqrt(mean) : mean;
      CHECK(static_cast<double>(s) ==
            doctest::Approx(static_cast<double>(codec.factor) * plain).epsilon(bound));
      for (std::size_t i = 0; i < n; ++i) {
        const double sent = y[i] >= 0 ? static_cast<double>(s) : -static_cast<double>(s);
        const auto e = static_cast<double>(residuals[i]), x = static_cast<double>(y[i]);
        if (std::fabs(x) >= static_cast<double>(s) / 2 &&
            std::fabs(x) <= 2 * static_cast<double>(s)) {
          CHECK(sent + e ==
                x);  // exact where float allows it (Sterbenz), in double to see all bits
        } else {
          CHECK(std::fabs(sent + e - x) <= std::fabs(e) / (1 << 24));  // one rounding
        }
      }
    }
  }
}

}  // namespace

TEST_CASE_TEMPLATE_INVOKE(compressor_conformance, sign_l2, sign_l1, sign_l2_block, exact,
                          ternary_model, int8_model);

TEST_CASE("the suite's training tells compressors that do not train") {
  using compressor_suite::distance_left, compressor_suite::most_of_sign;
  const double sign = distance_left(onebit::sign<>{});
  for (const useless& codec : useless_codecs) {
    const double own = distance_left(codec);
    INFO(codec.what << ": " << own << ", sign " << sign);
    CHECK_FALSE(own < most_of_sign * sign);  // also where it is NaN
  }
}

TEST_CASE("sign: scales and residuals against double precision") {
  check_sign<onebit::l2_scale>(true);
  check_sign<onebit::l2_scale>(true, {.factor = 1});
  check_sign<onebit::l1_scale>(false);
  check_sign<onebit::l1_scale>(false, {.factor = 1});
}

TEST_CASE("sign: by default normal values come through at their size, and factors are checked") {
  // E|z| of a normal z is sqrt(2 / pi) of its root mean square, which is 1 here
  const double mean = std::sqrt(2 / 3.14159265358979);
  CHECK(static_cast<double>(onebit::l2_scale::normal_factor) * mean == doctest::Approx(1));
  CHECK(static_cast<double>(onebit::l1_scale::normal_factor) * mean * mean == doctest::Approx(1));
  for (const float odd : {0.0F, -1.0F, std::nanf(""), INFINITY}) {
    CHECK_THROWS_WITH_AS((void)onebit::sign<>{.factor = odd}.scale_granularity(),
                         doctest::Contains("sign: factor is"), onebit::invalid_input);
  }
}

TEST_CASE("sign: the packing is bit i for element i, and both zeros count as +") {
  flat y(32, -1.0F);
  y[0] = 3.0F;
  y[5] = 0.0F;
  y[6] = -0.0F;
  y[31] = 1e-45F;
  y[30] = -1e-45F;
  const std::uint32_t expected = 1U | 1U << 5U | 1U << 6U | 1U << 31U;
  for (const onebit::isa set : instruction_sets()) {
    std::uint32_t word = 0, again = 0;
    flat decoded(32), residuals(32), unsent(32);
    float sum = 0;
    onebit::host(1, set).launch(
        1, compressor_suite::word_round_trip<onebit::sign<>>{{},
                                                             y.data(),
                                                             reinterpret_cast<std::byte*>(&word),
                                                             reinterpret_cast<std::byte*>(&again),
                                                             decoded.data(),
                                                             residuals.data(),
                                                             unsent.data(),
                                                             &sum,
                                                             2.0F});
    CHECK(word == expected);
    for (std::size_t i = 0; i < 32; ++i) {
      CHECK(decoded[i] == (((expected >> i) & 1U) != 0 ? 2.0F : -2.0F));
    }
  }
}

TEST_CASE("sign: names tell norm and granularity") {
  CHECK(onebit::sign<>{}.name() == "sign l2 x 1.2533141 per block of 4096");
  CHECK(onebit::sign<>{onebit::granularity::layer(), 1}.name() == "sign l2 per layer");
  CHECK(onebit::sign<onebit::l1_scale>{onebit::granularity::block(96)}.name() ==
        "sign l1 x 1.5707963 per block of 96");
  CHECK(onebit::policy_name(onebit::gather_scatter<onebit::sign<>>{}) ==
        "gather_scatter of sign l2 x 1.2533141 per block of 4096");
}
