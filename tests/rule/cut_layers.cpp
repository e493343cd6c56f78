// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Tensor parallelism: layers of which each rank holds a part have the norms of the whole in LAMB
// and 1-bit LAMB, the same bits on all shards.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <memory>
#include <onebit/onebit.hpp>
#include <onebit/transport/alone.hpp>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "../compiled/emulated.hpp"
#include "../support/emulated.hpp"
#include "../support/scripted.hpp"
#include "../support/training.hpp"

using namespace onebit_test;

namespace {

// Two layers that are cut, and between them in the order of the groups one that all shards hold.
constexpr std::size_t layers[] = {701, 5000, 33};
constexpr std::size_t replicated = 2;
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

/// What shard s of n holds of a layer: unequal parts.
struct piece {
  piece(std::size_t layer, int s, int n) {
    const auto cut = [&](int k) { return layers[layer] * static_cast<std::size_t>(k * k) / of(n); };
    first = layer == replicated ? 0 : cut(s);
    end = layer == replicated ? layers[layer] : cut(s + 1);
  }
  static std::size_t of(int n) { return static_cast<std::size_t>(n * n); }
  std::size_t first, end;
};

/// The memory of shard s of n: of the whole model, where n is 1.
struct part {
  part(int s, int n) {
    for (std::size_t k = 0; k < 3; ++k) {
      pieces.emplace_back(k, s, n);
      for (std::size_t i = pieces[k].first; i < pieces[k].end; ++i) {
        params[k].push_back((0.5F + static_cast<float>(k)) * noise(k * 1000003 + i));
      }
      grads[k].resize(params[k].size());
    }
  }
  [[nodiscard]] std::vector<onebit::param_group<>> groups(bool cut) {
    std::vector<onebit::param_group<>> g(2);
    g[0].tensors = {{params[0], grads[0]}, {params[1], grads[1]}};
    g[0].weight_decay = 0.02F;
    g[0].tensor_parallel = cut;
    g[1].tensors = {{params[2], grads[2]}};
    return g;
  }
  void compute_gradients(int replica, std::uint64_t step) {
    const std::uint64_t seed = 7919 * (step + 1) + 104729 * static_cast<std::uint64_t>(replica + 1);
    for (std::size_t k = 0; k < 3; ++k) {
      for (std::size_t i = 0; i < params[k].size(); ++i) {
        const std::size_t place = pieces[k].first + i;
        // of another size in each part: its own norms would be far from those of the whole
        const float size = 0.1F + 3 * static_cast<float>(place) / static_cast<float>(layers[k]);
        grads[k][i] =
            size * (noise(seed * 1000003 + k * 50021 + place) + 0.5F) + 0.1F * params[k][i];
      }
    }
  }
  [[nodiscard]] std::uint64_t digest() const {
    onebit::digest d;
    for (const auto& p : params) d.add(p.data(), p.size() * sizeof(float));
    return d.value();
  }
  std::vector<piece> pieces;
  std::array<std::vector<float>, 3> params, grads;
};

/// Rank r of n w: replica r % w of shard r / w.
template <class T = onebit::threads>
struct place {
  place(const T& all, int w)
      : shard(all.rank() / w),
        replica(all.rank() % w),
        replicas(all.split(shard, replica)),
        shards(all.split(replica, shard)) {}
  int shard, replica;
  T replicas, shards;
};

struct result {
  std::array<std::vector<float>, 3> params;
  std::vector<onebit::lamb_layer> told;  ///< of the layers, after each step
};

template <class O>
void tell(O& o, std::vector<onebit::lamb_layer>& told) {
  const onebit::lamb_layer* own = o.rule().layers();
  told.insert(told.end(), own, own + 3);
}

constexpr std::uint64_t n_steps = 14;

/// Trains on n shards of w replicas each; make(groups, replicas).
template <class Make>
std::vector<result> train_in_parts(int n, int w, const Make& make, bool cut = true) {
  return on_ranks(n * w, [&](const onebit::threads& all) {
    place<> at(all, w);
    part data(at.shard, n);
    auto o = make(data.groups(cut), at.replicas);
    o.warn_with(nullptr);
    if (n > 1) o.join_shards(at.shards);
    result r;
    for (std::uint64_t step = 0; step < n_steps; ++step) {
      data.compute_gradients(at.replica, step);
      CHECK_FALSE(o.step(0.02F).skipped);
      tell(o, r.told);
    }
    r.params = data.params;
    return r;
  });
}

/// How far the parts are from the whole at most.
double distance(const std::vector<result>& parts, int n, int w, const result& whole) {
  double most = 0;
  for (int r = 0; r < n * w; ++r) {
    for (std::size_t k = 0; k < 3; ++k) {
      const piece p(k, r / w, n);
      const auto& x = parts[static_cast<std::size_t>(r)].params[k];
      REQUIRE(x.size() == p.end - p.first);
      for (std::size_t i = 0; i < x.size(); ++i) {
        most = std::max(most, std::abs(static_cast<double>(x[i] - whole.params[k][p.first + i])));
      }
    }
  }
  return most;
}
/// What shards know of the layers that are cut, and all replicas of all that they have.
void check_same_layers(const std::vector<result>& parts, int w) {
  for (std::size_t r = 0; r < parts.size(); ++r) {
    const std::size_t of_shard = r - r % static_cast<std::size_t>(w);
    CHECK(parts[r].params == parts[of_shard].params);
    for (std::size_t i = 0; i < parts[r].told.size(); ++i) {
      const onebit::lamb_layer &a = parts[r].told[i], &b = parts[0].told[i];
      if (i % 3 == replicated) continue;
      CHECK(a.coefficient == b.coefficient);
      CHECK(a.average == b.average);
      CHECK(a.last_factor == b.last_factor);
    }
  }
}

const auto dense = [](const auto& g, auto t) { return onebit::lamb(g, t); };
const auto clipped = [](const auto& g, auto t) { return onebit::lamb(g, t, {.max_grad_norm = 7}); };
const auto exact = [](const auto& g, auto t) {
  return onebit::one_bit_lamb(g, t, {.freeze = {.after = 5}},
                              onebit::gather_scatter<onebit::identity>{});
};
const auto compressed = [](const auto& g, auto t) {
  return onebit::one_bit_lamb(g, t, {.lamb = {.max_grad_norm = 50}, .freeze = {.after = 5}});
};

// Parts have other tiles, whose sums of squares, in float, differ in the last bits: norms and
// coefficients by some 1e-7 of themselves, steps of up to 0.02 * 10 * 10 by as much of those, and
// fourteen of them add up.
constexpr double rounding = 2e-5, far = 1e-3;

template <class Make>
void check_as_whole(const Make& make, std::initializer_list<int> replicas) {
  for (const int w : replicas) {
    const result whole = train_in_parts(1, w, make, false)[0];
    for (const int n : {2, 3}) {
      CAPTURE(w);
      CAPTURE(n);
      const auto parts = train_in_parts(n, w, make);
      CHECK(distance(parts, n, w, whole) < rounding);
      check_same_layers(parts, w);
      // the test can fail
      CHECK(distance(train_in_parts(n, w, make, false), n, w, whole) > far);
    }
  }
}

}  // namespace

