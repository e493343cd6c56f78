// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Ranks leave a job that runs, and others join it, in the same processes: what load_old_job makes
// of the same states in files, bit for bit.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <onebit/collective/hierarchical.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "../support/scripted.hpp"
#include "../support/training.hpp"
#include "compositions.hpp"
#include "shared.hpp"

using namespace onebit_test;
using namespace onebit_test::compositions;

namespace {

const auto layered = [](auto& data, auto t) {
  onebit::one_bit_lamb_options o;
  o.freeze.after = 3;
  return onebit::one_bit_lamb(data.groups(), t, o);
};
const auto refreshed = [](auto& data, auto t) {
  onebit::one_bit_adam_options o = frozen_after(3);
  o.refreshes = 4;
  return onebit::one_bit_adam(data.groups(), t, o);
};

struct left_behind {
  std::string state;
  std::vector<std::vector<float>> params;
};

/// What a rank has after `n` more steps, as a text.
template <class Optimizer>
std::string after(Optimizer& o, training<>& data, int n) {
  for (int i = 0; i < n; ++i) CHECK_FALSE(train(o, data).skipped);
  return saved(o) + std::to_string(data.digest());
}

/// `from` ranks of `from + joining` train; then all but the first `leaving` go on together.
template <class Make>
std::vector<std::string> regrouped(int from, int leaving, int joining, int steps, const Make& make,
                                   std::vector<left_behind>* left, bool digests = false) {
  left->resize(static_cast<std::size_t>(from));
  return on_ranks(from + joining, [&](onebit::threads t) -> std::string {
    const bool old = t.rank() < from, goes_on = t.rank() >= leaving;
    training<> data;
    if (!old) {
      for (auto& p : data.params) std::fill(p.begin(), p.end(), 7.0F);
    }
    auto o = make(data, t.split(old ? 0 : t.rank(), 0));
    const auto next = t.split(goes_on ? 1 : 0, 0);
    for (int i = 0; old && i < steps; ++i) (void)train(o, data);
    if (old) (*left)[static_cast<std::size_t>(t.rank())] = {saved(o), data.params};
    if (!goes_on) return "";
    o.regroup(next, old ? onebit::brings::state : onebit::brings::nothing);
    CHECK(o.size() == from + joining - leaving);
    CHECK(o.rank() == t.rank() - leaving);
    CHECK(o.steps() == static_cast<std::uint64_t>(steps));
    if (digests) {
      std::string exchanged, averaged;  // between two exchanges of 0/1 Adam the ranks differ
      for (int i = 0; i < 9; ++i) {
        const auto r = train(o, data);
        CHECK_FALSE(r.skipped);
        const std::string now = std::to_string(data.digest()) + " ";
        if (r.phase == onebit::phase::compressed) exchanged += now;
        if (r.phase == onebit::phase::dense) averaged += now;
      }
      return exchanged.empty() ? averaged : exchanged;
    }
    return after(o, data, 7);
  });
}

template <class F>
void for_all(const F& f) {
  SUBCASE("Adam") { f(plain); }
  SUBCASE("1-bit Adam") { f(scattered); }
  SUBCASE("1-bit Adam with refreshes") { f(refreshed); }
  SUBCASE("1-bit Adam, buckets") { f(bucketed); }
  SUBCASE("1-bit Adam, all-gather") { f(gathered); }
  SUBCASE("1-bit LAMB") { f(layered); }
  SUBCASE("0/1 Adam") { f(skipping); }
  SUBCASE("Lion by votes") { f(voting); }
  SUBCASE("Lion with local steps") { f(voting_locally); }
}

template <class Make>
void check_joining(int from, int joining, const Make& make, const std::vector<int>& at_steps) {
  for (const int steps : at_steps) {
    CAPTURE(from);
    CAPTURE(joining);
    CAPTURE(steps);
    std::vector<left_behind> left;
    const auto one_process = regrouped(from, 0, joining, steps, make, &left);
    const auto by_files = on_ranks(from + joining, [&](onebit::threads t) {
      training<> data;
      auto o = make(data, t);
      // who joins takes the first rank's place
      const auto source = static_cast<std::size_t>(t.rank() < from ? t.rank() : 0);
      data.params = left[source].params;
      training<> again;
      auto whole = make(again, t);
      for (std::size_t i = 0; i < again.params.size(); ++i) {
        std::copy(data.params[i].begin(), data.params[i].end(), again.params[i].begin());
      }
      const auto r = static_cast<std::size_t>(t.rank());
      if (r % static_cast<std::size_t>(from) != source) return std::string("other places");
      whole.load_old_job(static_cast<std::size_t>(from), [&](std::size_t k) {
        return std::make_unique<std::istringstream>(left[k].state);
      });
      return after(whole, again, 7);
    });
    for (std::size_t r = 0; r < by_files.size(); ++r) CHECK(one_process[r] == by_files[r]);
  }
}

}  // namespace

TEST_CASE("ranks that join: the bits of a job that was loaded with more ranks") {
  for_all([](const auto& make) {
    check_joining(1, 1, make, {2, 4});
    check_joining(2, 1, make, {2, 3, 6, 7});
    check_joining(3, 1, make, {5});
  });
}

TEST_CASE("the same ranks, or a hierarchy's: the bits of a job that was loaded") {
  for_all([](const auto& make) { check_joining(3, 0, make, {2, 3, 6}); });
  SUBCASE("two levels") { check_joining(4, 0, by_node, {2, 6}); }
}

