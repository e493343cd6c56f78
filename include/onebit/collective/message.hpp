// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <onebit/concepts/compressor.hpp>
#include <onebit/concepts/stand_ins.hpp>
#include <onebit/core/config.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/core/words.hpp>
#include <onebit/kernel/context.hpp>
#include <onebit/kernel/launch.hpp>
#include <onebit/kernel/scalars.hpp>
#include <vector>

/// Wire format: the bytes of a slot, and the views that read values from them.
///
///     0                          scales_at               status_at     slot_bytes
///     | payload                  | scales                | status      |
///     | the chunk's words        | one fp32 a segment,   | step, tag,  |
///     | (or its tiles)           | if the codec has any  | digest      |
///
/// The status tells all ranks of a skip, and of ranks out of step, without another collective.
///
/// A view (like all that kernels read values from) is a small trivially copyable object with
/// `at<L>(tile, index)`, which gives a reader: word index within the tile -> 32 values.
namespace onebit { inline namespace v0_3 {

/// Buffers that one kernel call has for the values of a tile. Values that the call holds at the
/// same time go into different buffers.
enum class tile_buffer : std::uint32_t {
  previous,  ///< message of the last exchange, or a mean
  latest,    ///< message received in this step
  work       ///< message being encoded, or being added to a mean
};
static_assert(static_cast<std::uint32_t>(tile_buffer::work) + 1 == detail::tile_buffers);

namespace detail {

/// Lanes of threads that share memory. `shared_tile(room)` returns the same pointer in all lanes;
/// `sync()` is a barrier, after which each lane sees what the others have written.
template <class L>
concept SharingLanes = requires(std::uint32_t room) {
  { L::shared_tile(room) } -> std::same_as<float*>;
  L::sync();
};

/// Buffer for the values of one tile.
template <class L>
class tile_values {
 public:
  ONEBIT_HD explicit tile_values(tile_buffer) {}
  [[nodiscard]] ONEBIT_HD float* data() { return values_; }
  [[nodiscard]] ONEBIT_HD const float* data() const { return values_; }

 private:
  float values_[tile_elements];
};
template <class L>
  requires SharingLanes<one_word<L>>
class tile_values<L> {
 public:
  ONEBIT_HD explicit tile_values(tile_buffer room)
      : values_(one_word<L>::shared_tile(static_cast<std::uint32_t>(room))) {}
  [[nodiscard]] ONEBIT_HD float* data() const { return values_; }

