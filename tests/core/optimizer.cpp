// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// What an optimizer costs, what it survives, and that it can be moved.

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <onebit/onebit.hpp>
#include <onebit/testing/scripted.hpp>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/training.hpp"

using onebit_test::contains;
using onebit_test::frozen_after;
using onebit_test::on_ranks;
using onebit_test::saved;
using onebit_test::script;
using onebit_test::scripted;
using onebit_test::thrown;
using onebit_test::training;

namespace {

const auto plain = [](auto& data, auto t) { return onebit::adam(data.groups(), t); };
const auto summed_by_transport = [](auto& data, auto t) {
  return onebit::adam(data.groups(), t, {}, onebit::host{}, onebit::dense_sum::transport);
};
const auto scattered = [](auto& data, auto t) {
  return onebit::one_bit_adam(data.groups(), t, frozen_after(3));
};
const auto gathered = [](auto& data, auto t) {
  return onebit::one_bit_adam(data.groups(), t, frozen_after(3),
                              onebit::all_gather<onebit::sign<>>{});
};
const auto layered = [](auto& data, auto t) {
  onebit::one_bit_lamb_options o;
  o.freeze.after = 3;
  return onebit::one_bit_lamb(data.groups(), t, o);
};
const auto skipping = [](auto& data, auto t) {
  onebit::zero_one_adam_options o;
  o.schedule.kappa = 1;
  o.schedule.warmup_steps = 3;
  o.schedule.doubling_steps = 2;
  o.schedule.max_interval = 2;
  return onebit::zero_one_adam(data.groups(), t, o);
};

/// Gradients that are only read, over the memory of a `training<float>`.
std::vector<onebit::param_group<float, const float>> read_only(training<>& data) {
  std::vector<onebit::param_group<float, const float>> groups;
  for (const auto& g : data.groups()) {
    groups.push_back({{}, g.lr_factor, g.weight_decay});
    for (const auto& x : g.tensors) groups.back().tensors.push_back({x.params, x.grads});
  }
  return groups;
}
const auto scattered_read_only = [](auto& data, auto t) {
  return onebit::one_bit_adam(read_only(data), t, frozen_after(3));
};
const auto gathered_read_only = [](auto& data, auto t) {
  return onebit::one_bit_adam(read_only(data), t, frozen_after(3),
                              onebit::all_gather<onebit::sign<>>{});
};

constexpr int n_fault_steps = 7;

float rate(std::uint64_t step) { return 0.01F / static_cast<float>(1 + step % 3); }

/// What undisturbed steps leave behind: saved states, how many collectives each step had, and
/// whether something was frozen after it.
struct record {
  std::vector<std::string> states;
  std::vector<std::uint64_t> n_collectives;
  std::vector<bool> frozen;
};
template <class Make>
std::vector<record> undisturbed(int n, const Make& make) {
  return on_ranks(n, [&](onebit::threads t) {
    const auto told = std::make_shared<script>();
    training<> data;
    auto optimizer = make(data, scripted(t, told));
    record r;
    for (int i = 0; i < n_fault_steps; ++i) {
      const auto calls = told->calls;
      data.compute_gradients(t.rank(), optimizer.steps());
      (void)optimizer.step(rate(optimizer.steps()));
      r.n_collectives.push_back(told->calls - calls);
      r.states.push_back(saved(optimizer));
      r.frozen.push_back(optimizer.rule().frozen());
    }
    return r;
  });
}

/// Before every step each of its collectives fails on all ranks, without the data going through and
/// with: nothing may change, and the step that works then must leave the same bits. The warm-up
/// ends at the beginning of the first step after it, whatever becomes of that step.
template <class Make>
void check_faults(const Make& make) {
  for (const int n : {2, 3}) {
    CAPTURE(n);
    const auto whole = undisturbed(n, make);
    onebit::run_threads(n, [&](onebit::threads t) {
      const record& expected = whole[static_cast<std::size_t>(t.rank())];
      const auto told = std::make_shared<script>();
      training<> data;
      auto optimizer = make(data, scripted(t, told));
      for (std::size_t i = 0; i < n_fault_steps; ++i) {
        for (std::uint64_t k = 0; k < 2 * expected.n_collectives[i]; ++k) {
          CAPTURE(i);
          CAPTURE(k);
          const auto params = data.params;
          const auto before = saved(optimizer);
          const auto bytes = optimizer.state_bytes();
          const bool freezes = k == 0 && i > 0 && expected.frozen[i] && !expected.frozen[i - 1];
          CHECK(optimizer.rule().frozen() == (expected.frozen[i] && !freezes));
          told->fail_at = told->calls + k / 2;
          told->fail_after_delivery = k % 2 == 1;
          data.compute_gradients(t.rank(), optimizer.steps());
          CHECK(thrown<onebit::transport_error>([&] {
                  (void)optimizer.step(rate(optimizer.steps()));
                }) == "scripted: the network is down");
          CHECK(data.params == params);
          CHECK(optimizer.rule().frozen() == expected.frozen[i]);
          CHECK((saved(optimizer) == before) == !freezes);
          CHECK(optimizer.steps() == i);
          if (!freezes) CHECK(optimizer.state_bytes() == bytes);
        }
        told->fail_at = script::never;
        data.compute_gradients(t.rank(), optimizer.steps());
        const auto report = optimizer.step(rate(optimizer.steps()));
        CHECK_FALSE(report.skipped);
        CHECK(report.collectives == expected.n_collectives[i]);
        CHECK(saved(optimizer) == expected.states[i]);
      }
    });
  }
}

/// Reports against what the transport itself saw.
template <class Make>
void check_traffic(const Make& make) {
  for (const int n : {1, 2, 3, 5}) {
    CAPTURE(n);
    onebit::run_threads(n, [&](onebit::threads t) {
      const auto told = std::make_shared<script>();
      training<> data;
      auto optimizer = make(data, scripted(t, told));
      for (int i = 0; i < 7; ++i) {
        const script before = *told;
        const auto report = train(optimizer, data);
        CHECK(report.collectives == told->calls - before.calls);
        CHECK(report.bytes_sent == told->bytes_to_others - before.bytes_to_others);
        const double parts =
            report.encode_seconds + report.communicate_seconds + report.update_seconds;
        CHECK(parts > 0);
        CHECK(parts < 60);
      }
    });
  }
}

std::size_t padded(const std::vector<std::size_t>& sizes) {
  std::size_t n = 0;
  for (const std::size_t s : sizes) n += (s + 31) / 32 * 32;
  return n;
}

}  // namespace

