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
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../support/erased.hpp"
#include "../support/scripted.hpp"
#include "../support/strict_host.hpp"
#include "../support/training.hpp"

using namespace onebit_test;

namespace {

constexpr std::uint64_t n_steps = 10;
const std::vector<std::size_t> tensor_sizes = {33, 0, 1000, 1, 64, 300};

struct state {
  std::uint64_t parameters = 0, steps = 0;
  std::string checkpoint;
  friend bool operator==(const state&, const state&) = default;
};
state state_of(any_optimizer& o, const training<>& data) {
  return {data.digest(), o.steps(), o.saved()};
}

/// One rank, what it owns, and its optimizer.
struct rank {
  explicit rank(onebit::threads transport) : t(std::move(transport)) {}

  template <class Make>
  void build(const Make& make) {
    optimizer = make(data, strict_transport(t, book), strict_host(book));
  }
  [[nodiscard]] state now() { return state_of(*optimizer, data); }
  /// One step, in which some tensors may be announced.
  onebit::report step(std::size_t announce = 0) {
    fill();
    if (announce > 0) {
      open(announce);
      CHECK_THROWS_AS(optimizer->step(2 * lr()), onebit::invalid_input);  // not what was begun
    }
    return optimizer->step(lr());
  }
  void open(std::size_t announce) {
    optimizer->begin(lr());
    for (std::size_t i = 0; i < announce; ++i) optimizer->ready(tensor_sizes.size() - 1 - i);
  }
  void fill() { data.compute_gradients(t.rank(), optimizer->steps()); }
  [[nodiscard]] float lr() const { return 0.01F / static_cast<float>(1 + optimizer->steps() % 3); }

  onebit::threads t;
  training<> data{tensor_sizes};
  std::shared_ptr<memory_book> book = std::make_shared<memory_book>();
  std::unique_ptr<any_optimizer> optimizer;
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
        r.optimizer.reset();
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
    for (std::uint64_t i = 0; i < n_steps; ++i) {
      CHECK_FALSE(r.step().skipped);
      states.push_back(r.now());
    }
    return states;
  });
}

auto maker(algorithm a, policy p) {
  return [=](training<>& data, auto t, auto backend) {
    return make_erased(a, p, data.groups(), t, backend);
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
/// needs is allocated before it; 1-bit LAMB allocates some work space after it, in the step itself,
/// and 1-bit Adam what its v is packed into. What is saved between the two loads, and goes on.
template <class Make>
void check_scarce_memory(int n, algorithm a, const Make& make, std::size_t announce = 0,
                         bool packs = false) {
  const auto expected = undisturbed(n, make);
  const auto n_failures = on_strict_ranks(n, [&](rank& r) {
    int n_failed = 0, n_failed_at_freeze = 0;
    r.build(make);
    for (std::uint64_t i = 0; i < n_steps; ++i) {
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
        n_failed_at_freeze += i == freezes_before(a) ? 1 : 0;
        const state after = r.now();
        CHECK(after.parameters == before.parameters);
        CHECK(after.steps == i);
        if (after.checkpoint == before.checkpoint) continue;
        CHECK_FALSE(std::exchange(frozen, true));  // once
        const bool may_part = packs || a == algorithm::one_bit_lamb;
        CHECK(may_part);
        CHECK(i == freezes_before(a));
        r.optimizer->load(after.checkpoint);
        CHECK(r.now() == after);
      }
      const bool same = r.now() == expected[static_cast<std::size_t>(r.t.rank())][i];
      CHECK(same);
    }
    return std::pair(n_failed, n_failed_at_freeze);
  });
  CHECK(n_failures[0].first > 0);  // or nothing was tried
  if (a != algorithm::zero_one_adam) CHECK(n_failures[0].second > 0);
}

}  // namespace

TEST_CASE("law 10: memory that runs out, in any allocation of any step") {
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
        return make_erased(a, only_read(data), t, onebit::gather_scatter{onebit::sign<>{}, 500},
                           backend);
      });
    }
  }
}

