// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// lion and one_bit_lion against a small reference in double precision; ties and elements without a
// gradient; what is sent and what is kept.
//
// A sign is no small error: gradients are such that no decision of the reference is nearer to zero
// than any rounding (`margin`), but where it is exactly zero.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <onebit/collective/hierarchical.hpp>
#include <onebit/onebit.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "../compiled/emulated.hpp"
#include "../support/emulated.hpp"
#include "../support/training.hpp"

using namespace onebit_test;

namespace {

using sizes_of = std::vector<std::size_t>;
using tensors_of = std::vector<std::vector<double>>;

const onebit::gather_scatter<onebit::unit_sign> vote_of_all{};
const onebit::all_gather<onebit::unit_sign> mean_of_all{};

/// This rank's gradient: every 17th element has none on any rank, every 29th on rank 0 alone.
float gradient(int rank, std::uint64_t step, std::size_t t, std::size_t i) {
  if (i % 17 == 5 || (i % 29 == 3 && rank > 0)) return 0;
  const auto r = static_cast<std::uint64_t>(rank);
  return noise(((step * 31 + r) * 1009 + t) * 1000003 + i);
}
void fill(training<>& data, int rank, std::uint64_t step) {
  for (std::size_t t = 0; t < data.grads.size(); ++t) {
    for (std::size_t i = 0; i < data.grads[t].size(); ++i) {
      data.grads[t][i] = gradient(rank, step, t, i);
    }
  }
}

enum class form { dense, majority, mean };

/// The side of a coin, as unit_sign.hpp says it.
double coin(std::uint64_t step, std::size_t word, std::size_t bit, int rank, bool served) {
  const auto r = static_cast<std::uint32_t>(rank);
  auto x = static_cast<std::uint32_t>(word) + (served ? 65536U : r / 2) * 0x9E3779B9U;
  x = (x ^ (x >> 16U)) * 0x85EBCA6BU;
  x = (x ^ (x >> 13U)) * 0xC2B2AE35U;
  x ^= x >> 16U;
  const bool turned = (step + (served ? 0 : r)) % 2 == 1;
  return (((x >> bit) & 1U) != 0) != turned ? 1 : -1;
}

/// Distributed Lion, as the paper writes it, of `n` ranks.
struct reference {
  int n;
  form how;
  double beta1 = 0.9, beta2 = 0.99;
  tensors_of x;
  std::vector<tensors_of> m;
  double margin = 1;
  std::uint64_t ties = 0;

