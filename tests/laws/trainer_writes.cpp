// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// What a trainer writes into parameters between steps counts, in every optimizer; 0/1 Adam refuses
// what its next exchange would lose. Parameters that nothing moves keep their bits.

#include <doctest/doctest.h>

#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <onebit/any_optimizer.hpp>
#include <onebit/extras/checkpoint_files.hpp>
#include <onebit/extras/papers.hpp>
#include <sstream>
#include <type_traits>

#include "../support/scratch.hpp"
#include "../support/training.hpp"
#include "compositions.hpp"

using namespace onebit_test;
using namespace onebit_test::compositions;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity();

onebit::zero_one_adam_options local_steps() {
  onebit::zero_one_adam_options o;
  o.schedule.doubling_steps = 2;
  o.schedule.max_interval = 4;
  return o;
}
constexpr auto interleaved = [](auto& data, auto t) {
  return onebit::zero_one_adam(data.groups(), t, local_steps());
};

/// Trains until the last step was (not) local, at least to step 12, where there are local steps.
template <class O>
void train_until(O& o, training<>& data, bool local) {
  while (true) {
    const bool is_local = train(o, data).phase == onebit::phase::local;
    if (o.steps() >= 12 && is_local == local) return;
  }
}

/// Trains until an exchange throws; returns its text. The parameters must be as before that step.
template <class Error, class O>
std::string refused(O& o, training<>& data) {
  for (int i = 0; i < 8; ++i) {
    const auto before = data.params;
    std::string text;
    try {
      (void)train(o, data);
    } catch (const Error& e) {
      text = e.what();
    }
    if (text.empty()) continue;
    CHECK(data.params == before);
    return text;
  }
  return "no exchange was refused";
}

template <class F>
void for_each_optimizer(const F& f) {
  f([](auto& data, auto t) { return onebit::adam(data.groups(), t); });
  f([](auto& data, auto t) { return onebit::lamb(data.groups(), t); });
  f([](auto& data, auto t) { return onebit::one_bit_adam(data.groups(), t, {}); });
  f(scattered);
  f(by_node);
  f([](auto& data, auto t) { return onebit::one_bit_lamb(data.groups(), t, {}); });
  f([](auto& data, auto t) {
    const auto [options, collective] = onebit::papers::one_bit_lamb(4);
    return onebit::one_bit_lamb(data.groups(), t, options, collective);
  });
  f([](auto& data, auto t) {
    const auto [options, collective] = onebit::papers::zero_one_adam(4);
    return onebit::zero_one_adam(data.groups(), t, options, collective);
  });
  f(interleaved);
  f(skipping);
}

}  // namespace

TEST_CASE(
    "a value that the trainer writes after a step that is not local counts, in every optimizer") {
  for_each_optimizer([](const auto& make) {
    (void)on_ranks(2, [&](onebit::threads t) {
      training<> data;
      auto o = make(data, t);
      o.warn_with(nullptr);  // the papers' forms need longer warm-ups
      train_until(o, data, false);
      // one element that has gradients, and one that never has
      data.params[2][0] = 5;
      data.params[2][5] = -7;
      const auto from = o.steps();
      train_until(o, data, false);
      while (o.steps() < from + 8) train_until(o, data, false);
      // at most 8 rates of 0.01, halved, by directions of at most 3, and decay
      CHECK(std::fabs(data.params[2][0] - 5) < 0.3F);
      CHECK(std::fabs(data.params[2][5] + 7) < 0.3F);
      CHECK(data.params[2][0] != 5);
      o.verify();
      return data.digest();
    });
  });
}

TEST_CASE("0/1 Adam: a write after a local step is refused at the next exchange, with its tensor") {
  const auto nodes = [](auto& data, auto t) {
    return onebit::zero_one_adam(data.groups(), t, local_steps(),
                                 onebit::hierarchical{onebit::sign<>{}, 2});
  };
  const auto check = [](const auto& make, int n_ranks, int writer, float by) {
    const auto texts = on_ranks(n_ranks, [&](onebit::threads t) {
      training<> data;
      auto o = make(data, t);
      o.warn_with(nullptr);
      train_until(o, data, true);
      if (writer < 0 || t.rank() == writer) {
        data.params[4][63] = by == 0 ? std::nextafter(data.params[4][63], inf) : by;
      }
      auto text = refused<onebit::error>(o, data);
      CHECK(refused<onebit::error>(o, data) == text);  // until a checkpoint is loaded
      return text;
    });
    for (int r = 0; r < n_ranks; ++r) {
      const std::string& text = texts[static_cast<std::size_t>(r)];
      CAPTURE(text);
      if (writer < 0 || r == writer) {
        CHECK(text ==
              contains{"the trainer wrote to the parameters of tensor 4 after a local step"});
        CHECK(text == contains{"report.phase is not local"});
      } else {
        CHECK(text ==
              contains{"tensor written by the trainer after a local step: 4 on rank 1, none"});
      }
    }
  };
  for (const float by : {3.0F, 0.0F}) {
    check(interleaved, 2, 1, by);
    check(interleaved, 3, -1, by);
    check(skipping, 3, 1, by);
    check(nodes, 4, 1, by);
  }
}

