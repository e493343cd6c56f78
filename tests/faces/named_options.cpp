// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Options by name: every key, under the names of both kinds.

#include <doctest/doctest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <onebit/extras/by_name.hpp>
#include <onebit/transport/threads.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

using namespace onebit;

namespace {

/// What reading throws; empty: nothing.
std::string refusal(const std::string& name, const option_map& options) {
  try {
    (void)read_options(name, options);
  } catch (const invalid_input& e) {
    return e.what();
  }
  return {};
}
bool says(const std::string& text, const std::string& part) {
  CAPTURE(text);
  return text.find(part) != std::string::npos;
}

const char* const all_names[] = {"adam",          "lamb",       "one_bit_adam", "one_bit_lamb",
                                 "zero_one_adam", "Adam",       "AdamW",        "Lamb",
                                 "OneBitAdam",    "OneBitLamb", "ZeroOneAdam"};

}  // namespace

TEST_CASE("names: ours, and DeepSpeed's in any case") {
  CHECK(read_options("adam", {}).which == algorithm::adam);
  CHECK(read_options("AdamW", {}).which == algorithm::adam);
  CHECK(read_options("ADAM", {}).which == algorithm::adam);
  CHECK(read_options("Lamb", {}).which == algorithm::lamb);
  CHECK(read_options("OneBitAdam", {}).which == algorithm::one_bit_adam);
  CHECK(read_options("onebitlamb", {}).which == algorithm::papers_one_bit_lamb);
  CHECK(read_options("ZeroOneAdam", {}).which == algorithm::zero_one_adam);
  CHECK(read_options("zero_one_adam", {{"warmup_steps", "9"}}).which == algorithm::zero_one_adam);
  CHECK(says(refusal("Muon", {}), "there is no algorithm 'Muon'; there are adam, lamb"));
  CHECK(says(refusal("One_Bit_Adam", {}), "there is no algorithm"));
}

TEST_CASE("our names have our defaults, DeepSpeed's names theirs") {
  const auto ours = read_options("one_bit_adam", {}).one_bit_adam;
  CHECK(ours.adam.bias_correction);
  CHECK(ours.max_step == 2);
  CHECK(ours.freeze.after == 5);
  CHECK(ours.refreshes == 3);
  CHECK(read_options("one_bit_adam", {}).scale_elements == onebit::tile_elements);
  CHECK(read_options("zero_one_adam", {}).scale_elements == onebit::tile_elements);
  CHECK(read_options("OneBitAdam", {}).scale_elements == 0);
  CHECK(read_options("OneBitAdam", {}).scale_factor == 1);
  CHECK(read_options("one_bit_adam", {}).scale_factor ==
        static_cast<double>(onebit::l2_scale::normal_factor));
  CHECK(read_options("ZeroOneAdam", {}).scale_elements == 0);
  const auto theirs = read_options("OneBitAdam", {}).one_bit_adam;
  CHECK_FALSE(theirs.adam.bias_correction);
  CHECK(theirs.max_step == 0);
  CHECK(theirs.freeze.after == 100000);
  CHECK(theirs.refreshes == 0);
  CHECK(theirs.adam.beta1 == 0.9);
  CHECK(theirs.adam.beta2 == 0.999);
  CHECK(theirs.adam.eps == 1e-8);

  const auto lamb = read_options("OneBitLamb", {}).papers_one_bit_lamb;
  CHECK_FALSE(lamb.lamb.bias_correction);
  CHECK(lamb.lamb.max_coeff == 10);
  CHECK(lamb.lamb.min_coeff == 0.01);
  CHECK(lamb.lamb.coeff_beta == 0.9);
  CHECK(lamb.lamb.factor_max == 4);
  CHECK(lamb.lamb.factor_min == 0.5);
  CHECK(lamb.lamb.factor_threshold == 0.1);
  CHECK(lamb.freeze.after == 100000);
  CHECK(read_options("one_bit_lamb", {}).one_bit_lamb.freeze.after == 5);
  CHECK(read_options("one_bit_lamb", {}).one_bit_lamb.refreshes == 3);
  CHECK(read_options("zero_one_adam", {{"warmup_steps", "9"}}).zero_one_adam.own_variance);
  CHECK_FALSE(read_options("ZeroOneAdam", {}).zero_one_adam.own_variance);

  const auto zero_one = read_options("ZeroOneAdam", {}).zero_one_adam;
  CHECK_FALSE(zero_one.adam.bias_correction);
  CHECK(zero_one.max_step == 0);
  CHECK(zero_one.schedule.warmup_steps == 100000);
  CHECK(zero_one.schedule.kappa == 16);
  CHECK(zero_one.schedule.doubling_steps == 32678);
  CHECK(zero_one.schedule.max_interval == 16);
  CHECK(zero_one.schedule.stop_refreshing);
  const auto own_zero_one = read_options("zero_one_adam", {}).zero_one_adam.schedule;
  CHECK_FALSE(own_zero_one.stop_refreshing);
  CHECK(own_zero_one.after == 5);
  CHECK(own_zero_one.refreshes == 3);
  CHECK(own_zero_one.kappa == 0);
  CHECK(own_zero_one.doubling_steps == 16);
  CHECK(own_zero_one.max_interval == 8);
  CHECK(read_options("zero_one_adam", {}).bits == 2);
  CHECK(read_options("ZeroOneAdam", {}).bits == 1);

  CHECK(read_options("Adam", {}).adam.bias_correction);
  CHECK(read_options("Lamb", {}).lamb.bias_correction);
}

