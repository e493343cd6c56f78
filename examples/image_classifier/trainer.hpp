// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Trains a model with one algorithm, as one rank of several.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "common/costs.hpp"
#include "images.hpp"

namespace image_classifier {

struct data_set {
  explicit data_set(const std::string& directory);

  image_set training;
  std::size_t held_out;  // training images from this one on are for validation
  image_set test;
};

struct training_options {
  std::string model = "perceptron";  // or convolutional
  std::int64_t steps = 0;
  std::uint64_t seed = 1;
  double learning_rate = 0;
};

struct training_result {
  common::run_costs costs;
  double validation_loss = 0;
  double test_accuracy = 0;
};

// Collective. Only rank 0 shows progress; every rank returns the same result.
training_result train(common::rank_link& link, const data_set& data, const std::string& algorithm,
                      const training_options& options);

}  // namespace image_classifier
