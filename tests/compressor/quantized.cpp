// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// 4 bits and 2 bits an element: the suite; levels against double precision; the bound; a residual
// that is rebuilt against one that is kept; every algorithm; the compressed mean by itself.

#include <onebit/compressor/quantized.hpp>
#include <onebit/testing/compressor.hpp>
#include <onebit/testing/rule.hpp>

#include "../support/emulated.hpp"
#include "../support/plan.hpp"

using namespace onebit_test;

namespace {

template <unsigned Bits>
struct bits_model {
  static onebit::quantized<Bits> codec() { return {}; }
};
using two_bits_model = bits_model<2>;
using four_bits_model = bits_model<4>;

/// Gaussian, near enough: the sum of 12 uniform numbers.
float gaussian(std::uint64_t seed, std::size_t i) {
  float sum = 0;
  for (std::uint64_t k = 0; k < 12; ++k) sum += noise(seed, k, 0, i) / 2;
  return sum;
}
float laplace(std::uint64_t seed, std::size_t i) {
  const float u = noise(seed, 0, 0, i);
  return std::copysign(-std::log(1 - std::fabs(u) * 0.999999F), u);
}

struct words {
  flat decoded, residuals, unsent, sums;
  std::vector<std::byte> codes, again;
};
/// y through the codec, decoded with a scale of at most `most`.
template <unsigned Bits, class Backend>
words round_trip(const flat& y, float most, Backend backend) {
  using codec = onebit::quantized<Bits>;
  const std::size_t n_words = y.size() / 32;
  words w{flat(y.size()), flat(y.size()), flat(y.size()), flat(n_words), {}, {}};
  w.codes.resize(codec::word_bytes * n_words);
  w.again.resize(w.codes.size());
  backend.launch(n_words, compressor_suite::word_round_trip<codec>{{},
                                                                   y.data(),
                                                                   w.codes.data(),
                                                                   w.again.data(),
                                                                   w.decoded.data(),
                                                                   w.residuals.data(),
                                                                   w.unsent.data(),
                                                                   w.sums.data(),
                                                                   most});
  float none_of_it = 0;
  backend.copy_out(&none_of_it, w.sums.data(), 1);  // waits
  return w;
}

constexpr float unbounded = 3.4e38F;

/// What `top` should be of 32 values, in double.
template <unsigned Bits>
double top_of(const float* y) {
  double largest = 0, sum = 0;
  for (int i = 0; i < 32; ++i) {
    const double size = std::fabs(static_cast<double>(y[i]));
    largest = std::max(largest, size);
    sum += size;
  }
  if (Bits == 4) return 0.95 * largest;
  return std::min(1.12 * std::sqrt(largest * sum / 32), largest);
}

template <unsigned Bits>
void check_levels(const flat& y) {
  const words w = round_trip<Bits>(y, unbounded, onebit::host());
  for (std::size_t i = 0; i < y.size(); ++i) {
    CAPTURE(i);
    const double top = top_of<Bits>(y.data() + i / 32 * 32), x = static_cast<double>(y[i]);
    const double unit = top / ((1 << Bits) - 1);  // levels are its odd multiples
    const auto d = static_cast<double>(w.decoded[i]);
    const double level = unit > 0 ? d / unit : 0;
    CHECK(std::fabs(level - std::round(level)) <= 1e-5);
    if (unit > 0) CHECK(std::abs(std::lround(level)) % 2 == 1);
    CHECK(std::fabs(d) <= top * (1 + 1e-6));
    // the nearest: at most half of a step away, or the last one
    const double off = std::fabs(x - d);
    CHECK((off <= unit * (1 + 1e-5) || (std::fabs(x) > top && std::fabs(d) >= top * (1 - 1e-6))));
    // one rounding
    const double e = static_cast<double>(w.residuals[i]);
    CHECK(std::fabs(e - (x - d)) <= std::fabs(e) / (1 << 24));
  }
}

template <unsigned Bits>
double relative_error(float (*draw)(std::uint64_t, std::size_t)) {
  flat y(std::size_t{1} << 16U);
  for (std::size_t i = 0; i < y.size(); ++i) y[i] = draw(5, i);
  return compressor_suite::norm(round_trip<Bits>(y, unbounded, onebit::host()).residuals) /
         compressor_suite::norm(y);
}

/// The same codec by tile, for which the residual is kept; no rule's bound reaches it.
template <unsigned Bits>
struct kept_residual {
  static constexpr std::size_t n_bytes = onebit::quantized<Bits>::word_bytes;
  static std::string name() { return "quantized, by tile"; }
  std::size_t tile_bytes(std::size_t n) const { return (n + 31) / 32 * n_bytes; }
  void encode(const float* values, std::size_t n, std::byte* out) const {
    using L = onebit::detail::portable_lanes;
    for (std::size_t i = 0; i < n; i += 32, out += n_bytes) {
      codec.template encode<L>(out, L::load(values + i, static_cast<std::uint32_t>(n - i)));
    }
  }
  void decode(const std::byte* in, std::size_t n, float* values) const noexcept {
    using L = onebit::detail::portable_lanes;
    for (std::size_t i = 0; i < n; i += 32, in += n_bytes) {
      const auto left = static_cast<std::uint32_t>(std::min<std::size_t>(n - i, 32));
      L::store(values + i, codec.template decode<L>(in, unbounded), left);
    }
  }
  onebit::quantized<Bits> codec{};
};

const onebit::gather_scatter<onebit::four_bits> exchange;
const onebit::gather_scatter<onebit::two_bits> exchange_of_two;

struct one_bit_adam_maker {
  static constexpr float rate = 0.02F;
  static constexpr double times_sgd = 60;  // as in laws/all_algorithms.cpp
  template <class Groups>
  auto operator()(const Groups& groups, onebit::threads transport,
                  onebit::host backend = onebit::host()) const {
    onebit::one_bit_adam_options options{.adam = {.beta2 = 0.99}};
    options.freeze.after = 6;
    return onebit::one_bit_adam(groups, transport, options, exchange, backend);
  }
};
struct one_bit_lamb_maker {
  static constexpr float rate = 0.02F;
  static constexpr double times_sgd = 60;
  template <class Groups>
  auto operator()(const Groups& groups, onebit::threads transport,
                  onebit::host backend = onebit::host()) const {
    onebit::one_bit_lamb_options options{.lamb = {.beta2 = 0.99}};
    options.freeze.after = 6;
    return onebit::one_bit_lamb(groups, transport, options, exchange, backend);
  }
};
struct zero_one_adam_maker {
  static constexpr float rate = 0.02F;
  static constexpr double times_sgd = 60;
  template <class Groups>
  auto operator()(const Groups& groups, onebit::threads transport,
                  onebit::host backend = onebit::host()) const {
    return onebit::zero_one_adam(
        groups, transport,
        onebit::zero_one_adam_options{
            .adam = {.beta2 = 0.99},
            .schedule = {.kappa = 2, .warmup_steps = 8, .doubling_steps = 6, .max_interval = 4}},
        exchange, backend);
  }
};

}  // namespace