TEST_CASE("what all algorithms have") {
  for (const char* name : all_names) {
    CAPTURE(name);
    const option_map given{{"lr", "2e-4"},           {"betas", "[0.8, 0.98]"},
                           {"weight_decay", "0.01"}, {"gradient_clipping", "1.5"},
                           {"cuda_aware", "true"},   {"comm_backend_name", "mpi"},
                           {"eps", "1e-6"},          {"bias_correction", "false"},
                           {"amsgrad", "False"},     {"eps_inside_sqrt", "false"}};
    const named_optimizer o = read_options(name, given);
    CHECK(o.lr == 2e-4);
    CHECK(o.weight_decay == 0.01);
    const auto moments = [](const auto& rule) {
      CHECK(rule.beta1 == 0.8);
      CHECK(rule.beta2 == 0.98);
      CHECK(rule.max_grad_norm == 1.5);
      CHECK(rule.eps == 1e-6);
      CHECK_FALSE(rule.bias_correction);
    };
    if (o.which == algorithm::adam) moments(o.adam);
    if (o.which == algorithm::lamb) moments(o.lamb);
    if (o.which == algorithm::one_bit_adam) moments(o.one_bit_adam.adam);
    if (o.which == algorithm::one_bit_lamb) moments(o.one_bit_lamb.lamb);
    if (o.which == algorithm::papers_one_bit_lamb) moments(o.papers_one_bit_lamb.lamb);
    if (o.which == algorithm::zero_one_adam) moments(o.zero_one_adam.adam);

    CHECK(read_options(name, {}).lr == 1e-3);
    CHECK_FALSE(read_options(name, {}).weight_decay.has_value());
    CHECK(says(refusal(name, {{"amsgrad", "true"}}), "amsgrad is true: there is no AMSGrad"));
    CHECK(says(refusal(name, {{"eps_inside_sqrt", "true"}}), "eps is added to the root"));
    CHECK(says(refusal(name, {{"exp_avg_mask", "x"}}), "exp_avg_mask: elements without"));
    CHECK(says(refusal(name, {{"non_freeze", "true"}}), "non_freeze: give tensors"));
    CHECK(says(refusal(name, {{"cuda_aware", "maybe"}}), "must be true or false"));
    for (const char* backend : {"nccl", "mpi", "compressed", "hccl"}) {
      CHECK(refusal(name, {{"comm_backend_name", backend}}).empty());
    }
    CHECK(says(refusal(name, {{"comm_backend_name", "gloo"}}),
               "comm_backend_name is 'gloo', must be one of: nccl, mpi, compressed, hccl"));
    CHECK(says(refusal(name, {{"lr", "-1"}}), "lr is -1, must not be negative"));
    CHECK(says(refusal(name, {{"betas", "[0.9]"}}), "betas is '[0.9]', must be two numbers"));
    CHECK(says(refusal(name, {{"betas", "[0.9, 0.99]"}, {"beta2", "0.9"}}), "are the same"));
    CHECK(says(refusal(name, {{"max_grad_norm", "1"}, {"gradient_clipping", "1"}}),
               "max_grad_norm and gradient_clipping are the same option"));
  }
  const auto moments = read_options("one_bit_adam", {{"beta1", "0.5"}, {"beta2", "0.6"}});
  CHECK(moments.one_bit_adam.adam.beta1 == 0.5);
  CHECK(moments.one_bit_adam.adam.beta2 == 0.6);
  CHECK(
      read_options("OneBitAdam", {{"bias_correction", "true"}}).one_bit_adam.adam.bias_correction);
}

