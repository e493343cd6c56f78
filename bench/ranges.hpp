// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Every size and range that the benchmarks run over.

#ifndef ONEBIT_BENCH_RANGES_HPP
#define ONEBIT_BENCH_RANGES_HPP

#include <cstddef>
#include <cstdlib>
#include <vector>

namespace onebit_bench {

/// Set by `run.sh --quick`: the large sizes are left out.
inline bool quick() {
  const char* value = std::getenv("ONEBIT_BENCH_QUICK");
  return value != nullptr && *value != '\0' && *value != '0';
}

/// Set by `run.sh --tiny`: sizes that say whether a benchmark works, and no more.
inline bool tiny() {
  const char* value = std::getenv("ONEBIT_BENCH_TINY");
  return value != nullptr && *value != '\0' && *value != '0';
}

/// 2^first, 2^(first + step), ... up to 2^last.
inline std::vector<std::size_t> powers(unsigned first, unsigned last, unsigned step) {
  std::vector<std::size_t> sizes;
  for (unsigned e = first; e <= last; e += step) sizes.push_back(std::size_t{1} << e);
  return sizes;
}

// -- passes: from what the second-level cache holds to far more than the last one

inline std::vector<std::size_t> pass_sizes() { return powers(14, quick() ? 22 : 26, 4); }
inline const std::vector<int> pass_threads{1, 2};
/// Shares of axpy are worth reporting where memory is the limit, from this size on.
inline constexpr std::size_t pass_headline = std::size_t{1} << 26;
/// Chunks that the message of a pass is cut into.
inline constexpr int pass_chunks = 4;

// -- on CUDA devices

inline std::vector<std::size_t> device_sizes(unsigned step) {
  return tiny() ? powers(14, 14, 1) : powers(20, quick() ? 24 : 28, step);
}

// -- whole steps

inline std::size_t step_parameters() { return std::size_t{1} << (quick() ? 20 : 24); }
inline constexpr int step_ranks = 2;
/// Steps before the timed ones: the warm-up, and what the compressed phase allocates at its start.
inline constexpr int step_warm_up = 4;

/// About 100 tensors with n elements in all, shaped as a small transformer: matrices, vectors, an
/// embedding that takes what is left, and sizes that are no multiple of a word.
inline std::vector<std::size_t> mixed_tensors(std::size_t n) {
  const std::size_t layers = 8;
  std::size_t width = 32;  // a layer has about 12 width^2 elements; the layers take about 5/6
  while (layers * 12 * (width + 32) * (width + 32) < n / 6 * 5) width += 32;
  std::vector<std::size_t> sizes;
  for (std::size_t l = 0; l < layers; ++l) {
    for (const std::size_t rows : {std::size_t{3}, std::size_t{1}}) {  // attention
      sizes.push_back(rows * width * width);
      sizes.push_back(rows * width);
    }
    for (int i = 0; i < 4; ++i) sizes.push_back(width);  // two norms
    sizes.push_back(4 * width * width);
    sizes.push_back(4 * width);
    sizes.push_back(4 * width * width);
    sizes.push_back(width + 1);
  }
  sizes.push_back(1);
  sizes.push_back(77);
  std::size_t used = 0;
  for (const std::size_t size : sizes) used += size;
  sizes.push_back(n - used);
  return sizes;
}

}  // namespace onebit_bench

#endif