TEST_CASE("a transport that fails: Adam") {
  check_faults(plain);
  check_faults(summed_by_transport);
}
TEST_CASE("a transport that fails: 1-bit Adam") {
  check_faults(scattered);
  check_faults(gathered);
}
TEST_CASE("a transport that fails: 1-bit Adam over gradients that are only read") {
  check_faults(scattered_read_only);
  check_faults(gathered_read_only);
}
TEST_CASE("a transport that fails: 1-bit LAMB and 0/1 Adam") {
  check_faults(layered);
  check_faults(skipping);
}

TEST_CASE("a transport that fails for good: what was learned can still be saved") {
  const auto states = on_ranks(2, [](onebit::threads t) {
    const auto told = std::make_shared<script>();
    training<> data;
    auto optimizer = scattered(data, scripted(t, told));
    for (int i = 0; i < 5; ++i) (void)train(optimizer, data);
    told->fail_at = told->calls + 1;
    CHECK_THROWS_AS((void)train(optimizer, data), onebit::transport_error);
    return saved(optimizer);
  });
  const auto expected = on_ranks(2, [](onebit::threads t) {
    training<> data;
    auto optimizer = scattered(data, t);
    for (int i = 0; i < 5; ++i) (void)train(optimizer, data);
    return saved(optimizer);
  });
  CHECK(states == expected);
}

