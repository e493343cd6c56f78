// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Whole trainings on a device against the same on the host, for any `Device`: default-constructed,
// one for each rank, with
//
//   backend(), memory()        the library's policies, on one stream
//   allocate(bytes), free(p)   memory of the backend, which the host need not be able to touch
//
// All gradients are brought there before the first step, and parameters are kept there after each:
// nothing here waits between two steps, so that steps run as far ahead of the device as they can.

#ifndef ONEBIT_TESTS_CUDA_TRAININGS_HPP
#define ONEBIT_TESTS_CUDA_TRAININGS_HPP

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <onebit/extras/papers.hpp>
#include <onebit/onebit.hpp>
#include <onebit/transport/memory.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "../golden/deepspeed_zero_one.hpp"
#include "support/echo.hpp"
#include "support/training.hpp"

namespace onebit_test {

struct host_device {
  [[nodiscard]] static onebit::host backend() { return onebit::host(); }
  [[nodiscard]] static onebit::host_memory memory() { return {}; }
  [[nodiscard]] static void* allocate(std::size_t bytes) { return ::operator new(bytes); }
  static void free(void* p) { ::operator delete(p); }
};

/// n objects in a device's memory.
template <class T, class Device>
class area {
 public:
  explicit area(std::size_t n) : n_(n), p_(n == 0 ? nullptr : Device::allocate(n * sizeof(T))) {}
  area(const area&) = delete;
  area& operator=(const area&) = delete;
  ~area() {
    if (p_ != nullptr) Device::free(p_);
  }
  [[nodiscard]] T* data() const { return static_cast<T*>(p_); }
  [[nodiscard]] std::size_t size() const { return n_; }
  [[nodiscard]] std::size_t bytes() const { return n_ * sizeof(T); }

 private:
  std::size_t n_;
  void* p_;
};

/// Odd sizes, an empty tensor, one element, more than a tile; back to back, so that few of them are
/// aligned to more than an element.
inline const std::vector<std::size_t> odd_sizes = {33, 0, 1000, 1, 9001, 64, 700};

/// What a training does, beside what its optimizer says.
struct script {
  std::uint64_t calls = 44;
  /// In these calls the last rank has a gradient that is not finite.
  std::vector<std::uint64_t> bad{};
  float loss_scale = 1;
  std::vector<std::size_t> sizes = odd_sizes;
  bool zeros = true;         ///< every 17th gradient is 0: elements that sleep
  bool sets_masters = true;  ///< false: they start at 0, which no parameter is
  bool stochastic_rounding = false;

  [[nodiscard]] std::size_t total() const {
    return std::accumulate(sizes.begin(), sizes.end(), std::size_t{0});
  }
  [[nodiscard]] bool is_bad(std::uint64_t call) const {
    return std::find(bad.begin(), bad.end(), call) != bad.end();
  }
  [[nodiscard]] static float lr(std::uint64_t call) {
    return 0.01F / static_cast<float>(1 + call % 3);
  }
};

/// The parameters and gradients of one rank, in the memory of `Device`.
template <class Device, class P = float, class G = P>
class model {
 public:
  model(Device& device, int rank, int size, const script& s, bool with_master = false)
      : device_(&device),
        script_(s),
        params_(s.total()),
        grads_(s.total()),
        master_(with_master ? s.total() : 0),
        source_(s.total() * s.calls),
        history_((params_.bytes() + master_.bytes()) * s.calls) {
    std::vector<float> x;
    std::vector<P> rounded;
    for (std::size_t t = 0; t < s.sizes.size(); ++t) {
      for (std::size_t i = 0; i < s.sizes[t]; ++i) {
        x.push_back(noise(t * 1000003 + i));
        rounded.push_back(onebit::from_float<P>(x.back()));
      }
    }
    std::vector<G> all;
    for (std::uint64_t call = 0; call < s.calls; ++call) {
      const std::uint64_t seed = 7919 * (call + 1) + 104729 * static_cast<std::uint64_t>(rank + 1);
      for (std::size_t t = 0; t < s.sizes.size(); ++t) {
        for (std::size_t i = 0; i < s.sizes[t]; ++i) {
          float g = noise(seed * 1000003 + t * 50021 + i) * s.loss_scale;
          if (s.zeros && i % 17 == 5) g = 0;
          if (s.is_bad(call) && rank == size - 1 && t == 2 && i == 7) {
            g = std::numeric_limits<float>::infinity();
          }
          all.push_back(onebit::from_float<G>(g));
        }
      }
    }
    auto memory = device.memory();
    memory.copy(params_.data(), rounded.data(), params_.bytes());
    memory.copy(source_.data(), all.data(), source_.bytes());
    if (!s.sets_masters) std::fill(x.begin(), x.end(), 0.0F);
    memory.copy(master_.data(), x.data(), master_.bytes());
    memory.wait();
  }
  model(const model&) = delete;
  model& operator=(const model&) = delete;
  /// The optimizer is gone by now, but what it enqueued may still run.
  ~model() { device_->memory().wait(); }

