// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// The columns of the table: optimizers.
#pragma once

#include <onebit/compressor/identity.hpp>
#include <onebit/compressor/quantized.hpp>
#include <onebit/extras/papers.hpp>
#include <onebit/onebit.hpp>
#include <optional>

#include "common/schedule.hpp"
#include "contenders.hpp"

namespace tasks {

/// What changes at 60% of a training.
struct late_change {
  std::string what;   // rate, gradients or data; empty: nothing
  double factor = 1;  // of the rate, of the gradients
  friend bool operator==(const late_change&, const late_change&) = default;
};

/// Settings of a training.
struct setting {
  int ranks = 4, batch = 8;
  std::int64_t steps = 0;
  double rate = 0;  // at the peak
  std::optional<double> beta2{};
  late_change change{};
  friend bool operator==(const setting&, const setting&) = default;
};

/// Column of the table: an optimizer. Compared with the column `baseline`, unless that is empty.
struct form {
  std::string name, baseline;
  std::function<stepper(const groups&, onebit::threads, const setting&)> make;
  bool only_if_named = false;  // by --optimizer
};

/// All columns. Options are the defaults, except options that depend on the number of steps, which
/// are as the guide recommends (zero_one_adam.md), and beta2, if given.
inline std::vector<form> all_forms() {
  const auto warm_up = [](const char* name, const setting& s) {
    return static_cast<std::uint64_t>(common::default_freeze(name, s.steps));
  };
  const auto told = [](auto options, const setting& s) {
    options.beta2 = s.beta2.value_or(options.beta2);
    return options;
  };
  const auto zero_one = [=](const setting& s) {
    onebit::zero_one_adam_options options{.adam = told(onebit::adam_options{}, s)};
    options.schedule.warmup_steps = warm_up("zero_one_adam", s);
    // equal parameters on all ranks after the last step
    options.schedule.also_every = static_cast<std::uint64_t>(s.steps);
    return options;
  };
  const auto papers_warm_up = [](const setting& s) {  // 15% of the steps, as in the papers' runs
    return static_cast<std::uint64_t>(std::max<std::int64_t>(1, s.steps * 15 / 100));
  };
  return {
      {"adam", "",
       [=](const groups& g, auto comm, const setting& s) {
         return steps_of(onebit::adam(g, comm, told(onebit::adam_options{}, s)));
       }},
      {"one_bit_adam", "adam",
       [=](const groups& g, auto comm, const setting& s) {
         return steps_of(onebit::one_bit_adam(g, comm, {.adam = told(onebit::adam_options{}, s)}));
       }},
      {"zero_one_adam", "adam",
       [=](const groups& g, auto comm, const setting& s) {
         return steps_of(onebit::zero_one_adam(g, comm, zero_one(s)));
       }},
      {"lamb", "",
       [=](const groups& g, auto comm, const setting& s) {
         return steps_of(onebit::lamb(g, comm, told(onebit::lamb_options{}, s)));
       }},
      {"one_bit_lamb", "lamb",
       [=](const groups& g, auto comm, const setting& s) {
         return steps_of(onebit::one_bit_lamb(g, comm, {.lamb = told(onebit::lamb_options{}, s)}));
       }},
      {"papers' one_bit_adam", "adam",
       [=](const groups& g, auto comm, const setting& s) {
         auto [options, collective] = onebit::papers::one_bit_adam(papers_warm_up(s));
         options.adam = told(options.adam, s);
         return steps_of(onebit::one_bit_adam(g, comm, options, collective));
       }},
      {"papers' one_bit_lamb", "lamb",
       [=](const groups& g, auto comm, const setting& s) {
         auto [options, collective] = onebit::papers::one_bit_lamb(papers_warm_up(s));
         options.lamb = told(options.lamb, s);
         return steps_of(onebit::one_bit_lamb(g, comm, options, collective));
       }},
      {"papers' zero_one_adam", "adam",
       [=](const groups& g, auto comm, const setting& s) {
         auto [options, collective] = onebit::papers::zero_one_adam(papers_warm_up(s));
         options.adam = told(options.adam, s);
         options.schedule.also_every = static_cast<std::uint64_t>(s.steps);
         return steps_of(onebit::zero_one_adam(g, comm, options, collective));
       }},
      {"zero_one_adam_sign", "adam",
       [=](const groups& g, auto comm, const setting& s) {
         const onebit::gather_scatter collective{onebit::sign<>{}};
         return steps_of(onebit::zero_one_adam(g, comm, zero_one(s), collective));
       },
       true},
      {"zero_one_adam_identity", "adam",
       [=](const groups& g, auto comm, const setting& s) {
         const onebit::gather_scatter collective{onebit::identity{}};
         return steps_of(onebit::zero_one_adam(g, comm, zero_one(s), collective));
       },
       true},
      {"adam_16_bits", "adam",
       [=](const groups& g, auto comm, const setting& s) {
         return steps_of(onebit::adam(g, comm, told(onebit::adam_options{}, s), onebit::host{},
                                      onebit::dense_sum::in_bf16));
       },
       true},
      {"adam_4_bits", "adam",
       [=](const groups& g, auto comm, const setting& s) {
         return adam_of_averages(g, comm, told(onebit::adam_options{}, s),
                                 onebit::gather_scatter{onebit::quantized<4>{}});
       },
       true},
      {"local_adam_8", "adam",
       [=](const groups& g, auto comm, const setting& s) {
         return local_adam(g, comm, told(onebit::adam_options{}, s), 8, s.steps);
       },
       true},
      {"local_adam_16", "adam",
       [=](const groups& g, auto comm, const setting& s) {
         return local_adam(g, comm, told(onebit::adam_options{}, s), 16, s.steps);
       },
       true},
  };
}

}  // namespace tasks
