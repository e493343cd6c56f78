// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Writes a small made-up data set in MNIST's format to the directory named on the command line.
// Each class is a pattern with noise, within a black border. Used by the test.

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/random.hpp"

namespace {

void put(std::ofstream& out, std::uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) out.put(static_cast<char>(value >> shift & 255));
}

void write(const std::string& prefix, std::uint32_t count) {
  std::ofstream images(prefix + "-images-idx3-ubyte", std::ios::binary);
  std::ofstream labels(prefix + "-labels-idx1-ubyte", std::ios::binary);
  images.exceptions(std::ios::failbit | std::ios::badbit);
  labels.exceptions(std::ios::failbit | std::ios::badbit);
  for (const std::uint32_t n : {2051U, count, 28U, 28U}) put(images, n);
  for (const std::uint32_t n : {2049U, count}) put(labels, n);
  common::counter_random random{common::fnv1a(prefix)};
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint64_t label = random.below(10);
    labels.put(static_cast<char>(label));
    common::counter_random pattern{label};
    for (int pixel = 0; pixel < 28 * 28; ++pixel) {
      const int row = pixel / 28, column = pixel % 28;
      const bool border = row < 2 || row >= 26 || column < 2 || column >= 26;
      const std::uint64_t grey = pattern.below(128) + random.below(128);
      images.put(border ? '\0' : static_cast<char>(grey));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: image_classifier_make_images DIRECTORY\n");
    return 2;
  }
  std::filesystem::create_directories(argv[1]);
  write(std::string(argv[1]) + "/train", 2000);
  write(std::string(argv[1]) + "/t10k", 500);
  return 0;
}
