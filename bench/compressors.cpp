// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Compressors side by side, as a table: bits on the wire per element, as the transport counts them;
// what is lost of gaussian values; nanoseconds per element of encoding and of decoding a tile on
// one thread, in cache, and their ratio to sign's, the median over rounds that time both alike. Not
// timed: the passes around them, which wait for memory (bench_passes).

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <onebit/compressed_allreduce.hpp>
#include <onebit/compressor/identity.hpp>
#include <onebit/compressor/quantized.hpp>
#include <onebit/compressor/sign.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "../examples/int8_per_tile.hpp"
#include "support.hpp"

namespace {

using namespace onebit_bench;
using onebit::tile_elements, onebit::word_elements;

constexpr std::size_t n_tiles = 16, n = n_tiles * tile_elements;  // 256 KiB of floats

/// Encodes tile i, with its statistic, or decodes it.
template <class C>
struct tile_kernel {
  C codec;
  bool encodes;
  float* values;
  std::byte* codes;
  std::size_t tile_bytes;
  float* scales;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    float* const y = values + i * tile_elements;
    std::byte* const out = codes + i * tile_bytes;
    if constexpr (onebit::detail::WordCompressor<C>) {
      auto sum = L::set(0.0F);
      for (std::size_t k = 0; k < tile_elements / word_elements; ++k) {
        float* const word = y + k * word_elements;
        std::byte* const at = out + k * codec.word_bytes;
        if (encodes) {
          onebit::detail::encode_words<L>(codec, at, L::load(word), sum,
                                          static_cast<std::uint32_t>(k * word_elements));
        } else {
          L::store(word, onebit::detail::decode_words<L>(codec, at, scales[i]));
        }
      }
      if (encodes) scales[i] = codec.scale(static_cast<double>(L::fold(sum)), tile_elements);
    } else if (encodes) {
      onebit::detail::encode_on_host(codec, y, tile_elements, out);
    } else {
      onebit::detail::decode_on_host(codec, out, tile_elements, y);
    }
  }
};

std::vector<float> gaussian_values() {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& x : values) x = normal(random);
  return values;
}

template <class C>
class subject {
 public:
  explicit subject(C codec) : codec_(std::move(codec)) {
    if constexpr (onebit::detail::WordCompressor<C>) {
      tile_bytes_ = tile_elements / word_elements * codec_.word_bytes;
    } else {
      tile_bytes_ = (codec_.tile_bytes(tile_elements) + 3) / 4 * 4;
    }
    codes_.resize(n_tiles * tile_bytes_);
  }
  void encode() { run(true, values_); }
  void decode() { run(false, decoded_); }
  [[nodiscard]] double relative_error() const {
    double lost = 0, all = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const auto x = static_cast<double>(values_[i]), off = x - static_cast<double>(decoded_[i]);
      lost += off * off;
      all += x * x;
    }
    return std::sqrt(lost / all);
  }
  /// Of two ranks each sends half of its message, and half of what all get.
  [[nodiscard]] double bits_sent() const {
    double bits = 0;
    onebit::run_threads(2, [&](onebit::threads comm) {
      std::vector<float> data = values_;
      onebit::compressed_allreduce mean(comm, {n}, onebit::gather_scatter{codec_});
      const std::uint64_t before = mean.sent().bytes_sent;  // ranks have compared what they hold
      (void)mean.mean(data);
      const auto sent = static_cast<double>(mean.sent().bytes_sent - before);
      if (comm.rank() == 0) bits = 8 * sent / static_cast<double>(n);
    });
    return bits;
  }

 private:
  void run(bool encodes, std::vector<float>& values) {
    backend_.launch(n_tiles, tile_kernel<C>{codec_, encodes, values.data(), codes_.data(),
                                            tile_bytes_, scales_.data()});
  }

  C codec_;
  onebit::host backend_{1, onebit::host::best_isa()};
  std::size_t tile_bytes_ = 0;
  std::vector<std::byte> codes_;
  std::vector<float> values_ = gaussian_values(), decoded_ = values_, scales_ = values_;
};

template <class C>
void print_row(const char* name, const C& codec) {
  subject<onebit::sign<>> yardstick({});
  subject<C> own(codec);
  std::vector<double> encode, decode, encode_ratio, decode_ratio;
  for (int round = 0; round < 301; ++round) {
    const double of_sign = time_of([&] { yardstick.encode(); });
    encode.push_back(time_of([&] { own.encode(); }));
    encode_ratio.push_back(encode.back() / of_sign);
    const double back_of_sign = time_of([&] { yardstick.decode(); });
    decode.push_back(time_of([&] { own.decode(); }));
    decode_ratio.push_back(decode.back() / back_of_sign);
  }
  const double ns = 1e9 / static_cast<double>(n);
  std::printf("| %s | %.2f | %.4f | %.3f (%.1f) | %.3f (%.1f) |\n", name, own.bits_sent(),
              own.relative_error(), ns * median(encode), median(encode_ratio), ns * median(decode),
              median(decode_ratio));
}

}  // namespace

int main() {
  std::printf("%s\n\n", std::string(onebit::to_string(onebit::host::best_isa())).c_str());
  std::printf("| compressor | bits per element | error | encode, ns (over sign's) | decode |\n");
  std::printf("|---|---|---|---|---|\n");
  print_row("sign", onebit::sign<>{});
  print_row("2 bits", onebit::two_bits{});
  print_row("4 bits", onebit::four_bits{});
  print_row("int8_per_tile", int8_per_tile{});
  print_row("identity", onebit::identity{});
}
