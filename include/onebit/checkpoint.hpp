// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <istream>
#include <onebit/error.hpp>
#include <ostream>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

/// Checkpoints: one binary stream per rank, length-checked and checksummed.
///
///   8 bytes  "onebit\r\n"      4 bytes  0x01020304 in the writer's byte order
///   4 bytes  format version    8 bytes  payload length     payload     8 bytes  checksum
///
/// Integers and floats are in the writer's byte order; a reader of another order refuses the file.
namespace onebit {

/// A 64-bit digest of bytes: FNV-1a over 8-byte words, however the bytes are cut into calls. Finds
/// damage and difference, not malice.
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
    value_ ^= value_ >> 29U;  // lets high bits of a word reach low bits
  }
  std::uint64_t value_ = 0xCBF29CE484222325U;
  unsigned char held_bytes_[8] = {};  ///< of a word that is not whole yet
  std::size_t held_ = 0;
};

namespace detail {

inline constexpr char checkpoint_magic[8] = {'o', 'n', 'e', 'b', 'i', 't', '\r', '\n'};
inline constexpr std::uint32_t checkpoint_order = 0x01020304U;
inline constexpr std::uint32_t checkpoint_version = 4;

/// Calls f(data, n) with what lies in a backend's memory: in pieces, where the host cannot look
/// there itself.
template <class B, class T, class F>
void read_on_host(B& backend, const T* data, std::size_t n, const F& f) {
  if constexpr (B::deferred) {
    constexpr std::size_t piece = std::size_t{1} << 20U;
    std::vector<T> here(n < piece ? n : piece);
    for (std::size_t at = 0; at < n; at += piece) {
      const std::size_t m = n - at < piece ? n - at : piece;
      backend.copy_out(here.data(), data + at, m);
      f(here.data(), m);
    }
  } else {
    f(data, n);
  }
}

/// Writes a payload, or without a stream only counts its bytes.
class payload_writer {
 public:
  static constexpr bool reading = false;

  explicit payload_writer(std::ostream* out) : out_(out) {}

  template <class T>
  void scalar(const T& x) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes(&x, sizeof x);
  }
  template <class T>
  void vector(const std::vector<T>& v) {
    scalar(static_cast<std::uint64_t>(v.size()));
    bytes(v.data(), v.size() * sizeof(T));
  }
  template <class Buffer, class B>
  void buffer(const Buffer& b, B& backend) {
    scalar(static_cast<std::uint64_t>(b.bytes()));
    if (out_ == nullptr) {
      size_ += b.bytes();
    } else {
      read_on_host(backend, b.data(), b.size(),
                   [&](const auto* p, std::size_t n) { bytes(p, n * sizeof *p); });
    }
  }
  [[nodiscard]] std::uint64_t size() const { return size_; }
  [[nodiscard]] std::uint64_t checksum() const { return checksum_.value(); }

 private:
  void bytes(const void* data, std::size_t n) {
    size_ += n;
    if (out_ == nullptr || n == 0) return;
    checksum_.add(data, n);
    out_->write(static_cast<const char*>(data), static_cast<std::streamsize>(n));
  }

  std::ostream* out_;
  std::uint64_t size_ = 0;
  digest checksum_;
};

/// Reads a payload that was checked to be whole.
class payload_reader {
 public:
  static constexpr bool reading = true;

  explicit payload_reader(std::vector<char> payload) : payload_(std::move(payload)) {}

  template <class T>
  void scalar(T& x) {
    take(&x, sizeof x);
  }
  template <class T>
  void vector(std::vector<T>& v) {
    std::uint64_t n = 0;
    scalar(n);
    need(n * sizeof(T));
    v.resize(n);
    take(v.data(), n * sizeof(T));
  }
  template <class Buffer, class B>
  void buffer(Buffer& b, B& backend) {
    using T = std::remove_cvref_t<decltype(*b.data())>;
    std::uint64_t n = 0;
    scalar(n);
    need(n);
    if (n % sizeof(T) != 0) {
      throw checkpoint_error(message("checkpoint: a section of ", n, " bytes at offset ", at_,
                                     " that holds objects of ", sizeof(T), " bytes"));
    }
    if (b.bytes() != n) b = backend.template make_buffer<T>(n / sizeof(T));
    backend.copy_in(reinterpret_cast<char*>(b.data()), payload_.data() + at_, n);
    at_ += n;
  }
  [[nodiscard]] std::size_t left() const { return payload_.size() - at_; }

