// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The recorded trajectories through the library: law 9. Cases whose chunks are no whole words, or
// whose padding or masks take part in the recorded scales, have other semantics than ours by
// design; golden_recorded.cpp checks those (and all others) against a replay of the written
// formulas.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <iostream>
#include <map>
#include <mutex>
#include <onebit/extras/papers.hpp>
#include <optional>
#include <string>
#include <vector>

#include "../support/golden_compare.hpp"
#include "../support/plan.hpp"

namespace golden = onebit_test::golden;
using onebit_test::copied;
using onebit_test::flat;
using onebit_test::on_ranks;

namespace {

/// Why a case is not run through the library here; nothing where it is. The one place to change
/// when a rule is added. (The suite of layer-wise and 0/1 cases is golden_layerwise.cpp.)
std::optional<std::string> not_here(const golden::golden_case& c) {
  if (c.optimizer() == "onebit_lamb" || c.optimizer() == "zero_one_adam") {
    return "in golden_layerwise.cpp";
  }
  if (c.has_masks()) {
    return "not applicable: the recorded residuals keep masked elements, and its scales count them";
  }
  if (!c.has_word_chunks()) {
    return "not applicable: the recorded scales count the padding of chunks of no whole words";
  }
  return std::nullopt;
}

void append(flat& to, const flat& from) { to.insert(to.end(), from.begin(), from.end()); }

flat to_vector(const float* first, std::size_t n) { return flat(first, first + n); }

void finish(const golden::case_checker& checker) {
  for (const std::string& failure : checker.failures()) FAIL_CHECK(failure);
  for (const std::string& name : checker.missing()) FAIL_CHECK("not compared: " << name);
  std::cout << checker.summary() << '\n';
}

/// A transport that keeps what was sent last.
struct listening {
  onebit::threads inner;
  std::vector<std::byte>*scattered, *gathered;

  int rank() const { return inner.rank(); }
  int size() const { return inner.size(); }
  void all_to_all(const void* send, void* receive, std::size_t slot_bytes) {
    const auto* p = static_cast<const std::byte*>(send);
    scattered->assign(p, p + slot_bytes * static_cast<std::size_t>(size()));
    inner.all_to_all(send, receive, slot_bytes);
  }
  void all_gather(const void* send, void* receive, std::size_t slot_bytes) {
    const auto* p = static_cast<const std::byte*>(send);
    gathered->assign(p, p + slot_bytes);
    inner.all_gather(send, receive, slot_bytes);
  }
  void all_reduce_sum(float* data, std::size_t n) { inner.all_reduce_sum(data, n); }
};

/// The words of a slot as the recording packs them: first element in the highest bit of a byte.
void append_signs(std::vector<double>& to, const std::byte* words, std::size_t n_words) {
  for (std::size_t i = 0; i < 4 * n_words; ++i) {
    unsigned reversed = 0;
    for (unsigned bit = 0; bit < 8; ++bit) {
      reversed |= (std::to_integer<unsigned>(words[i]) >> bit & 1U) << (7 - bit);
    }
    to.push_back(reversed);
  }
}

float float_at(const std::byte* p) {
  float x = 0;
  std::memcpy(&x, p, sizeof x);
  return x;
}

/// What one rank gives to each array, in pieces that are joined in the order of the array.
struct pieces {
  std::map<std::string, std::vector<flat>> floats;
  std::map<std::string, std::vector<std::vector<double>>> bytes;
};

void check_allreduce(const golden::golden_case& c) {
  const auto n = c.json().at("size").get<std::size_t>();
  const auto calls = c.json().at("calls").get<std::size_t>();
  const std::size_t w = c.world_size(), chunk = n / w;
  const std::vector<float> input = c.array<float>("input");
  const std::vector<float> worker_error = c.array<float>("worker_error");
  const std::vector<float> server_error = c.array<float>("server_error");

  const auto ranks = on_ranks(static_cast<int>(w), [&](onebit::threads transport) {
    const auto r = static_cast<std::size_t>(transport.rank());
    std::vector<std::byte> scattered, gathered;
    listening heard{transport, &scattered, &gathered};
    onebit::host backend;
    const std::vector<std::size_t> sizes = {n};
    onebit::detail::gather_scatter_exchange<onebit::sign<>, onebit::host> x(
        {onebit::granularity::layer(), 1}, onebit::communicator(heard), backend, sizes);
    const auto buffer = [&](const std::vector<float>& from, std::size_t first, std::size_t count) {
      auto b = backend.make_buffer<float>(count);
      std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(first), count, b.data());
      return b;
    };
    auto space = x.allocate({.previous = true});
    space.compensated = buffer(worker_error, r * n, n);
    space.residual = buffer(server_error, r * chunk, chunk);
    x.start(std::move(space), {});
    auto undo = backend.make_buffer<float>(n);

    pieces made;
    const auto keep_errors = [&] {
      made.floats["worker_error"].push_back(copied(x.sender().residual({}), x.sender(), backend));
      const auto& served = x.server_residual();
      made.floats["server_error"].push_back(to_vector(served.data(), served.size()));
    };
    keep_errors();
    const auto& format = x.sender().format();
    for (std::size_t call = 0; call < calls; ++call) {
      const auto message = buffer(input, (call * w + r) * n, n);
      onebit::step_scalars now;
      now.given.number = static_cast<std::uint32_t>(call);
      now.given.rank = static_cast<std::uint32_t>(r);
      const onebit::exchange_args<onebit::detail::store_at_encode> turn{&now, {}, {undo.data()}};
      x.all_reduce(onebit::flat_field{message.data()}, turn);
      if (now.verdict.skip != 0) throw std::runtime_error("golden: a call was skipped");
      if (r == 0) made.floats["output"].push_back(copied(x.latest({}), x.sender(), backend));
      x.finish(turn);
      keep_errors();
      made.floats["worker_scales"].push_back({x.sender().scales()[0]});
      made.floats["server_scales"].push_back({float_at(gathered.data() + format.scales_at)});
      auto& signs = made.bytes["worker_sign_bytes"].emplace_back();
      for (std::size_t j = 0; j < w; ++j) {
        append_signs(signs, scattered.data() + j * format.slot_bytes, chunk / 32);
        // every slot carries the worker's scale
        if (float_at(scattered.data() + j * format.slot_bytes + format.scales_at) !=
            x.sender().scales()[0]) {
          throw std::runtime_error("golden: a slot has another scale");
        }
      }
      append_signs(made.bytes["server_sign_bytes"].emplace_back(), gathered.data(), chunk / 32);
    }
    return made;
  });

