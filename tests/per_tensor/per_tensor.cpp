// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Trainers that update one tensor at a time, against the optimizer over all tensors.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <onebit/extras/per_tensor.hpp>
#include <onebit/onebit.hpp>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "support/ranks.hpp"

using namespace onebit;
using onebit_test::contains;
using onebit_test::thrown;

namespace {

/// As W.topRows(rows) of an Eigen matrix of `stride` rows.
struct rows_of_matrix {
  float* p;
  std::ptrdiff_t rows, cols, stride;
  float* data() const { return p; }
  std::ptrdiff_t size() const { return rows * cols; }
  std::ptrdiff_t innerSize() const { return rows; }
  std::ptrdiff_t outerSize() const { return cols; }
  std::ptrdiff_t innerStride() const { return 1; }
  std::ptrdiff_t outerStride() const { return stride; }
};

const std::vector<std::size_t> sizes = {100, 7, 4099, 7};
const float decays[] = {0.1F, 0.0F, 0.1F, 0.0F};

/// Parameters of T that lie where they lie, and what a step's gradients are. Every 17th element has
/// none.
template <class T>
struct model {
  std::vector<std::vector<T>> x;

  model() {
    for (std::size_t t = 0; t < sizes.size(); ++t) {
      x.emplace_back(sizes[t]);
      for (std::size_t i = 0; i < sizes[t]; ++i) {
        x[t][i] = static_cast<T>(0.01 * static_cast<double>((i * 5 + t) % 17) - 0.073);
      }
    }
  }
  /// Hangs on the parameters rounded to float.
  [[nodiscard]] std::vector<float> gradient(std::size_t t, int step, int rank) const {
    std::vector<float> g(x[t].size());
    for (std::size_t i = 0; i < g.size(); ++i) {
      const auto k = (i * 7 + static_cast<std::size_t>(step * 13 + rank * 5)) % 23;
      g[i] = i % 17 == 5 ? 0 : static_cast<float>(x[t][i]) + 0.1F * (static_cast<float>(k) - 11.0F);
    }
    return g;
  }
};
template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}
std::vector<float> as_floats(const std::vector<double>& x) { return {x.begin(), x.end()}; }

const auto one_bit = [](const auto& groups, auto comm) -> any_optimizer {
  return one_bit_adam(groups, comm, one_bit_adam_options{.freeze = {.after = 3}});
};
/// Exchanges ever more rarely after the fourth step: between two, ranks differ.
const auto zero_one = [](const auto& groups, auto comm) -> any_optimizer {
  const intervals_options schedule{
      .kappa = 2, .warmup_steps = 4, .doubling_steps = 2, .max_interval = 4};
  return zero_one_adam(groups, comm, zero_one_adam_options{.schedule = schedule});
};

/// The optimizer that is handed all tensors at once: what the others must equal.
struct direct {
  model<float> m;
  std::vector<std::vector<float>> g;
  std::vector<param_group<>> groups;
  any_optimizer optimizer;

  template <class Make>
  direct(const threads& comm, const Make& make, bool with_decays) : groups(sizes.size()) {
    for (std::size_t t = 0; t < sizes.size(); ++t) g.emplace_back(sizes[t]);
    for (std::size_t t = 0; t < sizes.size(); ++t) {
      groups[t].tensors.push_back({m.x[t], g[t]});
      if (with_decays) groups[t].weight_decay = decays[t];
    }
    optimizer = make(groups, comm);
    optimizer.warn_with(nullptr);
  }
  report step(int step, float lr) {
    for (std::size_t t = 0; t < sizes.size(); ++t) {
      const auto now = m.gradient(t, step, optimizer.rank());
      g[t].assign(now.begin(), now.end());
    }
    return optimizer.step(lr);
  }
};

float rate(int step) { return 0.01F / static_cast<float>(1 + step % 3); }