TEST_CASE("cut layers: LAMB has the trajectory of the model that is not cut") {
  SUBCASE("plain") { check_as_whole(dense, {1, 2}); }
  SUBCASE("clipped by the norm of the whole") {
    // what is replicated counts as often as it is held: 0 here, so that norms are equal
    const auto no_bias = [](auto g, auto t) {
      g.pop_back();
      g.emplace_back();
      return clipped(g, t);
    };
    for (const int w : {1, 2}) {
      const auto run = [&](int n, bool cut) {
        return on_ranks(n * w, [&](const onebit::threads& all) {
          place<> at(all, w);
          part data(at.shard, n);
          auto o = no_bias(data.groups(cut), at.replicas);
          if (n > 1) o.join_shards(at.shards);
          for (std::uint64_t step = 0; step < n_steps; ++step) {
            data.compute_gradients(at.replica, step);
            const auto done = o.step(0.02F);
            CHECK_FALSE(done.skipped);
            CHECK(done.gradient_norm.value_or(0) > 7);
          }
          return result{data.params, {}};
        });
      };
      const result whole = run(1, false)[0];
      for (const int n : {2, 3}) {
        CHECK(distance(run(n, true), n, w, whole) < rounding);
        CHECK(distance(run(n, false), n, w, whole) > far);
      }
    }
  }
}

TEST_CASE("cut layers: 1-bit LAMB, where nothing is lost, has that of the model that is not cut") {
  check_as_whole(exact, {2});
}

TEST_CASE("cut layers: what is compressed has the same coefficients on all shards") {
  for (const int n : {2, 3}) {
    const auto parts = train_in_parts(n, 2, compressed);
    check_same_layers(parts, 2);
    const auto& last = parts[0].told.back();
    CHECK(last.average > 0);
  }
}

