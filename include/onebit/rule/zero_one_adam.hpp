// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <onebit/concepts/backend.hpp>
#include <onebit/concepts/moments.hpp>
#include <onebit/concepts/plan.hpp>
#include <onebit/concepts/rule.hpp>
#include <onebit/concepts/stand_ins.hpp>
#include <onebit/core/config.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/kernel/context.hpp>
#include <onebit/kernel/moments.hpp>
#include <onebit/kernel/param_group.hpp>
#include <onebit/kernel/scalars.hpp>
#include <onebit/rule/moments.hpp>
#include <onebit/rule/own_variance.hpp>
#include <onebit/rule/refreshing.hpp>
#include <optional>
#include <utility>
#include <vector>

/// The rule of 0/1 Adam: local Adam steps from an anchor, and exchanges of their sum.
namespace onebit { inline namespace v0_3 {

namespace detail {

/// Adds this step's learning rate to the sums of the tensors that do not rest, or zeroes all sums.
template <class P, class G>
struct sum_lr_kernel {
  static constexpr bool serial = true;
  double* sums;
  const tensor_entry<P, G>* tensors;
  const step_scalars* now;
  bool restart;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const float lr = tensors[i].rests ? 0.0F : now->given.lr;
    L::store_scalar(sums + i, restart ? 0.0 : sums[i] + static_cast<double>(lr));
  }
};

/// Writes, by tensor, the sum of learning rates since the last exchange, this step's included.
template <class P, class G>
struct bound_factor_kernel {
  static constexpr bool serial = true;
  const double* sums;
  const tensor_entry<P, G>* tensors;
  float lr;
  float* factors;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const double sum = sums[i] + static_cast<double>(tensors[i].rests ? 0.0F : lr);
    L::store_scalar(factors + i, static_cast<float>(sum));
  }
};

/// Message base + lr c (beta1 m + (1 - beta1) g), c the bias correction of m: adds a step to the
/// sum that is exchanged. With a v of the rank's own m and g are directions.
template <class P, class G>
struct zero_one_message {
  const float* momentum;
  const tensor_entry<P, G>* tensors;
  const tensor_scalars* scalars;
  const step_scalars* now;
  direction_units units;

  template <class L>
  struct reader {
    const float* momentum;
    gradients_of<L, G> gradient;
    moments_constants c;
    float rate;
    direction_units::reader<L> in_units;
    bool kept = false;  ///< as in momentum_message
    ONEBIT_HD typename L::value operator()(std::uint32_t k, const typename L::value& base) const {
      const auto g = in_units(k, kept ? gradient.load_kept(k) : gradient.load(k));
      return L::fma(L::set(rate), c.template next_momentum<L>(L::load(momentum + 32 * k), g), base);
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t) const {
    const tensor_entry<P, G>& tensor = tensors[t.tensor];
    const tensor_scalars& moments = scalars[t.tensor];
    return {momentum + t.word * 32, gradients_of<L, G>(tensor, t, now), moments.c,
            tensor.rests ? 0.0F : now->given.lr * moments.m_correction, units.at<L>(t, moments)};
  }
};

// Where a tensor has made no local step since the exchange, what the trainer writes into its
// parameters counts. After a local step it would be lost: the ranks' parameters differ, and the
// next exchange replaces them. So local steps leave a digest of the parameters, by tile and lane,
// which the next step compares.

/// Memory of the checks for parameters that the trainer has written after a local step.
struct written_parameters {
  float* digests = nullptr;          ///< 32 by tile
  std::uint32_t* tensors = nullptr;  ///< 1: the trainer has written to the tensor; the last: to any

