// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <onebit/checkpoint.hpp>
#include <onebit/error.hpp>
#include <onebit/layout.hpp>
#include <type_traits>
#include <utility>
#include <vector>

/// State that goes where its tensors go.
namespace onebit::inline v0_1 {

/// A tensor that was not there before: see optimizer::change_tensors.
inline constexpr std::size_t new_tensor = ~std::size_t{0};

namespace detail {

/// Which words of an axis were which ones of another.
class moved_words {
 public:
  [[gnu::cold]] moved_words(const std::vector<std::size_t>& sizes,
                            const std::vector<std::size_t>& old_sizes,
                            const std::vector<std::size_t>& places)
      : from(places), n_old_tensors(old_sizes.size()) {
    std::vector<std::size_t> first;
    for (const std::size_t n : old_sizes) {
      first.push_back(n_old);
      n_old += words(n);
    }
    for (std::size_t t = 0; t < sizes.size(); ++t) {
      if (places[t] != new_tensor) runs_.push_back({first[places[t]], n_new, words(sizes[t])});
      n_new += words(sizes[t]);
    }
  }
  /// Words `runs` of an axis of n that were words of one of n_old, and by tensor what each was.
  struct run {
    std::size_t old, now, n;
  };
  [[gnu::cold]] moved_words(std::vector<run> runs, const std::vector<std::size_t>& places,
                            std::size_t n_tensors_before, std::size_t n_before, std::size_t n)
      : from(places),
        n_old_tensors(n_tensors_before),
        n_old(n_before),
        n_new(n),
        runs_(std::move(runs)) {}
  /// Copies what there is of each word, `each` objects; the other new words stay.
  template <class T>
  [[gnu::cold]] void move(const T* old, T* to, std::size_t each) const {
    for (const run& r : runs_) {
      std::copy_n(old + r.old * each, r.n * each, to + r.now * each);
    }
  }

  const std::vector<std::size_t>& from;  ///< by tensor
  std::size_t n_old_tensors;
  std::size_t n_old = 0, n_new = 0;  ///< words

 private:
  static std::size_t words(std::size_t n) { return (n + word_elements - 1) / word_elements; }
  std::vector<run> runs_;
};

/// What a state says by word of the axis, by tensor, or once: see moving_reader.
class moving_writer {
 public:
  static constexpr bool reading = false;

  template <class T>
  void scalar(const T& x) {
    bytes(&x, sizeof x);
  }
  template <class T>
  void local(const T& x) {
    scalar(x);
  }
  template <class Buffer, class B>
  void by_word(const Buffer& b, B& backend, std::size_t, ...) {
    pieces_.emplace_back();
    read_on_host(backend, b.data(), b.size(),
                 [&](const auto* p, std::size_t n) { add(p, n * sizeof *p); });
  }
  template <class Buffer, class B>
  void by_tensor(const Buffer& b, B& backend) {
    by_word(b, backend, 0);
  }
  template <class... Of>
  void buffer(const Of&...) {
    throw invalid_input(
        message("change_tensors, load_old_job: this rule's archive does not say whether a buffer ",
                "is by_word or by_tensor"));
  }
  [[nodiscard]] const std::vector<std::vector<char>>& pieces() const { return pieces_; }

 private:
  void bytes(const void* data, std::size_t n) {
    pieces_.emplace_back();
    add(data, n);
  }
  void add(const void* data, std::size_t n) {
    const auto* first = static_cast<const char*>(data);
    pieces_.back().insert(pieces_.back().end(), first, first + n);
  }
  std::vector<std::vector<char>> pieces_;
};

/// Reads it over the state of other tensors. New words and tensors are what they are there, or what
/// the state says that new ones are; `more`: what they are there, which was read before.
class moving_reader {
 public:
  static constexpr bool reading = true;

  moving_reader(const moving_writer& written, const moved_words& words, bool more = false)
      : pieces_(&written.pieces()), words_(&words), more_(more) {}

  template <class T>
  void scalar(T& x) {
    const auto& piece = next();
    std::memcpy(&x, piece.data(), sizeof x);
  }
  template <class T>
  void local(T& x) {
    scalar(x);
  }
  template <class T>
  void put_aside(T& x) {
    x = T{};
  }
  template <class... Of>
  void buffer(const Of&...) {}  // the writer has thrown
  template <class Buffer, class B, class... Fresh>
  void by_word(Buffer& b, B& backend, std::size_t n, const Fresh&... fresh) {
    using T = std::remove_cvref_t<decltype(*b.data())>;
    const auto& piece = next();
    const std::size_t each = words_->n_new > 0 ? n / words_->n_new : 0;
    std::vector<T> values(n, T{fresh...});
    const bool stay = sizeof...(fresh) == 0 || more_;
    if (stay && b.size() == n) backend.copy_out(values.data(), b.data(), n);
    if (n > 0 && !piece.empty()) {
      const std::vector<T> old = as<T>(piece, each * words_->n_old);
      words_->move(old.data(), values.data(), each);
    }
    replace(b, backend, values);
  }
  template <class Buffer, class B>
  void by_tensor(Buffer& b, B& backend) {
    using T = std::remove_cvref_t<decltype(*b.data())>;
    std::vector<T> values(b.size());
    backend.copy_out(values.data(), b.data(), values.size());
    const std::vector<T> old = as<T>(next(), words_->n_old_tensors);
    for (std::size_t t = 0; t < values.size(); ++t) {
      if (words_->from[t] != new_tensor) values[t] = old[words_->from[t]];
    }
    replace(b, backend, values);
  }

 private:
  const std::vector<char>& next() { return (*pieces_)[at_++]; }
  template <class T>
  [[nodiscard]] static std::vector<T> as(const std::vector<char>& piece, std::size_t n) {
    if (piece.size() != n * sizeof(T)) {
      throw invalid_input(message("change_tensors: the rule's state has a piece of ", piece.size(),
                                  " bytes where its tensors make ", n * sizeof(T)));
    }
    std::vector<T> values(n);
    if (n > 0) std::memcpy(values.data(), piece.data(), piece.size());
    return values;
  }
  template <class Buffer, class B, class T>
  static void replace(Buffer& b, B& backend, const std::vector<T>& values) {
    auto buffer = backend.template make_buffer<T>(values.size());
    backend.copy_in(buffer.data(), values.data(), values.size());
    b = std::move(buffer);
  }

  const std::vector<std::vector<char>>* pieces_;
  const moved_words* words_;
  bool more_;
  std::size_t at_ = 0;
};

}  // namespace detail
}  // namespace onebit::inline v0_1
