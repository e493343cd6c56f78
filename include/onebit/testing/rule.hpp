// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Conformance suite of rules, in trainings of 26 steps: equal bits on all instruction sets, resumed
// checkpoints, skipped steps, failing transports; and a comparison with plain SGD. A model has
//   operator()(groups, transport, backend = onebit::host())   returns the optimizer, any transport
//   freezes_before    step before which the rule freezes or its exchange starts, or never_freezes;
//                     the freeze is not part of the step, and stays if the step is skipped or fails
//   rate, times_sgd   peak learning rate; largest final distance to the target, in distances of SGD
//                     (SGD with momentum reaches 1.4, 1-bit Adam 60 with beta2 0.99; with 0.999 it
//                     needs more than 400 steps)
// Tests of a model:
//   #include <onebit/testing/rule.hpp>
//   TEST_CASE_TEMPLATE_INVOKE(onebit::testing::rule_bits, my_model);
//   TEST_CASE_TEMPLATE_INVOKE(onebit::testing::rule_resumes, my_model);
// and rule_skips, rule_interrupted, rule_elsewhere, rule_options, rule_trains. If compressed steps
// over an exact exchange equal dense steps, also rule_phases_agree, for a model that has
//   exact(schedule, groups, transport)   returns the optimizer over gather_scatter<identity>

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <onebit/backend/host.hpp>
#include <onebit/core/error.hpp>
#include <onebit/schedule/custom.hpp>
#include <onebit/step/report.hpp>
#include <onebit/testing/scripted.hpp>
#include <onebit/testing/training.hpp>
#include <onebit/transport/threads.hpp>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace onebit { inline namespace v0_3 { namespace testing {

inline constexpr std::uint64_t never_freezes = ~std::uint64_t{0};

inline constexpr std::uint64_t conformance_steps = 26;

/// State of a rank after a number of steps.
struct rank_state {
  std::uint64_t parameters = 0;
  std::string checkpoint;
  friend bool operator==(const rank_state&, const rank_state&) = default;
  friend std::ostream& operator<<(std::ostream& out, const rank_state& s) {
    return out << "parameters with digest " << s.parameters << ", a checkpoint of "
               << s.checkpoint.size() << " bytes with digest "
               << std::hash<std::string>()(s.checkpoint);
  }
};

template <class Make>
std::vector<rank_state> run_steps(int n_ranks, const Make& make,
                                  onebit::host backend = onebit::host(),
                                  const std::vector<std::size_t>& sizes = mixed_sizes) {
  return on_ranks(n_ranks, [&](onebit::threads transport) {
    training data(sizes);
    auto o = make(data.groups(), transport, backend);
    bool local = false;
    while (o.steps() < conformance_steps) {
      local = train(o, data).phase == onebit::phase::local || local;
    }
    if (!local) o.verify();  // the rule does the same on all ranks
    return rank_state{data.digest(), saved(o)};
  });
}

/// Returns the squared distance to a target after 400 steps of 4 ranks with independent noise, over
/// the initial one. begin(data, transport) returns step(share), which steps with share * peak rate.
template <class Begin>
double distance_left(const Begin& begin) {
  constexpr std::uint64_t n_steps = 400;
  return on_ranks(4, [&](onebit::threads transport) {
    training data;
    std::vector<std::vector<float>> target;
    for (std::size_t t = 0; t < data.params.size(); ++t) {
      target.emplace_back(data.params[t].size());
      for (std::size_t i = 0; i < target[t].size(); ++i) target[t][i] = noise(977 * t + 31 * i);
    }
    const auto distance = [&] {
      double sum = 0;
      for (std::size_t t = 0; t < target.size(); ++t) {
        for (std::size_t i = 0; i < target[t].size(); ++i) {
          const auto d = static_cast<double>(data.params[t][i] - target[t][i]);
          sum += d * d;
        }
      }
      return sum;
    };
    const double first = distance();
    auto step = begin(data, transport);
    for (std::uint64_t s = 0; s < n_steps; ++s) {
      for (std::size_t t = 0; t < target.size(); ++t) {
        for (std::size_t i = 0; i < target[t].size(); ++i) {
          const auto seed =
              (s * 4 + static_cast<std::uint64_t>(transport.rank())) * 100003 + t * 7919;
          data.grads[t][i] = data.params[t][i] - target[t][i] + 0.3F * noise(seed + i);
        }
      }
      const float done = static_cast<float>(s) / static_cast<float>(n_steps);
      step(done < 0.25F ? 4 * done : (1 - done) / 0.75F);
    }
    return distance() / first;
  })[0];
}

