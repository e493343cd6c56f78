// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <onebit/onebit.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <istream>
#include <memory>
#include <onebit/c_objects.hpp>
#include <onebit/checkpoint_files.hpp>
#include <onebit/make_optimizer.hpp>
#include <onebit/roll_call.hpp>
#include <onebit/transport/alone.hpp>
#include <onebit/transport/threads.hpp>
#include <ostream>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#ifdef ONEBIT_C_WITH_MPI
#include <onebit/transport/mpi.hpp>
#endif

/// What onebit.h declares: one C++ file of the program includes this. (Several may: the functions
/// are weak.) Define ONEBIT_C_WITH_MPI before it, everywhere alike, for the functions of MPI.

#define ONEBIT_C [[gnu::weak]]

extern "C" {

ONEBIT_C const char* onebit_last_error(void) { return onebit::detail::last_c_error().c_str(); }

// -- ranks
// -----------------------------------------------------------------------------------------

ONEBIT_C onebit_status onebit_comm_self(onebit_comm** comm) {
  return onebit::detail::c_call([&] {
    onebit::detail::require(comm, "onebit_comm_self", "comm");
    *comm = nullptr;
    *comm = new onebit_comm{onebit::wire(onebit::alone{})};
  });
}
ONEBIT_C onebit_status onebit_comm_callbacks(const onebit_transport* transport,
                                             onebit_comm** comm) {
  return onebit::detail::c_call([&] {
    onebit::detail::require(comm, "onebit_comm_callbacks", "comm");
    *comm = nullptr;
    onebit::detail::require(transport, "onebit_comm_callbacks", "transport");
    *comm = new onebit_comm{onebit::wire(onebit::detail::c_transport(*transport))};
  });
}
#ifdef ONEBIT_C_WITH_MPI
ONEBIT_C onebit_status onebit_comm_mpi(int fortran_handle, double timeout_seconds,
                                       onebit_comm** comm) {
  return onebit::detail::c_call([&] {
    onebit::detail::require(comm, "onebit_comm_mpi", "comm");
    *comm = nullptr;
    if (!(timeout_seconds >= 0 && timeout_seconds < 1e9)) {
      throw onebit::invalid_input(onebit::detail::message("onebit_comm_mpi: timeout_seconds is ",
                                                          timeout_seconds,
                                                          ", must be 0 (none) or positive"));
    }
    const std::chrono::milliseconds timeout(static_cast<std::int64_t>(1e3 * timeout_seconds));
    *comm = new onebit_comm{
        onebit::wire(onebit::mpi(MPI_Comm_f2c(static_cast<MPI_Fint>(fortran_handle)), timeout))};
  });
}
ONEBIT_C onebit_status onebit_comm_mpi_world(double timeout_seconds, onebit_comm** comm) {
  return onebit_comm_mpi(static_cast<int>(MPI_Comm_c2f(MPI_COMM_WORLD)), timeout_seconds, comm);
}
#else
ONEBIT_C onebit_status onebit_comm_mpi(int, double, onebit_comm** comm) {
  if (comm != nullptr) *comm = nullptr;
  (void)onebit::detail::c_call([] {
    throw onebit::error(onebit::detail::message(
        "onebit_comm_mpi: built without MPI; define ONEBIT_C_WITH_MPI before the include of ",
        "onebit/onebit_c.hpp"));
  });
  return ONEBIT_UNSUPPORTED;
}
ONEBIT_C onebit_status onebit_comm_mpi_world(double timeout_seconds, onebit_comm** comm) {
  return onebit_comm_mpi(0, timeout_seconds, comm);
}
#endif
ONEBIT_C void onebit_comm_destroy(onebit_comm* comm) { delete comm; }
ONEBIT_C int onebit_comm_rank(const onebit_comm* comm) {
  return comm == nullptr ? -1 : comm->link.rank();
}
ONEBIT_C int onebit_comm_size(const onebit_comm* comm) {
  return comm == nullptr ? -1 : comm->link.size();
}
ONEBIT_C onebit_status onebit_run_threads(int n, int (*f)(onebit_comm*, void*), void* context) {
  return onebit::detail::c_call([&] {
    onebit::detail::require(reinterpret_cast<const void*>(f), "onebit_run_threads", "f");
    onebit::run_threads(n, [&](onebit::threads link) {
      onebit_comm comm{onebit::wire(link)};
      if (const int status = f(&comm, context); status != 0) {
        throw onebit::error(
            onebit::detail::message("onebit_run_threads: f returned ", status, comm.link.where()));
      }
    });
  });
}

// -- optimizers
// ------------------------------------------------------------------------------------

ONEBIT_C onebit_status onebit_create(const char* name, const onebit_option* options,
                                     std::size_t n_options, const onebit_tensor* tensors,
                                     std::size_t n_tensors, const onebit_group* groups,
                                     std::size_t n_groups, onebit_comm* comm,
                                     onebit_optimizer** optimizer) {
  return onebit::detail::c_call([&] {
    using onebit::detail::require;
    if (optimizer != nullptr) *optimizer = nullptr;
    require(comm, "onebit_create", "comm");
    onebit::option_map map;
    auto made = std::make_unique<onebit_optimizer>();
    onebit::detail::attend(comm->link, [&] {
      require(optimizer, "onebit_create", "optimizer");
      *optimizer = nullptr;
      require(name, "onebit_create", "name");
      if (n_options > 0) require(options, "onebit_create", "options");
      if (n_tensors > 0) require(tensors, "onebit_create", "tensors");
      if (n_groups > 0) require(groups, "onebit_create", "groups");
      for (std::size_t i = 0; i < n_options; ++i) {
        require(options[i].key, "onebit_create", "a key");
        require(options[i].value, "onebit_create", options[i].key);
        if (map.emplace(options[i].key, options[i].value).second) continue;
        throw onebit::invalid_input(
            onebit::detail::message("onebit_create: option ", options[i].key, " is given twice"));
      }
      for (std::size_t t = 0; t < n_tensors; ++t) {
        made->params.push_back({tensors[t].params, tensors[t].size});
      }
      made->groups =
          onebit::detail::c_groups({tensors, n_tensors}, {groups, n_groups}, made->places);
    });
    made->o = onebit::make_optimizer(name, map, made->groups, comm->link);
    *optimizer = made.release();
  });
}
ONEBIT_C void onebit_destroy(onebit_optimizer* optimizer) { delete optimizer; }

ONEBIT_C onebit_status onebit_step(onebit_optimizer* optimizer, float lr, float inverse_loss_scale,
                                   onebit_report* report) {
  return onebit::detail::c_call([&] {
    const onebit::report r =
        onebit::detail::of(optimizer, "onebit_step").step(lr, inverse_loss_scale);
    if (report != nullptr) *report = onebit::detail::to_c(r);
  });
}
ONEBIT_C onebit_status onebit_begin(onebit_optimizer* optimizer, float lr,
                                    float inverse_loss_scale) {
  return onebit::detail::c_call(
      [&] { onebit::detail::of(optimizer, "onebit_begin").begin(lr, inverse_loss_scale); });
}
ONEBIT_C onebit_status onebit_ready(onebit_optimizer* optimizer, std::size_t tensor) {
  return onebit::detail::c_call([&] {
    onebit::any_optimizer& o = onebit::detail::of(optimizer, "onebit_ready");
    o.ready(tensor < optimizer->places.size() ? optimizer->places[tensor] : tensor);
  });
}
ONEBIT_C std::size_t onebit_report_text(const onebit_report* report, char* buffer, std::size_t n) {
  return onebit::detail::c_text(report, buffer, n,
                                [](const onebit::report& r) { return to_string(r); });
}
ONEBIT_C std::size_t onebit_report_json(const onebit_report* report, char* buffer, std::size_t n) {
  return onebit::detail::c_text(report, buffer, n,
                                [](const onebit::report& r) { return to_json(r); });
}

ONEBIT_C onebit_status onebit_set_group(onebit_optimizer* optimizer, std::size_t group,
                                        float lr_factor, float weight_decay) {
  return onebit::detail::c_call([&] {
    onebit::detail::of(optimizer, "onebit_set_group").set_group(group, lr_factor, weight_decay);
  });
}
ONEBIT_C onebit_status onebit_rest(onebit_optimizer* optimizer, std::size_t tensor) {
  return onebit::detail::c_call([&] {
    onebit::any_optimizer& o = onebit::detail::of(optimizer, "onebit_rest");
    o.rest(tensor < optimizer->places.size() ? optimizer->places[tensor] : tensor);
  });
}
ONEBIT_C onebit_status onebit_rebind(onebit_optimizer* optimizer, float* const* params,
                                     float* const* grads, std::size_t n_tensors) {
  return onebit::detail::c_call([&] {
    onebit::any_optimizer& o = onebit::detail::of(optimizer, "onebit_rebind");
    if (n_tensors > 0) onebit::detail::require(params, "onebit_rebind", "params");
    if (n_tensors > 0) onebit::detail::require(grads, "onebit_rebind", "grads");
    if (n_tensors != optimizer->places.size()) {
      throw onebit::invalid_input(onebit::detail::message("onebit_rebind: ", n_tensors,
                                                          " tensors, but the optimizer has ",
                                                          optimizer->places.size()));
    }
    std::vector<std::size_t> callers(n_tensors);  // by place
    for (std::size_t t = 0; t < n_tensors; ++t) callers[optimizer->places[t]] = t;
    auto groups = optimizer->groups;
    std::size_t place = 0;
    for (auto& g : groups) {
      for (auto& x : g.tensors) {
        const std::size_t t = callers[place++];
        x = {{params[t], x.params.size()}, {grads[t], x.grads.size()}};
      }
    }
    (void)o.rebind(groups);
    optimizer->groups.swap(groups);
    for (std::size_t t = 0; t < n_tensors; ++t) {
      optimizer->params[t] = {params[t], optimizer->params[t].size()};
    }
  });
}
ONEBIT_C onebit_status onebit_thaw(onebit_optimizer* optimizer, std::uint64_t warm_up_steps) {
  return onebit::detail::c_call(
      [&] { onebit::detail::of(optimizer, "onebit_thaw").thaw(warm_up_steps); });
}
ONEBIT_C onebit_status onebit_verify(onebit_optimizer* optimizer) {
  return onebit::detail::c_call([&] { onebit::detail::of(optimizer, "onebit_verify").verify(); });
}
ONEBIT_C onebit_status onebit_warn(onebit_optimizer* optimizer, int on) {
  return onebit::detail::c_call([&] {
    onebit::detail::of(optimizer, "onebit_warn")
        .warn_with(on != 0 ? &onebit::detail::warn_on_stderr : nullptr);
  });
}
ONEBIT_C onebit_status onebit_start_from(onebit_optimizer* optimizer, const float* const* m,
                                         const float* const* v, std::uint64_t steps) {
  return onebit::detail::c_call([&] {
    onebit::any_optimizer& o = onebit::detail::of(optimizer, "onebit_start_from");
    onebit::detail::require(m, "onebit_start_from", "m");
    onebit::detail::require(v, "onebit_start_from", "v");
    std::vector<onebit::given_moments> moments(optimizer->params.size());
    for (std::size_t t = 0; t < moments.size(); ++t) {
      const std::size_t size = optimizer->params[t].size();
      if (size > 0) onebit::detail::require(m[t], "onebit_start_from", "m of a tensor");
      if (size > 0) onebit::detail::require(v[t], "onebit_start_from", "v of a tensor");
      moments[optimizer->places[t]] = {{m[t], size}, {v[t], size}};
    }
    o.start_from(moments, steps);
  });
}

// -- checkpoints
// -----------------------------------------------------------------------------------

ONEBIT_C onebit_status onebit_save(onebit_optimizer* optimizer, const char* path) {
  return onebit::detail::c_call([&] {
    onebit::any_optimizer& o = onebit::detail::of(optimizer, "onebit_save");
    onebit::detail::require(path, "onebit_save", "path");
    std::ostringstream state;
    o.save(state);  // before the old file is touched
    const std::string fresh = std::string(path) + ".partial";
    std::ofstream out(fresh, std::ios::binary);
    out << std::move(state).str();
    out.close();
    if (!out || std::rename(fresh.c_str(), path) != 0) {
      throw onebit::checkpoint_error(
          onebit::detail::message("onebit_save: ", path, " cannot be written"));
    }
  });
}
ONEBIT_C onebit_status onebit_load(onebit_optimizer* optimizer, const char* path) {
  return onebit::detail::c_call([&] {
    onebit::any_optimizer& o = onebit::detail::of(optimizer, "onebit_load");
    std::ifstream in;
    if (path != nullptr) in.open(path, std::ios::binary);
    const bool is_open = in.is_open();
    if (!is_open) in.setstate(std::ios::failbit);
    try {
      o.load(in);  // the other ranks are in it
    } catch (const onebit::checkpoint_error& e) {
      if (is_open) throw;
      throw onebit::checkpoint_error(onebit::detail::message(
          "onebit_load: ", path == nullptr ? "NULL" : path, " cannot be opened; ", e.what()));
    }
  });
}
ONEBIT_C onebit_status onebit_save_all(onebit_optimizer* optimizer, const char* root, int keep) {
  return onebit::detail::c_call([&] {
    onebit::any_optimizer& o = onebit::detail::of(optimizer, "onebit_save_all");
    onebit::detail::require(root, "onebit_save_all", "root");
    onebit::save_all(
        o, root,
        [&](std::ostream& out) {
          for (const auto& p : optimizer->params) {
            out.write(reinterpret_cast<const char*>(p.data()),
                      static_cast<std::streamsize>(p.size_bytes()));
          }
        },
        keep);
  });
}
ONEBIT_C onebit_status onebit_load_latest(onebit_optimizer* optimizer, const char* root,
                                          std::int64_t* step) {
  return onebit::detail::c_call([&] {
    onebit::any_optimizer& o = onebit::detail::of(optimizer, "onebit_load_latest");
    onebit::detail::require(root, "onebit_load_latest", "root");
    const auto found = onebit::load_latest(o, root, [&](std::istream& in) {
      for (const auto& p : optimizer->params) {
        in.read(reinterpret_cast<char*>(p.data()), static_cast<std::streamsize>(p.size_bytes()));
      }
    });
    if (step != nullptr) *step = found ? static_cast<std::int64_t>(*found) : -1;
  });
}

ONEBIT_C float onebit_lr(const onebit_optimizer* optimizer) {
  return optimizer == nullptr ? 0 : optimizer->o.lr();
}
ONEBIT_C std::uint64_t onebit_steps(const onebit_optimizer* optimizer) {
  return optimizer == nullptr ? 0 : optimizer->o.steps();
}
ONEBIT_C std::uint64_t onebit_n_skipped(onebit_optimizer* optimizer) {
  return optimizer == nullptr ? 0 : optimizer->o.n_skipped();
}
ONEBIT_C std::size_t onebit_state_bytes(const onebit_optimizer* optimizer) {
  return optimizer == nullptr ? 0 : optimizer->o.state_bytes();
}
ONEBIT_C const char* onebit_description(const onebit_optimizer* optimizer) {
  return optimizer == nullptr ? nullptr : optimizer->o.description().c_str();
}

}  // extern "C"

#undef ONEBIT_C
