// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <istream>
#include <iterator>
#include <onebit/any_optimizer.hpp>
#include <onebit/core/archive.hpp>
#include <onebit/core/config.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/number_text.hpp>
#include <onebit/kernel/param_group.hpp>
#include <onebit/step/report.hpp>
#include <optional>
#include <ostream>
#include <span>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

/// For trainers that update one tensor at a time: collects their tensors, and steps when all are
/// seen.
namespace onebit { inline namespace v0_3 {

/// Properties of the trainer's tensors, for per_tensor.
struct per_tensor_options {
  /// Gradients stay until finish(): non-const floats are used in place, as scratch; others copied.
  bool gradients_stay = false;
  /// Parameters may have new addresses in each step: only the order of see() identifies them, so
  /// that two tensors of one size that change places are not noticed.
  bool memory_moves = false;
  bool unseen_rest = false;  ///< unseen tensors rest (optimizer::rest); not with memory_moves
};

/// Optimizer for trainers that update one tensor at a time, as in `update(dW, W)`, and have no list
/// of their tensors. Call see() instead of each update, and finish(), which steps, after the batch.
///
/// The first finish() builds the optimizer over the tensors seen until then, each in a group of its
/// own. Their order must be equal on all ranks and in all steps. Parameters lie in host memory, and
/// must not move between see() and finish(). Misuse throws invalid_input, on that rank alone.
///
/// Parameters of type double are masters: a step updates their values rounded to float, with the
/// bits of a training in float, and adds the change to the doubles. (If the sum rounds to another
/// float, the double becomes the updated float.) Doubles that a step does not change keep their
/// bits: small changes by the trainer add up. A step's own changes below 2^-25 of a parameter are
/// lost, as in float. (With 0/1 Adam only the values rounded to float agree after an exchange.)
/// Copies take 4 bytes per element. Movable; only assign to or destroy a moved-from object.
class per_tensor {
 public:
  /// The first finish() calls `make(groups, transport)`, which returns an optimizer, for example
  /// [](const auto& groups, auto comm) { return onebit::one_bit_adam(groups, comm, {}); }
  template <class T, class Make>
  per_tensor(T transport, Make make, per_tensor_options options = {})
      : options_(options),
        where_(detail::rank_suffix(transport.rank(), transport.size())),
        make_([=](const groups& g) -> any_optimizer { return make(g, transport); }) {}

