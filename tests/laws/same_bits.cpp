// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Laws 2 and 4: the same bits on every rank, with every instruction set, with any number of
// threads, and whether the gradients may be overwritten or not.

#include "shared.hpp"

using namespace onebit_test;
using onebit::granularity;

namespace {

/// Everything that a run leaves behind, on all ranks; the checkpoints hold all state there is.
void check_equal(const std::vector<trace>& a, const std::vector<trace>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t r = 0; r < a.size(); ++r) {
    CAPTURE(r);
    std::size_t first_wrong = none;
    for (std::size_t step = a[r].params.size(); step-- > 0;) {
      if (first_difference(a[r].params[step], b[r].params[step]) != none) first_wrong = step;
    }
    CHECK(first_wrong == none);
    CHECK((a[r].checkpoint == b[r].checkpoint));  // not printed: bytes
    CHECK(a[r].checkpoint.size() > 32);
  }
}

template <class Collective>
void check_hosts(const plan& p, const Collective& collective) {
  CAPTURE(onebit::policy_name(collective));
  CAPTURE(p.sizes);
  CAPTURE(p.ranks);
  const auto run = [&](onebit::isa set, int threads) {
    return on_ranks(p.ranks, [&](onebit::threads t) {
      return train(t, p, collective, onebit::host(threads, set));
    });
  };
  const auto expected = run(onebit::isa::scalar, 1);
  for (const onebit::isa set : instruction_sets()) {
    CAPTURE(std::string(onebit::to_string(set)));
    for (const int threads : cases({1, 3}, {2})) {
      if (set == onebit::isa::scalar && threads == 1) continue;
      CAPTURE(threads);
      check_equal(run(set, threads), expected);
    }
  }
}

std::uint64_t digest_of(const flat& x) {
  onebit::detail::digest d;
  d.add(x.data(), x.size() * sizeof(float));
  return d.value();
}

}  // namespace

TEST_CASE("law 4: scalar, AVX2, one to three threads: the same bits") {
  plan p;
  p.steps = 20;
  p.groups = {{4, 0.5F, 0.125F}, {4, 1.5F, 0.0F}};
  p.options.adam.bias_correction = true;
  for (const int w : cases({2}, {1, 3})) {
    p.ranks = w;
    for (const granularity g : {granularity::vector(), granularity::layer(), granularity::chunk(),
                                granularity::block(160)}) {
      check_hosts(p, onebit::gather_scatter{onebit::sign<onebit::l2_scale>{g}});
      check_hosts(p, onebit::all_gather{onebit::sign<onebit::l1_scale>{g}});
    }
    check_hosts(p, onebit::gather_scatter<onebit::identity>{});
    check_hosts(p, onebit::gather_scatter<ternary>{});
    check_hosts(p, onebit::all_gather<int8_tile>{});
  }
}

TEST_CASE("law 4: the same bits for every size of one tensor") {
  for (const std::size_t n : counts{1, 7, 31, 32, 33, 1000, 4097, 100003}) {
    plan p;
    p.sizes = {n};
    p.steps = n > 5000 ? 6 : 12;
    p.ranks = 2;
    check_hosts(p, onebit::gather_scatter<onebit::sign<>>{});
  }
}

TEST_CASE("law 4: gradients that must not be written give the same bits, and stay as they are") {
  plan p;
  p.steps = 12;
  for (const int w : {1, 2, 3}) {
    p.ranks = w;
    const auto both = [&](const auto& collective) {
      CAPTURE(onebit::policy_name(collective));
      const auto consumed =
          on_ranks(w, [&](onebit::threads t) { return train<float>(t, p, collective); });
      const auto kept =
          on_ranks(w, [&](onebit::threads t) { return train<const float>(t, p, collective); });
      check_equal(consumed, kept);
    };
    both(onebit::gather_scatter<onebit::sign<>>{});
#if defined(ONEBIT_TESTS_ALL)
    both(onebit::all_gather{onebit::sign<onebit::l1_scale>{granularity::block(64)}});
    both(onebit::gather_scatter<ternary>{});
    both(onebit::gather_scatter<onebit::identity>{});
#endif

    // const gradients keep their bits over a skipped and over an ordinary compressed step
    const auto changed = on_ranks(w, [&](onebit::threads t) {
      memory own(p.sizes);
      auto o = make_one_bit_adam<const float>(own, p, t, onebit::gather_scatter<onebit::sign<>>{});
      std::size_t n_changed = 0;
      for (std::size_t step = 0; step < p.steps; ++step) {
        p.fill(own, t.rank(), step);
        if (step == 7 && t.rank() == 0) own.grads[3][11] = INFINITY;
        const auto before = own.grads;
        (void)o.step(p.lr);
        n_changed += own.grads == before ? 0U : 1U;
      }
      return n_changed;
    });
    for (const std::size_t n : changed) CHECK(n == 0);
  }
}