  /// Compares the digest of tile i with the one that the last local step left.
  template <class L>
  ONEBIT_HD void compare(std::size_t i, const tile& t, std::uint32_t n_tensors,
                         const typename L::value& found) const {
    if (L::same_bits(found, L::load(digests + 32 * i))) return;
    L::raise(tensors + t.tensor);
    L::raise(tensors + n_tensors);
  }
};

/// Adds the parameters of one or more words to the digest of their tile.
template <class L>
ONEBIT_HD void add_to_digest(typename one_word<L>::value& digest, const typename L::value& x) {
  for (unsigned j = 0; j < L::words; ++j) digest = one_word<L>::digest(digest, word_of<L>(x, j));
}

/// Compares all parameters with what local steps have left there. If `renews`, stores their digests
/// and forgets what was found.
template <class P, class G>
struct compare_written_kernel {
  step_tables<P, G> tables;
  written_parameters written;
  std::uint32_t n_tensors;
  const double* lr_before;
  bool renews;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tables.tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    using word_lanes = one_word<L>;
    const tile t = tile_at(i);
    if (!renews && !(lr_before[t.tensor] > 0)) return;  // has not moved: what is there counts
    const parameters_of<L, P> params(tables.tensors[t.tensor], t);
    auto found = word_lanes::set(0.0F);
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      add_to_digest<L>(found, params.load(k));
    }
    if (!renews) return written.compare<word_lanes>(i, t, n_tensors, found);
    word_lanes::store(written.digests + 32 * i, found);
  }
};

/// Calls an exchange off if the trainer has written to a tensor after a local step: on this rank by
/// `skip`, on the others by the status of the messages.
struct refuse_written_kernel {
  static constexpr bool serial = true;
  step_scalars* now;
  const std::uint32_t* tensors;
  std::uint32_t n_tensors;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {
    if (tensors[n_tensors] == 0) return;
    std::uint32_t t = 0;
    while (t + 1 < n_tensors && tensors[t] == 0) ++t;
    L::store_scalar(&now->verdict.written, t + 1);
    L::store_scalar(&now->given.digest, now->given.digest ^ mixed(~t));
    L::store_scalar(&now->verdict.nonfinite, std::uint32_t{1});
    L::store_scalar(&now->verdict.skip, std::uint32_t{1});
  }
};

/// Adam step of one rank: updates x and m from a gradient. The first local step after an exchange
/// takes the anchor. Without `Local` the step is dense, and keeps neither anchor nor digests.
template <class Field, class P, class G, bool Local>
struct zero_one_step_kernel {
  Field gradient;
  step_tables<P, G> tables;
  float* m;
  const float* v;         ///< null if the rank has its own: m then is a direction
  direction_units units;  ///< of this rank's own v, if it has one
  float most;             ///< bound of directions: direction_options::max_step
  float* anchor;
  const double* lr_before;  ///< by tensor: sum of lr since the last exchange, without this step's
  written_parameters written;
  std::uint32_t n_tensors;

  // With parameters of 2 bytes several words at once need more registers than a device has.
  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const
      requires(!Local || std::same_as<P, float>) {
    return tables.tiles[i];
  }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile t = tables.tiles[i];
    const tensor_entry<P, G>& tensor = tables.tensors[t.tensor];
    const parameters_of<L, P> params(tensor, t, tables.now);
    const auto gradient_at = gradient.template at<L>(t, i);
    const float rate = tensor.rate(tables.now);
    const tensor_scalars moments = tables.scalars[t.tensor];
    const auto in_units = units.at<L>(t, moments);
    using word_lanes = one_word<L>;
    [[maybe_unused]] auto found = word_lanes::set(0.0F), left = word_lanes::set(0.0F);
    const bool starts = Local && !(lr_before[t.tensor] > 0);
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      const std::size_t word = t.word + k;
      float* const m_word = m + word * 32;
      const auto g = gradient_at(k), m_old = L::load(m_word);
      auto g_in_units = g;  // in dense steps v does not follow yet
      if constexpr (Local) g_in_units = in_units(k, g);
      auto m_new = tables.active.template keep<L>(
          word, moments.c.template next_momentum<L>(m_old, g_in_units));
      auto direction = L::mul(m_new, L::set(moments.m_correction));
      if (v != nullptr) {
        const auto v_k = L::load(v + word * 32);
        m_new = L::keep(L::positive(v_k), m_new);
        const auto m_corrected = L::mul(m_new, L::set(moments.m_correction));
        direction =
            L::div(m_corrected, moments.c.template denominator<L>(v_k, moments.v_correction));
      }
      if constexpr (Local) add_to_digest<L>(found, params.load(k));
      if (starts) L::store(anchor + word * 32, params.exact(k, anchor + word * 32));
      L::store(m_word, m_new);
      params.move(k, rate, tensor.weight_decay, L::bound(direction, most));
      if constexpr (Local) add_to_digest<L>(left, params.load(k));
    }
    if constexpr (Local) {
      if (!starts) written.compare<word_lanes>(i, t, n_tensors, found);
      word_lanes::store(written.digests + 32 * i, left);
    }
  }
};

