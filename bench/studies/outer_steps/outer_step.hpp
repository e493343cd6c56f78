// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// The outer step of DiLoCo (arXiv 2311.08105), over any transport.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/compressed_allreduce.hpp>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace outer_steps {

using tensors = std::vector<std::span<float>>;

/// Outer step: makes parameters equal on all ranks again. They must be equal at construction.
template <class Compressor>
class outer_step {
 public:
  template <class Transport>
  outer_step(Transport comm, tensors parameters, float rate, float momentum)
      : parameters_(std::move(parameters)),
        allreduce_(comm, sizes(), onebit::gather_scatter{Compressor{}}),
        rate_(rate),
        momentum_(momentum) {
    for (const auto t : parameters_) agreed_.insert(agreed_.end(), t.begin(), t.end());
    velocity_.resize(agreed_.size());
  }

  /// Collective. The next call sends the compression error of a difference. If the parameters of a
  /// rank are not finite, all ranks return to the parameters of the last outer step.
  void operator()() {
    std::size_t i = 0;
    for (const auto t : parameters_) {
      for (float& x : t) x = agreed_[i++] - x;
    }
    const bool met = allreduce_.mean(parameters_) != onebit::outcome::skipped;
    i = 0;
    for (const auto t : parameters_) {
      for (float& x : t) {  // explicit fma: a compiler's choice may differ between machines
        if (met) {
          velocity_[i] = std::fma(momentum_, velocity_[i], x);
          agreed_[i] = std::fma(-rate_, std::fma(momentum_, velocity_[i], x), agreed_[i]);
        }
        x = agreed_[i++];
      }
    }
  }

  /// Bytes that this rank sent in all outer steps, and the seconds that it took.
  onebit::traffic sent() const { return allreduce_.sent() - before_; }
  std::uint64_t bytes_sent() const { return sent().bytes_sent; }

  /// Expected bytes_sent(). Every other rank gets a chunk of the words (32 elements) and an
  /// averaged chunk, each with a scale per 4096 elements of a tensor and a status of 12 bytes.
  std::uint64_t expected_bytes() const {
    const auto ranks = static_cast<std::size_t>(allreduce_.size());
    std::size_t words = 0, word = 0, scales = 0;
    for (const auto t : parameters_) words += (t.size() + 31) / 32;
    const std::size_t chunk = (words + ranks - 1) / ranks;
    std::vector<std::set<std::pair<const float*, std::size_t>>> scales_of(ranks);
    for (const auto t : parameters_) {
      for (std::size_t at = 0; at < t.size(); at += 32, ++word) {
        scales_of[word / chunk].insert({t.data(), at / 4096});
      }
    }
    for (const auto& of : scales_of) scales = std::max(scales, of.size());
    return allreduce_.steps() * 2 * (ranks - 1) *
           (chunk * Compressor::word_bytes + (Compressor::scaled ? 4 * scales : 0) + 12);
  }

 private:
  std::vector<std::size_t> sizes() const {
    std::vector<std::size_t> all;
    for (const auto t : parameters_) all.push_back(t.size());
    return all;
  }

  tensors parameters_;
  onebit::compressed_allreduce<onebit::gather_scatter<Compressor>> allreduce_;
  onebit::traffic before_ = allreduce_.sent();  // bytes of the comparison of sizes and compressors
  float rate_;
  float momentum_;
  std::vector<float> agreed_, velocity_;
};

}  // namespace outer_steps
