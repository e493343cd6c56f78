// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <onebit/c/onebit.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <fstream>
#include <functional>
#include <istream>
#include <limits>
#include <memory>
#include <new>
#include <onebit/extras/by_name.hpp>
#include <onebit/extras/checkpoint_files.hpp>
#include <onebit/step/agreement.hpp>
#include <onebit/transport/alone.hpp>
#include <onebit/transport/communicator.hpp>
#include <onebit/transport/threads.hpp>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

struct onebit_comm {
  onebit::communicator link;
};

struct onebit_optimizer {
  onebit::any_optimizer o;
  double lr = 0;                         ///< option lr; steps do not use it
  std::vector<std::span<float>> params;  ///< by the caller's index
  std::vector<std::size_t> places;  ///< by the caller's index: index in the order of the groups
  std::vector<onebit::param_group<>> groups;
};

/// Helpers of the C interface: conversion of errors, tensors and reports between C and C++.
namespace onebit { inline namespace v0_3 { namespace detail {

[[nodiscard]] inline std::string& last_c_error() {
  thread_local std::string text;
  return text;
}

/// Runs f. Converts an exception to a status, and keeps its text for onebit_last_error.
template <class F>
[[nodiscard, gnu::cold]] onebit_status c_call(const F& f) noexcept {
  const auto failed = [](onebit_status s, const char* what) {
    try {
      last_c_error() = what;
    } catch (...) {
      last_c_error().clear();
    }
    return s;
  };
  try {
    f();
    return ONEBIT_OK;
  } catch (const invalid_input& e) {
    return failed(ONEBIT_INVALID_INPUT, e.what());
  } catch (const rank_mismatch& e) {
    return failed(ONEBIT_RANK_MISMATCH, e.what());
  } catch (const transport_error& e) {
    return failed(ONEBIT_TRANSPORT_ERROR, e.what());
  } catch (const backend_error& e) {
    return failed(ONEBIT_BACKEND_ERROR, e.what());
  } catch (const checkpoint_error& e) {
    return failed(ONEBIT_CHECKPOINT_ERROR, e.what());
  } catch (const std::bad_alloc&) {
    return failed(ONEBIT_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& e) {
    return failed(ONEBIT_ERROR, e.what());
  } catch (...) {
    return failed(ONEBIT_ERROR, "unknown exception");
  }
}

inline void require(const void* p, const char* function, const char* what) {
  if (p == nullptr) throw invalid_input(error_text(function, ": ", what, " is NULL"));
}
[[nodiscard]] inline any_optimizer& of(onebit_optimizer* o, const char* function) {
  require(o, function, "optimizer");
  return o->o;
}

/// Transport over the callbacks of an onebit_transport.
class c_transport {
 public:
  explicit c_transport(const onebit_transport& t) : t_(t) {
    require(reinterpret_cast<const void*>(t.all_to_all), "onebit_comm_callbacks", "all_to_all");
    require(reinterpret_cast<const void*>(t.all_gather), "onebit_comm_callbacks", "all_gather");
    if (t.size < 1 || t.rank < 0 || t.rank >= t.size) {
      throw invalid_input(
          error_text("onebit_comm_callbacks: rank ", t.rank, " of ", t.size, " ranks"));
    }
  }
  [[nodiscard]] int rank() const { return t_.rank; }
  [[nodiscard]] int size() const { return t_.size; }
  void all_to_all(const void* send, void* receive, std::size_t bytes) {
    require_ok(t_.all_to_all(t_.context, send, receive, bytes), "all_to_all");
  }
  void all_gather(const void* send, void* receive, std::size_t bytes) {
    require_ok(t_.all_gather(t_.context, send, receive, bytes), "all_gather");
  }
  void all_reduce_sum(float* data, std::size_t n) {
    if (t_.all_reduce_sum == nullptr) {
      throw invalid_input(
          error_text("onebit_transport: all_reduce_sum is NULL, and a sum is needed: by a ",
                     "sum option of \"transport\", or by onebit_moments in compressed ",
                     "steps; set it", rank_suffix(rank(), size())));
    }
    require_ok(t_.all_reduce_sum(t_.context, data, n), "all_reduce_sum");
  }

 private:
  void require_ok(int status, const char* what) const {
    if (status == 0) return;
    throw transport_error(
        error_text("onebit_transport: ", what, " returned ", status, rank_suffix(rank(), size())));
  }
  onebit_transport t_;
};

/// Sorts tensors into groups. places[t]: index of tensor t in the order of the groups.
[[nodiscard, gnu::cold]] inline std::vector<param_group<>> c_groups(
    std::span<const onebit_tensor> tensors, std::span<const onebit_group> given,
    std::vector<std::size_t>& places) {
  std::vector<param_group<>> groups((std::max<std::size_t>)(given.size(), 1));
  for (std::size_t g = 0; g < given.size(); ++g) {
    if (given[g].lr_factor == 0) {
      throw invalid_input(error_text("onebit_create: group ", g,
                                     " has lr_factor 0; give 1, or, if it ",
                                     "is to stand still, call onebit_set_group afterwards"));
    }
    groups[g].lr_factor = given[g].lr_factor;
    groups[g].weight_decay = given[g].weight_decay;
  }
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const onebit_tensor& x = tensors[t];
    if (x.group >= groups.size()) {
      throw invalid_input(error_text("onebit_create: tensor ", t, " is of group ", x.group,
                                     ", but there "
                                     "are ",
                                     groups.size()));
    }
    groups[x.group].tensors.push_back({{x.params, x.size}, {x.grads, x.size}});
  }
  std::size_t place = 0;
  places.resize(tensors.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      if (tensors[t].group == g) places[t] = place++;
    }
  }
  return groups;
}

/// The root of a directory of checkpoints. NULL on this rank: tells the others, which wait in the
/// call, and throws.
[[nodiscard]] inline const char* root_of(any_optimizer& o, const char* root, const char* function,
                                         const char* call) {
  if (root != nullptr) return root;
  (void)files::together(o, call, {}, [&](auto&, auto&) { require(root, function, "root"); });
  return root;
}

/// Throws invalid_input for a phase that is none.
[[nodiscard]] inline report of_c(const onebit_report& c) {
  // as a number: in C++ an enumeration must not be read with a value that it has not
  int of_phase = 0;
  static_assert(sizeof c.phase == sizeof of_phase);
  std::memcpy(&of_phase, &c.phase, sizeof of_phase);
  if (of_phase < ONEBIT_DENSE || of_phase > ONEBIT_LOCAL) {
    throw invalid_input(error_text("onebit_report: phase is ", of_phase, ", must be ",
                                   +ONEBIT_DENSE, " to ", +ONEBIT_LOCAL));
  }
  const auto known = [](float x) { return std::isnan(x) ? std::nullopt : std::optional(x); };
  report r;
  r.step = c.step;
  r.phase = static_cast<phase>(of_phase);
  r.skipped = c.skipped != 0;
  r.refreshed = c.refreshed != 0;
  r.gradient_norm = known(c.gradient_norm);
  r.skipped_share = known(c.skipped_share);
  r.sent_of_dense = known(c.sent_of_dense);
  r.bytes_sent = c.bytes_sent;
  r.bytes_between_nodes = c.bytes_between_nodes;
  r.collectives = c.collectives;
  r.encode_seconds = c.encode_seconds;
  r.communicate_seconds = c.communicate_seconds;
  r.update_seconds = c.update_seconds;
  return r;
}
[[nodiscard]] inline onebit_report to_c(const report& r) {
  static_assert(static_cast<int>(phase::dense) == ONEBIT_DENSE &&
                static_cast<int>(phase::compressed) == ONEBIT_COMPRESSED &&
                static_cast<int>(phase::local) == ONEBIT_LOCAL);
  constexpr float unknown = std::numeric_limits<float>::quiet_NaN();
  return {r.step,
          static_cast<onebit_phase>(r.phase),
          r.skipped ? 1 : 0,
          r.gradient_norm.value_or(unknown),
          r.skipped_share.value_or(unknown),
          r.sent_of_dense.value_or(unknown),
          r.bytes_sent,
          r.bytes_between_nodes,
          r.collectives,
          r.encode_seconds,
          r.communicate_seconds,
          r.update_seconds,
          r.refreshed ? 1 : 0};
}
template <class F>
[[nodiscard]] std::size_t c_text(const onebit_report* r, char* buffer, std::size_t n,
                                 const F& write) noexcept {
  std::string text;
  const onebit_status done = c_call([&] {
    require(r, "onebit_report", "report");
    text = write(of_c(*r));
  });
  if (n > 0 && buffer != nullptr) {
    const std::size_t length = done == ONEBIT_OK ? (std::min)(n - 1, text.size()) : 0;
    std::memcpy(buffer, text.data(), length);
    buffer[length] = 0;
  }
  return text.size();
}

}}}  // namespace onebit::detail

