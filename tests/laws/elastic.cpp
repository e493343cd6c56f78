// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A job that goes on with other ranks: what the old ones had still to send is kept on average, the
// new ones agree, and they train as well. What cannot go on is refused, with nothing changed.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <onebit/collective/hierarchical.hpp>
#include <onebit/extras/papers.hpp>
#include <sstream>

#include "../support/training.hpp"
#include "compositions.hpp"
#include "residuals.hpp"
#include "shared.hpp"

using namespace onebit_test;
using namespace onebit_test::compositions;

namespace {

struct left_behind {
  std::string state;
  std::vector<std::vector<float>> params;
};

template <class Optimizer>
void take_over(Optimizer& o, training<>& data, const std::vector<left_behind>& old) {
  const auto& source = old[static_cast<std::size_t>(o.rank()) % old.size()];
  for (std::size_t i = 0; i < data.params.size(); ++i) {
    std::copy(source.params[i].begin(), source.params[i].end(), data.params[i].begin());
  }
  o.load_old_job(old.size(),
                 [&](std::size_t r) { return std::make_unique<std::istringstream>(old[r].state); });
}

template <class Make>
std::vector<left_behind> job(int n, int steps, const Make& make) {
  return on_ranks(n, [&](onebit::threads t) {
    training<> data;
    auto o = make(data, t);
    for (int i = 0; i < steps; ++i) (void)train(o, data);
    return left_behind{saved(o), data.params};
  });
}

const auto refreshed = [](auto& data, auto t) {
  onebit::one_bit_adam_options o = frozen_after(3);
  o.refreshes = 2;
  return onebit::one_bit_adam(data.groups(), t, o);
};
const auto layered = [](auto& data, auto t) {
  onebit::one_bit_lamb_options o;
  o.freeze.after = 3;
  return onebit::one_bit_lamb(data.groups(), t, o);
};
const auto layered_as_printed = [](auto& data, auto t) {
  const auto paper = onebit::papers::one_bit_lamb(3);
  return onebit::one_bit_lamb(data.groups(), t, paper.options, paper.collective);
};
const auto with_local_steps = [](auto& data, auto t) {
  onebit::zero_one_adam_options o;
  o.schedule.kappa = 1;  // dense steps 0 and 1
  o.schedule.warmup_steps = 3;
  o.schedule.doubling_steps = 3;
  o.schedule.max_interval = 4;
  return onebit::zero_one_adam(data.groups(), t, o);
};

const auto layered_by_node = [](auto& data, auto t) {
  onebit::one_bit_lamb_options o;
  o.freeze.after = 3;
  return onebit::one_bit_lamb(
      data.groups(), t, o, onebit::hierarchical{onebit::sign<>{onebit::granularity::vector()}, 2});
};
const auto local_of = [](int node) {
  return [node](auto& data, auto t) {
    onebit::zero_one_adam_options o;
    o.schedule.kappa = 1;  // dense steps 0 and 1
    o.schedule.warmup_steps = 3;
    o.schedule.doubling_steps = 3;
    o.schedule.max_interval = 4;
    return onebit::zero_one_adam(data.groups(), t, o, onebit::hierarchical{onebit::sign<>{}, node});
  };
};

template <class Optimizer>
by_element residuals_of_all(const std::vector<Optimizer*>& ranks, std::vector<training<>>& data) {
  by_element sum;
  for (const auto& p : data[0].params) sum.emplace_back(p.size(), 0.0);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    add_residuals(*ranks[r], sum);
  }
  return sum;
}

/// beta1 m of the last exchange, plus what is owed: what the next message starts from, on average.
template <class Make>
by_element base_of_next(int n, const Make& make, const std::vector<left_behind>* old, int steps,
                        std::vector<left_behind>* left, double beta1) {
  using optimizer = decltype(make(std::declval<training<>&>(), std::declval<onebit::threads>()));
  std::vector<training<>> data(static_cast<std::size_t>(n));
  std::vector<std::optional<optimizer>> all(static_cast<std::size_t>(n));
  if (left != nullptr) left->resize(static_cast<std::size_t>(n));
  onebit::run_threads(n, [&](onebit::threads t) {
    const auto r = static_cast<std::size_t>(t.rank());
    all[r].emplace(make(data[r], t));
    if (old != nullptr) take_over(*all[r], data[r], *old);
    for (int i = 0; i < steps; ++i) (void)train(*all[r], data[r]);
    if (left != nullptr) (*left)[r] = {saved(*all[r]), data[r].params};
  });
  std::vector<optimizer*> ranks;
  for (auto& o : all) ranks.push_back(&*o);
  by_element base = residuals_of_all(ranks, data);
  for (std::size_t t = 0; t < base.size(); ++t) {
    if (beta1 == 0) continue;
    const auto m = ranks[0]->copy(ranks[0]->exchange().previous(ranks[0]->active()), t);
    for (std::size_t i = 0; i < m.size(); ++i) base[t][i] += beta1 * static_cast<double>(m[i]);
  }
  return base;
}

}  // namespace

