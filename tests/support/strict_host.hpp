// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A host backend that runs out of memory when told to, and a transport that starts collectives and
// carries them out no earlier than they are waited for; together they notice a buffer that goes
// while a collective still uses it.

#ifndef ONEBIT_TESTS_SUPPORT_STRICT_HOST_HPP
#define ONEBIT_TESTS_SUPPORT_STRICT_HOST_HPP

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <onebit/backend/host.hpp>
#include <onebit/concepts/backend.hpp>
#include <onebit/transport/threads.hpp>
#include <string>
#include <utility>
#include <vector>

namespace onebit_test {

/// What one rank's memory and transport know of each other.
struct memory_book {
  static constexpr std::uint64_t never = std::numeric_limits<std::uint64_t>::max();

  std::uint64_t n_allocations = 0;
  std::uint64_t fail_at = never;  ///< the allocation (from 0) that throws
  std::uint64_t n_started = 0, n_finished = 0;
  std::string problem;

  struct range {
    const std::byte* first;
    std::size_t bytes;
    std::uint64_t collective;
  };
  std::vector<range> in_use;

  void use(const void* p, std::size_t bytes, std::uint64_t collective) {
    in_use.push_back({static_cast<const std::byte*>(p), bytes, collective});
  }
  void finish(std::uint64_t collective) {
    ++n_finished;
    std::erase_if(in_use, [&](const range& r) { return r.collective == collective; });
  }
  void freed(const void* p, std::size_t bytes) {
    const auto* first = static_cast<const std::byte*>(p);
    for (const range& r : in_use) {
      const bool apart = std::less_equal<>()(first + bytes, r.first) ||
                         std::less_equal<>()(r.first + r.bytes, first);
      if (!apart) problem = "a buffer went while a collective used it";
    }
  }
};

template <class T>
class strict_buffer {
 public:
  strict_buffer() = default;
  strict_buffer(std::size_t n, std::shared_ptr<memory_book> book)
      : memory_(n), book_(std::move(book)) {}
  strict_buffer(strict_buffer&&) noexcept = default;
  strict_buffer& operator=(strict_buffer&& other) noexcept {
    if (this != &other) {
      release();
      memory_ = std::move(other.memory_);
      book_ = std::move(other.book_);
    }
    return *this;
  }
  ~strict_buffer() { release(); }

  [[nodiscard]] T* data() { return memory_.data(); }
  [[nodiscard]] const T* data() const { return memory_.data(); }
  [[nodiscard]] std::size_t size() const { return memory_.size(); }
  [[nodiscard]] std::size_t bytes() const { return memory_.bytes(); }

 private:
  void release() noexcept {
    if (memory_.size() > 0) book_->freed(memory_.data(), memory_.bytes());
  }
  onebit::detail::host_buffer<T> memory_;
  std::shared_ptr<memory_book> book_;
};

class strict_host : public onebit::host {
 public:
  explicit strict_host(std::shared_ptr<memory_book> book) : book_(std::move(book)) {}

  template <class T>
  [[nodiscard]] strict_buffer<T> make_buffer(std::size_t n) const {
    if (book_->n_allocations++ == book_->fail_at) throw std::bad_alloc();
    return {n, book_};
  }

 private:
  std::shared_ptr<memory_book> book_;
};
static_assert(onebit::Backend<strict_host>);

/// Starts collectives among threads. A request waits when it is destroyed.
class strict_transport {
 public:
  class request {
   public:
    request(std::shared_ptr<memory_book> book, std::function<void()> call, const void* send,
            std::size_t n_sent, void* receive, std::size_t n_received)
        : book_(std::move(book)), call_(std::move(call)), number_(book_->n_started++) {
      book_->use(send, n_sent, number_);
      book_->use(receive, n_received, number_);
    }
    request(request&& other) noexcept
        : book_(std::move(other.book_)),
          call_(std::exchange(other.call_, nullptr)),
          number_(other.number_) {}
    request& operator=(request&& other) noexcept {
      request old(std::move(other));
      std::swap(book_, old.book_);
      std::swap(call_, old.call_);
      std::swap(number_, old.number_);
      return *this;
    }
    ~request() {
      try {
        wait();
      } catch (...) {  // the other ranks have given up
        book_->finish(number_);
      }
    }
    void wait() {
      if (!call_) return;
      const auto call = std::exchange(call_, nullptr);
      call();
      book_->finish(number_);
    }
    [[nodiscard]] bool test() const { return !call_; }

   private:
    std::shared_ptr<memory_book> book_;
    std::function<void()> call_;
    std::uint64_t number_;
  };

  strict_transport(onebit::threads inner, std::shared_ptr<memory_book> book)
      : inner_(std::move(inner)), book_(std::move(book)) {}
  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int size() const { return inner_.size(); }
  void all_to_all(const void* s, void* r, std::size_t n) { inner_.all_to_all(s, r, n); }
  void all_gather(const void* s, void* r, std::size_t n) { inner_.all_gather(s, r, n); }
  void all_reduce_sum(float* data, std::size_t n) { inner_.all_reduce_sum(data, n); }
  [[nodiscard]] request start_all_to_all(const void* s, void* r, std::size_t n) {
    return {book_, [=, this_ = inner_]() mutable { this_.all_to_all(s, r, n); }, s, all(n), r,
            all(n)};
  }
  [[nodiscard]] request start_all_gather(const void* s, void* r, std::size_t n) {
    return {book_, [=, this_ = inner_]() mutable { this_.all_gather(s, r, n); }, s, n, r, all(n)};
  }
  [[nodiscard]] strict_transport split(int color, int key) const {
    return {inner_.split(color, key), book_};
  }

 private:
  [[nodiscard]] std::size_t all(std::size_t n) const {
    return static_cast<std::size_t>(size()) * n;
  }
  onebit::threads inner_;
  std::shared_ptr<memory_book> book_;
};

}  // namespace onebit_test

#endif  // ONEBIT_TESTS_SUPPORT_STRICT_HOST_HPP