TEST_CASE("cut layers: what a tensor alone knows keeps its bits beside layers that are cut") {
  // the group's option on an optimizer that joined nobody, or only itself
  for (const bool joins : {false, true}) {
    const auto run = [&](bool cut) {
      return on_ranks(2, [&](const onebit::threads& all) {
        part data(0, 1);
        auto o = compressed(data.groups(cut), all);
        if (joins) o.join_shards(all.split(all.rank(), 0));
        for (std::uint64_t step = 0; step < n_steps; ++step) {
          data.compute_gradients(all.rank(), step);
          CHECK_FALSE(o.step(0.02F).skipped);
        }
        return data.digest();
      });
    };
    CHECK(run(true) == run(false));
  }
  // a replicated tensor, whose gradients are the same everywhere: as alone
  const auto beside = [&](bool cut) {
    std::vector<std::vector<float>> found;
    for (const auto& r : train_in_parts(2, 2, dense, cut)) found.push_back(r.params[replicated]);
    return found;
  };
  const auto with = beside(true), without = beside(false);
  CHECK(with == without);
  CHECK(with[0] == with[3]);
}

TEST_CASE("cut layers: pipeline stages beside tensor parallelism") {
  // ranks 0, 1 hold halves of stage 0, ranks 2, 3 of stage 1, with other layers; all are joined
  const auto stages = on_ranks(4, [](const onebit::threads& all) {
    const int stage = all.rank() / 2;
    part data(all.rank() % 2, 2);
    auto groups = data.groups(true);
    if (stage == 1) groups[0].tensors.erase(groups[0].tensors.begin());
    auto o = onebit::lamb(groups, onebit::alone{});
    o.join_shards(all, stage);
    for (std::uint64_t step = 0; step < n_steps; ++step) {
      data.compute_gradients(0, step);
      CHECK_FALSE(o.step(0.02F).skipped);
    }
    return result{data.params, {}};
  });
  const result whole = train_in_parts(1, 1, dense, false)[0];
  CHECK(distance({stages[0], stages[1]}, 2, 1, whole) < rounding);
  const auto second = [](const result& r) { return result{{r.params[1], r.params[1], {}}, {}}; };
  for (std::size_t r = 2; r < 4; ++r) {
    CHECK(stages[r].params[1] == stages[r - 2].params[1]);  // as in stage 0, where it is second
    CHECK(second(stages[r]).params == second(stages[r - 2]).params);
  }
}

TEST_CASE("cut layers: a step that is called off leaves no trace") {
  const auto run = [](bool strikes) {
    return on_ranks(4, [&](const onebit::threads& all) {
      place<> at(all, 2);
      part data(at.shard, 2);
      auto o = compressed(data.groups(true), at.replicas);
      o.join_shards(at.shards);
      for (std::uint64_t step = 0; step < n_steps; ++step) {
        if (strikes) {
          data.compute_gradients(at.replica, step);
          if (static_cast<int>(step % 4) == all.rank()) data.grads[1][5] = not_a_number;
          const std::string before = saved(o);
          const std::uint64_t bits = data.digest();
          CHECK(o.step(0.02F).skipped);
          CHECK(data.digest() == bits);
          if (step != 5) CHECK(saved(o) == before);  // the freeze comes before the step
        }
        data.compute_gradients(at.replica, step);
        CHECK_FALSE(o.step(0.02F).skipped);
      }
      return std::pair(data.digest(), saved(o));
    });
  };
  CHECK(run(true) == run(false));
}

TEST_CASE("cut layers: a transport that fails between the shards leaves the bits of before") {
  // each collective over the shards of a few steps, some of the warm-up, some compressed
  const auto run = [](std::uint64_t fail_at) {
    std::uint64_t n_calls = 0, n_failed = 0;
    const auto ends = on_ranks(4, [&](const onebit::threads& all) {
      place<> at(all, 2);
      part data(at.shard, 2);
      auto o = compressed(data.groups(true), at.replicas);
      const auto told = std::make_shared<script>();
      o.join_shards(scripted(at.shards, told));
      told->calls = 0;
      told->fail_at = fail_at;
      told->fail_after_delivery = true;
      std::uint64_t failed = 0;
      while (o.steps() < 8) {
        data.compute_gradients(at.replica, o.steps());
        const std::string before = saved(o);
        const std::uint64_t bits = data.digest();
        try {
          const bool skipped = o.step(0.02F).skipped;
          CHECK_FALSE(skipped);
        } catch (const onebit::transport_error&) {
          ++failed;
          CHECK(data.digest() == bits);
          // (the freeze, which comes before a step, may have come)
          if (o.steps() != 5) CHECK(saved(o) == before);
        }
      }
      if (all.rank() == 0) n_calls = told->calls;
      if (all.rank() == 0) n_failed = failed;
      return std::pair(data.digest(), saved(o));
    });
    return std::tuple(ends, n_calls, n_failed);
  };
  const auto [undisturbed, n_calls, none] = run(script::never);
  // words and norms, and before these norms of gradients; twice how large v is, for the schedule
  CHECK(n_calls == 5 * 2 + 3 * 3 + 2);
  CHECK(none == 0);
  for (std::uint64_t at = 0; at < n_calls; ++at) {
    CAPTURE(at);
    const auto [ends, calls, failed] = run(at);
    CHECK(failed == 1);
    const bool looked_at_v = at == 6 || at == 11;  // after a step that was done
    for (std::size_t r = 0; r < 4; ++r) {
      CHECK(ends[r].first == undisturbed[r].first);
      if (!looked_at_v) CHECK(ends[r].second == undisturbed[r].second);
    }
  }
}