  reference(int ranks, form f, const sizes_of& sizes) : n(ranks), how(f) {
    const training<> start(sizes);
    for (const auto& p : start.params) x.emplace_back(p.begin(), p.end());
    tensors_of zero;
    for (const std::size_t size : sizes) zero.emplace_back(size, 0.0);
    m.assign(how == form::dense ? 1 : static_cast<std::size_t>(n), zero);
  }
  double vote(std::size_t r, std::size_t t, std::size_t i, double g) {
    const double u = beta1 * m[r][t][i] + (1 - beta1) * g;
    m[r][t][i] = beta2 * m[r][t][i] + (1 - beta2) * g;
    if (u != 0) margin = std::min(margin, std::fabs(u));
    return u > 0 ? 1 : u < 0 ? -1 : 0;
  }
  double direction(std::uint64_t step, std::size_t t, std::size_t i, std::size_t word) {
    double sum = 0;
    if (how == form::dense) {
      for (int r = 0; r < n; ++r) sum += static_cast<double>(gradient(r, step, t, i));
      return vote(0, t, i, sum / n);
    }
    for (int r = 0; r < n; ++r) {
      const double v =
          vote(static_cast<std::size_t>(r), t, i, static_cast<double>(gradient(r, step, t, i)));
      sum += v != 0 ? v : coin(step, word, i % 32, r, false);
    }
    if (how == form::mean) return sum / n;
    ties += sum == 0 ? 1 : 0;
    return sum > 0 ? 1 : sum < 0 ? -1 : coin(step, word, i % 32, 0, true);
  }
  void step(std::uint64_t step, double lr) {
    std::size_t word = 0;
    for (std::size_t t = 0; t < x.size(); ++t) {
      const double rate = t == 0 ? lr : lr * 0.5, decay = t == 0 ? static_cast<double>(0.01F) : 0;
      for (std::size_t i = 0; i < x[t].size(); ++i) {
        const double u = direction(step, t, i, word + i / 32);
        x[t][i] -= rate * (u + decay * x[t][i]);
      }
      word += (x[t].size() + 31) / 32;
    }
  }
};

constexpr std::uint64_t n_steps = 12;
float rate(std::uint64_t step) { return 0.01F / static_cast<float>(1 + step % 3); }

/// The parameters of every rank after n_steps.
template <class Make>
std::vector<std::vector<std::vector<float>>> trained(int n, const sizes_of& sizes,
                                                     const Make& make) {
  return on_ranks(n, [&](onebit::threads t) {
    training<> data(sizes);
    auto o = make(data.groups(), t);
    while (o.steps() < n_steps) {
      fill(data, t.rank(), o.steps());
      const auto report = o.step(rate(o.steps()));
      CHECK_FALSE(report.skipped);
    }
    return data.params;
  });
}

template <class Make>
std::uint64_t check(int n, form how, const sizes_of& sizes, const Make& make) {
  CAPTURE(n);
  CAPTURE(sizes);
  reference expected(n, how, sizes);
  for (std::uint64_t s = 0; s < n_steps; ++s) expected.step(s, static_cast<double>(rate(s)));
  REQUIRE(expected.margin > 1e-7);
  const auto found = trained(n, sizes, make);
  double worst = 0;
  for (const auto& rank : found) {
    CHECK(rank == found[0]);
    for (std::size_t t = 0; t < sizes.size(); ++t) {
      for (std::size_t i = 0; i < sizes[t]; ++i) {
        const double e = std::fabs(static_cast<double>(rank[t][i]) - expected.x[t][i]);
        if (!(e <= worst)) worst = e;
      }
    }
  }
  CHECK(worst <= 1e-6);  // 12 roundings of x below 1; a wrong sign makes 3e-3 at least
  return expected.ties;
}

const auto lion = [](const auto& g, auto t) { return onebit::lion(g, t); };
const auto by_majority = [](const auto& g, auto t) { return onebit::one_bit_lion(g, t); };
const auto by_mean = [](const auto& g, auto t) {
  return onebit::one_bit_lion(g, t, {}, mean_of_all);
};

const sizes_of odd = {33, 0, 1500, 1, 64, 700};

}  // namespace

TEST_CASE("lion, one_bit_lion: the reference's steps, with 1 to 5 ranks") {
  for (const int n : {1, 2, 3, 4, 5}) {
    for (const sizes_of& sizes : {odd, sizes_of{}, sizes_of{0}, sizes_of{1}, sizes_of{5000}}) {
      (void)check(n, form::dense, sizes, lion);
      const std::uint64_t ties =
          check(n, n == 1 ? form::dense : form::majority, sizes, by_majority);
      if (sizes == odd) CHECK((ties > 0) == (n % 2 == 0));
      (void)check(n, n == 1 ? form::dense : form::mean, sizes, by_mean);
    }
  }
}

TEST_CASE("one_bit_lion: buckets, const gradients, announced tensors and hierarchies of one") {
  for (const int n : {2, 3}) {
    const auto expected = trained(n, odd, by_majority);
    CHECK(trained(n, odd, [](const auto& g, auto t) {
            return onebit::one_bit_lion(g, t, {}, onebit::gather_scatter{onebit::unit_sign{}, 500});
          }) == expected);
    CHECK(trained(n, odd, [](const auto& g, auto t) {
            return onebit::one_bit_lion(g, t, {}, onebit::hierarchical{onebit::unit_sign{}, 1});
          }) == expected);
    CHECK(on_ranks(n, [&](onebit::threads t) {
            training<const float> data(odd);
            training<> source(odd);
            auto o = onebit::one_bit_lion(data.groups(), t, {},
                                          onebit::gather_scatter{onebit::unit_sign{}, 500});
            while (o.steps() < n_steps) {
              fill(source, t.rank(), o.steps());
              data.grads = source.grads;
              o.begin(rate(o.steps()));
              for (std::size_t i = data.grads.size(); i-- > 0;) o.ready(i);
              CHECK_FALSE(o.step(rate(o.steps())).skipped);
              CHECK(data.grads == source.grads);
            }
            return data.params;
          }) == expected);
  }
}

