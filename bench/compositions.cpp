// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#include "compositions.hpp"

#include <onebit/onebit.hpp>

namespace onebit_bench {

using namespace onebit;

namespace {

using groups = std::vector<param_group<>>;

const one_bit_adam_options frozen{.freeze = {.after = 2},
                                  .refreshes = 1};  // in steps 3, 6, 12, ...
const one_bit_lamb_options frozen_lamb{.freeze = {.after = 2}, .refreshes = 1};
/// An exchange in every step: the dearest kind.
const zero_one_adam_options exchanging{
    .schedule = {.kappa = 1, .warmup_steps = 2, .max_interval = 1, .stop_refreshing = true}};

/// `own` bytes, and `served` of the W-th part that a rank serves.
std::function<double(double)> bytes(double own, double served = 0) {
  return [=](double ranks) { return own + served / ranks; };
}

}  // namespace

const std::vector<composition>& compositions() {
  static const std::vector<composition> all{
      {"adam", bytes(8), [](const groups& g, communicator t) { return adam(g, t); }},
      {"adam_clipped", bytes(8),
       [](const groups& g, communicator t) { return adam(g, t, {.max_grad_norm = 1}); }},
      {"one_bit_adam", bytes(8.25, 4),
       [](const groups& g, communicator t) { return one_bit_adam(g, t, frozen); }},
      {"one_bit_adam_clipped", bytes(8.25, 4),
       [](const groups& g, communicator t) {
         auto clipped = frozen;
         clipped.adam.max_grad_norm = 1;
         return one_bit_adam(g, t, clipped);
       }},
      {"lamb", bytes(8), [](const groups& g, communicator t) { return lamb(g, t); }},
      {"one_bit_lamb", bytes(8.5, 4),
       [](const groups& g, communicator t) { return one_bit_lamb(g, t, frozen_lamb); }},
      {"zero_one_adam", bytes(16.25, 4),
       [](const groups& g, communicator t) { return zero_one_adam(g, t, exchanging); }},
  };
  return all;
}

}  // namespace onebit_bench