TEST_CASE_TEMPLATE_INVOKE(compressor_conformance, two_bits_model, four_bits_model);
TEST_CASE_TEMPLATE_INVOKE(rule_bits, one_bit_adam_maker, one_bit_lamb_maker, zero_one_adam_maker);
TEST_CASE_TEMPLATE_INVOKE(rule_resumes, one_bit_adam_maker, one_bit_lamb_maker,
                          zero_one_adam_maker);
TEST_CASE_TEMPLATE_INVOKE(rule_trains, one_bit_adam_maker, one_bit_lamb_maker, zero_one_adam_maker);

TEST_CASE_TEMPLATE("quantized: all ranks have the same bits", Make, one_bit_adam_maker,
                   one_bit_lamb_maker, zero_one_adam_maker) {
  const auto digests = on_ranks(3, [](onebit::threads transport) {
    training data;
    auto o = Make{}(data.groups(), transport);
    auto phase = onebit::phase::local;
    while (o.steps() < conformance_steps || phase == onebit::phase::local)
      phase = train(o, data).phase;
    return data.digest();
  });
  CHECK(digests[0] == digests[1]);
  CHECK(digests[0] == digests[2]);
}

TEST_CASE("quantized: levels and residuals against double precision") {
  flat y = compressor_suite::message(6, 4096);
  std::fill_n(y.begin(), 32, 0.0F);       // a word of zeros
  std::fill_n(y.begin() + 32, 31, 0.0F);  // one element alone
  std::fill_n(y.begin() + 64, 22, 0.0F);  // ten of them
  for (int i = 0; i < 32; ++i) y[96 + i] *= 1e-30F, y[128 + i] *= 1e30F;
  check_levels<2>(y);
  check_levels<4>(y);
  const words w = round_trip<4>(y, unbounded, onebit::host());
  for (int i = 0; i < 32; ++i) CHECK(bits_of(w.decoded[i]) == bits_of(0.0F));
  // the planes, most significant first, both zeros as +: 9.5 is the largest, 9.025 the last level
  // of 15 units
  flat ramp(32, 9.5F);
  ramp[0] = -9.5F, ramp[1] = 0.1F, ramp[2] = -0.1F, ramp[3] = 0.0F, ramp[4] = -0.0F;
  const words planes = round_trip<4>(ramp, unbounded, onebit::host());
  std::uint32_t plane[4];
  std::memcpy(plane, planes.codes.data(), sizeof plane);
  CHECK(plane[0] == 0xFFFFFFFAU);
  for (int p = 1; p < 4; ++p) CHECK(plane[p] == 0xFFFFFFE4U);
}