/// Takes the gradients of a local step into this rank's squares. Apart from the step: a
/// device has too few registers for both.
template <class P, class G>
struct take_squares_kernel {
  step_tables<P, G> tables;
  direction_units units;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tables.tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile t = tile_at(i);
    const gradients_of<L, G> gradient(tables.tensors[t.tensor], t, tables.now);
    const auto in_units = units.at<L>(t, tables.scalars[t.tensor]);
    const std::uint32_t key = key_of_squares(tables.now) + static_cast<std::uint32_t>(t.word);
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      in_units.take_in(k, gradient.load_kept(k), key);
    }
  }
};

/// Takes the anchor and the digests if this rank leaves its gradient out of a local step.
template <class P, class G>
struct start_without_step_kernel {
  step_tables<P, G> tables;
  float* anchor;
  const double* lr_before;
  written_parameters written;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tables.tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    using word_lanes = one_word<L>;
    const tile t = tile_at(i);
    if (tables.now->verdict.skip == 0 || lr_before[t.tensor] > 0) return;
    const parameters_of<L, P> params(tables.tensors[t.tensor], t);
    auto left = word_lanes::set(0.0F);
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      float* const place = anchor + (t.word + k) * 32;
      L::store(place, params.exact(k, place));
      add_to_digest<L>(left, params.load(k));
    }
    word_lanes::store(written.digests + 32 * i, left);
  }
};

/// Updates x, anchor and m from the mean sum of lr c m since the last exchange. A tensor that has
/// rested since then (the rates sum to 0) stays; values received for the tensor are dropped.
template <class View, class P, class G>
struct zero_one_exchange_kernel {
  View latest;
  step_tables<P, G> tables;
  float *m, *anchor;
  const float* v;           ///< null if ranks have their own, and directions are summed
  bool takes_squares;       ///< into this rank's own v
  direction_units units;    ///< of that v
  growth_sums growth;       ///< of that v
  const double* lr_before;  ///< by tensor: sum of lr since the last exchange, without this step's

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tables.tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile t = tile_at(i);
    const tensor_entry<P, G>& tensor = tables.tensors[t.tensor];
    const auto u_at = latest.template at<L>(t, i);
    const parameters_of<L, P> params(tensor, t);
    const tensor_scalars moments = tables.scalars[t.tensor];
    if (takes_squares) take_squares_in<L>(units, growth, i, t, tables);
    const double sum =
        lr_before[t.tensor] + static_cast<double>(tensor.rests ? 0.0F : tables.now->given.lr);
    if (!(sum > 0)) return;
    // m = mean of the corrected momenta, over this step's correction
    const auto inverse_sum =
        L::set(static_cast<float>(1 / (sum * static_cast<double>(moments.m_correction))));
    const float decay = static_cast<float>(sum) * tensor.weight_decay;
    const auto step = L::set(-tensor.lr_factor);
    const bool moved = lr_before[t.tensor] > 0;  // by local steps
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      const std::size_t word = t.word + k;
      const auto sum_k = u_at(k);
      const auto from = moved ? L::load(anchor + word * 32) : params.exact(k, anchor + word * 32);
      auto sum_m = sum_k, u = sum_k;
      if (v != nullptr) {  // without variance an element does not move
        const auto v_k = L::load(v + word * 32);
        sum_m = L::keep(L::positive(v_k), sum_k);
        u = L::div(sum_m, moments.c.template denominator<L>(v_k, moments.v_correction));
      }
      L::store(m + word * 32, L::mul(sum_m, inverse_sum));
      const auto by = decay == 0 ? u : L::fma(L::set(decay), from, u);
      const auto x = tensor.lr_factor == 0 ? from : L::fma(step, by, from);
      L::store(anchor + word * 32, x);
      params.store(k, x);
    }
  }
};

}  // namespace detail