  [[nodiscard]] std::vector<onebit::param_group<P, G>> groups() {
    std::vector<onebit::param_group<P, G>> result(2);
    result[0].weight_decay = 0.01F;
    result[1].lr_factor = 0.5F;
    for (auto& group : result) group.stochastic_rounding = script_.stochastic_rounding;
    std::size_t at = 0;
    for (std::size_t t = 0; t < script_.sizes.size(); ++t) {
      const std::size_t n = script_.sizes[t];
      onebit::tensor<P, G> x{{params_.data() + at, n}, {grads_.data() + at, n}};
      if (master_.size() > 0) x.master = {master_.data() + at, n};
      result[t == 0 ? 0 : 1].tensors.push_back(x);
      at += n;
    }
    return result;
  }

  /// The gradients of a call, and what it made of the parameters. Neither waits.
  void load(std::uint64_t call) {
    device_->memory().copy(grads_.data(), source_.data() + call * script_.total(), grads_.bytes());
  }
  void keep(std::uint64_t call) {
    std::byte* to = history_.data() + call * (params_.bytes() + master_.bytes());
    auto memory = device_->memory();
    memory.copy(to, params_.data(), params_.bytes());
    memory.copy(to + params_.bytes(), master_.data(), master_.bytes());
  }
  /// Takes another model's parameters over, wherever they are.
  template <class Other>
  void adopt(const Other& other) {
    const auto [params, master] = other.values();
    auto memory = device_->memory();
    memory.copy(params_.data(), params.data(), params_.bytes());
    memory.copy(master_.data(), master.data(), master_.bytes());
    memory.wait();
  }
  [[nodiscard]] std::pair<std::vector<P>, std::vector<float>> values() const {
    std::pair<std::vector<P>, std::vector<float>> result(params_.size(), master_.size());
    auto memory = device_->memory();
    memory.copy(result.first.data(), params_.data(), params_.bytes());
    memory.copy(result.second.data(), master_.data(), master_.bytes());
    memory.wait();
    return result;
  }
  /// A digest for each call in [first, last).
  [[nodiscard]] std::vector<std::uint64_t> digests(std::uint64_t first, std::uint64_t last) const {
    const std::size_t n = params_.bytes() + master_.bytes();
    std::vector<std::byte> all((last - first) * n);
    auto memory = device_->memory();
    memory.copy(all.data(), history_.data() + first * n, all.size());
    memory.wait();
    std::vector<std::uint64_t> result;
    for (std::uint64_t call = first; call < last; ++call) {
      onebit::detail::digest d;
      d.add(all.data() + (call - first) * n, n);
      result.push_back(d.value());
    }
    return result;
  }
  [[nodiscard]] const script& plan() const { return script_; }