TEST_CASE("one_bit_lion through other compressors: residuals do not eat the gradients of m") {
  // by identity the votes' exact mean: the mean form, but that zeros abstain, as in the paper
  const sizes_of one = {4000};
  const auto exact = trained(3, one, [](const auto& g, auto t) {
    return onebit::one_bit_lion(g, t, {}, onebit::gather_scatter<onebit::identity>{});
  });
  const auto gathered = trained(3, one, by_mean);
  for (std::size_t i = 0; i < 4000; ++i) {
    if (i % 17 != 5 && i % 29 != 3) CHECK(std::fabs(exact[0][0][i] - gathered[0][0][i]) < 1e-6F);
  }
  // with a residual m is the same as without: it hangs on gradients alone
  on_ranks(2, [&](onebit::threads t) {
    training<> a(one), b(one);
    auto with = onebit::one_bit_lion(a.groups(), t, {}, onebit::gather_scatter<onebit::sign<>>{});
    auto without = onebit::one_bit_lion(b.groups(), t);
    for (std::uint64_t s = 0; s < n_steps; ++s) {
      fill(a, t.rank(), s);
      fill(b, t.rank(), s);
      CHECK_FALSE(with.step(0.01F).skipped);
      CHECK_FALSE(without.step(0.01F).skipped);
    }
    CHECK(std::equal(with.rule().momentum(), with.rule().momentum() + 4000,
                     without.rule().momentum()));
    CHECK(a.params != b.params);
    return 0;
  });
  // and nothing comes of padding: one element's scale is its own size
  on_ranks(3, [&](onebit::threads t) {
    training<> data({1, 33});
    auto o = onebit::one_bit_lion(data.groups(), t, {}, onebit::gather_scatter<onebit::sign<>>{});
    for (std::uint64_t s = 0; s < 40; ++s) {
      fill(data, t.rank(), s);
      (void)o.step(0.01F);
      for (const float scale : o.exchange().sender().scales()) CHECK(scale < 3);
    }
    std::istringstream in(saved(o));
    o.load(in);
    return 0;
  });
}

TEST_CASE("one_bit_lion: elements without a gradient go nowhere") {
  for (const int n : {2, 3, 4, 5}) {
    CAPTURE(n);
    for (const bool by_vote : {true, false}) {
      const auto moved = on_ranks(n, [&](onebit::threads t) {
        std::vector<float> x(6400, 0.0F), g(x.size(), 0.0F), still(100, 1.0F), none(100, 0.0F);
        std::vector<onebit::param_group<>> groups(2);
        groups[0].tensors.push_back({x, g});
        groups[1].tensors.push_back({still, none});
        groups[1].lr_factor = 0;
        std::array<float, 2> most{};
        double sum = 0;
        const auto train = [&](auto o) {
          for (int s = 0; s < 51; ++s) {
            (void)o.step(0.01F);
            for (const float v : x) most[0] = std::max(most[0], std::fabs(v));
            for (const float v : x) sum += s == 50 ? static_cast<double>(v) : 0;
          }
        };
        if (by_vote) {
          train(by_majority(groups, t));
        } else {
          train(by_mean(groups, t));
        }
        CHECK(std::fabs(sum) <= 6400 * 0.01 * 0.05);  // as many to either side
        for (const float v : still) CHECK(v == 1.0F);
        most[1] = static_cast<float>(sum);
        return most;
      });
      for (const auto& m : moved) CHECK(m == moved[0]);
      const float expected = by_vote ? 0.01F : n % 2 == 0 ? 0 : 0.01F / static_cast<float>(n);
      CHECK(moved[0][0] <= expected * 1.001F);
      CHECK(moved[0][0] >= expected * 0.999F);
    }
  }
}