  golden::case_checker checker(c, "library");
  // arrays are [call][rank][...]
  const auto join = [&](const auto& member, const std::string& name) {
    std::vector<double> all;
    const auto& first = member(ranks[0]).at(name);
    for (std::size_t call = 0; call < first.size(); ++call) {
      for (const pieces& rank : ranks) {
        if (!member(rank).contains(name)) continue;  // `output` is kept once
        const auto& part = member(rank).at(name)[call];
        all.insert(all.end(), part.begin(), part.end());
      }
    }
    return all;
  };
  const auto floats = [](const pieces& p) -> const auto& { return p.floats; };
  const auto bytes = [](const pieces& p) -> const auto& { return p.bytes; };
  for (const auto& [name, unused] : ranks[0].floats) checker.check(name, join(floats, name));
  for (const auto& [name, unused] : ranks[0].bytes) checker.check(name, join(bytes, name));
  checker.leave_out("input", "handed in");
  finish(checker);
}

/// What one rank records of one tensor with an optimizer of its own.
struct tensor_run {
  flat params;                   ///< of the recorded updates
  std::vector<flat> all_params;  ///< of every update
  flat m, v, worker_error, server_error;
  flat worker_scales, server_scales;  ///< by compressed call
};

/// `plays`: the rank of the recording whose gradients this one has.
template <class Optimizer>
tensor_run run_tensor(const golden::golden_case& c, std::size_t k, int plays, flat& params,
                      flat& grads, Optimizer& o) {
  tensor_run result;
  const auto recorded = c.recorded_updates();
  for (std::size_t t = 1; t <= c.updates(); ++t) {
    const flat g = c.gradient(k, static_cast<std::size_t>(plays), t, params);
    std::copy(g.begin(), g.end(), grads.begin());  // in place: the optimizer has its address
    const onebit::report r = o.step(static_cast<float>(c.lr(t)));
    if (r.skipped) throw std::runtime_error("golden: a step was skipped");
    const bool compressed = r.phase == onebit::phase::compressed;
    if (compressed != (c.phases()[t - 1] == 'C' && !c.tensors()[k].non_freeze)) {
      throw std::runtime_error("golden: another phase than recorded at update " +
                               std::to_string(t));
    }
    result.all_params.push_back(params);
    if (std::find(recorded.begin(), recorded.end(), t) != recorded.end()) {
      append(result.params, params);
    }
    if (!compressed || c.world_size() == 1) continue;
    auto& x = o.exchange();
    const auto& format = x.sender().format();
    result.worker_scales.push_back(x.sender().scales()[0]);
    result.server_scales.push_back(float_at(x.previous(o.active()).slots +
                                            static_cast<std::size_t>(o.rank()) * format.slot_bytes +
                                            format.scales_at));
  }
  return result;
}