/// 0/1 Adam. Between exchanges each rank takes its own Adam steps. The compensated buffer sums
/// them:
///
///     u = residual + sum of lr c m        c: bias correction of m
///
/// An exchange averages the ranks' u. All ranks get equal bits, since the anchor holds the
/// parameters before the local steps.
///
///     each rank has a v of its own (the default):
///                                  x = anchor - u
///     v is equal on all ranks:     x = anchor - u / (sqrt(v c_v) + eps)
///     in both:                     m = u / (c sum of lr)
///
/// If v_r is a rank's own v, m is of directions, g / (sqrt(v_r c_v) + eps). Elements without
/// variance do not move: directions are carried until they have one; momenta are sent. Decoupled
/// weight decay acts on the anchor, with the summed learning rate. A group's lr_factor is not part
/// of u: it scales only the steps of x.
///
/// State: m and anchor, 8 bytes per element (the exchange holds u); v, 4 more: in floats, or as v
/// and the rank's squares in bf16. Source: 0/1 Adam (arXiv 2202.06009), algorithm 1, with the
/// updated m in its middle lines (the printed old m would exclude the gradient if every step
/// exchanges); eps outside the root.
template <Backend B>
class zero_one_rule : public refreshing_rule<B, adam_options> {
  using base = refreshing_rule<B, adam_options>;
  using base::backend_, base::frozen_, base::m_, base::n_floats, base::options_, base::v_;

 public:
  static constexpr bool local_steps = true, accumulates = true;

  zero_one_rule(adam_options options, B backend, direction_options directions = {})
      : base(options, std::move(backend), directions) {
    validate(options);
  }
  void prepare(const layout& axis) {
    base::prepare(axis);
    anchor_ = base::make_floats();
    const std::size_t n = axis.tensor_tiles().size();
    lr_sum_ = backend_.template make_buffer<double>(n);
    written_tensors_ = backend_.template make_buffer<std::uint32_t>(n + 1);
    bound_factors_ = backend_.template make_buffer<float>(n);
  }
  /// As in refreshing_rule; makes room for the digests of tiles.
  void prepare_refreshes(const layout& axis, int n_ranks) {
    base::prepare_refreshes(axis, n_ranks);
    digests_ = backend_.template make_buffer<float>(32 * axis.tiles().size());
  }
  /// As in refreshing_rule, times the sum of learning rates, since messages are sums of steps.
  [[nodiscard]] scale_bound bound() const { return {base::bound().most, bound_factors_.data()}; }
  /// With a v of each rank's own, the steps up to the first one without an average are dense; that
  /// one freezes v, and later averages are refreshes. Else averages are of gradients, beside an
  /// exchange or a local step, as in the paper. While the learning rates sum to 0 nothing has
  /// moved, and an exchange that is due is a local step.
  [[nodiscard]] step_plan plan(const due& now, std::uint64_t, float lr) const {
    const bool refreshes_v = base::own_variance();
    step_plan made{.dense_steps_ended = refreshes_v && !now.average,
                   .next_needs_outcome = now.next_needs_outcome,
                   .frees_averages = now.frees_averages};
    if (refreshes_v && !frozen_ && now.average) return made;  // dense
    const bool moves = moved_ || lr > 0;
    made.update = now.exchange && moves ? update_from::exchange : update_from::own_gradient;
    made.average = !now.average             ? averages::nothing
                   : refreshes_v && frozen_ ? averages::squares
                                            : averages::gradients;
    return made;
  }
  /// Throws invalid_input if the first step does not average gradients.
  template <class P, class G>
  void begin_step(const step_plan& plan, float lr, std::uint64_t step,
                  const step_context<B, P, G>& at) {
    base::begin_step(plan, lr, step, at);
    if (!started_ && plan.average != averages::gradients) {
      throw invalid_input(detail::error_text("zero_one_adam: step ", step,
                                             " needs v, which no step has computed yet; "
                                             "the schedule's first step must average gradients"));
    }
    if (plan.update == update_from::exchange) {
      backend_.launch(lr_sum_.size(), detail::bound_factor_kernel<P, G>{lr_sum_.data(), at.tensors,
                                                                        lr, bound_factors_.data()});
    }
  }
  /// True until a step is kept: after a skipped first step, the next one is the first again.
  [[nodiscard]] bool needs_outcome() const { return !started_; }

