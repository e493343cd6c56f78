// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Two shards of a model, two ranks each: what one shard skips the other skips, and norms are those
// of the whole.

#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <onebit/onebit.hpp>
#include <string>
#include <vector>

#include "../support/training.hpp"

using namespace onebit_test;

namespace {

/// Ranks 0, 1 hold shard 0, ranks 2, 3 shard 1; replica r is ranks r and 2 + r.
struct place {
  explicit place(const onebit::threads& all)
      : shard(all.rank() / 2),
        replicas(all.split(shard, all.rank())),
        shards(all.split(2 + all.rank() % 2, all.rank())) {}
  int shard;
  onebit::threads replicas, shards;
};

const std::vector<std::size_t> sizes_of_shard[] = {{33, 40}, {100, 1, 7}};

template <class F>
void each_algorithm(const F& f) {
  f("adam",
    [](const auto& g, auto t, double norm) { return onebit::adam(g, t, {.max_grad_norm = norm}); });
  f("one_bit_adam", [](const auto& g, auto t, double norm) {
    return onebit::one_bit_adam(
        g, t, {.adam = {.max_grad_norm = norm}, .freeze = {.after = 6}, .refreshes = 4});
  });
  f("one_bit_lamb", [](const auto& g, auto t, double norm) {
    return onebit::one_bit_lamb(g, t, {.lamb = {.max_grad_norm = norm}, .freeze = {.after = 6}});
  });
  f("zero_one_adam", [](const auto& g, auto t, double norm) {
    return onebit::zero_one_adam(
        g, t,
        {.adam = {.max_grad_norm = norm},
         .schedule = {.kappa = 2, .warmup_steps = 6, .doubling_steps = 6, .max_interval = 1}});
  });
}

}  // namespace

TEST_CASE(
    "model-parallel group: a step that one skips all skip, in every phase [join_model_parallel]") {
  each_algorithm([](const std::string& name, const auto& make) {
    CAPTURE(name);
    for (const double norm : {0.0, 3.0}) {
      const auto skips = on_ranks(4, [&](onebit::threads all) {
        place at(all);
        training<> data(sizes_of_shard[at.shard]);
        auto o = make(data.groups(), at.replicas, norm);
        o.join_model_parallel(at.shards);
        std::vector<std::uint64_t> skipped;
        for (std::uint64_t turn = 0; turn < 60; ++turn) {
          data.compute_gradients(all.rank(), turn);
          const std::uint64_t before = data.digest();
          // one rank of the four, by turns
          const bool bad = turn % 5 == 3 && static_cast<int>(turn / 5 % 4) == all.rank();
          if (bad) data.grads[0][3] = std::numeric_limits<float>::quiet_NaN();
          const auto done = o.step(0.01F);
          if (done.skipped) skipped.push_back(turn);
          if (done.skipped) CHECK(data.digest() == before);
        }
        CHECK(o.steps() == 48);
        return skipped;
      });
      for (const auto& s : skips) {
        CHECK(s == skips[0]);
        CHECK(s.size() == 12);
      }
    }
  });
}

TEST_CASE(
    "model-parallel group: ten thousand bad gradients keep two groups in step "
    "[join_model_parallel]") {
  const auto ends = on_ranks(4, [](onebit::threads all) {
    place at(all);
    training<> data(sizes_of_shard[at.shard]);
    auto o = onebit::one_bit_adam(data.groups(), at.replicas, {.freeze = {.after = 20}});
    o.join_model_parallel(at.shards);
    std::uint64_t injected = 0, skipped = 0;
    for (std::uint64_t turn = 0; injected < 10000; ++turn) {
      data.compute_gradients(all.rank(), turn);
      // half of all turns, on one or more ranks; every rank knows of all
      bool any = false;
      for (int r = 0; r < 4; ++r) {
        const bool bad = noise(turn * 4 + static_cast<std::uint64_t>(r)) > 0.7F;
        injected += bad ? 1 : 0;
        any = any || bad;
        if (bad && r == all.rank()) data.grads[0][0] = std::numeric_limits<float>::infinity();
      }
      const bool was_skipped = o.step(1e-4F).skipped;
      REQUIRE(was_skipped == any);
      skipped += was_skipped ? 1 : 0;
    }
    CHECK(o.n_skipped() == skipped);
    return std::array<std::uint64_t, 2>{o.steps(), data.digest()};
  });
  CHECK(ends[0] == ends[1]);
  CHECK(ends[2] == ends[3]);
  CHECK(ends[0][0] == ends[2][0]);
}