TEST_CASE("the keys of one algorithm, and which others have them") {
  struct key {
    const char* name;
    const char* value;
    std::set<algorithm> of;
  };
  using enum algorithm;
  const std::set<algorithm> freezing{one_bit_adam, one_bit_lamb, papers_one_bit_lamb},
      lambs{lamb, one_bit_lamb, papers_one_bit_lamb},
      following{one_bit_adam, one_bit_lamb, zero_one_adam},
      freezing_or_zero_one{one_bit_adam, one_bit_lamb, papers_one_bit_lamb, zero_one_adam},
      compressing{one_bit_adam, one_bit_lamb, papers_one_bit_lamb, zero_one_adam};
  const key keys[] = {{"torch_adam", "false", {adam}},
                      {"adam_w_mode", "true", {adam}},
                      {"set_grad_none", "true", {adam}},
                      {"sum", "rank_order", {adam, lamb}},
                      {"max_coeff", "0.3", lambs},
                      {"min_coeff", "0.02", lambs},
                      {"freeze_step", "400", freezing},
                      {"after", "400", freezing_or_zero_one},
                      {"schedule.after", "400", {zero_one_adam}},
                      {"freeze.after", "400", freezing},
                      {"warm_up_sum", "transport", freezing},
                      {"refreshes", "3", following},
                      {"schedule.refreshes", "3", {zero_one_adam}},
                      {"bits", "2", {zero_one_adam}},
                      {"own_variance", "false", {zero_one_adam}},
                      {"max_step", "5", following},
                      {"bucket_elements", "1000", compressing},
                      {"scale_elements", "256", following},
                      {"scale_factor", "1", following},
                      {"coeff_beta", "0.8", {papers_one_bit_lamb}},
                      {"factor_max", "3", {papers_one_bit_lamb}},
                      {"factor_min", "0.4", {papers_one_bit_lamb}},
                      {"factor_threshold", "0.2", {papers_one_bit_lamb}},
                      {"momentum_scaling", "false", {papers_one_bit_lamb}},
                      {"var_freeze_step", "1000", {zero_one_adam}},
                      {"var_update_scaler", "8", {zero_one_adam}},
                      {"local_step_scaler", "500", {zero_one_adam}},
                      {"local_step_clipper", "4", {zero_one_adam}},
                      {"warmup_steps", "1000", {zero_one_adam}},
                      {"kappa", "8", {zero_one_adam}},
                      {"doubling_steps", "500", {zero_one_adam}},
                      {"max_interval", "4", {zero_one_adam}},
                      {"also_every", "7", {zero_one_adam}},
                      {"stop_refreshing", "true", {zero_one_adam}},
                      {"schedule.kappa", "8", {zero_one_adam}},
                      {"schedule.max_interval", "4", {zero_one_adam}},
                      {"refresh_sum", "transport", {zero_one_adam}}};
  for (const key& k : keys) {
    for (const char* name : all_names) {
      CAPTURE(k.name);
      CAPTURE(name);
      const bool has = k.of.contains(read_options(name, {}).which);
      const std::string key = k.name;
      option_map given{{key, k.value}};
      if (has && std::string(name) == "zero_one_adam" && key.starts_with("scale_")) {
        CHECK(says(refusal(name, given), "give bits 1 too"));
        given.emplace("bits", "1");
      }
      if (std::string(name) == "ZeroOneAdam" &&
          (key.ends_with("after") || key.ends_with("refreshes")) && has) {
        CHECK(says(refusal(name, given), "is not used if kappa is above 0"));
        given.emplace("kappa", "0");
      }
      const std::string why = refusal(name, given);
      CHECK(why.empty() == has);
      if (!has) CHECK(says(why, std::string("there is no option ") + k.name));
    }
  }
}

