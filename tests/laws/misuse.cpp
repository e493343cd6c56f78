// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Ranks that are told different things, call different optimizers, or compute in another mode: told
// on all ranks in the step where they part, with nothing changed; or harmless.

#include <bit>
#include <cfenv>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "../support/training.hpp"
#include "compositions.hpp"
#include "shared.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

using namespace onebit_test;
using namespace onebit_test::compositions;

namespace {

constexpr float nan_f = std::numeric_limits<float>::quiet_NaN();

const auto summed = [](auto& data, auto t) {
  return onebit::adam(data.groups(), t, {}, onebit::host{}, onebit::dense_sum::transport);
};
/// After `before` steps calls odd(optimizer, data) on rank 1 and even(...) on the others; gives
/// what each was told, and checks that parameters, and the run after it, are those of a run without
/// it.
template <class Make, class Odd, class Even>
std::vector<std::string> parted(int n, int before, const Make& make, const Odd& odd,
                                const Even& even) {
  const auto run = [&](bool disturbed) {
    return on_ranks(n, [&](onebit::threads t) {
      training<> data;
      auto o = make(data, t);
      for (int i = 0; i < before; ++i) (void)train(o, data);
      std::string told;
      if (disturbed) {
        const auto params = data.params;
        data.compute_gradients(t.rank(), o.steps());
        try {
          t.rank() == 1 ? odd(o, data) : even(o, data);
        } catch (const onebit::error& e) {
          told = e.what();
        }
        CHECK(data.params == params);
        CHECK(o.steps() == static_cast<std::uint64_t>(before));
      }
      for (int i = 0; i < 4; ++i) CHECK_FALSE(train(o, data).skipped);
      return std::pair(told, saved(o) + std::to_string(data.digest()));
    });
  };
  const auto whole = run(false), parts = run(true);
  std::vector<std::string> told;
  for (std::size_t r = 0; r < whole.size(); ++r) {
    CHECK(parts[r].second == whole[r].second);
    told.push_back(parts[r].first);
  }
  return told;
}

template <class F>
void for_all(const F& f) {
  for (const int before : {0, 2, 3, 5}) {
    CAPTURE(before);
    f(before, plain);
    f(before, summed);
    f(before, scattered);
    f(before, bucketed);
    f(before, gathered);
    f(before, by_node);
  }
  for (const int before : {0, 2, 3}) f(before, skipping);
}

}  // namespace

TEST_CASE("another learning rate on one rank: all are told, whoever it is") {
  for_all([](int before, const auto& make) {
    for (const int n : {2, 4}) {
      const auto told = parted(
          n, before, make, [](auto& o, auto&) { (void)o.step(0.02F); },
          [](auto& o, auto&) { (void)o.step(0.01F); });
      for (int r = 0; r < n; ++r) {
        CAPTURE(r);
        // of two ranks the lower one is believed
        CHECK(told[static_cast<std::size_t>(r)] ==
              contains{std::string("lr: 0.02 on rank 1, 0.01 on rank 0") +
                       (n == 4 ? " (3 of 4 ranks are alike)" : " [rank")});
      }
    }
  });
}

TEST_CASE("another loss scale, or other options of a group, on one rank: all are told") {
  for_all([](int before, const auto& make) {
    auto told = parted(
        2, before, make, [](auto& o, auto&) { (void)o.step(0.01F, 0.5F); },
        [](auto& o, auto&) { (void)o.step(0.01F); });
    for (const auto& text : told) {
      CHECK(text == contains{"the inverse loss scale: 0.5 on rank 1, 1 on rank 0"});
    }
    told = parted(
        2, before, make,
        [](auto& o, auto&) {
          o.set_group(1, 0.5F, 0.125F);
          try {
            (void)o.step(0.01F);
          } catch (...) {
            o.set_group(1, 0.5F, 0);
            throw;
          }
        },
        [](auto& o, auto&) { (void)o.step(0.01F); });
    for (const auto& text : told) {
      CHECK(text == contains{"weight_decay of group 1: 0.125 on rank 1, 0 on rank 0"});
    }
  });
}

