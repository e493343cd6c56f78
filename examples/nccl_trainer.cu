// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A trainer on CUDA devices, one process for each, over NCCL: a network with one hidden layer
// learns what another one of its shape says, by 1-bit Adam. Everything but the printed loss stays
// on the device. What lies between the markers is in the README.
//
//   nccl_trainer                                    one device, one rank
//   mpirun -np 4 nccl_trainer                       where it was built with MPI
//   RANK=0 WORLD_SIZE=2 nccl_trainer --id-file ID   and the same with RANK=1: ID is a new file in a
//                                                   folder that all processes see
//
// Without a device it ends with status 77, which ctest shows as skipped.

#include <nccl.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <onebit/backend/cuda.cuh>
#include <onebit/onebit.hpp>
#include <onebit/transport/nccl.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/id_file.hpp"

#if defined(ONEBIT_EXAMPLE_WITH_MPI)
#include <mpi.h>
#endif

namespace {

void check(cudaError_t code) {
  if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}
void check(ncclResult_t code) {
  if (code != ncclSuccess) throw std::runtime_error(ncclGetLastError(nullptr));
}

// -- who else is there -------------------------------------------------------------------------

int number_in_environment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::stoi(text);
}

/// This process among all, and the communicator's id, which rank 0 makes and all must have.
struct place {
  int rank = 0, size = 1, local_rank = 0;
  ncclUniqueId id{};
};

/// By a file that rank 0 writes. Whoever has the id can join: it is its owner's alone.
void share_by_file(place& p, const std::string& file) {
  if (p.size > 1 && file.empty()) throw std::runtime_error("several ranks need --id-file");
  if (p.rank == 0) {
    check(ncclGetUniqueId(&p.id));
    if (p.size > 1) common::publish(file, p.id.internal, sizeof p.id.internal);
  } else {
    common::await(file, p.id.internal, sizeof p.id.internal, std::chrono::minutes(1));
  }
}

place find_place(const std::string& file) {
  place p;
#if defined(ONEBIT_EXAMPLE_WITH_MPI)
  if (std::getenv("RANK") == nullptr) {
    MPI_Comm node = MPI_COMM_NULL;
    MPI_Comm_rank(MPI_COMM_WORLD, &p.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &p.size);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &p.local_rank);
    MPI_Comm_free(&node);
    if (p.rank == 0) check(ncclGetUniqueId(&p.id));
    MPI_Bcast(&p.id, sizeof p.id, MPI_BYTE, 0, MPI_COMM_WORLD);
    return p;
  }
#endif
  p.rank = number_in_environment("RANK", 0);
  p.size = number_in_environment("WORLD_SIZE", 1);
  p.local_rank = number_in_environment("LOCAL_RANK", p.rank);
  share_by_file(p, file);
  return p;
}

// -- the network -------------------------------------------------------------------------------

/// Device memory of n floats, zeroed.
class floats {
 public:
  explicit floats(std::size_t n) : n_(n) {
    check(cudaMalloc(&p_, n * sizeof(float)));
    check(cudaMemset(p_, 0, n * sizeof(float)));
    check(cudaDeviceSynchronize());  // it is on another stream than the rest
  }
  floats(floats&& other) noexcept : n_(other.n_), p_(other.p_) { other.p_ = nullptr; }
  floats& operator=(floats&&) = delete;
  ~floats() { (void)cudaFree(p_); }
  [[nodiscard]] float* data() const { return p_; }
  [[nodiscard]] std::size_t size() const { return n_; }

 private:
  std::size_t n_;
  float* p_ = nullptr;
};

/// Uniform in [-range, range), the same for the same seed.
__global__ void fill(float* to, int n, float range, unsigned long long seed) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  unsigned long long x = (seed << 32U) + static_cast<unsigned>(i) + 0x9E3779B97F4A7C15ULL;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBULL;
  x ^= x >> 31U;
  to[i] = range * (static_cast<float>(x >> 40U) / (1 << 23) - 1);
}

/// An n x m matrix in rows, or the transpose of one that lies so.
struct matrix {
  const float* p;
  int rows, columns;
  bool transposed = false;

  __device__ float at(int r, int c) const {
    if (r >= rows || c >= columns) return 0;
    return transposed ? p[c * rows + r] : p[r * columns + c];
  }
};

constexpr int square = 16;