 private:
  void need(std::uint64_t n) const {
    if (n > left()) {
      throw checkpoint_error(message("checkpoint: a section of ", n, " bytes at offset ", at_,
                                     " of a payload of ", payload_.size(),
                                     "; it was written by another configuration"));
    }
  }
  void take(void* to, std::size_t n) {
    need(n);
    if (n > 0) std::memcpy(to, payload_.data() + at_, n);
    at_ += n;
  }
  std::vector<char> payload_;
  std::size_t at_ = 0;
};

/// Writes header, payload and checksum. `write(archive)` is called twice and must do the same
/// twice.
template <class F>
void write_checkpoint(std::ostream& out, const F& write) {
  payload_writer size(nullptr);
  write(size);
  const std::uint64_t length = size.size();
  out.write(checkpoint_magic, sizeof checkpoint_magic);
  const auto put = [&](const auto& x) { out.write(reinterpret_cast<const char*>(&x), sizeof x); };
  put(checkpoint_order);
  put(checkpoint_version);
  put(length);
  payload_writer writer(&out);
  write(writer);
  put(writer.checksum());
  out.flush();
  if (!out) {
    throw checkpoint_error(message("checkpoint: writing ", length + 32,
                                   " bytes failed; is the disk "
                                   "full? The stream's content is unusable"));
  }
}

inline void read_exactly(std::istream& in, char* to, std::size_t n, const char* what) {
  in.read(to, static_cast<std::streamsize>(n));
  if (static_cast<std::size_t>(in.gcount()) != n) {
    throw checkpoint_error(message("checkpoint: truncated: ", in.gcount(), " of ", n, " bytes of ",
                                   what, "; restore the file or an older one"));
  }
}

/// Reads header, payload and checksum, and checks all of it before anything is used.
inline payload_reader read_checkpoint(std::istream& in) {
  char magic[sizeof checkpoint_magic] = {};
  read_exactly(in, magic, sizeof magic, "the magic number");
  if (std::memcmp(magic, checkpoint_magic, sizeof magic) != 0) {
    throw checkpoint_error(
        message("checkpoint: this is no onebit checkpoint: it does not start with "
                "\"onebit\\r\\n\""));
  }
  const auto get = [&](auto& x, const char* what) {
    read_exactly(in, reinterpret_cast<char*>(&x), sizeof x, what);
  };
  std::uint32_t order = 0, version = 0;
  std::uint64_t length = 0, checksum = 0;
  get(order, "the byte order");
  if (order != checkpoint_order) {
    throw checkpoint_error(
        message("checkpoint: written on a machine of the other byte order (mark ", order, ", here ",
                checkpoint_order, ")"));
  }
  get(version, "the version");
  if (version != checkpoint_version) {
    throw checkpoint_error(message("checkpoint: format version ", version, ", this library reads ",
                                   checkpoint_version));
  }
  get(length, "the length");
  std::vector<char> payload;  // grows as data comes: a damaged length must not allocate the world
  constexpr std::uint64_t piece = 64U << 20U;
  while (payload.size() < length) {
    const auto old = payload.size();
    payload.resize(old + std::min(piece, length - old));
    read_exactly(in, payload.data() + old, payload.size() - old, "the payload");
  }
  get(checksum, "the checksum");
  digest found;
  found.add(payload.data(), payload.size());
  if (found.value() != checksum) {
    throw checkpoint_error(message("checkpoint: damaged: checksum ", found.value(), " instead of ",
                                   checksum, " over ", length, " bytes"));
  }
  return payload_reader(std::move(payload));
}

}  // namespace detail
}  // namespace onebit