/// Sees all tensors of a model through one buffer, which is used again.
template <class T, class G>
void see_all(per_tensor& all, model<T>& m, std::vector<G>& buffer, int step, int rank) {
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    const auto g = m.gradient(t, step, rank);
    for (std::size_t i = 0; i < g.size(); ++i) buffer[i] = static_cast<G>(g[i]);
    all.see(m.x[t], std::span<const G>(buffer.data(), g.size()));
  }
}

}  // namespace

TEST_CASE("the bits of the optimizer over all tensors [per_tensor]") {
  for (const bool exchanges_rarely : {false, true}) {
    run_threads(2, [&](threads comm) {
      const auto make = [&](const auto& groups, auto c) {
        return exchanges_rarely ? zero_one(groups, c) : one_bit(groups, c);
      };
      direct whole(comm, make, true);
      model<float> standing, transient;
      std::vector<std::vector<float>> g;
      for (const std::size_t n : sizes) g.emplace_back(n);
      std::vector<float> buffer(4099);
      per_tensor stays(comm, make, {.gradients_stay = true}), copies(comm, make);
      for (int step = 0; step < 14; ++step) {
        const report expected = whole.step(step, rate(step));
        for (std::size_t t = 0; t < sizes.size(); ++t) {
          const group_options own{.weight_decay = decays[t]};
          const auto now = standing.gradient(t, step, comm.rank());
          g[t].assign(now.begin(), now.end());
          stays.see(standing.x[t], g[t], own);
          std::copy(now.begin(), now.end(), buffer.begin());
          // in the first step alone, or in all
          if (step == 0 || t == 2) {
            copies.see(transient.x[t], std::span(buffer.data(), now.size()), own);
          } else {
            copies.see(transient.x[t], std::span(buffer.data(), now.size()));
          }
          std::fill(buffer.begin(), buffer.end(), 1e30F);
        }
        const report a = stays.finish(rate(step)), b = copies.finish(rate(step));
        CHECK(a.phase == expected.phase);
        CHECK(a.bytes_sent == expected.bytes_sent);
        CHECK(b.bytes_sent == expected.bytes_sent);
        for (std::size_t t = 0; t < sizes.size(); ++t) {
          CHECK(same(standing.x[t], whole.m.x[t]));
          CHECK(same(transient.x[t], whole.m.x[t]));
        }
      }
      CHECK(stays.optimizer().steps() == 14);
    });
  }
}

TEST_CASE("options that change reach the optimizer [per_tensor]") {
  run_threads(2, [](threads comm) {
    direct whole(comm, one_bit, false);
    model<float> m;
    std::vector<float> buffer(4099);
    per_tensor all(comm, one_bit);
    for (int step = 0; step < 8; ++step) {
      const group_options own{.lr_factor = step < 5 ? 1.0F : 0.25F};
      for (std::size_t t = 0; t < sizes.size(); ++t) {
        if (step == 5) whole.optimizer.set_group(t, own);
        all.see(m.x[t], m.gradient(t, step, comm.rank()), own);
      }
      (void)whole.step(step, 0.01F);
      (void)all.finish(0.01F);
    }
    for (std::size_t t = 0; t < sizes.size(); ++t) CHECK(same(m.x[t], whole.m.x[t]));
  });
}

