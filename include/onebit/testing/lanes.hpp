// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Conformance suite of lanes: compares every operation of a backend's lanes with the portable
// lanes, bit for bit, in all edge cases. All run in launched kernels: compilers decide by function
// and instruction set whether to fuse multiply-adds, so calls from other code would prove nothing.

#include <bit>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <onebit/core/element_types.hpp>
#include <onebit/kernel/launch.hpp>
#include <onebit/testing/buffers.hpp>
#include <onebit/testing/values.hpp>
#include <tuple>
#include <type_traits>
#include <utility>

namespace onebit { inline namespace v0_3 { namespace testing {
namespace lanes_suite {

inline constexpr float inf = std::numeric_limits<float>::infinity();
inline constexpr float nan_ = std::numeric_limits<float>::quiet_NaN();
inline constexpr float largest = std::numeric_limits<float>::max();
inline constexpr float smallest = std::numeric_limits<float>::denorm_min();
inline constexpr float normal = std::numeric_limits<float>::min();

inline const std::vector<float>& specials() {
  static const std::vector<float> values = {
      0.0F,    -0.0F,     1.0F,    -1.0F,          smallest, -smallest,     normal,       -normal,
      1e-40F,  -1e-40F,   largest, -largest,       inf,      -inf,          nan_,         -nan_,
      1.8e19F, -1.85e19F, 1e30F,   1.00000012F,    0.1F,     -0.333333343F, 16777217.0F,  3e-23F,
      2.0F,    -0.5F,     1e10F,   normal * 0.75F, 4097.0F,  -123456.789F,  0.999999940F, 5e-39F};
  return values;
}

/// Operands a, b, c: all pairs of special values, then random values of all magnitudes.
struct inputs {
  flat a, b, c;
  std::vector<std::uint32_t> bits;