TEST_CASE("one_bit_lion: who has a gradient decides, though the others toss") {
  for (const int n : {2, 3, 4, 8}) {
    const auto moved = on_ranks(n, [&](onebit::threads t) {
      std::vector<float> x(3200, 0.0F), g(x.size(), t.rank() == 0 ? 1.0F : 0.0F);
      std::vector<onebit::param_group<>> groups(1);
      groups[0].tensors.push_back({x, g});
      auto o = by_mean(groups, t);
      for (int s = 0; s < 100; ++s) {
        g.assign(g.size(), t.rank() == 0 ? 1.0F : 0.0F);
        (void)o.step(0.01F);
      }
      double sum = 0;
      for (const float v : x) sum += static_cast<double>(v);
      return sum / (-0.01 * 100 * 3200);
    });
    CHECK(moved[0] == doctest::Approx(1.0 / n).epsilon(0.01));
  }
}

TEST_CASE("one_bit_lion: bytes and state are the formula's") {
  for (const int n : {2, 3, 4, 5}) {
    CAPTURE(n);
    on_ranks(n, [&](onebit::threads t) {
      const std::size_t w = static_cast<std::size_t>(n), words = 32 * 60, elements = 32 * words;
      training<> data({elements});
      const std::size_t state = 4 * elements + 4;  // m, and one scale that is always 1
      const std::size_t slot = 4 * words / w + 20;
      const auto run = [&](auto o, std::size_t bytes, std::uint32_t collectives, std::size_t kept) {
        fill(data, t.rank(), 0);
        (void)o.step(0.01F);
        fill(data, t.rank(), 1);
        const auto r = o.step(0.01F);
        CHECK(r.bytes_sent == bytes);
        CHECK(r.collectives == collectives);
        CHECK(o.state_bytes() == kept);
      };
      REQUIRE(words % w == 0);
      // n/8 bytes each way: of all but the own chunk to those who count, and the count to all
      run(by_majority(data.groups(), t), 2 * (w - 1) * slot, 2, state);
      CHECK(2 * (w - 1) * slot == 2 * (w - 1) * (elements / 8 / w + 20));
      run(by_mean(data.groups(), t), (w - 1) * (4 * words + 20), 1, state);
      run(onebit::one_bit_lion<onebit::bf16>(data.groups(), t), 2 * (w - 1) * slot, 2,
          2 * elements + 4);
      run(lion(data.groups(), t), 2 * (w - 1) * (128 * words / w + 4 + 20), 2, state);
      return 0;
    });
  }
}

TEST_CASE("one_bit_lion with m in bf16: as with a float's, to rounding") {
  const auto digests = on_ranks(4, [&](onebit::threads t) {
    training<> a(odd), b(odd);
    auto wide = by_majority(a.groups(), t);
    auto narrow = onebit::one_bit_lion<onebit::bf16>(b.groups(), t);
    for (std::uint64_t s = 0; s < 30; ++s) {
      fill(a, t.rank(), s);
      fill(b, t.rank(), s);
      CHECK_FALSE(wide.step(0.001F).skipped);
      CHECK_FALSE(narrow.step(0.001F).skipped);
    }
    double same = 0, total = 0;
    for (std::size_t k = 0; k < odd.size(); ++k) {
      for (std::size_t i = 0; i < odd[k]; ++i) {
        same += std::fabs(a.params[k][i] - b.params[k][i]) < 0.0015F ? 1 : 0;
        total += 1;
      }
    }
    CHECK(same / total > 0.95);  // of 30 steps at most one went to the other side
    return b.digest();
  });
  for (const auto d : digests) CHECK(d == digests[0]);
}

