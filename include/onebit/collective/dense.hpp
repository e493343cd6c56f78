// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/clip.hpp>
#include <onebit/collective/gather_scatter.hpp>
#include <onebit/concepts.hpp>
#include <onebit/element.hpp>
#include <onebit/tiled.hpp>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

/// The uncompressed mean: of gradients, in the warm-up and in the baselines.
namespace onebit::inline v0_1 {

/// Who adds up the gradients, and in what they travel. Sums are in fp32 in any case.
enum class dense_sum : std::uint8_t {
  automatic,   ///< in_bf16 where gradients are bf16, else rank_order
  rank_order,  ///< all_to_all, sum in rank order, all_gather: the same bits on every transport
  transport,   ///< the transport's own allreduce: its speed and its order of summation
  /// As rank_order, in half the bytes: each rank's gradient (without the loss scale: fp16 would
  /// lose small ones) is rounded to bf16 on its way, and the mean once more.
  in_bf16,
  /// The same in a quarter of the bytes: every 32 elements are whole numbers from -127 to 127 times
  /// a common power of two (MXINT8 of the OCP Microscaling Formats, a bit to spare), which loses
  /// elements below a 127th of the largest of the 32.
  in_int8,
  /// The transport's own allreduce of bf16, of gradients without the loss scale: what everybody's
  /// 16-bit ring sends. Sums are rounded at each addition, in the transport's order. For a
  /// HalfSummingTransport.
  transport_in_bf16
};
/// Whether the transport adds up.
[[nodiscard]] constexpr bool by_transport(dense_sum mode) {
  return mode == dense_sum::transport || mode == dense_sum::transport_in_bf16;
}
/// For descriptions: empty, or from a comma on.
[[nodiscard, gnu::cold]] inline std::string to_string(dense_sum mode) {
  return mode == dense_sum::transport           ? ", sums by the transport"
         : mode == dense_sum::transport_in_bf16 ? ", sums in bf16 by the transport"
         : mode == dense_sum::in_bf16           ? ", averages in bf16"
         : mode == dense_sum::in_int8           ? ", averages in int8"
                                                : "";
}
/// What `automatic` is for gradients of this type.
template <class G>
[[nodiscard]] dense_sum resolved(dense_sum mode) {
  if (mode != dense_sum::automatic) return mode;
  const bool halves = std::is_same_v<std::remove_const_t<G>, bf16>;
  return halves ? dense_sum::in_bf16 : dense_sum::rank_order;
}

namespace detail {

/// Floats, their upper halves, or int8 with the exponent of their unit, by word; and for each chunk
/// the sum of the squares of what was rounded: whoever has the mean has its norm.
struct mean_codec {
  static constexpr bool scaled = true;
  static constexpr bool carries = false;
  static constexpr std::size_t floats = 128, halves = 64, int8s = 33;
  std::size_t word_bytes = floats;

  [[nodiscard]] static std::size_t bytes_of(dense_sum mode) {
    const bool half = mode == dense_sum::in_bf16 || mode == dense_sum::transport_in_bf16;
    return half ? halves : mode == dense_sum::in_int8 ? int8s : floats;
  }
  [[nodiscard]] constexpr granularity scale_granularity() const { return granularity::chunk(); }
  ONEBIT_HD float scale(double sum, std::uint64_t) const { return static_cast<float>(sum); }
  template <class L>
  ONEBIT_HD typename L::value accumulate(const typename L::value& sum,
                                         const typename L::value& y) const {
    return L::fma(y, y, sum);
  }
  template <class L>
  ONEBIT_HD void encode(std::byte* out, const typename L::value& y) const {
    if (word_bytes == floats) [[likely]]
      return L::store(reinterpret_cast<float*>(out), y);
    if (word_bytes == halves) return L::store_as(reinterpret_cast<bf16*>(out), y, 32);
    const std::uint32_t e = unit_of(L::fold_max(L::abs(y)));
    const auto scaled_y = L::mul(y, L::set(power_of_two(260 - e)));
    L::store_as(reinterpret_cast<int8*>(out), L::bound(scaled_y, 127), 32);
    out[32] = static_cast<std::byte>(e);  // by all lanes of a warp, the same
  }
  template <class L>
  ONEBIT_HD typename L::value decode(const std::byte* in, float) const {
    if (word_bytes == floats) [[likely]]
      return L::load(reinterpret_cast<const float*>(in));
    if (word_bytes == halves) return L::load_as(reinterpret_cast<const bf16*>(in), 32);
    const auto e = static_cast<std::uint32_t>(in[32]);
    const float unit = power_of_two(e - 6);
    return L::mul(L::load_as(reinterpret_cast<const int8*>(in), 32), L::set(unit));
  }
  template <class L>
  ONEBIT_HD typename L::value residual(const typename L::value&, float) const {
    return L::set(0.0F);
  }

