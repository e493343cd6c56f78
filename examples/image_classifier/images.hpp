// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Labelled grey images of 28 x 28 pixels in ten classes, from the four files of MNIST's format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/tensor.hpp"

namespace image_classifier {

constexpr int pixels = 28 * 28, classes = 10;

struct batch {
  common::matrix<float> input;  // a row per image
  std::vector<int> target;
};

class image_set {
 public:
  // Reads PREFIX-images-idx3-ubyte and PREFIX-labels-idx1-ubyte, or these names with .gz appended.
  image_set(const std::string& directory, const std::string& prefix);

  std::size_t size() const { return labels_.size(); }

  // Puts image number `index` into a row of the batch.
  void copy(batch& to, std::size_t row, std::size_t index) const;

  // Makes a batch of images begin, begin + 1, ..., end - 1.
  void range(batch& to, std::size_t begin, std::size_t end) const;

  // Draws images below `end`, by numbers that depend on (seed, step, rank) and nothing else.
  void draw(batch& to, int count, std::size_t end, std::uint64_t seed, std::uint64_t step,
            int rank) const;

 private:
  std::string images_;
  std::string labels_;
};

}  // namespace image_classifier
