// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Trains the language model on GPUs over NCCL, one process per GPU, with the options, checkpoints,
// table and plots of the program on the host.
//
//   language_model_cuda                                    one GPU, one rank
//   mpirun -np 4 language_model_cuda                       if built with MPI
//   RANK=0 WORLD_SIZE=2 language_model_cuda --id-file ID   and again with RANK=1; ID is a new
//                                                          file in a folder that all processes see
//
// Exits with status 77, which ctest shows as skipped, if there is no device.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <onebit/backend/cuda.cuh>
#include <onebit/extras/by_name.hpp>
#include <onebit/transport/nccl.hpp>
#include <optional>
#include <span>
#include <string>

#include "language_model/program.hpp"
#include "learner.cuh"
#include "ranks.cuh"

namespace {

using namespace language_model;
using namespace language_model::device;

struct gpu_options {
  std::string id_file, products = "any";
  bool graphs = false;
};

void train(const place& here, const program_options& o, const gpu_options& g) {
  const text source = text::load(o.text_file);
  gpu device(here, g.id_file);
  std::optional<onebit::cuda_graphs> graphs;
  common::rank_link link{.rank = here.rank, .size = here.size};
  onebit::nccl comm(device.communicator(), device.stream());  // instead of threads or MPI
  link.make_optimizer = [&](const std::string& algorithm,
                            std::span<const common::parameter> parameters,
                            const common::optimizer_settings& settings) {
    const auto groups = common::make_groups(parameters);  // of spans of device memory
    const auto options = common::options_of(algorithm, settings);
    return onebit::make_optimizer(algorithm, options, groups, comm,
                                  onebit::cuda(device.stream()));  // instead of the host
  };
  link.all_gather = [&](const void* send, void* receive, std::size_t bytes) {
    comm.host_all_gather(send, receive, bytes);
  };
  link.is_deferred = true;
  if (g.graphs) {
    link.step = [&](onebit::any_optimizer& optimizer, float rate) {
      return optimizer.step_with(*graphs, rate);
    };
  }
  const auto make = [&](const model_shape& shape, std::uint64_t seed) {
    graphs.emplace(device.stream());  // one for each optimizer
    return std::make_unique<device_learner>(shape, seed, device.stream(), g.products);
  };
  try {
    train_all(link, source, "nccl", o, make);
  } catch (...) {
    device.abandon();
    throw;
  }
}

}  // namespace

int main(int argc, char** argv) {
  program_options o;
  gpu_options g;
  CLI::App app{"Trains a small language model on GPUs with onebit's optimizers and compares them."};
  o.algorithms = {"adam", "one_bit_adam"};
  declare(app, o);
  app.add_flag("--graphs", g.graphs,
               "Replay the optimizer's steps from CUDA graphs (replayed steps count no bytes)");
  app.add_option("--matmul", g.products, "Whose products of matrices (cuBLAS's where it is there)")
      ->check(CLI::IsMember({"any", "own", "cublas"}));
  app.add_option("--id-file", g.id_file, "Where rank 0 leaves the communicator's id, without MPI");
  bool probe = false;
  app.add_flag("--probe", probe, "Only say, by the status, whether LOCAL_RANK has a device");
  CLI11_PARSE(app, argc, argv);
  if (probe) return local_rank_of_environment() < onebit::cuda_device_count() ? 0 : 1;
  if (onebit::cuda_device_count() == 0) {
    std::puts("skipped: no CUDA device");
    return 77;
  }
#ifdef EXAMPLE_WITH_MPI
  const bool by_mpi = std::getenv("RANK") == nullptr;
  if (by_mpi) MPI_Init(&argc, &argv);
#endif
  int status = 0;
  try {
    complete(o);
    train(find_place(g.id_file), o, g);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "language_model_cuda: %s\n", e.what());
    status = 1;
#ifdef EXAMPLE_WITH_MPI
    if (by_mpi) {
      MPI_Abort(MPI_COMM_WORLD, 1);  // the others wait for this rank
      std::_Exit(1);                 // MPICH 4.1.3 to 5.0.2 may return from MPI_Abort
    }
#endif
  }
#ifdef EXAMPLE_WITH_MPI
  if (by_mpi) MPI_Finalize();
#endif
  return status;
}