  /// Ends the dense steps, if ranks get a v of their own, in the first step that does not average
  /// gradients: each rank has a v of its own from then on.
  template <class P, class G>
  [[nodiscard]] initial_momentum<buffer_of<B, float>> freeze(std::uint32_t* active,
                                                             const step_context<B, P, G>& at) {
    auto own = base::make_own();
    backend_.launch(at.n_tiles(), detail::freeze_kernel{at.tiles, at.scalars, m_.data(), v_.data(),
                                                        nullptr, active, true});
    base::start_own(std::move(own), at);
    frozen_ = true;
    return {};
  }
  /// Allocates what `resume` needs.
  void prepare_resume() {
    if (base::has_own_variance()) room_ = base::make_floats();
  }
  /// Restarts exchanges after steps of one rank alone, from the current parameters.
  template <class View, class P, class G>
  void resume(const View&, const step_context<B, P, G>& at) {
    if (base::has_own_variance()) base::end_own(std::move(room_), at);
    at.backend.launch(lr_sum_.size(), sum_of_rates(at, true));
    moved_ = false;
    if (!frozen_) return;
    at.backend.launch(
        at.n_tiles(),
        detail::thaw_kernel<flat_field>{
            {m_.data()}, at.tiles, at.active, m_.data(), v_.data(), nullptr, at.scalars, true});
    frozen_ = false;
  }
  /// Updates v from the mean gradient. One pass, 12 bytes per element.
  template <class View, class P, class G>
  void update_variance(const View& gradient, const step_context<B, P, G>& at) {
    at.launch(detail::variance_kernel<View>{gradient, at.tiles, v_.data(), at.scalars});
  }
  /// Takes a whole Adam step from the mean gradient, in a dense step or with one rank.
  template <class View, class P, class G>
  void dense_update(const View& gradient, const step_context<B, P, G>& at) {
    update_variance(gradient, at);
    step<false>(gradient, at, detail::bound_of(0));
  }
  /// Returns the message that adds a step to the sum that is exchanged.
  template <class View, class P, class G>
  [[nodiscard]] detail::zero_one_message<P, G> message(const View&,
                                                       const step_context<B, P, G>& at) const {
    return {m_.data(), at.tensors, at.scalars, at.now, base::units()};
  }
  /// Updates x and m from the local gradient. Passes: 24 bytes per element, 32 with a v of its own.
  /// In a step without communication the learning rate counts on every rank, even if the rank
  /// leaves its gradient out, since other ranks do not learn of it.
  template <class P, class G>
  void local_step(const step_plan& plan, const step_context<B, P, G>& at) {
    step<true>(base::gradient(at), at, detail::bound_of(base::directions_.max_step));
    if (base::update_takes_squares())
      at.launch(detail::take_squares_kernel<P, G>{at, base::units()});
    const auto add = sum_of_rates(at, false);
    if (plan.sends_nothing()) {
      at.backend.launch(at.n_tiles(), detail::start_without_step_kernel<P, G>{
                                          at, anchor_.data(), lr_sum_.data(), written_memory()});
      at.backend.launch(lr_sum_.size(), add);
    } else {
      at.launch(lr_sum_.size(), add);
    }
  }
  /// Updates x, anchor and m from the mean sum. One pass, 20 bytes per element, 26 with a v of its
  /// own.
  template <class View, class P, class G, class Update>
  void compressed_update(const View& latest, const View&, const step_context<B, P, G>& at,
                         const Update& update) {
    update(detail::zero_one_exchange_kernel<View, P, G>{
        latest, at, m_.data(), anchor_.data(), shared(), base::update_takes_squares(),
        base::units(), base::growth_sums(at), lr_sum_.data()});
    base::note_growth(at);
    at.launch(lr_sum_.size(), sum_of_rates(at, true));
  }
  void done(const step_plan& plan, float lr) {
    started_ = true;
    moved_ = plan.update == update_from::own_gradient && (moved_ || lr > 0);
  }

  /// As in refreshing_rule, with the momentum of the last exchange.
  template <class View, class At>
  void write_moments(const View&, const At& at, float* m, float* v) {
    base::write_moments(flat_field{m_.data()}, at, m, v);
  }

