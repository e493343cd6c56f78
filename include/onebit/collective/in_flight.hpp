// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <onebit/concepts.hpp>
#include <type_traits>
#include <utility>
#include <vector>

/// Collectives under way.
namespace onebit {

/// A transport whose collectives can be started and waited for later.
template <class T>
concept NonBlockingTransport = requires(T transport, const void* send, void* receive,
                                        std::size_t slot_bytes) {
  transport.start_all_to_all(send, receive, slot_bytes).wait();
  transport.start_all_gather(send, receive, slot_bytes).wait();
};

namespace detail {
template <class T>
auto start_gather(T& transport) {
  return transport.start_all_gather(nullptr, nullptr, 0);
}
template <class T>
auto start_scatter(T& transport) {
  return transport.start_all_to_all(nullptr, nullptr, 0);
}
}  // namespace detail

/// The collectives of one kind that an exchange has started, in their order. On a transport that
/// cannot start them they are over when they return.
template <class T, bool Gathers>
class in_flight {
 public:
  /// Space for n at a time.
  void reserve(std::size_t n) {
    if constexpr (NonBlockingTransport<T>) requests_.reserve(n);
  }
  /// Collective. `later` says that waiting for it may take place later.
  void start(T& transport, const void* send, void* receive, std::size_t slot_bytes, bool later) {
    if constexpr (NonBlockingTransport<T>) {
      if (later) {
        if constexpr (Gathers) {
          requests_.push_back(transport.start_all_gather(send, receive, slot_bytes));
        } else {
          requests_.push_back(transport.start_all_to_all(send, receive, slot_bytes));
        }
        return;
      }
    }
    if constexpr (Gathers) {
      transport.all_gather(send, receive, slot_bytes);
    } else {
      transport.all_to_all(send, receive, slot_bytes);
    }
  }
  /// Waits for the i-th that was started.
  void wait(std::size_t i) {
    if constexpr (NonBlockingTransport<T>) {
      if (i < requests_.size()) requests_[i].wait();
    }
  }
  /// Lets the transport make progress.
  void poke() {
    if constexpr (NonBlockingTransport<T>) {
      for (auto& r : requests_) {
        if (!r.test()) return;
      }
    }
  }
  /// Forgets them; waits for those that are still under way.
  void clear() {
    if constexpr (NonBlockingTransport<T>) requests_.clear();
  }

 private:
  struct none {};
  template <class U>
  struct request_of {
    using type = none;
  };
  template <NonBlockingTransport U>
  struct request_of<U> {
    using type = std::conditional_t<Gathers, decltype(detail::start_gather(std::declval<U&>())),
                                    decltype(detail::start_scatter(std::declval<U&>()))>;
  };
  std::vector<typename request_of<T>::type> requests_;
};

}  // namespace onebit
