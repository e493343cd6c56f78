// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Memory of CCCL: a trainer whose tensors are thrust::device_vectors and cuda::std::spans, without
// a cast, and a resource as CCCL has them under a backend.

#define LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <thrust/device_vector.h>

#include <cuda/memory_resource>
#include <cuda/std/span>
#include <vector>

#include "device.cuh"
#include "trainings.hpp"

using namespace onebit_test;

namespace of_cccl {

/// Stream-ordered memory as cuda::mr has it.
struct counted_pool {
  int* n_alive;
  void* allocate(std::size_t n, std::size_t) { return cuda_device::allocate(n); }
  void deallocate(void* p, std::size_t, std::size_t) { cuda_device::free(p); }
  void* allocate_async(std::size_t n, std::size_t alignment, cuda::stream_ref s) {
    CHECK(alignment == 256);
    ++*n_alive;
    return onebit::default_cuda_memory().allocate(n, s.get());
  }
  void deallocate_async(void* p, std::size_t n, std::size_t, cuda::stream_ref s) {
    --*n_alive;
    onebit::default_cuda_memory().deallocate(p, n, s.get());
  }
  friend bool operator==(const counted_pool&, const counted_pool&) = default;
};
static_assert(cuda::mr::async_resource<counted_pool>);

}  // namespace of_cccl

namespace {

constexpr std::size_t n_first = 5000, n_second = 77;

std::vector<float> some(std::size_t n, std::uint64_t seed) {
  std::vector<float> x(n);
  for (std::size_t i = 0; i < n; ++i) x[i] = noise(seed * 1000003 + i);
  return x;
}

/// Six steps of what `make` makes of one tensor and another; gives the parameters.
template <class Vector, class Backend, class Memory, class Groups>
std::vector<float> train(Backend backend, Memory memory, const Groups& groups_of) {
  const auto memory_of = [](Vector& v) { return onebit::detail::memory_view<float>(v).data(); };
  Vector x(some(n_first, 1)), g(some(n_first, 2)), y(some(n_second, 3)), h(some(n_second, 4));
  {
    auto o =
        onebit::one_bit_adam(groups_of(x, g, y, h), echo(memory, 2),
                             onebit::one_bit_adam_options{.freeze = {.after = 2}, .refreshes = 0},
                             onebit::gather_scatter<onebit::sign<>>{}, backend);
    for (std::uint64_t step = 0; step < 6; ++step) {
      const std::vector<float> a = some(n_first, 10 + step), b = some(n_second, 20 + step);
      memory.copy(memory_of(g), a.data(), n_first * sizeof(float));
      memory.copy(memory_of(h), b.data(), n_second * sizeof(float));
      memory.wait();
      (void)o.step(0.01F);
    }
    CHECK(o.settle() == onebit::outcome::kept);
  }
  std::vector<float> result(n_first + n_second);
  memory.copy(result.data(), memory_of(x), n_first * sizeof(float));
  memory.copy(result.data() + n_first, memory_of(y), n_second * sizeof(float));
  memory.wait();
  return result;
}

}  // namespace

TEST_CASE("cuda memory: device vectors of Thrust and spans of cuda::std are tensors") {
  using vector = thrust::device_vector<float>;
  using span = cuda::std::span<float>;
  const auto as_vectors = [](auto& x, auto& g, auto& y, auto& h) {
    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({x, g});
    groups[0].tensors.push_back({y, h});
    return groups;
  };
  const auto as_spans = [](vector& x, vector& g, vector& y, vector& h) {
    const auto of = [](vector& v) { return span(thrust::raw_pointer_cast(v.data()), v.size()); };
    std::vector<onebit::param_group<>> groups(1);
    groups[0].tensors.push_back({of(x), of(g)});
    const span params = of(y), grads = of(h);
    groups[0].tensors.push_back({params, grads});
    return groups;
  };
  host_device host;
  const auto expected = train<std::vector<float>>(host.backend(), host.memory(), as_vectors);
  cuda_device device;
  CHECK(train<vector>(device.backend(), device.memory(), as_vectors) == expected);
  CHECK(train<vector>(device.backend(), device.memory(), as_spans) == expected);

  const vector constant(some(10, 1));
  const onebit::detail::memory_view<const float> view(constant);
  CHECK(view.size() == 10);
  CHECK(view.data() == thrust::raw_pointer_cast(constant.data()));
  static_assert(!std::is_constructible_v<onebit::detail::memory_view<float>, const vector&>);
  static_assert(
      !std::is_constructible_v<onebit::detail::memory_view<float>, vector>);  // it would dangle
}

TEST_CASE("cuda memory: CUDA's own 16-bit types are bf16 and fp16") {
  const auto check = [](auto own, auto x) {
    using T = decltype(own);
    using X = decltype(x);
    X params[3] = {}, grads[3] = {};
    onebit::param_group<T> group;
    group.tensors.push_back({{params, 3}, {grads, 3}});
    group.tensors.push_back({std::span<X>(params), {}});
    for (const auto& t : group.tensors) {
      CHECK(static_cast<void*>(t.params.data()) == params);
      CHECK(t.params.size() == 3);
    }
    const onebit::detail::memory_view<const T> view(static_cast<const X*>(grads), 2);
    CHECK(static_cast<const void*>(view.data()) == grads);
    static_assert(
        !std::is_constructible_v<onebit::detail::memory_view<T>, const X*, int>);  // is const
    static_assert(!std::is_constructible_v<onebit::detail::memory_view<float>, X*, int>);
    params[0] = X(-1.5F);
    CHECK(onebit::to_float(group.tensors[0].params[0]) == -1.5F);
  };
  check(onebit::bf16{}, __nv_bfloat16{});
  check(onebit::fp16{}, __half{});
  static_assert(!std::is_constructible_v<onebit::detail::memory_view<onebit::bf16>, __half*, int>);
}

TEST_CASE("cuda memory: a resource of CCCL under a backend") {
  int n_alive = 0;
  const stream s;
  {
    onebit::cuda_resource_of resource(of_cccl::counted_pool{&n_alive});
    const onebit::cuda backend(s.handle, resource);
    auto a = backend.make_buffer<float>(1000);
    CHECK(n_alive > 0);
    const std::vector<float> x(1000, 3.0F);
    backend.copy_in(a.data(), x.data(), x.size());
    backend.wait();
  }
  CHECK(n_alive == 0);
}