 private:
  /// Of the unit, 64 of which make the largest: it and its inverse, 2^(260 - e - 127), are normal.
  [[nodiscard]] ONEBIT_HD static std::uint32_t unit_of(float largest) {
    const std::uint32_t e = exponent_of(largest);
    return e < 7 ? 7 : e > 254 ? 254 : e;
  }
};
static_assert(WordCompressor<mean_codec>);

/// Divides the sum of all ranks by their number; calls the step off where the result is not finite.
/// Per tile the sum of its squares.
struct mean_in_place_kernel {
  mean_codec codec;
  const tile* tiles;
  slot_format format;
  std::byte* slots;
  float* sums;
  float inverse;
  step_scalars* now;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    std::byte* p = slots + t.chunk * format.slot_bytes + format.payload_at(t, i);
    auto squares = L::set(0.0F);
    for (std::uint32_t k = 0; k < t.n_words(); ++k, p += codec.word_bytes) {
      const auto mean = L::mul(codec.template decode<L>(p, 0.0F), L::set(inverse));
      squares = L::fma(mean, mean, squares);
      codec.template encode<L>(p, mean);
    }
    const float sum = L::fold(squares);
    L::store_scalar(sums + i, sum);
    if (!(sum <= 3.402823466e38F)) L::raise(&now->skip);
  }
};

/// A status that an allreduce adds up: that of slot r sums to what rank r says, 0 from all others.
/// Numbers of 24 bits, each in one float, or, where halves are added, in three: a bf16 holds 8
/// bits.
struct summed_status {
  std::byte* at;
  bool halves;

  enum : std::uint32_t { step, optimizer, terms, bad };  ///< its numbers; the last has one digit

  [[nodiscard]] ONEBIT_HD static std::uint32_t low(std::uint32_t x) { return x % (1U << 24U); }
  template <class L>
  ONEBIT_HD void put(std::uint32_t number, std::uint32_t x) const {
    for (std::uint32_t i = 0; i < (number == bad ? 1 : n_digits()); ++i) {
      const std::uint32_t place = number * n_digits() + i;
      const auto digit = static_cast<float>(low(x) >> i * digit_bits() & (base() - 1));
      if (halves) {
        L::store_scalar(reinterpret_cast<bf16*>(at) + place, to_bf16(digit));
      } else {
        L::store_scalar(reinterpret_cast<float*>(at) + place, digit);
      }
    }
  }
  /// More than `low` gives, where what came is no number that was put.
  [[nodiscard]] ONEBIT_HD std::uint32_t get(std::uint32_t number) const {
    std::uint32_t x = 0;
    for (std::uint32_t i = 0; i < (number == bad ? 1 : n_digits()); ++i) {
      const std::uint32_t place = number * n_digits() + i;
      const float digit = halves ? to_float(reinterpret_cast<const bf16*>(at)[place])
                                 : reinterpret_cast<const float*>(at)[place];
      if (!(digit >= 0 && digit < static_cast<float>(base()))) return 1U << 24U;
      x |= static_cast<std::uint32_t>(digit) << i * digit_bits();
    }
    return x;
  }

