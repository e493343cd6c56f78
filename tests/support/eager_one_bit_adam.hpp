// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Reference implementation of 1-bit Adam, with eager residuals and all W ranks in one process, in
// float and in the order of operations that the library documents. The library must give the same
// bits although it is lazy, fused, packed and parallel. With one rank this is Adam. margin()
// returns how close sign decisions were to 0, so that tests can choose runs in which no rounding
// changes a decision. Only the layout, which has tests of its own, is the library's.

#ifndef ONEBIT_TESTS_SUPPORT_EAGER_ONE_BIT_ADAM_HPP
#define ONEBIT_TESTS_SUPPORT_EAGER_ONE_BIT_ADAM_HPP

#include <limits>

#include "plan.hpp"

namespace onebit_test {

/// Exchange to emulate. `uncompressed`: every step is dense.
enum class communicator { gather_scatter, all_gather, exact, uncompressed };

class eager_one_bit_adam {
 public:
  struct compression {
    onebit::granularity scales = onebit::granularity::layer();
    bool l1 = false;
    communicator exchange = communicator::gather_scatter;
  };

  eager_one_bit_adam(const plan& p, compression c)
      : plan_(p),
        how_(p.ranks == 1 ? compression{c.scales, c.l1, communicator::uncompressed} : c),
        axis_(p.sizes, how_.exchange == communicator::all_gather ? 1 : p.ranks, c.scales),
        ranks_(static_cast<std::size_t>(p.ranks)),
        n_(axis_.n_words() * 32),
        x_(n_),
        m_(n_),
        v_(n_),
        server_(n_),
        worker_(ranks_, flat(n_)) {
    std::vector<group_spec> of_tensor;
    for (const group_spec& g : p.all_groups()) of_tensor.insert(of_tensor.end(), g.n_tensors, g);
    std::vector<std::size_t> first(p.sizes.size(), 0);
    for (std::size_t k = 1; k < first.size(); ++k) first[k] = first[k - 1] + p.sizes[k - 1];
    element_.assign(n_, none);
    tile_.assign(n_, 0);
    factors_.resize(n_);
    for (std::size_t t = 0; t < axis_.tiles().size(); ++t) {
      const onebit::tile& tile = axis_.tiles()[t];
      for (std::uint32_t i = 0; i < tile.n; ++i) {
        const std::size_t at = tile.word * 32 + i;
        element_[at] = first[tile.tensor] + tile.offset + i;
        tile_[at] = t;
        factors_[at] = of_tensor[tile.tensor];
        x_[at] = noise(99, 0, 0, element_[at]);  // initial values as in `memory`
      }
    }
    segment_of_tile_.resize(axis_.tiles().size());
    for (std::size_t s = 0; s < axis_.segments().size(); ++s) {
      const auto range = axis_.segments()[s].tiles;
      for (auto t = range.begin; t < range.end; ++t) segment_of_tile_[t] = s;
      server_sets_.push_back(range);
    }
  }

  void step(std::size_t step) {
    std::vector<flat> g(ranks_, flat(n_));
    for (std::size_t r = 0; r < ranks_; ++r) {
      for (std::size_t at = 0; at < n_; ++at) {
        if (real(at)) g[r][at] = plan_.gradient(static_cast<int>(r), step, element_[at]);
      }
    }
    if (step < plan_.options.freeze.after || how_.exchange == communicator::uncompressed) {
      dense_step(g, step);
    } else {
      if (step == plan_.options.freeze.after) freeze(step);
      compressed_step(g, step);
    }
  }

