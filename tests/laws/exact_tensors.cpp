// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Small tensors travel in full beside compressed ones, in the same messages: nothing is owed of
// them, and what the ranks agree on is their exact mean.

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <onebit/compress/exact_below.hpp>
#include <sstream>
#include <vector>

#include "../compiled/emulated.hpp"
#include "../support/emulated.hpp"
#include "../support/scripted.hpp"
#include "../support/training.hpp"
#include "compositions.hpp"
#include "owed.hpp"
#include "shared.hpp"

using namespace onebit_test;
using namespace onebit_test::compositions;
using onebit::exact_below;

namespace {

// mixed_sizes: 33, 0, 5000, 1, 64, 700
constexpr bool is_small[] = {true, true, false, true, true, false};
const exact_below<> below_65{65};

template <class C>
auto with(const C& collective) {
  return [collective](auto& data, auto t) {
    return onebit::one_bit_adam(data.groups(), t, frozen_after(3), collective);
  };
}
const auto zero_one = [](auto& data, auto t) {
  onebit::zero_one_adam_options o;
  o.schedule.kappa = 1;
  o.schedule.warmup_steps = 3;
  o.schedule.doubling_steps = 2;
  o.schedule.max_interval = 2;
  return onebit::zero_one_adam(data.groups(), t, o, onebit::gather_scatter{below_65});
};

}  // namespace

TEST_CASE("exact tensors: agreed is the momentum of the mean gradient, and nothing is owed") {
  const auto check = [](const auto& make, double rounding) {
    for (const int w : {2, 4}) {
      const auto ends = on_ranks(w, [&](onebit::threads t) {
        training<> data;
        auto o = make(data, t);
        std::vector<std::vector<double>> m(data.params.size());
        for (std::size_t i = 0; i < m.size(); ++i) m[i].resize(data.params[i].size());
        for (int step = 0; step < 12; ++step) {
          // what all ranks' gradients are on average, from the parameters that they share
          std::vector<std::vector<double>> mean = m;
          for (auto& x : mean) std::fill(x.begin(), x.end(), 0.0);
          for (int r = 0; r < w; ++r) {
            data.compute_gradients(r, o.steps());
            for (std::size_t i = 0; i < m.size(); ++i) {
              for (std::size_t k = 0; k < m[i].size(); ++k)
                mean[i][k] += static_cast<double>(data.grads[i][k]) / w;
            }
          }
          for (std::size_t i = 0; i < m.size(); ++i) {
            for (std::size_t k = 0; k < m[i].size(); ++k)
              m[i][k] = 0.9 * m[i][k] + 0.1 * mean[i][k];
          }
          CHECK_FALSE(train(o, data).skipped);
          if (step < 4) continue;
          by_element owed;
          for (const auto& x : m) owed.emplace_back(x.size());
          add_residuals(o, owed);
          const auto agreed = o.exchange().agreed(o.live());
          double large_owed = 0;
          for (std::size_t i = 0; i < m.size(); ++i) {
            const auto values = o.copy(agreed, i);
            for (std::size_t k = 0; k < m[i].size(); ++k) {
              if (!is_small[i]) {
                large_owed += std::fabs(owed[i][k]);
                continue;
              }
              // of many: one check an element would take longer than all the rest
              if (owed[i][k] != 0 || !(std::fabs(values[k] - m[i][k]) < rounding)) {
                CAPTURE(i);
                CAPTURE(k);
                CHECK(owed[i][k] == 0);
                CHECK(values[k] == doctest::Approx(m[i][k]).epsilon(1e-6));
              }
            }
          }
          CHECK(large_owed > 1);
        }
        return data.digest();
      });
      for (const auto d : ends) CHECK(d == ends[0]);
    }
  };
  // twelve roundings of numbers below 1
  SUBCASE("gather-scatter") { check(with(onebit::gather_scatter{below_65}), 2e-6); }
  SUBCASE("buckets") { check(with(onebit::gather_scatter{below_65, 1000}), 2e-6); }
  SUBCASE("all-gather") { check(with(onebit::all_gather{below_65}), 2e-6); }
  SUBCASE("residuals in 8 bits") {  // the momentum that is handed over, too
    const onebit::residual_in<onebit::int8, exact_below<>> compact{below_65};
    CHECK(compact.name() == below_65.name() + ", residuals in 8 bits");
    check(with(onebit::gather_scatter{compact}), 4e-3);
    const onebit::gather_scatter<onebit::residual_in<onebit::int8, exact_below<>>> usual;
    CHECK(usual.codec.elements == 1024);
  }
  SUBCASE("L1 scales by block") {
    using blocks = onebit::sign<onebit::l1_scale>;
    check(with(onebit::gather_scatter{
              exact_below<blocks>{65, blocks{onebit::granularity::block(64)}}}),
          2e-6);
  }
}