TEST_CASE("a failure on one rank alone, after the others went on, is found in the next step") {
  for (const auto last_of_step : {3U, 5U, 9U}) {  // in the warm-up, its end, later: 2 a step
    onebit::run_threads(3, [&](onebit::threads t) {
      const auto told = std::make_shared<script>();
      training<> data;
      auto optimizer = scattered(data, scripted(t, told));
      const auto params = data.params;
      const auto start = saved(optimizer);
      told->fail_at = t.rank() == 1 ? told->calls + last_of_step : script::never;
      told->fail_after_delivery = true;
      for (unsigned i = 0; i < last_of_step / 2; ++i) (void)train(optimizer, data);
      if (t.rank() == 1) {
        CHECK_THROWS_AS((void)train(optimizer, data), onebit::transport_error);
      } else {
        (void)train(optimizer, data);
      }
      const auto before = saved(optimizer);
      const auto digest = data.digest();
      const auto steps = optimizer.steps();
      const auto text = thrown<onebit::rank_mismatch>([&] { (void)train(optimizer, data); });
      CHECK(data.digest() == digest);
      CHECK(optimizer.steps() == steps);
      if (last_of_step == 5) {  // rank 1 is in the warm-up, the others have ended it in this step
        CHECK(text == contains{"every rank must make the same calls"});
        CHECK(optimizer.rule().frozen() == (t.rank() != 1));
      } else {
        CHECK(text == contains{t.rank() == 1 ? "rank 0 is at step " : "rank 1 is at step "});
      }
      if (last_of_step != 5 || t.rank() == 1) CHECK(saved(optimizer) == before);
      // Going back to a common checkpoint mends it.
      for (std::size_t i = 0; i < params.size(); ++i) {
        std::copy(params[i].begin(), params[i].end(), data.params[i].begin());
      }
      std::istringstream in(start);
      optimizer.load(in);
      CHECK_FALSE(train(optimizer, data).skipped);
    });
  }
}

TEST_CASE("reports tell what the transport saw") {
  check_traffic(plain);
  check_traffic(summed_by_transport);
  check_traffic(scattered);
  check_traffic(gathered);
  check_traffic(layered);
  check_traffic(skipping);
}

TEST_CASE("bytes and collectives of a compressed step keep to the budget") {
  const std::vector<std::size_t> sizes = {std::size_t{1} << 18, 1000, 32, 7};
  const auto n = static_cast<double>(padded(sizes));
  for (const int w : {2, 3, 8}) {
    onebit::run_threads(w, [&](onebit::threads t) {
      training<> data(sizes);
      auto optimizer = scattered(data, t);
      for (int i = 0; i < 3; ++i) {
        const auto dense = train(optimizer, data);
        CHECK(dense.collectives == 2);
        CHECK(static_cast<double>(dense.bytes_sent) <= 2.0 * (w - 1) / w * 4 * n + 220.0 * w);
      }
      const auto report = train(optimizer, data);
      CHECK(report.collectives == 2);
      // Per slot: one scale per tensor and tile that may be cut, a status, the rounding to a word.
      const double scales = static_cast<double>(sizes.size()) + n / w / onebit::tile_elements + 2;
      const double extra = 2.0 * (w - 1) * (4.0 * scales + 20 + 4);
      CHECK(static_cast<double>(report.bytes_sent) <= 2.0 * (w - 1) / w * n / 8 + extra);
      CHECK(static_cast<double>(report.bytes_sent) >= 2.0 * (w - 1) / w * n / 8);
    });
  }
}