TEST_CASE("the guide has every key") {
  std::ifstream in(ONEBIT_SOURCE_DIR "/docs/deepspeed.md");
  const std::string guide{std::istreambuf_iterator<char>(in), {}};
  for (const char* name : all_names) {
    const std::string known = refusal(name, {{"no such key", ""}});
    const std::string list = "It knows: ";
    REQUIRE(says(known, list));
    std::istringstream keys(known.substr(known.find(list) + list.size()));
    for (std::string key; std::getline(keys >> std::ws, key, ',');) {
      CAPTURE(key);
      if (key.find('.') != std::string::npos) continue;  // said of all at once
      CHECK(says(guide, "`" + key + "`"));
    }
  }
}

TEST_CASE("a warm-up of DeepSpeed's default length is told at construction, by rank 0") {
  const auto told = [](int n_ranks, const std::string& name, const option_map& options) {
    std::fflush(stderr);
    const int old = dup(2);
    std::FILE* const file = std::tmpfile();
    REQUIRE(file != nullptr);
    dup2(fileno(file), 2);
    run_threads(n_ranks, [&](threads comm) {
      std::vector<float> x(8), g(8);
      std::vector<param_group<>> groups(1);
      groups[0].tensors.push_back({x, g});
      (void)make_optimizer(name, options, groups, comm);
    });
    std::fflush(stderr);
    dup2(old, 2);
    close(old);
    std::rewind(file);
    std::string text(1000, '\0');
    text.resize(std::fread(text.data(), 1, text.size(), file));
    std::fclose(file);
    return text;
  };
  for (const char* name : {"OneBitAdam", "OneBitLamb", "onebitadam"}) {
    CHECK(
        told(2, name, {}) ==
        "onebit::make_optimizer: " + std::string(name) +
            " without freeze_step: the warm-up has DeepSpeed's default of 100000 steps, which are "
            "all dense; a run that ends before it never leaves it; give freeze_step\n");
    for (const char* key : {"freeze_step", "after", "freeze.after"}) {
      CHECK(told(2, name, {{key, "100000"}}).empty());
    }
  }
  CHECK(says(told(2, "ZeroOneAdam", {}), "without var_freeze_step: the warm-up has"));
  CHECK(told(2, "ZeroOneAdam", {{"var_freeze_step", "9"}}).empty());
  CHECK(told(2, "ZeroOneAdam", {{"schedule.warmup_steps", "9"}}).empty());
  CHECK(told(1, "OneBitAdam", {}).empty());
  for (const char* name : {"one_bit_adam", "one_bit_lamb", "zero_one_adam", "AdamW", "lamb"}) {
    CHECK(told(2, name, {}).empty());
  }
}

