// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <onebit/concepts.hpp>
#include <optional>
#include <utility>

/// A transport that counts what it carries: wrapped around any other one by the optimizer.
namespace onebit {

/// What one rank sent: bytes that leave it (its slot to itself does not), collectives, seconds.
struct traffic {
  std::uint64_t bytes_sent = 0;
  std::uint32_t collectives = 0;
  double seconds = 0;

  friend traffic operator-(const traffic& a, const traffic& b) {
    return {a.bytes_sent - b.bytes_sent, a.collectives - b.collectives, a.seconds - b.seconds};
  }
};

namespace detail {

/// The counts of a transport; what it carries is carried by the one it was split from as well.
struct traffic_ledger {
  traffic sent;
  std::shared_ptr<traffic_ledger> parent;

  void add(std::uint64_t bytes, std::uint32_t collectives, double seconds) {
    for (traffic_ledger* l = this; l != nullptr; l = l->parent.get()) {
      l->sent.bytes_sent += bytes;
      l->sent.collectives += collectives;
      l->sent.seconds += seconds;
    }
  }
};

/// Books the time of its scope.
class traffic_timer {
 public:
  explicit traffic_timer(std::shared_ptr<traffic_ledger> ledger) : ledger_(std::move(ledger)) {}
  /// And a collective, whether or not it succeeds.
  traffic_timer(std::shared_ptr<traffic_ledger> ledger, std::uint64_t bytes)
      : traffic_timer(std::move(ledger)) {
    ledger_->add(bytes, 1, 0);
  }
  traffic_timer(const traffic_timer&) = delete;
  traffic_timer& operator=(const traffic_timer&) = delete;
  ~traffic_timer() {
    ledger_->add(0, 0, std::chrono::duration<double>(clock::now() - start_).count());
  }

 private:
  using clock = std::chrono::steady_clock;
  std::shared_ptr<traffic_ledger> ledger_;
  clock::time_point start_ = clock::now();
};

}  // namespace detail

/// A collective under way, counted when it was started; only the time inside its calls counts.
template <class Request>
class counted_request {
 public:
  counted_request(Request inner, std::shared_ptr<detail::traffic_ledger> ledger)
      : inner_(std::move(inner)), ledger_(std::move(ledger)) {}
  counted_request(counted_request&&) = default;
  counted_request& operator=(counted_request&& other) noexcept {
    if (this != &other) {
      finish();
      inner_ = std::move(other.inner_);
      ledger_ = std::move(other.ledger_);
    }
    return *this;
  }
  ~counted_request() { finish(); }

  void wait() {
    if (!ledger_) return;  // moved from
    const detail::traffic_timer time(ledger_);
    inner_->wait();
  }
  [[nodiscard]] bool test() {
    if (!ledger_) return true;
    const detail::traffic_timer time(ledger_);
    return inner_->test();
  }

 private:
  void finish() {
    if (!ledger_) return;
    const detail::traffic_timer time(ledger_);
    inner_.reset();
  }

  std::optional<Request> inner_;
  std::shared_ptr<detail::traffic_ledger> ledger_;
};

/// Decorates a Transport: the same operations, counted and timed. An allreduce counts as the volume
/// of a ring, 2 (W-1)/W of its bytes, whatever the transport makes of it. Copies share the counts;
/// the counts of a transport include those of the ones split from it. Has the optional members that
/// T has.
template <class T>
class counting {
 public:
  explicit counting(T inner) : counting(std::move(inner), nullptr) {}

  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int size() const { return inner_.size(); }
  [[nodiscard]] const traffic& sent() const { return ledger_->sent; }
  [[nodiscard]] T& inner() { return inner_; }

  void all_to_all(const void* send, void* receive, std::size_t slot_bytes) {
    const timer time(ledger_, others() * slot_bytes);
    inner_.all_to_all(send, receive, slot_bytes);
  }
  void all_gather(const void* send, void* receive, std::size_t slot_bytes) {
    const timer time(ledger_, others() * slot_bytes);
    inner_.all_gather(send, receive, slot_bytes);
  }
  void all_reduce_sum(float* data, std::size_t n) {
    const timer time(ledger_, 2 * others() * n * sizeof(float) / (others() + 1));
    inner_.all_reduce_sum(data, n);
  }
  void host_all_gather(const void* send, void* receive, std::size_t slot_bytes) requires
      requires(T& t) {
    t.host_all_gather(send, receive, slot_bytes);
  }
  {
    const timer time(ledger_, others() * slot_bytes);
    inner_.host_all_gather(send, receive, slot_bytes);
  }

  [[nodiscard]] auto start_all_to_all(const void* send, void* receive,
                                      std::size_t slot_bytes) requires requires(T& t) {
    t.start_all_to_all(send, receive, slot_bytes);
  }
  {
    const timer time(ledger_, others() * slot_bytes);
    return counted_request(inner_.start_all_to_all(send, receive, slot_bytes), ledger_);
  }
  [[nodiscard]] auto start_all_gather(const void* send, void* receive,
                                      std::size_t slot_bytes) requires requires(T& t) {
    t.start_all_gather(send, receive, slot_bytes);
  }
  {
    const timer time(ledger_, others() * slot_bytes);
    return counted_request(inner_.start_all_gather(send, receive, slot_bytes), ledger_);
  }
  /// For transports whose collectives only enqueue: the time until they are done.
  void wait() requires requires(T& t) { t.wait(); }
  {
    const timer time(ledger_);
    inner_.wait();
  }

  /// Collective; not counted. What the new transport carries is counted by both.
  [[nodiscard]] counting split(int color, int key) const requires requires(const T& t) {
    T(t.split(color, key));
  }
  { return counting(inner_.split(color, key), ledger_); }
  /// Collective; not counted.
  [[nodiscard]] int ranks_per_node() const requires requires(const T& t) { t.ranks_per_node(); }
  { return inner_.ranks_per_node(); }
  [[nodiscard]] bool device_aware() const requires requires(const T& t) { t.device_aware(); }
  { return inner_.device_aware(); }

 private:
  using timer = detail::traffic_timer;

  counting(T inner, std::shared_ptr<detail::traffic_ledger> parent)
      : inner_(std::move(inner)),
        ledger_(std::make_shared<detail::traffic_ledger>(
            detail::traffic_ledger{{}, std::move(parent)})) {}

  [[nodiscard]] std::size_t others() const { return static_cast<std::size_t>(inner_.size()) - 1; }

  T inner_;
  std::shared_ptr<detail::traffic_ledger> ledger_;
};

}  // namespace onebit