TEST_CASE("cut layers: one rank that alone fails has taken the step back, and all are told") {
  (void)on_ranks(2, [](const onebit::threads& all) {
    part data(all.rank(), 2);
    auto o = onebit::lamb(data.groups(true), onebit::alone{});
    const auto told = std::make_shared<script>();
    o.join_shards(scripted(all, told));
    told->calls = 0;
    told->fail_at = all.rank() == 1 ? 3 : script::never;  // the norms of the second step
    told->fail_after_delivery = true;
    const auto step = [&] {
      data.compute_gradients(0, o.steps());
      (void)o.step(0.02F);
    };
    step();
    const std::uint64_t before = data.digest();
    if (all.rank() == 1) {
      CHECK_THROWS_AS(step(), onebit::transport_error);
      CHECK(data.digest() == before);
    } else {
      step();
    }
    CHECK(o.steps() == (all.rank() == 1 ? 1 : 2));
    CHECK(thrown<onebit::rank_mismatch>(step) == contains{"is at step"});
    return 0;
  });
}

TEST_CASE("cut layers: shards that have other tensors are told when they join") {
  (void)on_ranks(3, [](const onebit::threads& all) {
    part data(0, 1);
    auto groups = data.groups(true);
    if (all.rank() == 2) groups[0].tensors.pop_back();
    auto o = onebit::lamb(groups, onebit::alone{});
    CHECK(thrown<onebit::rank_mismatch>([&] { o.join_shards(all); }) ==
          contains{"rank 0 has 2 tensor_parallel tensors, rank 2 has 1, of stage 0"});
    // what did not join steps as alone
    data.compute_gradients(0, 0);
    CHECK_FALSE(o.step(0.02F).skipped);
    o.join_shards(all, all.rank() / 2);
    data.compute_gradients(0, 1);
    CHECK_FALSE(o.step(0.02F).skipped);
    // a rule without layers has no parts of any
    auto other = onebit::adam(data.groups(all.rank() == 1), onebit::alone{});
    other.join_shards(all);
    CHECK_FALSE(other.step(0.02F).skipped);
    return 0;
  });
}

TEST_CASE("cut layers: what says so stays so, until all join anew") {
  (void)on_ranks(2, [](const onebit::threads& all) {
    part data(all.rank(), 2);
    auto o = onebit::one_bit_lamb(data.groups(true), onebit::alone{}, {.freeze = {.after = 3}});
    o.join_shards(all);
    const auto step = [&] {
      data.compute_gradients(0, o.steps());
      CHECK_FALSE(o.step(0.02F).skipped);
    };
    step();
    CHECK(thrown<onebit::invalid_input>([&] { o.set_group(0, {.weight_decay = 0.02F}); }) ==
          contains{"another tensor_parallel"});
    o.set_group(0, {.weight_decay = 0.02F, .tensor_parallel = true});
    o.set_group(0, 0.5F, 0.0F);
    step();
    auto groups = data.groups(true);
    groups[0].tensors.pop_back();
    o.change_tensors(groups, {0, 2});
    CHECK(thrown<onebit::invalid_input>([&] { (void)o.step(0.02F); }) ==
          contains{"1 tensor_parallel tensors, and 2 when it joined"});
    o.join_shards(all);
    step();
    const onebit::lamb_layer* own = o.rule().layers();
    std::vector<onebit::lamb_layer> both(2);
    auto t = all;
    t.all_gather(own, both.data(), sizeof *own);
    CHECK(both[0].coefficient == both[1].coefficient);
    return 0;
  });
}

