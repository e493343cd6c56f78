// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// A convolution as a product of matrices: a row of patches for each position of the output.
#pragma once

#include "common/tensor.hpp"

namespace image_classifier {

// Takes square images, a row each, without padding; channels of a pixel are adjacent.
template <class Real>
struct convolution {
  common::linear<Real> weights;  // from kernel x kernel x channels numbers to the output's channels
  int size, channels, kernel, stride;
  common::matrix<Real> patches{}, gradient{};

  int places() const { return (size - kernel) / stride + 1; }  // side of the output

  void forward(const common::matrix<Real>& x, common::matrix<Real>& y) {
    const Eigen::Index images = x.rows();
    patches.resize(images * places() * places(), kernel * kernel * channels);
    each_run(images, [&](Eigen::Index place, Eigen::Index at, Eigen::Index image, Eigen::Index from,
                         Eigen::Index n) {
      patches.row(place).segment(at, n) = x.row(image).segment(from, n);
    });
    weights.forward(patches, y);
    y.resize(images, y.size() / images);  // same order, a row for each image
  }

  // dy has a row for each image on entry, and is reshaped to a row for each patch.
  void parameter_gradients(Eigen::Index images, common::matrix<Real>& dy) {
    dy.resize(images * places() * places(), dy.size() / (images * places() * places()));
    weights.parameter_gradients(patches, dy);
  }
  void backward(common::matrix<Real>& dy, common::matrix<Real>& dx) {
    const Eigen::Index images = dy.rows();
    parameter_gradients(images, dy);
    gradient.noalias() = dy * weights.weight->values().transpose();
    dx.setZero(images, size * size * channels);
    each_run(images, [&](Eigen::Index place, Eigen::Index at, Eigen::Index image, Eigen::Index from,
                         Eigen::Index n) {
      dx.row(image).segment(from, n) += gradient.row(place).segment(at, n);
    });
  }

 private:
  // Calls f for each line of each patch: its numbers are adjacent in the image too.
  template <class F>
  void each_run(Eigen::Index images, const F& f) const {
    const int n = kernel * channels;
    Eigen::Index place = 0;
    for (Eigen::Index image = 0; image < images; ++image) {
      for (int row = 0; row < places(); ++row) {
        for (int column = 0; column < places(); ++column, ++place) {
          for (int k = 0; k < kernel; ++k) {
            f(place, k * n, image, ((row * stride + k) * size + column * stride) * channels, n);
          }
        }
      }
    }
  }
};

}  // namespace image_classifier
