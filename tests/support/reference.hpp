// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The oracle: this library's own semantics in plain loops and double precision, W ranks in one
// process, sharing no code with include/. Slow on purpose; everything is an array over the flat
// axis, which is walked element by element.

#ifndef ONEBIT_TESTS_SUPPORT_REFERENCE_HPP
#define ONEBIT_TESTS_SUPPORT_REFERENCE_HPP

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace onebit_test::reference {

using vec = std::vector<double>;
using rank_vecs = std::vector<vec>;

/// values[rank][tensor][i]
using rank_tensors = std::vector<std::vector<vec>>;

inline constexpr std::size_t word_elements = 32;
inline constexpr std::size_t padding = std::numeric_limits<std::size_t>::max();

/// Which elements share a scale, in the worker phase. The server phase cuts each set at the chunks.
enum class granularity { whole, layer, chunk, block };
enum class scale_norm { l2, l1 };  // ||y||_2 / sqrt(d), ||y||_1 / d
enum class exchange_kind { gather_scatter, all_gather };

/// Consecutive tensors that share hyperparameters.
struct group {
  std::size_t n_tensors = 0;
  double lr_factor = 1;
  double weight_decay = 0;
};

struct compression {
  granularity scales = granularity::whole;
  std::size_t block_elements = 0;  // of granularity::block
  scale_norm norm = scale_norm::l2;
  exchange_kind exchange = exchange_kind::gather_scatter;
  double factor = 1;  // of the scales
};

/// The flat axis: every tensor starts at a multiple of 32 elements; chunks are whole words.
class flat_axis {
 public:
  flat_axis(std::vector<std::size_t> sizes, std::size_t n_ranks) : sizes_(std::move(sizes)) {
    if (n_ranks == 0) throw std::invalid_argument("reference: no ranks");
    for (std::size_t k = 0; k < sizes_.size(); ++k) {
      starts_.push_back(tensor_.size());
      for (std::size_t i = 0; i < sizes_[k]; ++i) {
        tensor_.push_back(k);
        index_.push_back(i);
      }
      while (tensor_.size() % word_elements != 0) {
        tensor_.push_back(padding);
        index_.push_back(padding);
      }
    }
    const std::size_t n_words = tensor_.size() / word_elements;
    chunk_words_ = (n_words + n_ranks - 1) / n_ranks;
  }

  std::size_t size() const { return tensor_.size(); }
  std::size_t n_tensors() const { return sizes_.size(); }
  std::size_t tensor_size(std::size_t k) const { return sizes_.at(k); }
  std::size_t start(std::size_t k) const { return starts_.at(k); }
  std::size_t n_words() const { return size() / word_elements; }
  std::size_t chunk_words() const { return chunk_words_; }

  bool real(std::size_t at) const { return tensor_[at] != padding; }
  std::size_t tensor(std::size_t at) const { return tensor_[at]; }  // or `padding`
  std::size_t index(std::size_t at) const { return index_[at]; }    // within the tensor
  std::size_t chunk(std::size_t at) const { return at / word_elements / chunk_words_; }

  /// The elements of tensor k out of an array over the axis.
  vec cut(const vec& flat, std::size_t k) const {
    const auto begin = flat.begin() + static_cast<std::ptrdiff_t>(start(k));
    return vec(begin, begin + static_cast<std::ptrdiff_t>(tensor_size(k)));
  }
  void put(vec& flat, std::size_t k, const vec& values) const {
    if (values.size() != tensor_size(k)) {
      throw std::invalid_argument("reference: tensor " + std::to_string(k) + " has " +
                                  std::to_string(tensor_size(k)) + " elements, not " +
                                  std::to_string(values.size()));
    }
    std::copy(values.begin(), values.end(), flat.begin() + static_cast<std::ptrdiff_t>(start(k)));
  }

 private:
  std::vector<std::size_t> sizes_, starts_, tensor_, index_;
  std::size_t chunk_words_ = 0;
};

inline double sign(double x) { return x >= 0 ? 1.0 : -1.0; }  // zeros of both signs count as +1

/// The compressed allreduce of all tensors at once, with its residuals. Elements that are not live
/// (padding, and what never had a gradient) count nowhere; all their values stay 0.
class compressed_allreduce {
 public:
  compressed_allreduce(const flat_axis& axis, std::size_t n_ranks, const compression& options)
      : axis_(axis),
        options_(options),
        live_(axis.size(), false),
        worker_residual_(n_ranks, vec(axis.size(), 0.0)),
        server_residual_(axis.size(), 0.0) {
    if (options.scales == granularity::block && options.block_elements == 0) {
      throw std::invalid_argument("reference: blocks of 0 elements");
    }
    std::map<std::array<std::size_t, 3>, std::size_t> worker_ids, server_ids;
    for (std::size_t at = 0; at < axis.size(); ++at) {
      live_[at] = axis.real(at);
      std::array<std::size_t, 3> key{0, 0, 0};  // tensor, block, chunk
      const bool by_layer = options.scales == granularity::layer;
      const bool by_block = options.scales == granularity::block;
      if (axis.real(at)) {
        if (by_layer || by_block) key[0] = axis.tensor(at);
        if (by_block) key[1] = axis.index(at) / options.block_elements;
        if (by_block || options.scales == granularity::chunk) key[2] = axis.chunk(at);
        worker_set_.push_back(worker_ids.try_emplace(key, worker_ids.size()).first->second);
        key[2] = axis.chunk(at);
        server_set_.push_back(server_ids.try_emplace(key, server_ids.size()).first->second);
      } else {
        worker_set_.push_back(padding);
        server_set_.push_back(padding);
      }
    }
    n_worker_sets_ = worker_ids.size();
    n_server_sets_ = server_ids.size();
  }

  /// Elements with live[at] == false leave every exchange from now on; their residuals are dropped.
  void set_live(const std::vector<bool>& active) {
    for (std::size_t at = 0; at < axis_.size(); ++at) {
      live_[at] = axis_.real(at) && active[at];
      if (live_[at]) continue;
      for (vec& e : worker_residual_) e[at] = 0;
      server_residual_[at] = 0;
    }
  }

  /// messages[rank] over the axis -> what all ranks agree on.
  vec operator()(const rank_vecs& messages) {
    const std::size_t n_ranks = worker_residual_.size();
    vec mean(axis_.size(), 0.0);
    worker_scales_.assign(n_ranks, {});
    for (std::size_t r = 0; r < n_ranks; ++r) {
      vec y(axis_.size(), 0.0);
      for (std::size_t at = 0; at < axis_.size(); ++at) {
        if (live_[at]) y[at] = messages[r][at] + worker_residual_[r][at];
      }
      worker_scales_[r] = scales(y, worker_set_, n_worker_sets_);
      for (std::size_t at = 0; at < axis_.size(); ++at) {
        if (!live_[at]) continue;
        const double scale = worker_scales_[r][worker_set_[at]], sent = scale * sign(y[at]);
        came_near(y[at], scale);
        worker_residual_[r][at] = y[at] - sent;
        mean[at] += sent / static_cast<double>(n_ranks);
      }
    }
    if (options_.exchange == exchange_kind::all_gather) return mean;

    // Every element is served by the owner of its chunk, so one array holds all server residuals.
    vec z(axis_.size(), 0.0), agreed(axis_.size(), 0.0);
    for (std::size_t at = 0; at < axis_.size(); ++at) {
      if (live_[at]) z[at] = mean[at] + server_residual_[at];
    }
    server_scales_ = scales(z, server_set_, n_server_sets_);
    for (std::size_t at = 0; at < axis_.size(); ++at) {
      if (!live_[at]) continue;
      agreed[at] = server_scales_[server_set_[at]] * sign(z[at]);
      came_near(z[at], server_scales_[server_set_[at]]);
      server_residual_[at] = z[at] - agreed[at];
    }
    return agreed;
  }

  const vec& worker_residual(std::size_t rank) const { return worker_residual_.at(rank); }
  const vec& server_residual() const { return server_residual_; }
  void set_worker_residual(std::size_t rank, const vec& e) { worker_residual_.at(rank) = e; }
  void set_server_residual(const vec& e) { server_residual_ = e; }
  bool active(std::size_t at) const { return live_[at]; }
  /// How near to zero, in scales, a value came whose sign was taken. (What is exactly 0, as before
  /// an element's first gradient, is so in any arithmetic.)
  double margin() const { return margin_; }

  // Of the last call; a set is a number below the size of the scales, `padding` for padding.
  const vec& worker_scales(std::size_t rank) const { return worker_scales_.at(rank); }
  const vec& server_scales() const { return server_scales_; }

 private:
  void came_near(double value, double scale) {
    if (value != 0) margin_ = std::min(margin_, std::abs(value) / scale);
  }
  vec scales(const vec& y, const std::vector<std::size_t>& set_of, std::size_t n_sets) const {
    vec sums(n_sets, 0.0), counts(n_sets, 0.0);
    for (std::size_t at = 0; at < y.size(); ++at) {
      if (!live_[at]) continue;
      sums[set_of[at]] += options_.norm == scale_norm::l2 ? y[at] * y[at] : std::abs(y[at]);
      counts[set_of[at]] += 1;
    }
    vec result(n_sets, 0.0);
    for (std::size_t set = 0; set < n_sets; ++set) {
      if (counts[set] == 0) continue;  // nothing live: scale 0
      const double mean = sums[set] / counts[set];
      result[set] = options_.factor * (options_.norm == scale_norm::l2 ? std::sqrt(mean) : mean);
    }
    return result;
  }

  flat_axis axis_;
  compression options_;
  std::vector<bool> live_;
  std::vector<std::size_t> worker_set_, server_set_;
  std::size_t n_worker_sets_ = 0, n_server_sets_ = 0;
  rank_vecs worker_residual_;
  vec server_residual_;
  rank_vecs worker_scales_;
  vec server_scales_;
  double margin_ = std::numeric_limits<double>::infinity();
};

}  // namespace onebit_test::reference

#endif  // ONEBIT_TESTS_SUPPORT_REFERENCE_HPP