TEST_CASE(
    "another number of ranks: what was agreed and what is owed is kept on average [load_old_job]") {
  const auto check = [](const auto& make, double beta1, int steps, int node = 1) {
    for (const int from : {2, 4}) {
      if (from % node != 0 || from / node < 2) continue;
      std::vector<left_behind> old;
      const by_element before = base_of_next(from, make, nullptr, steps, &old, beta1);
      for (int to : {2, 3, 5}) {
        to *= node;
        CAPTURE(from);
        CAPTURE(to);
        const by_element after = base_of_next(to, make, &old, 0, nullptr, beta1);
        double worst = 0, largest = 0;
        for (std::size_t t = 0; t < before.size(); ++t) {
          for (std::size_t i = 0; i < before[t].size(); ++i) {
            worst = std::max(worst, std::fabs(before[t][i] - after[t][i]));
            largest = std::max(largest, std::fabs(before[t][i]));
          }
        }
        CHECK(largest > 1e-3);
        CHECK(worst < 1e-6 * largest);  // sums of floats in another order
      }
    }
  };
  SUBCASE("1-bit Adam") { check(scattered, 0.9, 8); }
  SUBCASE("1-bit Adam, buckets") { check(bucketed, 0.9, 8); }
  SUBCASE("1-bit Adam, all-gather") { check(gathered, 0.9, 8); }
  SUBCASE("1-bit LAMB") { check(layered, 0.9, 8); }
  SUBCASE("0/1 Adam after an exchange and between two") {
    for (const int steps : {6, 7, 8}) check(with_local_steps, 0, steps);
  }
  SUBCASE("1-bit Adam on two levels") { check(by_node, 0.9, 8, 2); }
  SUBCASE("1-bit LAMB on two levels") { check(layered_by_node, 0.9, 8, 2); }
  SUBCASE("0/1 Adam on two levels") {
    for (const int steps : {6, 7, 8}) check(local_of(2), 0, steps, 2);
  }
}

TEST_CASE(
    "another number of ranks, at any step: the new ranks agree, step after step [load_old_job]") {
  const auto check = [](const auto& make, bool local_steps) {
    for (const int from : {1, 2, 4}) {
      for (const int steps : {1, 3, 4, 10}) {  // after 10, 0/1 Adam is between two exchanges
        const auto old = job(from, steps, make);
        for (const int to : {1, 2, 3}) {
          CAPTURE(from);
          CAPTURE(steps);
          CAPTURE(to);
          const auto digests = on_ranks(to, [&](onebit::threads t) {
            training<> data;
            auto o = make(data, t);
            for (int i = 0; i < steps % 3; ++i) (void)train(o, data);  // it may have a past
            take_over(o, data, old);
            CHECK(o.steps() == static_cast<std::uint64_t>(steps));
            std::vector<std::uint64_t> after;
            for (int i = 0; i < 12; ++i) {
              const auto report = train(o, data);
              CHECK_FALSE(report.skipped);
              const bool equal = !local_steps || report.phase == onebit::phase::compressed;
              if (equal) after.push_back(data.digest());
            }
            return after;
          });
          CHECK(digests[0].size() >= (to > 1 ? 3U : 0U));
          for (const auto& d : digests) CHECK(d == digests[0]);
        }
      }
    }
  };
  SUBCASE("Adam") { check(plain, false); }
  SUBCASE("1-bit Adam") { check(scattered, false); }
  SUBCASE("1-bit Adam with refreshes") { check(refreshed, false); }
  SUBCASE("1-bit Adam, buckets") { check(bucketed, false); }
  SUBCASE("1-bit Adam, all-gather") { check(gathered, false); }
  SUBCASE("1-bit LAMB") { check(layered, false); }
  SUBCASE("0/1 Adam") { check(with_local_steps, true); }
}

