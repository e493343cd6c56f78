// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// llm.c's train_gpt2.cu with onebit, on a model of three tensors that keeps llm.c's names: bf16
// tensors in one allocation, with float masters; the loss averaged over the same communicator on
// another stream; steps skipped by the z-score of the norm; a checkpoint. One rank per device of
// this machine. The guide quotes the lines between the markers. Exits with status 77 if there is no
// device.

#include <cuda_bf16.h>
#include <nccl.h>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <onebit/any_optimizer.hpp>
#include <onebit/backend/cuda.cuh>
#include <onebit/onebit.hpp>
#include <onebit/transport/nccl.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using floatX = __nv_bfloat16;
constexpr int NUM_PARAMETER_TENSORS = 3;
constexpr std::size_t sizes[] = {2500, 100, 3900};  // a matrix, a bias, a matrix
constexpr std::size_t n_parameters = 6500;

void check(cudaError_t code) {
  if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}
void check(ncclResult_t code) {
  if (code != ncclSuccess) throw std::runtime_error(ncclGetErrorString(code));
}

/// Minimum: 1 + shift for even elements, 1 - shift for odd ones. `loss`: of the first element.
__global__ void backward(const floatX* params, floatX* grads, float* loss, float shift) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= n_parameters) return;
  const float wrong = __bfloat162float(params[i]) - (i % 2 == 0 ? 1 + shift : 1 - shift);
  grads[i] = __float2bfloat16(wrong);
  if (i == 0) *loss = wrong * wrong / 2;
}

struct OutlierDetector {
  double mean = 0, variance = 0;
  int n = 0;
};

/// Returns the z-score of x among the values before it; NaN for the first 20 values.
double update_detector(OutlierDetector* detector, double x) {
  const double wrong = x - detector->mean, deviation = std::sqrt(detector->variance);
  const double share = std::fmax(0.05, 1.0 / ++detector->n);
  detector->mean += share * wrong;
  detector->variance += share * (wrong * wrong - detector->variance);
  return detector->n > 20 ? wrong / deviation : std::nan("");
}

struct MultiGpuConfig {
  int process_rank = 0, num_processes = 0;
  ncclComm_t nccl_comm = nullptr;
  cudaStream_t nccl_stream = nullptr;
};

struct GPT2 {
  floatX *params_memory = nullptr, *grads_memory = nullptr;
  float* master_weights = nullptr;  ///< null: none
  int use_master_weights = 1;
};

/// State of one rank. In llm.c these members are global variables.
struct trainer {
  GPT2 gpt2;
  MultiGpuConfig config;
  cudaStream_t main_stream = nullptr;
  cudaEvent_t computed = nullptr;
  float *loss = nullptr, *host_loss = nullptr;
  OutlierDetector grad_norm_outlier_detector;
  double zgrad = 0;
  float skip_update_gradz = 6;
  int n_skipped = 0;
  std::string optimizer_file;
  onebit::any_optimizer optimizer;

  trainer(int rank, int size, ncclUniqueId id, int use_master_weights) {
    check(cudaSetDevice(rank));
    check(cudaStreamCreate(&main_stream));
    check(cudaStreamCreate(&config.nccl_stream));
    check(cudaEventCreateWithFlags(&computed, cudaEventDisableTiming));
    check(ncclCommInitRank(&config.nccl_comm, size, id, rank));
    config.process_rank = rank;
    config.num_processes = size;
    check(cudaMalloc(&gpt2.params_memory, n_parameters * sizeof(floatX)));
    check(cudaMalloc(&gpt2.grads_memory, n_parameters * sizeof(floatX)));
    check(cudaMemset(gpt2.params_memory, 0, n_parameters * sizeof(floatX)));
    gpt2.use_master_weights = use_master_weights;
    if (use_master_weights != 0) {
      check(cudaMalloc(&gpt2.master_weights, n_parameters * sizeof(float)));
      check(cudaMemset(gpt2.master_weights, 0, n_parameters * sizeof(float)));
    }
    check(cudaMalloc(&loss, sizeof(float)));
    check(cudaMallocHost(&host_loss, sizeof(float)));
  }
  trainer(const trainer&) = delete;
  trainer& operator=(const trainer&) = delete;
  ~trainer() {
    optimizer = {};  // destroyed before the communicator and the tensors
    (void)ncclCommDestroy(config.nccl_comm);
    for (void* p : {static_cast<void*>(gpt2.params_memory), static_cast<void*>(gpt2.grads_memory),
                    static_cast<void*>(gpt2.master_weights), static_cast<void*>(loss)}) {
      (void)cudaFree(p);
    }
    (void)cudaFreeHost(host_loss);
    (void)cudaEventDestroy(computed);
    (void)cudaStreamDestroy(config.nccl_stream);
    (void)cudaStreamDestroy(main_stream);
  }

