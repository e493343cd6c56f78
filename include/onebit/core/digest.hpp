// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <onebit/core/cpu.hpp>
#include <string_view>
#include <type_traits>

/// Checksums of bytes: a digest, to compare data, and a CRC, to find damage.
namespace onebit { inline namespace v0_3 { namespace detail {

/// 64-bit digest of bytes: FNV-1a over 8-byte words. The division of the bytes into calls does not
/// matter. Detects accidental differences, but is not cryptographic.
class digest {
 public:
  void add(const void* data, std::size_t n) {
    const auto* p = static_cast<const unsigned char*>(data);
    for (; n > 0 && held_ > 0; --n) hold(*p++);
    for (; n >= 8; n -= 8, p += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, p, 8);
      mix(word);
    }
    for (; n > 0; --n) hold(*p++);
  }
  void add(std::string_view text) { add(text.data(), text.size()); }
  template <class T>
    requires std::is_arithmetic_v<T>
  void add(T x) { add(&x, sizeof x); }
  [[nodiscard]] std::uint64_t value() const {
    digest end = *this;
    std::uint64_t word = 0;
    std::memcpy(&word, held_bytes_, held_);
    end.mix(word);
    end.mix(held_);
    return end.value_;
  }

 private:
  void hold(unsigned char byte) {
    held_bytes_[held_++] = byte;
    if (held_ < 8) return;
    held_ = 0;
    std::uint64_t word = 0;
    std::memcpy(&word, held_bytes_, 8);
    mix(word);
  }
  void mix(std::uint64_t word) {
    value_ = (value_ ^ word) * 0x00000100000001B3U;
    value_ ^= value_ >> 29U;  // high bits of a word reach low bits
  }
  std::uint64_t value_ = 0xCBF29CE484222325U;
  unsigned char held_bytes_[8] = {};  ///< first bytes of an incomplete word
  std::size_t held_ = 0;
};

[[nodiscard]] inline std::uint32_t crc32c_by_table(std::uint32_t crc, const unsigned char* p,
                                                   std::size_t n) {
  static constexpr auto table = [] {
    std::array<std::uint32_t, 256> t{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t x = i;
      for (int bit = 0; bit < 8; ++bit) x = (x >> 1U) ^ ((x & 1U) != 0 ? 0x82F63B78U : 0U);
      t[i] = x;
    }
    return t;
  }();
  for (; n > 0; --n, ++p) crc = (crc >> 8U) ^ table[(crc ^ *p) & 0xFFU];
  return crc;
}

#if defined(__x86_64__)
[[nodiscard]] inline std::uint32_t crc32c_by_instruction(std::uint32_t crc, const unsigned char* p,
                                                         std::size_t n) {
  std::uint64_t wide = crc;
  for (; n >= 8; n -= 8, p += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, p, 8);
    asm("crc32q %1, %0" : "+r"(wide) : "r"(word));  // asm works without -msse4.2
  }
  crc = static_cast<std::uint32_t>(wide);
  for (; n > 0; --n, ++p) asm("crc32b %1, %0" : "+r"(crc) : "r"(*p));
  return crc;
}
#endif

/// Returns the CRC-32C of n bytes at `data`, appended to bytes whose CRC is `before` (0: no bytes).
/// Castagnoli polynomial (iSCSI, RFC 3720 appendix B.4), for which processors have an instruction.
[[nodiscard, gnu::cold]] inline std::uint32_t crc32c(const void* data, std::size_t n,
                                                     std::uint32_t before = 0) {
  const auto* p = static_cast<const unsigned char*>(data);
#if defined(__x86_64__)
  if (detail::this_cpu().crc32c) return ~detail::crc32c_by_instruction(~before, p, n);
#endif
  return ~detail::crc32c_by_table(~before, p, n);
}

}  // namespace detail

}}  // namespace onebit
