// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// What trainers do wrong without noticing, and what is said of it: tensors announced in each
// micro-batch, options of groups that a resumed job had lost, runs that skip on and on, memory that
// moves, sizes that cannot be. And the trainer's veto, which all ranks follow.

#include <cmath>
#include <cstdint>
#include <limits>
#include <onebit/any_optimizer.hpp>
#include <sstream>

#include "../support/training.hpp"
#include "compositions.hpp"
#include "shared.hpp"

using namespace onebit_test;
using namespace onebit_test::compositions;

namespace {

/// What the optimizers of a test have warned of, on all ranks.
class warnings {
 public:
  warnings() { texts().clear(); }
  static void add(const std::string& text) {
    const std::lock_guard lock(mutex());
    texts().push_back(text);
  }
  [[nodiscard]] static std::vector<std::string>& texts() {
    static std::vector<std::string> all;
    return all;
  }

 private:
  static std::mutex& mutex() {
    static std::mutex m;
    return m;
  }
};

template <class F>
void for_each_composition(const F& f) {
  f(plain);
  f(scattered);
  f(gathered);
  f(by_node);
  f(skipping);
}

}  // namespace

TEST_CASE(
    "a tensor that is announced in every micro-batch: told at the second, and step() goes on") {
  for (const auto& make : {false, true}) {
    onebit::run_threads(2, [&](onebit::threads t) {
      training<> data;
      auto o = bucketed(data, t);
      for (int i = 0; i < (make ? 5 : 0); ++i) (void)train(o, data);
      data.compute_gradients(t.rank(), o.steps());
      o.begin(0.01F);
      o.ready(5);
      const auto text = thrown<onebit::invalid_input>([&] { o.ready(5); });
      CHECK(text == contains{"ready(5) twice in step "});
      CHECK(text == contains{"after the last micro-batch"});
      CHECK_FALSE(o.step(0.01F).skipped);
    });
  }
}

TEST_CASE("a tensor that rests may be announced, once") {
  onebit::run_threads(2, [&](onebit::threads t) {
    training<> data;
    auto o = plain(data, t);
    o.rest(2);
    data.compute_gradients(t.rank(), 0);
    o.begin(0.01F);
    o.ready(2);
    CHECK(thrown<onebit::invalid_input>([&] { o.ready(2); }) == contains{"twice"});
    CHECK_FALSE(o.step(0.01F).skipped);
  });
}

TEST_CASE("options that set_group gave are in checkpoints") {
  for_each_composition([](const auto& make) {
    // 12 steps with other options from the fifth on; or a job that ends after the seventh.
    const auto run = [&](bool resumed, onebit::resume_with with, int of_ranks) {
      std::vector<std::string> files(4);
      std::vector<training<>> at(4);
      return on_ranks(of_ranks, [&](onebit::threads t) {
        training<> data;
        const auto steps = [&](auto& o, int end) {
          while (static_cast<int>(o.steps()) < end) {
            if (o.steps() == 4) {
              o.set_group(0, {.lr_factor = 2, .weight_decay = 5, .own = {.beta1 = 0.5}});
              o.set_group(1, {.rests = true});
            }
            if (train(o, data).skipped) break;
          }
        };
        const auto r = static_cast<std::size_t>(t.rank());
        {
          auto o = make(data, t);
          steps(o, resumed ? 7 : 12);
          if (!resumed) return data.digest();
          files[r] = saved(o);
          at[r] = data;
        }
        training<> initial;
        data.params = initial.params;
        auto o = make(data, t);
        data.params = at[r].params;
        std::istringstream in(files[r]);
        o.load(in, with);
        steps(o, 12);
        return data.digest();
      });
    };
    for (const int n : {2, 4}) {
      CAPTURE(n);
      const auto whole = run(false, {}, n);
      CHECK(run(true, onebit::resume_with::same_options, n) == whole);
      CHECK(run(true, onebit::resume_with::other_options, n) != whole);  // those of the new job
    }
  });
}