 private:
  float* values_;
};

#if defined(__CUDACC__)
// Device-only wrappers. If host/device code calls a host-only codec, nvcc merely warns, and the
// call is undefined. (Inlining changes nothing here: a device compiler contracts a * b + c anyway.)
template <class C>
__device__ __forceinline__ void encode_on_device(const C& codec, const float* values, std::size_t n,
                                                 std::byte* out) {
  codec.encode(values, n, out);
}
template <class C>
__device__ __forceinline__ void decode_on_device(const C& codec, const std::byte* in, std::size_t n,
                                                 float* values) {
  codec.decode(in, n, values);
}
#define ONEBIT_OUT_OF_LINE __host__ __device__ __noinline__
#else
#define ONEBIT_OUT_OF_LINE __attribute__((noinline))
#endif

/// Calls a tile codec out of line. The codec is plain user code. If a runner inlined it, its
/// multiply-adds would be contracted on instruction sets with an fma only, and ranks would decode
/// different values.
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
template <class C>
ONEBIT_OUT_OF_LINE void encode_on_host(const C& codec, const float* values, std::size_t n,
                                       std::byte* out) {
  codec.encode(values, n, out);
}
#if defined(__CUDACC__)
#pragma nv_exec_check_disable
#endif
template <class C>
ONEBIT_OUT_OF_LINE void decode_on_host(const C& codec, const std::byte* in, std::size_t n,
                                       float* values) noexcept {
  codec.decode(in, n, values);
}
#undef ONEBIT_OUT_OF_LINE

/// Encodes the n values of a tile. The codec may throw on the host.
template <class L, class C>
ONEBIT_HD void encode_tile(const C& codec, const tile_values<L>& values, std::size_t n,
                           std::byte* out) {
  if constexpr (SharingLanes<one_word<L>>) {
    using lanes = one_word<L>;
    lanes::sync();
    if (lanes::first_lane()) {
#if defined(__CUDA_ARCH__)
      encode_on_device(codec, values.data(), n, out);
#else
      codec.encode(values.data(), n, out);
#endif
    }
    lanes::sync();
  } else {
    encode_on_host(codec, values.data(), n, out);
  }
}
/// Decodes the n values of a tile and zeroes the rest of the last word.
template <class L, class C>
ONEBIT_HD void decode_tile(const C& codec, const std::byte* in, std::size_t n,
                           tile_values<L>& values) {
  const std::size_t padded = words_of(n) * word_elements;
  if constexpr (SharingLanes<one_word<L>>) {
    using lanes = one_word<L>;
    lanes::sync();
    if (lanes::first_lane()) {
#if defined(__CUDA_ARCH__)
      decode_on_device(codec, in, n, values.data());
#else
      codec.decode(in, n, values.data());
#endif
      for (std::size_t i = n; i < padded; ++i) values.data()[i] = 0;
    }
    lanes::sync();
  } else {
    decode_on_host(codec, in, n, values.data());
    for (std::size_t i = n; i < padded; ++i) values.data()[i] = 0;
  }
}

/// Status of the sending rank, in every slot.
struct slot_status {
  std::uint32_t step = 0;    ///< 2 * step, + 1 if the rank saw a non-finite value
  std::uint32_t tag = 0;     ///< see message_tag
  std::uint32_t digest = 0;  ///< step_scalars::given.digest, and a mark of the rank
};

/// Offsets within a slot, in bytes, and the shape of a chunk. Trivially copyable.
struct slot_format {
  std::size_t scales_at = 0;
  std::size_t status_at = 0;
  std::size_t slot_bytes = 0;
  std::size_t chunk_words = 0;
  std::uint32_t chunks_per_bucket = 1;
  std::size_t word_bytes = 0;  ///< 0: see tile_offsets
  /// Offsets of tiles within the payload, for tile compressors.
  const std::uint64_t* tile_offsets = nullptr;