TEST_CASE("doubles are masters [per_tensor]") {
  for (const bool exchanges_rarely : {false, true}) {
    run_threads(2, [&](threads comm) {
      const auto make = [&](const auto& groups, auto c) {
        return exchanges_rarely ? zero_one(groups, c) : one_bit(groups, c);
      };
      direct whole(comm, make, false);
      model<double> m;
      const model<double> before;
      for (std::size_t t = 0; t < sizes.size(); ++t) CHECK(same(as_floats(m.x[t]), whole.m.x[t]));
      std::vector<double> buffer(4099);
      per_tensor all(comm, make);
      for (int step = 0; step < 14; ++step) {
        (void)whole.step(step, rate(step));
        see_all(all, m, buffer, step, comm.rank());
        (void)all.finish(rate(step));
        // a training in float, but what a double has beyond it stays
        for (std::size_t t = 0; t < sizes.size(); ++t) {
          CHECK(same(as_floats(m.x[t]), whole.m.x[t]));
        }
      }
      std::size_t n = 0, finer = 0;
      for (std::size_t t = 0; t < sizes.size(); ++t) {
        for (std::size_t i = 0; i < sizes[t]; ++i) {
          const double was = before.x[t][i], is = m.x[t][i];
          if (i % 17 == 5) {
            CHECK(is == was);  // not a bit
            continue;
          }
          ++n;
          if (static_cast<double>(static_cast<float>(is)) != is) ++finer;
        }
      }
      CHECK(2 * finer > n);  // those that came near 0 could not carry it along
    });
  }
}

TEST_CASE(
    "what a step does not change keeps its double: skipped, resting, small and own changes "
    "[per_tensor]") {
  run_threads(2, [](threads comm) {
    model<double> m;
    std::vector<double> buffer(4099);
    per_tensor all(comm, one_bit, {.unseen_rest = true});
    for (int step = 0; step < 5; ++step) {
      see_all(all, m, buffer, step, comm.rank());
      (void)all.finish(0.01F);
    }
    all.optimizer().warn_with(nullptr);
    const model<double> before = m;
    // a NaN on one rank
    for (std::size_t t = 0; t < sizes.size(); ++t) {
      auto g = m.gradient(t, 5, comm.rank());
      if (t == 1 && comm.rank() == 1) g[0] = std::numeric_limits<float>::quiet_NaN();
      all.see(m.x[t], g);
    }
    CHECK(all.finish(0.01F).skipped);
    for (std::size_t t = 0; t < sizes.size(); ++t) CHECK(same(m.x[t], before.x[t]));
    // a tensor rests; changes of the trainer's own, too small for float, add up
    for (int step = 6; step < 9; ++step) {
      for (double& x : m.x[2]) x += 0x1p-40;
      for (std::size_t t = 0; t < sizes.size(); ++t) {
        if (t != 2) all.see(m.x[t], m.gradient(t, step, comm.rank()));
      }
      CHECK_FALSE(all.finish(0.01F).skipped);
    }
    CHECK_FALSE(same(m.x[3], before.x[3]));
    for (std::size_t i = 0; i < sizes[2]; ++i) CHECK(m.x[2][i] == before.x[2][i] + 3 * 0x1p-40);
    // a change of the trainer's own is where the next step starts
    for (double& x : m.x[0]) x = 2 + 0x1p-40;
    see_all(all, m, buffer, 9, comm.rank());
    (void)all.finish(0.01F);
    for (const double x : m.x[0]) CHECK(std::fabs(x - 2) < 0.1);
  });
}

TEST_CASE("a double's sum that rounds to another float becomes the step's float [per_tensor]") {
  run_threads(1, [](threads comm) {
    // Below 1 a float is half as far from the next one as above: the step to 0.9 cannot carry along
    // what 1 could.
    std::vector<double> x = {1 + 0.9 * 0x1p-24}, g = {1};
    std::vector<float> y = {1}, h = {1};
    std::vector<param_group<>> groups(1);
    groups[0].tensors.push_back({y, h});
    auto whole = adam(groups, comm);
    per_tensor all(comm, [](const auto& gs, auto c) { return adam(gs, c); });
    for (const float lr : {0.1F, 0.1F, 0.0F, 0.3F}) {
      h[0] = 1;
      (void)whole.step(lr);
      all.see(x, g);
      (void)all.finish(lr);
      CHECK(as_floats(x) == y);
    }
    CHECK(x[0] < 0.9);
  });
}