TEST_CASE("options of groups go to a job of other ranks, too") {
  std::vector<std::string> files(2);
  training<> at;
  const auto group = onebit::group_options{.lr_factor = 0.25F, .weight_decay = 3};
  onebit::run_threads(2, [&](onebit::threads t) {
    training<> data;
    auto o = scattered(data, t);
    o.set_group(0, group);
    for (int i = 0; i < 6; ++i) (void)train(o, data);
    files[static_cast<std::size_t>(t.rank())] = saved(o);
    if (t.rank() == 0) at = data;
  });
  const auto run = [&](bool again) {
    return on_ranks(4, [&](onebit::threads t) {
      training<> data;
      auto o = scattered(data, t);
      data.params = at.params;
      o.load_old_job(2,
                     [&](std::size_t r) { return std::make_unique<std::istringstream>(files[r]); });
      if (again) o.set_group(0, group);
      for (int i = 0; i < 3; ++i) (void)train(o, data);
      return data.digest();
    });
  };
  CHECK(run(false) == run(true));
}

TEST_CASE(
    "a checkpoint whose options of groups cannot be used is refused, and nothing has changed") {
  onebit::run_threads(2, [&](onebit::threads t) {
    training<> data;
    auto o = plain(data, t);
    (void)train(o, data);
    o.set_group(1, 0.75F, 0.5F);
    std::string file = saved(o);
    const float factor = 0.75F;
    std::string bytes(reinterpret_cast<const char*>(&factor), sizeof factor);
    const std::size_t place = file.find(bytes);
    REQUIRE(place != std::string::npos);
    file[place + 3] = static_cast<char>(0x7F);  // with the next bit: not a number
    file[place + 2] = static_cast<char>(0xC0);
    const auto before = saved(o);
    std::istringstream in(file);
    CHECK(thrown<onebit::checkpoint_error>([&] { o.load(in); }) == contains{"checkpoint"});
    CHECK(saved(o) == before);
  });
}

TEST_CASE("a run that skips on and on is told: how often, and whose gradient it is") {
  const auto run = [](const auto& make, int n, int bad_rank, std::size_t element) {
    const warnings all;
    onebit::run_threads(n, [&](onebit::threads t) {
      training<> data;
      auto o = make(data, t);
      o.warn_with(&warnings::add);
      for (int i = 0; i < 6; ++i) (void)train(o, data);
      for (int i = 0; i < 45; ++i) {
        data.compute_gradients(t.rank(), o.steps());
        if (t.rank() == bad_rank) data.grads[2][element] = std::numeric_limits<float>::infinity();
        const auto r = o.step(0.01F);
        CHECK(r.skipped);
        CHECK(r.skipped_share == doctest::Approx((i + 1) / (i + 7.0)));
      }
      CHECK_FALSE(train(o, data).skipped);
      CHECK(o.n_skipped() == 45);
    });
    return warnings::texts();
  };
  const auto count = [](const std::vector<std::string>& texts, const std::string& part) {
    return std::count_if(texts.begin(), texts.end(),
                         [&](const auto& x) { return x.find(part) != std::string::npos; });
  };
  for (const int n : {2, 4}) {
    const auto dense = run(plain, n, n - 1, 4321);
    CHECK(dense.size() ==
          6);  // after 10, 20 and 40, of rank 0, and of the one whose gradient it is
    CHECK(count(dense, "10 steps in a row were skipped, 10 in all, the last at step 6: ") == 2);
    CHECK(count(dense, "40 steps in a row were skipped, 40 in all") == 2);
    CHECK(count(dense, "the gradient of tensor 2, element 4321, is inf (inverse loss scale 1)") ==
          3);
    for (const bool levels : {false, true}) {
      if (levels && n == 2) continue;
      const auto sent = levels ? run(by_node, n, n - 1, 17) : run(scattered, n, n - 1, 17);
      CHECK(sent.size() == 6);
      const auto rank = std::to_string(n - 1), last = rank + "/" + std::to_string(n);
      const auto who =
          levels ? ", or of a rank whose message it sent on, or what it" : rank + ", or what it";
      CHECK(count(sent, "by a non-finite gradient or a veto of rank ") == 3);
      CHECK(count(sent, who + " carries has overflowed") == 3);
      CHECK(
          count(sent, "the gradient of tensor 2, element 17, is inf (inverse loss scale 1) [rank " +
                          last) == 3);
    }
    CHECK(run(scattered, n, 0, 0).size() == 3);
  }
}

TEST_CASE("a run that skips now and then is not told") {
  const warnings all;
  onebit::run_threads(2, [&](onebit::threads t) {
    training<> data;
    auto o = scattered(data, t);
    o.warn_with(&warnings::add);
    for (int i = 0; i < 60; ++i) {
      data.compute_gradients(t.rank(), o.steps());
      if (i % 10 > 0) data.grads[2][0] = std::numeric_limits<float>::quiet_NaN();
      (void)o.step(0.01F);
    }
  });
  CHECK(warnings::texts().empty());
}