TEST_CASE("ranks that leave: the others agree, step after step, and train on") {
  for_all([](const auto& make) {
    for (const int leaving : {1, 2}) {
      for (const int joining : {0, 1, 2}) {
        for (const int steps : {2, 4, 7}) {
          CAPTURE(leaving);
          CAPTURE(joining);
          CAPTURE(steps);
          std::vector<left_behind> left;
          const auto ends = regrouped(4, leaving, joining, steps, make, &left, true);
          const auto& first = ends[static_cast<std::size_t>(leaving)];
          for (int r = leaving; r < 4 + joining; ++r) {
            CHECK(ends[static_cast<std::size_t>(r)] == first);
          }
        }
      }
    }
  });
}

TEST_CASE("after ranks have left all parameters are the same") {
  const auto digests = on_ranks(5, [](onebit::threads t) -> std::uint64_t {
    training<> data;
    auto o = scattered(data, t.split(t.rank() < 4 ? 0 : 1, 0));
    const auto next = t.split(t.rank() == 1 ? 0 : 1, 0);
    for (int i = 0; t.rank() < 4 && i < 6; ++i) (void)train(o, data);
    if (t.rank() == 1) return 0;
    o.regroup(next, t.rank() < 4 ? onebit::brings::state : onebit::brings::nothing);
    for (int i = 0; i < 5; ++i) CHECK_FALSE(train(o, data).skipped);
    return data.digest();
  });
  for (const int r : {2, 3, 4}) CHECK(digests[static_cast<std::size_t>(r)] == digests[0]);
}

TEST_CASE("a rank that was lost in a step: the others take it back and go on without it") {
  const auto ends = on_ranks(4, [](onebit::threads t) -> std::string {
    training<> data;
    const auto next = t.split(t.rank() == 2 ? 0 : 1, 0);
    const auto told = std::make_shared<script>();
    auto o = scattered(data, scripted(t, told));
    for (int i = 0; i < 6; ++i) (void)train(o, data);
    told->calls = 0;
    told->fail_at = 1;
    CHECK_THROWS_AS((void)train(o, data), onebit::transport_error);
    if (t.rank() == 2) return "";
    CHECK(o.steps() == 6);
    o.regroup(next);
    CHECK(o.size() == 3);
    for (int i = 0; i < 5; ++i) CHECK_FALSE(train(o, data).skipped);
    return std::to_string(data.digest());
  });
  CHECK(ends[0] == ends[1]);
  CHECK(ends[0] == ends[3]);
}

TEST_CASE("what cannot regroup is told on all ranks, and goes on as it was") {
  // disturb(o, data, rank) before it; what() is brought
  const auto told = [](const auto& make, const auto& disturb, const auto& what) {
    const auto run = [&](bool tries) {
      return on_ranks(3, [&](onebit::threads t) {
        training<> data;
        auto o = make(data, t, t.rank());
        const auto next = t.split(0, 0);
        for (int i = 0; i < 5; ++i) (void)train(o, data);
        std::string text;
        if (tries) {
          disturb(o, data, t.rank());
          try {
            o.regroup(next, what(t.rank()));
          } catch (const onebit::error& e) {
            text = e.what();
          }
        }
        for (int i = 0; i < 4; ++i) CHECK_FALSE(train(o, data).skipped);
        return std::pair(text, saved(o) + std::to_string(data.digest()));
      });
    };
    const auto tried = run(true), whole = run(false);
    std::vector<std::string> all;
    for (std::size_t r = 0; r < tried.size(); ++r) {
      CHECK(tried[r].second == whole[r].second);
      all.push_back(tried[r].first);
    }
    return all;
  };
  const auto all_of_it = [](int) { return onebit::brings::state; };
  const auto as_is = [](auto&, auto&, int) {};
  const auto usual = [](auto& data, auto t, int) { return scattered(data, t); };
  for (const auto& text : told(usual, as_is, [](int) { return onebit::brings::nothing; })) {
    CHECK(text == contains{"no rank brings a state"});
  }
  const auto alone = [](auto& data, auto t, int) { return scattered(data, t.split(t.rank(), 0)); };
  for (const auto& text : told(alone, as_is, all_of_it)) {
    CHECK(text == contains{"as the others, or twice"});
  }
  const auto begun = told(
      usual,
      [](auto& o, auto& data, int rank) {
        if (rank != 1) return;
        data.compute_gradients(rank, o.steps());
        o.begin(0.01F / static_cast<float>(1 + o.steps() % 3));
      },
      all_of_it);
  CHECK(begun[1] == contains{"has begun"});
  CHECK(begun[0] == contains{"rank 1 failed"});
}

TEST_CASE("ranks of different steps cannot regroup") {
  onebit::run_threads(2, [](onebit::threads t) {
    training<> data;
    const auto told = std::make_shared<script>();
    const auto next = t.split(0, 0);
    auto o = scattered(data, scripted(t, told));
    for (int i = 0; i < 5; ++i) (void)train(o, data);
    // what rank 1 hears last is damaged: it alone takes the step back
    told->calls = 0;
    if (t.rank() == 1) told->flip_at = 1;
    try {
      (void)train(o, data);
    } catch (const onebit::transport_error&) {
    }
    CHECK(o.steps() == (t.rank() == 1 ? 5 : 6));
    const auto before = saved(o);
    CHECK(thrown<onebit::checkpoint_error>([&] { o.regroup(next); }) ==
          contains{"of the old job tell other states, of steps 6 and 5"});
    CHECK(saved(o) == before);
  });
}