 private:
  [[nodiscard]] ONEBIT_HD std::uint32_t n_digits() const { return halves ? 3 : 1; }
  [[nodiscard]] ONEBIT_HD std::uint32_t digit_bits() const { return halves ? 8 : 24; }
  [[nodiscard]] ONEBIT_HD std::uint32_t base() const { return 1U << digit_bits(); }
};
static_assert(sizeof(slot_status) == 5 * sizeof(float));  // room for 4 floats, or for 10 halves

[[nodiscard]] ONEBIT_HD summed_status summed_status_of(const slot_format& f, std::byte* slots,
                                                       std::size_t slot, bool halves) {
  return {slots + slot * f.slot_bytes + f.status_at, halves};
}

struct tag_kernel {
  static constexpr bool serial = true;
  step_scalars* now;
  std::byte* slots;
  slot_format format;
  std::uint32_t n, rank;
  bool halves;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    bool bad = false;
    for (std::uint32_t r = 0; r < n; ++r) {
      bad = bad || (status_of(format, slots, r)->step & 1U) != 0;
    }
    for (std::uint32_t r = 0; r < n; ++r) {
      const summed_status status = summed_status_of(format, slots, r, halves);
      const std::uint32_t mine = r == rank ? 1 : 0;
      status.put<L>(summed_status::step, mine * now->number);
      status.put<L>(summed_status::optimizer, mine * now->optimizer);
      status.put<L>(summed_status::terms, mine * now->terms);
      status.put<L>(summed_status::bad, mine * (bad ? 1U : 0U));
    }
  }
};

struct check_tags_kernel {
  static constexpr bool serial = true;
  step_scalars* now;
  std::byte* slots;
  slot_format format;
  std::uint32_t n;
  bool halves;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    std::uint32_t skip = now->skip;
    for (std::uint32_t r = 0; r < n; ++r) {
      const summed_status status = summed_status_of(format, slots, r, halves);
      const std::uint32_t step = status.get(summed_status::step),
                          optimizer = status.get(summed_status::optimizer);
      const bool same_step = step == summed_status::low(now->number),
                 same_place = optimizer == summed_status::low(now->optimizer);
      if (status.get(summed_status::bad) != 0) skip = 1;
      if (same_step && same_place &&
          status.get(summed_status::terms) == summed_status::low(now->terms)) {
        continue;
      }
      skip = 1;
      if (now->odd_rank != 0) continue;
      const auto place = [](std::uint32_t of) {
        return of * slot_place::first_optimizer + slot_place::exact;
      };
      L::store_scalar(&now->odd_rank, r + 1);
      L::store_scalar(&now->odd_in, !same_step ? odd::step : !same_place ? odd::place : odd::terms);
      L::store_scalar(&now->odd_word, same_step ? place(optimizer) : step);
      L::store_scalar(&now->own_word, same_step ? place(summed_status::low(now->optimizer))
                                                : summed_status::low(now->number));
    }
    L::store_scalar(&now->skip, skip);
    L::store_scalar(&now->bad, std::uint32_t{0});
  }
};

}  // namespace detail

/// Agrees on the mean of what the ranks produce: a gather-scatter whose sums are in fp32, or a sum
/// of the transport's.
///
/// Cost: rank_order: 2 collectives, the volume of a ring allreduce, 2 (W-1)/W 4n bytes per rank,
/// plus a status of 20 bytes and a sum of squares per slot; in_bf16: half of it, in_int8 33/128;
/// transport: 1 collective, and in bf16 half of it. Memory while in use: 8 bytes per element and
/// 4/W (in_bf16: half), 4 (transport; in bf16 2).
template <class B>
class dense {
 public:
  dense(dense_sum mode, wire w, B backend, std::span<const std::size_t> sizes, int n_buckets = 1)
      : mode_(mode),
        wire_(std::move(w)),
        exchange_({wire_.size() > 1 ? detail::mean_codec::bytes_of(mode) : 128U}, wire_,
                  std::move(backend), sizes, n_buckets) {
    if (mode == dense_sum::transport_in_bf16 && wire_.size() > 1) wire_.require_half_sums();
  }

  [[nodiscard]] dense_sum mode() const { return mode_; }

