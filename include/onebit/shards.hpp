// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <onebit/clip.hpp>
#include <onebit/concepts.hpp>
#include <onebit/now.hpp>
#include <onebit/transport/wire.hpp>
#include <optional>
#include <utility>
#include <vector>

/// A model of which no rank holds the whole: pipeline stages, tensor-parallel shards, experts. Each
/// shard has its own ranks, its own optimizer over them, and its own exchange; a step that one
/// skips all must skip, and gradients are clipped by the norm of the whole.
namespace onebit {

/// What a rank says to the ranks that hold the other shards. `plan` has a bit for each kind of
/// thing that the step does: shards that do other things would soon talk past each other.
struct shard_word {
  std::uint32_t number = 0, plan = 0, skip = 0;
  float mean_norm = -1, own_norm = -1;
};

struct tell_shards_kernel {
  static constexpr bool serial = true;
  const step_scalars* now;
  shard_word* word;
  std::uint32_t plan;
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    L::store_scalar(word, shard_word{now->number, plan, now->skip, now->mean_norm, now->own_norm});
  }
};

/// A step that is a part of another one, `whole`, is called off with it.
struct hear_whole_kernel {
  static constexpr bool serial = true;
  step_scalars* now;
  const step_scalars* whole;
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    if (whole->skip != 0) L::store_scalar(&now->skip, std::uint32_t{1});
  }
};

/// Takes over what the shards say: one skips, all skip; norms are those of the whole model.
struct hear_shards_kernel {
  static constexpr bool serial = true;
  step_scalars* now;
  const shard_word* words;
  std::uint32_t n, plan;
  bool norms;     ///< else only skips: the norms are those of the whole already
  float largest;  ///< norm of the mean; 0: not clipped
  const step_scalars* whole = nullptr;  ///< who is odd there is told by that step

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    std::uint32_t skip = now->skip;
    double mean = 0, own = 0;
    for (std::uint32_t r = 0; r < n; ++r) {
      const shard_word w = words[r];
      skip |= w.skip;
      mean += static_cast<double>(w.mean_norm) * static_cast<double>(w.mean_norm);
      own += static_cast<double>(w.own_norm) * static_cast<double>(w.own_norm);
      if (w.number == now->number && w.plan == plan) continue;
      skip = 1;
      if (now->odd_rank != 0 || (whole != nullptr && whole->odd_rank != 0)) continue;
      L::store_scalar(&now->odd_rank, r + 1);
      L::store_scalar(&now->odd_in, w.number == now->number ? odd::shard : odd::step);
      L::store_scalar(&now->odd_word, w.number);
      L::store_scalar(&now->own_word, now->number);
    }
    L::store_scalar(&now->skip, skip);
    if (!norms) return;
    // what one shard does not know, none does: they make the same steps
    if (now->own_norm >= 0) L::store_scalar(&now->own_norm, static_cast<float>(sqrt(own)));
    if (!(now->mean_norm >= 0)) return;
    const auto norm = static_cast<float>(sqrt(mean));
    L::store_scalar(&now->mean_norm, norm);
    if (largest > 0) L::store_scalar(&now->clip, detail::clip_factor(norm, largest));
  }
};

/// This rank among those that hold the other shards of its replica; or nobody, which costs nothing.
template <class B>
class shards {
 public:
  shards() = default;
  /// Not collective. `whole`, if it is given: of a step that this optimizer's steps are parts of,
  /// which begins before them and ends after them.
  shards(wire w, B& backend, const step_scalars* whole = nullptr)
      : whole_(whole),
        wire_(std::move(w)),
        own_(backend.template make_buffer<shard_word>(1)),
        all_(backend.template make_buffer<shard_word>(static_cast<std::size_t>(wire_->size()))),
        terms_(static_cast<std::size_t>(wire_->size())) {}

  [[nodiscard]] bool empty() const { return !wire_ || wire_->size() < 2; }
  /// Collective over the shards, if there are any: 1 all_gather of 20 bytes. All learn who skips;
  /// with `norms`, once in a step, also the norms of the whole.
  [[gnu::cold]] void meet(B& backend, step_scalars* now, std::uint32_t plan, bool norms,
                          double largest_norm) {
    if (whole_ != nullptr) backend.launch(1, hear_whole_kernel{now, whole_});
    if (empty()) return;
    backend.launch(1, tell_shards_kernel{now, own_.data(), plan});
    wire_->all_gather(own_.data(), all_.data(), sizeof(shard_word));
    backend.launch(
        1, hear_shards_kernel{now, all_.data(), static_cast<std::uint32_t>(wire_->size()), plan,
                              norms, static_cast<float>(largest_norm), whole_});
  }

  /// After a step: the sum over the shards, the same bits on all. Collective over them: 1
  /// all_gather of 8 bytes. What goes wrong is thrown by `require`: this step was done.
  [[nodiscard, gnu::cold]] double sum(double mine) {
    if (empty()) return mine;
    double total = 0;
    try {
      wire_->host_all_gather(&mine, terms_.data(), sizeof mine);
      for (const double x : terms_) total += x;
    } catch (...) {
      lost_ = std::current_exception();
    }
    return total;
  }

  /// Before anything of the next step: others that wait for this rank then name it, and not one
  /// that waits in its turn.
  void require() {
    if (lost_) std::rethrow_exception(std::exchange(lost_, nullptr));
  }

  void wait() {
    if (!empty()) wire_->wait();
  }

 private:
  const step_scalars* whole_ = nullptr;
  std::optional<wire> wire_;
  buffer_of<B, shard_word> own_, all_;
  std::vector<double> terms_;  ///< of `sum`, by rank
  std::exception_ptr lost_;
};

}  // namespace onebit