TEST_CASE("another node shape: the new ranks agree, step after step [load_old_job]") {
  const auto of = [](int node) {
    return [node](auto& data, auto t) {
      return onebit::one_bit_adam(data.groups(), t, frozen_after(3),
                                  onebit::hierarchical{onebit::sign<>{}, node});
    };
  };
  const auto check = [](const auto& policy, bool local_steps) {
    for (const int from : {1, 2, 4}) {
      for (const int steps : {2, 4, 7}) {
        const auto old = job(4, steps, policy(from));
        for (const auto& [ranks, node] :
             {std::pair{4, 1}, {4, 2}, {4, 4}, {6, 3}, {2, 1}, {1, 1}}) {
          CAPTURE(from);
          CAPTURE(steps);
          CAPTURE(ranks);
          CAPTURE(node);
          const auto digests = on_ranks(ranks, [&, ranks = ranks, n = node](onebit::threads t) {
            training<> data;
            auto o = policy(n)(data, t);
            take_over(o, data, old);
            std::vector<std::uint64_t> after;
            for (int i = 0; i < 10; ++i) {
              const auto report = train(o, data);
              CHECK_FALSE(report.skipped);
              const bool equal =
                  !local_steps || ranks == n || report.phase == onebit::phase::compressed;
              if (equal) after.push_back(data.digest());
            }
            return after;
          });
          CHECK(digests[0].size() >= 2U);
          for (const auto& d : digests) CHECK(d == digests[0]);
        }
      }
    }
  };
  SUBCASE("1-bit Adam") { check(of, false); }
  SUBCASE("0/1 Adam") { check(local_of, true); }
}

TEST_CASE(
    "0/1 Adam from nodes to one node, or the other way: no way is lost, none is kept "
    "[load_old_job]") {
  const auto go_on = [&](const std::vector<left_behind>& old, int ranks, int node) {
    return on_ranks(ranks, [&](onebit::threads t) {
      training<> data;
      auto o = local_of(node)(data, t);
      take_over(o, data, old);
      const auto start = data.params;
      double moved = 0, most = 0;
      std::vector<std::uint64_t> digests;
      for (int i = 0; i < 8; ++i) {
        CHECK_FALSE(train(o, data).skipped);
        if (i == 7 || node == ranks) digests.push_back(data.digest());
      }
      training<> fresh;
      for (std::size_t k = 0; k < start.size(); ++k) {
        for (std::size_t i = 0; i < start[k].size(); ++i) {
          moved = std::max(moved, static_cast<double>(std::fabs(start[k][i] - data.params[k][i])));
          most = std::max(most, static_cast<double>(std::fabs(start[k][i] - fresh.params[k][i])));
        }
      }
      CHECK(moved < 0.08);  // eight steps of at most 0.01, not back to where all began
      return std::pair(digests, most);
    });
  };
  for (const int steps : {5, 8, 10, 11, 12}) {
    CAPTURE(steps);
    const auto to_one = go_on(job(4, steps, local_of(2)), 2, 2);
    CHECK(to_one[0].first == to_one[1].first);
  }
  const auto from_one = go_on(job(2, 40, local_of(2)), 4, 2);
  CHECK(from_one[0].second > 0.1);  // so far it was from where all began
}

TEST_CASE("other options on resume, when the user says so [load_old_job]") {
  for (const int to : {2, 3}) {
    const auto old = job(2, 6, scattered);
    const auto other = [](auto& data, auto t) {
      auto o = frozen_after(3);
      o.adam.beta1 = 0.8;
      o.adam.eps = 1e-6;
      auto groups = data.groups();
      groups[1].weight_decay = 0.25F;
      return onebit::one_bit_adam(groups, t, o);
    };
    const auto digests = on_ranks(to, [&](onebit::threads t) {
      training<> data;
      auto o = other(data, t);
      const auto& source = old[static_cast<std::size_t>(t.rank()) % 2];
      for (std::size_t i = 0; i < data.params.size(); ++i) {
        std::copy(source.params[i].begin(), source.params[i].end(), data.params[i].begin());
      }
      const auto load = [&](auto... with) {
        if (to != 2) {
          return o.load_old_job(
              2, [&](std::size_t r) { return std::make_unique<std::istringstream>(old[r].state); },
              with...);
        }
        std::istringstream in(source.state);
        o.load(in, with...);
      };
      CHECK(thrown<onebit::checkpoint_error>([&] { load(); }) == contains{", loaded with "});
      load(onebit::resume_with::other_options);
      CHECK(o.steps() == 6);
      for (int i = 0; i < 3; ++i) CHECK_FALSE(train(o, data).skipped);
      return data.digest();
    });
    for (const auto d : digests) CHECK(d == digests[0]);
  }
  // not another algorithm
  const auto old = job(2, 6, plain);
  onebit::run_threads(2, [&](onebit::threads t) {
    training<> data;
    auto o = scattered(data, t);
    std::istringstream in(old[static_cast<std::size_t>(t.rank())].state);
    CHECK(thrown<onebit::checkpoint_error>([&] {
            o.load(in, onebit::resume_with::other_options);
          }) == contains{"saved with adam, loaded with "});
  });
}