  [[nodiscard]] ONEBIT_HD std::size_t payload_at(const tile& t, std::size_t index) const {
    return word_bytes != 0 ? (t.word - t.chunk * chunk_words) * word_bytes : tile_offsets[index];
  }
  /// Tag of a slot in the exchange of this optimizer.
  [[nodiscard]] ONEBIT_HD std::uint32_t tag(const step_scalars* now, std::uint32_t part) const {
    return now->given.optimizer * message_tag::first_optimizer +
           (exact() ? message_tag::exact : 0) + part;
  }
  /// True if an element has 2 bytes or more: fp32, bf16, `identity`. Sets message_tag::exact.
  [[nodiscard]] ONEBIT_HD bool exact() const { return word_bytes >= word_elements * 2; }
  [[nodiscard]] ONEBIT_HD std::size_t bucket_of(const tile& t) const {
    return t.chunk / chunks_per_bucket;
  }
  /// First word of a tile among the words that its rank serves, bucket after bucket.
  [[nodiscard]] ONEBIT_HD std::size_t server_word(const tile& t) const {
    return bucket_of(t) * chunk_words + t.word - t.chunk * chunk_words;
  }
};

/// Traits of a compressor that messages need. A word compressor provides them itself.
template <Compressor C>
struct codec_traits {
  static constexpr bool by_word = true, scaled = C::scaled;
  [[nodiscard]] static granularity scales(const C& codec) { return codec.scale_granularity(); }
  [[nodiscard]] ONEBIT_HD static float scale(const C& codec, double sum, std::uint64_t n) {
    return codec.scale(sum, n);
  }
  template <class L>
  [[nodiscard]] ONEBIT_HD static typename L::value residual(const C& codec,
                                                            const typename L::value& y,
                                                            float scale) {
    typename L::value v;
    for (unsigned j = 0; j < L::words; ++j) {
      word_of<L>(v, j) = codec.template residual<one_word<L>>(word_of<L>(y, j), scale);
    }
    return v;
  }
};

/// A tile compressor has no scales: `scale` is 0, or NaN if a value is not finite. The exchange
/// stores its residual in place of the compensated value.
template <Compressor C>
  requires(!WordCompressor<C>)
struct codec_traits<C> {
  static constexpr bool by_word = false, scaled = false;
  [[nodiscard]] static granularity scales(const C&) { return granularity::vector(); }
  [[nodiscard]] ONEBIT_HD static float scale(const C&, double sum, std::uint64_t) {
    return static_cast<float>(sum);
  }
  template <class L>
  [[nodiscard]] ONEBIT_HD static typename L::value residual(const C&, const typename L::value& y,
                                                            float) {
    return y;
  }
};

/// Returns the slot format of a layout; fills `tile_offsets` for tile compressors.
template <Compressor C>
[[nodiscard]] detail::slot_format make_slot_format(const C& codec, const layout& axis,
                                                   std::vector<std::uint64_t>& tile_offsets) {
  detail::slot_format f;
  f.chunk_words = axis.chunk_words();
  f.chunks_per_bucket = static_cast<std::uint32_t>(axis.n_chunks());
  // slots, scales and tiles stay 4-byte aligned
  if constexpr (detail::WordCompressor<C>) {
    f.word_bytes = codec.word_bytes;
    f.scales_at = (axis.chunk_words() * f.word_bytes + 3) / 4 * 4;
  } else {
    tile_offsets.resize(axis.tiles().size());
    for (int j = 0; j < axis.n_slots(); ++j) {
      std::size_t offset = 0;
      for (auto i = axis.chunk_tiles(j).begin; i < axis.chunk_tiles(j).end; ++i) {
        tile_offsets[i] = offset;
        offset += (codec.tile_bytes(axis.tiles()[i].n) + 3) / 4 * 4;
      }
      if (offset > f.scales_at) f.scales_at = offset;
    }
  }
  f.status_at =
      f.scales_at + (detail::codec_traits<C>::scaled ? axis.slot_segments() * sizeof(float) : 0);
  f.slot_bytes = f.status_at + sizeof(detail::slot_status);
  return f;
}

template <class T>
ONEBIT_HD T load_scalar(const std::byte* p) {
  return *detail::aligned_as<const T>(p);
}

// Decodes L::words words. A word compressor decodes one word at a time; one with `sends_floats` may
// send plain floats, of which several words are contiguous.
template <class L, class C>
ONEBIT_HD typename L::value decode_words(const C& codec, const std::byte* in, float scale) {
  if constexpr (L::words > 1 && requires { codec.sends_floats(); }) {
    if (codec.sends_floats()) return L::load(detail::aligned_as<const float>(in));
  }
  typename L::value v;
  for (unsigned j = 0; j < L::words; ++j) {
    word_of<L>(v, j) = codec.template decode<one_word<L>>(in + j * codec.word_bytes, scale);
  }
  return v;
}
/// A WordCompressor that rounds at random: encode(out, y, key) takes, in lane l, the hash of key +
/// l. The key is of element, step and rank, of a server's message of no rank: what ranks lose
/// averages out.
template <class C>
concept RandomCompressor = requires(const C c, std::byte* out, const any_lanes::value& y) {
  c.template encode<any_lanes>(out, y, std::uint32_t{});
};
/// Returns the part of the key that is one for a whole message; 0 if the compressor takes no key.
template <class C>
ONEBIT_HD std::uint32_t rounding_key([[maybe_unused]] const step_scalars* now,
                                     [[maybe_unused]] bool by_server) {
  if constexpr (RandomCompressor<C>) {
    return rounding_key_of(now, 0x5851F42DU, by_server ? 0U : now->given.rank + 1U);
  } else {
    return 0;
  }
}
/// Encodes L::words words and adds the statistic of each to `sum`. `key`: see RandomCompressor.
template <class L, class C, class Sum>
ONEBIT_HD void encode_words(const C& codec, std::byte* out, const typename L::value& y, Sum& sum,
                            [[maybe_unused]] std::uint32_t key) {
  using word_lanes = one_word<L>;
  if constexpr (L::words > 1 && requires { codec.sends_floats(); }) {
    if (codec.sends_floats()) {
      L::store(detail::aligned_as<float>(out), y);
      for (unsigned j = 0; j < L::words; ++j) {
        sum = codec.template accumulate<word_lanes>(sum, word_of<L>(y, j));
      }
      return;
    }
  }
  for (unsigned j = 0; j < L::words; ++j) {
    if constexpr (RandomCompressor<C>) {
      codec.template encode<word_lanes>(out + j * codec.word_bytes, word_of<L>(y, j), key + 32 * j);
    } else {
      codec.template encode<word_lanes>(out + j * codec.word_bytes, word_of<L>(y, j));
    }
    sum = codec.template accumulate<word_lanes>(sum, word_of<L>(y, j));
  }
}

/// Reader of the values of one tile in one slot.
template <class L, class C, bool ByWord = WordCompressor<C>>
struct tile_reader {
  C codec{};
  const std::byte* words = nullptr;
  float scale = 0;

