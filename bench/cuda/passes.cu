// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The fused passes of a compressed step on a CUDA device, beside a device-to-device copy that moves
// as many bytes (read and written), and beside Adam written by hand as one kernel.
//
// Every iteration times the copy and the pass one after the other; share_of_copy is the median of
// copy over pass: 1 is a pass at the speed of memory. Below 2^24 elements the cache holds what is
// moved, of both. Bytes that a pass has to move per element:
//
//   encode        12.375  carried, gradients, v and squares in, agreed signs in, live mask in,
//                         message out
//   serve          4.5    two ranks' signs in, residual read, live mask in, average's signs out
//   serve_commit   8.5    residual read and written, signs of both and of the average, live mask in
//   update        26.375  carried, parameters and squares read and written, gradients and v in, two
//                         agreements' signs and live mask in
//   adam          28      parameters, m and v read and written, gradients in
//
// Beside them what CUB makes of the simplest passes: what a device gives to code that does nothing
// else.
//
//   cub_transform 12      y = a x + y
//   cub_reduce     4      the sum of a vector, in an order that may depend on the device
//
// The passes have loops of their own where CUB has none: one pass reads up to five streams, writes
// three, and gathers a sum for each tile whose order, and so whose bits, are the host's on every
// device. Nor does cub::DeviceTransform write more than one vector, or know of a warp's ballot.

#include <cstring>
#include <cub/device/device_reduce.cuh>
#include <cub/device/device_transform.cuh>
#include <onebit/collective/roles.hpp>
#include <onebit/compressor/sign.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/kernel/context.hpp>
#include <onebit/rule/adam.hpp>
#include <span>

#include "support.cuh"

namespace {

using namespace onebit_bench;
using codec = onebit::sign<>;
using view = onebit::gathered_view<codec>;
using mean = onebit::detail::mean_view<codec>;
using sender = onebit::sender<codec, onebit::cuda>;

constexpr int n_ranks = 2;

/// The flat axis of n elements in chunks of two ranks, all of them live.
struct scene {
  onebit::cuda backend;
  std::size_t n;
  onebit::detail::cuda_buffer<onebit::step_scalars> now;
  onebit::detail::cuda_buffer<onebit::detail::tensor_scalars> numbers;
  sender own;
  onebit::detail::cuda_buffer<std::uint32_t> active;

  scene(cudaStream_t stream, std::size_t elements)
      : backend(stream),
        n(elements),
        now(backend.make_buffer<onebit::step_scalars>(1)),
        numbers(onebit::to_buffer(backend,
                                  std::vector<onebit::detail::tensor_scalars>{
                                      {.c = onebit::detail::make_moments({0.9, 0.999, 1e-8})}})),
        own(codec{}, backend, std::span(&n, 1), n_ranks),
        active(backend.make_buffer<std::uint32_t>(own.axis().n_words())) {
    const onebit::step_scalars values{.given = {.lr = 1e-7F}};
    backend.copy_in(now.data(), &values, 1);
    check_cuda(cudaMemsetAsync(active.data(), 0xFF, active.bytes(), stream), "cudaMemsetAsync");
    own.count_active(mask());
  }
  [[nodiscard]] onebit::active_mask mask() const { return {active.data()}; }
  /// A slot from each rank: random signs, and scales of 0.5.
  [[nodiscard]] onebit::detail::cuda_buffer<std::byte> make_slots() {
    const onebit::detail::slot_format& f = own.format();
    auto slots = backend.make_buffer<std::byte>(f.slot_bytes * n_ranks);
    fill(reinterpret_cast<float*>(slots.data()), slots.bytes() / 4, 0, 1, 5, backend.stream());
    const std::vector<float> scales((f.status_at - f.scales_at) / sizeof(float), 0.5F);
    for (std::size_t j = 0; j < n_ranks; ++j) {
      std::byte* at = slots.data() + j * f.slot_bytes + f.scales_at;
      backend.copy_in(reinterpret_cast<float*>(at), scales.data(), scales.size());
    }
    return slots;
  }
  [[nodiscard]] view latest(const onebit::detail::cuda_buffer<std::byte>& slots) const {
    return {codec{}, own.format(), slots.data(), mask()};
  }
  [[nodiscard]] onebit::detail::cuda_buffer<onebit::detail::tensor_entry<float, float>> entry(
      float* params, float* grads) const {
    const onebit::detail::tensor_entry<float, float> here{params, grads, 1.0F, 0.01F};
    auto there = backend.make_buffer<onebit::detail::tensor_entry<float, float>>(1);
    backend.copy_in(there.data(), &here, 1);
    return there;
  }
};

/// A step's message: directions.
class encode_pass {
 public:
  static constexpr double bytes = 12.375;