TEST_CASE("ranks that all have the same gradients are told, once; ranks that nearly do are not") {
  // what the trainer adds to gradients that are the same on all ranks
  const auto run = [](float own_part) {
    const warnings all;
    onebit::run_threads(3, [&](onebit::threads t) {
      training<> data;
      onebit::one_bit_adam_options options;
      options.freeze.after = 2;
      auto o = onebit::one_bit_adam(data.groups(), t, options);
      o.warn_with(&warnings::add);
      for (int i = 0; i < 40; ++i) {
        data.compute_gradients(t.rank(), o.steps());
        const auto own = data.grads;
        data.compute_gradients(0, o.steps());
        for (std::size_t k = 0; k < own.size(); ++k) {
          for (std::size_t j = 0; j < own[k].size(); ++j) {
            data.grads[k][j] += own_part * (own[k][j] - data.grads[k][j]);
          }
        }
        CHECK_FALSE(o.step(0.01F).skipped);
      }
    });
    return warnings::texts();
  };
  const auto told = run(0);
  REQUIRE(told.size() == 1);
  CHECK(told[0] == contains{"all ranks had the same gradients: if the trainer averages them, "
                            "leave that out"});
  CHECK(told[0] == contains{"[rank 0/3]"});
  CHECK(run(0.05F).empty());
  CHECK(run(1).empty());
}

TEST_CASE("memory that moves is followed, where the trainer is asked in each step") {
  for_each_composition([](const auto& make) {
    const auto run = [&](int how) {
      return on_ranks(2, [&](onebit::threads t) {
        training<> data;
        auto typed = make(data, t);
        const auto train_with = [&](auto& o) {
          if (how > 0) o.rebind_with([&] { return data.groups(); });
          std::vector<training<>> old;
          for (int i = 0; i < 9; ++i) {
            if (how > 0) {
              old.push_back(data);  // keeps what it frees in use
              std::swap(data, old.back());
              for (auto& p : old.back().params) std::fill(p.begin(), p.end(), 1e9F);
            }
            data.compute_gradients(t.rank(), o.steps());
            if (how == 2) {
              o.begin(0.01F);
              for (std::size_t k = data.params.size(); k > 0; --k) o.ready(k - 1);
            }
            (void)o.step(0.01F);
          }
        };
        if (how == 3) {
          onebit::any_optimizer any(std::move(typed));
          train_with(any);
        } else {
          train_with(typed);
        }
        return data.digest();
      });
    };
    const auto still = run(0);
    for (const int how : {1, 2, 3}) CHECK(run(how) == still);
  });
}

TEST_CASE("groups that are asked for and do not fit: told, and the step can be made again") {
  onebit::run_threads(2, [&](onebit::threads t) {
    training<> data, other({33, 0, 5000});
    auto o = plain(data, t);
    o.rebind_with([&] { return other.groups(); });
    CHECK(thrown<onebit::invalid_input>([&] { (void)train(o, data); }) ==
          contains{"rebind: group 1 has 2 tensors, but had 5"});
    o.rebind_with({});
    CHECK_FALSE(train(o, data).skipped);
    onebit::any_optimizer any(std::move(o));
    CHECK(thrown<onebit::invalid_input>([&] {
            any.rebind_with([] { return std::vector<onebit::param_group<onebit::bf16>>(2); });
          }) == contains{"of other element types"});
  });
}

TEST_CASE("a size that cannot be: a negative number that became one") {
  onebit::run_threads(2, [&](onebit::threads t) {
    training<> data;
    for (const std::size_t n : {~std::size_t{0}, std::size_t{1} << 62U, std::size_t{1} << 61U}) {
      auto groups = data.groups();
      groups[1].tensors[1] = {{data.params[2].data(), n}, {data.grads[2].data(), n}};
      CHECK(thrown<onebit::error>([&] { (void)onebit::adam(groups, t); }) ==
            contains{"was a negative number converted to a size?"});
    }
  });
}

TEST_CASE("a copy of what is not there is refused") {
  onebit::run_threads(2, [&](onebit::threads t) {
    training<> data;
    auto o = scattered(data, t);
    const auto residual = [&](std::size_t tensor) {
      return o.copy(o.exchange().sender().residual(o.active()), tensor);
    };
    CHECK(thrown<onebit::invalid_input>([&] { (void)residual(0); }) ==
          contains{"before the first compressed step"});
    for (int i = 0; i < 5; ++i) (void)train(o, data);
    CHECK(residual(2).size() == 5000);
    CHECK(thrown<onebit::invalid_input>([&] { (void)residual(6); }) ==
          contains{"copy of tensor 6 of 6"});
  });
}

