// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/core/config.hpp>
#include <onebit/core/element_types.hpp>

/// Lanes of a warp: one float per thread. Needs no CUDA: the warp is a template parameter, and
/// tests pass an emulated one.
namespace onebit { inline namespace v0_3 { namespace detail {

/// Sums slots that have one sign per element and one scale per slot, on a warp, four words at a
/// time. Gives the same bits as adding L::with_sign(bits, scale) of each slot, in slot order.
///
/// The 32 lanes load 4 words of each of 8 slots, one word per lane. A transposition then gives each
/// lane the signs of its own four elements, one byte (8 slots) per element. The sum of the first 5
/// slots has 32 possible values; each lane holds one of them. Other slots are added one by one.
template <class Warp>
class warp_sign_sum {
 public:
  /// `words` (n_words of them) and `scale` point into the first of n slots. Slots are `stride`
  /// bytes apart.
  ONEBIT_HD warp_sign_sum(const std::byte* words, const std::byte* scale, std::size_t stride, int n,
                          std::uint32_t n_words)
      : words_(words + own_slot() * stride + Warp::lane() / n_slots * 4),
        scales_(scale + own_slot() * stride),
        round_(n_slots * stride),
        n_(n),
        n_words_(n_words),
        ahead_(load_word(0, 0, n)) {
    const float own = load_scale(0, n);
    for (unsigned s = 0; s < n_tabled; ++s) {
      sum_of_own_ = added(sum_of_own_, Warp::shuffle(own, s), Warp::lane() << (31 - s));
    }
    for (unsigned s = n_tabled; s < n_slots; ++s) scale_[s - n_tabled] = Warp::shuffle(own, s);
  }

  /// Sums words k to k + 3, for k = 0, 4, 8, ... in order. Prefetches the next four words.
  ONEBIT_HD void operator()(float (&sum)[4], std::uint32_t k) const {
    std::uint32_t signs = transposed_(ahead_);
    if (k + 4 < n_words_) ahead_ = load_word(k + 4, 0, n_);
    for (unsigned j = 0; j < 4; ++j) sum[j] = Warp::shuffle(sum_of_own_, signs >> 8 * j);
    if (n_ <= static_cast<int>(n_tabled)) return;
    for (unsigned s = n_tabled; s < n_slots; ++s) add(sum, scale_[s - n_tabled], signs, s);
    for (int first = n_slots; first < n_; first += n_slots) {
      const std::size_t ahead = static_cast<std::size_t>(first) / n_slots * round_;
      const float own = load_scale(ahead, n_ - first);
      signs = transposed_(load_word(k, ahead, n_ - first));
      for (unsigned s = 0; s < n_slots; ++s) add(sum, Warp::shuffle(own, s), signs, s);
    }
  }

 private:
  static constexpr unsigned n_slots = 8, n_tabled = 5;

  ONEBIT_HD static unsigned own_slot() { return Warp::lane() % n_slots; }
  // a missing slot adds -0 (scale 0, signs clear): this changes no sum, not even the sign of a 0
  ONEBIT_HD float load_scale(std::size_t ahead, int n) const {
    const bool here = static_cast<int>(own_slot()) < n;
    return here ? *detail::aligned_as<const float>(scales_ + ahead) : 0.0F;
  }
  ONEBIT_HD std::uint32_t load_word(std::uint32_t k, std::size_t ahead, int n) const {
    const bool here = static_cast<int>(own_slot()) < n;
    return here ? *detail::aligned_as<const std::uint32_t>(words_ + ahead + 4 * k) : 0U;
  }
  ONEBIT_HD static float added(float sum, float scale, std::uint32_t sign) {
    return Warp::add(sum, Warp::with_sign(scale, sign));
  }
  ONEBIT_HD static void add(float (&sum)[4], float scale, std::uint32_t signs, unsigned slot) {
    for (unsigned j = 0; j < 4; ++j) sum[j] = added(sum[j], scale, signs << (31 - 8 * j - slot));
  }

  typename Warp::transposition transposed_;
  const std::byte *words_, *scales_;
  std::size_t round_;  ///< bytes from one group of 8 slots to the next
  int n_;
  std::uint32_t n_words_;
  mutable std::uint32_t ahead_;  ///< word of this lane for the next call
  float sum_of_own_ = -0.0F;     ///< sum of the first 5 scales, signed by the bits of lane()
  float scale_[n_slots - n_tabled];
};

}}}  // namespace onebit::detail