TEST_CASE("0/1 Adam: save refuses a write after a local step; a load makes it count as given") {
  (void)on_ranks(2, [](onebit::threads t) {
    training<> data;
    auto o = interleaved(data, t);
    train_until(o, data, true);
    const auto good = data.params;
    const std::string file = saved(o);
    data.params[0][1] += 1;
    std::ostringstream out;
    CHECK(thrown<onebit::invalid_input>([&] { o.save(out); }) ==
          contains{"parameters of tensor 0"});
    data.params = good;
    std::istringstream in(file);
    o.load(in);
    train_until(o, data, false);
    o.verify();
    // the same with what is written after the load, before the first step
    train_until(o, data, true);
    const std::string second = saved(o);
    std::istringstream again(second);
    o.load(again);
    data.params[5][699] = 1;
    CHECK(refused<onebit::invalid_input>(o, data) == contains{"parameters of tensor 5"});
    return data.digest();
  });
}

TEST_CASE(
    "0/1 Adam: a rank that leaves out its first local step keeps what was written before it") {
  const auto run = [](bool bad) {
    return on_ranks(2, [&](onebit::threads t) {
      training<> data;
      auto o = interleaved(data, t);
      while (o.steps() < 30) (void)train(o, data);
      train_until(o, data, true);
      train_until(o, data, false);
      data.params[2][0] = 5;
      data.compute_gradients(t.rank(), o.steps());
      if (bad && t.rank() == 1) data.grads[0][0] = inf;
      const auto done = o.step(0.01F);
      REQUIRE(done.phase == onebit::phase::local);
      REQUIRE_FALSE(done.refreshed);
      CHECK(done.skipped == (bad && t.rank() == 1));
      train_until(o, data, false);
      CHECK(std::fabs(data.params[2][0] - 5) < 0.3F);
      o.verify();
      return data.digest();
    });
  };
  (void)run(false);
  (void)run(true);
}

TEST_CASE_TEMPLATE("0/1 Adam: parameters of 2 bytes: writes count, and small ones are refused", P,
                   onebit::bf16, onebit::fp16) {
  (void)on_ranks(2, [](onebit::threads t) {
    std::vector<P> x(100, onebit::from_float<P>(1.0F)), g(100);
    std::vector<onebit::param_group<P, P>> groups(1);
    groups[0].tensors.push_back({x, g});
    auto o = onebit::zero_one_adam(groups, t, local_steps());
    const auto step = [&] {
      for (std::size_t i = 0; i < g.size(); ++i) {
        g[i] = onebit::from_float<P>(
            noise(o.steps() * 1000 + i * 2 + static_cast<std::uint64_t>(t.rank())));
      }
      return o.step(0.001F).phase;
    };
    while (o.steps() < 12 || step() != onebit::phase::compressed) {
      if (o.steps() < 12) (void)step();
    }
    x[7] = onebit::from_float<P>(-4.0F);
    while (step() != onebit::phase::compressed) {
    }
    CHECK(std::fabs(onebit::to_float(x[7]) + 4) < 0.1F);
    while (step() != onebit::phase::local) {
    }
    x[99] = onebit::from_float<P>(onebit::to_float(x[99]) * 1.02F);
    const auto run = [&] {
      for (int i = 0; i < 8; ++i) (void)step();
    };
    CHECK(thrown<onebit::invalid_input>(run) == contains{"parameters of tensor 0"});
    return 0;
  });
}

TEST_CASE("infinite parameters, as of masks, and -0 keep their bits where nothing moves them") {
  for_each_optimizer([](const auto& make) {
    (void)on_ranks(2, [&](onebit::threads t) {
      training<> data;
      // element 5 never has a gradient, in groups without decay; tensor 0 has decay and no rate
      const std::vector<float> kept = {-inf, inf, -0.0F};
      for (std::size_t i = 0; i < 3; ++i) data.params[2][5 + 17 * i] = kept[i];
      for (std::size_t i = 0; i < 3; ++i) data.params[0][i] = kept[i];
      const auto resting = data.params[5] = {std::vector<float>(700, inf)};
      auto o = make(data, t);
      o.warn_with(nullptr);
      o.set_group(0, {.lr_factor = 0, .weight_decay = 0.01F});
      for (int i = 0; i < 24; ++i) {
        data.compute_gradients(t.rank(), o.steps());
        for (std::size_t k = 0; k < 3; ++k) data.grads[0][k] = 0.5F;
        o.rest(5);
        CHECK_FALSE(o.step(i % 7 == 6 ? 0.0F : 0.01F).skipped);
      }
      for (std::size_t i = 0; i < 3; ++i) {
        CHECK(std::memcmp(&data.params[2][5 + 17 * i], &kept[i], 4) == 0);
        CHECK(std::memcmp(&data.params[0][i], &kept[i], 4) == 0);
      }
      CHECK(data.params[5] == resting);
      for (const float x : data.params[4]) CHECK(std::isfinite(x));
      for (std::size_t i = 60; i < 5000; ++i) REQUIRE(std::isfinite(data.params[2][i]));
      return 0;
    });
  });
}