  bool real(std::size_t at) const { return element_[at] != none; }
  bool active(std::size_t at) const { return live_[at]; }
  const onebit::layout& axis() const { return axis_; }
  /// Returns parameters in the order of memory::all_params.
  flat params() const {
    flat all;
    for (std::size_t at = 0; at < n_; ++at) {
      if (real(at)) all.push_back(x_[at]);
    }
    return all;
  }
  const flat& m() const { return m_; }
  const flat& worker(std::size_t rank) const { return worker_[rank]; }
  /// Returns the server's residual of a rank's chunk.
  flat server(std::size_t rank) const {
    const std::size_t chunk = axis_.chunk_words() * 32;
    const std::size_t begin = std::min(n_, rank * chunk), end = std::min(n_, begin + chunk);
    return flat(server_.begin() + static_cast<std::ptrdiff_t>(begin),
                server_.begin() + static_cast<std::ptrdiff_t>(end));
  }
  /// Returns the smallest |y| / scale of all sign decisions so far.
  double margin() const { return margin_; }

 private:
  void dense_step(const std::vector<flat>& g, std::size_t step) {
    const onebit::one_bit_adam_options& o = plan_.options;
    const auto t = static_cast<double>(step + 1);
    const auto m_correction =
        static_cast<float>(o.adam.bias_correction ? 1 / (1 - std::pow(o.adam.beta1, t)) : 1.0);
    const auto v_correction =
        static_cast<float>(o.adam.bias_correction ? 1 / (1 - std::pow(o.adam.beta2, t)) : 1.0);
    const auto beta1 = static_cast<float>(o.adam.beta1), beta2 = static_cast<float>(o.adam.beta2);
    const auto one_minus_beta1 = static_cast<float>(1 - o.adam.beta1);
    const auto one_minus_beta2 = static_cast<float>(1 - o.adam.beta2);
    const auto eps = static_cast<float>(o.adam.eps);
    const float inverse = 1.0F / static_cast<float>(ranks_);
    for (std::size_t at = 0; at < n_; ++at) {
      if (!real(at)) continue;
      float mean = g[0][at];
      for (std::size_t r = 1; r < ranks_; ++r) mean = mean + g[r][at];
      mean = product(mean, inverse);
      m_[at] = std::fma(mean, one_minus_beta1, product(m_[at], beta1));
      v_[at] = std::fma(product(mean, one_minus_beta2), mean, product(v_[at], beta2));
      const float root = std::sqrt(product(v_[at], v_correction));
      move(at, product(m_[at], m_correction) / (root + eps));
    }
  }

  void freeze(std::size_t step) {
    const onebit::one_bit_adam_options& o = plan_.options;
    const auto t = static_cast<double>(step);  // number of dense steps
    const double v_correction = o.adam.bias_correction ? 1 / (1 - std::pow(o.adam.beta2, t)) : 1.0;
    live_.assign(n_, false);
    for (std::size_t at = 0; at < n_; ++at) {
      live_[at] = v_[at] > 0;
      if (!live_[at]) m_[at] = 0;
      const float root = std::sqrt(product(v_[at], static_cast<float>(v_correction)));
      v_[at] = 1.0F / (root + static_cast<float>(o.adam.eps));
    }
  }

  void compressed_step(const std::vector<flat>& g, std::size_t step) {
    const auto t = static_cast<double>(step + 1);
    const auto m_correction = static_cast<float>(
        plan_.options.adam.bias_correction ? 1 / (1 - std::pow(plan_.options.adam.beta1, t)) : 1.0);
    const auto beta1 = static_cast<float>(plan_.options.adam.beta1);
    const auto one_minus_beta1 = static_cast<float>(1 - plan_.options.adam.beta1);
    const float inverse = 1.0F / static_cast<float>(ranks_);
    flat sum(n_);
    for (std::size_t r = 0; r < ranks_; ++r) {
      flat y(n_);
      for (std::size_t at = 0; at < n_; ++at) {
        if (!live_[at]) continue;
        y[at] = std::fma(g[r][at], one_minus_beta1, std::fma(m_[at], beta1, worker_[r][at]));
      }
      if (how_.exchange != communicator::exact) {
        const flat s = scales(y, axis_.groups());
        for (std::size_t at = 0; at < n_; ++at) {
          if (!live_[at]) continue;
          const float scale = s[axis_.tiles()[tile_[at]].group];
          const float sent = decide(y[at], scale);
          worker_[r][at] = y[at] - sent;
          y[at] = sent;
        }
      }
      for (std::size_t at = 0; at < n_; ++at) sum[at] = r == 0 ? y[at] : sum[at] + y[at];
    }
    if (how_.exchange != communicator::gather_scatter) {
      for (std::size_t at = 0; at < n_; ++at) m_[at] = product(sum[at], inverse);
    } else {
      flat z(n_);
      for (std::size_t at = 0; at < n_; ++at) {
        if (live_[at]) z[at] = std::fma(sum[at], inverse, server_[at]);
      }
      const flat s = scales(z, server_sets_);
      for (std::size_t at = 0; at < n_; ++at) {
        if (!live_[at]) continue;
        m_[at] = decide(z[at], s[segment_of_tile_[tile_[at]]]);
        server_[at] = z[at] - m_[at];
      }
    }
    for (std::size_t at = 0; at < n_; ++at) {
      if (real(at)) move(at, live_[at] ? product(product(m_[at], m_correction), v_[at]) : 0.0F);
    }
  }

