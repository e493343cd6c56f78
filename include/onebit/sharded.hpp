// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <istream>
#include <memory>
#include <onebit/algorithms.hpp>
#include <onebit/other_owners.hpp>
#include <onebit/sharded_parts.hpp>
#include <onebit/vocabulary.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/// Optimizer state shared out among the ranks.
namespace onebit::inline v0_1 {

/// An optimizer each rank of which holds moments (and masters) of a W-th of the parameters: ZeRO's
/// first stage. Each rank gets the mean gradient of the part that it owns, makes the step there
/// with an ordinary optimizer of its own, and all take the new parameters over.
///
/// Built collectively by all ranks over the same tensors and options, with equal parameters, as an
/// optimizer; which one makes the steps is O's business, as long as it works element by element:
/// `sharded_adam` and `sharded_lion` make the usual ones. Steps have the bits of that optimizer
/// unsharded, but where the global norm clips (it is summed by owners), and with sums in bf16 or
/// int8 (of which that one rounds the mean once more). Holds views of the trainer's memory.
/// Movable.
///
/// Cost per step: 2 collectives a bucket and an all_gather of 20 bytes; (W-1)/W 4n bytes sent for
/// the gradients (half in bf16, 33/128 in int8) and (W-1)/W times the parameters' own bytes. State:
/// a W-th of O's; 4/W bytes of masters, or 2/W of their low halves, if asked for; 4/W for the means
/// where gradients cannot hold them. Work space: 4/W bytes, and messages of two buckets. Source:
/// ZeRO (arXiv 1910.02054), section 5.1.
///
/// When the transport fails while parameters are taken over, some ranks have made the step and some
/// have not: this rank's optimizer then throws in every further step and save, until a checkpoint
/// is loaded.
template <class O, class P, class G>
class sharded {
  static_assert(!O::rule_type::by_layer,
                "onebit: this rule needs whole tensors (LAMB's norms of layers), of which a rank "
                "owns parts");
  using B = typename O::rule_type::backend_type;
  using parts = detail::sharded_parts<O, P, G>;

 public:
  using rule_type = typename O::rule_type;             ///< its arithmetic
  using groups_type = std::vector<param_group<P, G>>;  ///< what it trains
  static constexpr bool thaws = false;                 ///< it never freezes
  static constexpr bool takes_moments = false;         ///< it has no start_from
  static constexpr bool resumes = O::resumes;          ///< with other ranks: from checkpoints

  /// Collective. `make(groups, transport, backend)` gives the optimizer of this rank's part, as
  /// tensors of one rank. Throws invalid_input, rank_mismatch.
  template <class T, class Make>
  [[gnu::cold]] sharded(const groups_type& groups, T transport, B backend, const Make& make,
                        const sharding& how = {})
      : parts_(
            std::make_unique<parts>(groups, describe(groups),
                                    detail::wire_of<gather_scatter<identity>>(std::move(transport)),
                                    std::move(backend), make, how)) {}

  /// As optimizer::step. A step that throws while parameters are published leaves ranks apart.
  report step(float lr, float inverse_loss_scale = 1.0F) {
    return step_with([](std::uint64_t, const auto& enqueue) { enqueue(); }, lr, inverse_loss_scale);
  }
  /// The same; what the owner's optimizer does goes through `run`, as optimizer::step_with says.
  report step_with(step_runner run, float lr, float inverse_loss_scale = 1.0F) {
    const detail::standard_arithmetic arithmetic;
    if (!parts_->begun) {
      begin(lr, inverse_loss_scale);
    } else {
      parts_->require(lr, inverse_loss_scale);
    }
    return parts_->run(run);
  }
  /// As optimizer::begin.
  void begin(float lr, float inverse_loss_scale = 1.0F) {
    const detail::standard_arithmetic arithmetic;
    parts_->begin(lr, inverse_loss_scale);
  }
  /// As optimizer::ready: buckets whose gradients are all known start to travel.
  void ready(std::size_t tensor) {
    const detail::standard_arithmetic arithmetic;
    parts_->ready(tensor);
  }
  /// As optimizer::settle.
  outcome settle() { return parts_->settle(); }
  /// @{
  /// As optimizer's; norms are of the whole.
  [[nodiscard]] std::optional<float> gradient_norm() { return parts_->inner.gradient_norm(); }
  [[nodiscard]] std::uint64_t n_skipped() { return parts_->inner.n_skipped(); }
  void set_group(std::size_t group, const group_options& options) {
    parts_->set_group(group, options);
  }
  void set_group(std::size_t group, float lr_factor, float weight_decay) {
    parts_->set_group(group, lr_factor, weight_decay);
  }
  void rest(std::size_t tensor) {
    parts_->between_steps().tensors.rest(tensor, parts_->comm.where());
  }
  std::size_t rebind(const groups_type& groups) { return parts_->rebind(groups); }
  void warn_with(void (*f)(const std::string& text)) { parts_->inner.warn_with(f); }
  /// @}
  /// As optimizer::check_messages, of gradients; parameters that are damaged on their way to a rank
  /// are found by verify_every.
  void check_messages(checked which) { parts_->between_steps().check_slots(which); }
  /// As optimizer::verify_every, but before a step, and of parameters alone: after it all have what
  /// the owners say.
  void verify_every(std::uint64_t steps) { parts_->verify_every = steps; }
  /// As optimizer::join_shards; `transport` joins all ranks that hold a part of this replica: those
  /// of this optimizer and of the other shards' alike. Throws invalid_input for fewer.
  template <class T>
  [[gnu::cold]] void join_shards(T transport, int stage = 0) {
    parts_->join_shards(detail::wire_of<gather_scatter<identity>>(std::move(transport)), stage);
  }
  /// Nothing is compressed.
  [[nodiscard]] std::optional<compression_state> inspect() { return std::nullopt; }

