// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Law 10: a step that does not come to its end, since memory ran out, since it was given up, since
// another optimizer was moved over it, has changed nothing: parameters, state and step number are
// those of before, and what follows has the bits of an undisturbed training. Only the freeze, which
// comes before the first compressed step, stays done once it is done.

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <new>
#include <onebit/testing/scripted.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../support/all_compressed.hpp"
#include "../support/strict_host.hpp"
#include "../support/training.hpp"

using namespace onebit_test;

namespace {

constexpr std::uint64_t taken_back_steps = 10;
const std::vector<std::size_t> tensor_sizes = {33, 0, 1000, 1, 64, 300};

struct state {
  std::uint64_t parameters = 0, steps = 0;
  std::string checkpoint;
  friend bool operator==(const state&, const state&) = default;
};
state state_of(any_optimizer& o, const training<>& data) {
  return {data.digest(), o.steps(), saved(o)};
}

/// One rank, what it owns, and its optimizer.
struct rank {
  explicit rank(onebit::threads transport) : t(std::move(transport)) {}

  template <class Make>
  void build(const Make& make) {
    optimizer = make(data, strict_transport(t, book), strict_host(book));
  }
  [[nodiscard]] state now() { return state_of(optimizer, data); }
  /// One step, in which some tensors may be announced.
  onebit::report step(std::size_t announce = 0) {
    fill();
    if (announce > 0) {
      open(announce);
      CHECK_THROWS_AS(optimizer.step(2 * lr()), onebit::invalid_input);  // not what was begun
    }
    return optimizer.step(lr());
  }
  void open(std::size_t announce) {
    optimizer.begin(lr());
    for (std::size_t i = 0; i < announce; ++i) optimizer.ready(tensor_sizes.size() - 1 - i);
  }
  void fill() { data.compute_gradients(t.rank(), optimizer.steps()); }
  void load(const std::string& checkpoint) {
    std::istringstream in(checkpoint);
    optimizer.load(in);
  }
  [[nodiscard]] float lr() const { return lr_of(optimizer.steps()); }
  [[nodiscard]] static float lr_of(std::uint64_t step) {
    return 0.01F / static_cast<float>(1 + step % 3);
  }

  onebit::threads t;
  training<> data{tensor_sizes};
  std::shared_ptr<memory_book> book = std::make_shared<memory_book>();
  any_optimizer optimizer;
};

/// f(rank) on n ranks; one that waits for others that have given up is told so soon.
template <class F>
auto on_strict_ranks(int n, const F& f) {
  return on_ranks(
      n,
      [&](onebit::threads t) {
        rank r(t);
        auto result = f(r);
        CHECK(r.book->problem == "");
        r.optimizer = {};
        CHECK(r.book->problem == "");
        CHECK(r.book->n_started == r.book->n_finished);
        return result;
      },
      std::chrono::seconds(20));
}

/// The state after each step of an undisturbed training.
template <class Make>
std::vector<std::vector<state>> undisturbed(int n, const Make& make) {
  return on_strict_ranks(n, [&](rank& r) {
    std::vector<state> states;
    r.build(make);
    for (std::uint64_t i = 0; i < taken_back_steps; ++i) {
      CHECK_FALSE(r.step().skipped);
      states.push_back(r.now());
    }
    return states;
  });
}

auto maker(algorithm a, policy p) {
  return [=](training<>& data, auto t, auto backend) {
    return make_any(a, p, data.groups(), t, backend);
  };
}
std::vector<onebit::param_group<float, const float>> only_read(training<>& data) {
  std::vector<onebit::param_group<float, const float>> groups;
  for (const auto& g : data.groups()) {
    groups.push_back({{}, g.lr_factor, g.weight_decay});
    for (const auto& x : g.tensors) groups.back().tensors.push_back({x.params, x.grads});
  }
  return groups;
}

/// Each allocation of each step fails on all ranks, before the step works. All that the freeze
/// needs is allocated before it; 1-bit LAMB allocates some work space after it, in the step itself.
/// What is saved between the two loads, and goes on.
template <class Make>
void check_scarce_memory(int n, algorithm a, const Make& make, std::size_t announce = 0) {
  const auto expected = undisturbed(n, make);
  const auto n_failures = on_strict_ranks(n, [&](rank& r) {
    int n_failed = 0, n_failed_at_freeze = 0;
    r.build(make);
    for (std::uint64_t i = 0; i < taken_back_steps; ++i) {
      CAPTURE(i);
      bool frozen = false;
      for (std::uint64_t k = 0;; ++k) {
        CAPTURE(k);
        const state before = r.now();
        r.book->fail_at = r.book->n_allocations + k;
        bool failed = false, skipped = false;
        try {
          skipped = r.step(announce).skipped;
        } catch (const std::bad_alloc&) {
          failed = true;
        }
        CHECK_FALSE(skipped);
        r.book->fail_at = memory_book::never;
        if (!failed) break;
        ++n_failed;
        n_failed_at_freeze += i == freezes_before ? 1 : 0;
        const state after = r.now();
        CHECK(after.parameters == before.parameters);
        CHECK(after.steps == i);
        if (after.checkpoint == before.checkpoint) continue;
        CHECK_FALSE(std::exchange(frozen, true));  // once
        CHECK(a == algorithm::one_bit_lamb);
        CHECK(i == freezes_before);
        r.load(after.checkpoint);
        CHECK(r.now() == after);
      }
      const bool same = r.now() == expected[static_cast<std::size_t>(r.t.rank())][i];
      CHECK(same);
    }
    return std::pair(n_failed, n_failed_at_freeze);
  });
  CHECK(n_failures[0].first > 0);  // or nothing was tried
  CHECK(n_failures[0].second > 0);
}

}  // namespace