TEST_CASE("a learning rate that is refused on one rank alone fails on all, and nobody waits") {
  for_all([](int before, const auto& make) {
    for (const float bad : {nan_f, -1.0F}) {
      const auto told = parted(
          2, before, make,
          [&](auto& o, auto& data) {
            const auto grads = data.grads;
            try {
              (void)o.step(bad);
            } catch (const onebit::invalid_input&) {
              CHECK(data.grads == grads);  // a call that repeats it with a good rate finds them
              throw;
            }
          },
          [](auto& o, auto&) { (void)o.step(0.01F); });
      CHECK(told[1] == contains{"with lr "});
      CHECK(told[0] ==
            contains{std::isnan(bad) ? "lr: nan on rank 1, 0.01" : "lr: -1 on rank 1, 0.01"});
    }
  });
}

TEST_CASE("rates of which one makes another plan: all are told, and go on together") {
  // With rate 0 in its first step 0/1 Adam exchanges nothing; with another it would.
  for (const float odd_rate : {nan_f, 0.01F}) {
    const auto digests = on_ranks(3, [&](onebit::threads t) {
      training<> data;
      auto o = skipping(data, t);
      data.compute_gradients(t.rank(), 0);
      std::string told;
      try {
        (void)o.step(t.rank() == 1 ? odd_rate : 0.0F);
      } catch (const onebit::error& e) {
        told = e.what();
      }
      CHECK_FALSE(told.empty());
      data.compute_gradients(t.rank(), 0);
      (void)o.step(0);
      for (int i = 0; i < 6; ++i) (void)train(o, data);
      while (train(o, data).phase != onebit::phase::compressed) {
      }
      return data.digest();
    });
    CHECK(digests[0] == digests[1]);
    CHECK(digests[0] == digests[2]);
  }
}

TEST_CASE("a loss scale of one rank's own in local steps is its own business") {
  const auto digests = on_ranks(2, [](onebit::threads t) {
    training<> data;
    auto o = skipping(data, t);
    for (int i = 0; i < 30; ++i) {
      data.compute_gradients(t.rank(), o.steps());
      const bool local = o.schedule().due_in(o.steps(), 0.01F).nothing();
      const float scale = local && t.rank() == 1 ? 0.5F : 1.0F;
      for (auto& g : data.grads) {
        for (float& x : g) x /= scale;
      }
      (void)o.step(0.01F, scale);
    }
    while (train(o, data).phase != onebit::phase::compressed) {
    }
    return data.digest();
  });
  CHECK(digests[0] == digests[1]);
}

TEST_CASE("local steps with another learning rate on one rank: told at the next exchange") {
  const auto told = on_ranks(2, [](onebit::threads t) {
    training<> data;
    onebit::zero_one_adam_options o;
    o.schedule.warmup_steps = 1;
    o.schedule.doubling_steps = 2;
    o.schedule.max_interval = 4;
    auto optimizer = onebit::zero_one_adam(data.groups(), t, o);
    bool odd = false;
    for (int i = 0; i < 40; ++i) {
      data.compute_gradients(t.rank(), optimizer.steps());
      const auto phase = [&] { return optimizer.schedule().due_in(optimizer.steps(), 0.01F); }();
      const bool now_odd = phase.nothing() && !odd;
      odd = odd || now_odd;
      try {
        (void)optimizer.step(now_odd && t.rank() == 1 ? 0.02F : 0.01F);
      } catch (const onebit::rank_mismatch& e) {
        CHECK(odd);
        CHECK_FALSE(phase.nothing());
        return std::string(e.what());
      }
    }
    return std::string("nothing");
  });
  for (const auto& text : told)
    CHECK(text == contains{"earlier local steps had another lr, plan or group option, on rank 1"});
}

TEST_CASE("a rank that refreshes v in another step than the others is found in the exchange") {
  const auto told = on_ranks(3, [](onebit::threads t) {
    training<> data;
    const std::uint64_t refresh = t.rank() == 1 ? 7 : 6;
    const onebit::custom_schedule when([refresh](std::uint64_t step, float) {
      return onebit::due{.average = step < 4 || step == refresh, .exchange = step >= 4};
    });
    onebit::optimizer o("refreshes", data.groups(), t,
                        onebit::adam_rule<onebit::host>({}, onebit::host()), when,
                        onebit::gather_scatter<onebit::sign<>>{});
    for (int step = 0; step < 6; ++step) (void)train(o, data);
    return thrown<onebit::rank_mismatch>([&] { (void)train(o, data); });
  });
  for (const auto& text : told)
    CHECK(text == contains{"what is averaged for v: nothing on rank 1, squares on rank 0"});
}