  inputs() {
    for (const float x : specials()) {
      for (const float y : specials()) push(x, y, specials()[a.size() % 31]);
    }
    for (std::size_t i = 0; i < 32; ++i) {  // NaN that a carry would turn into 0 or infinity
      constexpr std::uint32_t nans[] = {0x7FFFFFFFU, 0xFFFFFFFFU, 0x7F800001U, 0x7FC00000U};
      push(std::bit_cast<float>(nans[i % 4]), 1, std::bit_cast<float>(nans[i / 8]));
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
    bits[4] = ~8U;
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
  op_mul_add,  // a b + c, must not be fused
  op_add_mul,  // c + a b, must not be fused
  op_mul_sub,  // a b - c, must not be fused
  op_sub_mul,  // c - a b, must not be fused
  op_stochastic,
  op_squares,
  op_power,
  op_digest,
  op_dot,  // a loop of add(sum, mul(a, b)) over three products
  op_over_root,
  n_operations
};
inline constexpr const char* names[n_operations] = {"set",           "load",
                                                    "add",           "sub",
                                                    "mul",           "div",
                                                    "max",           "sqrt",
                                                    "abs",           "fma",
                                                    "select",        "with_sign",
                                                    "keep",          "add(mul, c)",
                                                    "add(c, mul)",   "sub(mul, c)",
                                                    "sub(c, mul)",   "stochastic_bf16",
                                                    "store_squares", "stochastic_power_of_two",
                                                    "digest",        "sum of products",
                                                    "over_root"};

struct every_operation {
  const float *a, *b, *c;
  const std::uint32_t* bits;
  std::size_t n_words;
  float* out;               // [operation][word][lane]
  bf16* squares;            // [word][lane]
  std::uint32_t* bits_out;  // [5][word]
  float* scalars_out;       // [4][word]

  template <class L>
  ONEBIT_HD void put(std::size_t op, std::size_t w, const typename L::value& v) const {
    L::store(out + (op * n_words + w) * 32, v);
  }
  /// b / (sqrt(|a|) + 1e-8) of a word; where lanes go several words at a time, in one call with the
  /// words that follow, from the first one again after the last.
  template <class L>
  ONEBIT_HD typename L::value over_root_of(std::size_t w) const {
    if constexpr (requires { L::at_once; }) {
      using wide = onebit::detail::wide_lanes<L, L::at_once>;
      typename wide::value g, x;
      for (unsigned j = 0; j < L::at_once; ++j) {
        g.word[j] = L::load(b + 32 * ((w + j) % n_words));
        x.word[j] = L::abs(L::load(a + 32 * ((w + j) % n_words)));
      }
      return wide::over_root(g, x, 1e-8F).word[0];
    } else {
      return onebit::over_root<L>(L::load(b + 32 * w), L::abs(L::load(a + 32 * w)), 1e-8F);
    }
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
    put<L>(op_stochastic, w, L::stochastic_bf16(x, static_cast<std::uint32_t>(32 * w)));
    L::store_squares(squares + 32 * w, x, static_cast<std::uint32_t>(w));
    put<L>(op_squares, w, L::load_squares(squares + 32 * w));
    put<L>(op_power, w, L::stochastic_power_of_two(L::abs(x), static_cast<std::uint32_t>(32 * w)));
    put<L>(op_digest, w, L::digest(L::digest(z, x), y));
    put<L>(op_mul_add, w, L::add(L::mul(x, y), z));
    put<L>(op_add_mul, w, L::add(z, L::mul(x, y)));
    put<L>(op_mul_sub, w, L::sub(L::mul(x, y), z));
    put<L>(op_sub_mul, w, L::sub(z, L::mul(x, y)));
    auto sum = z;
    for (int i = 0; i < 3; ++i) sum = L::add(sum, L::mul(i == 1 ? z : x, y));
    put<L>(op_dot, w, sum);
    put<L>(op_over_root, w, over_root_of<L>(w));

    L::store_bits(bits_out + w, L::not_negative(x));
    L::store_bits(bits_out + n_words + w, L::positive(x));
    L::store_bits(bits_out + 2 * n_words + w, mask);
    L::store_scalar(bits_out + 3 * n_words + w, L::count(bits[w]));
    const bool same = L::same_bits(x, L::select(mask, x, y));
    L::store_scalar(bits_out + 4 * n_words + w, std::uint32_t{same ? 1U : 0U});
    L::store_scalar(scalars_out + w, L::fold(x));
    L::store_scalar(scalars_out + n_words + w, L::fold_max(x));
    L::store_scalar(scalars_out + 2 * n_words + w, L::abs_scalar(a[32 * w]));
    L::store_scalar(scalars_out + 3 * n_words + w, L::fold_size(x));
  }
};

struct results {
  flat out, scalars;
  std::vector<std::uint32_t> bits;
};

template <class B>
results run(B backend, const inputs& in) {
  const std::size_t n = in.words();
  const auto a = uploaded(backend, in.a), b = uploaded(backend, in.b), c = uploaded(backend, in.c);
  const auto bits = uploaded(backend, in.bits);
  auto out = backend.template make_buffer<float>(n_operations * n * 32);
  auto squares = backend.template make_buffer<bf16>(n * 32);
  auto scalars = backend.template make_buffer<float>(4 * n);
  auto bits_out = backend.template make_buffer<std::uint32_t>(5 * n);
  backend.launch(n, every_operation{a.data(), b.data(), c.data(), bits.data(), n, out.data(),
                                    squares.data(), bits_out.data(), scalars.data()});
  return {downloaded(backend, out), downloaded(backend, scalars), downloaded(backend, bits_out)};
}

/// b / (sqrt(a) + eps), several words at a time where lanes do so.
struct many_over_roots {
  const float *a, *b;
  float* out;
  float eps;
  static constexpr std::size_t words_each = 4;
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const std::size_t first = words_each * 32 * i;
    if constexpr (requires { L::at_once; }) {
      using wide = onebit::detail::wide_lanes<L, words_each>;
      wide::store(out + first, wide::over_root(wide::load(b + first), wide::load(a + first), eps));
    } else {
      for (std::size_t k = first; k < first + words_each * 32; k += 32) {
        L::store(out + k, onebit::over_root<L>(L::load(b + k), L::load(a + k), eps));
      }
    }
  }
};
/// Returns many_over_roots of n groups of words: mantissas of all kinds, none zero, tiny or huge.
template <class B>
flat run_many_over_roots(B backend, std::size_t n, float eps) {
  const std::size_t size = n * many_over_roots::words_each * 32;
  flat a(size), b(size);
  for (std::size_t i = 0; i < size; ++i) {
    const std::uint64_t h = hashed(8, 0, 0, i);
    const bool ends = i % 16 == 0;  // mantissas of nearly all ones
    const auto low = static_cast<std::uint32_t>(h & 0x7FFFFFU), high = 0x7FFFFFU - (low & 3U);
    a[i] = std::bit_cast<float>(static_cast<std::uint32_t>(126 + (h >> 60U)) << 23U |
                                (ends ? high : low));
    b[i] = std::bit_cast<float>(127U << 23U | static_cast<std::uint32_t>(h >> 30U & 0x7FFFFFU));
    if (i % 48 == 0) b[i] = i % 96 == 0 ? 1.0F : -1.0F;
  }
  const auto x = uploaded(backend, a), y = uploaded(backend, b);
  auto out = backend.template make_buffer<float>(size);
  backend.launch(n, many_over_roots{x.data(), y.data(), out.data(), eps});
  return downloaded(backend, out);
}

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

/// Computes sums and maxima of the first n values with all reductions of lanes.
struct sums {
  const float* floats;
  const double* doubles;
  const std::uint32_t* counts;
  double* out;                  // [2][n]
  std::uint64_t* count_totals;  // [n]
  float* tops;                  // [2][n]
  std::size_t n_max;
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t n) const {
    L::store_scalar(out + n, L::sum(floats, n));
    L::store_scalar(out + n_max + n, L::sum(doubles, n));
    L::store_scalar(count_totals + n, L::sum_counts(counts, n));
    L::store_scalar(tops + n, L::largest(floats, n, 0.0F));
    L::store_scalar(tops + n_max + n, L::largest(floats, n, 1e3F));
  }
};

template <class B>
std::tuple<std::vector<double>, std::vector<std::uint64_t>, flat> run_sums(
    B backend, const flat& floats, const std::vector<double>& doubles,
    const std::vector<std::uint32_t>& integers) {
  const std::size_t n = floats.size() + 1;
  const auto f = uploaded(backend, floats);
  const auto d = uploaded(backend, doubles);
  const auto c = uploaded(backend, integers);
  auto out = backend.template make_buffer<double>(2 * n);
  auto totals = backend.template make_buffer<std::uint64_t>(n);
  auto tops = backend.template make_buffer<float>(2 * n);
  backend.launch(n, sums{f.data(), d.data(), c.data(), out.data(), totals.data(), tops.data(), n});
  return {downloaded(backend, out), downloaded(backend, totals), downloaded(backend, tops)};
}

/// Converts the first i % 33 elements of word i / 33 from T to float and from float to T; applies
/// `unrounded` to the whole word.
template <class T>
struct elements {
  const T* narrow_in;
  const float *wide_in, *near_in;
  float *wide_out, *unrounded_out;
  T* narrow_out;
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const std::size_t word = i / 33;
    const auto n = static_cast<std::uint32_t>(i % 33);
    L::store(wide_out + 32 * i, L::load_as(narrow_in + 32 * word, n));
    const auto x = L::load(wide_in + 32 * word), near = L::load(near_in + 32 * word);
    L::store_as(narrow_out + 32 * i, x, n);
    L::store(unrounded_out + 32 * i, L::template unrounded<T>(x, near));
  }
};

/// Returns floats that test rounding to 16 bits: midpoints between two values and their neighbours.
inline flat rounding_cases() {
  flat cases = specials();
  for (const std::uint32_t top :
       {0x0000U, 0x0001U, 0x007FU, 0x0080U, 0x3300U, 0x3301U, 0x3380U, 0x3800U, 0x387FU, 0x3880U,
        0x3F80U, 0x477FU, 0x4780U, 0x7F7FU, 0x7F80U, 0x7F81U, 0x7FC0U, 0x7FFFU}) {
    for (const std::uint32_t low :
         {0x0000U, 0x0001U, 0x0FFFU, 0x1000U, 0x1001U, 0x2FFFU, 0x3000U, 0x3001U, 0x7FFFU, 0x8000U,
          0x8001U, 0xC000U, 0xDFFFU, 0xE000U, 0xEFFFU, 0xF000U, 0xF001U, 0xFFFFU}) {
      for (const std::uint32_t sign : {0U, 0x80000000U}) {
        cases.push_back(std::bit_cast<float>(sign | top << 16U | low));
      }
    }
  }
  for (std::size_t i = 0; i < 4096; ++i) {
    cases.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(hashed(8, 0, 0, i))));
  }
  while (cases.size() % 32 != 0) cases.push_back(0.0F);
  return cases;
}

template <class T, class B>
std::tuple<flat, flat, std::vector<T>> run_elements(B backend) {
  flat wide = rounding_cases();
  if constexpr (std::is_same_v<T, onebit::int8>) {  // conversions of others are machine-dependent
    for (float& x : wide) x = std::fabs(x) <= 127 ? x : 0;
  }
  flat near;
  std::vector<T> narrow;
  for (std::size_t i = 0; i < wide.size(); ++i) {
    narrow.push_back(onebit::from_float<T>(wide[i]));
    near.push_back(onebit::to_float(narrow.back()));
    if (i % 3 == 0) near.back() *= 1.5F;  // does not match the rounded value
    if constexpr (sizeof(T) == 2) narrow.back().bits = static_cast<std::uint16_t>(i * 13);
  }
  const std::size_t n = wide.size() / 32 * 33;
  const auto w = uploaded(backend, wide);
  const auto v = uploaded(backend, narrow);
  const auto of = uploaded(backend, near);
  auto wide_out = backend.template make_buffer<float>(32 * n);
  auto unrounded_out = backend.template make_buffer<float>(32 * n);
  auto narrow_out = backend.template make_buffer<T>(32 * n);
  backend.launch(n, elements<T>{v.data(), w.data(), of.data(), wide_out.data(),
                                unrounded_out.data(), narrow_out.data()});
  return {downloaded(backend, wide_out), downloaded(backend, unrounded_out),
          downloaded(backend, narrow_out)};
}

template <class T, class B>
void check_elements(B backend) {
  const auto [wide, unrounded, narrow] = run_elements<T>(backend);
  const auto [wide_host, unrounded_host, narrow_host] =
      run_elements<T>(onebit::host(1, onebit::isa::scalar));
  CHECK(first_difference(wide, wide_host) == none);  // including the bits of NaN
  CHECK(first_difference(unrounded, unrounded_host) == none);
  CHECK(std::memcmp(narrow.data(), narrow_host.data(), narrow.size() * sizeof(T)) == 0);
}

}  // namespace lanes_suite

