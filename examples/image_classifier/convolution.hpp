// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// A convolution as a product: each place of the output sees one row of patches.
#pragma once

#include "common/tensor.hpp"

namespace image_classifier {

// Of square images without a border, a row each, the channels of a pixel side by side.
template <class Real>
struct convolution {
  common::linear<Real> weights;  // from kernel x kernel x channels numbers to the output's channels
  int size, channels, kernel, stride;
  common::matrix<Real> patches{}, gradient{};

  int places() const { return (size - kernel) / stride + 1; }  // along a side of the output

  void forward(const common::matrix<Real>& x, common::matrix<Real>& y) {
    const Eigen::Index images = x.rows();
    patches.resize(images * places() * places(), kernel * kernel * channels);
    each_run(images, [&](Eigen::Index place, Eigen::Index at, Eigen::Index image, Eigen::Index from,
                         Eigen::Index n) {
      patches.row(place).segment(at, n) = x.row(image).segment(from, n);
    });
    weights.forward(patches, y);
    y.resize(images, y.size() / images);  // as many numbers in the same order: a row for each image
  }

  // dy is a row for each image on entry, and of no use on return.
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
  // The numbers side by side in a line of a patch lie side by side in the image.
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