TEST_CASE("two optimizers of one shape, called in another order on one rank: all are told") {
  const auto check = [](const auto& make) {
    for (const int before : {1, 5}) {
      CAPTURE(before);
      const auto told = on_ranks(3, [&](onebit::threads t) {
        training<> data_a, data_b;
        auto a = make(data_a, t);
        auto b = make(data_b, t);
        for (int i = 0; i < before; ++i) {
          (void)train(a, data_a);
          (void)train(b, data_b);
        }
        const auto params = data_a.params;
        auto& first = t.rank() == 1 ? b : a;
        auto& first_data = t.rank() == 1 ? data_b : data_a;
        const auto text = thrown<onebit::rank_mismatch>([&] { (void)train(first, first_data); });
        CHECK(data_a.params == params);
        CHECK_FALSE(train(a, data_a).skipped);  // and go on in one order
        CHECK_FALSE(train(b, data_b).skipped);
        return std::pair(text, data_a.digest() + data_b.digest());
      });
      for (std::size_t r = 0; r < 3; ++r) {
        CHECK(told[r].first ==
              contains{r == 1 ? "rank 0 sent the messages" : "rank 1 sent the messages"});
        CHECK(told[r].first == contains{"call their optimizers in the same order"});
        CHECK(told[r].second == told[0].second);
      }
    }
  };
  check(plain);
  check(scattered);
  check(gathered);
  check(bucketed);
}

TEST_CASE("buckets announced by some ranks only") {
  // Threads carry a collective out when it is called; the order of both kinds shows.
  const auto run = [](bool disturbed) {
    return on_ranks(2, [&](onebit::threads t) {
      training<> data;
      auto o = bucketed(data, t);
      std::string told;
      for (int i = 0; i < 6; ++i) {
        data.compute_gradients(t.rank(), o.steps());
        const float lr = 0.01F;
        try {
          if (disturbed && t.rank() == 0) {
            o.begin(lr);
            for (std::size_t k = data.params.size(); k > 2; --k) o.ready(k - 1);
          }
          (void)o.step(lr);
        } catch (const onebit::error& e) {
          return std::pair(std::string(e.what()), std::uint64_t{0});
        }
      }
      return std::pair(std::string(), data.digest());
    });
  };
  const auto clean = run(false), unequal = run(true);
  for (std::size_t r = 0; r < 2; ++r) {
    const bool same = unequal[r].first.empty() && unequal[r].second == clean[r].second;
    const bool told = !unequal[r].first.empty();
    CHECK((same || told));
  }
}

