// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// What a trainer can do without a compressed optimizer: fewer bits in gradients, or fewer averages.
#pragma once

#include <functional>
#include <memory>
#include <onebit/any_optimizer.hpp>
#include <onebit/compressed_allreduce.hpp>
#include <onebit/onebit.hpp>
#include <onebit/transport/alone.hpp>
#include <utility>

namespace tasks {

using groups = std::vector<onebit::param_group<>>;
/// Makes one step at a learning rate.
using stepper = std::function<onebit::report(float rate)>;

inline stepper steps_of(onebit::any_optimizer optimizer) {
  optimizer.warn_with(nullptr);  // the table shows the result
  const auto own = std::make_shared<onebit::any_optimizer>(std::move(optimizer));
  return [own](float rate) { return own->step(rate); };
}

/// Adam of gradients that are averaged as `collective` compresses them, with error feedback.
template <class Collective>
stepper adam_of_averages(const groups& g, onebit::threads comm, onebit::adam_options options,
                         const Collective& collective) {
  std::vector<std::size_t> sizes;
  std::vector<std::span<float>> gradients;
  for (const auto& t : g[0].tensors) {
    sizes.push_back(t.params.size());
    gradients.push_back(t.grads);
  }
  using averages_type = onebit::compressed_allreduce<Collective>;
  const auto averages = std::make_shared<averages_type>(comm, sizes, collective);
  const stepper adam = steps_of(onebit::adam(g, onebit::alone(), options));
  return [=](float rate) {
    const std::uint64_t before = averages->sent().bytes_sent;
    const bool skipped = averages->mean(gradients) == onebit::outcome::skipped;
    onebit::report done = skipped ? onebit::report{.skipped = true} : adam(rate);
    done.bytes_sent = averages->sent().bytes_sent - before;
    return done;
  };
}

/// Adam of each rank's own gradients. Parameters are averaged in every `interval`-th step, and in
/// step `last`.
inline stepper local_adam(const groups& g, onebit::threads comm, onebit::adam_options options,
                          std::int64_t interval, std::int64_t last) {
  const stepper adam = steps_of(onebit::adam(g, onebit::alone(), options));
  const auto n_steps = std::make_shared<std::int64_t>(0);
  return [=, tensors = g[0].tensors](float rate) mutable {
    onebit::report done = adam(rate);
    if (++*n_steps % interval != 0 && *n_steps != last) return done;
    for (const auto& t : tensors) {
      comm.all_reduce_sum(t.params.data(), t.params.size());
      for (float& x : t.params) x /= static_cast<float>(comm.size());
      const auto w = static_cast<std::uint64_t>(comm.size());
      done.bytes_sent += 2 * (w - 1) * 4 * t.params.size() / w;
    }
    return done;
  };
}

}  // namespace tasks