TEST_CASE(
    "start_from with other moments or steps, or on one rank alone: the next step names the rank") {
  const auto check = [](const auto& make, int what) {
    const auto texts = on_ranks(3, [&](onebit::threads t) {
      training<> data;
      std::vector<std::vector<float>> m, v;
      std::vector<onebit::given_moments> moments;
      for (const auto& p : data.params) {
        m.emplace_back(p.size(), 0.01F);
        v.emplace_back(p.size(), 0.1F);
      }
      const bool odd = t.rank() == 1;
      if (odd && what == 0) m[2][4999] = 0.02F;
      if (odd && what == 1) v[0][0] = 0.2F;
      for (std::size_t i = 0; i < m.size(); ++i) moments.push_back({m[i], v[i]});
      auto o = make(data, t);
      if (!odd || what < 3) o.start_from(moments, odd && what == 2 ? 40 : 20);
      const auto before = data.params;
      const auto text = thrown<onebit::rank_mismatch>([&] { (void)train(o, data); });
      CHECK(data.params == before);
      return text;
    });
    for (const auto& text : texts) {
      CHECK(text ==
            contains{"start_from was given other moments or another number of steps, on rank 1"});
    }
  };
  for (int what = 0; what < 4; ++what) {
    check(plain, what);
    check([](auto& data, auto t) { return onebit::one_bit_adam(data.groups(), t, {}); }, what);
    check(interleaved, what);
  }
}

TEST_CASE("a step or ready() from inside a veto is refused, and the step goes on") {
  (void)on_ranks(2, [](onebit::threads t) {
    training<> data;
    auto o = onebit::one_bit_adam(data.groups(), t, {});
    std::string step_text, ready_text;
    o.veto_with([&](float) {
      step_text = thrown<onebit::invalid_input>([&] { (void)o.step(0.01F); });
      ready_text = thrown<onebit::invalid_input>([&] { o.ready(0); });
      return false;
    });
    for (int i = 0; i < 12; ++i) CHECK_FALSE(train(o, data).skipped);
    CHECK(step_text == contains{"step() from inside step 11"});
    CHECK(ready_text == contains{"ready() from inside step 11"});
    CHECK(o.steps() == 12);
    return 0;
  });
}

TEST_CASE("0/1 Adam: two ranks write different tensors after a local step: all throw, and go on") {
  const auto run = [](std::size_t of_0, std::size_t of_1, bool latest) {
    CAPTURE(of_0);
    CAPTURE(of_1);
    CAPTURE(latest);
    const scratch root;
    const auto texts = on_ranks(
        3,
        [&](onebit::threads t) {
          training<> data;
          auto o = interleaved(data, t);
          const auto write = [&](std::ostream& out) { data.write(out); };
          const auto read = [&](std::istream& in) { data.read(in); };
          train_until(o, data, true);
          const auto good = data.params;
          const std::string file = saved(o);
          onebit::save_all(o, root.path, write);
          if (t.rank() == 0) data.params[of_0][0] = 7;
          if (t.rank() == 1) data.params[of_1][0] = 7;
          auto text = refused<onebit::error>(o, data);
          CHECK(refused<onebit::error>(o, data) == text);  // until a checkpoint is loaded
          if (latest) {
            CHECK(onebit::load_latest(o, root.path, read) == 12);
          } else {
            data.params = good;
            std::istringstream in(file);
            o.load(in);
          }
          train_until(o, data, false);
          o.verify();
          return text;
        },
        std::chrono::seconds(10));
    const auto written = [](std::size_t tensor) {
      return contains{"the trainer wrote to the parameters of tensor " + std::to_string(tensor)};
    };
    CHECK(texts[0] == written(of_0));
    CHECK(texts[1] == written(of_1));
    CHECK(texts[2] ==
          contains{"tensor written by the trainer after a local step: " + std::to_string(of_1) +
                   " on rank 1, " + std::to_string(of_0) + " on rank 0"});
  };
  for (const bool latest : {false, true}) {
    run(0, 2, latest);
    run(2, 0, latest);
    run(3, 5, latest);
  }
}