// -- the veto -----------------------------------------------------------------------------------

TEST_CASE("a veto that says nothing changes no bit, and is asked with the norm of the report") {
  for_each_composition([](const auto& make) {
    const auto run = [&](bool with) {
      return on_ranks(4, [&](onebit::threads t) {
        training<> data;
        auto o = make(data, t);
        std::optional<float> asked;
        if (with) {
          o.veto_with([&](float norm) {
            asked = norm;
            return false;
          });
        }
        for (int i = 0; i < 12; ++i) {
          asked.reset();
          const auto r = train(o, data);
          if (with) CHECK(asked == r.gradient_norm);
          CHECK(asked.has_value() == with);
        }
        return data.digest();
      });
    };
    CHECK(run(true) == run(false));
  });
}

TEST_CASE("a veto of one rank skips the step on all, with nothing changed") {
  for_each_composition([](const auto& make) {
    // Steps of a large gradient; with a veto they are as if they had not been.
    const auto run = [&](bool with, int who) {
      return on_ranks(4, [&](onebit::threads t) {
        training<> data;
        auto o = make(data, t);
        int attempt = 0, n_vetoed = 0;
        if (with) o.veto_with([&](float) { return t.rank() == who && attempt % 3 == 2; });
        const auto local = [&] {
          return with && o.steps() > 0 && attempt % 3 == 2 &&
                 o.schedule().due_in(o.steps(), 0.01F).nothing();
        };
        for (; o.steps() < 14; ++attempt) {
          if (!with && attempt % 3 == 2) continue;
          if (local()) continue;  // each rank's own business
          const auto params = data.params;
          const bool vetoed = train(o, data).skipped;
          CHECK(vetoed == (with && attempt % 3 == 2));
          if (vetoed) CHECK(data.params == params);
          n_vetoed += vetoed ? 1 : 0;
        }
        CHECK(o.n_skipped() == static_cast<std::uint64_t>(n_vetoed));
        return data.digest();
      });
    };
    const auto undisturbed = run(false, 0);
    for (const int who : {0, 3}) CHECK(run(true, who) == undisturbed);
  });
}

TEST_CASE("a veto in a local step leaves this rank's gradient out, and the others go on") {
  const auto skipped = on_ranks(2, [](onebit::threads t) {
    training<> data;
    auto o = skipping(data, t);
    bool local = false;
    o.veto_with([&](float) { return local && t.rank() == 1; });
    std::uint64_t n_local = 0;
    for (int i = 0; i < 20; ++i) {
      local = o.schedule().due_in(o.steps(), 0.01F).nothing();
      n_local += local ? 1 : 0;
      (void)train(o, data);
    }
    CHECK(o.steps() == 20);
    CHECK(n_local > 0);
    local = false;
    CHECK(o.n_skipped() == (t.rank() == 1 ? n_local : 0));
    while (train(o, data).phase != onebit::phase::compressed) {
    }
    return data.digest();
  });
  CHECK(skipped[0] == skipped[1]);
}

TEST_CASE("a z-score of the mean's norm: the steps whose gradients jump are skipped on all ranks") {
  const auto skipped = on_ranks(3, [](onebit::threads t) {
    training<> data;
    auto o = plain(data, t);
    std::vector<float> window;
    o.veto_with([&](float norm) {
      double mean = 0, square = 0;
      for (const float x : window) mean += static_cast<double>(x);
      mean /= static_cast<double>(window.size());
      for (const float x : window) square += std::pow(static_cast<double>(x) - mean, 2);
      const double deviation = std::sqrt(square / static_cast<double>(window.size()));
      const bool jumps = window.size() >= 8 && static_cast<double>(norm) > mean + 4 * deviation;
      if (!jumps) window.push_back(norm);
      return jumps;
    });
    std::vector<int> which;
    for (int i = 0; i < 30; ++i) {
      data.compute_gradients(t.rank(), static_cast<std::uint64_t>(i));
      if (i == 15 || i == 22) {
        for (auto& g : data.grads)
          for (float& x : g) x *= 50;
      }
      if (o.step(0.01F).skipped) which.push_back(i);
    }
    return which;
  });
  for (const auto& which : skipped) CHECK(which == std::vector<int>{15, 22});
}

