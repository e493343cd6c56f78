// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Adam, 1-bit Adam and the paper's 0/1 Adam by this library's own semantics, in double precision
// (see reference.hpp).

#ifndef ONEBIT_TESTS_SUPPORT_REFERENCE_ADAM_HPP
#define ONEBIT_TESTS_SUPPORT_REFERENCE_ADAM_HPP

#include "reference.hpp"

namespace onebit_test::reference {

inline constexpr std::size_t never = std::numeric_limits<std::size_t>::max();

struct adam_options {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  bool bias_correction = false;
  std::size_t dense_steps = never;  // steps before the freeze; `never` is plain Adam
  compression compress;
};

/// What every optimizer here has: the axis, groups, parameters on every rank, and the checks of a
/// step.
class optimizer_base {
 public:
  optimizer_base(const std::vector<std::size_t>& sizes, std::vector<group> groups,
                 std::size_t n_ranks)
      : axis_(sizes, n_ranks), params_(n_ranks, vec(axis_.size(), 0.0)) {
    if (groups.empty()) groups.push_back({sizes.size(), 1, 0});
    for (const group& g : groups) group_of_tensor_.insert(group_of_tensor_.end(), g.n_tensors, g);
    if (group_of_tensor_.size() != sizes.size()) {
      throw std::invalid_argument("reference: the groups hold " +
                                  std::to_string(group_of_tensor_.size()) + " tensors of " +
                                  std::to_string(sizes.size()));
    }
  }

  const flat_axis& axis() const { return axis_; }
  std::size_t n_ranks() const { return params_.size(); }

  /// The initial parameters of tensor k, on all ranks.
  void set_params(std::size_t k, const vec& values) {
    for (vec& p : params_) axis_.put(p, k, values);
  }
  vec params(std::size_t rank, std::size_t k) const { return axis_.cut(params_.at(rank), k); }

 protected:
  const group& group_at(std::size_t at) const { return group_of_tensor_[axis_.tensor(at)]; }

  /// grads[rank][tensor][i] -> one array over the axis per rank; empty if any value is not finite.
  rank_vecs flattened(const rank_tensors& grads) const {
    if (grads.size() != n_ranks()) throw std::invalid_argument("reference: wrong number of ranks");
    rank_vecs flat;
    for (const auto& tensors : grads) {
      if (tensors.size() != axis_.n_tensors()) {
        throw std::invalid_argument("reference: wrong number of tensors");
      }
      flat.emplace_back(axis_.size(), 0.0);
      for (std::size_t k = 0; k < tensors.size(); ++k) {
        axis_.put(flat.back(), k, tensors[k]);
        for (const double g : tensors[k]) {
          if (!std::isfinite(g)) return {};
        }
      }
    }
    return flat;
  }

  /// The uncompressed agreement: summed in rank order.
  static vec dense_mean(const rank_vecs& values) {
    vec mean(values.front().size(), 0.0);
    for (const vec& of_rank : values) {
      for (std::size_t at = 0; at < mean.size(); ++at) mean[at] += of_rank[at];
    }
    for (double& x : mean) x /= static_cast<double>(values.size());
    return mean;
  }

  flat_axis axis_;
  rank_vecs params_;

 private:
  std::vector<group> group_of_tensor_;  // a copy per tensor
};

/// 1-bit Adam, and Adam where dense_steps is `never`.
class one_bit_adam : public optimizer_base {
 public:
  one_bit_adam(const std::vector<std::size_t>& sizes, std::vector<group> groups,
               std::size_t n_ranks, const adam_options& options = {})
      : optimizer_base(sizes, std::move(groups), n_ranks),
        options_(options),
        exchange_(axis_, n_ranks, options.compress),
        m_(axis_.size(), 0.0),
        v_(axis_.size(), 0.0) {}

  /// grads[rank][tensor][i], each rank's own. False, and nothing has changed (no count either), if
  /// any of them is not finite.
  bool step(double lr, const rank_tensors& grads) {
    const rank_vecs g = flattened(grads);
    if (g.empty()) return false;
    ++steps_;
    if (frozen()) {
      if (steps_ == options_.dense_steps + 1) freeze();
      compressed_step(g);
    } else {
      const vec mean = dense_mean(g);
      for (std::size_t at = 0; at < axis_.size(); ++at) {
        m_[at] = options_.beta1 * m_[at] + (1 - options_.beta1) * mean[at];
        v_[at] = options_.beta2 * v_[at] + (1 - options_.beta2) * mean[at] * mean[at];
      }
    }
    for (vec& p : params_) update(p, lr);
    return true;
  }

  vec m(std::size_t k) const { return axis_.cut(m_, k); }
  vec v(std::size_t k) const { return axis_.cut(v_, k); }
  vec worker_residual(std::size_t rank, std::size_t k) const {
    return axis_.cut(exchange_.worker_residual(rank), k);
  }
  /// Of all ranks: element i's lies on the rank that serves its chunk.
  vec server_residual(std::size_t k) const { return axis_.cut(exchange_.server_residual(), k); }
  const compressed_allreduce& exchange() const { return exchange_; }