TEST_CASE("each key sets what it means") {
  const auto one_bit = [](const option_map& o) { return read_options("OneBitAdam", o); };
  CHECK(one_bit({{"freeze_step", "400"}}).one_bit_adam.freeze.after == 400);
  CHECK(one_bit({{"freeze_step", "1e5"}}).one_bit_adam.freeze.after == 100000);
  CHECK(one_bit({{"after", "0"}}).one_bit_adam.freeze.after == 0);
  CHECK(one_bit({{"freeze.after", "5"}}).one_bit_adam.freeze.after == 5);
  CHECK(one_bit({{"refreshes", "3"}}).one_bit_adam.refreshes == 3);
  CHECK(one_bit({{"max_step", "5"}}).one_bit_adam.max_step == 5);
  CHECK(one_bit({{"max_grad_norm", "5"}}).one_bit_adam.adam.max_grad_norm == 5);
  CHECK(one_bit({{"bucket_elements", "1000"}}).bucket_elements == 1000);
  CHECK(one_bit({{"scale_elements", "256"}}).scale_elements == 256);
  CHECK(one_bit({{"scale_factor", "1.5"}}).scale_factor == 1.5);
  CHECK_THROWS_WITH_AS((void)one_bit({{"scale_factor", "0"}}), doctest::Contains("above 0"),
                       onebit::invalid_input);
  CHECK(read_options("zero_one_adam", {{"scale_elements", "0"}, {"bits", "1"}}).scale_elements ==
        0);
  CHECK(says(refusal("zero_one_adam", {{"bits", "3"}}), "bits is 3, must be 1 or 2"));
  CHECK(one_bit({{"warm_up_sum", "transport"}}).one_bit_adam.warm_up_sum == dense_sum::transport);
  CHECK(one_bit({{"warm_up_sum", "rank_order"}}).one_bit_adam.warm_up_sum == dense_sum::rank_order);
  CHECK(read_options("adam", {}).sum == dense_sum::automatic);
  CHECK(read_options("adam", {{"sum", "transport"}}).sum == dense_sum::transport);
  CHECK(read_options("adam", {{"sum", "in_bf16"}}).sum == dense_sum::in_bf16);
  CHECK(read_options("adam", {{"sum", "in_int8"}}).sum == dense_sum::in_int8);
  CHECK(read_options("adam", {{"sum", "automatic"}}).sum == dense_sum::automatic);
  CHECK(read_options("adam", {{"sum", "transport_in_bf16"}}).sum == dense_sum::transport_in_bf16);

  const auto lamb = read_options("OneBitLamb", {{"max_coeff", "0.3"},
                                                {"min_coeff", "0.02"},
                                                {"coeff_beta", "0.8"},
                                                {"factor_max", "3"},
                                                {"factor_min", "0.4"},
                                                {"factor_threshold", "0.2"},
                                                {"momentum_scaling", "false"},
                                                {"freeze_step", "9"},
                                                {"warm_up_sum", "transport"}})
                        .papers_one_bit_lamb;
  CHECK(lamb.lamb.max_coeff == 0.3);
  CHECK(lamb.lamb.min_coeff == 0.02);
  CHECK(lamb.lamb.coeff_beta == 0.8);
  CHECK(lamb.lamb.factor_max == 3);
  CHECK(lamb.lamb.factor_min == 0.4);
  CHECK(lamb.lamb.factor_threshold == 0.2);
  CHECK_FALSE(lamb.lamb.momentum_scaling);
  CHECK(lamb.freeze.after == 9);
  CHECK(lamb.warm_up_sum == dense_sum::transport);
  const auto baseline = read_options("Lamb", {{"max_coeff", "0.3"}, {"min_coeff", "0.02"}}).lamb;
  CHECK(baseline.max_coeff == 0.3);
  CHECK(baseline.min_coeff == 0.02);

  const auto theirs = read_options("ZeroOneAdam", {{"var_freeze_step", "1000"},
                                                   {"var_update_scaler", "8"},
                                                   {"local_step_scaler", "500"},
                                                   {"local_step_clipper", "4"},
                                                   {"refresh_sum", "transport"}})
                          .zero_one_adam;
  CHECK(theirs.schedule.warmup_steps == 1000);
  CHECK(theirs.schedule.kappa == 8);
  CHECK(theirs.schedule.doubling_steps == 500);
  CHECK(theirs.schedule.max_interval == 4);
  CHECK(theirs.schedule.also_every == 0);
  CHECK(theirs.refresh_sum == dense_sum::transport);
  const auto ours = read_options("zero_one_adam", {{"warmup_steps", "1000"},
                                                   {"kappa", "8"},
                                                   {"doubling_steps", "500"},
                                                   {"max_interval", "4"},
                                                   {"also_every", "7"},
                                                   {"stop_refreshing", "true"}})
                        .zero_one_adam.schedule;
  CHECK(ours.warmup_steps == 1000);
  CHECK(ours.kappa == 8);
  CHECK(ours.doubling_steps == 500);
  CHECK(ours.max_interval == 4);
  CHECK(ours.also_every == 7);
  CHECK(ours.stop_refreshing);
}

