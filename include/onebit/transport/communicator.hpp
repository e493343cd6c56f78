// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <onebit/concepts/exchange.hpp>
#include <onebit/concepts/transport.hpp>
#include <onebit/core/error.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// Type-erased transport that the library uses for all communication. Counts and times traffic.
namespace onebit { inline namespace v0_3 {

/// Traffic of one rank: bytes sent to other ranks, collectives, seconds in transport calls.
struct traffic {
  std::uint64_t bytes_sent = 0;
  std::uint32_t collectives = 0;
  double seconds = 0;

  friend traffic operator-(const traffic& a, const traffic& b) {
    return {a.bytes_sent - b.bytes_sent, a.collectives - b.collectives, a.seconds - b.seconds};
  }
};

namespace detail {

enum class collective_call : std::uint8_t { all_to_all, all_gather };

/// Interface of a type-erased transport. A started collective has a ticket, valid until `finish`.
class transport_interface {
 public:
  static constexpr int done = -1;  ///< ticket of a collective that was done when `start` returned

  transport_interface() = default;
  transport_interface(const transport_interface&) = delete;
  transport_interface& operator=(const transport_interface&) = delete;
  virtual ~transport_interface() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  virtual void call(collective_call, const void* send, void* receive, std::size_t slot_bytes) = 0;
  virtual void all_reduce_sum(float* data, std::size_t n) = 0;
  virtual void all_reduce_sum(bf16* data, std::size_t n) = 0;
  [[nodiscard]] virtual bool sums_halves() const = 0;
  virtual void host_all_gather(const void* send, void* receive, std::size_t slot_bytes,
                               call_name what) = 0;
  [[nodiscard]] virtual int start(collective_call, const void* send, void* receive,
                                  std::size_t slot_bytes) = 0;
  virtual void wait_for(int ticket) = 0;
  [[nodiscard]] virtual bool is_done(int ticket) = 0;
  virtual void finish(int ticket) noexcept = 0;
  virtual void wait() = 0;
  [[nodiscard]] virtual std::shared_ptr<transport_interface> split(int color, int key) const = 0;
  /// Returns null if the transport needs no duplicate.
  [[nodiscard]] virtual std::shared_ptr<transport_interface> duplicate() const = 0;
  [[nodiscard]] virtual int ranks_per_node() const = 0;
  [[nodiscard]] virtual bool echoes() const = 0;
  [[nodiscard]] virtual std::optional<std::uintptr_t> stream() const = 0;
};

struct no_request {};
template <class T>
struct request_of {
  using type = no_request;
};
template <StartingTransport T>
struct request_of<T> {
  using type = decltype(std::declval<T&>().start_all_gather(nullptr, nullptr, 0));
};

/// Implements transport_interface on a transport T. Optional operations that T lacks fall back;
/// split throws.
template <Transport T>
class transport_holder final : public transport_interface {
  static constexpr bool starts = StartingTransport<T>;

 public:
  explicit transport_holder(T inner) : inner_(std::move(inner)) {}