  float decide(float y, float scale) {
    if (scale > 0) {
      margin_ = std::min(margin_, std::fabs(static_cast<double>(y)) / static_cast<double>(scale));
    }
    return y >= 0 ? scale : -scale;
  }

  void move(std::size_t at, float u) {
    const float step = -product(plan_.lr, factors_[at].lr_factor);
    x_[at] = std::fma(step, std::fma(factors_[at].weight_decay, x_[at], u), x_[at]);
  }

  /// Returns one scale per set of tiles, summed in the order that the format prescribes.
  flat scales(const flat& y, const std::vector<onebit::tile_range>& sets) const {
    flat result;
    for (const onebit::tile_range& set : sets) {
      double lanes[32] = {};
      std::uint64_t n_active = 0;
      for (auto t = set.begin; t < set.end; ++t) {
        const onebit::tile& tile = axis_.tiles()[t];
        float in_tile[32] = {};
        for (std::size_t i = 0; i < tile.n; ++i) {
          const std::size_t at = tile.word * 32 + i;
          n_active += live_[at] ? 1U : 0U;
          float& lane = in_tile[i % 32];
          lane = how_.l1 ? lane + std::fabs(y[at]) : std::fma(y[at], y[at], lane);
        }
        for (std::size_t half : counts{16, 8, 4, 2, 1}) {
          for (std::size_t l = 0; l < half; ++l) in_tile[l] += in_tile[l + half];
        }
        lanes[(t - set.begin) % 32] += static_cast<double>(in_tile[0]);
      }
      for (std::size_t half : counts{16, 8, 4, 2, 1}) {
        for (std::size_t l = 0; l < half; ++l) lanes[l] += lanes[l + half];
      }
      const double mean = n_active == 0 ? 0.0 : lanes[0] / static_cast<double>(n_active);
      const float factor =
          how_.l1 ? onebit::l1_scale::normal_factor : onebit::l2_scale::normal_factor;
      result.push_back(factor * static_cast<float>(how_.l1 ? mean : std::sqrt(mean)));
    }
    return result;
  }

  /// Returns a b, rounded: never fused into an fma, for any compiler flags.
  static float product(float a, float b) {
    const volatile float p = a * b;
    return p;
  }

  plan plan_;
  compression how_;
  onebit::layout axis_;
  std::size_t ranks_, n_;
  flat x_, m_, v_, server_;
  std::vector<flat> worker_;
  std::vector<bool> live_;
  std::vector<std::size_t> element_, tile_, segment_of_tile_;
  std::vector<onebit::tile_range> server_sets_;
  std::vector<group_spec> factors_;
  double margin_ = std::numeric_limits<double>::infinity();
};

}  // namespace onebit_test

#endif  // ONEBIT_TESTS_SUPPORT_EAGER_ONE_BIT_ADAM_HPP
