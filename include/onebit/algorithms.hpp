// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <onebit/backend/host.hpp>
#include <onebit/collective/dense_average.hpp>
#include <onebit/collective/gather_scatter.hpp>
#include <onebit/compressor/identity.hpp>
#include <onebit/compressor/sign.hpp>
#include <onebit/core/concepts.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/core/param_group.hpp>
#include <onebit/optimizer.hpp>
#include <onebit/rule/adam.hpp>
#include <onebit/rule/lamb.hpp>
#include <onebit/rule/zero_one_adam.hpp>
#include <onebit/schedule/custom.hpp>
#include <onebit/schedule/freeze.hpp>
#include <onebit/schedule/intervals.hpp>
#include <onebit/transport/communicator.hpp>
#include <string>
#include <utility>
#include <vector>

/// The algorithms of the papers, as pairings of rule, schedule and collective. With one rank, or
/// where a hierarchy has one node, all of them are the uncompressed algorithm.
namespace onebit::inline v0_2 {

namespace detail {

/// Checks the policies in words before anything is instantiated with them.
template <class T, class B>
consteval void check_policies() {
  check_transport<T>();
  check_backend<B>();
}

}  // namespace detail

/// @{
/// In words, for names of optimizers: items, joined by commas; those of a group in brackets.
template <class P, class G>
[[nodiscard, gnu::cold]] std::string describe(const std::vector<param_group<P, G>>& groups) {
  std::string text;
  for (const auto& g : groups) {
    text += detail::join(9, {", [", g.tensors.size(), " tensors, lr_factor ", g.lr_factor,
                             ", weight_decay ", g.weight_decay});
    const auto add = [&text](const char* name, const std::optional<double>& x) {
      if (x) text += detail::join(9, {", ", name, " ", *x});
    };
    add("beta1", g.own.beta1);
    add("beta2", g.own.beta2);
    add("eps", g.own.eps);
    if (g.stochastic_rounding) text += ", stochastic_rounding";
    text += g.rests ? ", rests]" : "]";
  }
  return text;
}
[[nodiscard, gnu::cold]] inline std::string describe(const adam_options& o) {
  return describe(", beta1 ", o.beta1, ", beta2 ", o.beta2, ", eps ", o.eps, ", bias_correction ",
                  o.bias_correction, ", max_grad_norm ", o.max_grad_norm, ", max_step ",
                  o.max_step);
}
[[nodiscard, gnu::cold]] inline std::string describe(const lamb_options& o) {
  return describe(", beta1 ", o.beta1, ", beta2 ", o.beta2, ", eps ", o.eps, ", min_coeff ",
                  o.min_coeff, ", max_coeff ", o.max_coeff, ", bias_correction ", o.bias_correction,
                  ", max_grad_norm ", o.max_grad_norm, ", max_step ", o.max_step);
}
[[nodiscard, gnu::cold]] inline std::string describe(const freeze_options& o) {
  return describe(", freeze after ", o.after);
}
[[nodiscard, gnu::cold]] inline std::string describe(const intervals_options& o) {
  return describe(", kappa ", o.kappa, ", warmup_steps ", o.warmup_steps, ", stop_refreshing ",
                  o.stop_refreshing, ", doubling_steps ", o.doubling_steps, ", max_interval ",
                  o.max_interval, ", also_every ", o.also_every);
}
/// @}

/// Options of an algorithm that compresses: its rule's, when it compresses, and how the ranks add
/// up where they average.
struct one_bit_adam_options {
  adam_options adam{};      ///< of each step
  freeze_options freeze{};  ///< when the dense steps end
  /// Then every rank keeps squares of its own gradients, and v follows from their mean now and
  /// then: from a step t of the training to the next such step it is t / refreshes, at least 1, so
  /// that 0.7 times as many come until t has doubled. 0: v is constant from the freeze on, as in
  /// the paper, which wants a warm-up of 15 to 25% of all steps.
  std::uint64_t refreshes = 64;
  dense_sum warm_up_sum = dense_sum::automatic;  ///< how averages travel
};

/// Adam with exact averages: the uncompressed baseline. Collective over the transport.
///
/// Cost per step: 2 (W-1)/W 4n bytes sent; state 8 bytes per parameter; work space: messages of 8
/// buckets of 2^22 elements, and 4 bytes per parameter (2 where averages are in bf16) where
/// gradients are not floats, or only read.
template <class P, class G, class T, class B = host>
[[nodiscard, gnu::cold]] auto adam(const std::vector<param_group<P, G>>& groups, T transport,
                                   adam_options options = {}, B backend = B{},
                                   dense_sum sum = dense_sum::automatic) {
  detail::check_policies<T, B>();
  communicator comm(std::move(transport));
  auto rule =
      detail::collective_try(comm, [&] { return adam_rule<B>(options, std::move(backend)); });
  return optimizer("adam" + describe(options) + describe(groups), groups, comm, std::move(rule),
                   always_dense{}, gather_scatter<identity>{}, sum);
}

/// 1-bit Adam: a few steps of Adam, then the direction is what travels, one bit per parameter, with
/// error feedback (without refreshes the momentum, as in the paper); v follows from squares that
/// each rank keeps of its own gradients (`refreshes`; 0: it stays, as in the paper). Collective
/// over the transport.
///
/// Cost per compressed step: 2 collectives, 2 (W-1)/W n/8 bytes sent plus scales; state 12.25 + 4/W
/// bytes per parameter (8.25 + 4/W without refreshes); in a step that refreshes also 4 more
/// collectives, about 2 (W-1)/W 1.1 n bytes, and 1 + 2/W bytes per parameter of work space and as
/// much for messages, given back where the gaps are long. Gradients are not written. Elements that
/// had no gradient up to the freeze or a refresh are not moved (with one rank nothing freezes);
/// weight decay still acts on them. Source: 1-bit Adam (arXiv 2102.02888), algorithm 1; how v
/// follows is this library's (guide/variance.md), at growing gaps as 0/1 Adam's T_v. `collective`
/// is gather_scatter or all_gather with any compressor, or hierarchical with one that works word by
/// word: sign<l2_scale> unless said otherwise.
template <class P, class G, class T, class B = host, class C = gather_scatter<sign<l2_scale>>>
[[nodiscard, gnu::cold]] auto one_bit_adam(const std::vector<param_group<P, G>>& groups,
                                           T transport, one_bit_adam_options options,
                                           C collective = {}, B backend = B{}) {
  detail::check_policies<T, B>();
  check_split<C, T>();
  communicator comm(std::move(transport));
  auto [rule, schedule] = detail::collective_try(comm, [&] {
    options.adam.keeps_squares = options.refreshes > 0;
    return std::pair(adam_rule<B>(options.adam, std::move(backend)),
                     freeze(options.freeze, options.adam.beta2, options.refreshes,
                            options.adam.bias_correction));
  });
  return optimizer("one_bit_adam" + describe(options.adam) + describe(options.freeze) +
                       describe(", refreshes ", options.refreshes, ", ") + policy_name(collective) +
                       describe(groups),
                   groups, comm, std::move(rule), std::move(schedule), collective,
                   options.warm_up_sum);
}

/// LAMB with exact averages: the uncompressed baseline. Collective over the transport. A layer is a
/// tensor.
template <class P, class G, class T, class B = host>
[[nodiscard, gnu::cold]] auto lamb(const std::vector<param_group<P, G>>& groups, T transport,
                                   lamb_options options = {}, B backend = B{},
                                   dense_sum sum = dense_sum::automatic) {
  detail::check_policies<T, B>();
  communicator comm(std::move(transport));
  auto rule =
      detail::collective_try(comm, [&] { return lamb_rule<B>(options, std::move(backend)); });
  return optimizer("lamb" + describe(options) + describe(groups), groups, comm, std::move(rule),
                   always_dense{}, gather_scatter<identity>{}, sum);
}

/// As one_bit_adam_options.
struct one_bit_lamb_options {
  lamb_options lamb{};           ///< of each step
  freeze_options freeze{};       ///< when the dense steps end
  std::uint64_t refreshes = 64;  ///< when v follows and norms of directions are found; at least 1
  dense_sum warm_up_sum = dense_sum::automatic;  ///< how averages travel
};

/// 1-bit LAMB: a few steps of LAMB, then as one_bit_adam, with LAMB's coefficients from sketches of
/// the direction that the ranks average when they refresh v. Collective over the transport. Throws
/// invalid_input where refreshes is 0.
///
/// Cost: as one_bit_adam, and 64 numbers a tile in a refresh. Source: 1-bit LAMB (arXiv
/// 2104.06069), whose own form (coefficients of the warm-up, times the drift of a second variance)
/// is papers::one_bit_lamb; how v follows, and the sketch, are this library's (guide/variance.md).
template <class P, class G, class T, class B = host, class C = gather_scatter<sign<l2_scale>>>
[[nodiscard, gnu::cold]] auto one_bit_lamb(const std::vector<param_group<P, G>>& groups,
                                           T transport, one_bit_lamb_options options,
                                           C collective = {}, B backend = B{}) {
  detail::check_policies<T, B>();
  check_split<C, T>();
  communicator comm(std::move(transport));
  auto [rule, schedule] = detail::collective_try(comm, [&] {
    if (options.refreshes == 0) {
      throw invalid_input(
          detail::message("one_bit_lamb: refreshes is 0, must be at least 1: norms of directions "
                          "come from refreshes"));
    }
    return std::pair(lamb_rule<B>(options.lamb, std::move(backend)),
                     freeze(options.freeze, options.lamb.beta2, options.refreshes,
                            options.lamb.bias_correction));
  });
  return optimizer("one_bit_lamb" + describe(options.lamb) + describe(options.freeze) +
                       describe(", refreshes ", options.refreshes, ", ") + policy_name(collective) +
                       describe(groups),
                   groups, comm, std::move(rule), std::move(schedule), collective,
                   options.warm_up_sum);
}

/// As one_bit_adam_options, with 0/1 Adam's schedule.
struct zero_one_adam_options {
  adam_options adam{};                           ///< of each step
  intervals_options schedule{};                  ///< when ranks average and exchange
  dense_sum refresh_sum = dense_sum::automatic;  ///< how averages travel
};

/// 0/1 Adam: ever rarer refreshes of v, ever rarer one-bit exchanges, local steps between them.
/// Collective over the transport in the steps that communicate.
///
/// Its first steps, up to the first that does not average, are Adam's; then v follows as that of
/// one_bit_adam (adam_options::keeps_squares).
///
/// After every exchange all ranks hold the same parameters, bit for bit; between two they differ.
/// Cost per exchange: as one_bit_adam; per refresh: twice its bytes and work space, since squares
/// travel in 16 bits; per local step: nothing travels. State 20.25 + 4/W bytes per parameter, 16.25
/// + 4/W without keeps_squares. A non-finite gradient in a step that communicates makes all skip;
/// in a local step, which nobody hears of, the rank that has it leaves it out. Messages are sums of
/// learning rates times directions: rates that jump to and fro by factors from exchange to exchange
/// feed the residuals until they overflow; schedules that change slowly do not. Source: 0/1 Adam
/// (arXiv 2202.06009), algorithm 1.
template <class P, class G, class T, class B = host, class C = gather_scatter<sign<l2_scale>>>
[[nodiscard, gnu::cold]] auto zero_one_adam(const std::vector<param_group<P, G>>& groups,
                                            T transport, zero_one_adam_options options,
                                            C collective = {}, B backend = B{}) {
  detail::check_policies<T, B>();
  check_split<C, T>();
  communicator comm(std::move(transport));
  auto [rule, schedule] = detail::collective_try(comm, [&] {
    return std::pair(
        zero_one_rule<B>(options.adam, std::move(backend)),
        intervals(options.schedule, options.adam.bias_correction || options.adam.keeps_squares
                                        ? 0
                                        : options.adam.beta2));
  });
  return optimizer(
      "zero_one_adam" + describe(options.adam) +
          describe(", keeps_squares ", options.adam.keeps_squares) + describe(options.schedule) +
          ", " + policy_name(collective) + describe(groups),
      groups, comm, std::move(rule), std::move(schedule), collective, options.refresh_sum);
}

}  // namespace onebit::inline v0_2
