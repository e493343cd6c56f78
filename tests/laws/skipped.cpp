// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Law 7: a value that is not finite, on any rank, in any phase: no rank changes any state, every
// rank reports the step as skipped, and the run goes on as if the step had not been. The freeze is
// no part of a step but what comes before the first compressed one: it stays done, by the first
// try.

#include <algorithm>
#include <limits>
#include <onebit/compressor/quantized.hpp>

#include "shared.hpp"

using namespace onebit_test;

namespace {

/// Where and what the bad value is.
struct poison {
  std::size_t step = 0;
  int rank = 0;
  std::size_t tensor = 0, element = 0;
  float value = 0;
};

/// A run in which step `bad.step` is made three times: twice poisoned, then as it should be.
struct outcome_of_rank {
  std::string problem;  ///< empty: all is well
  trace rest;
  std::string skipped_checkpoint;
  onebit::report skipped;
};

template <class G, class Collective>
outcome_of_rank run_poisoned(onebit::threads transport, const plan& p, const poison& bad,
                             bool freezes, const Collective& collective) {
  outcome_of_rank result;
  memory own(p.sizes);
  const int rank = transport.rank();
  auto o = make_one_bit_adam<G>(own, p, transport, collective);
  for (std::size_t step = 0; step < p.steps; ++step) {
    if (step == bad.step) {
      for (int times = 0; times < 2; ++times) {  // twice in a row
        p.fill(own, rank, step);
        if (rank == bad.rank) own.grads[bad.tensor][bad.element] = bad.value;
        const std::string before = saved(o);
        const flat params = own.all_params();
        result.skipped = o.step(p.lr);
        if (!result.skipped.skipped) result.problem = "not reported";
        if (result.skipped.refreshed) result.problem = "said to have refreshed v";
        if (result.skipped.step != step) result.problem = "its number was used up";
        if (o.steps() != step) result.problem = "it was counted";
        if (first_difference(own.all_params(), params) != none) result.problem = "params moved";
        result.skipped_checkpoint = saved(o);
        const bool may_freeze = freezes && times == 0;
        if ((result.skipped_checkpoint != before) != may_freeze) result.problem = "state changed";
      }
    }
    p.fill(own, rank, step);
    result.rest.reports.push_back(o.step(p.lr));
    result.rest.params.push_back(own.all_params());
  }
  result.rest.checkpoint = saved(o);
  return result;
}

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan_ = std::numeric_limits<float>::quiet_NaN();

template <class G, class Collective>
void check(const plan& p, const Collective& collective, const std::vector<float>& values,
           const std::vector<std::size_t>& steps) {
  CAPTURE(onebit::policy_name(collective));
  CAPTURE(p.ranks);
  const auto undisturbed =
      on_ranks(p.ranks, [&](onebit::threads t) { return train<G>(t, p, collective); });
  for (const std::size_t step : steps) {
    const auto is_compressed = [&](std::size_t i) {
      return undisturbed[0].reports[i].phase == onebit::phase::compressed;
    };
    const bool freezes = is_compressed(step) && !is_compressed(step - 1);
    std::vector<std::string> first_skipped;  // by rank
    std::size_t variant = step;
    for (int rank = 0; rank < p.ranks; ++rank) {
      for (const float value : values) {
        // first and last elements, of the first, a middle and the last tensor
        poison bad{step, rank, 0, 0, value};
        switch (variant++ % 3) {
          case 0:
            bad.element = p.sizes[0] - 1;
            break;
          case 1:
            bad.tensor = p.sizes.size() - 1;
            bad.element = p.sizes.back() - 1;
            break;
          default:
            bad.tensor = p.sizes.size() - 1;
        }
        CAPTURE(step);
        CAPTURE(rank);
        CAPTURE(value);
        CAPTURE(bad.tensor);
        CAPTURE(bad.element);
        const auto ranks = on_ranks(p.ranks, [&](onebit::threads t) {
          return run_poisoned<G>(t, p, bad, freezes, collective);
        });
        for (const auto& r : ranks) {
          if (first_skipped.size() < ranks.size()) first_skipped.push_back(r.skipped_checkpoint);
        }
        for (std::size_t r = 0; r < ranks.size(); ++r) {
          CAPTURE(r);
          CHECK(ranks[r].problem == "");
          // whatever was wrong, wherever
          CHECK((ranks[r].skipped_checkpoint == first_skipped[r]));
          // a step is a straight line: it is kept, or taken back, at its end
          const onebit::report& kept = undisturbed[r].reports[step];
          CHECK(ranks[r].skipped.collectives == kept.collectives);
          CHECK(ranks[r].skipped.bytes_sent == kept.bytes_sent);
          CHECK(ranks[r].skipped.phase == kept.phase);
          std::size_t n_wrong = 0;
          for (std::size_t i = 0; i < p.steps; ++i) {
            n_wrong += ranks[r].rest.reports[i].skipped ? 1U : 0U;
            n_wrong += first_difference(ranks[r].rest.params[i], undisturbed[r].params[i]) == none
                           ? 0U
                           : 1U;
          }
          CHECK(n_wrong == 0);
          CHECK((ranks[r].rest.checkpoint == undisturbed[r].checkpoint));
        }
      }
    }
  }
}

plan small_plan(int ranks) {
  plan p;
  p.sizes = {33, 0, 70, 1};
  p.ranks = ranks;
  p.steps = 8;
  p.options.freeze.after = 4;
  return p;
}

const std::vector<float> not_finite = {nan_, inf, -inf};
const std::vector<std::size_t> every_phase = {0, 3, 4, 6};  // first, last of the warm-up; first,
                                                            // later compressed

}  // namespace