TEST_CASE("a bit that flips in parameters or state of one rank is found by verify, and named") {
  const auto check = [](const auto& make, int what, std::uint64_t bit) {
    const auto told = on_ranks(3, [&](onebit::threads t) {
      training<> data;
      auto o = make(data, t);
      for (int i = 0; i < 9; ++i) (void)train(o, data);
      o.verify();
      if (t.rank() == 2) {
        const auto flip = [&](float& x) {
          x = std::bit_cast<float>(std::bit_cast<std::uint32_t>(x) ^ 1U << bit);
        };
        const onebit::bf16* const v = o.rule().agreed_variance();
        if (what == 0) {
          flip(data.params[2][3000]);
        } else if (v == nullptr) {
          const float* const dense = o.rule().variance();
          const float* const at = dense != nullptr ? dense : o.rule().inverse();
          flip(const_cast<float&>(at[64 + 3000]));
        } else {
          const_cast<onebit::bf16&>(v[64 + 3000]).bits ^= static_cast<std::uint16_t>(1U << bit / 2);
        }
      }
      for (int i = 0; i < 4; ++i) {
        try {
          data.compute_gradients(t.rank(), o.steps());
          (void)o.step(0.01F);
          if (o.steps() == 12) o.verify();
        } catch (const onebit::rank_mismatch& e) {
          return std::string(e.what());
        }
      }
      return std::string("nothing");
    });
    for (const auto& text : told) {
      CHECK(text == contains{"after step 12 rank 2 has other "});
      CHECK(text == contains{"2 of 3 ranks are alike"});
    }
  };
  for (const std::uint64_t k : {1U, 4U, 16U}) {
    const auto told = on_ranks(3, [&](onebit::threads t) {
      training<> data;
      auto o = skipping(data, t);
      for (int i = 0; i < 20; ++i) (void)train(o, data);
      if (t.rank() == 2) {
        auto* const v = const_cast<onebit::bf16*>(o.rule().agreed_variance());
        v[64 + 3000].bits += 0x80;  // twice as large
      }
      try {
        for (std::uint64_t i = 0; i < k || o.rule().moved(); ++i) (void)train(o, data);
        o.verify();
      } catch (const onebit::rank_mismatch& e) {
        return std::string(e.what());
      }
      return std::string("nothing");
    });
    for (const auto& text : told) CHECK(text == contains{"rank 2 has other "});
  }
  for (const std::uint64_t bit : {0U, 13U, 22U, 31U}) {
    CAPTURE(bit);
    check(plain, 0, bit);
    check(scattered, 0, bit);
    check(gathered, 0, bit);
    if (bit < 31) check(plain, 1, bit);
    if (bit < 31) check(scattered, 1, bit);
  }
}

TEST_CASE("ranks that are alike are never found to differ, in any algorithm and phase") {
  for_all([](int before, const auto& make) {
    const auto steps = on_ranks(4, [&](onebit::threads t) {
      training<> data;
      auto o = make(data, t);
      int n_verified = 0;
      for (int i = 0; i < 10 + before; ++i) {
        data.compute_gradients(t.rank(), o.steps());
        if (i == 7 && t.rank() == 1) data.grads[2][17] = nan_f;
        (void)o.step(0.01F);
        try {
          o.verify();
          ++n_verified;
        } catch (const onebit::invalid_input& e) {  // between two exchanges of 0/1 Adam
          CHECK(std::string(e.what()) == contains{"between two exchanges"});
        }
      }
      CHECK(n_verified >= 4);
      return o.steps();
    });
    CHECK(steps[0] >= static_cast<std::uint64_t>(9 + before));
  });
}

TEST_CASE("rounding, flushing and traps of the caller's thread change no bit") {
  const auto run = [](int mode, int threads) {
    return on_ranks(3, [&](onebit::threads t) {
      training<> data;
      for (auto& p : data.params) {
        for (float& x : p) x *= 1e-38F;  // subnormal at once
      }
      auto o =
          onebit::one_bit_adam(data.groups(), t, frozen_after(3),
                               onebit::gather_scatter<onebit::sign<>>{}, onebit::host(threads));
      std::fenv_t before;
      std::fegetenv(&before);
      if (t.rank() == 0 && mode == 1) std::fesetround(FE_UPWARD);
#if defined(__x86_64__)
      if (t.rank() == 0 && mode == 2) _mm_setcsr(_mm_getcsr() | 0x8040U);
      // traps for what the library's kernels do on purpose: inf 0, and overflows
      if (t.rank() == 0 && mode == 3) _mm_setcsr(_mm_getcsr() & ~0x680U);
#endif
      for (int i = 0; i < 8; ++i) {
        for (std::size_t k = 0; k < data.grads.size(); ++k) {
          for (std::size_t j = 0; j < data.grads[k].size(); ++j) {
            data.grads[k][j] = static_cast<float>((i * 31 + static_cast<int>(j) * 7) % 13 - 6) *
                               (t.rank() == 0 ? 0x1p-6F : 0x1.8p-5F);  // exact in any mode
          }
        }
        if (i % 2 == 0) o.begin(0x1p-126F);
        (void)o.step(0x1p-126F);  // parameters stay subnormal
      }
      std::fesetenv(&before);
      return data.digest();
    });
  };
  const auto usual = run(0, 1);
  CHECK(usual[0] == usual[1]);
  for (const int mode : {1, 2, 3}) {
    for (const int threads : {1, 3}) {
      CAPTURE(mode);
      CHECK(run(mode, threads) == usual);
    }
  }
}