namespace onebit { inline namespace v0_3 { namespace detail {

/// Lanes for a warp: 32 threads run one kernel call together, and each holds one float of the word.
/// Gives the same bits as portable_lanes.
///
/// Warp provides the operations below. Its arithmetic rounds each operation once, to nearest, and
/// keeps subnormals.
///
///     lane()                   number of this thread, 0 to 31
///     own_bit(), own_shift()   1 << lane(), 31 - lane()
///     ballot(b)                word whose bit l is the b of lane l
///     shuffle_xor(x, mask)     x of lane() ^ mask; x: float, double, std::uint64_t
///     shuffle(x, l)            x of lane l % 32; x: float
///     largest(x)               largest x of all lanes; x: std::uint32_t
///     transposition()(word)    word whose bit l is bit lane() of the word of lane l
///     with_sign(x, word)       x if the highest bit of the word is set, else -x
///     sync()                   barrier: each lane then sees what the others have written
///     tile(i)                  pointer to 4096 floats shared by the lanes; i < 3
///     arrive(count)            adds 1 per warp, acquire-release; returns the previous count
///     add sub mul div sqrt fma of floats; count(word): number of bits; raise(flag): sets it to 1
///     about_reciprocal(x), about_reciprocal_root(x)   a device's estimates of 1 / x, 1 / sqrt(x)
///
/// Scalars (results of `fold`, `sum`, ...) and `bits` are the same in all lanes.
template <class Warp>
struct warp_lanes {
  static constexpr unsigned words = 1;
  static constexpr unsigned at_once = 4;  ///< words per wide_lanes; see run_wide
  using value = float;
  using bits = std::uint32_t;
  using sum_of_four = detail::warp_sign_sum<Warp>;

  ONEBIT_HD static std::uint32_t count(std::uint32_t word) { return Warp::count(word); }
  ONEBIT_HD static std::uint32_t first(std::uint32_t n) { return n >= 32 ? ~0U : (1U << n) - 1U; }
  ONEBIT_HD static bool first_lane() { return Warp::lane() == 0; }
  ONEBIT_HD static float abs_scalar(float x) { return abs(x); }
  /// @{
  /// Operations of the SharingLanes concept.
  ONEBIT_HD static float* shared_tile(std::uint32_t room) { return Warp::tile(room); }
  ONEBIT_HD static void sync() { Warp::sync(); }
  /// @}

  /// Stores x from lane 0, between two syncs. As with a single thread, reads of *p before the call
  /// give the old value in all lanes, and reads after the call give x.
  template <class T>
  ONEBIT_HD static void store_scalar(T* p, T x) {
    Warp::sync();
    if (Warp::lane() == 0) *p = x;
    Warp::sync();
  }
  ONEBIT_HD static void raise(std::uint32_t* flag) { Warp::raise(flag); }
  ONEBIT_HD static bool last_of(std::size_t n, std::uint32_t* count) {
    const bool last = Warp::arrive(count) + 1 == n;
    if (last) store_scalar(count, std::uint32_t{0});
    return last;
  }
  ONEBIT_HD static bool any(bool mine) { return Warp::ballot(mine) != 0; }
  ONEBIT_HD static std::uint32_t own_index() { return Warp::lane(); }
  ONEBIT_HD static std::uint32_t n_indices() { return 32; }

  /// Sums in the order of the host. Two lanes compute each addition of the host's fold, one of them
  /// with exchanged operands. Since a + b == b + a, all lanes get the bits of the host.
  template <class T>
  ONEBIT_HD static double sum(const T* p, std::size_t n) {
    Warp::sync();
    double mine = 0;
    each(p, n, [&](T x) { mine += static_cast<double>(x); });
    for (std::uint32_t half = 16; half > 0; half /= 2) mine += Warp::shuffle_xor(mine, half);
    return mine;
  }
  template <class T>
  ONEBIT_HD static std::uint64_t sum_counts(const T* p, std::size_t n) {
    Warp::sync();
    std::uint64_t mine = 0;
    each<64>(p, n, [&](T x) { mine += x; });  // of 128 bytes sm_120 would spill some
    return total(mine);
  }
  ONEBIT_HD static float largest(const float* p, std::size_t n, float least) {
    Warp::sync();
    float mine = least;
    each(p, n, [&](float x) { mine = x > mine ? x : mine; });
    return fold_max(mine);
  }