  [[nodiscard]] int rank() const override { return inner_.rank(); }
  [[nodiscard]] int size() const override { return inner_.size(); }
  void call(collective_call c, const void* send, void* receive, std::size_t bytes) override {
    if (c == collective_call::all_gather) {
      inner_.all_gather(send, receive, bytes);
    } else {
      inner_.all_to_all(send, receive, bytes);
    }
  }
  void all_reduce_sum(float* data, std::size_t n) override { inner_.all_reduce_sum(data, n); }
  void all_reduce_sum([[maybe_unused]] bf16* data, [[maybe_unused]] std::size_t n) override {
    if constexpr (HalfSummingTransport<T>) inner_.all_reduce_sum(data, n);
  }
  [[nodiscard]] bool sums_halves() const override { return HalfSummingTransport<T>; }
  void host_all_gather(const void* send, void* receive, std::size_t bytes,
                       [[maybe_unused]] call_name what) override {
    if constexpr (requires { inner_.host_all_gather(send, receive, bytes, what); }) {
      inner_.host_all_gather(send, receive, bytes, what);
    } else if constexpr (requires { inner_.all_gather(send, receive, bytes, what); }) {
      inner_.all_gather(send, receive, bytes, what);
    } else if constexpr (HostGatheringTransport<T>) {
      inner_.host_all_gather(send, receive, bytes);
    } else {
      inner_.all_gather(send, receive, bytes);
    }
  }
  [[nodiscard]] int start(collective_call c, const void* send, void* receive,
                          std::size_t bytes) override {
    if constexpr (starts) {
      std::size_t place = 0;
      while (place < requests_.size() && requests_[place].has_value()) ++place;
      if (place == requests_.size()) requests_.emplace_back();
      if (c == collective_call::all_gather) {
        requests_[place].emplace(inner_.start_all_gather(send, receive, bytes));
      } else {
        requests_[place].emplace(inner_.start_all_to_all(send, receive, bytes));
      }
      return static_cast<int>(place);
    } else {
      call(c, send, receive, bytes);
      return done;
    }
  }
  void wait_for([[maybe_unused]] int ticket) override {
    if constexpr (starts) requests_[static_cast<std::size_t>(ticket)]->wait();
  }
  [[nodiscard]] bool is_done([[maybe_unused]] int ticket) override {
    if constexpr (starts) return requests_[static_cast<std::size_t>(ticket)]->test();
    return true;
  }
  void finish([[maybe_unused]] int ticket) noexcept override {
    if constexpr (starts) requests_[static_cast<std::size_t>(ticket)].reset();
  }
  void wait() override {
    if constexpr (WaitingTransport<T>) inner_.wait();
  }
  [[nodiscard]] bool echoes() const override {
    return requires { requires T::echoes; };
  }
  [[nodiscard]] std::optional<std::uintptr_t> stream() const override {
    if constexpr (requires { reinterpret_cast<std::uintptr_t>(inner_.stream()); }) {
      return reinterpret_cast<std::uintptr_t>(inner_.stream());
    } else {
      return std::nullopt;
    }
  }
  [[nodiscard]] std::shared_ptr<transport_interface> split(
      [[maybe_unused]] int color, [[maybe_unused]] int key) const override {
    if constexpr (SplittingTransport<T>) {
      return std::make_shared<transport_holder>(inner_.split(color, key));
    } else {
      throw invalid_input(
          error_text("communicator: this transport cannot be split: it has no split(color, "
                     "key)",
                     rank_suffix(rank(), size())));
    }
  }
  [[nodiscard]] std::shared_ptr<transport_interface> duplicate() const override {
    if constexpr (DuplicatingTransport<T>) {
      return std::make_shared<transport_holder>(inner_.duplicate());
    }
    return nullptr;
  }
  [[nodiscard]] int ranks_per_node() const override {
    if constexpr (NodeAwareTransport<T>) return inner_.ranks_per_node();
    return 0;
  }

 private:
  T inner_;
  // indexed by ticket; free places are used again, so that a step does not allocate
  std::vector<std::optional<typename request_of<T>::type>> requests_;
};

/// Traffic counts of a communicator. `add` also counts in the communicators it was split from.
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

/// Adds the time of its scope to a ledger, and with `bytes` one collective, even if that one fails.
class traffic_timer {
 public:
  explicit traffic_timer(traffic_ledger& ledger) : ledger_(ledger) {}
  [[gnu::cold, gnu::noinline]] traffic_timer(traffic_ledger& ledger, std::uint64_t bytes)
      : ledger_(ledger) {
    ledger_.add(bytes, 1, 0);
  }
  traffic_timer(const traffic_timer&) = delete;
  traffic_timer& operator=(const traffic_timer&) = delete;
  [[gnu::cold, gnu::noinline]] ~traffic_timer() {
    ledger_.add(0, 0, std::chrono::duration<double>(clock::now() - start_).count());
  }

