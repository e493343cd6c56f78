// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Steps as work on a stream: replayed from graphs, without an allocation, and without a wait. One
// rank with a transport that only enqueues; with NCCL see nccl/devices.cpp.

#include "device.cuh"
#include "trainings.hpp"

using namespace onebit_test;

namespace {

/// Holds the stream up until the host says so, or for some seconds: then a test fails, and does not
/// hang.
__global__ void hold(volatile int* released, unsigned long long most_nanoseconds) {
  unsigned long long start = 0, now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (*released == 0 && now - start < most_nanoseconds);
}

class held_stream {
 public:
  explicit held_stream(cudaStream_t stream) : stream_(stream) {
    onebit::detail::check_cuda(cudaMallocHost(&released_, sizeof(int)), "cudaMallocHost");
    *released_ = 1;
    launch();  // its first launch may load code, which may wait
    onebit::detail::check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    *released_ = 0;
    launch();
  }
  held_stream(const held_stream&) = delete;
  held_stream& operator=(const held_stream&) = delete;
  ~held_stream() {
    release();
    (void)cudaStreamSynchronize(stream_);
    (void)cudaFreeHost(released_);
  }
  [[nodiscard]] bool is_held() const {
    const cudaError_t state = cudaStreamQuery(stream_);
    if (state == cudaErrorNotReady) (void)cudaGetLastError();
    return state == cudaErrorNotReady;
  }
  void release() { *static_cast<volatile int*>(released_) = 1; }

 private:
  void launch() {
    hold<<<1, 1, 0, stream_>>>(released_, 5'000'000'000ULL);
    onebit::detail::check_cuda(cudaGetLastError(), "hold");
  }
  cudaStream_t stream_;
  int* released_ = nullptr;
};

/// An echo whose collectives throw when there is nothing left of a number; below 0: never.
template <class M>
class breaking_echo : public echo<M> {
 public:
  struct broken {};
  breaking_echo(M memory, int size, int& left) : echo<M>(std::move(memory), size), left_(&left) {}
  void all_to_all(const void* send, void* receive, std::size_t n) {
    count();
    echo<M>::all_to_all(send, receive, n);
  }
  void all_gather(const void* send, void* receive, std::size_t n) {
    count();
    echo<M>::all_gather(send, receive, n);
  }