  /// Takes float or double parameters and gradients of this rank's own mean loss: contiguous
  /// containers, or views that tell their strides (of Eigen) and leave no gaps. Pass tied weights
  /// once, with summed gradients. `own`: as in set_group, if options change. Ignores empty tensors.
  /// If size or order differ from the first step, throws invalid_input and sees nothing.
  template <class P, class G>
  void see(P&& params, G&& grads, const std::optional<group_options>& own = {}) {
    static_assert(detail::known_contiguous<P> && detail::known_contiguous<G>,
                  "onebit: per_tensor takes contiguous memory, and a type here does not say that "
                  "it is: span it yourself, std::span(x.data(), x.size())");
    for (const std::string& gaps : {detail::gaps_of(params), detail::gaps_of(grads)}) {
      if (!gaps.empty()) refuse("tensor ", next_, " ", gaps, detail::copy_contiguous);
    }
    auto* const x = params.data();
    auto* const g = grads.data();
    constexpr bool is_double = std::is_same_v<decltype(x), double* const>;
    static_assert(is_double || std::is_same_v<decltype(x), float* const>,
                  "onebit: per_tensor takes parameters of float or double that may be written");
    const auto n = static_cast<std::size_t>(params.size());
    if (n != static_cast<std::size_t>(grads.size())) {
      refuse("tensor ", next_, " has ", n, " parameters but ", grads.size(), " gradients");
    }
    if (n == 0) return;
    if (x == nullptr || g == nullptr) {
      refuse("tensor ", next_, " has ", n, x == nullptr ? " parameters" : " gradients",
             " at address 0");
    }
    const std::size_t t = find(x, n);
    if (t == all_.size()) {
      const group_options o = own.value_or(group_options{});
      all_.push_back({nullptr, n, false, o, std::vector<float>(is_double ? n : 0), {}});
      groups_.push_back({{{}}, o.lr_factor, o.weight_decay, o.own, o.rests, o.stochastic_rounding});
    }
    seen_tensor& seen = all_[t];
    if (n != seen.n || is_double == seen.rounded.empty()) {
      refuse("tensor ", t, " has ", n, is_double ? " doubles" : " floats", ", but had ", seen.n,
             seen.rounded.empty() ? " floats" : " doubles", " in the first step");
    }
    if (own && !(*own == seen.options)) {
      optimizer_.set_group(t, *own);
      seen.options = *own;
    }
    tensor<>& told = groups_[t].tensors[0];
    seen.place = x;
    told.params = std::span(seen.rounded);
    if constexpr (!is_double) told.params = std::span(x, n);
    std::span<float> given;
    if constexpr (std::is_same_v<decltype(g), float* const>) given = std::span(g, n);
    if (given.empty() || !options_.gradients_stay) {
      const detail::standard_arithmetic arithmetic;
      seen.grads.resize(n);
      for (std::size_t i = 0; i < n; ++i) seen.grads[i] = static_cast<float>(g[i]);
      given = seen.grads;
    }
    told.grads = given;
    seen.is_seen = true;
    next_ = t + 1;
  }
  /// Forgets the tensors seen in this step; the next see() begins the step anew. Options given
  /// after the first finish() stay. Not collective.
  void discard() {
    next_ = 0;
    for (seen_tensor& x : all_) x.is_seen = false;
    if (optimizer_.has_value()) return;
    all_.clear();
    groups_.clear();
  }
  /// Calls optimizer::step on the tensors seen, then forgets them, also if it throws. Collective.
  /// Throws what step() and, the first time, `make` throw; invalid_input if tensors were not seen.
  report finish(float lr, float inverse_loss_scale = 1.0F) {
    const detail::standard_arithmetic arithmetic;
    const struct forgets {
      per_tensor& all;
      ~forgets() { all.discard(); }
    } at_the_end{*this};
    if (next_ == 0) refuse("finish() without see()");
    if (!current_optimizer().has_value()) {
      // construction needs equal parameters; saved ones may differ (0/1 Adam between exchanges)
      groups start = groups_;
      std::vector<std::vector<float>> zeros;
      for (std::size_t t = 0; t < all_.size() && saved_; ++t) {
        start[t].tensors[0].params = zeros.emplace_back(all_[t].n);
      }
      optimizer_ = make_(start);
      optimizer_.rebind(groups_);
    }
    if (saved_) {
      std::istringstream in(*saved_);
      optimizer_.load(in, with_);
      saved_.reset();
    }
    for (std::size_t t = 0; t < all_.size(); ++t) {
      if (all_[t].is_seen) continue;
      if (!options_.unseen_rest || options_.memory_moves) {
        refuse("finish(): tensor ", t, " of ", all_.size(), " (", all_[t].n, " parameters) is not ",
               "seen; say unseen_rest if it has no gradient on any rank");
      }
      optimizer_.rest(t);
      all_[t].grads.resize(all_[t].n);  // its old memory may be in other use
      groups_[t].tensors[0].grads = all_[t].grads;
    }
    if (options_.unseen_rest) optimizer_.rebind(groups_);
    const report done = optimizer_.step(lr, inverse_loss_scale);
    for (const seen_tensor& x : all_) {  // unchanged doubles keep their bits
      double* const to = static_cast<double*>(x.place);
      for (std::size_t i = 0; i < x.rounded.size(); ++i) {
        const float before = static_cast<float>(to[i]), after = x.rounded[i];
        if (before == after) continue;
        const double sum = to[i] + (static_cast<double>(after) - static_cast<double>(before));
        to[i] = static_cast<float>(sum) == after ? sum : static_cast<double>(after);
      }
    }
    return done;
  }
  /// Returns the optimizer, for its other calls. Its tensor t, alone in group t, was the t-th, from
  /// 0, of the first step. Before the first finish() it is empty: its calls throw invalid_input.
  [[nodiscard]] any_optimizer& optimizer() { return optimizer_; }
  /// Calls optimizer::save, with parameters read where see() last found them: with memory_moves
  /// call it right after finish(), before they move. Invalid before the first finish().
  void save(std::ostream& out) { current_optimizer().save(out); }
  /// Calls optimizer::load; restore this rank's parameters first. Before the first finish(), and
  /// with memory_moves, reads the rest of the stream; the next finish() loads it, or throws.
  void load(std::istream& in, resume_with with = resume_with::same_options) {
    saved_.reset();
    if (!options_.memory_moves && current_optimizer().has_value()) return optimizer_.load(in, with);
    saved_.emplace(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    with_ = with;
  }

 private:
  using groups = std::vector<param_group<>>;
  struct seen_tensor {
    void* place;  ///< address of the trainer's parameters
    std::size_t n;
    bool is_seen;
    group_options options;
    std::vector<float> rounded, grads;  ///< copies; empty if the trainer's memory is used
  };

  template <class... Parts>
  [[noreturn, gnu::cold]] void refuse(const Parts&... parts) const {
    throw invalid_input(detail::error_text("per_tensor: ", parts..., where_));
  }
  /// Returns the index of a tensor, new in the first step. Throws if seen twice or out of order.
  [[nodiscard]] std::size_t find(const void* place, std::size_t n) const {
    const std::size_t size = all_.size();
    std::size_t t = next_;
    if (!(optimizer_.has_value() && options_.memory_moves) &&
        !(t < size && all_[t].place == place)) {
      for (t = 0; t < size && all_[t].place != place;) ++t;
    }
    const bool twice = t < size && all_[t].is_seen;
    const bool in_order = t < size && (t == next_ || (t > next_ && options_.unseen_rest));
    if (!twice && (in_order || !optimizer_.has_value())) return t;
    refuse(
        t < size ? "tensor " + detail::number_text(t) : "a tensor unknown to the first step", " (",
        n, " parameters at address ", reinterpret_cast<std::uintptr_t>(place), ") is seen ",
        twice ? "twice; tied weights are seen once, with the sum of their gradients"
        : t < size
            ? "out of order: see tensors as in the first step; set unseen_rest if some may lack a "
              "gradient (give zeros in the first step)"
            : "out of order: set memory_moves if parameters move between steps",
        "; call finish(lr) after all tensors, of which ", next_, " of ", size, " are seen");
  }
  /// Rounds doubles anew, and rebinds the optimizer to the trainer's current memory.
  any_optimizer& current_optimizer() {
    const detail::standard_arithmetic arithmetic;
    for (seen_tensor& x : all_) {
      const double* const from = static_cast<const double*>(x.place);
      for (std::size_t i = 0; i < x.rounded.size(); ++i) x.rounded[i] = static_cast<float>(from[i]);
    }
    if (optimizer_.has_value()) optimizer_.rebind(groups_);
    return optimizer_;
  }
  per_tensor_options options_;
  std::string where_;  ///< suffix of error messages: this rank
  std::function<any_optimizer(const groups&)> make_;
  std::vector<seen_tensor> all_;
  groups groups_;         ///< one tensor each, where see() found it
  std::size_t next_ = 0;  ///< index of the next tensor to see
  any_optimizer optimizer_;
  std::optional<std::string> saved_;  ///< stream that the next finish() loads
  resume_with with_ = resume_with::same_options;
};

}}  // namespace onebit