TEST_CASE("law 7: non-finite gradients, in every phase, on every rank") {
  for (const int w : {1, 2, 3, 5}) {
    const plan p = small_plan(w);
    const auto both = [&](const auto& collective) {
      check<float>(p, collective, not_finite, every_phase);
#if defined(ONEBIT_TESTS_ALL)
      check<const float>(p, collective, not_finite, every_phase);
#endif
    };
    check<const float>(p, onebit::gather_scatter<onebit::sign<>>{}, not_finite, every_phase);
    both(onebit::gather_scatter<onebit::sign<>>{});
    both(onebit::gather_scatter{onebit::sign<onebit::l1_scale>{onebit::granularity::block(32)}});
    both(onebit::all_gather<onebit::sign<>>{});
    both(onebit::gather_scatter<ternary>{});
    both(onebit::all_gather<int8_tile>{});
    both(onebit::gather_scatter<onebit::identity>{});
  }
}

// The scale of a group without active elements is 0, whatever its elements are.
TEST_CASE("law 7: non-finite gradients of tensors that never had another gradient") {
  for (const std::uint64_t refreshes : {0, 64}) {
    plan p = small_plan(3);
    p.sizes = {200, 70, 200};
    p.options.refreshes = refreshes;
    p.disturb = [](memory& m, int, std::size_t) {
      for (const std::size_t t : {0, 2}) std::fill(m.grads[t].begin(), m.grads[t].end(), 0.0F);
    };
    const auto layers = onebit::granularity::layer();
    check<float>(p, onebit::gather_scatter{onebit::sign<>{layers}}, not_finite, {4, 6});
    check<float>(p, onebit::all_gather{onebit::sign<onebit::l1_scale>{layers}}, not_finite, {4, 6});
    check<float>(p, onebit::gather_scatter<onebit::quantized<4>>{}, not_finite, {4, 6});
    check<float>(p, onebit::gather_scatter<ternary>{}, not_finite, {4, 6});
  }
}

TEST_CASE("law 7: with the transport's own sums") {
  plan p = small_plan(3);
  for (const auto sum : {onebit::dense_sum::transport, onebit::dense_sum::transport_in_bf16}) {
    p.options.warm_up_sum = sum;
    check<float>(p, onebit::gather_scatter<onebit::sign<>>{}, not_finite, every_phase);
  }
}

TEST_CASE("law 7: finite values that are too large") {
  // 1e30 is finite, its square is not: every rank learns it by the first phase.
  for (const int w : {2, 3}) {
    const plan p = small_plan(w);
    check<float>(p, onebit::gather_scatter<onebit::sign<>>{}, {1e30F, -1e30F}, {4, 6});
    check<float>(p, onebit::all_gather<onebit::sign<>>{}, {1e30F}, {4, 6});
  }
}

namespace {

/// Each rank's message is finite and has a finite statistic; their sum over the ranks is not.
template <class Collective>
void check_overflow_of_the_mean(const Collective& collective, std::uint32_t collectives) {
  CAPTURE(onebit::policy_name(collective));
  for (const int w : {2, 4, 5}) {
    CAPTURE(w);
    plan p = small_plan(w);
    p.sizes = {1, 64};
    p.options.adam.beta1 = 0.0;  // the message is the gradient
    const auto ranks = on_ranks(w, [&](onebit::threads transport) {
      outcome_of_rank result;
      memory own(p.sizes);
      auto o = make_one_bit_adam<float>(own, p, transport, collective);
      for (std::size_t step = 0; step < 8; ++step) {
        for (int times = 0; times < 2 && (step == 4 || step == 6); ++times) {
          p.fill(own, transport.rank(), step);
          own.grads[0][0] = 3e38F;  // a scale of its own: 3e38 on every rank
          const std::string before = saved(o);
          const flat params = own.all_params();
          result.skipped = o.step(p.lr);
          if (!result.skipped.skipped) result.problem = "not reported";
          if (result.skipped.collectives != collectives) result.problem = "in another phase";
          const bool freezes = step == p.options.freeze.after && times == 0;
          if ((saved(o) != before) != freezes) result.problem = "state changed";
          if (first_difference(own.all_params(), params) != none) result.problem = "params moved";
        }
        p.fill(own, transport.rank(), step);
        result.rest.reports.push_back(o.step(p.lr));
        result.rest.params.push_back(own.all_params());
      }
      result.rest.checkpoint = saved(o);
      return result;
    });
    const auto undisturbed =
        on_ranks(w, [&](onebit::threads t) { return train(t, p, collective); });
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      CHECK(ranks[r].problem == "");
      CHECK((ranks[r].rest.checkpoint == undisturbed[r].checkpoint));
      CHECK(first_difference(ranks[r].rest.params.back(), undisturbed[r].params.back()) == none);
    }
  }
}

}  // namespace

TEST_CASE("law 7: a mean of finite messages that overflows is taken back too") {
  const onebit::sign<onebit::l1_scale> codec{onebit::granularity::block(32)};
  check_overflow_of_the_mean(onebit::gather_scatter{codec}, 2);  // seen by the server
  check_overflow_of_the_mean(onebit::gather_scatter<onebit::identity>{}, 2);
  check_overflow_of_the_mean(onebit::gather_scatter<ternary>{}, 2);
  check_overflow_of_the_mean(onebit::all_gather{codec}, 1);  // seen by everyone
  check_overflow_of_the_mean(onebit::all_gather<ternary>{}, 1);
}
