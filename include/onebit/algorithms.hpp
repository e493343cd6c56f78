// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <onebit/backend/host.hpp>
#include <onebit/collective/dense_average.hpp>
#include <onebit/collective/gather_scatter.hpp>
#include <onebit/compressor/identity.hpp>
#include <onebit/compressor/quantized.hpp>
#include <onebit/compressor/sign.hpp>
#include <onebit/concepts/backend.hpp>
#include <onebit/concepts/exchange.hpp>
#include <onebit/concepts/transport.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/kernel/param_group.hpp>
#include <onebit/optimizer.hpp>
#include <onebit/rule/adam.hpp>
#include <onebit/rule/lamb.hpp>
#include <onebit/rule/zero_one_adam.hpp>
#include <onebit/schedule/custom.hpp>
#include <onebit/schedule/freeze.hpp>
#include <onebit/schedule/intervals.hpp>
#include <onebit/transport/communicator.hpp>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/// The algorithms of the papers, as combinations of rule, schedule and collective. After groups,
/// transport and options come policies in any order, each found by its type:
///
///     one_bit_adam(groups, comm)
///     one_bit_adam(groups, comm, {.refreshes = 4}, hierarchical{sign<>{}, 8})
///     one_bit_adam(groups, comm, {}, cuda(stream), all_gather<sign<>>{})
///
/// With one rank, or one node in a hierarchy, every algorithm is its uncompressed form.
namespace onebit { inline namespace v0_3 {

namespace detail {

/// What an argument after the options is.
enum class policy_kind : std::uint8_t { collective, backend, sum, none };

template <class T>
consteval policy_kind kind_of() {
  if constexpr (std::is_same_v<T, dense_sum>) {
    return policy_kind::sum;
  } else if constexpr (Compressor<T> || requires { typename T::template exchange<any_backend>; }) {
    return policy_kind::collective;
  } else if constexpr (
      requires { T::deferred; } || requires(T b) { b.template make_buffer<float>(1); } ||
      requires(T b, const any_kernel& kernel) { b.launch(1, kernel); }) {
    return policy_kind::backend;
  } else {
    return policy_kind::none;
  }
}

/// Asserts with readable messages that transport and policies are valid, before their use, and
/// that each policy is one of two kinds, and the only one of its kind.
template <class T, policy_kind First, policy_kind Second, class... Policies>
consteval void check_policies() {
  check_transport<T>();
  constexpr bool all_known =
      ((kind_of<Policies>() == First || kind_of<Policies>() == Second) && ...);
  static_assert(all_known || First != policy_kind::collective,
                "onebit: after the options come a collective (gather_scatter, all_gather, "
                "hierarchical) and a backend (host, cuda), in any order; the sum of averages is an "
                "option; a schedule or rule of your own goes into onebit::optimizer");
  static_assert(all_known || First == policy_kind::collective,
                "onebit: after the options come a backend (host, cuda) and a dense_sum, in any "
                "order");
  constexpr int of_a = (0 + ... + (kind_of<Policies>() == First ? 1 : 0));
  constexpr int of_b = (0 + ... + (kind_of<Policies>() == Second ? 1 : 0));
  static_assert(of_a < 2 && of_b < 2, "onebit: two policies of one kind after the options");
}
/// Returns the policy of a kind among `given`, or a default one.
template <policy_kind Kind, class Default>
[[nodiscard]] Default policy() {
  return Default{};
}
template <policy_kind Kind, class Default, class First, class... More>
[[nodiscard]] auto policy(First first, More... more) {
  if constexpr (kind_of<First>() == Kind) {
    return first;
  } else {
    return policy<Kind, Default>(std::move(more)...);
  }
}

/// The policies of an algorithm.
template <class C, class B>
struct chosen_policies {
  C collective;
  B backend;
};
template <class C, class B>
chosen_policies(C, B) -> chosen_policies<C, B>;  // clang 14 has none of its own for aggregates
/// Returns the policies for compressed steps. By default: `Collective`, host.
template <class Collective, class... Policies>
[[nodiscard]] auto policies_of_exchange(const Policies&... given) {
  return chosen_policies{policy<policy_kind::collective, Collective>(given...),
                         policy<policy_kind::backend, host>(given...)};
}
/// Returns the backend for dense steps, by default host.
template <class... Policies>
[[nodiscard]] auto backend_of_averages(const Policies&... given) {
  return policy<policy_kind::backend, host>(given...);
}
/// @{
/// check_policies, and that these policies and a transport T can be used together.
template <class T, class Collective, class... Policies>
consteval void check_exchange() {
  check_policies<T, policy_kind::collective, policy_kind::backend, Policies...>();
  using chosen = decltype(policies_of_exchange<Collective>(std::declval<Policies>()...));
  check_backend<decltype(chosen::backend)>();
  check_split<decltype(chosen::collective), T>();
}
template <class T, class... Policies>
consteval void check_averages() {
  check_policies<T, policy_kind::backend, policy_kind::sum, Policies...>();
  check_backend<decltype(backend_of_averages(std::declval<Policies>()...))>();
}
/// @}

/// Exchange of 1-bit Adam and 1-bit LAMB, and that of 0/1 Adam, unless another one is given.
using one_bit_exchange = gather_scatter<sign<l2_scale>>;
using zero_one_exchange = gather_scatter<two_bits>;

/// Throws invalid_input if there are no dense steps: LAMB's first coefficients come from them.
[[gnu::cold]] inline void require_dense_steps(const char* name, const freeze_options& o) {
  if (o.after > 0) return;
  throw invalid_input(error_text(name,
                                 ": freeze.after is 0, must be at least 1: coefficients of layers ",
                                 "come from dense steps"));
}

/// Returns the smallest beta2 of all groups; `otherwise` is that of groups without one.
template <class P, class G>
[[nodiscard]] double least_beta2(const std::vector<param_group<P, G>>& groups, double otherwise) {
  double least = otherwise;
  for (const auto& g : groups) least = (std::min)(least, g.own.beta2.value_or(otherwise));
  return least;
}

}  // namespace detail

/// @{
/// Describes options in words, for names of optimizers: items joined by commas, the items of a
/// group in brackets.
template <class P, class G>
[[nodiscard, gnu::cold]] std::string describe(const std::vector<param_group<P, G>>& groups) {
  std::string text;
  for (const auto& g : groups) {
    text += detail::join({", [", g.tensors.size(), " tensors, lr_factor ", g.lr_factor,
                          ", weight_decay ", g.weight_decay});
    const auto add = [&text](const char* name, const std::optional<double>& x) {
      if (x) text += detail::join({", ", name, " ", *x});
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
                  o.bias_correction, ", max_grad_norm ", o.max_grad_norm);
}
[[nodiscard, gnu::cold]] inline std::string describe(const lamb_options& o) {
  return describe(", beta1 ", o.beta1, ", beta2 ", o.beta2, ", eps ", o.eps, ", min_coeff ",
                  o.min_coeff, ", max_coeff ", o.max_coeff, ", bias_correction ", o.bias_correction,
                  ", max_grad_norm ", o.max_grad_norm);
}
[[nodiscard, gnu::cold]] inline std::string describe(const freeze_options& o) {
  return describe(", freeze after ", o.after);
}
[[nodiscard, gnu::cold]] inline std::string describe(const intervals_options& o) {
  return describe(", dense steps ", o.after, ", refreshes ", o.refreshes, ", kappa ", o.kappa,
                  ", warmup_steps ", o.warmup_steps, ", stop_refreshing ", o.stop_refreshing,
                  ", doubling_steps ", o.doubling_steps, ", max_interval ", o.max_interval,
                  ", also_every ", o.also_every);
}
/// @}

/// Options of 1-bit Adam: of its rule, of its schedule, and of its averages.
struct one_bit_adam_options {
  adam_options adam{};      ///< of the rule
  freeze_options freeze{};  ///< when the dense steps end
  /// After the dense steps every rank updates v from its own gradients, and refreshes average it
  /// over the ranks. The gap from step t of the training to the next refresh is t / refreshes
  /// steps, at least 1, at most half of v's memory, 1 / (1 - beta2), or 200. So t grows by the
  /// factor e within `refreshes` refreshes. 0: v is constant from the freeze on, as in the paper,
  /// which needs a warm-up of 15 to 25% of all steps.
  std::uint64_t refreshes = 3;
  dense_sum warm_up_sum = dense_sum::automatic;  ///< summation and wire format of averages
  double max_step = 2;                           ///< bound of messages: direction_options::max_step
};

namespace detail {

/// Over a communicator an algorithm is compiled once for all transports: compiled.hpp.
template <class P, class G, class... Policies>
[[nodiscard, gnu::cold]] auto adam_over(const std::vector<param_group<P, G>>& groups,
                                        communicator comm, adam_options options,
                                        Policies... policies) {
  auto backend = backend_of_averages(policies...);
  const auto sum = policy<policy_kind::sum, dense_sum>(policies...);
  using B = decltype(backend);
  auto rule = collective_try(comm, [&] { return adam_rule<B>(options, std::move(backend)); });
  return optimizer("adam" + describe(options) + describe(groups), groups, comm, std::move(rule),
                   always_dense{}, gather_scatter<identity>{}, sum);
}

}  // namespace detail

/// Adam with exact averages: the uncompressed baseline. Collective over the transport.
///
/// - Sends: 2 (W-1)/W 4n bytes a step.
/// - State: 8 bytes per parameter. Work space: messages of 8 buckets of 2^22 elements; 4 bytes per
/// parameter (2 if averages are in bf16) if gradients are not floats, or are only read.
/// - `policies`, in any order: a backend, by default host; a dense_sum.
template <class P, class G, class T, class... Policies>
[[nodiscard, gnu::cold]] auto adam(const std::vector<param_group<P, G>>& groups, T transport,
                                   adam_options options = {}, Policies... policies) {
  detail::check_averages<T, Policies...>();
  return detail::adam_over(groups, communicator(std::move(transport)), options,
                           std::move(policies)...);
}

namespace detail {

template <class P, class G, class... Policies>
[[nodiscard, gnu::cold]] auto one_bit_adam_over(const std::vector<param_group<P, G>>& groups,
                                                communicator comm, one_bit_adam_options options,
                                                Policies... policies) {
  auto chosen = policies_of_exchange<one_bit_exchange>(policies...);
  using B = decltype(chosen.backend);
  auto [rule, schedule] = collective_try(comm, [&] {
    return std::pair(
        adam_rule<B>(options.adam, std::move(chosen.backend),
                     {.max_step = options.max_step, .own_variance = options.refreshes > 0}),
        freeze(options.freeze, least_beta2(groups, options.adam.beta2), options.refreshes,
               options.adam.bias_correction));
  });
  return optimizer(
      "one_bit_adam" + describe(options.adam) + describe(", max_step ", options.max_step) +
          describe(options.freeze) + describe(", refreshes ", options.refreshes, ", ") +
          policy_name(chosen.collective) + describe(groups),
      groups, comm, std::move(rule), std::move(schedule), chosen.collective, options.warm_up_sum);
}

}  // namespace detail

/// 1-bit Adam: a few steps of Adam, then exchanges of the direction, one bit per parameter, with
/// error feedback. Each rank updates a v of its own, and refreshes bring the ranks together (if
/// `refreshes` is 0, v is constant; if max_step is 0, too, momenta are sent, as in the paper).
/// Collective over the transport.
///
/// - Sends: 2 (W-1)/W n/8 bytes a compressed step, plus scales, in 2 collectives; a refresh 2
/// (W-1)/W 0.77 n more, in 4 more.
/// - State: 8.25 + 4/W bytes per parameter. Work space of a
/// refresh: 1.6 + 1.5/W bytes per parameter, freed if the gap is at least 16 steps.
/// - Gradients are not written in compressed steps. An element without a gradient up to the freeze
/// or a refresh does not move until then; its directions are carried. Weight decay acts on it.
/// - `policies`, in any order: a collective, which is gather_scatter or all_gather with any
/// compressor, or hierarchical with a compressor by word, by default gather_scatter with
/// sign<l2_scale>; a backend, by default host.
/// - Source: 1-bit Adam (arXiv 2102.02888), algorithm 1. Refreshes are this library's
/// (docs/variance.md), at growing gaps like T_v of 0/1 Adam.
template <class P, class G, class T, class... Policies>
[[nodiscard, gnu::cold]] auto one_bit_adam(const std::vector<param_group<P, G>>& groups,
                                           T transport, one_bit_adam_options options = {},
                                           Policies... policies) {
  detail::check_exchange<T, detail::one_bit_exchange, Policies...>();
  return detail::one_bit_adam_over(groups, communicator(std::move(transport)), options,
                                   std::move(policies)...);
}

namespace detail {

template <class P, class G, class... Policies>
[[nodiscard, gnu::cold]] auto lamb_over(const std::vector<param_group<P, G>>& groups,
                                        communicator comm, lamb_options options,
                                        Policies... policies) {
  auto backend = backend_of_averages(policies...);
  const auto sum = policy<policy_kind::sum, dense_sum>(policies...);
  using B = decltype(backend);
  auto rule = collective_try(comm, [&] { return lamb_rule<B>(options, std::move(backend)); });
  return optimizer("lamb" + describe(options) + describe(groups), groups, comm, std::move(rule),
                   always_dense{}, gather_scatter<identity>{}, sum);
}

}  // namespace detail

/// LAMB with exact averages: the uncompressed baseline. Collective over the transport. A layer is
/// a tensor.
template <class P, class G, class T, class... Policies>
[[nodiscard, gnu::cold]] auto lamb(const std::vector<param_group<P, G>>& groups, T transport,
                                   lamb_options options = {}, Policies... policies) {
  detail::check_averages<T, Policies...>();
  return detail::lamb_over(groups, communicator(std::move(transport)), options,
                           std::move(policies)...);
}

/// Options of 1-bit LAMB: as one_bit_adam_options.
struct one_bit_lamb_options {
  lamb_options lamb{};          ///< of the rule
  freeze_options freeze{};      ///< when the dense steps end
  std::uint64_t refreshes = 3;  ///< of v and of the norms of directions; at least 1
  dense_sum warm_up_sum = dense_sum::automatic;  ///< summation and wire format of averages
  double max_step = 2;                           ///< bound of messages: direction_options::max_step
};

namespace detail {

template <class P, class G, class... Policies>
[[nodiscard, gnu::cold]] auto one_bit_lamb_over(const std::vector<param_group<P, G>>& groups,
                                                communicator comm, one_bit_lamb_options options,
                                                Policies... policies) {
  auto chosen = policies_of_exchange<one_bit_exchange>(policies...);
  using B = decltype(chosen.backend);
  auto [rule, schedule] = collective_try(comm, [&] {
    if (options.refreshes == 0) {
      throw invalid_input(
          error_text("one_bit_lamb: refreshes is 0, must be at least 1: norms of directions "
                     "come from refreshes"));
    }
    require_dense_steps("one_bit_lamb", options.freeze);
    return std::pair(
        lamb_rule<B>(options.lamb, std::move(chosen.backend), {.max_step = options.max_step}),
        freeze(options.freeze, least_beta2(groups, options.lamb.beta2), options.refreshes,
               options.lamb.bias_correction));
  });
  return optimizer(
      "one_bit_lamb" + describe(options.lamb) + describe(", max_step ", options.max_step) +
          describe(options.freeze) + describe(", refreshes ", options.refreshes, ", ") +
          policy_name(chosen.collective) + describe(groups),
      groups, comm, std::move(rule), std::move(schedule), chosen.collective, options.warm_up_sum);
}

}  // namespace detail

/// 1-bit LAMB: a few steps of LAMB, then as one_bit_adam. The coefficients of LAMB come from
/// sketches of the direction, which ranks average in a refresh of v. Collective over the
/// transport.
///
/// - Sends, state: as one_bit_adam; in a refresh 64 numbers per tile more.
/// - Throws: invalid_input if refreshes is 0.
/// - Source: 1-bit LAMB (arXiv 2104.06069). Its own form (coefficients of the warm-up, times the
/// drift of a second variance) is papers::one_bit_lamb; refreshes and sketches are this library's
/// (docs/variance.md).
template <class P, class G, class T, class... Policies>
[[nodiscard, gnu::cold]] auto one_bit_lamb(const std::vector<param_group<P, G>>& groups,
                                           T transport, one_bit_lamb_options options = {},
                                           Policies... policies) {
  detail::check_exchange<T, detail::one_bit_exchange, Policies...>();
  return detail::one_bit_lamb_over(groups, communicator(std::move(transport)), options,
                                   std::move(policies)...);
}

/// Options of 0/1 Adam.
struct zero_one_adam_options {
  adam_options adam{};           ///< of the rule
  intervals_options schedule{};  ///< when ranks average and exchange
  /// Summation and wire format of averages of gradients: in dense steps, and without own_variance
  /// in all averages. A refresh of v sends 6 bits, whatever this is.
  dense_sum refresh_sum = dense_sum::automatic;
  double max_step = 2;       ///< bound of messages: direction_options::max_step
  bool own_variance = true;  ///< see direction_options::own_variance
};

namespace detail {

template <class P, class G, class... Policies>
[[nodiscard, gnu::cold]] auto zero_one_adam_over(const std::vector<param_group<P, G>>& groups,
                                                 communicator comm, zero_one_adam_options options,
                                                 Policies... policies) {
  auto chosen = policies_of_exchange<zero_one_exchange>(policies...);
  using B = decltype(chosen.backend);
  auto [rule, schedule] = collective_try(comm, [&] {
    return std::pair(zero_one_rule<B>(options.adam, std::move(chosen.backend),
                                      {options.max_step, options.own_variance}),
                     intervals(options.schedule, least_beta2(groups, options.adam.beta2),
                               options.adam.bias_correction || options.own_variance));
  });
  return optimizer(
      "zero_one_adam" + describe(options.adam) +
          describe(", max_step ", options.max_step, ", own_variance ", options.own_variance) +
          describe(options.schedule) + ", " + policy_name(chosen.collective) + describe(groups),
      groups, comm, std::move(rule), std::move(schedule), chosen.collective, options.refresh_sum);
}

}  // namespace detail

/// 0/1 Adam: refreshes of v and exchanges at growing intervals, in four levels (3 bits on the
/// wire), local steps between them. Collective over the transport in steps that communicate.
///
/// The steps up to the first one without an average are Adam's; after these each rank has a v of
/// its own, as in one_bit_adam (direction_options::own_variance). Where ranks see data of different
/// kinds, local steps cost loss: set schedule.max_interval to 1, or use one_bit_adam. After every
/// exchange all ranks hold the same parameters, bit for bit; between two exchanges parameters
/// differ.
///
/// - Sends: in an exchange as one_bit_adam, 3 bits for its one; in a refresh, in local steps too,
/// as one_bit_adam; in other local steps nothing.
/// - State: 16.13 + 4/W bytes per parameter.
/// - Skips: all ranks, if a gradient is not finite in a step that communicates; in a local step
/// without a refresh only its rank leaves the gradient out, unknown to the others.
/// - Limit: messages are sums of learning rates times directions. Rates that change up and down by
/// factors between exchanges feed the residuals until they overflow; slowly changing schedules do
/// not.
/// - Source: 0/1 Adam (arXiv 2202.06009), algorithm 1.
template <class P, class G, class T, class... Policies>
[[nodiscard, gnu::cold]] auto zero_one_adam(const std::vector<param_group<P, G>>& groups,
                                            T transport, zero_one_adam_options options = {},
                                            Policies... policies) {
  detail::check_exchange<T, detail::zero_one_exchange, Policies...>();
  return detail::zero_one_adam_over(groups, communicator(std::move(transport)), options,
                                    std::move(policies)...);
}

}}  // namespace onebit