  encode_pass(cudaStream_t stream, std::size_t n)
      : s_(stream, n),
        params_(random_buffer(s_.backend, n, 1)),
        grads_(random_buffer(s_.backend, n, 2)),
        variances_(of_bf16(s_.backend, s_.own.axis().n_words() * 32, 0.3F)),
        squares_(of_bf16(s_.backend, s_.own.axis().n_words() * 32, 0.01F)),
        rho_(onebit::to_buffer(s_.backend, std::vector<float>{1})),
        tensor_(s_.entry(params_.data(), grads_.data())),
        agreed_(s_.make_slots()),
        slots_(s_.make_slots()) {
    // scaled so that the residual's scale is 1: with it fixed, the compensated values stay within 2
    s_.own.start_from(random_buffer(s_.backend, s_.own.axis().n_words() * 32, 3, 0, 1.7F));
    run();
    s_.own.finish(args());
  }
  void run() { s_.own.encode(message(), args(), slots_.data(), 0); }

 protected:
  [[nodiscard]] onebit::momentum_message<view, float, float> message() const {
    return {s_.latest(agreed_), tensor_.data(), s_.numbers.data(), s_.now.data(), units()};
  }
  /// The rank's own v.
  [[nodiscard]] onebit::detail::direction_units units() const {
    return {variances_.data(), squares_.data(), rho_.data()};
  }
  [[nodiscard]] onebit::exchange_args<onebit::detail::store_at_update> args() {
    return {s_.now.data(), s_.mask(), {}, {2}};
  }

  scene s_;
  [[nodiscard]] static onebit::detail::cuda_buffer<onebit::bf16> of_bf16(onebit::cuda& backend,
                                                                         std::size_t n, float x) {
    return onebit::to_buffer(backend, std::vector<onebit::bf16>(n, onebit::to_bf16(x)));
  }

  onebit::detail::cuda_buffer<float> params_, grads_, rho_;
  onebit::detail::cuda_buffer<onebit::bf16> variances_, squares_;
  onebit::detail::cuda_buffer<onebit::detail::tensor_entry<float, float>> tensor_;
  onebit::detail::cuda_buffer<std::byte> agreed_, slots_;
};

/// What a rank does with the chunk that it serves, here of n elements, half of the axis.
class serve_pass {
 public:
  static constexpr double bytes = 4.5;
  using feedback = onebit::detail::server_feedback;

  serve_pass(cudaStream_t stream, std::size_t n)
      : s_(stream, n_ranks * n),
        received_(s_.make_slots()),
        served_(s_.make_slots()),
        residual_(random_buffer(s_.backend, s_.own.axis().chunk_words() * 32, 4)) {}
  void run() {
    const onebit::tile_range own = s_.own.axis().chunk_tiles(0);
    s_.backend.launch(own.end - own.begin,
                      onebit::detail::encode_kernel<codec, mean, feedback>{
                          codec{},
                          average(),
                          feedback{{residual_.data()}, s_.own.format()},
                          s_.mask(),
                          {s_.own.tiles(), own.begin},
                          {s_.own.format(), served_.data(), s_.own.format().chunks_per_bucket},
                          s_.own.sums()});
    const onebit::tile_range segments = s_.own.axis().chunk_segments(0);
    s_.backend.launch(segments.end - segments.begin,
                      onebit::detail::scale_kernel<codec>{codec{},
                                                          s_.own.segments() + segments.begin,
                                                          s_.own.sums(),
                                                          nullptr,
                                                          served_.data(),
                                                          s_.own.format().scales_at,
                                                          s_.now.data(),
                                                          {2}});
  }

 protected:
  [[nodiscard]] mean average() {
    return {codec{}, s_.own.format(), received_.data(), n_ranks, 1.0F / n_ranks, {}};
  }
  scene s_;
  onebit::detail::cuda_buffer<std::byte> received_, served_;
  onebit::detail::cuda_buffer<float> residual_;
};

class serve_commit_pass : public serve_pass {
 public:
  static constexpr double bytes = 8.5;
  using serve_pass::serve_pass;
  void run() {
    const onebit::tile_range own = s_.own.axis().chunk_tiles(0);
    s_.backend.launch(own.end - own.begin, onebit::detail::server_residual_kernel<mean, view>{
                                               average(),
                                               s_.latest(served_),
                                               s_.mask(),
                                               {s_.own.tiles(), own.begin},
                                               s_.own.format(),
                                               {residual_.data()}});
  }
};

/// The update, tile by tile after the message, which the encode pass has not stored.
class update_pass : public encode_pass {
 public:
  static constexpr double bytes = 26.375;

