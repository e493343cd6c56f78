// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Every lane type against the portable one, bit for bit, and the portable one against plain C++.

#include <onebit/backend/lanes_vector.hpp>
#include <onebit/testing/lanes.hpp>

using namespace onebit::testing;
using namespace onebit::testing::lanes_suite;

namespace {

/// Host that runs kernels in vector_lanes, which processors with AVX2 never take.
struct vector_host : onebit::host {
  template <class Kernel>
  void launch(std::size_t n, const Kernel& kernel) const {
    for (std::size_t i = 0; i < n; ++i) kernel(onebit::detail::vector_lanes{}, i);
  }
};
struct vectors_anywhere {
  static std::string name() { return "vector lanes"; }
  static bool available() { return true; }
  static vector_host make() { return {}; }
};

}  // namespace

TEST_CASE_TEMPLATE_INVOKE(lanes_conformance, scalar_1, avx2_1, vectors_anywhere);

namespace {

// Two roundings, whatever flags this file is compiled with.
float twice_rounded(float a, float b, float c) {
  const volatile float product = a * b;
  return product + c;
}

float naive(std::size_t op, float a, float b, float c, bool bit) {
  switch (op) {
    case op_add:
      return a + b;
    case op_sub:
      return a - b;
    case op_mul:
      return a * b;
    case op_div:
      return a / b;
    case op_max:
      return a > b ? a : b;
    case op_sqrt:
      return std::sqrt(a);
    case op_abs:
      return std::fabs(a);
    case op_fma:
      return std::fma(a, b, c);
    case op_select:
      return bit ? a : b;
    case op_with_sign:
      return bit ? a : -a;
    case op_keep:
      return bit ? a : 0.0F;
    case op_mul_add:
    case op_add_mul:
      return twice_rounded(a, b, c);
    case op_mul_sub:
      return twice_rounded(a, b, -c);
    case op_sub_mul:
      return twice_rounded(-a, b, c);
    case op_over_root: {
      const volatile float root = std::sqrt(std::fabs(a)), d = root + 1e-8F;
      return b / d;
    }
    case op_dot:
      return twice_rounded(a, b, twice_rounded(c, b, twice_rounded(a, b, c)));
    default:
      return a;
  }
}

}  // namespace

TEST_CASE("lanes: the portable ones are plain C++") {
  const inputs in;
  const std::size_t n = in.words();
  const results r = run(onebit::host(1, onebit::isa::scalar), in);
  for (std::size_t op = op_load; op < n_operations; ++op) {
    CAPTURE(std::string(names[op]));
    flat expected(n * 32);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expected[i] = naive(op, in.a[i], in.b[i], in.c[i], ((in.bits[i / 32] >> i % 32) & 1U) != 0);
      if (op == op_stochastic) {
        expected[i] = onebit::detail::stochastic_bf16(in.a[i], static_cast<std::uint32_t>(i));
      }
      if (op == op_squares) {
        const std::uint32_t random =
            onebit::detail::random_of_word(static_cast<std::uint32_t>(i / 32));
        expected[i] = onebit::to_float(onebit::detail::stochastic_square(
            in.a[i], onebit::detail::random_of_square(static_cast<std::uint32_t>(i % 32), random)));
      }
      if (op == op_digest) {
        expected[i] =
            onebit::detail::digest_step(onebit::detail::digest_step(in.c[i], in.a[i]), in.b[i]);
      }
      if (op == op_power) {
        expected[i] = onebit::detail::stochastic_power_of_two(std::fabs(in.a[i]),
                                                              static_cast<std::uint32_t>(i));
      }
    }
    CHECK(first_difference_but_nan({r.out.data() + op * n * 32, n * 32}, expected) == none);
  }
  for (std::size_t w = 0; w < n; ++w) {
    std::uint32_t not_negative = 0, positive = 0;
    flat lanes(in.a.begin() + static_cast<std::ptrdiff_t>(32 * w),
               in.a.begin() + static_cast<std::ptrdiff_t>(32 * w + 32));
    flat top = lanes, size = {0};
    for (const float x : lanes) size[0] = size[0] >= std::fabs(x) ? size[0] : std::fabs(x);
    for (const float x : lanes) size[0] = std::isnan(x) ? x : size[0];
    for (std::uint32_t l = 0; l < 32; ++l) {
      if (lanes[l] >= 0) not_negative |= 1U << l;  // bit i is element i
      if (lanes[l] > 0) positive |= 1U << l;
    }
    for (std::size_t half : counts{16, 8, 4, 2, 1}) {
      for (std::size_t l = 0; l < half; ++l) {
        lanes[l] = lanes[l] + lanes[l + half];
        top[l] = top[l] > top[l + half] ? top[l] : top[l + half];
      }
    }
    CAPTURE(w);
    CHECK(r.bits[w] == not_negative);
    CHECK(r.bits[n + w] == positive);
    CHECK(r.bits[2 * n + w] == in.bits[w]);
    CHECK(r.bits[3 * n + w] == static_cast<std::uint32_t>(std::popcount(in.bits[w])));
    CHECK(first_difference_but_nan({&r.scalars[w], 1}, {lanes.data(), 1}) == none);
    CHECK(first_difference_but_nan({&r.scalars[n + w], 1}, {top.data(), 1}) == none);
    CHECK(first_difference_but_nan({&r.scalars[3 * n + w], 1}, size) == none);
  }
}