template <class Collective>
tensor_run run_frozen(const golden::golden_case& c, std::size_t k, onebit::threads transport,
                      const Collective& collective) {
  flat params = c.initial_params(k), grads(params.size());
  onebit::one_bit_adam_options options =
      onebit::papers::one_bit_adam(c.hyper<std::size_t>("freeze_step") - 1).options;
  options.adam.beta1 = c.beta1();
  options.adam.beta2 = c.beta2();
  options.adam.eps = c.hyper("eps");
  const std::vector<onebit::param_group<>> groups{
      {{{params, grads}}, 1.0F, static_cast<float>(c.hyper("weight_decay"))}};
  auto o = onebit::one_bit_adam(groups, transport, options, collective);
  const int plays = c.world_size() == 1 ? 0 : transport.rank();
  tensor_run result = run_tensor(c, k, plays, params, grads, o);
  auto& x = o.exchange();
  result.m = o.copy(x.previous(o.active()), 0);
  if (c.world_size() > 1) {  // one rank owes nothing
    result.worker_error = o.copy(x.sender().residual(o.active()), 0);
    result.server_error = to_vector(x.server_residual().data(), x.server_residual().size());
  }
  // The rule keeps 1 / (sqrt(v) + eps) from the freeze on.
  for (const float inverse : to_vector(o.rule().inverse(), params.size())) {
    const double root = 1 / static_cast<double>(inverse) - options.adam.eps;
    result.v.push_back(static_cast<float>(root * root));
  }
  return result;
}

tensor_run run_never_frozen(const golden::golden_case& c, std::size_t k,
                            onebit::threads transport) {
  flat params = c.initial_params(k), grads(params.size());
  const std::vector<onebit::param_group<>> groups{
      {{{params, grads}}, 1.0F, static_cast<float>(c.hyper("weight_decay"))}};
  auto o = onebit::adam(
      groups, transport,
      {.beta1 = c.beta1(), .beta2 = c.beta2(), .eps = c.hyper("eps"), .bias_correction = false});
  tensor_run result = run_tensor(c, k, transport.rank(), params, grads, o);
  result.m = to_vector(o.rule().momentum(), params.size());
  result.v = to_vector(o.rule().variance(), params.size());
  return result;
}

void check_adam(const golden::golden_case& c) {
  golden::case_checker checker(c, "library");
  const std::size_t w = c.world_size(), n_tensors = c.tensors().size();
  std::vector<std::vector<tensor_run>> of_tensor;  // [tensor][rank]
  for (std::size_t k = 0; k < n_tensors; ++k) {
    // One rank alone never compresses; what is recorded of it is played by two that have the same
    // gradients: the mean of two equal values is that value.
    of_tensor.push_back(on_ranks(w == 1 ? 2 : static_cast<int>(w), [&](onebit::threads transport) {
      if (c.tensors()[k].non_freeze) return run_never_frozen(c, k, transport);
      if (w == 1) return run_frozen(c, k, transport, onebit::gather_scatter<onebit::identity>{});
      return run_frozen(c, k, transport, onebit::papers::one_bit_adam(1).collective);
    }));
    const auto& ranks = of_tensor.back();
    flat worker_error, server_error;
    for (const tensor_run& r : ranks) {
      CHECK(r.all_params == ranks[0].all_params);
      append(worker_error, r.worker_error);
      append(server_error, r.server_error);
    }
    const std::string suffix = "_tensor" + std::to_string(k);
    checker.check("params" + suffix, ranks[0].params);
    checker.check("exp_avg" + suffix, ranks[0].m);
    checker.check("exp_avg_sq" + suffix, ranks[0].v);
    if (worker_error.empty()) continue;
    checker.check("worker_error" + suffix, worker_error);
    checker.check("server_error" + suffix, server_error);
  }
  // [call][rank]; calls by update, and within one by tensor
  flat worker_scales, server_scales;
  std::vector<std::size_t> next(n_tensors, 0);
  for (const auto& [t, tensor] : c.compressed_calls()) {
    const auto k = static_cast<std::size_t>(tensor);
    for (const tensor_run& r : of_tensor[k]) {
      worker_scales.push_back(r.worker_scales.at(next[k]));
      server_scales.push_back(r.server_scales.at(next[k]));
    }
    ++next[k];
  }
  if (!worker_scales.empty()) {
    checker.check("worker_scales", worker_scales);
    checker.check("server_scales", server_scales);
  }
  finish(checker);
}

}  // namespace

TEST_CASE("golden: the library reproduces the recordings whose semantics are ours") {
  std::size_t n_through = 0, n_left = 0;
  for (const auto& directory : golden::list_cases()) {
    INFO("case ", directory.filename().string());
    try {
      const golden::golden_case c(directory);
      if (const auto why = not_here(c)) {
        std::cout << c.name() << " library: " << *why << '\n';
        ++n_left;
      } else if (c.optimizer() == "compressed_allreduce") {
        check_allreduce(c);
        ++n_through;
      } else if (c.optimizer() == "onebit_adam") {
        check_adam(c);
        ++n_through;
      } else {
        FAIL_CHECK("no way to run " << c.optimizer());
      }
    } catch (const std::exception& e) {
      FAIL_CHECK(std::string(e.what()));
    }
  }
  CHECK(n_through >= 12);  // a case less is a loss
  std::cout << '\n'
            << n_through << " cases through the library here, " << n_left
            << " elsewhere or not at all; worst error (largest/rms) per array\n";
  golden::error_table::instance().print(std::cout, "library");
}