  ONEBIT_HD static bits load_bits(const std::uint32_t* p) { return *p; }
  /// Stores b from all lanes, without a sync. No lane may read *p between the last operation that
  /// synchronizes the lanes (for example not_negative) and this call.
  ONEBIT_HD static void store_bits(std::uint32_t* p, bits b) { *p = b; }

  ONEBIT_HD static value set(float x) { return x; }
  ONEBIT_HD static value load(const float* p) { return p[Warp::lane()]; }
  ONEBIT_HD static value load(const float* p, std::uint32_t n) {
    return Warp::lane() < n ? p[Warp::lane()] : 0.0F;
  }
  ONEBIT_HD static void store(float* p, value v) { p[Warp::lane()] = v; }
  ONEBIT_HD static void store(float* p, value v, std::uint32_t n) {
    if (Warp::lane() < n) p[Warp::lane()] = v;
  }
  template <detail::Storable T>
  ONEBIT_HD static value load_as(const T* p, std::uint32_t n) {
    return Warp::lane() < n ? to_float(p[Warp::lane()]) : 0.0F;
  }
  template <detail::Storable T>
  ONEBIT_HD static void store_as(T* p, value v, std::uint32_t n) {
    if (Warp::lane() < n) p[Warp::lane()] = from_float<T>(v);
  }

  template <detail::Storable T>
  ONEBIT_HD static value unrounded(value a, value b) {
    return onebit::detail::unrounded<T>(a, b);
  }
  ONEBIT_HD static value stochastic_bf16(value a, std::uint32_t key) {
    return onebit::detail::stochastic_bf16(a, key + Warp::lane());
  }

  ONEBIT_HD static value load_squares(const bf16* p) {
    return to_float(p[place_of_square(Warp::lane())]);
  }
  ONEBIT_HD static void store_squares(bf16* p, value a, std::uint32_t key) {
    p[place_of_square(Warp::lane())] =
        onebit::detail::stochastic_square(a, random_of_square(Warp::lane(), random_of_word(key)));
  }
  ONEBIT_HD static value stochastic_power_of_two(value a, std::uint32_t key) {
    return onebit::detail::stochastic_power_of_two(a, key + Warp::lane());
  }

  ONEBIT_HD static value digest(value so_far, value v) { return digest_step(so_far, v); }
  ONEBIT_HD static bool same_bits(value a, value b) {
    return Warp::ballot(to_word(a) != to_word(b)) == 0;
  }

  ONEBIT_HD static value add(value a, value b) { return Warp::add(a, b); }
  ONEBIT_HD static value sub(value a, value b) { return Warp::sub(a, b); }
  ONEBIT_HD static value mul(value a, value b) { return Warp::mul(a, b); }
  ONEBIT_HD static value div(value a, value b) { return Warp::div(a, b); }
  ONEBIT_HD static value(max)(value a, value b) { return a > b ? a : b; }
  ONEBIT_HD static value sqrt(value a) { return Warp::sqrt(a); }
  ONEBIT_HD static value abs(value a) { return from_word(to_word(a) & 0x7FFFFFFFU); }
  ONEBIT_HD static value fma(value a, value b, value c) { return Warp::fma(a, b, c); }

  ONEBIT_HD static value bound(value a, float most) {
    return Warp::add(fminf(fmaxf(a, -most), most), 0.0F);
  }

  ONEBIT_HD static bits not_negative(value v) { return Warp::ballot(v >= 0.0F); }
  ONEBIT_HD static bits positive(value v) { return Warp::ballot(v > 0.0F); }
  ONEBIT_HD static value select(bits b, value yes, value no) { return mine(b) != 0 ? yes : no; }
  ONEBIT_HD static value with_sign(bits b, value s) {
    return Warp::with_sign(s, b << Warp::own_shift());
  }
  ONEBIT_HD static value with_sign_of(value a, value s) { return a >= 0.0F ? s : minus(s); }
  ONEBIT_HD static value keep(bits b, value v) { return mine(b) != 0 ? v : 0.0F; }

