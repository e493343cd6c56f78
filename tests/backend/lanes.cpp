// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Every operation of every lane type against the portable one, bit for bit, and the portable one
// against plain C++. All of it as kernels through host::launch: a compiler contracts (or does not)
// inside functions of one instruction set, so calls from ordinary code would prove nothing.

#include <limits>

#include "../conformance/models.hpp"

using namespace onebit_test;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan_ = std::numeric_limits<float>::quiet_NaN();
constexpr float largest = std::numeric_limits<float>::max();
constexpr float smallest = std::numeric_limits<float>::denorm_min();
constexpr float normal = std::numeric_limits<float>::min();

const std::vector<float>& specials() {
  static const std::vector<float> values = {
      0.0F,    -0.0F,     1.0F,    -1.0F,          smallest, -smallest,     normal,       -normal,
      1e-40F,  -1e-40F,   largest, -largest,       inf,      -inf,          nan_,         -nan_,
      1.8e19F, -1.85e19F, 1e30F,   1.00000012F,    0.1F,     -0.333333343F, 16777217.0F,  3e-23F,
      2.0F,    -0.5F,     1e10F,   normal * 0.75F, 4097.0F,  -123456.789F,  0.999999940F, 5e-39F};
  return values;
}

/// a, b, c, word after word: all pairs of special values, then random ones of all magnitudes.
struct inputs {
  flat a, b, c;
  std::vector<std::uint32_t> bits;

  inputs() {
    for (const float x : specials()) {
      for (const float y : specials()) push(x, y, specials()[a.size() % 31]);
    }
    for (std::size_t i = 0; i < 64 * 32; ++i) {
      const auto wide = [&](std::uint64_t which) {
        return std::ldexp(noise(5, which, 0, i),
                          static_cast<int>(hashed(6, which, 0, i) % 60) - 30);
      };
      push(wide(0), wide(1), wide(2));
    }
    for (std::size_t w = 0; w < words(); ++w) {
      bits.push_back(static_cast<std::uint32_t>(hashed(7, 0, 0, w)));
    }
    bits[0] = 0;
    bits[1] = ~0U;
    bits[2] = 1U;
    bits[3] = 0x80000000U;
  }
  std::size_t words() const { return a.size() / 32; }

 private:
  void push(float x, float y, float z) {
    a.push_back(x);
    b.push_back(y);
    c.push_back(z);
  }
};

enum operation : std::size_t {
  op_set,
  op_load,
  op_add,
  op_sub,
  op_mul,
  op_div,
  op_max,
  op_sqrt,
  op_abs,
  op_fma,
  op_select,
  op_with_sign,
  op_keep,
  op_mul_add,  // not contracted
  op_add_mul,  // the same with the product last
  op_mul_sub,  // a b - c
  op_sub_mul,  // c - a b
  op_dot,      // a loop of add(sum, mul(a, b)) over three products
  n_operations
};
constexpr const char* names[n_operations] = {
    "set",  "load",        "add",         "sub",         "mul",         "div",
    "max",  "sqrt",        "abs",         "fma",         "select",      "with_sign",
    "keep", "add(mul, c)", "add(c, mul)", "sub(mul, c)", "sub(c, mul)", "sum of products"};

struct every_operation {
  const float *a, *b, *c;
  const std::uint32_t* bits;
  std::size_t n_words;
  float* out;               // [operation][word][lane]
  std::uint32_t* bits_out;  // [4][word]
  float* scalars_out;       // [3][word]

  template <class L>
  ONEBIT_HD void put(std::size_t op, std::size_t w, const typename L::value& v) const {
    L::store(out + (op * n_words + w) * 32, v);
  }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t w) const {
    const auto x = L::load(a + 32 * w), y = L::load(b + 32 * w), z = L::load(c + 32 * w);
    const auto mask = L::load_bits(bits + w);
    put<L>(op_set, w, L::set(a[32 * w + 3]));
    put<L>(op_load, w, x);
    put<L>(op_add, w, L::add(x, y));
    put<L>(op_sub, w, L::sub(x, y));
    put<L>(op_mul, w, L::mul(x, y));
    put<L>(op_div, w, L::div(x, y));
    put<L>(op_max, w, L::max(x, y));
    put<L>(op_sqrt, w, L::sqrt(x));
    put<L>(op_abs, w, L::abs(x));
    put<L>(op_fma, w, L::fma(x, y, z));
    put<L>(op_select, w, L::select(mask, x, y));
    put<L>(op_with_sign, w, L::with_sign(mask, x));
    put<L>(op_keep, w, L::keep(mask, x));
    put<L>(op_mul_add, w, L::add(L::mul(x, y), z));
    put<L>(op_add_mul, w, L::add(z, L::mul(x, y)));
    put<L>(op_mul_sub, w, L::sub(L::mul(x, y), z));
    put<L>(op_sub_mul, w, L::sub(z, L::mul(x, y)));
    auto sum = z;
    for (int i = 0; i < 3; ++i) sum = L::add(sum, L::mul(i == 1 ? z : x, y));
    put<L>(op_dot, w, sum);

    L::store_bits(bits_out + w, L::not_negative(x));
    L::store_bits(bits_out + n_words + w, L::positive(x));
    L::store_bits(bits_out + 2 * n_words + w, mask);
    L::store_scalar(bits_out + 3 * n_words + w, L::count(bits[w]));
    L::store_scalar(scalars_out + w, L::fold(x));
    L::store_scalar(scalars_out + n_words + w, L::fold_max(x));
    L::store_scalar(scalars_out + 2 * n_words + w, L::abs_scalar(a[32 * w]));
  }
};