TEST_CASE("lanes: a product and a sum are two roundings, fma is one") {
  // (1 + k e)^2 with c = -round of it: twice rounded 0, fused the rounding error itself.
  flat a, b, c, separate(64 * 32), fused(64 * 32);
  std::size_t n_telling = 0;
  for (std::size_t i = 0; i < separate.size(); ++i) {
    const float x = 1.0F + static_cast<float>(2 * i + 1) / 4096.0F;
    a.push_back(x);
    b.push_back(x);
    const volatile float product = x * x;
    c.push_back(-product);
    n_telling += std::fma(x, x, c.back()) != 0 ? 1U : 0U;
  }
  REQUIRE(n_telling > separate.size() / 2);  // a test that can fail
  for (const onebit::isa set : instruction_sets()) {
    CAPTURE(std::string(onebit::to_string(set)));
    onebit::host(1, set).launch(
        64, contraction{a.data(), b.data(), c.data(), separate.data(), fused.data()});
    std::size_t n_nonzero = 0;
    bool fma_right = true;
    for (std::size_t i = 0; i < separate.size(); ++i) {
      n_nonzero += separate[i] != 0 ? 1U : 0U;
      fma_right = fma_right && bits_of(fused[i]) == bits_of(std::fma(a[i], b[i], c[i]));
    }
    CHECK(n_nonzero == 0);
    CHECK(fma_right);
  }
}

TEST_CASE("lanes: first(n) has n bits") {
  CHECK(onebit::detail::host_lanes::first(0) == 0);
  CHECK(onebit::detail::host_lanes::first(5) == 31U);
  CHECK(onebit::detail::host_lanes::first(32) == ~0U);
}

TEST_CASE("lanes: sums run in the documented order") {
  constexpr std::size_t n_max = 199;
  flat floats(n_max);
  std::vector<double> doubles(n_max);
  for (std::size_t i = 0; i < n_max; ++i) {
    floats[i] = std::ldexp(noise(4, 0, 0, i), static_cast<int>(hashed(4, 1, 0, i) % 80) - 40);
    doubles[i] = std::ldexp(static_cast<double>(noise(4, 2, 0, i)),
                            static_cast<int>(hashed(4, 3, 0, i) % 80) - 40);
  }
  const std::vector<std::uint32_t> counted(n_max, 3'000'000'000U);
  const auto naive_sum = [](const auto& values, std::size_t n) {
    double lanes[32] = {};
    for (std::size_t i = 0; i < n; ++i) lanes[i % 32] += static_cast<double>(values[i]);
    for (std::size_t half : counts{16, 8, 4, 2, 1}) {
      for (std::size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
    }
    return lanes[0];
  };
  std::size_t n_order_matters = 0;
  for (const onebit::isa set : instruction_sets()) {
    const auto [out, totals, tops] = run_sums(onebit::host(1, set), floats, doubles, counted);
    for (std::size_t n = 0; n <= n_max; ++n) {
      double in_line = 0;
      for (std::size_t i = 0; i < n; ++i) in_line += doubles[i];
      n_order_matters += in_line != out[n_max + 1 + n] ? 1U : 0U;
      CHECK(out[n] == naive_sum(floats, n));
      CHECK(out[n_max + 1 + n] == naive_sum(doubles, n));
      CHECK(totals[n] == n * 3'000'000'000U);
    }
  }
  CHECK(n_order_matters > 0);  // else this test could not fail
}
