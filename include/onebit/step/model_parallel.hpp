// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/concepts/backend.hpp>
#include <onebit/core/config.hpp>
#include <onebit/kernel/clipping.hpp>
#include <onebit/kernel/scalars.hpp>
#include <onebit/transport/communicator.hpp>
#include <optional>
#include <utility>

/// Model-parallel group of a rank: the ranks that hold the other parts of its replica of the model
/// (pipeline stages, tensor-parallel ranks, experts). Each part has its own ranks, optimizer and
/// exchange. The group skips a step together, and clips gradients by the norm of the whole model.
namespace onebit { inline namespace v0_3 { namespace detail {

/// Message of a rank to its model-parallel group. `plan` says what the step does: parts with
/// different plans would wait for different collectives.
struct model_parallel_word {
  std::uint32_t number = 0, plan = 0, skip = 0;
  float mean_norm = -1, own_norm = -1;
};

struct write_word_kernel {
  static constexpr bool serial = true;
  const step_scalars* now;
  model_parallel_word* word;
  std::uint32_t plan;
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    L::store_scalar(word, model_parallel_word{now->given.number, plan, now->verdict.skip,
                                              now->norms.mean, now->norms.own});
  }
};

/// Applies the words of all parts of the model: if one part skips, all skip. Norms become norms of
/// the whole model.
struct apply_words_kernel {
  static constexpr bool serial = true;
  step_scalars* now;
  const model_parallel_word* words;
  std::uint32_t n, plan;
  bool norms;     ///< false: skips only, the norms are of the whole model already
  float largest;  ///< largest norm of the mean gradient; 0: no clipping

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    std::uint32_t skip = now->verdict.skip;
    double mean = 0, own = 0;
    for (std::uint32_t r = 0; r < n; ++r) {
      const model_parallel_word w = words[r];
      skip |= w.skip;
      mean += static_cast<double>(w.mean_norm) * static_cast<double>(w.mean_norm);
      own += static_cast<double>(w.own_norm) * static_cast<double>(w.own_norm);
      if (w.number == now->given.number && w.plan == plan) continue;
      skip = 1;
      if (now->verdict.mismatched_rank != 0) continue;
      L::store_scalar(&now->verdict.mismatched_rank, r + 1);
      L::store_scalar(&now->verdict.mismatched_in, mismatch::part);
      L::store_scalar(&now->verdict.their_value, w.number);
      L::store_scalar(&now->verdict.own_value, now->given.number);
    }
    L::store_scalar(&now->verdict.skip, skip);
    if (!norms) return;
    // all parts make the same steps: either all know a norm, or none does
    if (now->norms.own >= 0) L::store_scalar(&now->norms.own, static_cast<float>(sqrt(own)));
    if (!(now->norms.mean >= 0)) return;
    const auto norm = static_cast<float>(sqrt(mean));
    L::store_scalar(&now->norms.mean, norm);
    if (largest > 0) L::store_scalar(&now->norms.clip, detail::clip_factor(norm, largest));
  }
};

/// Model-parallel group of this rank. An empty group costs nothing.
template <class B>
class model_parallel_group {
 public:
  model_parallel_group() = default;
  [[gnu::cold]] model_parallel_group(communicator w, B& backend)
      : comm_(std::move(w)),
        own_(backend.template make_buffer<model_parallel_word>(1)),
        all_(backend.template make_buffer<model_parallel_word>(
            static_cast<std::size_t>(comm_->size()))) {}

  [[nodiscard]] bool empty() const { return !comm_ || comm_->size() < 2; }
  /// Combines the skips of all parts of the model and, with `norms` (once in a step), their norms.
  /// Collective over the group, if there is one: 1 all_gather of 20 bytes. Once the parts have
  /// found different plans in a step, further calls in this step do nothing: another part may have
  /// fewer calls left. (On a deferred backend the host does not know that.)
  [[gnu::cold]] void reduce(B& backend, step_scalars* now, std::uint32_t plan, bool norms,
                            double largest_norm) {
    if (empty() || plans_differ_) return;
    backend.launch(1, write_word_kernel{now, own_.data(), plan});
    comm_->all_gather(own_.data(), all_.data(), sizeof(model_parallel_word));
    backend.launch(
        1, apply_words_kernel{now, all_.data(), static_cast<std::uint32_t>(comm_->size()), plan,
                              norms, static_cast<float>(largest_norm)});
    if (const model_parallel_word* const words = host_view<B>(all_.data())) {
      // all ranks read the same words and decide alike
      for (std::size_t r = 1; r < all_.size(); ++r) {
        plans_differ_ =
            plans_differ_ || words[r].number != words[0].number || words[r].plan != words[0].plan;
      }
    }
  }
  void begin_step() { plans_differ_ = false; }

  void wait() {
    if (!empty()) comm_->wait();
  }

 private:
  std::optional<communicator> comm_;
  buffer_of<B, model_parallel_word> own_, all_;
  bool plans_differ_ = false;  ///< the parts have different plans in this step
};

}  // namespace detail

}}  // namespace onebit