  std::size_t steps() const { return steps_; }                   // done, not counting skipped ones
  bool frozen() const { return steps_ > options_.dense_steps; }  // was the last one compressed

 private:
  void freeze() {
    std::vector<bool> active(axis_.size());
    for (std::size_t at = 0; at < axis_.size(); ++at) {
      active[at] = v_[at] > 0;
      if (!active[at]) m_[at] = 0;
    }
    exchange_.set_live(active);
  }

  void compressed_step(const rank_vecs& g) {
    rank_vecs messages(n_ranks(), vec(axis_.size(), 0.0));
    for (std::size_t r = 0; r < n_ranks(); ++r) {
      for (std::size_t at = 0; at < axis_.size(); ++at) {
        if (!exchange_.active(at)) continue;
        messages[r][at] = options_.beta1 * m_[at] + (1 - options_.beta1) * g[r][at];
      }
    }
    m_ = n_ranks() == 1 ? messages[0] : exchange_(messages);  // one rank has no one to talk to
  }

  void update(vec& p, double lr) const {
    double m_factor = 1, v_factor = 1;
    if (options_.bias_correction) {  // v's stands still from the last dense step on, as v does
      const auto refreshes = static_cast<double>(std::min(steps_, options_.dense_steps));
      m_factor = 1 / (1 - std::pow(options_.beta1, static_cast<double>(steps_)));
      v_factor = 1 / (1 - std::pow(options_.beta2, refreshes));
    }
    for (std::size_t at = 0; at < axis_.size(); ++at) {
      if (!axis_.real(at)) continue;
      const group& of = group_at(at);
      double u = of.weight_decay * p[at];
      if (m_[at] != 0) u += m_[at] * m_factor / (std::sqrt(v_[at] * v_factor) + options_.eps);
      p[at] -= lr * of.lr_factor * u;
    }
  }

  adam_options options_;
  compressed_allreduce exchange_;
  vec m_, v_;
  std::size_t steps_ = 0;
};

/// 0/1 Adam (arXiv 2202.06009, algorithm 1), as the paper prints it but for the updated m in its
/// middle lines. Who calls decides which steps average, and which exchange.
class zero_one_adam : public optimizer_base {
 public:
  zero_one_adam(const std::vector<std::size_t>& sizes, std::vector<group> groups,
                std::size_t n_ranks, const adam_options& options)
      : optimizer_base(sizes, std::move(groups), n_ranks),
        options_(options),
        exchange_(axis_, n_ranks, options.compress),
        m_(n_ranks, vec(axis_.size(), 0.0)),
        u_(n_ranks, vec(axis_.size(), 0.0)),
        v_(axis_.size(), 0.0) {}

  void step(double lr, const rank_tensors& grads, bool averages, bool exchanges) {
    const rank_vecs g = flattened(grads);
    if (anchor_.empty()) anchor_ = params_[0];
    if (averages) refresh(dense_mean(g));
    for (std::size_t r = 0; r < n_ranks(); ++r) {
      for (std::size_t at = 0; at < axis_.size(); ++at) {
        if (!axis_.real(at)) continue;
        m_[r][at] = options_.beta1 * m_[r][at] + (1 - options_.beta1) * g[r][at];
        u_[r][at] += lr * m_[r][at];
        if (v_[at] == 0) m_[r][at] = 0;
      }
    }
    lr_sum_ += lr;
    if (exchanges) {
      synchronise();
    } else {
      for (std::size_t r = 0; r < n_ranks(); ++r) move(params_[r], params_[r], m_[r], lr, lr);
    }
  }

  const compressed_allreduce& exchange() const { return exchange_; }

 private:
  void refresh(const vec& mean) {
    for (std::size_t at = 0; at < axis_.size(); ++at) {
      v_[at] = options_.beta2 * v_[at] + (1 - options_.beta2) * mean[at] * mean[at];
    }
  }
  void synchronise() {
    const vec agreed = exchange_(u_);
    move(anchor_, anchor_, agreed, 1, lr_sum_);
    for (std::size_t r = 0; r < n_ranks(); ++r) {
      params_[r] = anchor_;
      for (std::size_t at = 0; at < axis_.size(); ++at) {
        m_[r][at] = v_[at] > 0 ? agreed[at] / lr_sum_ : 0;
        u_[r][at] = 0;
      }
    }
    lr_sum_ = 0;
  }
  /// to = from - lr_factor (by u / (sqrt(v) + eps) + decays_by weight_decay from), u / (...) only
  /// where there is v.
  void move(vec& to, const vec& from, const vec& u, double by, double decays_by) const {
    for (std::size_t at = 0; at < axis_.size(); ++at) {
      if (!axis_.real(at)) continue;
      const group& of = group_at(at);
      double x = decays_by * of.weight_decay * from[at];
      if (v_[at] > 0) x += by * u[at] / (std::sqrt(v_[at]) + options_.eps);
      to[at] = from[at] - of.lr_factor * x;
    }
  }

  adam_options options_;
  compressed_allreduce exchange_;
  rank_vecs m_, u_;
  vec v_, anchor_;
  double lr_sum_ = 0;
};

}  // namespace onebit_test::reference

#endif  // ONEBIT_TESTS_SUPPORT_REFERENCE_ADAM_HPP