TEST_CASE("Adam with another number of ranks is Adam that never stopped [load_old_job]") {
  // Its state has nothing of the ranks: with the same mean gradient the bits are the same.
  const auto run = [](training<>& data, auto& o, int steps) {
    for (int i = 0; i < steps; ++i) {
      data.compute_gradients(0, o.steps());
      (void)o.step(0.01F);
    }
  };
  const auto whole = on_ranks(2, [&](onebit::threads t) {
    training<> data;
    auto o = plain(data, t);
    run(data, o, 9);
    return data.digest();
  });
  const auto old = on_ranks(2, [&](onebit::threads t) {
    training<> data;
    auto o = plain(data, t);
    run(data, o, 5);
    return left_behind{saved(o), data.params};
  });
  const auto resumed = on_ranks(4, [&](onebit::threads t) {
    training<> data;
    auto o = plain(data, t);
    take_over(o, data, old);
    run(data, o, 4);
    return data.digest();
  });
  for (const auto d : resumed) CHECK(d == whole[0]);
}

TEST_CASE("what is no old job is refused on all ranks, with nothing changed [load_old_job]") {
  const auto old = job(2, 6, scattered);
  const auto refused = [&](const auto& make, std::vector<left_behind> given, std::size_t n) {
    return on_ranks(3, [&](onebit::threads t) {
      training<> data;
      auto o = make(data, t);
      for (int i = 0; i < 5; ++i) (void)train(o, data);
      const auto before = saved(o);
      const auto& source = given[static_cast<std::size_t>(t.rank()) % given.size()];
      for (std::size_t i = 0; i < data.params.size(); ++i) {
        std::copy(source.params[i].begin(), source.params[i].end(), data.params[i].begin());
      }
      const auto text = thrown<onebit::checkpoint_error>([&] {
        o.load_old_job(n, [&](std::size_t r) {
          return std::make_unique<std::istringstream>(given[r % given.size()].state);
        });
      });
      const auto after = saved(o);
      // the card tells the parameters, which were restored for it; the first checksum is of it too
      const std::size_t card = 24 + sizeof(onebit::detail::checkpoint_header);
      const std::size_t of_tensor = sizeof(onebit::detail::bias_decay) + sizeof(double);
      const std::size_t first = card + 100 + data.params.size() * of_tensor;
      CHECK(before.substr(first) == after.substr(first));
      return text;
    });
  };
  const auto all_told = [](const std::vector<std::string>& told, const std::string& what) {
    for (const auto& text : told) CHECK(text == contains{what});
  };
  all_told(refused(scattered, old, 3), "saved with world size 2, loaded with world size 3");
  all_told(refused(scattered, old, 1), "saved with world size 2, loaded with world size 1");
  all_told(refused(scattered, old, 0), "no ranks to load");
  all_told(refused(bucketed, old, 2), "in buckets of 1000");
  auto swapped = old;
  std::swap(swapped[0].state, swapped[1].state);
  all_told(refused(scattered, swapped, 2), "saved with rank 1, loaded with rank 0");
  auto cut = old;
  cut[1].state.resize(cut[1].state.size() - 9);
  all_told(refused(scattered, cut, 2), "truncated");
  auto older = old;
  older[1] = job(2, 5, scattered)[1];
  for (const auto& text : refused(scattered, older, 2)) {
    const bool says =
        text.find("resume: ranks 0 and 1 of the old job differ, at steps") != std::string::npos ||
        text.find("could not read") != std::string::npos ||
        text.find("the parameters in memory are not those") != std::string::npos;
    CHECK(says);
  }
}

TEST_CASE(
    "another number of ranks with gradients that are only read, or of 2 bytes [load_old_job]") {
  const auto old = on_ranks(2, [](onebit::threads t) {
    training<const float> data;
    auto o = scattered(data, t);
    for (int i = 0; i < 6; ++i) (void)train(o, data);
    return left_behind{saved(o), data.params};
  });
  const auto digests = on_ranks(3, [&](onebit::threads t) {
    training<const float> data;
    auto o = scattered(data, t);
    const auto& source = old[static_cast<std::size_t>(t.rank()) % 2];
    for (std::size_t i = 0; i < data.params.size(); ++i) {
      std::copy(source.params[i].begin(), source.params[i].end(), data.params[i].begin());
    }
    o.load_old_job(
        2, [&](std::size_t r) { return std::make_unique<std::istringstream>(old[r].state); });
    for (int i = 0; i < 6; ++i) CHECK_FALSE(train(o, data).skipped);
    return data.digest();
  });
  for (const auto d : digests) CHECK(d == digests[0]);
}