struct results {
  flat out, scalars;
  std::vector<std::uint32_t> bits;
};

results run(onebit::isa set, const inputs& in) {
  const std::size_t n = in.words();
  results r;
  r.out.resize(n_operations * n * 32);
  r.scalars.resize(3 * n);
  r.bits.resize(4 * n);
  onebit::host(1, set).launch(
      n, every_operation{in.a.data(), in.b.data(), in.c.data(), in.bits.data(), n, r.out.data(),
                         r.bits.data(), r.scalars.data()});
  return r;
}

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
  const results r = run(onebit::isa::scalar, in);
  for (std::size_t op = op_load; op < n_operations; ++op) {
    CAPTURE(std::string(names[op]));
    flat expected(n * 32);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      expected[i] = naive(op, in.a[i], in.b[i], in.c[i], ((in.bits[i / 32] >> i % 32) & 1U) != 0);
    }
    CHECK(first_difference_but_nan({r.out.data() + op * n * 32, n * 32}, expected) == none);
  }
  for (std::size_t w = 0; w < n; ++w) {
    std::uint32_t not_negative = 0, positive = 0;
    flat lanes(in.a.begin() + static_cast<std::ptrdiff_t>(32 * w),
               in.a.begin() + static_cast<std::ptrdiff_t>(32 * w + 32));
    flat top = lanes;
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
  }
}

TEST_CASE("lanes: every operation gives the same bits with every instruction set") {
  const inputs in;
  const std::size_t n = in.words();
  const results expected = run(onebit::isa::scalar, in);
  for (const onebit::isa set : instruction_sets()) {
    CAPTURE(std::string(onebit::to_string(set)));
    const results r = run(set, in);
    for (std::size_t op = 0; op < n_operations; ++op) {
      CAPTURE(std::string(names[op]));
      CHECK(first_difference_but_nan({r.out.data() + op * n * 32, n * 32},
                                     {expected.out.data() + op * n * 32, n * 32}) == none);
    }
    CHECK(r.bits == expected.bits);
    CHECK(first_difference_but_nan(r.scalars, expected.scalars) == none);
  }
}

namespace {

struct contraction {
  const float *a, *b, *c;
  float *separate, *fused;
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t w) const {
    const auto x = L::load(a + 32 * w), y = L::load(b + 32 * w), z = L::load(c + 32 * w);
    L::store(separate + 32 * w, L::add(L::mul(x, y), z));
    L::store(fused + 32 * w, L::fma(x, y, z));
  }
};

}  // namespace

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

namespace {

struct partial {
  const float* from;
  float *loaded, *stored;
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t n) const {  // n in [0, 32]
    const auto k = static_cast<std::uint32_t>(n);
    L::store(loaded + 32 * n, L::load(from + 64 * n, k));
    L::store(stored + 64 * n, L::load(from + 64 * n), k);
  }
};

struct sum_of {
  const float* floats;
  const double* doubles;
  double* out;
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t n) const {
    L::store_scalar(out + 2 * n, L::sum(floats, n));
    L::store_scalar(out + 2 * n + 1, L::sum(doubles, n));
  }
};

}  // namespace

TEST_CASE("lanes: partial words read zeros and write nothing beyond their end") {
  flat from(64 * 33);
  for (std::size_t i = 0; i < from.size(); ++i) {
    from[i] = i % 64 < i / 64 ? noise(3, 0, 0, i) : nan_;  // what lies beyond must not be seen
  }
  for (const onebit::isa set : instruction_sets()) {
    CAPTURE(std::string(onebit::to_string(set)));
    flat loaded(32 * 33, 5.0F), stored(64 * 33, 5.0F);
    onebit::host(1, set).launch(33, partial{from.data(), loaded.data(), stored.data()});
    for (std::size_t n = 0; n <= 32; ++n) {
      flat expected_load(32, 0.0F), expected_store(64, 5.0F);
      std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(64 * n), n, expected_load.begin());
      std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(64 * n), n, expected_store.begin());
      CAPTURE(n);
      CHECK(first_difference({loaded.data() + 32 * n, 32}, expected_load) == none);
      CHECK(first_difference({stored.data() + 64 * n, 64}, expected_store) == none);
    }
    CHECK(onebit::host_lanes::first(static_cast<std::uint32_t>(0)) == 0);
    CHECK(onebit::host_lanes::first(5) == 31U);
    CHECK(onebit::host_lanes::first(32) == ~0U);
  }
}

TEST_CASE("lanes: sums run in the documented order") {
  constexpr std::size_t n_max = 200;
  flat floats(n_max);
  std::vector<double> doubles(n_max);
  for (std::size_t i = 0; i < n_max; ++i) {
    floats[i] = std::ldexp(noise(4, 0, 0, i), static_cast<int>(hashed(4, 1, 0, i) % 80) - 40);
    doubles[i] = std::ldexp(static_cast<double>(noise(4, 2, 0, i)),
                            static_cast<int>(hashed(4, 3, 0, i) % 80) - 40);
  }
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
    std::vector<double> out(2 * n_max);
    onebit::host(1, set).launch(n_max, sum_of{floats.data(), doubles.data(), out.data()});
    for (std::size_t n = 0; n < n_max; ++n) {
      double in_line = 0;
      for (std::size_t i = 0; i < n; ++i) in_line += doubles[i];
      n_order_matters += in_line != out[2 * n + 1] ? 1U : 0U;
      CHECK(out[2 * n] == naive_sum(floats, n));
      CHECK(out[2 * n + 1] == naive_sum(doubles, n));
    }
  }
  CHECK(n_order_matters > 0);  // else this test could not fail
}