 private:
  using clock = std::chrono::steady_clock;
  traffic_ledger& ledger_;
  clock::time_point start_ = clock::now();
};

}  // namespace detail

/// Handle of a started collective. Bytes count at the start; seconds count inside member functions
/// only. The destructor of an unfinished request waits.
class request {
 public:
  request() = default;
  request(std::shared_ptr<detail::transport_interface> transport,
          std::shared_ptr<detail::traffic_ledger> ledger, int ticket)
      : transport_(std::move(transport)), ledger_(std::move(ledger)), ticket_(ticket) {}
  request(request&& other) noexcept
      : transport_(std::move(other.transport_)),
        ledger_(std::move(other.ledger_)),
        ticket_(std::exchange(other.ticket_, detail::transport_interface::done)) {}
  request& operator=(request&& other) noexcept {
    if (this != &other) {
      finish();
      transport_ = std::move(other.transport_);
      ledger_ = std::move(other.ledger_);
      ticket_ = std::exchange(other.ticket_, detail::transport_interface::done);
    }
    return *this;
  }
  ~request() { finish(); }

  void wait() {
    if (ticket_ == detail::transport_interface::done) return;
    const detail::traffic_timer time(*ledger_);
    transport_->wait_for(ticket_);
  }
  [[nodiscard]] bool test() {
    if (ticket_ == detail::transport_interface::done) return true;
    const detail::traffic_timer time(*ledger_);
    return transport_->is_done(ticket_);
  }

 private:
  [[gnu::cold, gnu::noinline]] void finish() noexcept {
    if (ticket_ == detail::transport_interface::done) return;
    const detail::traffic_timer time(*ledger_);
    transport_->finish(std::exchange(ticket_, detail::transport_interface::done));
  }

  std::shared_ptr<detail::transport_interface> transport_;
  std::shared_ptr<detail::traffic_ledger> ledger_;
  int ticket_ = detail::transport_interface::done;
};

/// Type-erased Transport. A handle, cheap to copy: copies share the transport and the counts. An
/// allreduce counts 2 (W-1)/W of its bytes, the volume of a ring, for every transport. The counts
/// of a communicator include the traffic of communicators made from it, and are not locked: for
/// optimizers in several threads pass the transport itself, or a communicator for each.
class communicator {
 public:
  template <Transport T>
    requires(!std::same_as<T, communicator>)
  explicit communicator(T transport)
      : communicator(std::make_shared<detail::transport_holder<T>>(std::move(transport)), nullptr) {
  }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  /// Returns ` [rank r/W]`, for error messages.
  [[nodiscard]] std::string where() const { return detail::rank_suffix(rank(), size()); }
  [[nodiscard]] const traffic& sent() const { return ledger_->sent; }

  void all_to_all(const void* send, void* receive, std::size_t slot_bytes) {
    const timer time(*ledger_, others() * slot_bytes);
    transport_->call(call::all_to_all, send, receive, slot_bytes);
  }
  void all_gather(const void* send, void* receive, std::size_t slot_bytes) {
    const timer time(*ledger_, others() * slot_bytes);
    transport_->call(call::all_gather, send, receive, slot_bytes);
  }
  /// Sums floats or bf16. For bf16, throws invalid_input without a HalfSummingTransport.
  template <class T>
  void all_reduce_sum(T* data, std::size_t n) {
    if constexpr (std::same_as<T, bf16>)
      require_half_sums();  // at run time: communicator has this overload on any transport
    const timer time(*ledger_, 2 * others() * n * sizeof(T) / (others() + 1));
    transport_->all_reduce_sum(data, n);
  }
  /// Throws invalid_input unless the transport is a HalfSummingTransport.
  [[gnu::cold]] void require_half_sums() const {
    if (transport_->sums_halves()) return;
    throw invalid_input(
        detail::error_text("dense_sum::transport_in_bf16: this transport has no "
                           "all_reduce_sum(onebit::bf16* data, std::size_t n); take in_bf16",
                           where()));
  }
  /// all_gather of a few bytes of host memory, also on transports that carry device memory. `what`:
  /// name of the trainer's call, for errors of transports whose gathers take a call_name.
  void host_all_gather(const void* send, void* receive, std::size_t slot_bytes,
                       const char* what = "all_gather") {
    const timer time(*ledger_, others() * slot_bytes);
    transport_->host_all_gather(send, receive, slot_bytes, {what});
  }