TEST_CASE("memory that moves [per_tensor]") {
  run_threads(2, [](threads comm) {
    direct whole(comm, one_bit, false);
    model<float> m;
    model<double> d;
    std::vector<float> buffer(4099);
    std::vector<double> doubles(4099);
    std::vector<std::vector<float>> moved(sizes.size());
    std::vector<std::vector<double>> moved_doubles(sizes.size());
    per_tensor all(comm, one_bit, {.memory_moves = true});
    per_tensor of_doubles(comm, one_bit, {.memory_moves = true});
    for (int step = 0; step < 9; ++step) {
      (void)whole.step(step, 0.01F);
      for (std::size_t t = 0; t < sizes.size(); ++t) {  // old memory says so to whoever looks there
        moved[t] = m.x[t];
        moved_doubles[t] = d.x[t];
        m.x[t].swap(moved[t]);
        d.x[t].swap(moved_doubles[t]);
        moved[t].assign(sizes[t], 1e30F);
        moved_doubles[t].assign(sizes[t], 1e30);
      }
      see_all(all, m, buffer, step, comm.rank());
      (void)all.finish(0.01F);
      see_all(of_doubles, d, doubles, step, comm.rank());
      (void)of_doubles.finish(0.01F);
      std::ostringstream out;  // looks at the parameters
      all.save(out);
    }
    for (std::size_t t = 0; t < sizes.size(); ++t) {
      CHECK(same(m.x[t], whole.m.x[t]));
      CHECK(same(as_floats(d.x[t]), whole.m.x[t]));
    }
  });
}

TEST_CASE("a tensor that is not seen rests, where that is said [per_tensor]") {
  run_threads(2, [](threads comm) {
    direct whole(comm, one_bit, false);
    model<float> m;
    per_tensor all(comm, one_bit, {.unseen_rest = true});
    for (int step = 0; step < 9; ++step) {
      const bool rests = step == 2 || step == 6;
      if (rests) {
        whole.optimizer.rest(1);
        whole.optimizer.rest(2);
      }
      (void)whole.step(step, 0.01F);
      for (std::size_t t = 0; t < sizes.size(); ++t) {
        if (!(rests && (t == 1 || t == 2))) all.see(m.x[t], m.gradient(t, step, comm.rank()));
      }
      (void)all.finish(0.01F);
    }
    for (std::size_t t = 0; t < sizes.size(); ++t) CHECK(same(m.x[t], whole.m.x[t]));
  });
}

TEST_CASE("saved and loaded: as never stopped [per_tensor]") {
  for (const bool exchanges_rarely : {false, true}) {
    run_threads(2, [&](threads comm) {
      const auto make = [&](const auto& groups, auto c) {
        return exchanges_rarely ? zero_one(groups, c) : one_bit(groups, c);
      };
      model<double> m, copy;
      std::vector<double> buffer(4099);
      per_tensor all(comm, make);
      std::string saved;
      int at = 0;
      for (int step = 0; step < 16; ++step) {
        see_all(all, m, buffer, step, comm.rank());
        const report done = all.finish(0.01F);
        // the last time, where ranks differ
        if (step > 10 || (exchanges_rarely && done.phase != phase::local)) continue;
        at = step + 1;
        copy = m;
        saved = onebit_test::saved(all);
      }
      // before the first step, and into an optimizer that has trained something else
      model<double> fresh = copy, other;
      per_tensor anew(comm, make), again(comm, make);
      std::istringstream in(saved);
      anew.load(in);
      see_all(again, other, buffer, 3, comm.rank());
      (void)again.finish(0.5F);
      for (std::size_t t = 0; t < sizes.size(); ++t) {
        std::copy(copy.x[t].begin(), copy.x[t].end(), other.x[t].begin());
      }
      std::istringstream in_again(saved);
      again.load(in_again);
      CHECK(at > 4);
      for (int step = at; step < 16; ++step) {
        see_all(anew, fresh, buffer, step, comm.rank());
        (void)anew.finish(0.01F);
        see_all(again, other, buffer, step, comm.rank());
        (void)again.finish(0.01F);
      }
      CHECK(anew.optimizer().steps() == 16);
      for (std::size_t t = 0; t < sizes.size(); ++t) {
        CHECK(same(fresh.x[t], m.x[t]));
        CHECK(same(other.x[t], m.x[t]));
      }
    });
  }
}

