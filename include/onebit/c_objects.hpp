// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <onebit/onebit.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <limits>
#include <new>
#include <onebit/make_optimizer.hpp>
#include <onebit/transport/wire.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

/// What C programs have handles of, and how errors, tensors and reports pass between C and C++.

struct onebit_comm {
  onebit::wire link;
};

struct onebit_optimizer {
  onebit::any_optimizer o;
  std::vector<std::span<float>> params;  ///< in the caller's order
  std::vector<std::size_t> places;       ///< of the caller's tensors, in the order of the groups
  std::vector<onebit::param_group<>> groups;
};

namespace onebit::inline v0_1::detail {

[[nodiscard]] inline std::string& last_c_error() {
  thread_local std::string text;
  return text;
}

/// Runs f; its exception as a status.
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
  if (p == nullptr) throw invalid_input(message(function, ": ", what, " is NULL"));
}
[[nodiscard]] inline any_optimizer& of(onebit_optimizer* o, const char* function) {
  require(o, function, "optimizer");
  return o->o;
}

/// A transport that C functions are.
class c_transport {
 public:
  explicit c_transport(const onebit_transport& t) : t_(t) {
    require(reinterpret_cast<const void*>(t.all_to_all), "onebit_comm_callbacks", "all_to_all");
    require(reinterpret_cast<const void*>(t.all_gather), "onebit_comm_callbacks", "all_gather");
    if (t.size < 1 || t.rank < 0 || t.rank >= t.size) {
      throw invalid_input(
          message("onebit_comm_callbacks: rank ", t.rank, " of ", t.size, " ranks"));
    }
  }
  [[nodiscard]] int rank() const { return t_.rank; }
  [[nodiscard]] int size() const { return t_.size; }
  void all_to_all(const void* send, void* receive, std::size_t bytes) {
    check(t_.all_to_all(t_.context, send, receive, bytes), "all_to_all");
  }
  void all_gather(const void* send, void* receive, std::size_t bytes) {
    check(t_.all_gather(t_.context, send, receive, bytes), "all_gather");
  }
  void all_reduce_sum(float* data, std::size_t n) {
    if (t_.all_reduce_sum == nullptr) {
      throw invalid_input(message("onebit_transport: all_reduce_sum is NULL, and sums are to be ",
                                  "the transport's", rank_suffix(rank(), size())));
    }
    check(t_.all_reduce_sum(t_.context, data, n), "all_reduce_sum");
  }

 private:
  void check(int status, const char* what) const {
    if (status == 0) return;
    throw transport_error(
        message("onebit_transport: ", what, " returned ", status, rank_suffix(rank(), size())));
  }
  onebit_transport t_;
};

/// Tensors by groups, and where each went.
[[nodiscard, gnu::cold]] inline std::vector<param_group<>> c_groups(
    std::span<const onebit_tensor> tensors, std::span<const onebit_group> given,
    std::vector<std::size_t>& places) {
  std::vector<param_group<>> groups(std::max<std::size_t>(given.size(), 1));
  for (std::size_t g = 0; g < given.size(); ++g) {
    if (given[g].lr_factor == 0) {
      throw invalid_input(message("onebit_create: group ", g,
                                  " has lr_factor 0; give 1, or, if it ",
                                  "is to stand still, call onebit_set_group afterwards"));
    }
    groups[g].lr_factor = given[g].lr_factor;
    groups[g].weight_decay = given[g].weight_decay;
  }
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const onebit_tensor& x = tensors[t];
    if (x.group >= groups.size()) {
      throw invalid_input(message("onebit_create: tensor ", t, " is of group ", x.group,
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

[[nodiscard]] inline report of_c(const onebit_report& c) {
  const auto known = [](float x) { return std::isnan(x) ? std::nullopt : std::optional(x); };
  report r;
  r.step = c.step;
  r.phase = static_cast<phase>(c.phase);
  r.skipped = c.skipped != 0;
  r.gradient_norm = known(c.gradient_norm);
  r.variance_ratio = known(c.variance_ratio);
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
          r.variance_ratio.value_or(unknown),
          r.bytes_sent,
          r.bytes_between_nodes,
          r.collectives,
          r.encode_seconds,
          r.communicate_seconds,
          r.update_seconds};
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
    const std::size_t length = done == ONEBIT_OK ? std::min(n - 1, text.size()) : 0;
    std::memcpy(buffer, text.data(), length);
    buffer[length] = 0;
  }
  return text.size();
}

}  // namespace onebit::inline v0_1::detail