  /// Before an exchange: calls it off if the trainer has written to parameters after a local step,
  /// which the exchange would lose. A pass over the parameters if local steps came before.
  template <class P, class G>
  void refuse_written(const step_context<B, P, G>& at, step_scalars* now) {
    if (moved_ || B::deferred) compare_written(at, false);
    backend_.launch(1, detail::refuse_written_kernel{now, written_tensors_.data(), n_tensors()});
  }
  /// Returns the first tensor to which the trainer has written after a local step, or nothing.
  template <class P, class G>
  [[nodiscard]] std::optional<std::size_t> written(const step_context<B, P, G>& at) {
    if (moved_ || B::deferred) compare_written(at, false);
    std::vector<std::uint32_t> found(written_tensors_.size());
    backend_.copy_out(found.data(), written_tensors_.data(), found.size());
    if (found.back() == 0) return std::nullopt;
    return std::find(found.begin(), found.end(), 1U) - found.begin();
  }
  /// Takes the parameters as they are for those of the last local step: after a load.
  template <class P, class G>
  void take_as_written(const step_context<B, P, G>& at) {
    const detail::copy_kernel clear{nullptr, written_tensors_.data(), written_tensors_.size()};
    backend_.launch(clear.launches(), clear);
    compare_written(at, true);
  }

  /// True after local steps that no exchange has ended. Waits. On a deferred backend the host does
  /// not know it: the last exchange may have been skipped.
  [[nodiscard]] bool between_exchanges() {
    std::vector<double> sums(lr_sum_.size());
    backend_.copy_out(sums.data(), lr_sum_.data(), sums.size());
    return std::any_of(sums.begin(), sums.end(), [](double sum) { return sum > 0; });
  }
  [[nodiscard]] bool moved() const { return moved_; }  // by local steps since the last exchange
  [[nodiscard]] std::size_t state_bytes() const {
    return m_.bytes() + v_.bytes() + base::own_.bytes() + anchor_.bytes() + lr_sum_.bytes() +
           base::rho_.bytes() + base::growth_.bytes();
  }

  template <class Archive>
  void archive(Archive& a) {
    a.scalar(started_);
    a.scalar(moved_);
    a.scalar(frozen_);
    base::archive_form(a, true);
    a.buffer(lr_sum_, backend_);
    const std::size_t n = n_floats();
    a.buffer(m_, backend_, n);
    base::archive_variance(a);
    a.buffer(anchor_, backend_, n);
  }

 private:
  template <class P, class G>
  void compare_written(const step_context<B, P, G>& at, bool renews) {
    backend_.launch(at.n_tiles(), detail::compare_written_kernel<P, G>{
                                      at, written_memory(), n_tensors(), lr_sum_.data(), renews});
  }
  [[nodiscard]] detail::written_parameters written_memory() {
    return {digests_.data(), written_tensors_.data()};
  }
  [[nodiscard]] std::uint32_t n_tensors() const {
    return static_cast<std::uint32_t>(lr_sum_.size());
  }
  template <class P, class G>
  [[nodiscard]] detail::sum_lr_kernel<P, G> sum_of_rates(const step_context<B, P, G>& at,
                                                         bool restart) {
    return {lr_sum_.data(), at.tensors, at.now, restart};
  }
  template <bool Local, class Field, class P, class G>
  void step(const Field& gradient, const step_context<B, P, G>& at, float most) {
    at.launch(detail::zero_one_step_kernel<Field, P, G, Local>{
        gradient, at, m_.data(), shared(), base::units(), most, anchor_.data(), lr_sum_.data(),
        written_memory(), n_tensors()});
  }
  /// v, if all ranks have the same, else null.
  [[nodiscard]] const float* shared() const {
    return base::has_own_variance() ? nullptr : v_.data();
  }

  buffer_of<B, float> anchor_;
  buffer_of<B, float> room_;           ///< for v in floats, between prepare_resume and resume
  buffer_of<B, double> lr_sum_;        ///< by tensor: learning rates since the last exchange
  buffer_of<B, float> bound_factors_;  ///< lr_sum_ with this step's, in steps that exchange
  buffer_of<B, float> digests_;        ///< of the parameters that local steps left: 32 by tile
  buffer_of<B, std::uint32_t> written_tensors_;  ///< see detail::written_parameters
  bool moved_ = false;  ///< true if the learning rates since the exchange are not 0
  bool started_ = false;
};

static_assert(ResumingRule<zero_one_rule<detail::any_backend>> &&
              LocalRule<zero_one_rule<detail::any_backend>>);

}}  // namespace onebit