namespace {

template <class Codec>
std::uint64_t run_mixed(training<>& data, const Codec& make) {
  auto o = make(data);
  for (std::uint64_t call = 0; call < n_steps; ++call) {
    fill(data, o.rank(), call);
    // the last, since a skipped step counts on a device, and coins turn with the count
    if (call == n_steps - 1 && o.rank() == o.size() - 1) {
      data.grads[2][7] = std::numeric_limits<float>::quiet_NaN();
    }
    (void)o.step(0.01F);
    (void)o.settle();
  }
  CHECK(o.n_skipped() == 1);
  return data.digest();
}

template <class Collective, class M>
void check_places(int n, const Collective& collective, M) {
  const auto host = on_ranks(n, [&](onebit::threads t) {
    training<> data(odd);
    return run_mixed(data, [&](auto& d) {
      return onebit::one_bit_lion<M>(d.groups(), t, {}, collective,
                                     onebit::host(1, onebit::isa::scalar));
    });
  });
  CHECK(on_ranks(n, [&](onebit::threads t) {
          training<> data(odd);
          return run_mixed(data, [&](auto& d) {
            return onebit::one_bit_lion<M>(d.groups(), t, {}, collective, onebit::host(3));
          });
        }) == host);
  std::vector<emulated> backends(static_cast<std::size_t>(n));
  for (auto& b : backends) b = emulated();
  std::vector<emulated_memory> memories(backends.begin(), backends.end());
  std::vector<std::uint64_t> warps(backends.size());
  onebit::run_threads(memories, [&](onebit::basic_threads<emulated_memory> t) {
    const auto r = static_cast<std::size_t>(t.rank());
    training<> data(odd);
    warps[r] = run_mixed(data, [&](auto& d) {
      return onebit::one_bit_lion<M>(d.groups(), t, {}, collective, backends[r]);
    });
  });
  CHECK(warps == host);
}

}  // namespace

TEST_CASE("one_bit_lion: scalar, widest instruction set, threads, warps: the same bits") {
  check_places(2, vote_of_all, 0.0F);
  check_places(3, mean_of_all, onebit::bf16{});
}

namespace {

constexpr onebit::intervals_options when{.warmup_steps = 3, .doubling_steps = 4, .max_interval = 4};
const auto local = [](const auto& g, auto t) {
  return onebit::zero_one_lion(g, t, {.schedule = when});
};

}  // namespace

TEST_CASE("zero_one_lion without compression: the mean of the ranks' sums, from where they met") {
  for (const int n : {2, 3}) {
    // what each rank's votes sum up to, in double
    reference votes(n, form::mean, odd);
    const double decay = static_cast<double>(0.01F);
    on_ranks(n, [&](onebit::threads t) {
      training<> data(odd);
      auto own = votes;
      tensors_of anchor = own.x, sums;
      for (const std::size_t size : odd) sums.emplace_back(size, 0.0);
      double rates = 0;
      int exchanges = 0, locals = 0;
      auto o = onebit::zero_one_lion(data.groups(), t, {.schedule = when},
                                     onebit::gather_scatter<onebit::identity>{});
      for (std::uint64_t step = 0; step < 20; ++step) {
        fill(data, t.rank(), step);
        const auto report = o.step(rate(step));
        rates += static_cast<double>(rate(step));
        const bool meets = report.phase == onebit::phase::compressed;
        (meets ? exchanges : locals) += 1;
        CHECK(report.collectives == (meets ? 2 : 0));
        double worst = 0;
        for (std::size_t k = 0; k < odd.size(); ++k) {
          for (std::size_t i = 0; i < odd[k]; ++i) {
            for (int r = 0; r < n; ++r) {
              const double g = static_cast<double>(gradient(r, step, k, i));
              sums[k][i] += static_cast<double>(rate(step)) *
                            own.vote(static_cast<std::size_t>(r), k, i, g) / n;
            }
            if (!meets) continue;
            double& a = anchor[k][i];
            a -= (k == 0 ? 1 : 0.5) * (sums[k][i] + (k == 0 ? decay : 0) * rates * a);
            sums[k][i] = 0;
            worst = std::max(worst, std::fabs(static_cast<double>(data.params[k][i]) - a));
          }
        }
        if (meets) rates = 0;
        CHECK(worst < 2e-6);
      }
      CHECK(own.margin > 1e-7);
      CHECK(exchanges >= 7);
      CHECK(locals >= 9);
      return 0;
    });
  }
}