  /// Returns g / (sqrt(x) + eps) of N words; each operation rounds as `div`, `add` and `sqrt` do.
  ///
  /// A device makes roots and quotients from estimates, which is right unless a number is zero,
  /// tiny or huge. nvcc asks whether it is at each root and each quotient, so that no two of them
  /// overlap. Here one question for all of them comes first. The steps are those that nvcc 13.0
  /// makes of sqrt.rn and div.rn on each architecture from sm_75 to sm_121.
  template <unsigned N>
  ONEBIT_HD static void over_roots(value (&to)[N], const value (&g)[N], const value (&x)[N],
                                   float eps) {
    float least_x = x[0], least_g = std::fabs(g[0]), most = fmaxf(x[0], least_g);
    for (unsigned j = 1; j < N; ++j) {
      least_x = fminf(least_x, x[j]);
      least_g = fminf(least_g, std::fabs(g[j]));
      most = fmaxf(most, fmaxf(x[j], std::fabs(g[j])));
    }
    const bool usual = least_x >= 0x1p-100F && least_g >= 0x1p-60F && most <= 0x1p60F;
    if (!usual || eps > 0x1p30F) {
      for (unsigned j = 0; j < N; ++j) to[j] = div(g[j], add(sqrt(x[j]), eps));
      return;
    }
    for (unsigned j = 0; j < N; ++j) {
      const float estimate = Warp::about_reciprocal_root(x[j]);
      const float about = mul(x[j], estimate), half = mul(estimate, 0.5F);
      const float root = fma(fma(-about, about, x[j]), half, about);
      const float d = add(root, eps), guess = Warp::about_reciprocal(d);
      const float inverse = fma(guess, fma(-d, guess, 1.0F), guess);
      const float quotient = mul(g[j], inverse);
      to[j] = fma(inverse, fma(-d, quotient, g[j]), quotient);
    }
  }

  ONEBIT_HD static float fold(value v) {
    for (std::uint32_t half = 16; half > 0; half /= 2) {
      v = Warp::add(v, Warp::shuffle_xor(v, half));
    }
    return v;
  }
  /// Compares with the lower lane as first operand, as the host does: with NaN the order matters.
  ONEBIT_HD static float fold_max(value v) {
    for (std::uint32_t half = 16; half > 0; half /= 2) {
      const float other = Warp::shuffle_xor(v, half);
      v = (Warp::lane() & half) == 0 ? (max)(v, other) : (max)(other, v);
    }
    return v;
  }
  ONEBIT_HD static float fold_size(value v) {
    const std::uint32_t most = Warp::largest(__builtin_bit_cast(std::uint32_t, abs(v)));
    return __builtin_bit_cast(float, most);
  }

 private:
  ONEBIT_HD static std::uint64_t total(std::uint64_t mine) {
    for (std::uint32_t half = 16; half > 0; half /= 2) mine += Warp::shuffle_xor(mine, half);
    return mine;
  }
  /// Calls f(p[l]), f(p[l + 32]), ... in lane l. To hide latency, each lane loads `bytes` at a
  /// time, then 8 values, then single values.
  template <std::size_t bytes = 128, class T, class F>
  ONEBIT_HD static void each(const T* p, std::size_t n, const F& f) {
    std::size_t i = Warp::lane();
    each_of<bytes / sizeof(T)>(p, i, n, f);
    each_of<8>(p, i, n, f);
    each_of<1>(p, i, n, f);
  }
  template <unsigned N, class T, class F>
  ONEBIT_HD static void each_of(const T* p, std::size_t& i, std::size_t n, const F& f) {
    for (; i + (N - 1) * 32 < n; i += N * 32) {
      T x[N];
      for (unsigned j = 0; j < N; ++j) x[j] = p[i + 32 * j];
      for (const T& one : x) f(one);
    }
  }
  ONEBIT_HD static std::uint32_t mine(bits b) { return b & Warp::own_bit(); }
  ONEBIT_HD static value minus(value s) { return from_word(to_word(s) ^ 0x80000000U); }
  ONEBIT_HD static std::uint32_t to_word(float x) { return __builtin_bit_cast(std::uint32_t, x); }
  ONEBIT_HD static float from_word(std::uint32_t x) { return __builtin_bit_cast(float, x); }
};

}  // namespace detail

}}  // namespace onebit
