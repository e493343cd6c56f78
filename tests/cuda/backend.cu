// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#include <onebit/backend/cuda.cuh>
#include <onebit/testing/backend.hpp>
#include <onebit/testing/lanes.hpp>
#include <utility>

#include "device.cuh"

using namespace onebit::testing;
using namespace onebit_test;

namespace {

struct cuda_model {
  static std::string name() { return "cuda"; }
  static bool available() { return onebit::cuda_device_count() > 0; }
  static onebit::cuda make() {
    static const stream own;
    return onebit::cuda(own.handle);
  }
};

}  // namespace

// The portable lanes of this file are compiled by nvcc's host compiler: the suites must hold there.
TEST_CASE_TEMPLATE_INVOKE(backend_conformance, cuda_model, scalar_1, scalar_2);
TEST_CASE_TEMPLATE_INVOKE(lanes_conformance, cuda_model, scalar_1);

TEST_CASE("cuda: buffers are aligned and go back to the resource they came from") {
  const stream s;
  counting_memory memory;
  const onebit::cuda backend(s.handle, memory);
  {
    auto a = backend.make_buffer<float>(1000), b = backend.make_buffer<float>(1);
    CHECK(reinterpret_cast<std::uintptr_t>(a.data()) % 256 == 0);
    CHECK(reinterpret_cast<std::uintptr_t>(b.data()) % 256 == 0);
    CHECK(memory.bytes == 4004);
    a = std::move(b);
    CHECK(memory.n_freed == 1);
    const auto none_at_all = backend.make_buffer<float>(0);
    CHECK(none_at_all.data() == nullptr);
  }
  CHECK(memory.n_allocated == 2);
  CHECK(memory.n_freed == 2);
  CHECK(memory.bytes == 0);
}

TEST_CASE("cuda: an error says which call, which code and what it means") {
  try {
    onebit::detail::check_cuda(cudaErrorMemoryAllocation, "cudaMallocAsync");
    FAIL("no error");
  } catch (const onebit::backend_error& e) {
    CHECK(std::string(e.what()) ==
          "onebit::cuda: cudaMallocAsync gave error 2 (cudaErrorMemoryAllocation): out of memory");
  }
  const stream s;
  const onebit::cuda backend(s.handle);
  CHECK_THROWS_AS((void)backend.make_buffer<float>(std::size_t{1} << 60), onebit::backend_error);
  backend.wait();  // the stream is as good as before
}

TEST_CASE("cuda: memory for transports goes between host and device, in order") {
  const stream s;
  const onebit::cuda backend(s.handle);
  const onebit::cuda_memory memory(s.handle);
  auto buffer = backend.make_buffer<std::uint32_t>(100);
  auto* host = static_cast<std::uint32_t*>(memory.allocate_host(400));
  for (std::uint32_t i = 0; i < 100; ++i) host[i] = i;
  memory.copy(buffer.data(), host, 400);
  backend.launch(100, backend_suite::count_calls{buffer.data()});
  memory.copy(host, buffer.data(), 400);
  memory.copy(host, buffer.data(), 0);
  memory.wait();
  bool right = true;
  for (std::uint32_t i = 0; i < 100; ++i) right = right && host[i] == i + 1;
  CHECK(right);
  memory.free_host(host);
  memory.free_host(nullptr);
}

TEST_CASE("cuda: a graph runs what was captured, as often as it is launched") {
  const stream s;
  const onebit::cuda backend(s.handle);
  auto counts = backend.make_buffer<std::uint32_t>(100);
  const auto launch = [&] { backend.launch(100, backend_suite::count_calls{counts.data()}); };
  auto graph = onebit::detail::cuda_graph::capture(s.handle, [&] {
    launch();
    launch();
  });
  CHECK(downloaded(backend, counts).front() == 0);
  for (int i = 0; i < 5; ++i) graph.launch(s.handle);
  CHECK(downloaded(backend, counts) == std::vector<std::uint32_t>(100, 10));
  const auto moved = std::move(graph);
  moved.launch(s.handle);
  CHECK(downloaded(backend, counts).back() == 12);
  CHECK(moved);
  CHECK(!graph);
  CHECK_THROWS_AS(graph.launch(s.handle), onebit::invalid_input);

  // one that fails leaves the stream as it was
  CHECK_THROWS_AS((void)onebit::detail::cuda_graph::capture(s.handle, [] { throw 1; }), int);
  CHECK_THROWS_AS((void)onebit::detail::cuda_graph::capture(s.handle, [&] { backend.wait(); }),
                  onebit::backend_error);
  launch();
  CHECK(downloaded(backend, counts).back() == 13);
}