  /// Starts a collective, which is done on return if the transport is no StartingTransport.
  [[nodiscard]] request start_all_to_all(const void* send, void* receive, std::size_t slot_bytes) {
    return start(call::all_to_all, send, receive, slot_bytes);
  }
  [[nodiscard]] request start_all_gather(const void* send, void* receive, std::size_t slot_bytes) {
    return start(call::all_gather, send, receive, slot_bytes);
  }
  /// Waits until all collectives are done. Does nothing without a WaitingTransport.
  void wait() {
    const timer time(*ledger_);
    transport_->wait();
  }

  /// Splits by color. Collective; counts no traffic. Traffic of the new communicator counts in
  /// both. Throws invalid_input if the transport is no SplittingTransport.
  [[nodiscard]] communicator split(int color, int key) const {
    return communicator(transport_->split(color, key), ledger_);
  }
  /// Returns a communicator for one optimizer: of a duplicate of the transport, or a copy if this
  /// is no DuplicatingTransport. Collective; counts like `split`.
  [[nodiscard, gnu::cold]] communicator duplicate() const {
    auto own = transport_->duplicate();
    return own ? communicator(std::move(own), ledger_) : *this;
  }
  /// Returns the number of ranks per node, 0 if unknown. Collective; not counted as traffic.
  [[nodiscard]] int ranks_per_node() const { return transport_->ranks_per_node(); }
  /// True if the transport says `static constexpr bool echoes = true`: it stands for several ranks,
  /// in tests and benchmarks, and hears itself from each. Then nobody checks who has sent what.
  [[nodiscard]] bool echoes() const { return transport_->echoes(); }
  /// Returns the device stream on which collectives are enqueued, if the transport has one.
  [[nodiscard]] std::optional<std::uintptr_t> stream() const { return transport_->stream(); }

 private:
  using timer = detail::traffic_timer;
  using call = detail::collective_call;

  [[gnu::cold]] communicator(std::shared_ptr<detail::transport_interface> transport,
                             std::shared_ptr<detail::traffic_ledger> parent)
      : transport_(std::move(transport)),
        ledger_(std::make_shared<detail::traffic_ledger>()),
        rank_(transport_->rank()),
        size_(transport_->size()) {
    ledger_->parent = std::move(parent);
  }

  [[nodiscard, gnu::cold]] request start(call c, const void* send, void* receive,
                                         std::size_t slot_bytes) {
    const timer time(*ledger_, others() * slot_bytes);
    return {transport_, ledger_, transport_->start(c, send, receive, slot_bytes)};
  }
  [[nodiscard]] std::size_t others() const { return static_cast<std::size_t>(size()) - 1; }

  std::shared_ptr<detail::transport_interface> transport_;
  std::shared_ptr<detail::traffic_ledger> ledger_;
  int rank_, size_;
};

static_assert(detail::StartingTransport<communicator> && detail::SplittingTransport<communicator> &&
              detail::NodeAwareTransport<communicator>);

namespace detail {

/// Returns the communicator of one optimizer, on a duplicate of a DuplicatingTransport: collective
/// then. A static_assert fails if collective C cannot use the transport.
template <class C, class T>
[[nodiscard]] communicator communicator_of(T transport) {
  check_transport<T>();
  check_split<C, T>();
  return communicator(std::move(transport)).duplicate();
}

}  // namespace detail

}}  // namespace onebit