TEST_CASE("a checkpoint that cannot be loaded is not passed over [per_tensor]") {
  run_threads(2, [](threads comm) {
    model<float> m;
    std::vector<float> buffer(4099);
    per_tensor other(comm, one_bit);
    CHECK(thrown<invalid_input>([&] { (void)onebit_test::saved(other); }) ==
          contains{"owns no optimizer"});
    see_all(other, m, buffer, 0, comm.rank());
    (void)other.finish(0.0F);
    const std::string good = onebit_test::saved(other);
    for (const std::string text : {"", "no checkpoint"}) {
      per_tensor all(comm, one_bit);
      std::istringstream in(text);
      all.load(in);
      for (int i = 0; i < 2; ++i) {
        see_all(all, m, buffer, 0, comm.rank());
        CHECK(thrown<checkpoint_error>([&] { (void)all.finish(0.01F); }) == contains{"checkpoint"});
      }
      CHECK(all.optimizer().steps() == 0);
      std::istringstream in_place_of_it(good);
      all.load(in_place_of_it);
      see_all(all, m, buffer, 1, comm.rank());
      CHECK(all.finish(0.0F).step == 1);
    }
    for (std::size_t t = 0; t < sizes.size(); ++t) CHECK(same(m.x[t], model<float>().x[t]));
  });
}

TEST_CASE("errors name the tensor and the numbers, and the step can be done again [per_tensor]") {
  run_threads(2, [](threads comm) {
    direct whole(comm, one_bit, false);
    model<float> m;
    std::vector<float> buffer(4099), g(4099);
    per_tensor all(comm, one_bit);
    const auto of = [&](std::size_t n) { return std::span<const float>(g.data(), n); };
    const auto what = [&](const auto& f) { return thrown<invalid_input>(f); };
    const std::string rank = "[rank " + std::to_string(comm.rank()) + "/2]";

    CHECK(what([&] { (void)all.finish(0.01F); }) == contains{"finish() without see() " + rank});
    CHECK(what([&] { all.see(m.x[0], of(99)); }) ==
          contains{"tensor 0 has 100 parameters but 99 gradients " + rank});
    all.see(m.x[0], of(100));
    all.see(m.x[1], of(7));
    CHECK(what([&] { all.see(m.x[0], of(100)); }) ==
          contains{"tensor 0 (100 parameters at address"});
    CHECK(what([&] { all.see(m.x[0], of(100)); }) == contains{"is seen twice; tied weights"});
    all.discard();
    for (int step = 0; step < 3; ++step) {
      (void)whole.step(step, 0.01F);
      see_all(all, m, buffer, step, comm.rank());
      std::vector<float> empty;
      all.see(empty, empty);
      (void)all.finish(0.01F);
    }
    CHECK(what([&] { (void)all.finish(0.01F); }) == contains{"finish() without see()"});

    all.see(m.x[0], of(100));
    CHECK(what([&] { all.see(m.x[0], of(100)); }) == contains{"tensor 0 (100 parameters at"});
    CHECK(what([&] { all.see(m.x[0], of(100)); }) == contains{"is seen twice"});
    CHECK(what([&] { all.see(m.x[2], of(4099)); }) ==
          contains{"tensor 2 (4099 parameters at address " +
                   std::to_string(reinterpret_cast<std::uintptr_t>(m.x[2].data()))});
    CHECK(what([&] { all.see(m.x[2], of(4099)); }) == contains{"of which 1 of 4 are seen"});
    CHECK(what([&] { all.see(m.x[2], of(4099)); }) == contains{"see tensors as in the first step"});
    const rows_of_matrix rows{m.x[1].data(), 2, 2, 3};
    CHECK(what([&] { all.see(rows, of(4)); }) ==
          contains{"tensor 1 is a view of 2 runs of 2 elements, strides 3 and 1: give contiguous"});
    CHECK(what([&] { all.see(buffer, of(4099)); }) ==
          contains{"a tensor unknown to the first step (4099 parameters"});
    CHECK(what([&] { all.see(buffer, of(4099)); }) == contains{"set memory_moves"});
    CHECK(what([&] { all.see(std::span(m.x[1].data(), 6), of(6)); }) ==
          contains{"tensor 1 has 6 floats, but had 7 floats in the first step"});
    CHECK(what([&] {
            const std::span<double> other(reinterpret_cast<double*>(m.x[1].data()), 7);
            all.see(other, of(7));
          }) == contains{"tensor 1 has 7 doubles, but had 7 floats"});
    all.see(m.x[1], of(7));
    CHECK(what([&] { (void)all.finish(0.01F); }) ==
          contains{"finish(): tensor 2 of 4 (4099 parameters) is not seen; say unseen_rest"});

    (void)whole.step(3, 0.01F);  // nothing of all that is left
    see_all(all, m, buffer, 3, comm.rank());
    CHECK(what([&] { all.see(buffer, of(4099)); }) == contains{"of which 4 of 4 are seen"});
    (void)all.finish(0.01F);
    for (std::size_t t = 0; t < sizes.size(); ++t) CHECK(same(m.x[t], whole.m.x[t]));
  });
}