#ifdef ONEBIT_C_WITH_MPI
#include <onebit/transport/mpi.hpp>
#endif

/// Definitions of the functions of onebit.h. Include this header in one C++ file of the program, or
/// in several (the functions are weak). For MPI define ONEBIT_C_WITH_MPI first, in all such files.

#define ONEBIT_C [[gnu::weak]]

extern "C" {

ONEBIT_C const char* onebit_last_error(void) { return onebit::detail::last_c_error().c_str(); }

// -- ranks ----------------------------------------------------------------------------------

ONEBIT_C onebit_status onebit_comm_self(onebit_comm** comm) {
  return onebit::detail::c_call([&] {
    onebit::detail::require(comm, "onebit_comm_self", "comm");
    *comm = nullptr;
    *comm = new onebit_comm{onebit::communicator(onebit::alone{})};
  });
}
ONEBIT_C onebit_status onebit_comm_callbacks(const onebit_transport* transport,
                                             onebit_comm** comm) {
  return onebit::detail::c_call([&] {
    onebit::detail::require(comm, "onebit_comm_callbacks", "comm");
    *comm = nullptr;
    onebit::detail::require(transport, "onebit_comm_callbacks", "transport");
    *comm = new onebit_comm{onebit::communicator(onebit::detail::c_transport(*transport))};
  });
}
#ifdef ONEBIT_C_WITH_MPI
ONEBIT_C onebit_status onebit_comm_mpi(int fortran_handle, double timeout_seconds,
                                       onebit_comm** comm) {
  return onebit::detail::c_call([&] {
    onebit::detail::require(comm, "onebit_comm_mpi", "comm");
    *comm = nullptr;
    if (!(timeout_seconds >= 0 && timeout_seconds < 1e9)) {
      throw onebit::invalid_input(onebit::detail::error_text("onebit_comm_mpi: timeout_seconds is ",
                                                             timeout_seconds,
                                                             ", must be 0 (none) or positive"));
    }
    const std::chrono::milliseconds timeout(static_cast<std::int64_t>(1e3 * timeout_seconds));
    *comm = new onebit_comm{onebit::communicator(
        onebit::mpi(MPI_Comm_f2c(static_cast<MPI_Fint>(fortran_handle)), timeout))};
  });
}
ONEBIT_C onebit_status onebit_comm_mpi_world(double timeout_seconds, onebit_comm** comm) {
  return onebit_comm_mpi(static_cast<int>(MPI_Comm_c2f(MPI_COMM_WORLD)), timeout_seconds, comm);
}
#else
ONEBIT_C onebit_status onebit_comm_mpi(int, double, onebit_comm** comm) {
  if (comm != nullptr) *comm = nullptr;
  (void)onebit::detail::c_call([] {
    throw onebit::error(onebit::detail::error_text(
        "onebit_comm_mpi: built without MPI; define ONEBIT_C_WITH_MPI before the include of ",
        "onebit/c/onebit_c.hpp"));
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
      onebit_comm comm{onebit::communicator(link)};
      if (const int status = f(&comm, context); status != 0) {
        throw onebit::error(onebit::detail::error_text("onebit_run_threads: f returned ", status,
                                                       comm.link.where()));
      }
    });
  });
}

