// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// What the trainers ask of onebit, with the types erased: algorithms.cpp alone includes its
// headers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace common {

std::vector<std::string> available_algorithms();
std::vector<std::string> available_transports();

// What one step of an optimizer did on this rank.
struct step_costs {
  std::string_view phase;
  std::optional<float> gradient_norm{};
  bool skipped = false;  // a gradient somewhere was not finite, so nothing was updated
  std::uint64_t bytes_sent = 0;
  std::uint64_t collectives = 0;
  double encode_seconds = 0;
  double communicate_seconds = 0;
  double update_seconds = 0;
};

struct optimizer {
  std::function<step_costs(float learning_rate)> step;
  // Both are collective.
  std::function<void(std::ostream&)> save;
  std::function<void(std::istream&)> load;
};

struct parameter {
  std::span<float> value;
  std::span<float> gradient;  // consumed by the optimizer's step
  bool decay;
};

struct optimizer_settings {
  double beta2;
  double eps;
  // Steps in which the variance still learns: those of one_bit_adam and one_bit_lamb send exact
  // averages; in those of zero_one_adam and zero_one_lion, which compress from the start, every
  // step exchanges.
  std::uint64_t freeze_after;
  double max_grad_norm = 0;  // gradients are clipped to it; 0: not at all
  // After every so-manieth step the ranks of those two have the same parameters.
  std::uint64_t meet_every;
};

// One rank's link to the others.
struct rank_link {
  int rank;
  int size;
  std::function<void(const void* send, void* receive, std::size_t bytes_per_rank)> all_gather;
  std::function<optimizer(const std::string& algorithm, std::span<const parameter>,
                          const optimizer_settings&)>
      make_optimizer;

  // Every rank's value, in the order of the ranks.
  template <class T>
  std::vector<T> gather(const T& mine) const {
    const auto all = std::make_unique<T[]>(static_cast<std::size_t>(size));  // T may be bool
    all_gather(&mine, all.get(), sizeof(T));
    return {all.get(), all.get() + size};
  }
};

// Runs f on every rank: on `ranks` threads, or on the calling process as one of mpirun's, whose
// number is checked against `ranks` unless that is 0.
void run_ranks(const std::string& transport, int ranks, const std::function<void(rank_link&)>& f);

}  // namespace common
