// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <onebit/clip.hpp>
#include <onebit/concepts.hpp>
#include <onebit/error.hpp>
#include <onebit/layer_sums.hpp>
#include <onebit/now.hpp>
#include <onebit/tiled.hpp>
#include <onebit/transport/wire.hpp>
#include <onebit/vocabulary.hpp>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

/// A model of which no rank holds the whole: pipeline stages, tensor-parallel shards, experts. Each
/// shard has its own ranks, its own optimizer over them, and its own exchange; a step that one
/// skips all must skip, gradients are clipped by the norm of the whole, and a layer that is cut has
/// the norms of the whole layer (group_options::tensor_parallel).
///
/// Norms of layers are told between the last word of all shards and the first change of the step:
/// `look_at_layers` makes the pass that sums squares once before, without changing anything. A
/// transport that fails there leaves the bits of before; if it fails on one rank alone, the others
/// find that rank at another step, as after any collective that comes last.
namespace onebit::inline v0_1 {

/// A rule whose coefficients are of whole layers, and which can tell what parts of them add before
/// anything changes: with look(at, mine, heard, agreed) too, where it exchanges.
template <class R>
concept LayerRule = Rule<R> && R::by_layer &&
    requires(R r, const detail::any_tiled<R>& at, const own_layers& mine,
             const detail::any_field& gradient) {
  r.prepare_sums(at.n_tiles());
  r.look(at, mine, gradient);
};

/// What a rank has of layers that are cut: so many parts, of the layers of this stage.
struct shard_of_layers {
  std::uint32_t n = 0;
  std::int32_t stage = 0;
};

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

/// Takes over what the shards say: one skips, all skip; norms are those of the whole model.
struct hear_shards_kernel {
  static constexpr bool serial = true;
  step_scalars* now;
  const shard_word* words;
  std::uint32_t n, plan;
  bool norms;     ///< else only skips: the norms are those of the whole already
  float largest;  ///< norm of the mean; 0: not clipped

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
      if (now->odd_rank != 0) continue;
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
  /// Collective over the shards: 1 all_gather of 8 bytes. Throws rank_mismatch on all where those
  /// of a stage have other numbers of parts.
  [[gnu::cold]] shards(wire w, B& backend, const shard_of_layers& mine)
      : wire_(std::move(w)),
        own_(backend.template make_buffer<shard_word>(1)),
        all_(backend.template make_buffer<shard_word>(static_cast<std::size_t>(wire_->size()))),
        terms_(static_cast<std::size_t>(wire_->size())),
        mine_(mine) {
    std::vector<shard_of_layers> told(terms_.size(), mine);
    if (!empty()) wire_->host_all_gather(&mine, told.data(), sizeof mine);
    for (std::size_t r = 0; r < told.size(); ++r) {
      most_ = told[r].n > most_ ? told[r].n : most_;
      for (std::size_t k = 0; k < r; ++k) {
        if (told[k].stage == told[r].stage && told[k].n != told[r].n) refuse(told, k, r);
      }
    }
    if (empty() || most_ == 0) return;
    own_layers_ = backend.template make_buffer<layer_sums>(most_);
    all_layers_ = backend.template make_buffer<layer_sums>(most_ * told.size());
  }

  [[nodiscard]] bool empty() const { return !wire_ || wire_->size() < 2; }
  /// Whether a shard has parts of layers: then all tell of theirs.
  [[nodiscard]] bool have_layers() const { return all_layers_.size() > 0; }
  [[nodiscard]] own_layers own_parts() { return {own_layers_.data(), mine_.stage}; }
  [[nodiscard]] whole_layers layers() const {
    if (!have_layers()) return {};
    return {all_layers_.data(), static_cast<std::uint32_t>(wire_->size()), most_, mine_.stage};
  }
  /// Collective over the shards: 1 all_gather of 24 bytes for each part of the rank with most.
  [[gnu::cold]] void tell_layers() {
    wire_->all_gather(own_layers_.data(), all_layers_.data(), own_layers_.bytes());
  }
  /// Collective over the shards, if there are any: 1 all_gather of 20 bytes. All learn who skips;
  /// with `norms`, once in a step, also the norms of the whole. Shards that have found in this step
  /// that they do other things meet no more in it: one may have less to meet for. (What runs behind
  /// the host does not know yet.)
  [[gnu::cold]] void meet(B& backend, step_scalars* now, std::uint32_t plan, bool norms,
                          double largest_norm) {
    if (empty() || parted_) return;
    backend.launch(1, tell_shards_kernel{now, own_.data(), plan});
    wire_->all_gather(own_.data(), all_.data(), sizeof(shard_word));
    backend.launch(
        1, hear_shards_kernel{now, all_.data(), static_cast<std::uint32_t>(wire_->size()), plan,
                              norms, static_cast<float>(largest_norm)});
    if (const shard_word* const words = host_view<B>(all_.data())) {
      // all hear the same words: all find it, or none
      for (std::size_t r = 1; r < terms_.size(); ++r) {
        parted_ = parted_ || words[r].number != words[0].number || words[r].plan != words[0].plan;
      }
    }
  }

