// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Optimizers without their types, and by name.

#include <doctest/doctest.h>

#include <cstddef>
#include <cstring>
#include <filesystem>
#include <onebit/extras/by_name.hpp>
#include <onebit/extras/checkpoint_files.hpp>
#include <onebit/transport/threads.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "../golden/deepspeed_zero_one.hpp"
#include "support/ranks.hpp"
#include "support/scratch.hpp"

using namespace onebit;
using onebit_test::thrown;

namespace {

/// A model of three tensors in two groups, and the gradients of step s on a rank.
struct model {
  std::vector<float> x[3], g[3];

  model() {
    const std::size_t sizes[] = {100, 4099, 33};
    for (std::size_t t = 0; t < 3; ++t) {
      x[t].assign(sizes[t], 0.0F);
      g[t].assign(sizes[t], 0.0F);
      for (std::size_t i = 0; i < sizes[t]; ++i) {
        x[t][i] = 0.01F * static_cast<float>(i % 17) - 0.05F;
      }
    }
  }
  std::vector<param_group<>> groups() {
    std::vector<param_group<>> all(2);
    all[0].weight_decay = 0.1F;
    all[0].tensors = {{x[0], g[0]}, {x[1], g[1]}};
    all[1].tensors = {{x[2], g[2]}};
    return all;
  }
  void differentiate(int step, int rank) {
    for (std::size_t t = 0; t < 3; ++t) {
      for (std::size_t i = 0; i < g[t].size(); ++i) {
        const auto k = (i * 7 + static_cast<std::size_t>(step * 13 + rank * 5)) % 23;
        g[t][i] = x[t][i] + 0.1F * (static_cast<float>(k) - 11.0F);
      }
    }
  }
  bool operator==(const model& other) const {
    for (std::size_t t = 0; t < 3; ++t) {
      if (std::memcmp(x[t].data(), other.x[t].data(), x[t].size() * sizeof(float)) != 0) {
        return false;
      }
    }
    return true;
  }
};

const option_map own_options(const std::string& name) {
  if (name.ends_with("adam") && name.starts_with("one")) return {{"freeze.after", "3"}};
  if (name == "one_bit_lamb") return {{"after", "3"}};
  if (name.starts_with("zero_one")) return {{"warmup_steps", "3"}, {"doubling_steps", "2"}};
  return {};
}
any_optimizer typed(const std::string& name, const std::vector<param_group<>>& groups,
                    threads comm) {
  if (name == "adam") return adam(groups, comm);
  if (name == "lamb") return lamb(groups, comm);
  if (name == "one_bit_adam") {
    return one_bit_adam(groups, comm, one_bit_adam_options{.freeze = {.after = 3}});
  }
  if (name == "one_bit_lamb") {
    return one_bit_lamb(groups, comm, one_bit_lamb_options{.freeze = {.after = 3}});
  }
  const intervals_options schedule{.warmup_steps = 3, .doubling_steps = 2};
  return zero_one_adam(groups, comm, zero_one_adam_options{.schedule = schedule});
}
const char* const names[] = {"adam", "lamb", "one_bit_adam", "one_bit_lamb", "zero_one_adam"};

bool says(const std::string& text, const std::string& part) {
  CAPTURE(text);
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a name gives the bits and the identity of the call in C++ [any_optimizer]") {
  for (const std::string name : names) {
    run_threads(2, [&](threads comm) {
      model a, b;
      any_optimizer by_name = make_optimizer(name, own_options(name), a.groups(), comm);
      any_optimizer by_type = typed(name, b.groups(), comm);
      by_name.warn_with(nullptr);
      by_type.warn_with(nullptr);
      const bool same = by_name.description() == by_type.description();
      CHECK(same);
      for (int step = 0; step < 9; ++step) {
        a.differentiate(step, comm.rank());
        b.differentiate(step, comm.rank());
        const report ra = by_name.step(0.01F), rb = by_type.step(0.01F);
        CHECK(ra.bytes_sent == rb.bytes_sent);
        CHECK(ra.phase == rb.phase);
      }
      CHECK(a == b);
      CHECK(by_name.steps() == 9);
      CHECK(by_name.n_parameters() == 4232);
      CHECK(by_name.state_bytes() == by_type.state_bytes());
      CHECK(by_name.work_bytes() == by_type.work_bytes());
      CHECK(by_name.n_skipped() == 0);
      CHECK(by_name.settle() == outcome::kept);
      CHECK(by_name.rank() == comm.rank());
      CHECK(by_name.size() == 2);
    });
  }
}

TEST_CASE("one that was moved goes on; an empty one says so [any_optimizer]") {
  run_threads(2, [](threads comm) {
    model a;
    any_optimizer first = make_optimizer("adam", {{"lr", "0.5"}}, a.groups(), comm), second;
    CHECK_FALSE(second.has_value());
    CHECK(says(thrown<error>([&] { (void)second.step(0.1F); }), "it owns no optimizer"));
    a.differentiate(0, comm.rank());
    (void)first.step(0.01F);
    second = std::move(first);
    a.differentiate(1, comm.rank());
    (void)second.step(0.01F);
    CHECK(second.steps() == 2);
    CHECK(says(thrown<error>([&] { (void)first.steps(); }),  // NOLINT: that is what is tested
               "it owns no optimizer"));
  });
}

TEST_CASE("calls around a step reach the optimizer [any_optimizer]") {
  run_threads(2, [](threads comm) {
    model a, b;
    any_optimizer x = make_optimizer("one_bit_adam", {{"after", "2"}}, a.groups(), comm);
    auto y = one_bit_adam(b.groups(), comm, one_bit_adam_options{.freeze = {.after = 2}});
    x.warn_with(nullptr);
    y.warn_with(nullptr);
    for (int step = 0; step < 8; ++step) {
      a.differentiate(step, comm.rank());
      b.differentiate(step, comm.rank());
      if (step == 2) {
        x.set_group(1, 0.5F, 0.2F);
        y.set_group(1, 0.5F, 0.2F);
        x.verify();
        y.verify();
      }
      if (step == 6) {
        x.rest(1);
        y.rest(1);
        x.set_group(0, group_options{.weight_decay = 0.3F, .own = {.beta1 = 0.8}});
        y.set_group(0, group_options{.weight_decay = 0.3F, .own = {.beta1 = 0.8}});
      }
      x.begin(0.01F);
      x.ready(2);
      int calls = 0;
      (void)x.step_with(
          [&](std::uint64_t, const auto& enqueue) {
            ++calls;
            enqueue();
          },
          0.01F);
      CHECK(calls <= 1);
      (void)y.step(0.01F);
    }
    CHECK(a == b);
    CHECK(says(thrown<error>([&] { x.set_group(2, 1, 0); }), "group 2 of 2"));
    x.begin(0.01F);
    CHECK(says(thrown<error>([&] { x.begin(0.01F); }), "begin() twice"));
  });
}

TEST_CASE("what the policies cannot do is said [any_optimizer]") {
  run_threads(1, [](threads comm) {
    model a;
    any_optimizer y = make_optimizer("lamb", {}, a.groups(), comm);
    CHECK(says(thrown<error>([&] { y.start_from({}, 1); }), "start_from"));
  });
}

TEST_CASE("a rule from outside of the library [any_optimizer]") {
  run_threads(2, [](threads comm) {
    model a, b;
    any_optimizer x = deepspeed::zero_one_adam(a.groups(), comm, {});
    auto y = deepspeed::zero_one_adam(b.groups(), comm, {});
    for (int step = 0; step < 5; ++step) {
      a.differentiate(step, comm.rank());
      b.differentiate(step, comm.rank());
      (void)x.step(0.01F);
      (void)y.step(0.01F);
    }
    CHECK(a == b);
    CHECK(says(thrown<error>([&] { x.load_old_job(3, [](std::size_t) { return nullptr; }); }),
               "load_old_job: its rule cannot go on"));
  });
}

TEST_CASE("moments from elsewhere, and shards [any_optimizer]") {
  run_threads(2, [](threads comm) {
    model a, b;
    any_optimizer x = make_optimizer("adam", {}, a.groups(), comm);
    auto y = adam(b.groups(), comm);
    std::vector<float> m[3], v[3];
    std::vector<given_moments> moments;
    for (std::size_t t = 0; t < 3; ++t) {
      m[t].assign(a.x[t].size(), 0.1F);
      v[t].assign(a.x[t].size(), 0.2F);
      moments.push_back({m[t], v[t]});
    }
    x.start_from(moments, 5);
    y.start_from(moments, 5);
    a.differentiate(0, comm.rank());
    b.differentiate(0, comm.rank());
    x.join_model_parallel(comm.split(comm.rank(), 0));
    (void)x.step(0.01F);
    (void)y.step(0.01F);
    CHECK(a == b);
    a.differentiate(1, comm.rank());
    b.differentiate(1, comm.rank());
    (void)x.step(0.01F);
    (void)y.step(0.01F);
    CHECK(a == b);
  });
}

TEST_CASE("saved and loaded, also with other ranks [any_optimizer]") {
  const onebit_test::scratch scratch;
  for (const std::string name : names) {
    const auto root = scratch.path / name;
    std::vector<model> ends(2);
    run_threads(2, [&](threads comm) {
      model a;
      any_optimizer x = make_optimizer(name, own_options(name), a.groups(), comm);
      x.warn_with(nullptr);
      std::string saved;
      model then;
      for (int step = 0; step < 8; ++step) {
        if (step == 5) {
          std::ostringstream out;
          x.save(out);
          saved = std::move(out).str();
          then = a;
          save_all(x, root, [&](std::ostream& to) {
            for (const auto& t : a.x) {
              to.write(reinterpret_cast<const char*>(t.data()),
                       static_cast<std::streamsize>(t.size() * sizeof(float)));
            }
          });
        }
        a.differentiate(step, comm.rank());
        (void)x.step(0.01F);
      }
      model b;
      any_optimizer y = make_optimizer(name, own_options(name), b.groups(), comm);
      for (std::size_t t = 0; t < 3; ++t) b.x[t].assign(then.x[t].begin(), then.x[t].end());
      std::istringstream in(saved);
      y.load(in);
      for (int step = 5; step < 8; ++step) {
        b.differentiate(step, comm.rank());
        (void)y.step(0.01F);
      }
      CHECK(a == b);
    });
    run_threads(3, [&](threads comm) {
      model a;
      any_optimizer x = make_optimizer(name, own_options(name), a.groups(), comm);
      const auto step = load_latest(x, root, [&](std::istream& in) {
        for (auto& t : a.x) {
          in.read(reinterpret_cast<char*>(t.data()),
                  static_cast<std::streamsize>(t.size() * sizeof(float)));
        }
      });
      CHECK(step == 5U);
      CHECK(x.steps() == 5);
      a.differentiate(5, comm.rank());
      CHECK_FALSE(x.step(0.01F).skipped);
    });
  }
}

TEST_CASE("what every rank says, over the optimizer's transport [any_optimizer]") {
  run_threads(3, [](threads comm) {
    model a;
    any_optimizer x = make_optimizer("adam", {}, a.groups(), comm);
    struct {
      char text[150];
    } mine{};
    for (std::size_t i = 0; i < sizeof mine.text; ++i) {
      mine.text[i] = static_cast<char>(static_cast<int>(i) + comm.rank());
    }
    decltype(mine) all[3];
    x.transport().host_all_gather(&mine, all, sizeof mine);
    for (int r = 0; r < 3; ++r) {
      const auto& text = all[static_cast<std::size_t>(r)].text;
      CHECK(text[0] == static_cast<char>(r));
      CHECK(text[149] == static_cast<char>(149 + r));
    }
  });
}

TEST_CASE("ranks that are told other names or options hear of it [any_optimizer]") {
  const auto both = [](const auto& make) {
    std::string errors[2];
    run_threads(2, [&](threads comm) {
      model a;
      errors[comm.rank()] = thrown<error>([&] { make(a.groups(), comm); });
    });
    return std::pair(errors[0], errors[1]);
  };
  const auto [a, b] = both([](const auto& groups, threads comm) {
    const option_map o = comm.rank() == 0 ? option_map{} : option_map{{"epz", "1"}};
    (void)make_optimizer("adam", o, groups, comm);
  });
  CHECK(says(b, "there is no option epz; did you mean eps?"));
  CHECK(says(a, "rank 1"));
  const auto [c, d] = both([](const auto& groups, threads comm) {
    (void)make_optimizer(comm.rank() == 0 ? "adam" : "one_bit_adam", {}, groups, comm);
  });
  CHECK(c != "thrown: nothing");
  CHECK(d != "thrown: nothing");
  const auto [e, f] = both([](const auto& groups, threads comm) {
    (void)make_optimizer("adam", {{"betas", comm.rank() == 0 ? "[0.9,0.99]" : "[0.9,0.98]"}},
                         groups, comm);
  });
  CHECK(says(e, "beta2"));
  CHECK(says(f, "beta2"));
}

TEST_CASE("weight_decay goes to one group, or is that of some [any_optimizer]") {
  run_threads(1, [](threads comm) {
    std::vector<float> x(10, 1.0F), g(10, 0.0F), x2(10, 1.0F), g2(10, 0.0F);
    std::vector<param_group<>> one(1), two(2);
    one[0].tensors = {{x, g}};
    two[0].tensors = {{x, g}};
    two[1].tensors = {{x2, g2}};
    any_optimizer o = make_optimizer("AdamW", {{"weight_decay", "0.5"}}, one, comm);
    (void)o.step(0.1F);
    CHECK(x[0] == doctest::Approx(0.95));
    one[0].weight_decay = 0.5F;
    CHECK(make_optimizer("AdamW", {{"weight_decay", "0.5"}}, one, comm).has_value());
    CHECK(says(thrown<error>([&] {
                 (void)make_optimizer("AdamW", {{"weight_decay", "0.4"}}, one, comm);
               }),
               "weight_decay is 0.4, but none of 1 groups has it"));
    CHECK(says(thrown<error>([&] {
                 (void)make_optimizer("AdamW", {{"weight_decay", "0.5"}}, two, comm);
               }),
               "none of 2 groups"));
    two[1].weight_decay = 0.5F;
    CHECK(make_optimizer("AdamW", {{"weight_decay", "0.5"}}, two, comm).has_value());
    CHECK(make_optimizer("AdamW", {{"weight_decay", "0"}}, two, comm).has_value());
  });
}

TEST_CASE("what the algorithm refuses it refuses by name too [any_optimizer]") {
  run_threads(1, [](threads comm) {
    model a;
    const auto why = [&](const char* name, const option_map& o) {
      return thrown<error>([&] { (void)make_optimizer(name, o, a.groups(), comm); });
    };
    CHECK(says(why("adam", {{"betas", "[1, 0.9]"}}), "beta1 is 1"));
    CHECK(says(why("zero_one_adam", {{"max_interval", "0"}}), "max_interval is 0"));
    CHECK(says(why("OneBitLamb", {{"min_coeff", "2"}, {"max_coeff", "1"}}), "min_coeff is 2"));
  });
}
