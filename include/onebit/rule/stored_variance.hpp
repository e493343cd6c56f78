// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/concepts.hpp>
#include <onebit/rule/denominators.hpp>
#include <onebit/tiled.hpp>
#include <type_traits>
#include <utility>

/// v of a rule, which knows in which form it is.
namespace onebit::inline v0_1::detail {

/// v, or sqrt(v) + eps, on the flat axis: floats while it changes, words as Word stores them while
/// it is constant. Between steps one of both forms counts: `packed` says which. A step that changes
/// v while the words count takes `provide_floats`, `unpack`, changes the floats, and stores them by
/// `packing`, or lets the floats count from then on. With V = float it is always floats.
///
/// `provide_floats` and `provide_words` allocate, and throw what that throws; the rest does
/// neither.
template <Backend B, class V, class Word>
class stored_variance {
 public:
  /// What is known of the form when v is saved, and loaded.
  enum class form : std::uint8_t { floats, words, by_job, by_rank };
  static constexpr bool packs = !std::is_same_v<V, float>;
  using packer = pack_kernel<Word>;
  /// What a kernel reads v by.
  using field = std::conditional_t<packs, stored_field<Word>, flat_field>;

  void prepare(B& backend, std::size_t n_words) {
    n_words_ = n_words;
    provide_floats(backend);
  }
  /// Memory for the floats, if there is none.
  void provide_floats(B& backend) {
    if (floats_.size() > 0) return;
    floats_ = backend.template make_buffer<float>(n_words_ * word_elements);
  }
  void provide_words(B& backend) {
    if (words_.size() > 0) return;
    words_ = backend.template make_buffer<std::byte>(n_words_ * Word::bytes);
  }
  /// The words count.
  [[nodiscard]] bool packed() const { return packed_; }
  [[nodiscard]] float* floats() { return floats_.data(); }
  [[nodiscard]] const float* floats() const { return floats_.data(); }
  [[nodiscard]] std::size_t n_floats() const { return floats_.size(); }
  [[nodiscard]] std::byte* words() { return words_.data(); }
  /// While the words count; with V = float always.
  [[nodiscard]] field as_field() const {
    if constexpr (packs) {
      return {words_.data()};
    } else {
      return {floats_.data()};
    }
  }

  /// Fills the words: from `live` elements' floats, `least` elsewhere. See pack_kernel.
  template <class At>
  [[nodiscard]] packer packing(const At& at, live_mask live, bool dithers, float least) {
    return {floats_.data(), at.tiles, live, words_.data(), at.now, dithers, least};
  }
  /// If the words count: fills the floats from them. Else the floats are v already.
  template <class At>
  void unpack(const At& at) {
    if (!packed_) return;
    at.backend.launch(at.n_tiles(), unpack_kernel<Word>{words_.data(), at.tiles, floats_.data()});
  }
  /// From here on the words count.
  void keep_words() noexcept { packed_ = true; }
  /// The floats count, and the words are given back.
  void keep_floats() noexcept {
    packed_ = false;
    words_ = {};
  }
  void drop_floats() noexcept { floats_ = {}; }
  /// The floats, which stay what they are: LAMB's second variance starts from v.
  [[nodiscard]] buffer_of<B, float> take_floats() noexcept { return std::move(floats_); }

  [[nodiscard]] std::size_t bytes() const { return floats_.bytes() + words_.bytes(); }
  /// Words without tensors are `idle` in floats. `kept` is what the rule knows of the form: ranks
  /// may differ in it only where an allocation may have failed on one of them.
  template <class Archive>
  [[gnu::cold]] void archive(Archive& a, B& backend, float idle, form kept) {
    if constexpr (packs) {
      if constexpr (Archive::reading) a.put_aside(packed_);
      if (kept == form::by_rank) a.local(packed_);
      if (kept == form::by_job) a.scalar(packed_);
      if (kept == form::floats || kept == form::words) packed_ = kept == form::words;
    }
    if (packed_) {
      a.by_word(words_, backend, n_words_ * Word::bytes, Word::idle);
      if constexpr (Archive::reading) a.put_aside(floats_);
    } else {
      a.by_word(floats_, backend, n_words_ * word_elements, idle);
      if constexpr (Archive::reading) a.put_aside(words_);
    }
  }

 private:
  buffer_of<B, float> floats_;
  buffer_of<B, std::byte> words_;
  std::size_t n_words_ = 0;
  bool packed_ = false;
};

}  // namespace onebit::inline v0_1::detail