 private:
  void count() {
    if ((*left_)-- == 0) throw broken{};
  }
  int* left_;
};

/// f(optimizer, data) with the echo of some ranks.
template <class Device, class Make, class F>
auto with_echo(const Make& make, const script& s, const F& f) {
  Device device;
  model<Device> data(device, 0, 1, s);
  auto o = make(data.groups(), echo(device.memory(), 3), device.backend());
  return f(o, data, device);
}

const auto plain = [](auto& o, auto& data, auto&) { return steps(o, data); };

}  // namespace

TEST_CASE("cuda stream: steps replayed from graphs are the steps") {
  each_algorithm([](const char* name, const auto& make) {
    INFO(std::string(name));
    const script s{.calls = 48};
    const auto replayed =
        with_echo<cuda_device>(make, s, [](auto& o, auto& data, cuda_device& device) {
          onebit::cuda_graphs graphs(device.handle());
          std::size_t most = 0;
          for (std::uint64_t call = 0; call < data.plan().calls; ++call) {
            data.load(call);
            (void)o.step_with(graphs, script::lr(call));
            data.keep(call);
            most = std::max(most, graphs.size());
          }
          CHECK(o.settle() == onebit::outcome::kept);
          CHECK(most > 0);
          CHECK(most <= 3);  // those of phases that are over are gone
          return data.digests(0, data.plan().calls);
        });
    CHECK(difference({replayed}, {with_echo<cuda_device>(make, s, plain)}) == "none");
    CHECK(difference({replayed}, {with_echo<host_device>(make, s, plain)}) == "none");
  });
}

TEST_CASE("cuda stream: a replayed step that is called off changes nothing") {
  const script s{.calls = 24, .bad = {15, 16, 20}};
  for (const std::uint64_t refreshes : {0, 64}) {
    CAPTURE(refreshes);
    const auto make = [&](const auto& g, auto t, auto b) {
      return onebit::one_bit_adam(
          g, t, onebit::one_bit_adam_options{.freeze = {.after = 4}, .refreshes = refreshes},
          onebit::gather_scatter<onebit::sign<>>{}, b);
    };
    const auto replayed =
        with_echo<cuda_device>(make, s, [](auto& o, auto& data, cuda_device& device) {
          onebit::cuda_graphs graphs(device.handle());
          for (std::uint64_t call = 0; call < data.plan().calls; ++call) {
            data.load(call);
            const auto r = o.step_with(graphs, script::lr(call), call % 2 == 0 ? 1.0F : 0.5F);
            data.keep(call);
            // the last step of the warm-up waits: what comes next hangs on it
            CHECK(r.pending == (call != 3));
          }
          CHECK(o.n_skipped() == 3);
          return data.digests(0, data.plan().calls);
        });
    CHECK(replayed[15] == replayed[14]);
    CHECK(replayed[16] == replayed[14]);
    CHECK(replayed[17] != replayed[16]);
    CHECK(replayed[20] == replayed[19]);
    const auto launch = [](auto& o, auto& data, auto&) {
      for (std::uint64_t call = 0; call < data.plan().calls; ++call) {
        data.load(call);
        (void)o.step(script::lr(call), call % 2 == 0 ? 1.0F : 0.5F);
        data.keep(call);
      }
      return data.digests(0, data.plan().calls);
    };
    CHECK(difference({replayed}, {with_echo<cuda_device>(make, s, launch)}) == "none");
    // a host does not count such a step, and the signs of sketches are of the step's number
    if (refreshes > 0) continue;
    CHECK(difference({replayed}, {with_echo<host_device>(make, s, launch)}) == "none");
  }
}

TEST_CASE("cuda stream: a transport that throws changes nothing, also where a step is captured") {
  each_algorithm([](const char* name, const auto& make) {
    INFO(std::string(name));
    using transport = breaking_echo<onebit::cuda_memory>;
    // whole words: an echo fills the padding of others with what it says itself
    const script s{.calls = 30, .sizes = {32, 0, 1024, 9024, 64}};
    cuda_device device;
    model<cuda_device> data(device, 0, 1, s);
    int left = -1, n_thrown = 0;
    auto o = make(data.groups(), transport(device.memory(), 3, left), device.backend());
    onebit::cuda_graphs graphs(device.handle());
    // The first collective of a step throws, then its second, until there is none left to throw.
    const auto step = [&](std::uint64_t call) {
      for (int n = 0;; ++n) {
        left = n;
        data.load(call);
        try {
          (void)o.step_with(graphs, script::lr(call));
          return;
        } catch (const transport::broken&) {
          ++n_thrown;
        }
      }
    };
    for (std::uint64_t call = 0; call < s.calls; ++call) {
      step(call);
      data.keep(call);
    }
    CHECK(o.settle() == onebit::outcome::kept);
    CHECK(n_thrown >= 4);  // two collectives when it runs, and when it is captured
    CHECK(graphs.size() > 0);
    CHECK(difference({data.digests(0, s.calls)}, {with_echo<host_device>(make, s, plain)}) ==
          "none");
  });
}

TEST_CASE("cuda stream: late steps neither allocate nor wait") {
  each_algorithm([](const char* name, const auto& make) {
    INFO(std::string(name));
    constexpr std::uint64_t first = 36, last = 44;
    const auto ahead =
        with_echo<cuda_device>(make, {.calls = last}, [](auto& o, auto& data, cuda_device& device) {
          trajectory all = steps(o, data, 0, first);
          const std::size_t allocated = device.resource().n_allocated;
          const std::size_t freed = device.resource().n_freed;
          held_stream held(device.handle());
          for (std::uint64_t call = first; call < last; ++call) {
            data.load(call);
            (void)o.step(script::lr(call));
            data.keep(call);
          }
          CHECK(held.is_held());  // all steps returned while none of them could run
          CHECK(device.resource().n_allocated == allocated);
          CHECK(device.resource().n_freed == freed);
          held.release();
          CHECK(o.settle() == onebit::outcome::kept);
          const trajectory rest = data.digests(first, last);
          all.insert(all.end(), rest.begin(), rest.end());
          return all;
        });
    CHECK(difference({ahead}, {with_echo<host_device>(make, {.calls = last}, plain)}) == "none");
  });
}

TEST_CASE("cuda stream: ranks that share a device do not allocate in late steps") {
  each_algorithm([](const char* name, const auto& make) {
    INFO(std::string(name));
    (void)on<cuda_device>(2, [&](auto transport, cuda_device& device) {
      const script s;
      model<cuda_device> data(device, transport.rank(), transport.size(), s);
      auto o = make(data.groups(), transport, device.backend());
      (void)steps(o, data, 0, 36);
      const std::size_t before = device.resource().n_allocated + device.resource().n_freed;
      (void)steps(o, data, 36, s.calls);
      CHECK(device.resource().n_allocated + device.resource().n_freed == before);
      return trajectory{};
    });
  });
}

TEST_CASE("cuda stream: a veto skips the same steps on the device and on the host, with one bits") {
  const auto make = [](const auto& g, auto t, auto b) {
    auto o = onebit::adam(g, t, onebit::adam_options{.max_grad_norm = 1}, b);
    o.veto_with([call = 0](float norm) mutable { return ++call % 5 == 0 && norm > 0; });
    return o;
  };
  for (const int n : {1, 3}) check_same_bits<cuda_device>("adam, vetoed", n, make);
}

TEST_CASE("cuda stream: a transport on another stream than the backend is refused") {
  on<cuda_device>(2, [](auto t, cuda_device& device) {
    model<cuda_device> data(device, t.rank(), 2, {});
    cuda_device other;
    for (const bool odd : {true, false}) {
      const auto make = [&] {
        (void)onebit::adam(data.groups(), t, {}, odd ? other.backend() : device.backend());
      };
      if (odd) {
        CHECK(thrown<onebit::invalid_input>(make) ==
              contains{"nothing here orders them; give both"});
      } else {
        make();
      }
      const auto mean = [&] {
        onebit::compressed_allreduce<onebit::gather_scatter<onebit::sign<>>, float, onebit::cuda>
            allreduce(t, {100}, {}, odd ? other.backend() : device.backend());
      };
      if (odd) CHECK(thrown<onebit::invalid_input>(mean) == contains{"nothing here orders them"});
      if (!odd) mean();
    }
    return 0;
  });
}

TEST_CASE("cuda stream: a run that skips on and on is told") {
  static std::vector<std::string> said;
  said.clear();
  script s{.calls = 12, .bad = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}};
  (void)with_echo<cuda_device>(
      [](const auto& g, auto t, auto b) { return onebit::adam(g, t, {}, b); }, s,
      [](auto& o, auto& data, auto&) {
        o.warn_with([](const std::string& text) { said.push_back(text); });
        return steps(o, data, true);
      });
  REQUIRE(said.size() == 1);
  CHECK(said[0] == contains{"10 steps in a row were skipped, 10 in all"});
  CHECK(said[0] == contains{"step() says which gradient"});  // settle() does not look at gradients
}