TEST_CASE("law 7: memory that runs out, in any allocation of any step") {
  for (const algorithm a : all_compressed) {
    for (const policy p : all_policies) {
      CAPTURE(static_cast<int>(a));
      CAPTURE(static_cast<int>(p));
      check_scarce_memory(ranks_of(p), a, maker(a, p));
      if (p == policy::buckets) check_scarce_memory(ranks_of(p), a, maker(a, p), 4);
    }
  }
  SUBCASE("gradients that are only read") {
    for (const algorithm a : {algorithm::one_bit_adam, algorithm::one_bit_lamb}) {
      check_scarce_memory(2, a, [a](training<>& data, auto t, auto backend) {
        return make_any(a, only_read(data), t, onebit::gather_scatter{onebit::sign<>{}, 500},
                        backend);
      });
    }
  }
}

TEST_CASE("law 7: an optimizer under way is moved over: its collectives end before their memory") {
  for (const algorithm a : all_compressed) {
    const auto expected = undisturbed(2, maker(a, policy::buckets));
    std::atomic<unsigned> n_started{0};
    for (std::uint64_t at = 0; at < taken_back_steps; ++at) {
      CAPTURE(static_cast<int>(a));
      CAPTURE(at);
      const auto moved_over = [&](rank& r, const auto& make) {  // an assignment of their type
        training<> other_data(tensor_sizes);
        const auto build = [&](training<>& data) {
          return make(data.groups(), strict_transport(r.t, r.book), in_buckets,
                      strict_host(r.book));
        };
        auto own = build(r.data), other = build(other_data);
        for (std::uint64_t i = 0; i < at; ++i) {
          r.data.compute_gradients(r.t.rank(), i);
          (void)own.step(rank::lr_of(i));
          other_data.compute_gradients(r.t.rank(), i);
          (void)other.step(0.02F);
        }
        const std::uint64_t parameters = other_data.digest();
        other_data.compute_gradients(r.t.rank(), at);
        other.begin(0.02F);
        for (std::size_t k = tensor_sizes.size(); k-- > 2;) other.ready(k);  // two buckets of three
        n_started += r.book->in_use.empty() ? 0U : 1U;
        other = std::move(own);
        CHECK(r.book->in_use.empty());
        CHECK(other_data.digest() == parameters);
        r.optimizer = std::move(other);
      };
      const auto states = on_strict_ranks(2, [&](rank& r) {
        with_maker(a, 16, [&](const auto& make) { moved_over(r, make); });
        while (r.optimizer.steps() < taken_back_steps) (void)r.step(4);
        return r.now();
      });
      for (std::size_t r = 0; r < 2; ++r) {
        const bool same = states[r] == expected[r].back();
        CHECK(same);
      }
    }
    CHECK(n_started.load() ==
          2 * (a == algorithm::zero_one_adam ? 8 : taken_back_steps));  // 2 local steps
  }
}

TEST_CASE("law 7: a step that has begun is given up with its optimizer") {
  for (const algorithm a : all_compressed) {
    for (const policy p : all_policies) {
      CAPTURE(static_cast<int>(a));
      CAPTURE(static_cast<int>(p));
      const auto make = maker(a, p);
      const auto expected = undisturbed(ranks_of(p), make);
      const auto states = on_strict_ranks(ranks_of(p), [&](rank& r) {
        r.build(make);
        for (std::uint64_t i = 0; i < taken_back_steps; ++i) {
          const state before = r.now();
          const auto parameters = r.data.params;
          try {  // as where a trainer's own error unwinds its optimizer
            any_optimizer gone = std::move(r.optimizer);
            r.data.compute_gradients(r.t.rank(), i);
            gone.begin(0.01F);
            for (std::size_t k = 0; k < i % tensor_sizes.size(); ++k)
              gone.ready(tensor_sizes.size() - 1 - k);
            throw std::runtime_error("of the trainer's own");
          } catch (const std::runtime_error&) {
          }
          CHECK(r.book->in_use.empty());
          CHECK(r.data.params == parameters);
          // an optimizer is built on equal parameters, which 0/1 Adam's are only now and then
          const training<> fresh(tensor_sizes);
          const auto set = [&](const auto& values) {
            for (std::size_t k = 0; k < tensor_sizes.size(); ++k) {
              std::copy(values[k].begin(), values[k].end(), r.data.params[k].begin());
            }
          };
          set(fresh.params);
          r.build(make);
          set(parameters);
          r.load(before.checkpoint);
          (void)r.step(i % 3);
        }
        return r.now();
      });
      for (std::size_t r = 0; r < states.size(); ++r) {
        const bool same = states[r] == expected[r].back();
        CHECK(same);
      }
    }
  }
}

TEST_CASE("law 7: what was odd in a step that failed is not said of the next one") {
  (void)onebit_test::on_ranks(2, [](onebit::threads t) {
    onebit_test::training<> data;
    const auto told = std::make_shared<onebit_test::script>();
    auto o = onebit::adam(data.groups(), onebit_test::scripted(t, told));
    (void)onebit::testing::train(o, data);
    told->fail_at = told->calls + 1;  // after the ranks have seen that they were told other rates
    const auto apart = [&] { (void)o.step(t.rank() == 0 ? 0.1F : 0.2F); };
    CHECK(onebit_test::thrown<onebit::transport_error>(apart) ==
          onebit_test::contains("the network is down"));
    CHECK_FALSE(onebit::testing::train(o, data).skipped);
    return 0;
  });
}