TEST_CASE("state after the freeze keeps to the budget of 8.25 + 4/W bytes per parameter") {
  for (const auto& sizes :
       {std::vector<std::size_t>{std::size_t{1} << 20},
        std::vector<std::size_t>{std::size_t{1} << 19, 1000, 0, 100003, 1, 33}}) {
    const auto n = padded(sizes);
    for (const int w : {2, 4, 8}) {
      CAPTURE(w);
      onebit::run_threads(w, [&](onebit::threads t) {
        training<> data(sizes);
        const auto ranks = static_cast<std::size_t>(w);
        // scales of a slot: of its part of the tensors' tiles, cut at both ends
        const std::size_t scales = sizes.size() + n / ranks / onebit::tile_elements + 2;
        const std::size_t tables = (2 * ranks + 2) * (4 * scales + 8) + 128;
        auto optimizer = onebit::one_bit_adam(data.groups(), t, frozen_after(1));
        for (int i = 0; i < 2; ++i) {               // before the warm-up's one step, and after it
          CHECK(optimizer.state_bytes() >= 8 * n);  // m and v; the rest comes with the freeze
          CHECK(optimizer.state_bytes() <= 8 * n + 4 * ranks * scales);
          CHECK_FALSE(optimizer.rule().frozen());
          (void)train(optimizer, data);
        }
        CHECK(optimizer.rule().frozen());
        CHECK(optimizer.state_bytes() <= 8 * n + n / 4 + 4 * n / ranks + tables);
        CHECK(optimizer.state_bytes() >= 8 * n + n / 4 + 4 * (n / ranks - 32 * ranks));
        const auto bytes = optimizer.state_bytes();
        (void)train(optimizer, data);
        CHECK(optimizer.state_bytes() == bytes);

        training<> other(sizes);
        auto reads = onebit::one_bit_adam(read_only(other), t, frozen_after(1));
        for (int i = 0; i < 3; ++i) (void)train(reads, other);
        CHECK(reads.state_bytes() == bytes);  // messages are made twice instead of kept
        CHECK(other.digest() == data.digest());
      });
    }
  }
}

TEST_CASE("gradients that are only read stay as they are") {
  onebit::run_threads(2, [](onebit::threads t) {
    training<> data;
    auto optimizer = scattered_read_only(data, t);
    for (int i = 0; i < 6; ++i) {
      data.compute_gradients(t.rank(), optimizer.steps());
      const auto grads = data.grads;
      (void)optimizer.step(0.01F);
      CHECK(data.grads == grads);
    }
  });
}

TEST_CASE("an optimizer can be moved, constructed and assigned, between any two steps") {
  const auto expected = on_ranks(2, [](onebit::threads t) {
    training<> data;
    auto optimizer = scattered_read_only(data, t);
    for (int i = 0; i < 6; ++i) (void)train(optimizer, data);
    return saved(optimizer);
  });
  const auto moved = on_ranks(2, [](onebit::threads t) {
    training<> data, elsewhere;
    auto first = scattered_read_only(data, t);
    static_assert(!std::is_copy_constructible_v<decltype(first)>);
    for (int i = 0; i < 2; ++i) (void)train(first, data);
    auto second = std::move(first);
    for (int i = 0; i < 2; ++i) (void)train(second, data);
    auto third = scattered_read_only(elsewhere, t);
    for (int i = 0; i < 5; ++i) (void)train(third, elsewhere);
    third = std::move(second);
    for (int i = 0; i < 2; ++i) (void)train(third, data);
    return saved(third);
  });
  CHECK(moved == expected);
}

TEST_CASE("nothing to train: no groups, no tensors, empty tensors") {
  for (const int w : {1, 3}) {
    onebit::run_threads(w, [](onebit::threads t) {
      for (int kind = 0; kind < 3; ++kind) {
        std::vector<onebit::param_group<>> groups(kind == 0 ? 0 : 2);
        if (kind == 2) groups[1].tensors.resize(3);
        auto a = onebit::adam(groups, t);
        auto b = onebit::one_bit_adam(groups, t, frozen_after(2));
        auto c =
            onebit::one_bit_adam(groups, t, frozen_after(2), onebit::all_gather<onebit::sign<>>{});
        auto d = onebit::one_bit_lamb(
            groups, t,
            {.freeze = {2}, .refreshes = 16, .warm_up_sum = onebit::dense_sum::rank_order});
        for (int i = 0; i < 4; ++i) {
          CHECK_FALSE(a.step(0.1F).skipped);
          CHECK_FALSE(b.step(0.1F).skipped);
          CHECK_FALSE(c.step(0.1F).skipped);
          CHECK_FALSE(d.step(0.1F).skipped);
        }
        std::stringstream stream;
        b.save(stream);
        CHECK_NOTHROW(b.load(stream));
        CHECK(b.n_parameters() == 0);
      }
    });
  }
}