/// c = a b (+ bias, one for each column), and what is negative 0 where `relu`.
__global__ void multiply(float* c, matrix a, matrix b, const float* bias, bool relu) {
  __shared__ float as[square][square], bs[square][square + 1];
  const int tx = static_cast<int>(threadIdx.x), ty = static_cast<int>(threadIdx.y);
  const int row = static_cast<int>(blockIdx.y) * square + ty;
  const int column = static_cast<int>(blockIdx.x) * square + tx;
  float sum = 0;
  for (int k = 0; k < a.columns; k += square) {
    as[ty][tx] = a.at(row, k + tx);
    bs[ty][tx] = b.at(k + ty, column);
    __syncthreads();
    for (int i = 0; i < square; ++i) sum += as[ty][i] * bs[i][tx];
    __syncthreads();
  }
  if (row >= a.rows || column >= b.columns) return;
  if (bias != nullptr) sum += bias[column];
  c[row * b.columns + column] = relu && sum < 0 ? 0 : sum;
}

/// The gradient of the mean squared error by y, and the error itself, in a fixed order: one block.
__global__ void compare(const float* y, const float* target, int n, float* dy, float* loss) {
  __shared__ float sums[256];
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < n; i += 256) {
    const float error = y[i] - target[i];
    dy[i] = 2 * error / static_cast<float>(n);
    sum += error * error;
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (unsigned half = 128; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) *loss = sums[0] / static_cast<float>(n);
}

/// No gradient where the hidden layer was off.
__global__ void mask(float* dh, const float* h, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n && h[i] == 0) dh[i] = 0;
}

__global__ void sum_rows(float* sums, matrix a) {
  const int column = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (column >= a.columns) return;
  float sum = 0;
  for (int r = 0; r < a.rows; ++r) sum += a.at(r, column);
  sums[column] = sum;
}

constexpr int n_in = 64, n_hidden = 512, n_out = 16;

/// Two layers: weights by rows of inputs, biases.
class network {
 public:
  network(cudaStream_t stream, int batch, unsigned long long seed)
      : stream_(stream), batch_(batch), hidden_(size(batch, n_hidden)), out_(size(batch, n_out)) {
    for (const std::size_t n :
         {size(n_in, n_hidden), size(1, n_hidden), size(n_hidden, n_out), size(1, n_out)}) {
      params_.emplace_back(n);
      grads_.emplace_back(n);
    }
    random(params_[0], 2 / std::sqrt(static_cast<float>(n_in)), seed);
    random(params_[1], 0.5F, seed + 1);
    random(params_[2], 2 / std::sqrt(static_cast<float>(n_hidden)), seed + 2);
  }

  [[nodiscard]] std::vector<floats>& params() { return params_; }
  [[nodiscard]] std::vector<floats>& grads() { return grads_; }
  [[nodiscard]] const floats& out() const { return out_; }

  void random(floats& to, float range, unsigned long long seed) {
    const auto n = static_cast<unsigned>(to.size());
    fill<<<(n + 255) / 256, 256, 0, stream_>>>(to.data(), static_cast<int>(n), range, seed);
    check(cudaGetLastError());
  }
  void forward(const floats& x) {
    product(hidden_, {x.data(), batch_, n_in}, {params_[0].data(), n_in, n_hidden}, &params_[1],
            true);
    product(out_, {hidden_.data(), batch_, n_hidden}, {params_[2].data(), n_hidden, n_out},
            &params_[3], false);
  }
  /// All gradients of the error against `target`.
  void backward(const floats& x, const floats& target, floats& dy, floats& dh, floats& loss) {
    compare<<<1, 256, 0, stream_>>>(out_.data(), target.data(), batch_ * n_out, dy.data(),
                                    loss.data());
    product(grads_[2], {hidden_.data(), n_hidden, batch_, true}, {dy.data(), batch_, n_out});
    product(dh, {dy.data(), batch_, n_out}, {params_[2].data(), n_out, n_hidden, true});
    const int n = batch_ * n_hidden;
    mask<<<static_cast<unsigned>((n + 255) / 256), 256, 0, stream_>>>(dh.data(), hidden_.data(), n);
    product(grads_[0], {x.data(), n_in, batch_, true}, {dh.data(), batch_, n_hidden});
    sum_rows<<<1, n_out, 0, stream_>>>(grads_[3].data(), {dy.data(), batch_, n_out});
    sum_rows<<<1, n_hidden, 0, stream_>>>(grads_[1].data(), {dh.data(), batch_, n_hidden});
    check(cudaGetLastError());
  }

 private:
  static std::size_t size(int rows, int columns) {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
  }
  void product(floats& c, matrix a, matrix b, const floats* bias = nullptr, bool relu = false) {
    const auto blocks = [](int n) { return static_cast<unsigned>((n + square - 1) / square); };
    multiply<<<dim3(blocks(b.columns), blocks(a.rows)), dim3(square, square), 0, stream_>>>(
        c.data(), a, b, bias == nullptr ? nullptr : bias->data(), relu);
  }

  cudaStream_t stream_;
  int batch_;
  floats hidden_, out_;
  std::vector<floats> params_, grads_;
};