TEST_CASE("a veto in a step that averages squares, and exchanges nothing") {
  onebit::run_threads(2, [](onebit::threads t) {
    training<> data;
    onebit::zero_one_adam_options options;
    options.schedule = {.kappa = 4, .warmup_steps = 3, .doubling_steps = 1, .max_interval = 4};
    auto o = onebit::zero_one_adam(data.groups(), t, options);
    bool vetoes = false;
    o.veto_with([&](float) { return vetoes && t.rank() == 1; });
    int n_vetoed = 0;
    for (int i = 0; i < 60; ++i) {
      const auto plan = o.schedule().due_in(o.steps(), 0.01F);
      vetoes = plan.average && !plan.exchange && i % 2 == 0;
      const bool skipped = train(o, data).skipped;
      CHECK(skipped == vetoes);
      n_vetoed += vetoes ? 1 : 0;
    }
    CHECK(n_vetoed > 0);
  });
}

TEST_CASE("a veto that throws: all skip, and the rank that threw throws after the step") {
  for_each_composition([](const auto& make) {
    onebit::run_threads(4, [&](onebit::threads t) {
      training<> data;
      auto o = make(data, t);
      int attempt = 0;
      o.veto_with([&](float) -> bool {
        if (t.rank() == 2 && attempt % 4 == 3) throw std::runtime_error("the trainer's own");
        return false;
      });
      for (; attempt < 16; ++attempt) {
        const bool local = o.steps() > 0 && o.schedule().due_in(o.steps(), 0.01F).nothing();
        if (local && attempt % 4 == 3) continue;
        const auto params = data.params;
        const auto step = [&] { return train(o, data).skipped; };
        if (attempt % 4 != 3) {
          CHECK_FALSE(step());
        } else if (t.rank() == 2) {
          CHECK(thrown<std::runtime_error>([&] { (void)step(); }) == "the trainer's own");
        } else {
          CHECK(step());
        }
        if (attempt % 4 == 3) CHECK(data.params == params);
      }
    });
  });
}

TEST_CASE("a veto in a model of two parts: after a mismatch all go on; one part alone is told") {
  // ranks 0 and 2 train one part, 1 and 3 the other; 0 and 1 hold one replica, 2 and 3 the other
  for (const int odd : {0, 1, 2}) {
    CAPTURE(odd);
    onebit::run_threads(4, [&](onebit::threads t) {
      training<> data;
      const onebit::threads part = t.split(t.rank() % 2, t.rank());
      onebit::adam_options options{.max_grad_norm = 1};
      auto o = onebit::adam(data.groups(), part, options);
      o.join_model_parallel(t.split(t.rank() / 2, t.rank()));
      if (odd < 2 || t.rank() % 2 == 0) o.veto_with([](float) { return false; });
      int n_told = 0;
      for (int i = 0; i < 6; ++i) {
        data.compute_gradients(t.rank(), o.steps());
        const float lr = odd == 1 && i == 2 && t.rank() == 2 ? 0.5F : 0.01F;
        try {
          const bool skipped = o.step(lr).skipped;
          CHECK(skipped == (odd == 1 && i == 2));
        } catch (const onebit::rank_mismatch& e) {
          ++n_told;
          CHECK(std::string(e.what()) ==
                contains{odd == 2 ? "model-parallel group: rank " : "lr: 0.5"});
        }
      }
      if (odd == 0) CHECK(n_told == 0);
      if (odd == 1) CHECK(n_told == (t.rank() % 2 == 0 ? 1 : 0));
      if (odd == 2) CHECK(n_told == 6);
    });
  }
}

TEST_CASE("memory that moved since the last step is where save, load and verify look") {
  onebit::run_threads(2, [](onebit::threads t) {
    training<> data;
    auto o = scattered(data, t);
    o.rebind_with([&] { return data.groups(); });
    for (int i = 0; i < 5; ++i) (void)train(o, data);
    std::vector<training<>> old;
    const auto move = [&] {
      old.push_back(data);
      std::swap(data, old.back());
      for (auto& p : old.back().params) std::fill(p.begin(), p.end(), 1e9F);
    };
    move();
    const std::string file = saved(o);
    const auto at = data.params;
    move();
    o.verify();
    for (int i = 0; i < 2; ++i) (void)train(o, data);
    data.params = at;
    move();
    std::istringstream in(file);
    o.load(in);  // the digest is of the parameters where they are now
    CHECK(saved(o) == file);
  });
}