// -- optimizers ----------------------------------------------------------------------------------

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
    onebit::detail::collective_try(comm->link, [&] {
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
        throw onebit::invalid_input(onebit::detail::error_text("onebit_create: option ",
                                                               options[i].key, " is given twice"));
      }
      for (std::size_t t = 0; t < n_tensors; ++t) {
        made->params.push_back({tensors[t].params, tensors[t].size});
      }
      made->groups =
          onebit::detail::c_groups({tensors, n_tensors}, {groups, n_groups}, made->places);
    });
    made->o = onebit::make_optimizer(name, map, made->groups, comm->link);
    made->lr = onebit::read_options(name, map).lr;
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
      throw onebit::invalid_input(onebit::detail::error_text("onebit_rebind: ", n_tensors,
                                                             " tensors, but the optimizer has ",
                                                             optimizer->places.size()));
    }
    std::vector<std::size_t> callers(n_tensors);  // inverse of places
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
ONEBIT_C onebit_status onebit_veto(onebit_optimizer* optimizer, int (*f)(void* context, float norm),
                                   void* context) {
  return onebit::detail::c_call([&] {
    std::function<bool(float)> veto;
    if (f != nullptr) veto = [=](float norm) { return f(context, norm) != 0; };
    onebit::detail::of(optimizer, "onebit_veto").veto_with(std::move(veto));
  });
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
ONEBIT_C onebit_status onebit_moments(onebit_optimizer* optimizer, float* const* m,
                                      float* const* v) {
  return onebit::detail::c_call([&] {
    onebit::any_optimizer& o = onebit::detail::of(optimizer, "onebit_moments");
    const auto moments = o.moments();  // collective: before anything of this rank is refused
    onebit::detail::require(m, "onebit_moments", "m");
    onebit::detail::require(v, "onebit_moments", "v");
    for (std::size_t t = 0; t < moments.size(); ++t) {
      const onebit::tensor_moments& of = moments[optimizer->places[t]];
      if (of.m.empty()) continue;
      onebit::detail::require(m[t], "onebit_moments", "m of a tensor");
      onebit::detail::require(v[t], "onebit_moments", "v of a tensor");
      std::copy(of.m.begin(), of.m.end(), m[t]);
      std::copy(of.v.begin(), of.v.end(), v[t]);
    }
  });
}

// -- checkpoints ----------------------------------------------------------------------------------

ONEBIT_C onebit_status onebit_save(onebit_optimizer* optimizer, const char* path) {
  return onebit::detail::c_call([&] {
    onebit::any_optimizer& o = onebit::detail::of(optimizer, "onebit_save");
    onebit::detail::require(path, "onebit_save", "path");
    const std::string fresh = std::string(path) + ".partial";
    (void)::unlink(fresh.c_str());  // never through a link
    try {
      onebit::detail::files::write_file(fresh, [&](std::ostream& out, auto&) { o.save(out); });
      onebit::detail::files::check_state(fresh);
      if (std::rename(fresh.c_str(), path) != 0) {
        throw onebit::detail::files::path_error("writing", path);
      }
    } catch (...) {
      (void)::unlink(fresh.c_str());
      throw;
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
      o.load(in);  // also without a file: load is collective, and tells the other ranks
    } catch (const onebit::checkpoint_error& e) {
      if (is_open) throw;
      throw onebit::checkpoint_error(onebit::detail::error_text(
          "onebit_load: ", path == nullptr ? "NULL" : path, " cannot be opened; ", e.what()));
    }
  });
}
ONEBIT_C onebit_status onebit_save_all(onebit_optimizer* optimizer, const char* root, int keep) {
  return onebit::detail::c_call([&] {
    onebit::any_optimizer& o = onebit::detail::of(optimizer, "onebit_save_all");
    onebit::save_all(
        o, onebit::detail::root_of(o, root, "onebit_save_all", "save_all"),
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
  if (step != nullptr) *step = -1;
  return onebit::detail::c_call([&] {
    onebit::any_optimizer& o = onebit::detail::of(optimizer, "onebit_load_latest");
    const char* const place = onebit::detail::root_of(o, root, "onebit_load_latest", "load_latest");
    const auto found = onebit::load_latest(o, place, [&](std::istream& in) {
      for (const auto& p : optimizer->params) {
        in.read(reinterpret_cast<char*>(p.data()), static_cast<std::streamsize>(p.size_bytes()));
      }
    });
    if (step != nullptr && found) *step = static_cast<std::int64_t>(*found);
  });
}

ONEBIT_C float onebit_lr(const onebit_optimizer* optimizer) {
  return optimizer == nullptr ? 0 : static_cast<float>((std::min)(optimizer->lr, 3e38));
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