TEST_CASE(
    "1-bit LAMB that has not made a compressed step keeps m, and 0/1 Adam's rates start anew "
    "[load_old_job]") {
  // Over a number of ranks and back without a step, m is still what it was.
  const auto first = job(3, 6, layered_as_printed);
  const auto through = [](int n, const auto& make, const std::vector<left_behind>& from) {
    return on_ranks(n, [&](onebit::threads t) {
      training<> data;
      auto o = make(data, t);
      take_over(o, data, from);
      return left_behind{saved(o), data.params};
    });
  };
  const auto momenta = [](int n, const std::vector<left_behind>& from) {
    return on_ranks(n, [&](onebit::threads t) {
      training<> data;
      auto o = layered_as_printed(data, t);
      take_over(o, data, from);
      const float* m = o.rule().momentum();
      return std::vector<float>(m, m + 5000);
    });
  };
  const auto direct = momenta(2, first), by_way = momenta(2, through(5, layered_as_printed, first));
  CHECK(direct[0] == by_way[0]);
  CHECK(std::fabs(direct[0][64]) > 0);

  // From one rank alone, saved with a sum of rates: the first exchange divides by rates that it
  // saw.
  const auto three = job(3, 6, with_local_steps);
  const auto one = on_ranks(1, [&](onebit::threads t) {
    training<> data;
    auto o = with_local_steps(data, t);
    take_over(o, data, three);
    for (int i = 0; i < 4; ++i) (void)train(o, data);
    return left_behind{saved(o), data.params};
  });
  const auto size_of_m = [](const auto& o) {
    double sum = 0;
    for (std::size_t i = 0; i < 5000; ++i) {
      sum += std::fabs(static_cast<double>(o.rule().momentum()[64 + i]));
    }
    return sum;
  };
  on_ranks(3, [&](onebit::threads t) {
    training<> data;
    auto o = with_local_steps(data, t);
    take_over(o, data, one);
    const double before = size_of_m(o);
    while (train(o, data).phase != onebit::phase::compressed) {
    }
    CHECK(size_of_m(o) > 0.5 * before);  // it lost three quarters of it
    return 0;
  });
}

TEST_CASE(
    "a job of one rank goes on in an optimizer that had frozen as in a new one [load_old_job]") {
  const auto alone = job(1, 1, with_local_steps);
  const auto digests = [&](bool used) {
    return on_ranks(2, [&](onebit::threads t) {
      training<> data;
      auto o = with_local_steps(data, t);
      for (int i = 0; used && i < 12; ++i) {  // in which half of the elements have no gradient
        data.compute_gradients(t.rank(), o.steps());
        for (auto& g : data.grads) std::fill(g.begin(), g.begin() + std::ssize(g) / 2, 0.0F);
        CHECK_FALSE(o.step(0.01F).skipped);
      }
      take_over(o, data, alone);
      std::vector<std::uint64_t> all;
      for (int i = 0; i < 8; ++i) {
        CHECK_FALSE(train(o, data).skipped);
        all.push_back(data.digest());
      }
      return all;
    });
  };
  CHECK(digests(true) == digests(false));
}

TEST_CASE(
    "another number of ranks: 1-bit LAMB's sketch has the tiles of the new ranks [load_old_job]") {
  struct jobs {
    int from, to, steps;
  };
  for (const jobs j : {jobs{1, 5, 2}, jobs{5, 2, 2}, jobs{2, 5, 9}, jobs{1, 5, 9}}) {
    CAPTURE(j.from);
    CAPTURE(j.to);
    const auto old = on_ranks(j.from, [&](onebit::threads t) {
      training<> data({4096});
      auto o = layered(data, t);
      for (int i = 0; i < j.steps; ++i) (void)train(o, data);
      return left_behind{saved(o), data.params};
    });
    const auto digests = on_ranks(j.to, [&](onebit::threads t) {
      training<> data({4096});
      auto o = layered(data, t);
      take_over(o, data, old);
      for (int i = 0; i < 12; ++i) CHECK_FALSE(train(o, data).skipped);
      const std::string own = saved(o);
      const auto params = data.params;
      (void)train(o, data);
      for (std::size_t k = 0; k < params.size(); ++k)
        std::copy(params[k].begin(), params[k].end(), data.params[k].begin());
      std::istringstream in(own);
      o.load(in);
      CHECK(saved(o) == own);
      return data.digest();
    });
    for (const auto digest : digests) CHECK(digest == digests[0]);
  }
}
