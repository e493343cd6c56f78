// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The oracle is judged before it judges: where this library's semantics and the recorded ones
// coincide (no padding, no mask, one tensor at a time) it has to reproduce the recordings, and
// elsewhere it has to obey identities and small examples that are worked out by hand.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <iostream>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "../support/golden_compare.hpp"
#include "../support/reference_adam.hpp"

namespace golden = onebit_test::golden;
namespace reference = onebit_test::reference;

using reference::exchange_kind;
using reference::granularity;
using reference::scale_norm;
using vec = std::vector<double>;

namespace {

void append(vec& to, const vec& from) { to.insert(to.end(), from.begin(), from.end()); }

void finish(const golden::case_checker& checker) {
  for (const std::string& failure : checker.failures()) FAIL_CHECK(failure);
  for (const std::string& name : checker.missing()) FAIL_CHECK("not compared: " << name);
  std::cout << checker.summary() << '\n';
}

/// The recorded library compresses every tensor on its own: one optimizer per tensor.
void check_adam(const golden::golden_case& c, granularity scales) {
  std::vector<reference::one_bit_adam> of_tensor;
  for (std::size_t k = 0; k < c.tensors().size(); ++k) {
    const auto& info = c.tensors()[k];
    reference::adam_options options;
    options.beta1 = c.beta1();
    options.beta2 = c.beta2();
    options.eps = c.hyper("eps");
    if (!info.non_freeze) options.dense_steps = c.hyper<std::size_t>("freeze_step") - 1;
    options.compress.scales = scales;
    of_tensor.emplace_back(std::vector{info.size},
                           std::vector<reference::group>{{1, 1.0, c.hyper("weight_decay")}},
                           c.world_size(), options);
    of_tensor.back().set_params(0, c.initial_params<double>(k));
  }
  std::map<std::string, vec> produced;
  for (std::size_t t = 1; t <= c.updates(); ++t) {
    for (std::size_t k = 0; k < of_tensor.size(); ++k) {
      auto& adam = of_tensor[k];
      reference::rank_tensors grads;
      for (std::size_t r = 0; r < c.world_size(); ++r) {
        grads.push_back({c.gradient(k, r, t, adam.params(r, 0))});
      }
      REQUIRE(adam.step(c.lr(t), grads));
      const auto recorded = c.recorded_updates();
      if (std::find(recorded.begin(), recorded.end(), t) != recorded.end()) {
        append(produced["params_tensor" + std::to_string(k)], adam.params(0, 0));
      }
      for (std::size_t r = 1; r < c.world_size(); ++r) {
        REQUIRE(adam.params(r, 0) == adam.params(0, 0));
      }
      if (!adam.frozen() || c.world_size() == 1) continue;
      for (std::size_t r = 0; r < c.world_size(); ++r) {
        append(produced["worker_scales"], adam.exchange().worker_scales(r));
      }
      append(produced["server_scales"], adam.exchange().server_scales());
    }
  }
  golden::case_checker checker(c, "oracle");
  for (std::size_t k = 0; k < of_tensor.size(); ++k) {
    const std::string suffix = "_tensor" + std::to_string(k);
    produced["exp_avg" + suffix] = of_tensor[k].m(0);
    produced["exp_avg_sq" + suffix] = of_tensor[k].v(0);
    if (!of_tensor[k].frozen() || c.world_size() == 1) continue;
    for (std::size_t r = 0; r < c.world_size(); ++r) {
      append(produced["worker_error" + suffix], of_tensor[k].worker_residual(r, 0));
    }
    produced["server_error" + suffix] = of_tensor[k].server_residual(0);
  }
  for (const auto& [name, values] : produced) checker.check(name, values);
  finish(checker);
}

void check_allreduce(const golden::golden_case& c) {
  const std::size_t n = c.json().at("size").get<std::size_t>();
  const std::size_t n_ranks = c.world_size();
  const reference::flat_axis axis({n}, n_ranks);
  reference::compressed_allreduce reduce(axis, n_ranks, {});
  const auto row = [&](const vec& from, std::size_t i) {
    return vec(from.begin() + static_cast<std::ptrdiff_t>(i * n),
               from.begin() + static_cast<std::ptrdiff_t>((i + 1) * n));
  };
  for (std::size_t r = 0; r < n_ranks; ++r) {
    reduce.set_worker_residual(r, row(c.values("worker_error"), r));
  }
  reduce.set_server_residual(row(c.values("server_error"), 0));
  std::map<std::string, vec> produced;
  const auto keep_errors = [&] {
    for (std::size_t r = 0; r < n_ranks; ++r) {
      append(produced["worker_error"], reduce.worker_residual(r));
    }
    append(produced["server_error"], reduce.server_residual());
  };
  keep_errors();
  const vec input = c.values("input");
  for (std::size_t call = 0; call < c.json().at("calls").get<std::size_t>(); ++call) {
    reference::rank_vecs messages;
    for (std::size_t r = 0; r < n_ranks; ++r) messages.push_back(row(input, call * n_ranks + r));
    append(produced["output"], reduce(messages));
    keep_errors();
    for (std::size_t r = 0; r < n_ranks; ++r) {
      append(produced["worker_scales"], reduce.worker_scales(r));
    }
    append(produced["server_scales"], reduce.server_scales());
  }
  golden::case_checker checker(c, "oracle");
  for (const auto& [name, values] : produced) checker.check(name, values);
  checker.leave_out("input", "handed in");
  checker.leave_out("worker_sign_bytes", "the oracle packs nothing");
  checker.leave_out("server_sign_bytes", "the oracle packs nothing");
  finish(checker);
}

double noise(std::size_t r, std::size_t t, std::size_t i) { return golden::u(7, 2, 0, r, t, i); }

}  // namespace