TEST_CASE("errors where the order is all that is known [per_tensor]") {
  run_threads(2, [](threads comm) {
    model<float> m;
    std::vector<float> buffer(4099), other(8);
    per_tensor all(comm, one_bit, {.memory_moves = true, .unseen_rest = true});
    see_all(all, m, buffer, 0, comm.rank());
    (void)all.finish(0.01F);
    all.see(m.x[0], m.x[0]);
    CHECK(thrown<invalid_input>([&] { all.see(other, other); }) ==
          contains{"tensor 1 has 8 floats, but had 7 floats"});
    CHECK(thrown<invalid_input>([&] { (void)all.finish(0.01F); }) ==
          contains{"tensor 1 of 4 (7 parameters) is not seen"});
    see_all(all, m, buffer, 1, comm.rank());
    CHECK(thrown<invalid_input>([&] { all.see(other, other); }) == contains{"4 of 4 are seen"});
    CHECK_FALSE(all.finish(0.01F).skipped);
  });
}

TEST_CASE(
    "ranks that see other tensors are told by the optimizer, and can begin anew [per_tensor]") {
  run_threads(2, [](threads comm) {
    model<float> m;
    std::vector<float> g(4099), buffer(4099);
    per_tensor all(comm, one_bit);
    for (std::size_t k = 0; k < 3; ++k) {
      const std::size_t t = comm.rank() == 0 ? k : 2 - k;
      all.see(m.x[t], std::span<const float>(g.data(), sizes[t]));
    }
    CHECK(thrown<rank_mismatch>([&] { (void)all.finish(0.01F); }) != contains{"thrown"});
    see_all(all, m, buffer, 0, comm.rank());
    CHECK(all.finish(0.01F).step == 0);
  });
}

TEST_CASE("it moves [per_tensor]") {
  run_threads(1, [](threads comm) {
    model<float> a, b;
    std::vector<float> buffer(4099);
    per_tensor first(comm, one_bit), other(comm, one_bit);
    see_all(first, a, buffer, 0, 0);
    see_all(other, b, buffer, 0, 0);
    per_tensor second = std::move(first);
    (void)second.finish(0.01F);
    per_tensor third = std::move(second);
    see_all(third, a, buffer, 1, 0);
    (void)third.finish(0.01F);
    (void)other.finish(0.01F);
    see_all(other, b, buffer, 1, 0);
    (void)other.finish(0.01F);
    for (std::size_t t = 0; t < sizes.size(); ++t) CHECK(same(a.x[t], b.x[t]));
  });
}
