// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// What the trainers ask of onebit: optimizers by name, over a transport by name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <onebit/any_optimizer.hpp>
#include <onebit/by_name/make_optimizer.hpp>
#include <span>
#include <string>
#include <vector>

namespace common {

std::vector<std::string> available_algorithms();
std::vector<std::string> available_transports();

struct parameter {
  std::span<float> value;
  std::span<float> gradient;  // consumed by the optimizer's step
  bool decay;
};

struct optimizer_settings {
  double beta2;
  double eps;
  // Steps in which the variance still learns: those of one_bit_adam and one_bit_lamb send exact
  // averages; in those of zero_one_adam, which compresses from the start, every step exchanges.
  std::uint64_t freeze_after;
  double max_grad_norm = 0;  // gradients are clipped to it; 0: not at all
  // What averages travel in: automatic (fp32 here), in_bf16 or in_int8.
  std::string averages = "automatic";
  std::size_t bucket_elements = 0;  // of the compressed exchange; 0: one bucket
  // After every so-manieth step the ranks of zero_one_adam have the same parameters.
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
  std::function<void(float learning_rate)> after_step{};  // if it is there
  // How a step is taken, where it is not optimizer.step(learning_rate).
  std::function<onebit::report(onebit::any_optimizer&, float learning_rate)> step{};
  // Steps only enqueue: their time is that between two waits.
  bool is_deferred = false;

  // Every rank's value, in the order of the ranks.
  template <class T>
  std::vector<T> gather(const T& mine) const {
    const auto all = std::make_unique<T[]>(static_cast<std::size_t>(size));  // T may be bool
    all_gather(&mine, all.get(), sizeof(T));
    return std::vector<T>(all.get(), all.get() + size);
  }
};

// Matrices decay; biases and gains do not.
std::vector<onebit::param_group<>> make_groups(std::span<const parameter> parameters);

// What an algorithm is told.
onebit::option_map options_of(const std::string& algorithm, const optimizer_settings& settings);

// Runs f on every rank: on `ranks` threads, or on the calling process as one of mpirun's, whose
// number is checked against `ranks` unless that is 0.
void run_ranks(const std::string& transport, int ranks, const std::function<void(rank_link&)>& f);

}  // namespace common