  update_pass(cudaStream_t stream, std::size_t n) : encode_pass(stream, n) {}
  void run() {
    const auto at = s_.own.at(tensor_.data(), s_.numbers.data(), s_.now.data(), {});
    s_.own.store_and_update(message(), args(),
                            onebit::detail::adam_update_kernel<view, float, float>{
                                s_.latest(slots_),
                                at,
                                nullptr,
                                true,
                                units(),
                                nullptr,
                                {at.second_sums(), at.third_sums()}});
  }
};

class adam_pass : public plain_adam {
 public:
  adam_pass(cudaStream_t stream, std::size_t n) : plain_adam(onebit::cuda(stream), n) {}
};

struct axpy {
  __device__ float operator()(float x, float y) const { return fmaf(1e-7F, x, y); }
};

class cub_transform_pass {
 public:
  static constexpr double bytes = 12;

  cub_transform_pass(cudaStream_t stream, std::size_t n)
      : n_(n),
        backend_(stream),
        x_(random_buffer(backend_, n, 1)),
        y_(random_buffer(backend_, n, 2)) {}
  void run() {
    const float *x = x_.data(), *y = y_.data();
    check_cuda(cub::DeviceTransform::Transform(cuda::std::make_tuple(x, y), y_.data(), n_, axpy{},
                                               backend_.stream()),
               "cub::DeviceTransform");
  }

 private:
  std::size_t n_;
  onebit::cuda backend_;
  onebit::detail::cuda_buffer<float> x_, y_;
};

class cub_reduce_pass {
 public:
  static constexpr double bytes = 4;

  cub_reduce_pass(cudaStream_t stream, std::size_t n)
      : n_(n),
        backend_(stream),
        x_(random_buffer(backend_, n, 1)),
        sum_(backend_.make_buffer<float>(1)) {
    std::size_t room = 0;
    reduce(nullptr, room);
    scratch_ = backend_.make_buffer<std::byte>(room);
  }
  void run() {
    std::size_t room = scratch_.size();
    reduce(scratch_.data(), room);
  }

 private:
  void reduce(void* scratch, std::size_t& room) {
    const float* x = x_.data();
    check_cuda(cub::DeviceReduce::Sum(scratch, room, x, sum_.data(), n_, backend_.stream()),
               "cub::DeviceReduce");
  }
  std::size_t n_;
  onebit::cuda backend_;
  onebit::detail::cuda_buffer<float> x_, sum_;
  onebit::detail::cuda_buffer<std::byte> scratch_;
};

template <class Pass>
void run_pass(benchmark::State& state, std::size_t n) {
  where_it_fits(state, [&] {
    const stopwatch watch;
    const double bytes = Pass::bytes * static_cast<double>(n);
    Pass pass(watch.stream(), n);
    // half of the bytes are read, half written
    const onebit::cuda backend(watch.stream());
    const auto copied = static_cast<std::size_t>(bytes / 2);
    auto from = random_buffer(backend, copied / 4, 6), to = backend.make_buffer<float>(copied / 4);
    // enough of a small one that launches overlap: their gaps are not what is asked for here
    const int repeats =
        static_cast<int>(std::clamp<std::size_t>((std::size_t{1} << 25) / n, 1, 16));
    const auto repeated = [&](const auto& f) {
      return watch.time([&] {
        for (int i = 0; i < repeats; ++i) f();
      }) / repeats;
    };
    const auto copy = [&] {
      check_cuda(cudaMemcpyAsync(to.data(), from.data(), to.bytes(), cudaMemcpyDeviceToDevice,
                                 watch.stream()),
                 "cudaMemcpyAsync");
    };
    for (int i = 0; i < 3; ++i) {
      (void)repeated(copy);
      (void)repeated([&] { pass.run(); });
    }
    std::vector<double> shares, copies, passes;
    for (auto _ : state) {
      copies.push_back(repeated(copy));
      passes.push_back(repeated([&] { pass.run(); }));
      state.SetIterationTime(passes.back());
      shares.push_back(copies.back() / passes.back());
    }
    state.counters["share_of_copy"] = median(shares);
    state.counters["gb_per_second"] = bytes / median(passes) / 1e9;
    state.counters["copy_gb_per_second"] = bytes / median(copies) / 1e9;
  });
}

template <class Pass>
void add(const char* what) {
  for (const std::size_t n : device_sizes(quick() ? 4 : 2)) {
    const std::string name = std::string("cuda/") + what + "/n:" + std::to_string(n);
    benchmark::RegisterBenchmark(name.c_str(), run_pass<Pass>, n)
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
  }
}

}  // namespace

int main(int argc, char** argv) {
  return cuda_main(argc, argv, [] {
    add<encode_pass>("encode");
    add<serve_pass>("serve");
    add<serve_commit_pass>("serve_commit");
    add<update_pass>("update");
    add<adam_pass>("adam");
    if (tiny()) return;  // a device made of the CPU does not know the instructions of CUB's
    add<cub_transform_pass>("cub_transform");
    add<cub_reduce_pass>("cub_reduce");
  });
}
