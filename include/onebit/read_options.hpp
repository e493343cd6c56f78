// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/algorithms.hpp>
#include <onebit/named_options.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

/// What a name and options that are texts ask for.
namespace onebit::inline v0_1 {

/// The algorithms that have a name.
enum class algorithm : std::uint8_t {
  adam,
  lamb,
  one_bit_adam,
  one_bit_lamb,
  zero_one_adam
};

/// What a name and its options ask for. Of the structs, that of `which` counts.
struct named_optimizer {
  algorithm which = algorithm::adam;  ///< the one that is made
  /// @{
  /// Options of that name's algorithm.
  adam_options adam{};
  lamb_options lamb{};
  one_bit_adam_options one_bit_adam{};
  one_bit_lamb_options one_bit_lamb{};
  zero_one_adam_options zero_one_adam{};
  /// @}
  dense_sum sum = dense_sum::automatic;  ///< of adam and lamb
  std::size_t bucket_elements = 0;  ///< of the compressed exchange; 0: one bucket
  /// That share a scale, where sign compresses; 0: those of a tensor, as for DeepSpeed's names. Not
  /// of one_bit_lamb, whose tensors all share one.
  std::size_t scale_elements = sign<>{}.scales.block_elements;
  double lr = 1e-3;                      ///< what any_optimizer::lr tells
  std::optional<double> weight_decay{};  ///< of groups that have none
};

namespace detail {

/// What DeepSpeed's optimizers have beside the algorithm's own options.
[[gnu::cold]] inline void read_deepspeed(option_reader& r) {
  r.ignore("cuda_aware");                                             // the transport is asked
  (void)r.read_word({"comm_backend_name"}, {"nccl", "mpi", "gloo"});  // the transport is given
  r.only("amsgrad", false, "there is no AMSGrad of any of these; leave it out");
  r.only("eps_inside_sqrt", false,
         "eps is added to the root, as DeepSpeed's 1-bit optimizers add it whatever this says; "
         "leave it out");
  r.refuse("exp_avg_mask",
           "elements without a gradient in the warm-up do not move, so that no mask is needed; "
           "leave it out");
  r.refuse("non_freeze",
           "give tensors that shall never be compressed an optimizer of their own, named adam");
}
/// What all rules have. DeepSpeed's compressing optimizers correct no bias, whatever they are
/// told, and bound no step: that is what their names stand for.
template <class Options>
[[gnu::cold]] void read_moments(option_reader& r, Options& o, bool as_deepspeed) {
  const bool betas = r.read_pair({"betas"}, o.beta1, o.beta2);
  const bool beta1 = r.read({"beta1"}, o.beta1), beta2 = r.read({"beta2"}, o.beta2);
  if (betas && (beta1 || beta2)) r.fail({"betas and beta1 or beta2 are the same; give one"});
  r.read({"max_grad_norm", "gradient_clipping"}, o.max_grad_norm);
  r.read({"eps"}, o.eps);
  if (as_deepspeed) {
    o.bias_correction = false;
    o.max_step = 0;
  }
  r.read({"bias_correction"}, o.bias_correction);
}
[[gnu::cold]] inline void read_coefficients(option_reader& r, lamb_options& o) {
  r.read({"min_coeff"}, o.min_coeff);
  r.read({"max_coeff"}, o.max_coeff);
}
[[gnu::cold]] inline void read_sum(option_reader& r, const char* name, dense_sum& sum) {
  static_assert(dense_sum{5} == dense_sum::transport_in_bf16);
  const auto place = r.read_word(
      {name}, {"automatic", "rank_order", "transport", "in_bf16", "in_int8", "transport_in_bf16"});
  if (place) sum = static_cast<dense_sum>(*place);
}
[[gnu::cold]] inline void read_freeze(option_reader& r, freeze_options& o, bool as_deepspeed) {
  if (as_deepspeed) o.after = 100000;
  std::uint64_t steps = 0;
  const bool theirs = r.read({"freeze_step"}, steps);
  if (theirs && steps == 0) {
    r.fail(
        {"freeze_step is 0: the first step must average; give at least 1, or leave it out and "
         "give after 0, by which the warm-up ends when v is stable"});
  }
  if (r.read({"after", "freeze.after"}, o.after) && theirs) {
    r.fail({"freeze_step and after are the same option; give one of them"});
  }
  if (theirs) o.after = steps;
  r.read({"ratio", "freeze.ratio"}, o.ratio);
  r.read({"lr_warmup_steps", "freeze.lr_warmup_steps"}, o.lr_warmup_steps);
}
[[gnu::cold]] inline void read_intervals(option_reader& r, intervals_options& o,
                                         bool as_deepspeed) {
  if (as_deepspeed) {
    o.warmup_steps = 100000;
    o.doubling_steps = 32678;
    o.stop_refreshing = true;
  }
  r.read({"warmup_steps", "schedule.warmup_steps", "var_freeze_step"}, o.warmup_steps);
  r.read({"doubling_steps", "schedule.doubling_steps", "local_step_scaler"}, o.doubling_steps);
  r.read({"max_interval", "schedule.max_interval", "local_step_clipper"}, o.max_interval);
  r.read({"also_every", "schedule.also_every"}, o.also_every);
  r.read({"kappa", "schedule.kappa", "var_update_scaler"}, o.kappa);
  r.read({"stop_refreshing", "schedule.stop_refreshing"}, o.stop_refreshing);
}

}  // namespace detail

/// Reads a name and its options. Not collective.
///
/// Names are those of algorithms.hpp (adam, lamb, one_bit_adam, one_bit_lamb, zero_one_adam), which
/// have their defaults, and DeepSpeed's, in upper or lower case:
/// Adam, AdamW and Lamb, and OneBitAdam, OneBitLamb and ZeroOneAdam, which stand for the papers' forms as DeepSpeed computes them: no bias correction, no bound on steps, a scale per
/// tensor, v constant once it is frozen, DeepSpeed's defaults. Options are those of DeepSpeed's
/// configuration ("params") and the members of our structs, the same for both kinds of names;
/// examples/guide/deepspeed.md has a table of all. Throws invalid_input for unknown names and
/// options (with the nearest that there is), values that cannot be read, options that cannot be
/// what they ask for, and two names of one option; ranges are checked by the algorithm.
[[nodiscard, gnu::cold]] inline named_optimizer read_options(const std::string& name,
                                                             const option_map& options) {
  using detail::lower_case;
  const std::string lower = lower_case(name);
  const auto is = [&](const char* ours, const char* deepspeed) {
    return name == ours || lower == deepspeed;
  };
  named_optimizer o;
  if (is("adam", "adam") || lower == "adamw") {
    o.which = algorithm::adam;
  } else if (is("lamb", "lamb")) {
    o.which = algorithm::lamb;
  } else if (is("one_bit_adam", "onebitadam")) {
    o.which = algorithm::one_bit_adam;
  } else if (is("one_bit_lamb", "onebitlamb")) {
    o.which = algorithm::one_bit_lamb;
  } else if (is("zero_one_adam", "zerooneadam")) {
    o.which = algorithm::zero_one_adam;
  } else {
    throw invalid_input(detail::message(
        "make_optimizer: there is no algorithm '", name,
        "'; there are adam, lamb, one_bit_adam, one_bit_lamb, zero_one_adam, and DeepSpeed's Adam, "
        "AdamW, Lamb, OneBitAdam, OneBitLamb, ZeroOneAdam"));
  }
  const bool as_deepspeed =
      lower == "onebitadam" || lower == "onebitlamb" || lower == "zerooneadam";
  detail::option_reader r(name, options);
  r.read({"lr"}, o.lr);
  if (!(o.lr >= 0)) r.fail({"lr is ", o.lr, ", must not be negative"});
  if (double decay = 0; r.read({"weight_decay"}, decay)) o.weight_decay = decay;
  detail::read_deepspeed(r);
  const auto read_bucket = [&] {
    std::uint64_t bucket = o.bucket_elements;
    r.read({"bucket_elements"}, bucket);
    o.bucket_elements = static_cast<std::size_t>(bucket);
  };
  const auto read_scales = [&] {
    if (as_deepspeed) o.scale_elements = 0;
    std::uint64_t elements = o.scale_elements;
    r.read({"scale_elements"}, elements);
    o.scale_elements = static_cast<std::size_t>(elements);
  };
  const auto compressing = [&](auto& rule) {
    detail::read_moments(r, rule, as_deepspeed);
    r.read({"max_step"}, rule.max_step);
    read_bucket();
  };
  if (o.which == algorithm::adam) {
    detail::read_moments(r, o.adam, false);
    bool torch = false, decoupled = true;
    r.read({"torch_adam"}, torch);
    r.read({"adam_w_mode"}, decoupled);
    r.ignore("set_grad_none");
    if (!decoupled && lower != "adamw" && o.weight_decay.value_or(0) != 0) {
      r.fail({"adam_w_mode is false with weight_decay ", *o.weight_decay,
              ": the decay is decoupled from the gradient (AdamW) here; leave adam_w_mode out, or "
              "add the decay to your gradients and give weight_decay 0"});
    }
    if (torch && !o.weight_decay) {
      r.fail(
          {"torch_adam without weight_decay: torch's own default is 0.01 in AdamW and 0 in Adam; "
           "say which you mean"});
    }
    detail::read_sum(r, "sum", o.sum);
  } else if (o.which == algorithm::lamb) {
    detail::read_moments(r, o.lamb, false);
    detail::read_coefficients(r, o.lamb);
    detail::read_sum(r, "sum", o.sum);
  } else if (o.which == algorithm::one_bit_adam) {
    compressing(o.one_bit_adam.adam);
    read_scales();
    detail::read_freeze(r, o.one_bit_adam.freeze, as_deepspeed);
    if (as_deepspeed) o.one_bit_adam.refreshes = 0;
    r.read({"refreshes"}, o.one_bit_adam.refreshes);
    detail::read_sum(r, "warm_up_sum", o.one_bit_adam.warm_up_sum);
  } else if (o.which == algorithm::one_bit_lamb) {
    lamb_options& lamb = o.one_bit_lamb.lamb;
    compressing(lamb);
    detail::read_coefficients(r, lamb);
    r.read({"coeff_beta"}, lamb.coeff_beta);
    r.read({"factor_min"}, lamb.factor_min);
    r.read({"factor_max"}, lamb.factor_max);
    r.read({"factor_threshold"}, lamb.factor_threshold);
    r.read({"momentum_scaling"}, lamb.momentum_scaling);
    detail::read_freeze(r, o.one_bit_lamb.freeze, as_deepspeed);
    detail::read_sum(r, "warm_up_sum", o.one_bit_lamb.warm_up_sum);
  } else {
    compressing(o.zero_one_adam.adam);
    read_scales();
    detail::read_intervals(r, o.zero_one_adam.schedule, as_deepspeed);
    detail::read_sum(r, "refresh_sum", o.zero_one_adam.refresh_sum);
  }
  r.finish();
  return o;
}

}  // namespace onebit::inline v0_1