  /// Writes what this rank needs to go on: its part's state and masters; not the parameters, of
  /// which each rank has all. Not collective. Throws checkpoint_error.
  void save(std::ostream& out) { parts_->save(out); }
  /// Reads what `n_ranks` ranks of a job saved, into other pieces: moments and masters go to their
  /// owners of now; `open` as in optimizer::load_old_job. Restore the parameters before, of any of
  /// those ranks. Buckets must be the same. Collective: when one rank fails all throw
  /// checkpoint_error, and nothing has changed. Costs reading the files of ranks who owned
  /// something of what this one owns; memory: this rank's state twice, that of an old one three
  /// times.
  template <class Open>
  [[gnu::cold]] void load_old_job(std::size_t n_ranks, const Open& open,
                                  resume_with with = resume_with::same_options) requires resumes {
    const detail::standard_arithmetic arithmetic;
    detail::load_old_owners(*parts_, n_ranks, open, with);
  }
  /// Reads what `save` wrote on this rank of a job with as many; restore the parameters before.
  /// Collective: when one rank fails all throw checkpoint_error, and nothing has changed.
  void load(std::istream& in, resume_with with = resume_with::same_options) {
    const detail::standard_arithmetic arithmetic;
    parts_->load(in, with);
  }

  /// As optimizer::tell_all.
  template <class T>
    requires std::is_trivially_copyable_v<T>
  [[nodiscard]] std::vector<T> tell_all(const T& mine) {
    std::vector<T> all(static_cast<std::size_t>(size()));
    parts_->comm.host_all_gather(&mine, all.data(), sizeof mine);
    return all;
  }
  /// @{
  /// As optimizer's.
  [[nodiscard]] int rank() const { return parts_->comm.rank(); }
  [[nodiscard]] int size() const { return parts_->comm.size(); }
  [[nodiscard]] std::uint64_t steps() const { return parts_->inner.steps(); }
  [[nodiscard]] std::size_t n_parameters() const { return parts_->exchange.axis().n_elements(); }
  [[nodiscard]] std::size_t state_bytes() const { return parts_->state_bytes(); }
  [[nodiscard]] std::size_t work_bytes() const { return parts_->work_bytes(); }
  [[nodiscard]] const std::string& description() const { return parts_->name; }
  /// @}
  /// For inspection: the optimizer of what this rank owns.
  [[nodiscard]] const O& inner() const { return parts_->inner; }
  /// What this rank owns.
  [[nodiscard]] const std::vector<owned_piece>& pieces() const { return parts_->part.pieces; }

 private:
  std::unique_ptr<parts> parts_;  ///< on the heap, where they stay when it moves
};

namespace detail {

template <class P, class G, class T, class B, class Make>
[[nodiscard, gnu::cold]] auto make_sharded(const std::vector<param_group<P, G>>& groups,
                                           T transport, B backend, const Make& make,
                                           const sharding& how) {
  check_policies<T, B>();
  using own = decltype(make(std::declval<const std::vector<param_group<P, float>>&>(), alone{},
                            std::declval<B>()));
  return sharded<own, P, G>(groups, std::move(transport), std::move(backend), make, how);
}

}  // namespace detail

/// Adam with exact averages, its state shared out: see `sharded`. Collective over the transport.
///
/// Cost: that of `sharded`, with 8/W bytes of state per parameter.
template <class P, class G, class T, class B = host>
[[nodiscard, gnu::cold]] auto sharded_adam(const std::vector<param_group<P, G>>& groups,
                                           T transport, adam_options options = {},
                                           const sharding& how = {}, B backend = B{}) {
  return detail::make_sharded(
      groups, std::move(transport), std::move(backend),
      [&](const auto& own, alone t, B b) { return adam(own, t, options, std::move(b)); }, how);
}

/// Lion with exact averages, its state shared out: see `sharded`. Collective over the transport.
///
/// Cost: that of `sharded`, with 4/W bytes of state per parameter, 2/W with `sharded_lion<bf16>`.
template <Element M = float, class P, class G, class T, class B = host>
[[nodiscard, gnu::cold]] auto sharded_lion(const std::vector<param_group<P, G>>& groups,
                                           T transport, lion_options options = {},
                                           const sharding& how = {}, B backend = B{}) {
  return detail::make_sharded(
      groups, std::move(transport), std::move(backend),
      [&](const auto& own, alone t, B b) { return lion<M>(own, t, options, std::move(b)); }, how);
}

}  // namespace onebit::inline v0_1