TEST_CASE("golden: the oracle reproduces the recordings whose semantics are ours") {
  std::size_t n_compared = 0;
  for (const auto& directory : golden::list_cases()) {
    INFO("case ", directory.filename().string());
    try {
      const golden::golden_case c(directory);
      if (!c.has_word_chunks() || c.has_masks()) {
        std::cout << c.name() << " oracle: not comparable, padded or masked\n";
      } else if (c.optimizer() == "onebit_adam") {
        check_adam(c, granularity::whole);
        check_adam(c, granularity::layer);
        n_compared += 1;
      } else if (c.optimizer() == "compressed_allreduce") {
        check_allreduce(c);
        n_compared += 1;
      } else {
        std::cout << c.name() << " oracle: not comparable, no rule for " << c.optimizer() << '\n';
      }
    } catch (const std::exception& e) {
      FAIL_CHECK(std::string(e.what()));
    }
  }
  CHECK(n_compared > 0);
  std::cout << '\n';
  golden::error_table::instance().print(std::cout, "oracle");
}

TEST_CASE("golden: the oracle's sets of a scale") {
  // Words: 2 + 1 + 0 + 4 = 7, so chunks of 3: tensors 0 and 1 | 96 elements of tensor 3 | 4 more.
  const reference::flat_axis axis({40, 20, 0, 100}, 3);
  CHECK(axis.size() == 7 * 32);
  CHECK(axis.chunk_words() == 3);
  CHECK(axis.start(1) == 64);
  CHECK(axis.start(3) == 96);
  struct expected_sets {
    granularity scales;
    std::size_t worker, server;
  };
  const expected_sets all[] = {{granularity::whole, 1, 3},
                               {granularity::layer, 3, 4},
                               {granularity::chunk, 3, 3},
                               {granularity::block, 5, 5}};
  for (const expected_sets& one : all) {
    CAPTURE(static_cast<int>(one.scales));
    reference::compressed_allreduce reduce(axis, 3, {one.scales, 64});
    reduce(reference::rank_vecs(3, vec(axis.size(), 1.0)));
    CHECK(reduce.worker_scales(0) == vec(one.worker, 1.0));  // padding counts nowhere
    CHECK(reduce.server_scales() == vec(one.server, 1.0));
  }
}

TEST_CASE("golden: the oracle's exchange, worked out by hand") {
  const reference::flat_axis axis({2}, 2);
  reference::compressed_allreduce reduce(axis, 2, {granularity::whole, 0, scale_norm::l1});
  reference::rank_vecs x(2, vec(axis.size(), 0.0));
  x[0][0] = 3, x[0][1] = -1;  // scale 2, sends 2 -2, keeps 1 1
  x[1][0] = 1, x[1][1] = -5;  // scale 3, sends 3 -3, keeps -2 -2
  CHECK(axis.cut(reduce(x), 0) == vec{2.5, -2.5});
  CHECK(axis.cut(reduce.worker_residual(0), 0) == vec{1, 1});
  CHECK(axis.cut(reduce.worker_residual(1), 0) == vec{-2, -2});
  CHECK(axis.cut(reduce.server_residual(), 0) == vec{0, 0});
  x[0][0] = 0, x[0][1] = 0;  // 1 1: scale 1, sends 1 1, keeps 0 0
  x[1][0] = 2, x[1][1] = 8;  // 0 6: scale 3, sends 3 3 (0 counts as +), keeps -3 3
  CHECK(axis.cut(reduce(x), 0) == vec{2, 2});  // mean 2 2
  CHECK(axis.cut(reduce.worker_residual(1), 0) == vec{-3, 3});

  reference::compressed_allreduce l2(axis, 2, {});
  x[0][0] = 7, x[0][1] = 1;  // scale sqrt(50 / 2) = 5
  x[1][0] = 7, x[1][1] = 1;
  CHECK(axis.cut(l2(x), 0) == vec{5, 5});
}