TEST_CASE("cut layers: checkpoints compare it, and go on") {
  const auto run = [](bool stops) {
    return on_ranks(4, [&](const onebit::threads& all) {
      place<> at(all, 2);
      part data(at.shard, 2);
      auto o = compressed(data.groups(true), at.replicas);
      o.join_shards(at.shards);
      for (std::uint64_t step = 0; step < n_steps; ++step) {
        if (stops && step % 4 == 3) {
          const std::string state = saved(o);
          std::istringstream in(state), again(state);
          part copy(at.shard, 2);
          copy.params = data.params;
          auto other = compressed(copy.groups(false), at.replicas);
          CHECK(thrown<onebit::checkpoint_error>([&] { other.load(in); }) ==
                contains{"tensor_parallel"});
          auto fresh = compressed(data.groups(true), at.replicas);
          fresh.load(again);
          fresh.join_shards(at.shards);
          o = std::move(fresh);
        }
        data.compute_gradients(at.replica, step);
        CHECK_FALSE(o.step(0.02F).skipped);
      }
      return data.digest();
    });
  };
  CHECK(run(true) == run(false));
}

TEST_CASE("cut layers: a backend that runs behind the host has its bits") {
  constexpr int w = 2;
  const auto train = [](auto all, auto backend) {
    place<decltype(all)> at(all, w);
    part data(at.shard, 2);
    auto o = onebit::one_bit_lamb(data.groups(true), at.replicas,
                                  {.lamb = {.max_grad_norm = 50}, .freeze = {.after = 5}},
                                  onebit::gather_scatter<onebit::sign<>>{}, backend);
    o.join_shards(at.shards);
    for (std::uint64_t step = 0; step < n_steps; ++step) {
      data.compute_gradients(at.replica, step);
      (void)o.step(0.02F);
      CHECK(o.settle() == onebit::outcome::agreed);
    }
    const std::uint64_t before = data.digest();
    data.compute_gradients(at.replica, n_steps);
    if (all.rank() == 3) data.grads[0][0] = not_a_number;
    (void)o.step(0.02F);
    CHECK(o.settle() == onebit::outcome::skipped);
    CHECK(data.digest() == before);
    return before;
  };
  const auto host =
      on_ranks(4, [&](const onebit::threads& all) { return train(all, onebit::host()); });
  std::vector<emulated> backends(4);
  std::vector<emulated_memory> memories(backends.begin(), backends.end());
  std::vector<std::uint64_t> device(4);
  onebit::run_threads(
      memories,
      [&](const onebit::basic_threads<emulated_memory>& all) {
        const auto r = static_cast<std::size_t>(all.rank());
        device[r] = train(all, backends[r]);
      },
      std::chrono::seconds(60));
  CHECK(device == host);
}

namespace {

/// Counts launches of this thread, which is a rank.
struct counted_host : onebit::host {
  static inline thread_local std::uint64_t n_launches = 0;
  template <class Kernel>
  void launch(std::size_t n, const Kernel& kernel) const {
    ++n_launches;
    onebit::host::launch(n, kernel);
  }
};

}  // namespace

TEST_CASE(
    "cut layers: cost 2 launches and 24 bytes a tensor in a step, and nothing where none is") {
  struct cost {
    std::uint64_t launches, calls, bytes;
  };
  const auto of_a_step = [](bool cut, bool compresses) {
    return on_ranks(6, [&](const onebit::threads& all) {
      place<> at(all, 2);
      part data(at.shard, 3);
      auto o = onebit::one_bit_lamb(data.groups(cut), at.replicas,
                                    {.freeze = {.after = compresses ? 2U : 9U}},
                                    onebit::gather_scatter<onebit::sign<>>{}, counted_host());
      o.warn_with(nullptr);
      const auto told = std::make_shared<script>();
      o.join_shards(scripted(at.shards, told));
      cost before{};
      for (std::uint64_t step = 0; step < 4; ++step) {  // the last counts
        before = {counted_host::n_launches, told->calls, told->bytes_to_others};
        data.compute_gradients(at.replica, step);
        CHECK_FALSE(o.step(0.02F).skipped);
      }
      return cost{counted_host::n_launches - before.launches, told->calls - before.calls,
                  told->bytes_to_others - before.bytes};
    })[5];
  };
  for (const bool compresses : {false, true}) {
    const cost with = of_a_step(true, compresses), without = of_a_step(false, compresses);
    CHECK(without.calls == 1);
    CHECK(without.bytes == 2 * 20);
    CHECK(with.launches == without.launches + 2);
    CHECK(with.calls == without.calls + 1);
    CHECK(with.bytes == without.bytes + 2 * 2 * 24);
  }
}
