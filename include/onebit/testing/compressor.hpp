// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Conformance suite of the Compressor concept, by word and by tile. A model has codec(). Required:
// equal bytes for equal values on every instruction set; a residual equal to value minus decoded
// value, and to the value if the scale is 0 (nothing was sent); by tile, zeros decode to zeros; by
// word, a statistic that is non-finite if a value is; ||error|| at most 1.7 ||values||; at most
// 4n + 64 bytes per tile of n elements; and a training that ends about as near as with `sign`.

#include <algorithm>
#include <limits>
#include <onebit/algorithms.hpp>
#include <onebit/compressor/identity.hpp>
#include <onebit/compressor/sign.hpp>
#include <onebit/testing/ranks.hpp>
#include <onebit/testing/values.hpp>
#include <onebit/transport/threads.hpp>

namespace onebit { inline namespace v0_3 { namespace testing {
namespace compressor_suite {

/// Encodes word i, decodes it, encodes the decoded values again, and rebuilds the residual.
template <class C>
struct word_round_trip {
  C codec;
  const float* values;
  std::byte* codes;
  std::byte* codes_again;
  float *decoded, *residuals, *unsent, *sums;
  float scale;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const auto y = L::load(values + 32 * i);
    codec.template encode<L>(codes + C::word_bytes * i, y);
    const auto d = codec.template decode<L>(codes + C::word_bytes * i, scale);
    L::store(decoded + 32 * i, d);
    codec.template encode<L>(codes_again + C::word_bytes * i, d);
    L::store(residuals + 32 * i, codec.template residual<L>(y, scale));
    L::store(unsent + 32 * i, codec.template residual<L>(y, 0));
    L::store_scalar(sums + i, L::fold(codec.template accumulate<L>(L::set(0.0F), y)));
  }
};

/// Encodes and decodes one tile. Returns the bytes and the decoded values. Memory behind the values
/// and behind the bytes is filled with `behind`, which must not matter.
template <class C>
std::pair<std::vector<std::byte>, flat> tile_round_trip(const C& codec, const flat& values,
                                                        std::uint8_t behind = 0xA5) {
  constexpr std::size_t guard = 4096;
  const std::size_t n = values.size(), n_bytes = codec.tile_bytes(n);
  flat padded = values;
  padded.resize(n + guard, static_cast<float>(behind));
  std::vector<std::byte> bytes(n_bytes + guard, std::byte{behind});
  codec.encode(padded.data(), n, bytes.data());
  for (std::size_t i = n_bytes; i < bytes.size(); ++i) {
    REQUIRE_MESSAGE(bytes[i] == std::byte{behind}, "encode wrote beyond tile_bytes(n)");
  }
  flat decoded(n + guard, 123.0F);
  codec.decode(bytes.data(), n, decoded.data());
  for (std::size_t i = n; i < decoded.size(); ++i) {
    REQUIRE_MESSAGE(decoded[i] == 123.0F, "decode wrote beyond n values");
  }
  bytes.resize(n_bytes);
  decoded.resize(n);
  return {bytes, decoded};
}

inline double norm(const flat& x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(sum);
}

/// Checks ||y - C(y)|| <= 1.7 ||y||, which keeps error feedback bounded in practice. L2 scales with
/// factor f: ||y - C(y)||^2 = (1 + f^2) ||y||^2 - 2 f ||y||_1 ||y||_2 / sqrt(d), so `sign` reaches
/// sqrt(1 + pi / 2), 1.603. L1 scales: below ||y||. A ternary codec that keeps the norm: 1.62.
inline void check_distance(const flat& y, const flat& decoded) {
  flat difference(y.size());
  for (std::size_t i = 0; i < y.size(); ++i) difference[i] = y[i] - decoded[i];
  CHECK_MESSAGE(norm(difference) <= 1.7 * norm(y) + 1e-30,
                "the error is " << norm(difference) / norm(y)
                                << " times the values: is the scale too large?");
}

/// One element is a million times larger than the others.
inline flat skewed(std::size_t n) {
  flat y(n);
  for (std::size_t i = 0; i < n; ++i) y[i] = i % 2 == 0 ? 1e-3F : -1e-3F;
  y[n / 2] = 1e3F;
  return y;
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
  constexpr bool one_sign = requires { requires C::one_sign; };
  constexpr std::size_t n_words = 40, n = 32 * n_words;
  std::vector<std::byte> expected;
  for (const onebit::isa set : instruction_sets()) {
    CAPTURE(std::string(onebit::to_string(set)));
    const onebit::host backend(1, set);
    flat decoded(n), residuals(n), unsent(n), sums(n_words);
    std::vector<std::byte> codes(C::word_bytes * n_words + 64, std::byte{0xA5}), again = codes;
    const auto run = [&](const flat& y, float scale) {
      backend.launch(n_words,
                     word_round_trip<C>{codec, y.data(), codes.data(), again.data(), decoded.data(),
                                        residuals.data(), unsent.data(), sums.data(), scale});
    };
    flat y = message(3, n), sparse(n, 0.0F);
    for (std::size_t w = 0; w < n_words; ++w) sparse[32 * w + w % 32] = y[32 * w];
    for (const flat& values : {y, sparse, skewed(n)}) {
      run(values, 1);
      double sum = 0;
      for (const float s : sums) sum += static_cast<double>(s);
      run(values, codec.scale(sum, n));
      check_distance(values, decoded);
    }
    for (std::size_t i = C::word_bytes * n_words; i < codes.size(); ++i) {
      REQUIRE_MESSAGE(codes[i] == std::byte{0xA5}, "encode wrote beyond word_bytes");
    }

    const flat edges = {0.0F, -0.0F, 1e-42F, -1e-42F, 1e18F, -1e18F};
    std::copy(edges.begin(), edges.end(), y.begin());
    const float scale = C::scaled ? 0.375F : 1.0F;
    run(y, scale);
    if (expected.empty()) expected = codes;
    CHECK(codes == expected);
    // decoded values encode to the same bytes, unless each word has a scale of its own
    if (one_sign || !C::scaled) CHECK(codes == again);
    for (std::size_t i = 0; i < n; ++i) {
      if (one_sign) CHECK(std::fabs(decoded[i]) == scale);
      CHECK(bits_of(residuals[i]) == bits_of(y[i] - decoded[i]));  // one subtraction
      CHECK(bits_of(unsent[i]) == bits_of(y[i]));
    }
    // a non-finite value, in any lane and of any sign, makes the statistic non-finite
    for (const float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN()}) {
      flat poisoned = message(4, n);
      for (std::size_t w = 0; w < n_words; ++w) poisoned[32 * w + w % 32] = bad;
      run(poisoned, scale);
      for (const float s : sums) CHECK_FALSE(std::isfinite(s));
    }
  }
  CHECK(std::isfinite(codec.scale(0.0, 0)));  // no active element
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
    const auto [bytes_again, decoded_again] = tile_round_trip(codec, y, 0x5A);
    CHECK_MESSAGE(bytes == bytes_again,
                  "equal values gave other bytes: encode is not "
                  "deterministic, reads beyond n values, or does not write all tile_bytes(n)");
    CHECK_MESSAGE(first_difference(decoded, decoded_again) == none,
                  "equal bytes gave other values: decode reads beyond tile_bytes(n)");
    check_distance(y, decoded);
    check_distance(skewed(n), tile_round_trip(codec, skewed(n)).second);
    // zeros decode to zeros, so that inactive elements do not move
    const auto [zero_bytes, zeros] = tile_round_trip(codec, flat(n, 0.0F));
    CHECK_MESSAGE(first_difference(zeros, flat(n, 0.0F)) == none, "zeros must decode to zeros");
    CHECK(codec.tile_bytes(n) <= 4 * n + 64);
    // non-finite values are encoded before the step is skipped: writes must stay in bounds
    for (const float bad :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      flat poisoned = y;
      poisoned[n / 2] = bad;
      (void)tile_round_trip(codec, poisoned);
    }
  }
}

/// Returns the squared distance to a target after 800 steps of 1-bit Adam, ten of them dense, on
/// three ranks whose gradients have independent noise. The learning rate rises, then falls.
template <class C>
double distance_left(const C& codec) {
  constexpr std::size_t n_steps = 800;
  const std::vector<std::size_t> sizes = {700, 33, 1000};
  std::vector<flat> params(3);
  const double left = on_ranks(3, [&](onebit::threads transport) {
    memory own(sizes);
    onebit::one_bit_adam_options options{.adam = {.beta2 = 0.99}};
    options.freeze.after = 10;
    auto optimizer = onebit::one_bit_adam(own.groups<float>({{sizes.size(), 1, 0}}), transport,
                                          options, onebit::gather_scatter{codec});
    optimizer.warn_with(nullptr);  // a compressor that does not train may skip many steps
    const auto rank = static_cast<std::uint64_t>(transport.rank());
    const auto make_gradients = [&](std::size_t step) {
      double distance = 0;
      std::size_t at = 0;
      for (std::size_t t = 0; t < sizes.size(); ++t) {
        for (std::size_t i = 0; i < sizes[t]; ++i, ++at) {
          const float off = own.params[t][i] - noise(7, 0, 0, at);
          distance += static_cast<double>(off) * static_cast<double>(off);
          own.grads[t][i] = off + 0.1F * noise(8, rank, step, at);
        }
      }
      return distance;
    };
    for (std::size_t step = 0; step < n_steps; ++step) {
      const float done = static_cast<float>(step) / n_steps;
      make_gradients(step);
      optimizer.step(0.02F * (done < 0.25F ? 4 * done : (1 - done) / 0.75F));
    }
    params[rank] = own.all_params();
    return make_gradients(n_steps);
  })[0];
  for (const flat& of_rank : params) {
    REQUIRE_MESSAGE(first_difference(of_rank, params[0]) == none,
                    "the ranks' parameters differ: decode must depend on its bytes and n alone");
  }
  return left;
}

/// Largest final distance of a training to its target, over that of `sign`. Without compression the
/// distance is 0.98: the noise. Compressors that train are near: int8 and 4 bits 0.98, signs with
/// L2 scales 1.09, the 100 largest elements of a tile 1.12, ternary with a scale that keeps the
/// norm 1.02. Scales that are too small or too large end farther away: signs with L1 scales 1.3,
/// ternary with mean magnitudes or the largest element 1.7. Compressors that lose parts of their
/// messages do not train: a tenth of the scale 290, every second element 17000; the start is at
/// 34000.
inline constexpr double most_of_sign = 5;

template <class C>
void check_training(const C& codec) {
  static const double sign = distance_left(onebit::sign<>{});
  static const double exact = distance_left(onebit::identity{});
  const double own = distance_left(codec);
  CAPTURE(own);
  CAPTURE(sign);
  CAPTURE(exact);
  CHECK(exact < 1.1 * sign);
  CHECK(sign < 2 * exact);  // else `sign` would be no reference
  MESSAGE(onebit::policy_name(codec)
          << ": a training ends at " << own / sign << " times sign's distance from its target "
          << (own < 50 * sign
                  ? std::string(
                        "(up to 1.1: as good as sign; above 1.3: what you send should have the "
                        "norm of the values)")
                  : "(parts of messages are lost: check residual, and the bytes written)"));
  CHECK(own < most_of_sign * sign);
}

}  // namespace compressor_suite

TEST_CASE_TEMPLATE_DEFINE("compressor", Model, compressor_conformance) {
  const auto codec = Model::codec();
  using C = std::remove_const_t<decltype(codec)>;
  onebit::check_compressor<C>();
  CAPTURE(onebit::policy_name(codec));
  CHECK(onebit::policy_name(codec) != "custom");
  if constexpr (onebit::detail::WordCompressor<C>) {
    compressor_suite::check_word_compressor(codec);
  } else {
    compressor_suite::check_tile_compressor(codec);
  }
  compressor_suite::check_training(codec);
}

}}}  // namespace onebit::testing