TEST_CASE("quantized: what is lost of gaussian and of Laplace's values") {
  CHECK(relative_error<4>(gaussian) == doctest::Approx(0.09).epsilon(0.04));
  CHECK(relative_error<4>(laplace) == doctest::Approx(0.112).epsilon(0.04));
  CHECK(relative_error<2>(gaussian) == doctest::Approx(0.334).epsilon(0.02));
  CHECK(relative_error<2>(laplace) == doctest::Approx(0.421).epsilon(0.02));
}

TEST_CASE("quantized: no element is decoded to more than a bound, and the residual knows") {
  flat y = compressor_suite::message(7, 64);
  y[3] = 100;  // its neighbours would be moved by half of a step, 6
  const auto check = [&](const words& w) {
    for (std::size_t i = 0; i < y.size(); ++i) {
      CHECK(std::fabs(w.decoded[i]) <= 2.0F * (1 + 1e-6F));
      CHECK(bits_of(w.residuals[i]) == bits_of(y[i] - w.decoded[i]));
    }
    CHECK(w.decoded[3] == doctest::Approx(2));
  };
  check(round_trip<2>(y, 2, onebit::host()));
  check(round_trip<4>(y, 2, onebit::host()));
}

TEST_CASE("quantized: a warp has the bits of the host") {
  flat y = compressor_suite::message(8, 640);
  std::fill_n(y.begin() + 32, 40, 0.0F);
  const auto check = [&](const words& a, const words& b) {
    CHECK(a.codes == b.codes);
    CHECK(first_difference(a.decoded, b.decoded) == none);
    CHECK(first_difference(a.residuals, b.residuals) == none);
    CHECK(first_difference(a.sums, b.sums) == none);
  };
  for (const float most : {0.5F, unbounded}) {
    check(round_trip<2>(y, most, emulated()), round_trip<2>(y, most, onebit::host()));
    check(round_trip<4>(y, most, emulated()), round_trip<4>(y, most, onebit::host()));
  }
}

TEST_CASE("quantized: the residual that is rebuilt is the one that is kept") {
  plan p;  // with elements that sleep, sizes with padding, and no bound
  p.steps = 40;
  for (const int w : cases({3}, {2, 5})) {
    p.ranks = w;
    const auto rebuilt = on_ranks(w, [&](onebit::threads t) {
      return train(t, p, onebit::gather_scatter{onebit::two_bits{}});
    });
    const auto kept = on_ranks(w, [&](onebit::threads t) {
      return train(t, p, onebit::gather_scatter{kept_residual<2>{}});
    });
    for (std::size_t step = 0; step < p.steps; ++step) {
      CAPTURE(step);
      CHECK(first_difference(rebuilt[0].params[step], kept[0].params[step]) == none);
    }
  }
}

TEST_CASE("quantized: a mean by itself telescopes, on all ranks alike, also when it is resumed") {
  const std::vector<std::size_t> sizes = {1000, 33};
  constexpr int n_calls = 64;
  using allreduce = onebit::compressed_allreduce<onebit::gather_scatter<onebit::two_bits>>;
  const auto sums = [&](int stop) {
    return on_ranks(3, [&](onebit::threads transport) {
      auto mean = std::make_unique<allreduce>(transport, sizes, exchange_of_two);
      std::vector<flat> data, sum;
      for (const std::size_t n : sizes) data.emplace_back(n), sum.emplace_back(n);
      const auto rank = static_cast<std::uint64_t>(transport.rank());
      for (int call = 0; call < n_calls; ++call) {
        for (std::size_t t = 0; t < sizes.size(); ++t) {
          for (std::size_t i = 0; i < sizes[t]; ++i) data[t][i] = noise(9 + t, rank, 0, i);
        }
        if (call == stop) {
          std::istringstream saved_state(saved(*mean));
          mean = std::make_unique<allreduce>(transport, sizes, exchange_of_two);
          mean->load(saved_state);
        }
        std::vector<std::span<float>> spans(data.begin(), data.end());
        CHECK(mean->mean(spans) == onebit::outcome::kept);
        for (std::size_t t = 0; t < sizes.size(); ++t) {
          for (std::size_t i = 0; i < sizes[t]; ++i) sum[t][i] += data[t][i];
        }
      }
      sum[0].insert(sum[0].end(), sum[1].begin(), sum[1].end());
      return sum[0];
    });
  };
  const auto all = sums(-1);
  CHECK(all[0] == all[1]);
  CHECK(all[0] == all[2]);
  CHECK(sums(20) == all);
  for (std::size_t t = 0, at = 0; t < sizes.size(); ++t) {
    for (std::size_t i = 0; i < sizes[t]; ++i, ++at) {
      const float exact =
          (noise(9 + t, 0, 0, i) + noise(9 + t, 1, 0, i) + noise(9 + t, 2, 0, i)) / 3;
      // what has not been sent yet is of the size of a message or two, not of 64
      CHECK(std::fabs(all[0][at] - n_calls * exact) < 3);
    }
  }
}
