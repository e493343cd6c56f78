// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#include "images.hpp"

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <stdexcept>

#include "common/random.hpp"
#include "common/shell.hpp"

namespace image_classifier {
namespace {

// Mean and standard deviation of Fashion-MNIST.
constexpr float mean_grey = 0.286F, deviation = 0.353F;

// Returns the data after the header: a magic number and the sizes, 32 bits each, big-endian.
std::string read_idx(const std::string& path, std::initializer_list<std::uint32_t> magic_and_sizes,
                     std::size_t bytes_per_item) {
  const std::string from = std::filesystem::exists(path) ? path : path + ".gz";
  if (!std::filesystem::exists(from)) {
    throw std::runtime_error("neither '" + path + "' nor '" + from +
                             "' exists: install Fashion-MNIST with 'apt-get install "
                             "dataset-fashion-mnist', or name its directory with --data DIR");
  }
  auto [status, bytes] = common::output_of("gzip -dcf " + common::quoted(from));
  const auto number = [&](std::size_t i) {
    std::uint32_t value = 0;
    for (std::size_t k = 0; k < 4; ++k) {
      value = value << 8 | static_cast<unsigned char>(bytes[4 * i + k]);
    }
    return value;
  };
  const std::size_t header = 4 * (magic_and_sizes.size() + 1);
  bool good = status == 0 && bytes.size() >= header;
  if (good) {
    // The second number is the number of items, which may have any value.
    std::size_t i = 0;
    for (const std::uint32_t expected : magic_and_sizes) {
      good = good && number(i) == expected;
      i += i == 0 ? 2 : 1;
    }
    good = good && bytes.size() == header + number(1) * bytes_per_item;
  }
  if (!good) {
    throw std::runtime_error("'" + from + "' (" + std::to_string(bytes.size()) +
                             " bytes unpacked) is damaged or not of MNIST's format");
  }
  bytes.erase(0, header);
  return std::move(bytes);
}

}  // namespace

image_set::image_set(const std::string& directory, const std::string& prefix)
    : images_(read_idx(directory + "/" + prefix + "-images-idx3-ubyte", {2051, 28, 28}, pixels)),
      labels_(read_idx(directory + "/" + prefix + "-labels-idx1-ubyte", {2049}, 1)) {
  const bool known =
      std::all_of(labels_.begin(), labels_.end(), [](char c) { return c >= 0 && c < classes; });
  if (images_.size() != labels_.size() * pixels || labels_.empty() || !known) {
    throw std::runtime_error("'" + directory + "', " + prefix + ": " +
                             std::to_string(images_.size() / pixels) + " images, " +
                             std::to_string(labels_.size()) +
                             " labels, which must be as many and lie between 0 and 9");
  }
}

void image_set::copy(batch& to, std::size_t row, std::size_t index) const {
  const auto* image = reinterpret_cast<const unsigned char*>(images_.data()) + index * pixels;
  const auto from = Eigen::Map<const Eigen::Matrix<unsigned char, 1, pixels>>(image);
  to.input.row(static_cast<Eigen::Index>(row)) =
      (from.cast<float>().array() / 255.0F - mean_grey) / deviation;
  to.target[row] = labels_[index];
}

void image_set::range(batch& to, std::size_t begin, std::size_t end) const {
  to.input.resize(static_cast<Eigen::Index>(end - begin), pixels);
  to.target.resize(end - begin);
  for (std::size_t i = begin; i < end; ++i) copy(to, i - begin, i);
}

void image_set::draw(batch& to, int count, std::size_t end, std::uint64_t seed, std::uint64_t step,
                     int rank) const {
  common::counter_random random{seed, common::fnv1a("batch"), step,
                                static_cast<std::uint64_t>(rank)};
  to.input.resize(count, pixels);
  to.target.resize(static_cast<std::size_t>(count));
  for (std::size_t row = 0; row < to.target.size(); ++row) copy(to, row, random.below(end));
}

}  // namespace image_classifier