TEST_CASE("other options take a checkpoint whose tensors are in other groups; the same do not") {
  onebit::run_threads(2, [](onebit::threads t) {
    training<> data;
    auto o = plain(data, t);
    for (int i = 0; i < 3; ++i) (void)train(o, data);
    const std::string file = saved(o);
    auto groups = data.groups();
    groups.push_back({{groups[1].tensors.back()}});
    groups[1].tensors.pop_back();
    auto regrouped = onebit::adam(groups, t);
    std::istringstream same(file), other(file);
    CHECK(thrown<onebit::checkpoint_error>([&] { regrouped.load(same); }) != "thrown: nothing");
    regrouped.load(other, onebit::resume_with::other_options);
    CHECK(regrouped.steps() == 3);
    CHECK_FALSE(train(regrouped, data).skipped);
  });
}

TEST_CASE("a rank that skips its own local steps on and on says so") {
  const warnings all;
  onebit::run_threads(2, [](onebit::threads t) {
    training<> data;
    onebit::zero_one_adam_options options;
    options.schedule = {.kappa = 1, .warmup_steps = 1, .doubling_steps = 1, .max_interval = 16};
    auto o = onebit::zero_one_adam(data.groups(), t, options);
    o.warn_with(&warnings::add);
    bool vetoes = false;
    o.veto_with([&](float) { return vetoes && t.rank() == 1; });
    for (int i = 0; i < 120; ++i) {
      vetoes = o.steps() > 40 && o.schedule().due_in(o.steps(), 0.01F).nothing();
      (void)train(o, data);
    }
  });
  REQUIRE(!warnings::texts().empty());
  for (const auto& text : warnings::texts()) {
    CHECK(text == contains{"vetoed on this rank [rank 1/2]"});
  }
}

TEST_CASE("a veto that is gone is no reason for later skips") {
  const warnings all;
  onebit::run_threads(2, [](onebit::threads t) {
    training<> data;
    auto o = plain(data, t);
    o.warn_with(&warnings::add);
    o.veto_with([](float) { return true; });
    for (int i = 0; i < 2; ++i) CHECK(train(o, data).skipped);
    o.veto_with({});
    for (int i = 0; i < 8; ++i) {
      data.compute_gradients(t.rank(), o.steps());
      data.grads[2][7] = std::numeric_limits<float>::infinity();
      CHECK(o.step(0.01F).skipped);
    }
  });
  CHECK(warnings::texts().size() == 2);
  for (const auto& text : warnings::texts()) CHECK(text == contains{"the gradient of tensor 2, "});
}

TEST_CASE("a veto on some ranks only is refused, and one between begin() and step()") {
  onebit::run_threads(3, [](onebit::threads t) {
    training<> data;
    auto o = scattered(data, t);
    const std::function<bool(float)> never = [](float) { return false; };
    CHECK(thrown<onebit::rank_mismatch>([&] { o.veto_with(t.rank() == 1 ? never : nullptr); }) ==
          contains{"veto_with: rank 1 gives a veto, rank 0 none"});
    o.begin(0.01F);
    CHECK(thrown<onebit::invalid_input>([&] { o.veto_with(never); }) == contains{"has begun"});
    data.compute_gradients(t.rank(), 0);
    CHECK_FALSE(o.step(0.01F).skipped);
    o.veto_with(never);
    o.veto_with({});
    CHECK_FALSE(train(o, data).skipped);
  });
}

TEST_CASE("bytes sent over those of dense steps") {
  const auto share = on_ranks(4, [](onebit::threads t) {
    training<> data({1 << 16});
    auto o = scattered(data, t);
    std::optional<float> all;
    double sent = 0;
    for (int i = 0; i < 20; ++i) {
      const auto r = train(o, data);
      sent += static_cast<double>(r.bytes_sent);
      all = r.sent_of_dense;
      CHECK(r.sent_of_dense ==
            doctest::Approx(sent / (1.5 * 4 * (1 << 16)) / (i + 1)).epsilon(1e-5));
    }
    return all.value();
  });
  // 3 dense steps, and 17 of a bit
  for (const float x : share) CHECK(x == doctest::Approx((3 + 17 / 32.0) / 20).epsilon(0.02));
  onebit::run_threads(1, [](onebit::threads t) {
    training<> data;
    auto o = plain(data, t);
    CHECK_FALSE(train(o, data).sent_of_dense.has_value());
  });
}
