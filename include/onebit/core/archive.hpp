// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <istream>
#include <map>
#include <memory>
#include <onebit/core/digest.hpp>
#include <onebit/core/error.hpp>
#include <ostream>
#include <type_traits>
#include <utility>
#include <vector>

/// Checkpoints: one binary stream per rank, checked while it is read.
///
///   8 bytes  "onebit\r\n"      4 bytes  0x01020304 in the writer's byte order
///   4 bytes  format version    8 bytes  length of the payload, which follows
///   payload: scalars, and sections (8 bytes of length, then as many bytes). After each section,
///   and at the end, 4 bytes: the CRC-32C of the bytes since the last CRC
///
/// Integers and floats are in the writer's byte order. A reader with another byte order throws.
namespace onebit { inline namespace v0_3 {

/// Options that must be equal in a checkpoint and in the optimizer that loads it. Algorithm,
/// tensors and messages must be equal in any case.
enum class resume_with : std::uint8_t {
  same_options,  ///< all options
  other_options  ///< none: the rule and the groups may have others; the schedule goes on as saved
};

namespace detail {

/// Checkpoints on disk that an object has loaded or saved, by a digest: its later saves may replace
/// and remove them. False for one that was damaged.
using known_checkpoints = std::map<std::uint64_t, bool>;

inline constexpr char checkpoint_magic[8] = {'o', 'n', 'e', 'b', 'i', 't', '\r', '\n'};
inline constexpr std::uint32_t checkpoint_order = 0x01020304U;
/// Rises with each change of what `archive` passes, or in which order.
inline constexpr std::uint32_t checkpoint_version = 24;

/// Calls f(data, n) with n objects in a backend's memory; on a deferred backend in pieces, copied
/// to the host.
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

/// Writes a payload, or, without a sink, only counts its bytes. Has the members of payload_reader.
class payload_writer {
 public:
  static constexpr bool reading = false;
  template <class T>
  void back_up(T&) {}  // only a reader replaces state

  /// Receives the bytes: sink(data, n).
  using sink = std::function<void(const void*, std::size_t)>;
  explicit payload_writer(sink out) : out_(std::move(out)) {}

  template <class T>
  void scalar(const T& x) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes(&x, sizeof x);
  }
  template <class T>
  void local(const T& x) {
    scalar(x);
  }
  template <class T>
  void vector(const std::vector<T>& v, [[maybe_unused]] std::size_t n) {
    scalar(static_cast<std::uint64_t>(v.size() * sizeof(T)));
    bytes(v.data(), v.size() * sizeof(T));
    seal();
  }
  template <class Buffer, class B>
  void buffer(const Buffer& b, B& backend) {
    scalar(static_cast<std::uint64_t>(b.bytes()));
    if (!out_) {
      size_ += b.bytes();
    } else {
      read_on_host(backend, b.data(), b.size(),
                   [&](const auto* p, std::size_t n) { bytes(p, n * sizeof *p); });
    }
    seal();
  }
  template <class Buffer, class B>
  void buffer(const Buffer& b, B& backend, [[maybe_unused]] std::size_t n) {
    buffer(b, backend);
  }
  /// Writes the checksum of the bytes since the last checksum.
  void seal() {
    const std::uint32_t sum = std::exchange(checksum_, 0);
    bytes(&sum, sizeof sum);
    checksum_ = 0;
  }
  [[nodiscard]] std::uint64_t size() const { return size_; }

 private:
  void bytes(const void* data, std::size_t n) {
    size_ += n;
    if (!out_ || n == 0) return;
    checksum_ = crc32c(data, n, checksum_);
    out_(data, n);
  }

  sink out_;
  std::uint64_t size_ = 0;
  std::uint32_t checksum_ = 0;
};

/// Reads a payload into a state, section by section, with checks. The destructor restores the state
/// from before, unless `keep` was called. Throws checkpoint_error if the length of a section is not
/// the one of this configuration: lengths in a file are never trusted.
///
/// Memory: the new state, the old state, and on a deferred backend at most 1 MiB.
class payload_reader {
 public:
  static constexpr bool reading = true;