TEST_CASE("zero_one_lion: on the host and on warps the same bits, and ranks that meet agree") {
  const auto run = [](auto o, training<>& data) {
    std::uint64_t met = 0;
    for (std::uint64_t call = 0; call < 21; ++call) {
      fill(data, o.rank(), call);
      const auto report = o.step(0.01F);
      (void)o.settle();
      if (report.phase == onebit::phase::compressed) met = met * 31 + data.digest();
    }
    return met;
  };
  const auto host = on_ranks(3, [&](onebit::threads t) {
    training<> data(odd);
    return run(local(data.groups(), t), data);
  });
  for (const auto d : host) CHECK(d == host[0]);
  std::vector<emulated> backends(3);
  for (auto& b : backends) b = emulated();
  std::vector<emulated_memory> memories(backends.begin(), backends.end());
  std::vector<std::uint64_t> warps(3);
  onebit::run_threads(memories, [&](onebit::basic_threads<emulated_memory> t) {
    training<> data(odd);
    const auto r = static_cast<std::size_t>(t.rank());
    warps[r] =
        run(onebit::zero_one_lion(
                data.groups(), t, {.schedule = when},
                onebit::gather_scatter{onebit::sign<>{onebit::granularity::layer()}}, backends[r]),
            data);
  });
  CHECK(warps == host);
}

TEST_CASE("zero_one_lion: a bad gradient in a local step is left out by its rank alone") {
  const auto digests = on_ranks(2, [](onebit::threads t) {
    training<> data(odd);
    auto o = local(data.groups(), t);
    bool poisoned = false;
    onebit::report last;
    for (int step = 0; step < 40 || last.phase != onebit::phase::compressed; ++step) {
      fill(data, t.rank(), o.steps());
      // the first step too, where a rate of 0 makes it local
      const float lr = step == 0 ? 0 : 0.01F;
      const bool bad = step == 0 || (!poisoned && !o.schedule().plan(o.steps(), lr).exchange);
      if (bad && t.rank() == 1) data.grads[2][9] = std::numeric_limits<float>::infinity();
      const auto before = data.digest();
      last = o.step(lr);
      CHECK(last.skipped == (bad && t.rank() == 1));
      CHECK((data.digest() == before) == (last.skipped || step == 0));
      poisoned = poisoned || (bad && step > 0);
    }
    CHECK(poisoned);
    for (const float x : data.params[2]) CHECK(std::fabs(x) < 2);
    return data.digest();
  });
  CHECK(digests[0] == digests[1]);
}

TEST_CASE("zero_one_lion goes on with other ranks, also from between two exchanges") {
  struct left {
    std::string state;
    std::vector<std::vector<float>> params;
  };
  for (const int before : {1, 2, 3}) {
    for (const std::uint64_t steps : {8U, 9U, 10U}) {
      const auto old = on_ranks(before, [&](onebit::threads t) {
        training<> data(odd);
        auto o = local(data.groups(), t);
        while (o.steps() < steps) (void)train(o, data);
        return left{saved(o), data.params};
      });
      for (const int now : {1, 2, 4}) {
        CAPTURE(before);
        CAPTURE(steps);
        CAPTURE(now);
        const auto digests = on_ranks(now, [&](onebit::threads t) {
          training<> data(odd);
          auto o = local(data.groups(), t);
          const auto& source = old[static_cast<std::size_t>(t.rank()) % old.size()];
          for (std::size_t k = 0; k < odd.size(); ++k) {
            std::copy(source.params[k].begin(), source.params[k].end(), data.params[k].begin());
          }
          // whoever reads them there, gradients of a job that is no more tell nothing
          for (auto& g : data.grads) std::fill(g.begin(), g.end(), NAN);
          o.load_old_job(old.size(), [&](std::size_t r) {
            return std::make_unique<std::istringstream>(old[r].state);
          });
          onebit::report last;
          while (o.steps() < 14 || (now > 1 && last.phase != onebit::phase::compressed)) {
            last = train(o, data);
            CHECK_FALSE(last.skipped);
          }
          for (const auto& p : data.params) {
            for (const float x : p) CHECK(std::fabs(x) < 2);
          }
          return data.digest();
        });
        for (const auto d : digests) CHECK(d == digests[0]);
      }
    }
  }
}

