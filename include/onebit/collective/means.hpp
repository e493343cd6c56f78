// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/collective/slot.hpp>
#include <onebit/concepts.hpp>
#include <onebit/element.hpp>
#include <onebit/layout.hpp>
#include <onebit/tensor.hpp>
#include <onebit/tiled.hpp>
#include <string>
#include <type_traits>

/// Uncompressed means: in what they travel, and where they go.
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

/// Where means go: to the gradients that they are of, if nobody reads these again, or nowhere: they
/// are read as they came. A step says which, where gradients are floats that may be written.
template <class P, class G>
struct mean_place {
  static constexpr bool in_gradients = std::is_same_v<G, float>;  ///< whether they may
  const tensor_entry<P, G>* tensors = nullptr;                    ///< null: nowhere
};
/// Nowhere, always.
struct as_they_came {
  static constexpr bool in_gradients = false;  ///< see mean_place
  const void* tensors = nullptr;               ///< see mean_place
};

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
    const std::uint32_t e = unit_of(L::fold_size(y));
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

/// A mean, where it came or where it went.
template <class To>
struct mean_field {
  gathered_view<mean_codec> came;
  To went;

  template <class L>
  struct reader {
    tile_reader<L, mean_codec> came;
    const float* went;  ///< null: nowhere
    std::uint32_t n;
    ONEBIT_HD typename L::value operator()(std::uint32_t k) const {
      if (went == nullptr) return came(k);
      return load_elements<L>(went, k, n);
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t index) const {
    if (went.tensors != nullptr) return {{}, went.tensors[t.tensor].grads + t.offset, t.n};
    return {came.template at<L>(t, index).values, nullptr, t.n};
  }
};

/// Takes the mean of a tile to the gradients. `squares`, by slot: the first tile of a chunk takes
/// the sum that came with it.
template <class To>
struct take_mean_kernel {
  gathered_view<mean_codec> came;
  To to;
  const tile* tiles;
  std::size_t first_tile;
  float* squares;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tiles[first_tile + i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile t = tile_at(i);
    const auto mean = came.template at<L>(t, first_tile + i);
    float* const out = to.tensors[t.tensor].grads + t.offset;
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words)
      store_elements<L>(out, k, t.n, mean(k));
    if (t.word == t.chunk * came.format.chunk_words)
      L::store_scalar(squares + t.chunk, mean.values.scale);
  }
};

}  // namespace detail

}  // namespace onebit::inline v0_1