  /// Reads the header. Throws checkpoint_error.
  [[gnu::cold]] explicit payload_reader(std::istream& in) : in_(&in) { read_header(); }
  payload_reader(const payload_reader&) = delete;
  payload_reader& operator=(const payload_reader&) = delete;
  ~payload_reader() {
    while (!before_.empty()) before_.pop_back();  // last one first
  }

  /// Reads a value of the state that is equal on all ranks.
  template <class T>
  void scalar(T& x) {
    T value = x;
    local(value);
    scalars_.add(&value, sizeof value);
    back_up(x);
    x = value;
  }
  /// Reads a value that may differ between ranks, or a temporary, without a backup.
  template <class T>
  void local(T& x) {
    if constexpr (std::is_same_v<T, bool>) {
      unsigned char byte = 0;
      take(&byte, 1);
      if (byte > 1) {
        throw checkpoint_error(
            error_text("checkpoint: damaged: a yes or no is ", byte + 0, " at offset ", at_ - 1));
      }
      x = byte == 1;
    } else {
      static_assert(std::is_trivially_copyable_v<T>);
      take(&x, sizeof x);
    }
  }
  /// Reads n values.
  template <class T>
  void vector(std::vector<T>& v, std::size_t n) {
    expect(n, sizeof(T));
    std::vector<T> values(n);
    take(values.data(), n * sizeof(T));
    seal();
    back_up(v);
    v = std::move(values);
  }
  /// Reads n objects into a backend's memory. Without n: as many as `b` has.
  template <class Buffer, class B>
  void buffer(Buffer& b, B& backend, std::size_t n) {
    using T = std::remove_cvref_t<decltype(*b.data())>;
    expect(n, sizeof(T));
    auto values = backend.template make_buffer<T>(n);
    if constexpr (B::deferred) {
      constexpr std::size_t most = (std::size_t{1} << 20U) / sizeof(T);
      std::vector<T> piece(n < most ? n : most);
      for (std::size_t at = 0; at < n; at += most) {
        const std::size_t m = n - at < most ? n - at : most;
        take(piece.data(), m * sizeof(T));
        backend.copy_in(values.data() + at, piece.data(), m);
      }
    } else {
      take(values.data(), n * sizeof(T));
    }
    seal();
    back_up(b);
    b = std::move(values);
  }
  template <class Buffer, class B>
  void buffer(Buffer& b, B& backend) {
    buffer(b, backend, b.size());
  }
  /// Moves the value of x to a backup; the caller then assigns x.
  template <class T>
  void back_up(T& x) {
    before_.emplace_back();  // throws before anything has moved
    before_.back() = std::shared_ptr<T>(new T(std::move(x)), [this, &x](T* old) {
      if (!keeps_) x = std::move(*old);
      delete old;
    });
  }
  /// Reads the checksum of the bytes since the last checksum, and compares it.
  void seal() {
    const std::uint32_t sum = std::exchange(checksum_, 0);
    const std::uint64_t end = at_;
    std::uint32_t written = 0;
    take(&written, sizeof written);
    checksum_ = 0;
#if !defined(FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION)  // fuzzers skip checksums
    if (written != sum) {
      throw checkpoint_error(error_text("checkpoint: damaged: checksum ", sum, " instead of ",
                                        written, " over bytes ", sealed_, " to ", end,
                                        "; restore the file or an older one"));
    }
#endif
    sealed_ = at_;
  }
  /// Ends the reading: throws checkpoint_error if bytes are left.
  void finish() {
    seal();
    if (at_ == length_) return;
    throw checkpoint_error(error_text("checkpoint: ", length_ - at_,
                                      " bytes after its end at offset ", at_,
                                      "; it was written by another configuration"));
  }
  /// Bytes of the payload, which the header tells.
  [[nodiscard]] std::uint64_t length() const { return length_; }
  /// Digest of all values read by `scalar`.
  [[nodiscard]] std::uint64_t scalars() const { return scalars_.value(); }
  /// Keeps the state that was read, and drops the backups.
  void keep() noexcept {
    keeps_ = true;
    before_.clear();
  }