TEST_CASE("golden: the oracle's sums telescope, and what is not live stays zero") {
  const std::size_t n_ranks = 3;
  const reference::flat_axis axis({100, 0, 33, 1, 64}, n_ranks);
  for (const granularity scales :
       {granularity::whole, granularity::layer, granularity::chunk, granularity::block}) {
    for (const scale_norm norm : {scale_norm::l2, scale_norm::l1}) {
      for (const exchange_kind kind : {exchange_kind::gather_scatter, exchange_kind::all_gather}) {
        reference::compressed_allreduce reduce(axis, n_ranks, {scales, 24, norm, kind});
        std::vector<bool> active(axis.size());
        for (std::size_t at = 0; at < active.size(); ++at) {
          active[at] = at % 5 != 0 && at / 24 != 1;  // the second block is dead as a whole
        }
        reduce.set_live(active);
        vec put_in(axis.size(), 0.0), got_out(axis.size(), 0.0);
        for (std::size_t t = 1; t <= 20; ++t) {
          reference::rank_vecs x(n_ranks, vec(axis.size(), 0.0));
          for (std::size_t at = 0; at < axis.size(); ++at) {
            for (std::size_t r = 0; r < n_ranks; ++r) {
              x[r][at] = noise(r, t, at);
              put_in[at] += x[r][at] / static_cast<double>(n_ranks);
            }
          }
          const vec agreed = reduce(x);
          for (std::size_t at = 0; at < axis.size(); ++at) got_out[at] += agreed[at];
        }
        double worst = 0;
        for (std::size_t at = 0; at < axis.size(); ++at) {
          double residual = reduce.server_residual()[at];
          for (std::size_t r = 0; r < n_ranks; ++r) {
            residual += reduce.worker_residual(r)[at] / static_cast<double>(n_ranks);
          }
          if (!axis.real(at) || !active[at]) {
            CHECK((residual == 0 && got_out[at] == 0));
          } else {
            worst = std::max(worst, std::abs(put_in[at] - got_out[at] - residual));
          }
        }
        CHECK(worst < 1e-12);
      }
    }
  }
}

TEST_CASE("golden: the oracle skips, keeps the dead where they are, and corrects the bias") {
  for (const std::size_t n_ranks : {std::size_t{1}, std::size_t{2}}) {
    CAPTURE(n_ranks);
    const std::size_t last = n_ranks - 1;
    reference::adam_options options;
    options.bias_correction = true;
    options.dense_steps = 3;
    const std::vector<reference::group> groups{{1, 1.0, 0.0}, {1, 0.5, 0.25}};
    reference::one_bit_adam adam({3, 2}, groups, n_ranks, options);
    adam.set_params(0, {1, 2, 3});
    adam.set_params(1, {4, 5});
    const double lr = 0.125;
    // Equal gradients of constant size: the corrected quotient is sign(g) while all is dense.
    const reference::rank_tensors g(n_ranks, {{0.5, -2.0, 0.0}, {0.0, 1.0}});
    for (int t = 0; t < 3; ++t) REQUIRE(adam.step(lr, g));
    CHECK(adam.params(0, 0)[0] == doctest::Approx(1 - 3 * lr).epsilon(1e-7));
    CHECK(adam.params(0, 0)[1] == doctest::Approx(2 + 3 * lr).epsilon(1e-7));
    CHECK(adam.params(0, 0)[2] == 3);
    const double decay = 1 - lr * 0.5 * 0.25;
    CHECK(adam.params(0, 1)[0] == doctest::Approx(4 * std::pow(decay, 3)).epsilon(1e-12));

    auto bad = g;
    bad[last][1][0] = std::numeric_limits<double>::infinity();
    const vec before = adam.params(last, 0), m = adam.m(0), v = adam.v(0);
    CHECK_FALSE(adam.step(lr, bad));
    CHECK(adam.steps() == 3);
    CHECK(adam.params(last, 0) == before);
    CHECK(adam.m(0) == m);

    auto late = g;  // the dead elements get a gradient after the freeze
    late[0][0][2] = 1;
    late[last][1][0] = 1;
    REQUIRE(adam.step(lr, late));
    CHECK(adam.frozen());
    if (n_ranks == 1) {  // nothing is compressed, and the correction of v stays that of step 3
      const double momentum = 0.9 * m[0] + 0.1 * 0.5;
      const double u =
          momentum / (1 - std::pow(0.9, 4)) / (std::sqrt(v[0] / (1 - std::pow(0.999, 3))) + 1e-8);
      CHECK(adam.m(0)[0] == doctest::Approx(momentum).epsilon(1e-12));
      CHECK(adam.params(0, 0)[0] == doctest::Approx(before[0] - lr * u).epsilon(1e-12));
    }
    for (int t = 0; t < 4; ++t) REQUIRE(adam.step(lr, late));
    CHECK(adam.v(0) == v);
    CHECK(adam.params(0, 0)[2] == 3);
    CHECK(adam.params(0, 1)[0] == doctest::Approx(4 * std::pow(decay, 8)).epsilon(1e-12));
    CHECK(adam.m(0)[2] == 0);
    CHECK(adam.worker_residual(0, 0)[2] == 0);
    CHECK(adam.params(0, 0) == adam.params(last, 0));
  }
}