  /// After a step: the sum over the shards, the same bits on all. Collective over them: 1
  /// all_gather of 8 bytes. What goes wrong is thrown by `begin_step`: this step was done.
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

  /// Before anything of the next step, of a rank with n parts: others that wait for this rank then
  /// name it, and not one that waits in its turn.
  void begin_step(std::uint32_t n) {
    parted_ = false;
    if (lost_) std::rethrow_exception(std::exchange(lost_, nullptr));
    if (empty() || n == mine_.n) return;
    throw invalid_input(detail::message("optimizer: it has ", n, " tensor_parallel tensors, and ",
                                        mine_.n, " when it joined the shards; call join_shards ",
                                        "again, on all of them", wire_->where()));
  }

  void wait() {
    if (!empty()) wire_->wait();
  }

 private:
  [[noreturn, gnu::cold]] void refuse(const std::vector<shard_of_layers>& told, std::size_t a,
                                      std::size_t b) const {
    throw rank_mismatch(detail::message(
        "join_shards: rank ", a, " has ", told[a].n, " tensor_parallel tensors, rank ", b, " has ",
        told[b].n, ", of stage ", told[a].stage,
        "; the shards of a layer are in the same places of ",
        "optimizers with the same rule (ranks of other pipeline stages give another stage)",
        wire_->where()));
  }

  std::optional<wire> wire_;
  buffer_of<B, shard_word> own_, all_;
  std::vector<double> terms_;  ///< of `sum`, by rank
  std::exception_ptr lost_;
  bool parted_ = false;  ///< in this step
  shard_of_layers mine_;
  std::uint32_t most_ = 0;  ///< parts that a shard has
  buffer_of<B, layer_sums> own_layers_, all_layers_;
};

/// How many of an engine's tensors are parts of layers to its rule.
template <class E>
[[nodiscard]] std::uint32_t n_parts_of_layers(const E& e) {
  return LayerRule<decltype(E::rule)> ? e.tensors.n_shards : 0;
}

/// As optimizer::join_shards, which says more. Collective over them.
template <class E>
[[gnu::cold]] void join(E& e, wire others, std::int32_t stage) {
  const shard_of_layers mine{n_parts_of_layers(e), stage};
  e.others = shards<typename E::backend_type>(std::move(others), e.backend(), mine);
  ++e.generation;
}

/// Before a step: memory for `look_at_layers`, on the axis of its exchange or its average.
template <class E>
[[gnu::cold]] void prepare_look(E& e, const step_plan& plan) {
  if constexpr (LayerRule<decltype(E::rule)>) {
    if (e.others.have_layers() && (plan.exchange || plan.average_gradient))
      e.rule.prepare_sums((plan.exchange ? e.at(e.mask()) : e.at_average()).n_tiles());
  }
}

/// The norms of layers that are cut become known to all shards: after the last moment at which the
/// step may still be called off elsewhere, and before its first change, so that a transport that
/// fails here leaves the bits of before. `fields`: the mean gradient, or what was heard and agreed.
/// Collective over the shards, if there are any and one has parts: 1 all_gather, and 2 launches
/// where the rule asks for norms; nothing on hosts in a step that all have called off.
template <class E, class At, class... Fields>
[[gnu::cold]] void look_at_layers(E& e, const At& at, const Fields&... fields) {
  if (!e.others.have_layers()) return;
  const step_scalars* const now = host_view<typename E::backend_type>(e.now());
  if (now != nullptr && now->skip != 0) return;
  if constexpr (LayerRule<decltype(E::rule)>) e.rule.look(at, e.others.own_parts(), fields...);
  e.others.tell_layers();
}

/// ||v||_1 of the whole model, corrected as v is, after a step. Collective over the shards.
template <class E>
[[nodiscard]] double variance_norm_of_all(E& e) {
  step_scalars now;
  e.backend().copy_out(&now, e.now(), 1);
  return e.others.sum(e.rule.variance_norm(e.at_average()) *
                      static_cast<double>(detail::correction(now.bias.v)));
}

}  // namespace onebit::inline v0_1