 private:
  void take(void* to, std::size_t n) {
    if (n > length_ - at_) {
      throw checkpoint_error(error_text("checkpoint: damaged: it ends at byte ", length_, ", but ",
                                        n, " bytes follow byte ", at_));
    }
    read(to, n, "the payload");
    checksum_ = crc32c(to, n, checksum_);
    at_ += n;
  }
  void expect(std::size_t n, std::size_t each) {
    std::uint64_t bytes = 0;
    take(&bytes, sizeof bytes);
    if (bytes == n * each) return;
    throw checkpoint_error(error_text("checkpoint: a section of ", bytes, " bytes at offset ", at_,
                                      " should have ", n * each,
                                      "; load it with the tensors and options it was saved with"));
  }
  [[gnu::cold]] void read(void* to, std::size_t n, const char* what) {
    if (n == 0) return;
    in_->read(static_cast<char*>(to), static_cast<std::streamsize>(n));
    if (static_cast<std::size_t>(in_->gcount()) == n) return;
    throw checkpoint_error(error_text("checkpoint: truncated: ", in_->gcount(), " of ", n,
                                      " bytes of ", what, "; restore the file or an older one"));
  }
  [[gnu::cold]] void read_header() {
    char magic[sizeof checkpoint_magic] = {};
    read(magic, sizeof magic, "the magic number");
    if (std::memcmp(magic, checkpoint_magic, sizeof magic) != 0) {
      throw checkpoint_error(
          error_text("checkpoint: this is no onebit checkpoint: it does not start with "
                     "\"onebit\\r\\n\""));
    }
    std::uint32_t order = 0, version = 0;
    read(&order, sizeof order, "the byte order");
    if (order != checkpoint_order) {
      throw checkpoint_error(error_text("checkpoint: written on a machine of the other byte order ",
                                        "(mark ", order, ", here ", checkpoint_order, ")"));
    }
    read(&version, sizeof version, "the version");
    if (version != checkpoint_version) {
      throw checkpoint_error(error_text("checkpoint: format version ", version,
                                        ", this library reads ", checkpoint_version));
    }
    read(&length_, sizeof length_, "the length");
  }

  std::istream* in_;
  std::uint64_t length_ = 0, at_ = 0, sealed_ = 0;
  std::uint32_t checksum_ = 0;
  digest scalars_;
  std::vector<std::shared_ptr<void>> before_;  ///< backups: destruction restores, unless `keeps_`
  bool keeps_ = false;
};

/// Writes header and payload. Calls `write(archive)` twice, first to count the bytes; both calls
/// must write equal bytes.
template <class F>
void write_checkpoint(std::ostream& out, const F& write) {
  payload_writer size(nullptr);
  write(size);
  size.seal();
  const std::uint64_t length = size.size();
  out.write(checkpoint_magic, sizeof checkpoint_magic);
  const auto put = [&](const auto& x) { out.write(reinterpret_cast<const char*>(&x), sizeof x); };
  put(checkpoint_order);
  put(checkpoint_version);
  put(length);
  payload_writer writer([&](const void* data, std::size_t n) {
    out.write(static_cast<const char*>(data), static_cast<std::streamsize>(n));
  });
  write(writer);
  writer.seal();
  out.flush();
  if (!out) {
    throw checkpoint_error(error_text("checkpoint: writing ", length + 24,
                                      " bytes failed; is the disk "
                                      "full? The stream's content is unusable"));
  }
}

}  // namespace detail
}}  // namespace onebit