TEST_CASE("law 2: all ranks hold the same parameters after every step") {
  const auto check = [](const plan& p, const auto& collective) {
    CAPTURE(onebit::policy_name(collective));
    CAPTURE(p.ranks);
    const auto ranks = on_ranks(p.ranks, [&](onebit::threads t) {
      const trace one = train(t, p, collective);
      std::vector<std::uint64_t> digests;
      for (const flat& x : one.params) digests.push_back(digest_of(x));
      digests.push_back(digest_of(one.agreed));
      return digests;
    });
    for (const auto& digests : ranks) CHECK(digests == ranks[0]);
    CHECK(ranks[0][0] != ranks[0][1]);  // it moves
  };
  plan p;
  p.sizes = {100003, 0, 33, 1, 4097};
  p.steps = 7;
  for (const int w : {2, 3, 4, 5, 8}) {
    p.ranks = w;
    check(p, onebit::gather_scatter<onebit::sign<>>{});
    check(p, onebit::all_gather<onebit::sign<onebit::l1_scale>>{});
    check(p, onebit::gather_scatter<int8_tile>{});
    check(p, onebit::all_gather<ternary>{});
    check(p, onebit::gather_scatter<onebit::identity>{});
    p.options.warm_up_sum = onebit::dense_sum::transport;
    check(p, onebit::gather_scatter<onebit::sign<>>{});
    p.options.warm_up_sum = onebit::dense_sum::in_bf16;
    check(p, onebit::gather_scatter<onebit::sign<>>{});
    p.options.warm_up_sum = onebit::dense_sum::rank_order;
  }
}

TEST_CASE("law 4: ranks of different machines agree, bit for bit") {
  // Every rank runs on another instruction set and another number of threads.
  const auto sets = instruction_sets();
  plan p;
  p.ranks = 3;
  p.steps = 12;
  const auto same = [&](onebit::threads t) {
    return train(t, p, onebit::gather_scatter<onebit::sign<>>{},
                 onebit::host(1, onebit::isa::scalar));
  };
  const auto mixed_hosts = [&](onebit::threads t) {
    const auto r = static_cast<std::size_t>(t.rank());
    return train(t, p, onebit::gather_scatter<onebit::sign<>>{},
                 onebit::host(t.rank() + 1, sets[r % sets.size()]));
  };
  check_equal(on_ranks(3, same), on_ranks(3, mixed_hosts));
  for (const auto sum : {onebit::dense_sum::in_bf16, onebit::dense_sum::in_int8}) {
    p.options.warm_up_sum = sum;
    check_equal(on_ranks(3, same), on_ranks(3, mixed_hosts));
  }
}

#if defined(ONEBIT_TESTS_ALL)
TEST_CASE("gradients that must not be written cost 1-bit Adam and 1-bit LAMB no memory") {
  onebit::run_threads(2, [](onebit::threads t) {
    constexpr std::size_t n = 4096;
    std::vector<float> x(n), g(n);
    std::vector<onebit::bf16> x16(n), g16(n);
    std::vector<onebit::param_group<>> written(1);
    written[0].tensors.push_back({x, g});
    std::vector<onebit::param_group<float, const float>> read(1);
    read[0].tensors.push_back({x, g});
    std::vector<onebit::param_group<onebit::bf16>> small(1);
    small[0].tensors.push_back({x16, g16});
    const auto bytes = [&](const auto& make, const auto& groups) {
      auto o = make(groups);
      for (int i = 0; i < 5; ++i) {
        for (std::size_t k = 0; k < n; ++k) {
          g[k] = noise(1, static_cast<std::uint64_t>(t.rank()), static_cast<std::uint64_t>(i), k);
          g16[k] = onebit::to_bf16(g[k]);
        }
        CHECK_FALSE(o.step(0.01F).skipped);
      }
      return o.state_bytes();
    };
    const auto adam = [&](const auto& groups) {
      return onebit::one_bit_adam(groups, t, {.freeze = {.after = 2}, .refreshes = 0});
    };
    const auto lamb = [&](const auto& groups) {
      onebit::one_bit_lamb_options o;
      o.freeze.after = 2;
      return onebit::one_bit_lamb(groups, t, o);
    };
    CHECK(bytes(adam, read) == bytes(adam, written));
    CHECK(bytes(adam, small) == bytes(adam, written));
    CHECK(bytes(lamb, read) == bytes(lamb, written));
    CHECK(bytes(lamb, small) == bytes(lamb, written));
  });
}
#endif
