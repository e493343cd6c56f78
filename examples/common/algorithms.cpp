// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// All of the trainers' use of onebit: the optimizers and the transports.
#include "algorithms.hpp"

#include <onebit/extras/by_name.hpp>
#include <onebit/transport/threads.hpp>
#ifdef EXAMPLE_WITH_MPI
#include <mpi.h>

#include <onebit/transport/mpi.hpp>
#endif

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

namespace common {
namespace {

template <class Transport>
onebit::any_optimizer make_optimizer(Transport& comm, const std::string& algorithm,
                                     std::span<const parameter> parameters,
                                     const optimizer_settings& settings) {
  const auto groups = make_groups(parameters);
  onebit::option_map options = options_of(algorithm, settings);
  if (settings.bucket_elements > 0 && algorithm.find('_') != std::string::npos) {
    options["bucket_elements"] = std::to_string(settings.bucket_elements);
  }
  return onebit::make_optimizer(algorithm, options, groups, comm);
}

// Both the link and the optimizers made through the link refer to comm, which must outlive them.
template <class Transport>
rank_link make_link(Transport& comm) {
  return {
      .rank = comm.rank(),
      .size = comm.size(),
      .all_gather = [&comm](const void* send, void* receive,
                            std::size_t bytes) { comm.all_gather(send, receive, bytes); },
      .make_optimizer =
          [&comm](const std::string& algorithm, std::span<const parameter> parameters,
                  const optimizer_settings& settings) {
            return make_optimizer(comm, algorithm, parameters, settings);
          },
  };
}

#ifdef EXAMPLE_WITH_MPI
void run_mpi(int ranks, const std::function<void(rank_link&)>& f) {
  MPI_Init(nullptr, nullptr);
  try {
    onebit::mpi comm(MPI_COMM_WORLD);
    rank_link link = make_link(comm);
    if (ranks != 0 && ranks != link.size) {
      throw std::invalid_argument("--ranks " + std::to_string(ranks) + " but mpirun started " +
                                  std::to_string(link.size) + " processes");
    }
    f(link);
  } catch (const std::exception& error) {
    // The other processes may be waiting in a collective for this one: end them too.
    std::fprintf(stderr, "%s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
    std::_Exit(1);  // MPICH 4.1.3 to 5.0.2 may return from MPI_Abort
  }
  MPI_Finalize();
}
#endif

}  // namespace

std::vector<onebit::param_group<>> make_groups(std::span<const parameter> parameters) {
  std::vector<onebit::param_group<>> groups(2);
  groups[0].weight_decay = 0.01f;
  groups[1].weight_decay = 0.0f;
  for (const parameter& p : parameters) {
    groups[p.decay ? 0 : 1].tensors.push_back({p.value, p.gradient});
  }
  return groups;
}

onebit::option_map options_of(const std::string& algorithm, const optimizer_settings& settings) {
  using onebit::describe;
  onebit::option_map options{{"max_grad_norm", describe(settings.max_grad_norm)},
                             {"beta2", describe(settings.beta2)},
                             {"eps", describe(settings.eps)}};
  if (algorithm.starts_with("one_bit")) options["freeze.after"] = describe(settings.freeze_after);
  const char* where = algorithm.starts_with("one_bit") ? "warm_up_sum"
                      : algorithm == "zero_one_adam"   ? "refresh_sum"
                                                       : "sum";
  options[where] = settings.averages;
  if (algorithm == "zero_one_adam") {
    options["schedule.warmup_steps"] = describe(settings.freeze_after);
    options["schedule.also_every"] = describe(settings.meet_every);
  }
  return options;
}

std::vector<std::string> available_algorithms() {
  return {"adam", "one_bit_adam", "lamb", "one_bit_lamb", "zero_one_adam"};
}

std::vector<std::string> available_transports() {
#ifdef EXAMPLE_WITH_MPI
  return {"threads", "mpi"};
#else
  return {"threads"};
#endif
}

void run_ranks(const std::string& transport, int ranks, const std::function<void(rank_link&)>& f) {
#ifdef EXAMPLE_WITH_MPI
  if (transport == "mpi") return run_mpi(ranks, f);
#endif
  if (transport != "threads") throw std::invalid_argument("unknown transport '" + transport + "'");
  onebit::run_threads(ranks == 0 ? 4 : ranks, [&f](onebit::threads comm) {
    rank_link link = make_link(comm);
    f(link);
  });
}

}  // namespace common