  tile_reader() = default;
  ONEBIT_HD tile_reader(const C& c, const slot_format& f, const std::byte* slot, const tile& t,
                        std::size_t index, tile_buffer = {})
      : codec(c), words(slot + f.payload_at(t, index)), scale(0) {
    if (C::scaled) scale = load_scalar<float>(slot + f.scales_at + t.segment * sizeof(float));
  }
  ONEBIT_HD typename L::value operator()(std::uint32_t k) const {
    return decode_words<L>(codec, words + k * codec.word_bytes, scale);
  }
};

template <class L, class C>
struct tile_reader<L, C, false> {
  tile_values<L> values;

  ONEBIT_HD tile_reader(const C& codec, const slot_format& f, const std::byte* slot, const tile& t,
                        std::size_t index, tile_buffer room)
      : values(room) {
    decode_tile<L>(codec, slot + f.payload_at(t, index), t.n, values);
  }
  ONEBIT_HD typename L::value operator()(std::uint32_t k) const {
    return L::load(values.data() + 32 * k);
  }
};

/// Sum over the slots of all ranks, in rank order, of the values of one tile.
template <class L, class C, bool ByWord = WordCompressor<C>>
struct tile_sum {
  C codec;
  const std::byte* words;
  const std::byte* scales;
  std::size_t stride;
  int n;

  ONEBIT_HD tile_sum(const C& c, const slot_format& f, const std::byte* slots, int n_slots,
                     const tile& t, std::size_t index, tile_buffer = {})
      : codec(c),
        words(slots + f.payload_at(t, index)),
        scales(slots + f.scales_at + t.segment * sizeof(float)),
        stride(f.slot_bytes),
        n(n_slots) {}
  ONEBIT_HD typename L::value operator()(std::uint32_t k) const {
    if constexpr (L::words > 1) {          // a device: loads of four ranks overlap
      const auto nothing = L::set(-0.0F);  // x + -0 is x, bit for bit
      auto sum = nothing;
      for (int r = 0; r < n; r += 4) {
        typename L::value values[4];
        for (int j = 0; j < 4; ++j) values[j] = r + j < n ? from(r + j, k) : nothing;
        for (const auto& value : values) sum = L::add(sum, value);
      }
      return sum;
    }
    typename L::value sum = from(0, k);
    for (int r = 1; r < n; ++r) sum = L::add(sum, from(r, k));
    return sum;
  }