TEST_CASE_TEMPLATE_DEFINE("lanes", Model, lanes_conformance) {
  using namespace lanes_suite;
  if (!Model::available()) {
    MESSAGE("skipped: this machine cannot run ", Model::name());
    return;
  }
  const auto backend = Model::make();
  const onebit::host portable(1, onebit::isa::scalar);

  for (const float eps : {0.0F, 1e-8F}) {  // roots and quotients of many mantissas
    CAPTURE(eps);
    CHECK(first_difference(run_many_over_roots(backend, 2048, eps),
                           run_many_over_roots(portable, 2048, eps)) == none);
  }
  {  // every operation
    const inputs in;
    const std::size_t n = in.words();
    const results expected = run(portable, in), r = run(backend, in);
    for (std::size_t op = 0; op < n_operations; ++op) {
      CAPTURE(std::string(names[op]));
      CHECK(first_difference_but_nan({r.out.data() + op * n * 32, n * 32},
                                     {expected.out.data() + op * n * 32, n * 32}) == none);
    }
    CHECK(r.bits == expected.bits);
    CHECK(first_difference_but_nan(r.scalars, expected.scalars) == none);
  }
  {  // partial loads fill with zeros, and partial stores write nothing beyond their end
    flat from(64 * 33);
    for (std::size_t i = 0; i < from.size(); ++i) {
      from[i] = i % 64 < i / 64 ? noise(3, 0, 0, i) : nan_;  // NaN beyond the end must not be read
    }
    const auto in = uploaded(backend, from);
    auto loaded = uploaded(backend, flat(32 * 33, 5.0F));
    auto stored = uploaded(backend, flat(64 * 33, 5.0F));
    backend.launch(33, partial{in.data(), loaded.data(), stored.data()});
    const flat got_loaded = downloaded(backend, loaded), got_stored = downloaded(backend, stored);
    for (std::size_t n = 0; n <= 32; ++n) {
      flat expected_load(32, 0.0F), expected_store(64, 5.0F);
      std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(64 * n), n, expected_load.begin());
      std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(64 * n), n, expected_store.begin());
      CAPTURE(n);
      CHECK(first_difference({got_loaded.data() + 32 * n, 32}, expected_load) == none);
      CHECK(first_difference({got_stored.data() + 64 * n, 64}, expected_store) == none);
    }
  }
  {  // sums in the order that the format prescribes
    flat floats(1199);
    std::vector<double> doubles(1199);
    std::vector<std::uint32_t> integers(1199);
    for (std::size_t i = 0; i < floats.size(); ++i) {
      floats[i] = std::ldexp(noise(4, 0, 0, i), static_cast<int>(hashed(4, 1, 0, i) % 80) - 40);
      doubles[i] = std::ldexp(static_cast<double>(noise(4, 2, 0, i)),
                              static_cast<int>(hashed(4, 3, 0, i) % 80) - 40);
      integers[i] = static_cast<std::uint32_t>(hashed(4, 4, 0, i));
    }
    CHECK(run_sums(backend, floats, doubles, integers) ==
          run_sums(portable, floats, doubles, integers));
    floats[150] = nan_;  // NaN is never the largest
    CHECK(std::get<2>(run_sums(backend, floats, doubles, integers)) ==
          std::get<2>(run_sums(portable, floats, doubles, integers)));
  }
  check_elements<float>(backend);
  check_elements<onebit::bf16>(backend);
  check_elements<onebit::fp16>(backend);
  check_elements<onebit::int8>(backend);
}

}}}  // namespace onebit::testing