TEST_CASE("options that cannot be what they ask for") {
  CHECK(refusal("Adam", {{"adam_w_mode", "false"}}).empty());
  CHECK(refusal("Adam", {{"adam_w_mode", "false"}, {"weight_decay", "0"}}).empty());
  CHECK(says(refusal("Adam", {{"adam_w_mode", "false"}, {"weight_decay", "0.1"}}), "decoupled"));
  CHECK(refusal("AdamW", {{"adam_w_mode", "false"}, {"weight_decay", "0.1"}}).empty());
  CHECK(says(refusal("AdamW", {{"torch_adam", "true"}}), "torch's own default is 0.01"));
  CHECK(refusal("AdamW", {{"torch_adam", "true"}, {"weight_decay", "0.01"}}).empty());
  CHECK(says(refusal("OneBitAdam", {{"freeze_step", "9"}, {"after", "9"}}), "same option"));
  CHECK(says(refusal("ZeroOneAdam", {{"kappa", "9"}, {"var_update_scaler", "9"}}),
             "kappa and var_update_scaler are the same option; give one"));
}

TEST_CASE("what cannot be read, and what is near") {
  CHECK(says(refusal("OneBitAdam", {{"freeze_stp", "9"}}), "did you mean freeze_step?"));
  CHECK(says(refusal("OneBitAdam", {{"Freeze_Step", "9"}}), "did you mean freeze_step?"));
  CHECK(says(refusal("OneBitAdam", {{"learning_rate", "9"}}), "there is no option learning_rate"));
  CHECK_FALSE(says(refusal("OneBitAdam", {{"learning_rate", "9"}}), "did you mean"));
  CHECK(says(refusal("OneBitAdam", {{"learning_rate", "9"}}), "It knows: lr, weight_decay"));
  CHECK(says(refusal("OneBitAdam", {{"freeze_step", "-4"}}), "must be a count"));
  CHECK(says(refusal("OneBitAdam", {{"freeze_step", "4.5"}}), "must be a count"));
  CHECK(says(refusal("OneBitAdam", {{"freeze_step", "1e300"}}), "must be a count"));
  for (const char* text : {"++1", "+ 1", "+-1", "+", "+nan", "1 2"}) {
    CHECK(says(refusal("adam", {{"eps", text}}), "must be a number"));
  }
  for (const char* text : {"+1", " +1e-3 ", "+.5"}) CHECK(refusal("adam", {{"eps", text}}).empty());
  CHECK(says(refusal("OneBitAdam", {{"eps", "1e-8x"}}), "eps is '1e-8x', must be a number"));
  CHECK(says(refusal("OneBitAdam", {{"eps", ""}}), "must be a number"));
  CHECK(says(refusal("OneBitAdam", {{"eps", "nan"}}), "must be a number"));
  CHECK(says(refusal("OneBitAdam", {{"eps", "inf"}}), "must be a number"));
  CHECK(says(refusal("OneBitAdam", {{"lr", "auto"}}), "must fill in what is auto"));
  CHECK(says(refusal("OneBitAdam", {{"warm_up_sum", "ring"}}),
             "one of: automatic, rank_order, transport, in_bf16, in_int8"));
  CHECK(read_options("adam", {{"betas", "0.8,0.9"}}).adam.beta2 == 0.9);
  CHECK(read_options("adam", {{"eps", " +1e-7 "}}).adam.eps == 1e-7);
}