// -- the training ------------------------------------------------------------------------------

struct options {
  int steps = 400, batch = 256;
  float lr = 2e-3F;
  bool graphs = false;
  std::string id_file;
};

/// Did it learn?
bool train(const place& here, ncclComm_t communicator, cudaStream_t stream, const options& o) {
  network teacher(stream, o.batch, 1000), student(stream, o.batch, 2000);
  const auto elements = [&](int n) { return static_cast<std::size_t>(o.batch * n); };
  floats x(elements(n_in)), dy(elements(n_out)), dh(elements(n_hidden)), loss(1);
  std::vector<floats>&params = student.params(), &grads = student.grads();

  // [cuda]
  onebit::nccl comm(communicator, stream);  // instead of threads or MPI
  std::vector<onebit::param_group<>> groups(1);
  for (std::size_t i = 0; i < params.size(); ++i) {  // spans of device memory
    groups[0].tensors.push_back(
        {{params[i].data(), params[i].size()}, {grads[i].data(), grads[i].size()}});
  }
  onebit::one_bit_adam_options adam;
  adam.freeze.after = static_cast<std::uint64_t>(o.steps) / 4;
  auto optimizer =
      onebit::one_bit_adam(groups, comm, adam, onebit::gather_scatter<onebit::sign<>>{},
                           onebit::cuda(stream));  // instead of the host
  // [/cuda]

  onebit::cuda_graphs graphs(stream);
  float first = 0, last = 0;
  for (int step = 0; step < o.steps; ++step) {
    // every rank and step has inputs of its own
    teacher.random(x, 1, 5000ULL + static_cast<unsigned>(step * here.size + here.rank));
    teacher.forward(x);
    student.forward(x);
    student.backward(x, teacher.out(), dy, dh, loss);
    const float lr = step < o.steps / 2 ? o.lr : o.lr / 8;
    const onebit::report report = o.graphs ? optimizer.step_with(graphs, lr) : optimizer.step(lr);
    if (step % std::max(1, o.steps / 10) != 0 && step + 1 != o.steps) continue;
    check(cudaMemcpyAsync(&last, loss.data(), sizeof last, cudaMemcpyDeviceToHost, stream));
    const bool skipped = optimizer.settle() == onebit::outcome::skipped;  // the only wait
    if (step == 0) first = last;
    if (here.rank != 0) continue;
    std::printf("step %4d  loss %.5f  %9llu bytes sent%s\n", step, last,
                static_cast<unsigned long long>(report.bytes_sent), skipped ? ", skipped" : "");
  }
  return last < first / 4;
}

int run(const options& o) {
  const place here = find_place(o.id_file);
  const int n_devices = onebit::cuda_device_count();
  if (here.local_rank >= n_devices) {
    throw std::runtime_error("rank " + std::to_string(here.rank) + " is number " +
                             std::to_string(here.local_rank) + " on this machine, which has " +
                             std::to_string(n_devices) + " CUDA devices; NCCL needs one for each");
  }
  check(cudaSetDevice(here.local_rank));
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  ncclComm_t communicator = nullptr;
  check(ncclCommInitRank(&communicator, here.size, here.id, here.rank));
  if (here.rank == 0 && !o.id_file.empty()) std::filesystem::remove(o.id_file);
  const bool learned = train(here, communicator, stream, o);
  check(ncclCommDestroy(communicator));
  check(cudaStreamDestroy(stream));
  if (!learned) std::fprintf(stderr, "rank %d: the loss did not fall enough\n", here.rank);
  return learned ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  options o;
  CLI::App app{"Trains on CUDA devices over NCCL with 1-bit Adam"};
  app.add_option("--steps", o.steps, "how many")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--batch", o.batch, "inputs per rank")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--lr", o.lr, "learning rate")->capture_default_str();
  app.add_flag("--graphs", o.graphs, "replay the optimizer's steps from CUDA graphs");
  app.add_option("--id-file", o.id_file, "where rank 0 leaves the communicator's id, without MPI");
  CLI11_PARSE(app, argc, argv);
  if (onebit::cuda_device_count() == 0) {
    std::puts("skipped: no CUDA device");
    return 77;
  }
#if defined(ONEBIT_EXAMPLE_WITH_MPI)
  MPI_Init(&argc, &argv);
#endif
  int status = 1;
  try {
    status = run(o);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "nccl_trainer: %s\n", e.what());
#if defined(ONEBIT_EXAMPLE_WITH_MPI)
    MPI_Abort(MPI_COMM_WORLD, 1);  // the others wait for this rank
#endif
  }
#if defined(ONEBIT_EXAMPLE_WITH_MPI)
  MPI_Finalize();
#endif
  return status;
}
