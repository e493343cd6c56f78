// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Adam's v in double, from the mean of all ranks' gradients. Ranks are threads, which share it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <onebit/step/read_moments.hpp>
#include <onebit/transport/threads.hpp>
#include <span>
#include <utility>
#include <vector>

namespace long_language_model {

/// v of the library over the true one, of the elements whose true v is above 0.
struct variance_ratios {
  double least = 0, hundredth = 0, median = 0, last_hundredth = 0, most = 0;
  double unknown = 0;  ///< share of all elements whose v is 0 in the library alone
};

class true_variance {
 public:
  true_variance(int ranks, std::size_t n) : gradients_(static_cast<std::size_t>(ranks)), v_(n) {}

  std::vector<double>& values() { return v_; }

  /// The gradients of a rank, tensor after tensor.
  void join(int rank, std::vector<std::span<float>> gradients) {
    gradients_[static_cast<std::size_t>(rank)] = std::move(gradients);
  }

  /// Takes in the gradients of this step. Collective; each rank updates its part.
  void update(onebit::threads& comm, double beta2) {
    wait(comm);
    const auto rank = static_cast<std::size_t>(comm.rank()), ranks = gradients_.size();
    const std::size_t begin = v_.size() * rank / ranks, end = v_.size() * (rank + 1) / ranks;
    std::size_t first = 0;
    for (std::size_t t = 0; t < gradients_[0].size(); ++t) {
      const std::size_t size = gradients_[0][t].size();
      const std::size_t from = std::clamp(begin, first, first + size) - first;
      const std::size_t to = std::clamp(end, first, first + size) - first;
      for (std::size_t i = from; i < to; ++i) {
        double mean = 0;
        for (const auto& of_rank : gradients_) mean += static_cast<double>(of_rank[t][i]);
        mean /= static_cast<double>(ranks);
        double& v = v_[first + i];
        v = beta2 * v + (1 - beta2) * mean * mean;
      }
      first += size;
    }
    wait(comm);
  }

  variance_ratios compare(const std::vector<onebit::tensor_moments>& moments) const {
    std::vector<double> ratios;
    ratios.reserve(v_.size());
    std::size_t at = 0, unknown = 0;
    for (const onebit::tensor_moments& tensor : moments) {
      for (const float v : tensor.v) {
        const double reference = v_[at++];
        if (reference > 0) ratios.push_back(static_cast<double>(v) / reference);
        if (reference > 0 && v == 0) ++unknown;
      }
    }
    std::sort(ratios.begin(), ratios.end());
    if (ratios.empty()) return {};
    const auto quantile = [&](double share) {
      return ratios[static_cast<std::size_t>(share * static_cast<double>(ratios.size() - 1))];
    };
    return {quantile(0),    quantile(0.01), quantile(0.5),
            quantile(0.99), quantile(1),    static_cast<double>(unknown) / static_cast<double>(at)};
  }

 private:
  static void wait(onebit::threads& comm) {
    const char nothing = 0;
    std::vector<char> all(static_cast<std::size_t>(comm.size()));
    comm.all_gather(&nothing, all.data(), 1);
  }

  std::vector<std::vector<std::span<float>>> gradients_;
  std::vector<double> v_;
};

}  // namespace long_language_model