TEST_CASE_TEMPLATE_DEFINE("every instruction set and number of threads: the same bits", Make,
                          rule_bits) {
  // enough tiles for several threads, even in a chunk of one of three ranks
  const std::vector<std::size_t> sizes = {33, 0, 26000, 1, 64};
  const onebit::isa scalar = onebit::isa::scalar, best = onebit::host::best_isa();
  if (best == scalar) MESSAGE("skipped: this machine has no avx2");
  for (const int n_ranks : cases({2}, {1, 3})) {
    const auto expected = run_steps(n_ranks, Make{}, onebit::host(1, scalar), sizes);
    CHECK(run_steps(n_ranks, Make{}, onebit::host(3, scalar), sizes) == expected);
    for (const int threads : {1, 3}) {
      CHECK(run_steps(n_ranks, Make{}, onebit::host(threads, best), sizes) == expected);
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("saved at any step, loaded, gone on: as if never stopped", Make,
                          rule_resumes) {
  for (const int n_ranks : {1, 3}) {
    const auto expected = run_steps(n_ranks, Make{});
    for (std::uint64_t stop = 0; stop < conformance_steps; ++stop) {
      CAPTURE(stop);
      const auto resumed = on_ranks(n_ranks, [&](onebit::threads transport) {
        training data;
        std::string checkpoint;
        {
          auto o = Make{}(data.groups(), transport);
          while (o.steps() < stop) train(o, data);
          checkpoint = saved(o);
        }
        // construction needs equal parameters; with 0/1 Adam they differ between exchanges
        const auto own = data.params;
        const training fresh;
        for (std::size_t t = 0; t < own.size(); ++t) data.params[t] = fresh.params[t];
        auto o = Make{}(data.groups(), transport);
        for (std::size_t t = 0; t < own.size(); ++t) {
          std::copy(own[t].begin(), own[t].end(), data.params[t].begin());
        }
        std::istringstream in(checkpoint);
        o.load(in);
        while (o.steps() < conformance_steps) train(o, data);
        return rank_state{data.digest(), saved(o)};
      });
      // else later steps depend on something that archive(a) leaves out
      for (std::size_t r = 0; r < expected.size(); ++r) CHECK(resumed[r] == expected[r]);
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("a bad gradient in a step that communicates: all skip, nothing changes",
                          Make, rule_skips) {
  const int n_ranks = 3;
  const auto expected = run_steps(n_ranks, Make{});
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<std::string> problems(static_cast<std::size_t>(n_ranks));
    const auto poisoned = on_ranks(n_ranks, [&](onebit::threads transport) {
      training data;
      auto o = Make{}(data.groups(), transport);
      std::string& problem = problems[static_cast<std::size_t>(transport.rank())];
      while (o.steps() < conformance_steps) {
        const std::uint64_t step = o.steps();
        const auto plan = o.schedule().due_in(step, 0.01F);
        const bool travels = plan.average || plan.exchange;
        for (int times = 0; times < 2 && travels; ++times) {
          data.compute_gradients(o.rank(), step);
          if (o.rank() == static_cast<int>(step % 3)) data.grads[2][step * 100] = bad;
          const rank_state before{data.digest(), saved(o)};
          const auto report = o.step(0.01F);
          if (!report.skipped) problem = "step " + std::to_string(step) + " was not skipped";
          const rank_state after{data.digest(), saved(o)};
          if (after.parameters != before.parameters ||
              (after != before) != (step == Make::freezes_before && times == 0)) {
            problem = "step " + std::to_string(step) + " changed something";
          }
          std::istringstream in(after.checkpoint);
          o.load(in);
        }
        train(o, data);
      }
      return rank_state{data.digest(), saved(o)};
    });
    for (const std::string& problem : problems) CHECK(problem == "");
    CHECK(poisoned == expected);
  }
}

TEST_CASE_TEMPLATE_DEFINE("a transport that fails in any collective: nothing changes", Make,
                          rule_interrupted) {
  const int n_ranks = 2;
  const auto undisturbed = run_steps(n_ranks, Make{});
  std::vector<std::string> frozen(static_cast<std::size_t>(n_ranks));
  for (std::uint64_t at = 0; at < 4; ++at) {
    CAPTURE(at);
    std::vector<std::string> problems(static_cast<std::size_t>(n_ranks));
    const auto states = on_ranks(n_ranks, [&](onebit::threads transport) {
      training data;
      const auto told = std::make_shared<script>();
      auto o = Make{}(data.groups(), scripted(transport, told));
      std::string& problem = problems[static_cast<std::size_t>(transport.rank())];
      while (o.steps() < conformance_steps) {
        const rank_state before{data.digest(), saved(o)};
        told->fail_at = told->calls + at;
        bool failed = false;
        try {
          train(o, data);
        } catch (const onebit::transport_error&) {
          failed = true;
        }
        told->fail_at = script::never;
        rank_state expected = before;
        if (failed && o.steps() == Make::freezes_before) {  // frozen state, equal for all failures
          std::string& first = frozen[static_cast<std::size_t>(transport.rank())];
          if (first.empty()) first = saved(o);
          expected.checkpoint = first;
        }
        if (failed && !(rank_state{data.digest(), saved(o)} == expected)) {
          problem = "step " + std::to_string(o.steps()) + " changed something";
        }
        if (failed) train(o, data);
      }
      return rank_state{data.digest(), saved(o)};
    });
    for (const std::string& problem : problems) CHECK(problem == "");
    CHECK(states == undisturbed);
  }
}

TEST_CASE_TEMPLATE_DEFINE("on another number of ranks: all agree, or it is refused in words", Make,
                          rule_elsewhere) {
  struct old_rank {
    std::vector<std::vector<float>> params;
    std::string checkpoint;
  };
  using optimizer =
      decltype(Make{}(std::declval<training<>&>().groups(), std::declval<onebit::threads>()));
  const std::uint64_t stop = conformance_steps / 2;
  for (const auto& job : {std::pair(3, 2), std::pair(1, 2), std::pair(3, 1)}) {
    const int from = job.first, to = job.second;
    CAPTURE(from);
    CAPTURE(to);
    const auto old = on_ranks(from, [&](onebit::threads transport) {
      training data;
      auto o = Make{}(data.groups(), transport);
      while (o.steps() < stop) train(o, data);
      return old_rank{data.params, saved(o)};
    });
    const auto digests = on_ranks(to, [&](onebit::threads transport) {
      training data;
      auto o = Make{}(data.groups(), transport);
      const auto& place = old[static_cast<std::size_t>(transport.rank()) % old.size()];
      for (std::size_t t = 0; t < place.params.size(); ++t)
        std::copy(place.params[t].begin(), place.params[t].end(), data.params[t].begin());
      if constexpr (optimizer::resumes) {
        o.load_old_job(old.size(), [&](std::size_t r) {
          return std::make_unique<std::istringstream>(old[r].checkpoint);
        });
        CHECK(o.steps() == stop);
        auto phase = onebit::phase::dense;
        bool local = false;  // local steps: parameters differ until the next exchange
        while (o.steps() < conformance_steps || (local && phase != onebit::phase::compressed)) {
          phase = train(o, data).phase;
          local = local || phase == onebit::phase::local;
        }
        o.verify();
      } else {
        std::istringstream in(place.checkpoint);
        CHECK_THROWS_AS(o.load(in), onebit::checkpoint_error);
      }
      return data.digest();
    });
    if (optimizer::resumes) CHECK(digests.front() == digests.back());
  }
}

TEST_CASE_TEMPLATE_DEFINE("without compression a compressed step is the dense one", Make,
                          rule_phases_agree) {
  const auto run = [](auto schedule) {
    return on_ranks(3, [&](onebit::threads transport) {
      training data;
      auto o = Make::exact(schedule, data.groups(), transport);
      o.warn_with(nullptr);
      while (o.steps() < conformance_steps) train(o, data);
      return data.params;
    })[0];
  };
  const auto dense = run(onebit::always_dense{}), exchanged = run(onebit::always_compressed{});
  double worst = 0, size = 0;
  for (std::size_t t = 0; t < dense.size(); ++t) {
    for (std::size_t i = 0; i < dense[t].size(); ++i) {
      worst = std::max(worst, std::fabs(static_cast<double>(dense[t][i] - exchanged[t][i])));
      size = std::max(size, std::fabs(static_cast<double>(dense[t][i])));
    }
  }
  // the two phases round m and x a few times per step, in different orders
  const double rounding = static_cast<double>(conformance_steps) * 16 / (1 << 24);
  CHECK_MESSAGE(worst <= rounding * std::max(size, 1.0),
                "the phases are " << worst << " apart: dense_update, message and compressed_update "
                                  << "say different rules");
}

TEST_CASE_TEMPLATE_DEFINE("groups' options act in every phase, and no step jumps", Make,
                          rule_options) {
  const auto on_each = [](const auto& check) {
    onebit::run_threads(3, [&](onebit::threads transport) {
      training data({70, 70, 70});
      std::vector<onebit::param_group<>> groups(3);
      for (std::size_t t = 0; t < 3; ++t)
        groups[t].tensors.push_back({data.params[t], data.grads[t]});
      groups[0].weight_decay = groups[1].weight_decay = 0.1F;
      groups[1].lr_factor = 0.5F;
      auto o = Make{}(groups, transport);
      o.warn_with(nullptr);  // ranks have equal gradients
      check(o, data);
    });
  };
  SUBCASE("decay, of tensors without gradients") {
    on_each([](auto& o, auto& data) {
      const auto before = data.params;
      for (auto& g : data.grads) std::fill(g.begin(), g.end(), 0.0F);
      for (std::uint64_t k = 0; k < conformance_steps; ++k) CHECK_FALSE(o.step(0.01F).skipped);
      CHECK(data.params[2] == before[2]);  // no weight decay
      double left[2] = {};
      for (std::size_t t = 0; t < 2; ++t) {
        left[t] = data.params[t][0] / before[t][0];
        for (std::size_t i = 0; i < before[t].size(); ++i) {  // one rounding per step
          CHECK(data.params[t][i] ==
                doctest::Approx(left[t] * before[t][i]).epsilon(conformance_steps * 0x1p-23));
        }
      }
      CHECK(1 - left[0] > 1.5 * (1 - left[1]));  // tensor 1 has half the rate
      CHECK(left[1] < 1 - 1e-4);
    });
  }
  SUBCASE("equal gradients: momentum is not lost where phases change") {
    on_each([](auto& o, auto& data) {
      float x = data.params[2][0];
      double last = 0;
      for (std::uint64_t k = 0; k < conformance_steps; ++k) {
        for (auto& g : data.grads) std::fill(g.begin(), g.end(), 1.0F);
        CHECK_FALSE(o.step(0.01F).skipped);
        const double moved = static_cast<double>(std::exchange(x, data.params[2][0])) -
                             static_cast<double>(data.params[2][0]);
        CAPTURE(o.steps());
        CAPTURE(last);
        CHECK(moved > 0.5 * last);
        if (last > 0) CHECK(moved < 2.5 * last);  // scales of `sign` are 1.25 times equal values
        last = moved;
      }
    });
  }
  SUBCASE("a tensor that rests stays, and so does its momentum") {
    on_each([](auto& o, auto& data) {
      bool local = false;  // then an exchange may follow that ends earlier local steps
      const auto step = [&](bool rests) {
        const float before = data.params[2][0];
        for (auto& g : data.grads) std::fill(g.begin(), g.end(), 1.0F);
        if (rests) o.rest(2);
        const auto report = o.step(0.01F);
        CHECK_FALSE(report.skipped);
        local = local || report.phase == onebit::phase::local;
        return static_cast<double>(before) - static_cast<double>(data.params[2][0]);
      };
      const auto moved = [&](int n_steps) {
        double sum = 0;
        for (int k = 0; k < n_steps; ++k) sum += step(false);
        return sum;
      };
      for (const int n_before : {4, 20}) {
        (void)moved(n_before);
        const double before = moved(4);
        for (int k = 0; k < 40; ++k) {
          const double rested = step(true);
          if (!local) CHECK(rested == 0);
        }
        const double after = moved(4);
        if (!local) CHECK(after > 0.5 * before);
      }
    });
  }
}

TEST_CASE_TEMPLATE_DEFINE("the rule trains, beside SGD with exact means", Make, rule_trains) {
  const double sgd = distance_left([](training<>& data, onebit::threads transport) {
    return [&data, transport](float share) mutable {
      const auto ranks = static_cast<float>(transport.size());
      for (std::size_t t = 0; t < data.params.size(); ++t) {
        auto& g = data.grads[t];
        transport.all_reduce_sum(g.data(), g.size());
        for (std::size_t i = 0; i < g.size(); ++i) {
          const float group_rate = t == 0 ? 1.0F : 0.5F;
          data.params[t][i] -= 0.5F * share * group_rate * g[i] / ranks;
        }
      }
    };
  });
  const double ours = distance_left([](training<>& data, onebit::threads transport) {
    auto o = std::make_shared<decltype(Make{}(data.groups(), transport))>(
        Make{}(data.groups(), transport));
    return [o](float share) { (void)o->step(Make::rate * share); };
  });
  CAPTURE(sgd);
  CAPTURE(ours);
  CHECK(ours < Make::times_sgd * sgd);
}

}}}  // namespace onebit::testing