 private:
  Device* device_;
  script script_;
  area<P, Device> params_;
  area<G, Device> grads_;
  area<float, Device> master_;
  area<G, Device> source_;           ///< the gradients of all calls
  area<std::byte, Device> history_;  ///< the parameters after each
};

/// By call: what became of the parameters.
using trajectory = std::vector<std::uint64_t>;

/// Steps [first, last) of the script; waits only at their end, or in each call for its outcome.
template <class Optimizer, class Model>
trajectory steps(Optimizer& o, Model& data, std::uint64_t first, std::uint64_t last,
                 bool settle_each = false) {
  const script& s = data.plan();
  for (std::uint64_t call = first; call < last; ++call) {
    data.load(call);
    const onebit::report r = o.step(script::lr(call), 1 / s.loss_scale);
    data.keep(call);
    if (settle_each) {
      const auto became = o.settle();
      CHECK((became == onebit::outcome::skipped) == s.is_bad(call));
      if (!r.pending) CHECK(r.skipped == s.is_bad(call));
    }
  }
  CHECK(o.settle() != onebit::outcome::pending);
  return data.digests(first, last);
}
/// All of them.
template <class Optimizer, class Model>
trajectory steps(Optimizer& o, Model& data, bool settle_each = false) {
  return steps(o, data, 0, data.plan().calls, settle_each);
}

/// What f(transport, device) returns on n ranks that share one device.
template <class Device, class F>
auto on(int n, const F& f) {
  std::vector<std::unique_ptr<Device>> devices;
  using memory = decltype(std::declval<Device&>().memory());
  std::vector<memory> memories;
  for (int r = 0; r < n; ++r) {
    devices.push_back(std::make_unique<Device>());
    memories.push_back(devices.back()->memory());
  }
  using result = decltype(f(std::declval<onebit::basic_threads<memory>>(), *devices[0]));
  std::vector<result> results(devices.size());
  onebit::run_threads(
      memories,
      [&](onebit::basic_threads<memory> t) {
        const auto r = static_cast<std::size_t>(t.rank());
        results[r] = f(t, *devices[r]);
      },
      std::chrono::seconds(120));
  return results;
}

/// Where two results differ first, in words.
inline std::string difference(const std::vector<trajectory>& a, const std::vector<trajectory>& b) {
  if (a.size() != b.size()) return "not the same number of ranks";
  for (std::size_t r = 0; r < a.size(); ++r) {
    if (a[r].size() != b[r].size()) return "not the same number of steps";
    for (std::size_t i = 0; i < a[r].size(); ++i) {
      if (a[r][i] != b[r][i]) {
        return "rank " + std::to_string(r) + ", from step " + std::to_string(i) + " on";
      }
    }
  }
  return "none";
}

// Algorithms as make(groups, transport, backend), with schedules that have every kind of step
// in 44.

template <class Collective>
auto one_bit_adam_with(const Collective& c, std::uint64_t refreshes = 3, double norm = 0) {
  return [c, refreshes, norm](const auto& g, auto t, auto b) {
    return onebit::one_bit_adam(
        g, t,
        onebit::one_bit_adam_options{
            .adam = {.max_grad_norm = norm}, .freeze = {.after = 12}, .refreshes = refreshes},
        c, b);
  };
}
template <class Collective>
auto one_bit_lamb_with(const Collective& c) {
  return [c](const auto& g, auto t, auto b) {
    return onebit::one_bit_lamb(g, t, onebit::one_bit_lamb_options{.freeze = {.after = 12}}, c, b);
  };
}
template <class Collective>
auto papers_one_bit_lamb_with(const Collective& c) {
  return [c](const auto& g, auto t, auto b) {
    return onebit::one_bit_lamb(g, t, onebit::papers::one_bit_lamb_options(12), c, b);
  };
}
template <class Collective>
auto zero_one_adam_with(const Collective& c, double norm = 0) {
  return [c, norm](const auto& g, auto t, auto b) {
    return onebit::zero_one_adam(
        g, t,
        onebit::zero_one_adam_options{
            .adam = {.max_grad_norm = norm},
            .schedule = {.kappa = 2, .warmup_steps = 12, .doubling_steps = 8, .max_interval = 4}},
        c, b);
  };
}
template <class Collective>
auto deepspeed_with(const Collective& c) {
  return [c](const auto& g, auto t, auto b) {
    return deepspeed::zero_one_adam(g, t,
                                    deepspeed::zero_one_options{.var_freeze_step = 12,
                                                                .var_update_scaler = 2,
                                                                .local_step_scaler = 8,
                                                                .local_step_clipper = 4},
                                    c, b);
  };
}

/// Calls f(name, make) for each of them, gather-scattered.
template <class F>
void each_algorithm(const F& f, std::size_t bucket_elements = 0) {
  onebit::gather_scatter<onebit::sign<>> c;
  if (bucket_elements > 0) c.bucket_elements = bucket_elements;
  f("adam", [](const auto& g, auto t, auto b) { return onebit::adam(g, t, {}, b); });
  f("lamb", [](const auto& g, auto t, auto b) { return onebit::lamb(g, t, {}, b); });
  f("one_bit_adam", one_bit_adam_with(c));
  f("one_bit_adam, clipped", one_bit_adam_with(c, 3, 1.0));
  f("zero_one_adam, clipped", zero_one_adam_with(c, 1.0));
  f("one_bit_lamb", one_bit_lamb_with(c));
  f("papers::one_bit_lamb", papers_one_bit_lamb_with(c));
  f("zero_one_adam", zero_one_adam_with(c));
  f("deepspeed", deepspeed_with(c));
}

/// The whole script on the device and on the host: the same bits after every step.
template <class Device, class P = float, class G = P, class Make>
void check_same_bits(const char* name, int n, const Make& make, const script& s = {},
                     bool with_master = false, bool settle_each = false) {
  INFO(std::string(name));
  CAPTURE(n);
  const auto train = [&]<class Place>(auto transport, Place& place) {
    model<Place, P, G> data(place, transport.rank(), transport.size(), s, with_master);
    auto o = make(data.groups(), transport, place.backend());
    return steps(o, data, settle_each);
  };
  CHECK(difference(on<Device>(n, train), on<host_device>(n, train)) == "none");
}

}  // namespace onebit_test

#endif  // ONEBIT_TESTS_CUDA_TRAININGS_HPP