TEST_CASE("more ranks than words: some serve nothing") {
  for (const auto& make : {0, 1}) {
    const auto digests = on_ranks(7, [&](onebit::threads t) {
      training<> data({33, 1});
      auto a = scattered(data, t);
      training<> other({33, 1});
      auto b = gathered(other, t);
      for (int i = 0; i < 6; ++i) {
        (void)train(a, data);
        (void)train(b, other);
      }
      return make == 0 ? data.digest() : other.digest();
    });
    for (const auto d : digests) CHECK(d == digests[0]);
  }
}

TEST_CASE("ranks may share one backend, whose threads they then take in turns") {
  const auto run = [](const onebit::host& shared) {
    return on_ranks(3, [&](onebit::threads t) {
      training<> data({20000, 33});
      auto optimizer = onebit::one_bit_adam(data.groups(), t, frozen_after(3),
                                            onebit::gather_scatter<onebit::sign<>>{}, shared);
      for (int i = 0; i < 12; ++i) (void)train(optimizer, data);
      return saved(optimizer);
    });
  };
  CHECK(run(onebit::host(3)) == run(onebit::host(1)));
}

TEST_CASE("groups: rate and decay change between steps, alike in every phase") {
  const auto train_with = [](bool early, float factor, float decay) {
    return on_ranks(2, [&](onebit::threads t) {
      training<> data;
      auto groups = data.groups();
      if (early) groups[1].lr_factor = factor, groups[1].weight_decay = decay;
      auto o = onebit::one_bit_adam(groups, t, frozen_after(4));
      if (!early) o.set_group(1, factor, decay);
      for (int i = 0; i < 8; ++i) (void)train(o, data);
      return data.params;
    })[0];
  };
  CHECK(train_with(true, 0.25F, 0.1F) == train_with(false, 0.25F, 0.1F));

  onebit::run_threads(2, [](onebit::threads t) {
    training<> data;
    auto o = onebit::one_bit_adam(data.groups(), t, frozen_after(4));
    for (int i = 0; i < 12; ++i) {
      if (i == 3) o.set_group(1, 0, 0);  // stands still from here on, through the freeze
      if (i == 9) o.set_group(1, 1, 0);
      const auto before = data.params;
      (void)train(o, data);
      CHECK(before[0] != data.params[0]);
      CHECK((before[2] == data.params[2]) == (i >= 3 && i < 9));
    }
    CHECK(thrown<onebit::invalid_input>([&] { o.set_group(2, 1, 0); }) == contains{"group 2 of 2"});
    CHECK(thrown<onebit::invalid_input>([&] { o.set_group(0, -1, 0); }) ==
          contains{"group 0 has lr_factor -1"});
    o.set_group(0, 1e30F, 0);
    data.compute_gradients(t.rank(), 99);
    CHECK(thrown<onebit::invalid_input>([&] { (void)o.step(1e10F); }) ==
          contains{"lr_factor up to 1e+30"});
  });
}

TEST_CASE("rest, set_group and rebind: their errors name the rank") {
  (void)on_ranks(1, [](onebit::threads t) {
    training<> data;
    auto o = onebit::adam(data.groups(), t);
    o.rest(1);
    o.set_group(0, 0.5F, 0);
    o.set_group(1, {.own = {.beta1 = 0.5}});
    CHECK(o.rebind(data.groups()) == 0);
    training<> moved;
    CHECK(o.rebind(moved.groups()) == 5);
    CHECK(thrown<onebit::invalid_input>([&] { o.rest(6); }) ==
          contains{"rest(6) of 6 tensors [rank 0/1]"});
    CHECK(thrown<onebit::invalid_input>([&] { o.set_group(1, {.own = {.beta1 = 1}}); }) ==
          contains{"group 1: beta1 is 1, beta2 0.999; both must be in [0, 1) [rank 0/1]"});
    CHECK(thrown<onebit::invalid_input>([&] { (void)o.rebind({}); }) ==
          contains{"rebind: 0 groups, but the optimizer has 2 [rank 0/1]"});
    return 0;
  });
}
