// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "task.hpp"

namespace tasks {

/// Fits a matrix of ratings (user x item) by a product of factors plus a bias of each user and
/// item. While all factors are small, as at the start, gradients are small; then they grow.
template <class Real>
class factors : public task<Real> {
 public:
  explicit factors(std::uint64_t seed) : task<Real>(1000) {
    counter_random random{seed, 4}, of_truth{6};
    this->add_tensor(n_users, rank, 0.1, random);
    this->add_tensor(n_items, rank, 0.1, random);
    this->add_tensor(1, n_users, 0, random);
    this->add_tensor(1, n_items, 0, random);
    for (double& x : true_users_.reshaped()) x = of_truth.normal();
    for (double& x : true_items_.reshaped()) x = of_truth.normal();
  }
  void change_truth() override { true_items_ = -true_items_; }

 private:
  static constexpr int n_users = 200, n_items = 300, rank = 6, n_ratings = 10;
  static constexpr double noise = 0.3;  // deviation of ratings; least mean loss: noise^2 / 2

  /// An example is ten ratings by one user. Few items have most of the ratings.
  double batch(counter_random& random, int n, bool learns) override {
    auto& t = this->tensors;
    enum { users, items, user_bias, item_bias };
    double loss = 0;
    int user = 0;
    for (int i = 0; i < n * n_ratings; ++i) {
      if (i % n_ratings == 0) user = static_cast<int>(random.below(n_users));
      const auto item = static_cast<int>(random.below(1 + random.below(n_items)));
      const double rating = true_users_.row(user).dot(true_items_.row(item)) / std::sqrt(rank) +
                            true_items_(item, 0) / 2 + noise * random.normal();
      const auto of_user = t[users].values().row(user), of_item = t[items].values().row(item);
      const Real guess =
          of_user.dot(of_item) + t[user_bias].values()(0, user) + t[item_bias].values()(0, item);
      const double off = static_cast<double>(guess) - rating;
      loss += off * off / 2 / (n * n_ratings);
      if (!learns) continue;
      const auto d = static_cast<Real>(off / (n * n_ratings));
      t[users].gradients().row(user) += d * of_item;
      t[items].gradients().row(item) += d * of_user;
      t[user_bias].gradients()(0, user) += d;
      t[item_bias].gradients()(0, item) += d;
    }
    return loss;
  }

  matrix<double> true_users_{n_users, rank}, true_items_{n_items, rank};
};

}  // namespace tasks