  using view = clipped_view<gathered_view<detail::mean_codec>>;
  /// The mean, clipped.
  [[nodiscard]] view heard(const step_scalars* now) { return {exchange_.heard({}), now}; }
  [[nodiscard]] const layout& axis() const { return exchange_.axis(); }
  [[nodiscard]] auto& sender() { return exchange_.sender(); }
  void release() noexcept { exchange_.release(); }
  /// As the exchanges; what a transport adds up has no checksum.
  void check_slots(checked which) {
    exchange_.check_slots(by_transport(mode_) ? checked::nothing : which);
  }
  [[nodiscard, gnu::cold]] std::size_t work_bytes() const { return exchange_.work_bytes(); }

  /// As gather_scatter_exchange: buckets that are not sent yet, and the next of them on its way.
  [[nodiscard]] int n_unsent() const { return by_rank_order() ? exchange_.n_unsent() : 0; }
  template <class Produce>
  [[gnu::cold]] void send_next(const Produce& produce, step_scalars* now) {
    prepare();
    exchange_.send_next(produce, turn<undo_in_buffer>{now, {}, {}});
  }
  /// Collective; waits, unless the backend is deferred. Allocates what is not prepared. A mean
  /// whose norm is above `largest_norm` is clipped to it; 0: none is.
  template <class Produce>
  [[gnu::cold]] void agree(const Produce& produce, step_scalars* now, double largest_norm = 0) {
    prepare();
    const turn<undo_in_buffer> t{now, {}, {}};
    auto& s = exchange_.sender();
    // an empty axis has no chunk that would say its sum
    const auto n_slots = axis().tiles().empty() ? 0 : static_cast<std::uint32_t>(axis().n_slots());
    const slot_format& f = s.format();
    strided_floats squares{exchange_.heard_slots() + f.scales_at, f.slot_bytes, n_slots};
    if (by_rank_order()) {
      exchange_.agree(produce, t);
    } else {
      sum_by_transport(produce, t);
      squares = floats_of(s.sums(), axis().tiles().size());
    }
    s.backend().launch(
        1, mean_norm_kernel{now, squares, floats_of(s.new_scales(), axis().groups().size()),
                            static_cast<float>(largest_norm)});
  }
  /// Ends the step: nothing lasts but the memory.
  void finish(step_scalars* now) { exchange_.finish(turn<undo_in_buffer>{now, {}, {}}); }

  /// Allocates what was released, or was never there.
  [[gnu::cold]] void prepare() {
    if (exchange_.started()) return;
    auto space = by_rank_order() ? exchange_.allocate(false, false) : exchange_.allocate_heard();
    exchange_.hold(space);
  }

 private:
  [[nodiscard]] bool by_rank_order() const { return !by_transport(mode_) || !exchange_.travels(); }
  template <class Produce>
  [[gnu::cold]] void sum_by_transport(const Produce& produce, const turn<undo_in_buffer>& t) {
    auto& s = exchange_.sender();
    const slot_format& f = s.format();
    const auto w = static_cast<std::uint32_t>(wire_.size());
    const auto n_slots = static_cast<std::uint32_t>(axis().n_slots());
    std::byte* slots = exchange_.heard_slots();
    for (int b = axis().n_buckets() - 1; b >= 0; --b) s.encode(produce, t, slots, b);
    const bool halves = mode_ == dense_sum::transport_in_bf16;
    const std::size_t bytes = n_slots * f.slot_bytes;
    s.backend().launch(1, detail::tag_kernel{t.now, slots, f, n_slots,
                                             static_cast<std::uint32_t>(wire_.rank()), halves});
    if (halves) {
      wire_.all_reduce_sum(reinterpret_cast<bf16*>(slots), bytes / sizeof(bf16));
    } else {
      wire_.all_reduce_sum(reinterpret_cast<float*>(slots), bytes / sizeof(float));
    }
    s.backend().launch(1, detail::check_tags_kernel{t.now, slots, f, w, halves});
    s.backend().launch(axis().tiles().size(),
                       detail::mean_in_place_kernel{s.codec(), s.tiles(), f, slots, s.sums(),
                                                    1.0F / static_cast<float>(w), t.now});
  }

  dense_sum mode_;
  wire wire_;
  gather_scatter_exchange<detail::mean_codec, B> exchange_;
};

}  // namespace onebit::inline v0_1
