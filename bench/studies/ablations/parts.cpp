// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#include <onebit/extras/papers.hpp>

#include "row.hpp"
#include "rules.hpp"

using namespace onebit;
using namespace ablations;

namespace {

/// Returns the usual number of dense steps if v is refreshed later, else `steps`.
freeze_options warm_up(std::uint64_t refreshes, std::uint64_t steps) {
  return {.after = refreshes > 0 ? freeze_options{}.after : steps};
}
/// 1-bit Adam with any options and collective.
template <class C = gather_scatter<sign<>>>
row one_bit(const char* name, std::uint64_t refreshes, C collective = {}, double bound = 2) {
  return {name, family::adam, [=](const groups& g, threads t, const settings& s) {
            return quiet(one_bit_adam(g, t,
                                      {.adam = {.beta2 = s.adam.beta2},
                                       .freeze = warm_up(refreshes, s.freeze_after),
                                       .refreshes = refreshes,
                                       .max_step = bound},
                                      collective));
          }};
}
/// Naive 1-bit Adam: compressed gradients from the first step.
template <class C>
row naive(const char* name, C collective) {
  return {
      name, family::adam, [=](const groups& g, threads t, const settings& s) {
        const custom_schedule always(
            [](std::uint64_t, float) { return due{.average = false, .exchange = true}; });
        return quiet(optimizer("naive", g, t, compressed_gradients(s.adam), always, collective));
      }};
}
row lamb_with(const char* name, one_bit_lamb_options o, sign<> codec = {}) {
  return {name, family::lamb, [=](const groups& g, threads t, const settings& s) mutable {
            o.lamb.beta2 = s.adam.beta2;
            return quiet(one_bit_lamb(g, t, o, gather_scatter{codec}));
          }};
}
row papers_lamb_with(const char* name, papers::lamb_options o) {
  return {name, family::lamb, [=](const groups& g, threads t, const settings& s) mutable {
            o.beta2 = s.adam.beta2;
            o.bias_correction = true;
            papers::one_bit_lamb_options options(2 * s.freeze_after);
            options.lamb = o;
            return quiet(one_bit_lamb(g, t, options, gather_scatter{sign<>{.factor = 1}}));
          }};
}

/// 0/1 Adam with any options and collective.
template <class C = gather_scatter<two_bits>>
row zero_one(const char* name, zero_one_adam_options o, C collective = {}) {
  return {name, family::adam, [=](const groups& g, threads t, const settings& s) mutable {
            o.adam.beta2 = s.adam.beta2;
            o.schedule.warmup_steps = s.freeze_after;
            o.schedule.also_every = s.meet_every;
            return quiet(zero_one_adam(g, t, o, collective));
          }};
}

}  // namespace

std::vector<row> ablations::rows() {
  const auto layer = granularity::layer(), block = granularity::block(128);
  const std::uint64_t follows = one_bit_adam_options{}.refreshes;
  return {
      {"adam", family::adam,
       [](const groups& g, threads t, const settings& s) { return quiet(adam(g, t, s.adam)); }},
      one_bit("1-bit Adam", follows),
      one_bit("  no bound on steps", follows, gather_scatter<sign<>>{}, 0),
      one_bit("  v frozen for good (the paper's)", 0, gather_scatter{sign<>{layer, 1}}, 0),
      one_bit("  v frozen for good, directions sent", 0),
      one_bit("  v frozen for good, no compression", 0, gather_scatter<identity>{}),
      one_bit("  no error feedback", follows, all_gather{forgetful_sign<>{}}),
      one_bit("  a scale per layer", follows, gather_scatter{sign<>{layer}}),
      one_bit("  a scale per block of 128", follows, gather_scatter{sign<>{block}}),
      one_bit("  one scale for all layers", follows, gather_scatter{sign<>{granularity::vector()}}),
      one_bit("  L2 scales, a factor of 1", follows, gather_scatter{sign<>{.factor = 1}}),
      one_bit("  L1 scales, a factor of 1", follows, gather_scatter{sign<l1_scale>{.factor = 1}}),
      naive("naive: gradients compressed, v live", gather_scatter<sign<>>{}),
      naive("  no error feedback", all_gather{forgetful_sign<>{}}),
      zero_one("0/1 Adam", {}),
      zero_one("  no local steps", {.schedule = {.max_interval = 1}}),
      zero_one("  no bound on steps", {.max_step = 0}),
      zero_one("  no v of each rank's own", {.own_variance = false}),
      zero_one("  signs in place of 2 bits", {}, gather_scatter<sign<>>{}),
      zero_one("  signs, no local steps", {.schedule = {.max_interval = 1}},
               gather_scatter<sign<>>{}),
      zero_one("  signs, a scale per layer", {}, gather_scatter{sign<>{layer}}),
      zero_one("  signs, L2 scales, a factor of 1", {}, gather_scatter{sign<>{.factor = 1}}),
      {"lamb", family::lamb,
       [](const groups& g, threads t, const settings& s) {
         return quiet(lamb(g, t, {.beta2 = s.adam.beta2}));
       }},
      lamb_with("1-bit LAMB", {}),
      lamb_with("  no bound on steps", {.max_step = 0}),
      lamb_with("  L2 scales, a factor of 1", {}, {.factor = 1}),
      papers_lamb_with("  v frozen for good (the paper's)", {}),
      papers_lamb_with("  the paper's, coefficient frozen", {.factor_min = 1, .factor_max = 1}),
      papers_lamb_with("  the paper's, no momentum scaling", {.momentum_scaling = false}),
  };
}
