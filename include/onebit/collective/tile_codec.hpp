// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <onebit/concepts.hpp>
#include <onebit/layout.hpp>
#include <onebit/wide_lanes.hpp>

/// Codecs of whole tiles: where the values of a tile lie, and who calls the codec. On the host the
/// one that runs the kernel; on a device lane 0 of the warp, while the others wait: its values are
/// in shared memory, which the warp loads and reads together.
namespace onebit::inline v0_1 {

/// The tiles that one call of a kernel has room for. What it reads or makes at the same time goes
/// into different ones.
enum class tile_room : std::uint32_t {
  agreed,  ///< what was agreed, or a mean
  heard,   ///< what was heard
  work     ///< a message that is encoded; one that is added to a mean
};
static_assert(static_cast<std::uint32_t>(tile_room::work) + 1 == tile_rooms);

/// Lanes of threads that share memory: `shared_tile(room)` is the same in all, and `sync()` is
/// where they wait for each other, and see what each other has written.
template <class L>
concept SharingLanes = requires(std::uint32_t room) {
  { L::shared_tile(room) } -> std::same_as<float*>;
  L::sync();
};

namespace detail {

/// Room for the values of one tile.
template <class L>
class tile_values {
 public:
  ONEBIT_HD explicit tile_values(tile_room) {}
  [[nodiscard]] ONEBIT_HD float* data() { return values_; }
  [[nodiscard]] ONEBIT_HD const float* data() const { return values_; }

 private:
  float values_[tile_elements];
};
template <class L>
  requires SharingLanes<one_word<L>>
class tile_values<L> {
 public:
  ONEBIT_HD explicit tile_values(tile_room room)
      : values_(one_word<L>::shared_tile(static_cast<std::uint32_t>(room))) {}
  [[nodiscard]] ONEBIT_HD float* data() const { return values_; }

 private:
  float* values_;
};

#if defined(__CUDACC__)
// Of devices only: where host/device code calls what a device has not, nvcc merely warns, and what
// the call does is undefined. (They are inlined: a compiler for devices contracts a * b + c
// anyway.)
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

/// A tile codec is plain code of the user's: inlined into a runner, its a * b + c would be
/// contracted where the instruction set has an fma and not elsewhere, and ranks would decode
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

/// Encodes the n values of a tile. May throw, on the host.
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
/// Decodes them, and makes the rest of the last word 0.
template <class L, class C>
ONEBIT_HD void decode_tile(const C& codec, const std::byte* in, std::size_t n,
                           tile_values<L>& values) {
  const std::size_t padded = (n + word_elements - 1) / word_elements * word_elements;
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

}  // namespace detail
}  // namespace onebit::inline v0_1