 private:
  ONEBIT_HD typename L::value from(int r, std::uint32_t k) const {
    const std::size_t at = static_cast<std::size_t>(r) * stride;
    const float s = C::scaled ? load_scalar<float>(scales + at) : 0.0F;
    return decode_words<L>(codec, words + at + k * codec.word_bytes, s);
  }
};

/// Lanes of four words that can sum signs, with a compressor that sends one sign per element.
template <class C, class L>
concept SignsSummedBy = L::words == 4 && requires {
  typename one_word<L>::sum_of_four;
  requires C::one_sign;
};

template <class L, SignsSummedBy<L> C>
struct tile_sum<L, C, true> {
  typename one_word<L>::sum_of_four sum;

  ONEBIT_HD tile_sum(const C&, const slot_format& f, const std::byte* slots, int n_slots,
                     const tile& t, std::size_t index, tile_buffer = {})
      : sum(slots + f.payload_at(t, index), slots + f.scales_at + t.segment * sizeof(float),
            f.slot_bytes, n_slots, t.n_words()) {}
  ONEBIT_HD typename L::value operator()(std::uint32_t k) const {
    typename L::value v;
    sum(v.word, k);
    return v;
  }
};

template <class L, class C>
struct tile_sum<L, C, false> {
  tile_values<L> values;

  ONEBIT_HD tile_sum(const C& codec, const slot_format& f, const std::byte* slots, int n_slots,
                     const tile& t, std::size_t index, tile_buffer room)
      : values(room) {
    float* const sum = values.data();
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) L::store(sum + 32 * k, L::set(0.0F));
    for (int r = 0; r < n_slots; ++r) {
      const tile_reader<L, C> word_lanes(codec, f,
                                         slots + static_cast<std::size_t>(r) * f.slot_bytes, t,
                                         index, tile_buffer::work);
      for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
        L::store(sum + 32 * k, L::add(L::load(sum + 32 * k), word_lanes(k)));
      }
    }
  }
  ONEBIT_HD typename L::value operator()(std::uint32_t k) const {
    return L::load(values.data() + 32 * k);
  }
};

}  // namespace detail

/// Mean message that all ranks received, in wire format: slot j holds chunk j.
template <Compressor C>
struct gathered_view {
  C codec;
  detail::slot_format format;
  const std::byte* slots = nullptr;
  active_mask active;
  tile_buffer room = tile_buffer::previous;

  template <class L>
  struct reader {
    detail::tile_reader<L, C> values;
    active_mask active;
    std::size_t word;
    ONEBIT_HD typename L::value operator()(std::uint32_t k) const {
      return active.template keep<L>(word + k, values(k));
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t index) const {
    return {detail::tile_reader<L, C>(codec, format, slots + t.chunk * format.slot_bytes, t, index,
                                      room),
            active, t.word};
  }
};

namespace detail {

/// Mean of a bucket: the sum of its `n_slots` slots, divided by W. Buckets lie one after the other.
template <Compressor C>
struct mean_view {
  C codec;
  slot_format format;
  const std::byte* slots = nullptr;
  int n_slots = 1;
  float inverse = 1;  ///< 1 / W
  active_mask active;
  tile_buffer room = tile_buffer::previous;

  template <class L>
  struct reader {
    detail::tile_sum<L, C> sum;
    float inverse;
    active_mask active;
    std::size_t word;
    ONEBIT_HD typename L::value operator()(std::uint32_t k) const {
      return active.template keep<L>(word + k, L::mul(sum(k), L::set(inverse)));
    }
    /// base + mean, rounded once
    ONEBIT_HD typename L::value operator()(std::uint32_t k, const typename L::value& base) const {
      return L::fma(sum(k), L::set(inverse), base);
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t index) const {
    const std::size_t first = format.bucket_of(t) * static_cast<std::size_t>(n_slots);
    return {detail::tile_sum<L, C>(codec, format, slots + first * format.slot_bytes, n_slots, t,
                                   index, room),
            inverse, active, t.word};
  }
};

}  // namespace detail

}}  // namespace onebit
