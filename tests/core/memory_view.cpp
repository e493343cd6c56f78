// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// What a tensor takes as memory: what std::span takes, views of other libraries, and owners that
// give out wrapped pointers, as device vectors do.

#include <doctest/doctest.h>

#include <array>
#include <onebit/kernel/param_group.hpp>
#include <vector>

namespace {

using onebit::detail::memory_view;

template <class T>
struct wrapped {
  T* p;
  T* get() const { return p; }
};
/// As thrust::device_vector.
struct owner {
  std::vector<float> v;
  wrapped<float> data() { return {v.data()}; }
  wrapped<const float> data() const { return {v.data()}; }
  std::size_t size() const { return v.size(); }
};
/// As cuda::std::span.
template <class T>
struct other_view {
  T* p;
  std::size_t n;
  T* data() const { return p; }
  std::size_t size() const { return n; }
  T* begin() const { return p; }
  T* end() const { return p + n; }
};
/// As Eigen's matrices and blocks of them, in columns.
struct matrix_view {
  float* p;
  std::ptrdiff_t rows, cols, stride;
  float* data() const { return p; }
  std::ptrdiff_t size() const { return rows * cols; }
  std::ptrdiff_t innerSize() const { return rows; }
  std::ptrdiff_t outerSize() const { return cols; }
  std::ptrdiff_t innerStride() const { return 1; }
  std::ptrdiff_t outerStride() const { return stride; }
};
/// As std::mdspan.
struct exhaustive_view {
  float* p;
  std::size_t n;
  bool exhaustive;
  float* data() const { return p; }
  std::size_t size() const { return n; }
  bool is_exhaustive() const { return exhaustive; }
};

static_assert(std::is_constructible_v<memory_view<float>, owner&>);
static_assert(std::is_constructible_v<memory_view<const float>, const owner&>);
static_assert(std::is_constructible_v<memory_view<const float>, other_view<float>>);
// const memory is not written, and what would dangle is no view
static_assert(!std::is_constructible_v<memory_view<float>, const owner&>);
static_assert(!std::is_constructible_v<memory_view<float>, owner>);
static_assert(!std::is_constructible_v<memory_view<float>, std::vector<float>>);
static_assert(!std::is_constructible_v<memory_view<float>, other_view<const float>>);
static_assert(!std::is_constructible_v<memory_view<float>, other_view<double>>);
static_assert(std::is_constructible_v<memory_view<float>, matrix_view>);

}  // namespace

TEST_CASE("memory_view: a tensor takes the memory of any library, without a cast [tensor]") {
  owner x{std::vector<float>(100, 1)}, g{std::vector<float>(100, 2)};
  std::vector<float> y(10), h(10);
  std::array<float, 4> z{}, i{};
  std::vector<onebit::param_group<>> groups(1);
  groups[0].tensors.push_back({x, g});
  groups[0].tensors.push_back({y, h});
  groups[0].tensors.push_back({z, i});
  groups[0].tensors.push_back({{y.data(), 5}, {h.data(), 5}});
  groups[0].tensors.push_back({std::span(y), std::span(h)});
  groups[0].tensors.push_back({other_view<float>{y.data(), 3}, other_view<float>{h.data(), 3}});
  const std::size_t sizes[] = {100, 10, 4, 5, 10, 3};
  for (std::size_t t = 0; t < 6; ++t) {
    CHECK(groups[0].tensors[t].params.size() == sizes[t]);
    CHECK(groups[0].tensors[t].grads.size() == sizes[t]);
  }
  CHECK(groups[0].tensors[0].params.data() == x.v.data());
  CHECK(groups[0].tensors[5].grads.data() == h.data());

  // views with strides: whole, one column and nothing are contiguous, some rows are not
  CHECK(memory_view<float>(matrix_view{y.data(), 5, 2, 5}).size() == 10);
  CHECK(memory_view<float>(matrix_view{y.data(), 2, 1, 5}).size() == 2);
  CHECK(memory_view<float>(matrix_view{y.data(), 0, 2, 5}).empty());
  CHECK(memory_view<float>(exhaustive_view{y.data(), 10, true}).size() == 10);
  CHECK_THROWS_WITH_AS(memory_view<float>(matrix_view{y.data(), 2, 2, 5}),
                       doctest::Contains("2 runs of 2 elements, strides 5 and 1"),
                       onebit::invalid_input);
  CHECK_THROWS_AS(memory_view<float>(matrix_view{y.data(), 1, 2, 5}), onebit::invalid_input);
  CHECK_THROWS_AS(memory_view<float>(exhaustive_view{y.data(), 6, false}), onebit::invalid_input);

  const owner constant = g;
  const onebit::tensor<float, const float> kept{x, constant};
  CHECK(kept.grads.data() == constant.v.data());
  std::vector<onebit::bf16> rounded(10);
  const onebit::tensor<onebit::bf16> halved{rounded, rounded, y};
  CHECK(halved.master.size() == 10);
}
