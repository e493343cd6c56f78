// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A device without a device: its addresses are none, so that a host that touches its memory is
// ended by the first byte, and its copies happen no sooner than wait() is called, so that a wait
// that is missing shows as wrong bytes.

#ifndef ONEBIT_TESTS_SUPPORT_FAKE_DEVICE_HPP
#define ONEBIT_TESTS_SUPPORT_FAKE_DEVICE_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <onebit/core/error.hpp>
#include <onebit/transport/memory.hpp>
#include <stdexcept>
#include <utility>
#include <vector>

namespace onebit_test {

/// Reaches the memory of all fake devices. A handle: its copies share one queue, as of one stream.
class fake_memory {
 public:
  static constexpr bool host_can_touch = false;

  /// What went on in one queue.
  struct log {
    std::size_t waits = 0, copies = 0;
    std::size_t host_bytes = 0;             ///< allocated and not yet freed
    bool freed_in_use = false;              ///< host memory was freed while copies were waiting
    std::size_t fail_at = ~std::size_t{0};  ///< the copy (from 0) that throws
  };

  void copy(void* to, const void* from, std::size_t bytes) const {
    if (queue_->told.copies++ == queue_->told.fail_at)
      throw std::runtime_error("the device is lost");
    queue_->copies.push_back({to, from, bytes});
  }
  void wait() const {
    ++queue_->told.waits;
    const auto copies = std::exchange(queue_->copies, {});
    for (const auto& c : copies) {
      if (c.bytes > 0) std::memmove(real(c.to), real(c.from), c.bytes);
    }
  }
  [[nodiscard]] void* allocate_host(std::size_t bytes) const {
    constexpr std::size_t head = 64;
    auto* const p = static_cast<std::byte*>(::operator new (bytes + head, std::align_val_t{64}));
    std::memcpy(p, &bytes, sizeof bytes);
    queue_->told.host_bytes += bytes;
    return p + head;
  }
  void free_host(void* p) const {
    std::byte* const whole = static_cast<std::byte*>(p) - 64;
    std::size_t bytes = 0;
    std::memcpy(&bytes, whole, sizeof bytes);
    queue_->told.host_bytes -= bytes;
    if (!queue_->copies.empty()) queue_->told.freed_in_use = true;
    ::operator delete (whole, std::align_val_t{64});
  }
  [[nodiscard]] log& told() const { return queue_->told; }

  /// An address that no host can touch, for memory that stays where it is.
  static void* on_device(void* p) {
    return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(p) | device_bit);
  }

 private:
  static constexpr std::uintptr_t device_bit = std::uintptr_t{1} << 62U;  // in no user's address

  static void* real(void* p) {
    return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(p) & ~device_bit);
  }
  static const void* real(const void* p) {
    return reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(p) & ~device_bit);
  }

  struct pending {
    void* to;
    const void* from;
    std::size_t bytes;
  };
  struct queue {
    std::vector<pending> copies;
    log told;
  };
  std::shared_ptr<queue> queue_ = std::make_shared<queue>();
};

static_assert(onebit::Memory<fake_memory>);

/// Memory of the fake device between guards.
class fake_buffer {
 public:
  explicit fake_buffer(std::size_t n) : bytes_(n + 2 * guard, std::byte{0x5A}) {}
  [[nodiscard]] std::byte* data() {
    return static_cast<std::byte*>(fake_memory::on_device(bytes_.data() + guard));
  }
  [[nodiscard]] bool intact() const {
    const auto whole = [](std::byte b) { return b == std::byte{0x5A}; };
    return std::all_of(bytes_.begin(), bytes_.begin() + guard, whole) &&
           std::all_of(bytes_.end() - guard, bytes_.end(), whole);
  }

 private:
  static constexpr std::ptrdiff_t guard = 64;
  std::vector<std::byte> bytes_;
};

/// Makes a transport of device memory one of host memory, so that the suites can use it. What it
/// sends is still on its way to the device when the collective is called, and is overwritten as
/// soon as the collective returns.
template <class T>
class through_device {
 public:
  through_device(T inner, fake_memory memory)
      : inner_(std::move(inner)), memory_(std::move(memory)) {}

  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int size() const { return inner_.size(); }
  [[nodiscard]] T& inner() { return inner_; }

  void all_to_all(const void* send, void* receive, std::size_t slot_bytes) {
    carry(send, n_ranks() * slot_bytes, receive, slot_bytes,
          [&](void* from, void* to) { inner_.all_to_all(from, to, slot_bytes); });
  }
  void all_gather(const void* send, void* receive, std::size_t slot_bytes) {
    carry(send, slot_bytes, receive, slot_bytes,
          [&](void* from, void* to) { inner_.all_gather(from, to, slot_bytes); });
  }
  void all_reduce_sum(float* data, std::size_t n) {
    fake_buffer device(n * sizeof(float));
    memory_.copy(device.data(), data, n * sizeof(float));
    inner_.all_reduce_sum(reinterpret_cast<float*>(device.data()), n);
    memory_.copy(data, device.data(), n * sizeof(float));
    finish(device, device);
  }
  [[nodiscard]] through_device split(int color, int key) const {
    return {inner_.split(color, key), memory_};
  }

 private:
  [[nodiscard]] std::size_t n_ranks() const { return static_cast<std::size_t>(inner_.size()); }

  template <class Call>
  void carry(const void* send, std::size_t send_bytes, void* receive, std::size_t slot_bytes,
             const Call& call) {
    const std::vector<std::byte> junk(send_bytes, std::byte{0xEE});
    fake_buffer from(send_bytes), to(n_ranks() * slot_bytes);
    memory_.copy(from.data(), send, send_bytes);
    call(from.data(), to.data());
    memory_.copy(from.data(), junk.data(), send_bytes);
    memory_.copy(receive, to.data(), n_ranks() * slot_bytes);
    finish(from, to);
  }
  void finish(const fake_buffer& a, const fake_buffer& b) {
    memory_.wait();
    if (!a.intact() || !b.intact()) throw std::logic_error("wrote outside of device memory");
  }

  T inner_;
  fake_memory memory_;
};

}  // namespace onebit_test

#endif  // ONEBIT_TESTS_SUPPORT_FAKE_DEVICE_HPP