TEST_CASE("law 10: memory that runs out where v is stored in fewer bytes") {
  using onebit::bf16;
  using onebit::int8;
  const onebit::gather_scatter<onebit::sign<>> signs;
  const onebit::gather_scatter<onebit::residual_in<int8, onebit::sign<>>> compact;
  const onebit::freeze_options after{.after = 3};
  for (const std::uint64_t refreshes : {0, 16}) {
    CAPTURE(refreshes);
    const onebit::one_bit_adam_options options{
        .adam = {.beta2 = 0.99}, .freeze = after, .refreshes = refreshes};
    const auto one_bit = [&](training<>& data, auto t, auto backend) {
      return erase(onebit::one_bit_adam<int8>(data.groups(), t, options, compact, backend));
    };
    check_scarce_memory(2, algorithm::one_bit_adam, one_bit, 0, true);
    check_scarce_memory(2, algorithm::one_bit_adam, one_bit, 4, true);
  }
  const auto lamb = [&](training<>& data, auto t, auto backend) {
    const onebit::one_bit_lamb_options options{.lamb = {.beta2 = 0.99}, .freeze = after};
    return erase(onebit::one_bit_lamb<bf16>(data.groups(), t, options, signs, backend));
  };
  check_scarce_memory(2, algorithm::one_bit_lamb, lamb, 0, true);
  const auto zero_one = [&](training<>& data, auto t, auto backend) {
    const onebit::zero_one_adam_options options{
        .adam = {.beta2 = 0.99},
        .schedule = {.kappa = 2, .warmup_steps = 4, .doubling_steps = 3, .max_interval = 2}};
    return erase(onebit::zero_one_adam<int8, bf16>(data.groups(), t, options, compact, backend));
  };
  check_scarce_memory(2, algorithm::zero_one_adam, zero_one, 0, true);
}

TEST_CASE("law 10: an optimizer under way is moved over: its collectives end before their memory") {
  for (const algorithm a : all_compressed) {
    const auto make = maker(a, policy::buckets);
    const auto expected = undisturbed(2, make);
    std::atomic<unsigned> n_started{0};
    for (std::uint64_t at = 0; at < n_steps; ++at) {
      CAPTURE(static_cast<int>(a));
      CAPTURE(at);
      const auto states = on_strict_ranks(2, [&](rank& r) {
        r.build(make);
        training<> other_data(tensor_sizes);
        auto other = make(other_data, strict_transport(r.t, r.book), strict_host(r.book));
        for (std::uint64_t i = 0; i < at; ++i) {
          (void)r.step();
          other_data.compute_gradients(r.t.rank(), i);
          (void)other->step(0.02F);
        }
        const std::uint64_t parameters = other_data.digest();
        other_data.compute_gradients(r.t.rank(), at);
        other->begin(0.02F);
        for (std::size_t k = tensor_sizes.size(); k-- > 2;)
          other->ready(k);  // two buckets of three
        n_started += r.book->in_use.empty() ? 0U : 1U;
        other->take(*r.optimizer);
        CHECK(r.book->in_use.empty());
        CHECK(other_data.digest() == parameters);
        r.optimizer = std::move(other);
        while (r.optimizer->steps() < n_steps) (void)r.step(4);
        return r.now();
      });
      for (std::size_t r = 0; r < 2; ++r) {
        const bool same = states[r] == expected[r].back();
        CHECK(same);
      }
    }
    CHECK(n_started.load() == 2 * (a == algorithm::zero_one_adam ? 8 : n_steps));  // 2 local steps
  }
}

TEST_CASE("law 10: a step that has begun is given up with its optimizer") {
  for (const algorithm a : all_compressed) {
    for (const policy p : all_policies) {
      CAPTURE(static_cast<int>(a));
      CAPTURE(static_cast<int>(p));
      const auto make = maker(a, p);
      const auto expected = undisturbed(ranks_of(p), make);
      const auto states = on_strict_ranks(ranks_of(p), [&](rank& r) {
        r.build(make);
        for (std::uint64_t i = 0; i < n_steps; ++i) {
          const state before = r.now();
          const auto parameters = r.data.params;
          try {  // as where a trainer's own error unwinds its optimizer
            const auto gone = std::move(r.optimizer);
            r.data.compute_gradients(r.t.rank(), i);
            gone->begin(0.01F);
            for (std::size_t k = 0; k < i % tensor_sizes.size(); ++k)
              gone->ready(tensor_sizes.size() - 1 - k);
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
          r.optimizer->load(before.checkpoint);
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

TEST_CASE("law 10: what was odd in a step that failed is not said of the next one") {
  (void)onebit_test::on_ranks(2, [](onebit::threads t) {
    onebit_test::training<> data;
    const auto told = std::make_shared<onebit_test::script>();
    auto o = onebit::adam(data.groups(), onebit_test::scripted(t, told));
    (void)onebit_test::train(o, data);
    told->fail_at = told->calls + 1;  // after the ranks have seen that they were told other rates
    const auto apart = [&] { (void)o.step(t.rank() == 0 ? 0.1F : 0.2F); };
    CHECK(onebit_test::thrown<onebit::transport_error>(apart) ==
          onebit_test::contains("the network is down"));
    CHECK_FALSE(onebit_test::train(o, data).skipped);
    return 0;
  });
}