TEST_CASE("exact tensors: two levels, 0/1 Adam, 16-bit gradients, and a checkpoint in each phase") {
  const auto check = [](const auto& make, auto&& data_of, int w) {
    const auto run = [&](int reload) {
      return on_ranks(w, [&](onebit::threads t) {
        auto data = data_of();
        auto o = make(data, t);
        for (int i = 0; i < 13; ++i) {
          if (i == reload) {
            std::istringstream in(saved(o));
            auto again = make(data, t);
            again.load(in);
            o = std::move(again);
          }
          CHECK_FALSE(train(o, data).skipped);
        }
        return data.digest();
      });
    };
    const auto whole = run(-1);
    for (const int reload : {4, 9}) CHECK(run(reload) == whole);
  };
  const auto floats = [] { return training<>(); };
  SUBCASE("two levels") { check(with(onebit::hierarchical{below_65, 2}), floats, 4); }
  SUBCASE("0/1 Adam") { check(zero_one, floats, 3); }
  SUBCASE("const gradients") {
    check(
        [](auto& data, auto t) {
          std::vector<onebit::param_group<float, const float>> groups(1);
          for (std::size_t i = 0; i < data.params.size(); ++i) {
            groups[0].tensors.push_back({data.params[i], data.grads[i]});
          }
          return onebit::one_bit_adam(groups, t, frozen_after(3), onebit::gather_scatter{below_65});
        },
        floats, 2);
  }
}

TEST_CASE("exact tensors: a skipped step leaves no trace, and a bad value in one is seen") {
  const auto ends = [](bool bad) {
    return on_ranks(2, [&](onebit::threads t) {
      training<> data;
      auto o = with(onebit::gather_scatter{below_65})(data, t);
      for (int i = 0; i < 6; ++i) (void)train(o, data);
      if (bad) {
        data.compute_gradients(t.rank(), o.steps());
        if (t.rank() == 1) data.grads[3][0] = INFINITY;  // the tensor of one element
        CHECK(o.step(0.01F).skipped);
      }
      for (int i = 0; i < 4; ++i) CHECK_FALSE(train(o, data).skipped);
      return data.digest();
    });
  };
  CHECK(ends(true) == ends(false));
}

TEST_CASE("exact tensors: what they cost on the wire; all small is a dense exchange") {
  const auto sent = [](std::size_t n) {
    return on_ranks(2, [&](onebit::threads t) {
      training<> data;
      auto o = with(onebit::gather_scatter{exact_below<>{n}})(data, t);
      std::uint64_t bytes = 0;
      for (int i = 0; i < 6; ++i) bytes = train(o, data).bytes_sent;
      return bytes;
    })[0];
  };
  // words: 2, 0, 157, 1, 2, 22; chunks of 92 words, the small ones are in the first and in the last
  const auto bits = sent(0), small = sent(65), all = sent(10000);
  CHECK(small > bits);
  CHECK(small <= bits + 2 * 124 * 3);  // 3 words of 128 bytes in place of 4 in the fuller chunk
  CHECK(all >= bits + 2 * 124 * 91);
}

TEST_CASE("exact tensors: scales that small and large ones would share are refused") {
  CHECK_THROWS_AS((exact_below<>{64, {onebit::granularity::vector()}}), onebit::invalid_input);
  CHECK_THROWS_AS((exact_below<>{64, {onebit::granularity::chunk()}}), onebit::invalid_input);
  CHECK(below_65.name() == "sign l2 per block of 4096, exact below 65");
}