  void gpt2_update(GPT2* model, float learning_rate, float beta1, float beta2, float eps,
                   float weight_decay, MultiGpuConfig* multi_gpu_config) {
    std::vector<onebit::param_group<onebit::bf16>> groups(2);
    std::size_t offset = 0;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
      const std::size_t n = sizes[i];
      const float wd = i == 1 ? 0 : weight_decay;
      floatX *const param_ptr = model->params_memory + offset, *const grad_ptr =
                                                                   model->grads_memory + offset;
      float* const master_ptr =
          model->master_weights == nullptr ? nullptr : model->master_weights + offset;
      offset += n;
      // [hand_over]
      const std::size_t n_master = master_ptr == nullptr ? 0 : n;
      groups[wd > 0].tensors.push_back({{param_ptr, n}, {grad_ptr, n}, {master_ptr, n_master}});
      // [/hand_over]
    }
    if (!optimizer.has_value()) {
      // [build]
      groups[1].weight_decay = weight_decay;
      for (auto& g : groups) g.stochastic_rounding = model->use_master_weights == 0;
      onebit::one_bit_adam_options options{.adam = {.beta1 = beta1, .beta2 = beta2, .eps = eps}};
      options.adam.max_grad_norm = 1;
      const onebit::nccl comm(multi_gpu_config->nccl_comm, main_stream);
      optimizer = onebit::one_bit_adam(groups, comm, options, onebit::cuda(main_stream));
      // [/build]
      if (skip_update_gradz != 0) {
        optimizer.veto_with([&](float norm) {
          zgrad = update_detector(&grad_norm_outlier_detector, norm);
          return zgrad > skip_update_gradz;
        });
      }
      if (!optimizer_file.empty()) {  // written by optimizer.save(out) in save_state
        std::ifstream in(optimizer_file, std::ios::binary);
        optimizer.load(in);
      }
    }
    optimizer.step(learning_rate);
    if (optimizer.settle() == onebit::outcome::skipped) n_skipped++;
  }

  float mean_loss() {
    check(cudaEventRecord(computed, main_stream));
    check(cudaStreamWaitEvent(config.nccl_stream, computed, 0));
    check(ncclAllReduce(loss, loss, 1, ncclFloat, ncclSum, config.nccl_comm, config.nccl_stream));
    check(cudaMemcpyAsync(host_loss, loss, sizeof(float), cudaMemcpyDeviceToHost,
                          config.nccl_stream));
    check(cudaStreamSynchronize(config.nccl_stream));
    return *host_loss / static_cast<float>(config.num_processes);
  }

  float run(int begin, int end) {
    float mean = 0;
    for (int step = begin; step < end; step++) {
      // each rank has its own shift; the mean of the shifts is 0
      const float shift = 2.0F * (config.process_rank + 1) / (config.num_processes + 1) - 1;
      const bool is_outlier = step == 25 && config.process_rank == 0;
      backward<<<26, 256, 0, main_stream>>>(gpt2.params_memory, gpt2.grads_memory, loss,
                                            is_outlier ? 1000 : shift);
      mean = mean_loss();
      gpt2_update(&gpt2, step < 60 ? 0.03F : 0.003F, 0.9F, 0.95F, 1e-8F, 1e-4F, &config);
    }
    return mean;
  }

  template <class T>
  static std::vector<T> on_host(const T* memory) {
    std::vector<T> values(n_parameters);
    check(cudaMemcpy(values.data(), memory, n_parameters * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
  }
  template <class T>
  static void to_device(T* memory, const std::vector<T>& values) {
    check(cudaMemcpy(memory, values.data(), n_parameters * sizeof(T), cudaMemcpyHostToDevice));
  }
};

void train(int rank, int size, const ncclUniqueId (&ids)[2], int use_master_weights) {
  const std::string file =
      (std::filesystem::temp_directory_path() / ("onebit_llmc_" + std::to_string(rank) + ".onebit"))
          .string();
  trainer whole(rank, size, ids[0], use_master_weights);
  whole.run(0, 30);
  {
    std::ofstream out(file, std::ios::binary);
    whole.optimizer.save(out);
  }
  trainer resumed(rank, size, ids[1], use_master_weights);
  resumed.optimizer_file = file;
  trainer::to_device(resumed.gpt2.params_memory, trainer::on_host(whole.gpt2.params_memory));
  if (use_master_weights != 0) {
    trainer::to_device(resumed.gpt2.master_weights, trainer::on_host(whole.gpt2.master_weights));
  }
  const float loss = whole.run(30, 80);
  resumed.run(30, 80);
  whole.optimizer.verify();  // the ranks hold the same bits
  std::filesystem::remove(file);

  const auto x = trainer::on_host(whole.gpt2.params_memory);
  const auto again = trainer::on_host(resumed.gpt2.params_memory);
  const bool same = std::memcmp(x.data(), again.data(), n_parameters * sizeof(floatX)) == 0;
  float wrong = 0;  // mean distance to 1; 1 at the start
  for (const floatX& p : x) wrong += std::fabs(__bfloat162float(p) - 1) / n_parameters;
  std::printf("rank %d of %d, masters %d: loss %.4f, %.4f from 1; %d skipped; resumed %s\n", rank,
              size, use_master_weights, loss, wrong, whole.n_skipped,
              same ? "with the same bits" : "with other bits");
  if (!same || wrong > 0.1F || whole.n_skipped != 1 || resumed.n_skipped != 0) {
    throw std::runtime_error("it has not learnt, has not skipped the outlier, or has not resumed");
  }
}

}  // namespace

int main() {
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);  // see embed_cuda.cu
  const int size = onebit::cuda_device_count();
  if (size == 0) {
    std::puts("skipped: no CUDA device");
    return 77;
  }
  for (const int use_master_weights : {1, 0}) {
    ncclUniqueId ids[2];
    for (ncclUniqueId& id : ids) check(ncclGetUniqueId(&id));
    onebit::run_threads(
        size, [&](onebit::threads thread) { train(thread.rank(), size, ids, use_master_weights); });
  }
}