TEST_CASE("one_bit_lion: momenta differ, and verification knows") {
  on_ranks(2, [&](onebit::threads t) {
    training<> data(odd);
    auto o = by_majority(data.groups(), t);
    o.verify_every(1);
    for (int s = 0; s < 4; ++s) (void)train(o, data);
    data.params[2][3] += t.rank() == 1 ? 0.5F : 0.0F;
    data.compute_gradients(0, 4);
    CHECK(thrown<onebit::rank_mismatch>([&] { (void)o.step(0.01F); }) ==
          contains{"has other parameters than rank"});
    return 0;
  });
}

TEST_CASE("one_bit_lion goes on with other ranks") {
  struct left {
    std::string state;
    std::vector<std::vector<float>> params;
    std::vector<float> m;
  };
  const auto m_of = [](const auto& o) {
    return std::vector<float>(o.rule().momentum(),
                              o.rule().momentum() + o.rule().state_bytes() / sizeof(float));
  };
  const auto job = [&](int n) {
    return on_ranks(n, [&](onebit::threads t) {
      training<> data(odd);
      auto o = by_majority(data.groups(), t);
      while (o.steps() < 5) (void)train(o, data);
      return left{saved(o), data.params, m_of(o)};
    });
  };
  for (const int before : {1, 2, 3}) {
    const auto old = job(before);
    for (const int now : {1, 2, 4}) {
      CAPTURE(before);
      CAPTURE(now);
      const auto digests = on_ranks(now, [&](onebit::threads t) {
        training<> data(odd);
        auto o = by_majority(data.groups(), t);
        const std::size_t source = static_cast<std::size_t>(t.rank()) % old.size();
        for (std::size_t k = 0; k < odd.size(); ++k) {
          std::copy(old[0].params[k].begin(), old[0].params[k].end(), data.params[k].begin());
        }
        o.load_old_job(old.size(), [&](std::size_t r) {
          return std::make_unique<std::istringstream>(old[r].state);
        });
        CHECK(o.steps() == 5);
        CHECK(m_of(o) == old[source].m);
        while (o.steps() < 9) CHECK_FALSE(train(o, data).skipped);
        return data.digest();
      });
      for (const auto d : digests) CHECK(d == digests[0]);
    }
  }
}

TEST_CASE("one_bit_lion under a schedule that averages first; there is no way back") {
  const auto digests = on_ranks(3, [&](onebit::threads t) {
    training<> data(odd);
    const auto plan = [](std::uint64_t step, float) {
      const bool exact = step < 3 || step == 12;
      return onebit::step_plan{.average_gradient = exact, .exchange = !exact};
    };
    onebit::optimizer o("lion that averages first", data.groups(), t,
                        onebit::lion_rule({}, onebit::host()), onebit::custom_schedule(plan),
                        vote_of_all);
    while (o.steps() < 12) CHECK_FALSE(train(o, data).skipped);
    // the ranks' momenta differ: a step from the mean gradient would part their parameters
    CHECK(thrown<onebit::invalid_input>([&] { (void)train(o, data); }) == contains{"no way back"});
    return data.digest();
  });
  for (const auto d : digests) CHECK(d == digests[0]);
}

TEST_CASE("lion: options out of range, and clipping") {
  onebit::run_threads(2, [](onebit::threads t) {
    training<> data;
    CHECK(thrown<onebit::invalid_input>([&] {
            (void)onebit::one_bit_lion(data.groups(), t, {.beta2 = 1});
          }) == contains{"lion_options: beta1 is 0.9, beta2 1"});
    CHECK(thrown<onebit::invalid_input>([&] {
            (void)onebit::lion(data.groups(), t, {.max_grad_norm = -1});
          }) == contains{"lion_options: max_grad_norm is -1"});
    // the first vote of a gradient does not hang on its size, and the first momentum does
    auto o = onebit::one_bit_lion(data.groups(), t, {.max_grad_norm = 0.5});
    const auto r = train(o, data);
    REQUIRE(r.gradient_norm.has_value());
    CHECK(*r.gradient_norm > 10);
    double squares = 0;
    for (std::size_t i = 0; i < o.rule().state_bytes() / sizeof(float); ++i) {
      const auto m = static_cast<double>(o.rule().momentum()[i]);
      squares += m * m;
    }
    CHECK(std::sqrt(squares) == doctest::Approx(0.01 * 0.5).epsilon(1e-3));
  });
}