TEST_CASE(
    "model-parallel group: gradients are clipped by the norm of the whole model "
    "[join_model_parallel]") {
  // The same model whole: its first two tensors are shard 0, the others shard 1.
  const std::vector<std::size_t> sizes = {33, 40, 100, 1, 7};
  const auto fill = [](std::vector<float>& g, std::size_t tensor, int replica, std::uint64_t step) {
    for (std::size_t i = 0; i < g.size(); ++i) {
      g[i] = noise((step * 2 + static_cast<std::uint64_t>(replica)) * 1000003 + tensor * 5003 + i);
    }
  };
  const auto plain = [](training<>& data) {
    std::vector<onebit::param_group<>> g(1);
    for (std::size_t t = 0; t < data.params.size(); ++t) {
      g[0].tensors.push_back({data.params[t], data.grads[t]});
    }
    return g;
  };
  const auto whole = on_ranks(2, [&](onebit::threads t) {
    training<> data(sizes);
    for (auto& p : data.params) p.assign(p.size(), 0.5F);
    auto o = onebit::adam(plain(data), t, {.max_grad_norm = 2});
    std::vector<float> norms;
    for (std::uint64_t step = 0; step < 20; ++step) {
      for (std::size_t k = 0; k < sizes.size(); ++k) fill(data.grads[k], k, t.rank(), step);
      norms.push_back(*o.step(0.01F).gradient_norm);
    }
    return std::pair(norms, data.params);
  })[0];
  const auto sharded = on_ranks(4, [&](onebit::threads all) {
    place at(all);
    training<> data(at.shard == 0 ? std::vector<std::size_t>{33, 40}
                                  : std::vector<std::size_t>{100, 1, 7});
    for (auto& p : data.params) p.assign(p.size(), 0.5F);
    auto o = onebit::adam(plain(data), at.replicas, {.max_grad_norm = 2});
    o.join_model_parallel(at.shards);
    const std::size_t first = at.shard == 0 ? 0 : 2;
    for (std::uint64_t step = 0; step < 20; ++step) {
      for (std::size_t k = 0; k < data.grads.size(); ++k) {
        fill(data.grads[k], first + k, at.replicas.rank(), step);
      }
      const auto done = o.step(0.01F);
      CHECK(*done.gradient_norm == doctest::Approx(whole.first[step]).epsilon(1e-6));
    }
    for (std::size_t k = 0; k < data.params.size(); ++k) {
      for (std::size_t i = 0; i < data.params[k].size(); ++i) {
        // 20 steps of 0.01, of which clip factors that differ in the last bit change 1e-7
        REQUIRE(data.params[k][i] ==
                doctest::Approx(whole.second[first + k][i]).epsilon(1e-6).scale(1));
      }
    }
    return 0;
  });
  CHECK(sharded.size() == 4);
}

TEST_CASE(
    "model-parallel group: norms of the whole in steps that average and exchange, or only "
    "exchange [join_model_parallel]") {
  // Equal gradients of 1 everywhere: 1000 elements in each of two shards.
  const double whole = std::sqrt(2000.0);
  each_algorithm([&](const std::string& name, const auto& make) {
    CAPTURE(name);
    (void)on_ranks(4, [&](onebit::threads all) {
      place at(all);
      training<> data({1000});
      auto o = make(data.groups(), at.replicas, 1.0);
      o.join_model_parallel(at.shards);
      for (int step = 0; step < 20; ++step) {
        data.grads[0].assign(1000, 1.0F);
        const auto done = o.step(1e-4F);
        if (done.phase == onebit::phase::local) continue;
        REQUIRE(done.gradient_norm.has_value());
        // in a refresh the the sketch of gradients travels as roots in bf16
        CHECK(static_cast<double>(*done.gradient_norm) == doctest::Approx(whole).epsilon(0x1p-8));
      }
      return 0;
    });
  });
}

TEST_CASE(
    "model-parallel group: other plans are found in the step in which they part "
    "[join_model_parallel]") {
  (void)on_ranks(4, [](onebit::threads all) {
    place at(all);
    training<> data({100});
    auto o = onebit::one_bit_adam(data.groups(), at.replicas,
                                  {.freeze = {.after = at.shard == 0 ? 5U : 6U}, .refreshes = 0});
    o.join_model_parallel(at.shards);
    // in step 5 one compresses, and before that one looks at v where the other does not
    std::string text;
    while (text.empty() && o.steps() < 6) {
      const auto before = data.params;
      try {
        const bool skipped = train(o, data).skipped;
        CHECK_FALSE(skipped);
      } catch (const onebit::rank_mismatch& e) {
        text = e.what();
        CHECK(data.params == before);
      }
    }
    CHECK(o.steps() <= 5);
    CHECK(text.find("otherwise than this rank in step " + std::to_string(o.steps())) !=
          std::string::npos);
    return 0;
  });
}

TEST_CASE(
    "model-parallel group: where one would meet twice in a step, and another once, all are told "
    "[join_model_parallel]") {
  const auto check = [](const auto& options) {
    const auto texts = on_ranks(4, [&](onebit::threads all) {
      place at(all);
      training<> data({100});
      auto o = onebit::one_bit_adam(data.groups(), at.replicas, options(at.shard));
      o.warn_with(nullptr);
      o.join_model_parallel(at.shards);
      return thrown<onebit::rank_mismatch>([&] {
        while (o.steps() < 60) (void)train(o, data);
      });
    });
    for (const auto& text : texts)
      CHECK(text == contains{"averages, exchanges, clips or vetoes otherwise than this rank"});
  };
  check([](int shard) {  // one refreshes v: it averages and exchanges
    return onebit::one_bit_adam_options{.freeze = {.after = 3}, .refreshes = shard == 0 ? 2U : 0U};
  });
  check([](int shard) {  // one clips: it meets before its exchange too
    return onebit::one_bit_adam_options{
        .adam = {.max_grad_norm = shard == 0 ? 1.0 : 0.0}, .freeze = {.after = 3}, .refreshes = 0};
  });
  check([](int shard) {  // both clip, one still warms up
    return onebit::one_bit_adam_options{
        .adam = {.max_grad_norm = 1}, .freeze = {.after = shard == 0 ? 3U : 9U}, .refreshes = 0};
  });
}

TEST_CASE(
    "model-parallel group: one that is at another step is found, and not in the middle of a step "
    "[join_model_parallel]") {
  onebit::run_threads(2, [](onebit::threads all) {
    training<> data({40});
    auto alone = all.split(all.rank(), 0);
    auto o = onebit::adam(data.groups(), alone);
    if (all.rank() == 1) CHECK_FALSE(train(o, data).skipped);
    o.join_model_parallel(all);
    CHECK(thrown<onebit::rank_mismatch>([&] { (void)train(o, data); }) == contains{"is at step"});
    o.begin(0.1F);
    CHECK(thrown<onebit::invalid_input>([&] { o.join_model_parallel(all); }) ==
          contains{"has begun"});
  });
}
