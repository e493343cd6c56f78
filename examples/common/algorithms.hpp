// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// The trainers' interface to onebit: optimizers by name, over transports by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <onebit/any_optimizer.hpp>
#include <onebit/extras/by_name.hpp>
#include <span>
#include <string>
#include <vector>

namespace common {

std::vector<std::string> available_algorithms();
std::vector<std::string> available_transports();

struct parameter {
  std::span<float> value;
  std::span<float> gradient;  // a step may overwrite it
  bool decay;
};

struct optimizer_settings {
  double beta2;
  double eps;
  // Steps at the start: for one_bit_adam and one_bit_lamb, steps that send exact averages; for
  // zero_one_adam, steps that all exchange (none of them is a local step).
  std::uint64_t freeze_after;
  double max_grad_norm = 0;  // largest global norm of gradients; 0: no clipping
  // Wire format of averages: automatic (fp32 here), in_bf16 or in_int8.
  std::string averages = "automatic";
  std::size_t bucket_elements = 0;  // size of a bucket of the compressed exchange; 0: one bucket
  // Ranks of zero_one_adam have equal parameters after each multiple of this number of steps.
  std::uint64_t meet_every;
};

// One rank's link to the others.
struct rank_link {
  int rank;
  int size;
  std::function<void(const void* send, void* receive, std::size_t bytes_per_rank)> all_gather;
  std::function<onebit::any_optimizer(const std::string& algorithm, std::span<const parameter>,
                                      const optimizer_settings&)>
      make_optimizer;
  std::function<void(float learning_rate)> after_step{};  // called after each step, if set
  // Makes a step, if set; else optimizer.step(learning_rate) does.
  std::function<onebit::report(onebit::any_optimizer&, float learning_rate)> step{};
  // True if steps only enqueue work: their time is measured between two waits.
  bool is_deferred = false;

  // Returns the values of all ranks, in rank order. Collective.
  template <class T>
  std::vector<T> gather(const T& mine) const {
    const auto all = std::make_unique<T[]>(static_cast<std::size_t>(size));  // T may be bool
    all_gather(&mine, all.get(), sizeof(T));
    return std::vector<T>(all.get(), all.get() + size);
  }
};

// Makes two groups: matrices, with weight decay; biases and gains, without.
std::vector<onebit::param_group<>> make_groups(std::span<const parameter> parameters);

// Returns the options of an algorithm, for onebit::make_optimizer.
onebit::option_map options_of(const std::string& algorithm, const optimizer_settings& settings);

// Runs f on every rank: on `ranks` threads (0: four), or in this process as one of mpirun's, whose
// number must be `ranks` unless that is 0.
void run_ranks(const std::string& transport, int ranks, const std::function<void(rank_link&)>& f);

}  // namespace common
