// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <onebit/backend/host.hpp>
#include <onebit/collective/gather_scatter.hpp>
#include <onebit/compress/identity.hpp>
#include <onebit/compress/sign.hpp>
#include <onebit/concepts.hpp>
#include <onebit/layout.hpp>
#include <onebit/optimizer.hpp>
#include <onebit/rule/adam.hpp>
#include <onebit/rule/lamb.hpp>
#include <onebit/rule/zero_one.hpp>
#include <onebit/rule/zero_one_variant.hpp>
#include <onebit/schedule/freeze.hpp>
#include <onebit/schedule/intervals.hpp>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/// The algorithms of the papers, as pairings of rule, schedule and collective.
namespace onebit {

namespace detail {

/// Checks the policies in words before anything is instantiated with them.
template <class T, class B>
consteval void check_policies() {
  check_transport<T>();
  check_backend<B>();
}

/// Options as text: ranks and checkpoints compare it.
template <class... Parts>
[[nodiscard]] std::string describe(const Parts&... parts) {
  std::ostringstream out;
  out.precision(17);
  (out << ... << parts);
  return std::move(out).str();
}

template <class P, class G>
[[nodiscard]] std::string describe_groups(const std::vector<param_group<P, G>>& groups) {
  std::ostringstream out;
  out.precision(9);
  for (const auto& g : groups) {
    out << " [" << g.tensors.size() << " tensors, lr_factor " << g.lr_factor << ", weight_decay "
        << g.weight_decay << "]";
  }
  return std::move(out).str();
}

[[nodiscard]] inline std::string describe(const lamb_options& o) {
  return describe("beta1 ", o.beta1, " beta2 ", o.beta2, " eps ", o.eps, " coeff ", o.min_coeff,
                  "..", o.max_coeff, " coeff_beta ", o.coeff_beta, " factor ", o.factor_min, "..",
                  o.factor_max, " threshold ", o.factor_threshold, " momentum_scaling ",
                  o.momentum_scaling);
}
[[nodiscard]] inline std::string describe(const freeze_options& o) {
  return describe("freeze after ", o.after, " ratio ", o.ratio, " lr_warmup_steps ",
                  o.lr_warmup_steps);
}

}  // namespace detail

struct one_bit_adam_options {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  /// Divide m by 1 - beta1^t and v by 1 - beta2^t; after the freeze both stay as they were at it.
  bool bias_correction = false;
  /// Warm-up steps with exact averages; 0: freeze by itself when v is stable, as freeze_options
  /// says.
  std::uint64_t freeze_after = 0;
  double freeze_ratio = 0.96;
  std::uint64_t lr_warmup_steps = 0;
  dense_sum warm_up_sum = dense_sum::rank_order;
};

/// Adam with exact averages: the uncompressed baseline. Collective over the transport.
///
/// Cost per step: 2 (W-1)/W 4n bytes sent; state 8 bytes per parameter, work space 8 + 4/W.
template <class P, class G, class T, class B = host>
[[nodiscard]] auto adam(const std::vector<param_group<P, G>>& groups, T transport,
                        adam_options options = {}, B backend = B{},
                        dense_sum sum = dense_sum::rank_order) {
  detail::check_policies<T, B>();
  using rule = adam_rule<B>;
  auto checked = detail::attend(transport, [&] { return rule(options, backend); });
  return optimizer<rule, always_dense, gather_scatter<identity>, T, B, P, G>(
      detail::describe("adam beta1 ", options.beta1, " beta2 ", options.beta2, " eps ", options.eps,
                       " bias_correction ", options.bias_correction,
                       detail::describe_groups(groups)),
      groups, std::move(transport), std::move(backend), std::move(checked), always_dense{},
      gather_scatter<identity>{}, sum);
}

/// 1-bit Adam: Adam until v is stable, then v is frozen and the momentum is what travels, one bit
/// per parameter, with error feedback. Collective over the transport.
///
/// Cost per compressed step: 2 collectives, 2 (W-1)/W n/8 bytes sent plus scales; state 8.25 + 4/W
/// bytes per parameter. Elements that had no gradient before the freeze are not moved by it
/// afterwards; weight decay still acts on them. With one rank: Adam with v frozen.
/// Source: 1-bit Adam (arXiv 2102.02888), algorithm 1.
/// `collective` is gather_scatter or all_gather with any compressor, or hierarchical with one that
/// works word by word: sign<l2_scale> per layer unless said otherwise.
template <class P, class G, class T, class B = host,
          class Collective = gather_scatter<sign<l2_scale>>>
[[nodiscard]] auto one_bit_adam(const std::vector<param_group<P, G>>& groups, T transport,
                                one_bit_adam_options options, Collective collective = {},
                                B backend = B{}) {
  detail::check_policies<T, B>();
  using rule = adam_rule<B>;
  auto [checked, schedule] = detail::attend(transport, [&] {
    return std::pair(
        rule({options.beta1, options.beta2, options.eps, options.bias_correction}, backend),
        freeze({options.freeze_after, options.freeze_ratio, options.lr_warmup_steps},
               options.beta2));
  });
  return optimizer<rule, freeze, Collective, T, B, P, G>(
      detail::describe("one_bit_adam beta1 ", options.beta1, " beta2 ", options.beta2, " eps ",
                       options.eps, " bias_correction ", options.bias_correction, " freeze_after ",
                       options.freeze_after, " ratio ", options.freeze_ratio, " lr_warmup_steps ",
                       options.lr_warmup_steps, " ", policy_name(collective),
                       detail::describe_groups(groups)),
      groups, std::move(transport), std::move(backend), std::move(checked), std::move(schedule),
      collective, options.warm_up_sum);
}

/// LAMB with exact averages: the uncompressed baseline. Collective over the transport. A layer is a
/// tensor.
template <class P, class G, class T, class B = host>
[[nodiscard]] auto lamb(const std::vector<param_group<P, G>>& groups, T transport,
                        lamb_options options = {}, B backend = B{},
                        dense_sum sum = dense_sum::rank_order) {
  detail::check_policies<T, B>();
  using rule = lamb_rule<B>;
  auto checked = detail::attend(transport, [&] { return rule(options, backend); });
  return optimizer<rule, always_dense, gather_scatter<identity>, T, B, P, G>(
      detail::describe("lamb ", detail::describe(options), detail::describe_groups(groups)), groups,
      std::move(transport), std::move(backend), std::move(checked), always_dense{},
      gather_scatter<identity>{}, sum);
}

struct one_bit_lamb_options {
  lamb_options lamb{};
  freeze_options freeze{};
  dense_sum warm_up_sum = dense_sum::rank_order;
};

/// 1-bit LAMB: LAMB until v is stable; then layer-wise rates from the warm-up's coefficients and
/// the drift of a second variance. Collective over the transport.
///
/// Cost per compressed step: as one_bit_adam on the wire; state 12.25 + 4/W bytes per parameter.
/// `collective`: one scale for all layers unless said otherwise, since the momenta are brought to
/// one scale first (lamb_options::momentum_scaling). Source: 1-bit LAMB (arXiv 2104.06069),
/// algorithm 2.
template <class P, class G, class T, class B = host,
          class Collective = gather_scatter<sign<l2_scale>>>
[[nodiscard]] auto one_bit_lamb(const std::vector<param_group<P, G>>& groups, T transport,
                                one_bit_lamb_options options,
                                Collective collective = {{granularity::vector()}},
                                B backend = B{}) {
  detail::check_policies<T, B>();
  using rule = lamb_rule<B>;
  auto [checked, schedule] = detail::attend(transport, [&] {
    return std::pair(rule(options.lamb, backend), freeze(options.freeze, options.lamb.beta2));
  });
  return optimizer<rule, freeze, Collective, T, B, P, G>(
      detail::describe("one_bit_lamb ", detail::describe(options.lamb), " ",
                       detail::describe(options.freeze), " ", policy_name(collective),
                       detail::describe_groups(groups)),
      groups, std::move(transport), std::move(backend), std::move(checked), std::move(schedule),
      collective, options.warm_up_sum);
}

struct zero_one_adam_options {
  zero_one_options adam{};
  intervals_options schedule{};
  dense_sum refresh_sum = dense_sum::rank_order;
};

/// 0/1 Adam: ever rarer refreshes of v, ever rarer one-bit exchanges, local steps between them.
/// Collective over the transport in the steps that communicate.
///
/// After every exchange all ranks hold the same parameters, bit for bit; between two they differ.
/// Cost per exchange: as one_bit_adam; per refresh: as adam; per local step: nothing travels. State
/// 16.25 + 4/W bytes per parameter. A non-finite gradient in a step that communicates makes all
/// skip; in a local step, which nobody hears of, the rank that has it leaves it out. Source: 0/1
/// Adam (arXiv 2202.06009), algorithm 1.
template <class P, class G, class T, class B = host,
          class Collective = gather_scatter<sign<l2_scale>>>
[[nodiscard]] auto zero_one_adam(const std::vector<param_group<P, G>>& groups, T transport,
                                 zero_one_adam_options options, Collective collective = {},
                                 B backend = B{}) {
  detail::check_policies<T, B>();
  using rule = zero_one_rule<B>;
  auto [checked, schedule] = detail::attend(transport, [&] {
    return std::pair(rule(options.adam, backend), intervals(options.schedule));
  });
  return optimizer<rule, intervals, Collective, T, B, P, G>(
      detail::describe("zero_one_adam beta1 ", options.adam.beta1, " beta2 ", options.adam.beta2,
                       " eps ", options.adam.eps, " kappa ", options.schedule.kappa,
                       " warmup_steps ", options.schedule.warmup_steps, " doubling_steps ",
                       options.schedule.doubling_steps, " max_interval ",
                       options.schedule.max_interval, " also_every ", options.schedule.also_every,
                       " ", policy_name(collective), detail::describe_groups(groups)),
      groups, std::move(transport), std::move(backend), std::move(checked), std::move(schedule),
      collective, options.refresh_sum);
}

struct zero_one_adam_variant_options {
  zero_one_options adam{};
  variant_intervals_options schedule{};
  dense_sum dense = dense_sum::rank_order;
};

/// 0/1 Adam as DeepSpeed's ZeroOneAdam has it: see rule/zero_one_variant.hpp for what differs. For
/// migration and comparison.
template <class P, class G, class T, class B = host,
          class Collective = gather_scatter<sign<l2_scale>>>
[[nodiscard]] auto zero_one_adam_variant(const std::vector<param_group<P, G>>& groups, T transport,
                                         zero_one_adam_variant_options options,
                                         Collective collective = {}, B backend = B{}) {
  detail::check_policies<T, B>();
  using rule = zero_one_variant_rule<B>;
  auto [checked, schedule] = detail::attend(transport, [&] {
    return std::pair(rule(options.adam, backend), variant_intervals(options.schedule));
  });
  const variant_intervals_options& s = options.schedule;
  return optimizer<rule, variant_intervals, Collective, T, B, P, G>(
      detail::describe(
          "zero_one_adam_variant beta1 ", options.adam.beta1, " beta2 ", options.adam.beta2,
          " eps ", options.adam.eps, " var_freeze_step ", s.var_freeze_step, " var_update_scaler ",
          s.var_update_scaler, " local_step_scaler ", s.local_step_scaler, " local_step_clipper ",
          s.local_step_clipper, " ", policy_name(collective), detail::describe_groups(groups)),
      groups, std::move(transport), std::move(backend), std::move(checked), std::move(schedule),
      collective, options.dense);
}

}  // namespace onebit
