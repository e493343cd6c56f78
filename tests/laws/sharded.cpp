// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Optimizers whose state is shared out: the bits of those whose state is not.

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <onebit/any_optimizer.hpp>
#include <onebit/checkpoint_files.hpp>
#include <onebit/sharded.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "../support/scratch.hpp"
#include "../support/scripted.hpp"
#include "../support/training.hpp"

using namespace onebit_test;

namespace {

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
constexpr std::size_t buckets[] = {0, 64, 1000};

/// What each rank's parameters are after so many steps of what `make` makes.
template <class G = float, class Make>
std::vector<std::uint64_t> digests(int w, const Make& make, int n_steps = 12) {
  return on_ranks(w, [&](onebit::threads t) {
    training<G> data;
    auto o = make(data, t);
    for (int i = 0; i < n_steps; ++i) CHECK_FALSE(train(o, data).skipped);
    return data.digest();
  });
}

/// Parameters of two bytes, and gradients that depend on them.
struct halves {
  halves() {
    const training<> like;
    for (const auto& p : like.params) {
      params.emplace_back();
      for (const float x : p) params.back().push_back(onebit::to_bf16(x));
      grads.emplace_back(p.size());
    }
  }
  [[nodiscard]] std::vector<onebit::param_group<onebit::bf16>> groups() {
    std::vector<onebit::param_group<onebit::bf16>> all(1);
    for (std::size_t t = 0; t < params.size(); ++t) all[0].tensors.push_back({params[t], grads[t]});
    return all;
  }
  void compute_gradients(int rank, std::uint64_t step) {
    const std::uint64_t seed = 31 * step + static_cast<std::uint64_t>(rank);
    for (std::size_t t = 0; t < params.size(); ++t) {
      for (std::size_t i = 0; i < params[t].size(); ++i) {
        const float x = onebit::to_float(params[t][i]);
        grads[t][i] = onebit::to_bf16(noise(seed * 1000003 + t * 50021 + i) + 0.3F * x);
      }
    }
  }
  std::vector<std::vector<onebit::bf16>> params, grads;
};

/// One rank, whose slots lie where the host cannot see them.
struct far_alone {
  [[nodiscard]] int rank() const { return 0; }
  [[nodiscard]] int size() const { return 1; }
  void all_to_all(const void*, void*, std::size_t) { FAIL("one rank sends to itself"); }
  void all_gather(const void*, void*, std::size_t) { FAIL("one rank sends to itself"); }
  void host_all_gather(const void* send, void* receive, std::size_t n) {
    std::memcpy(receive, send, n);
  }
  void all_reduce_sum(float*, std::size_t) { FAIL("one rank sends to itself"); }
};

}  // namespace

TEST_CASE("sharded: the bits of the optimizer that is not") {
  for (const int w : {1, 2, 3, 5}) {
    CAPTURE(w);
    const auto adam = digests(w, [](auto& d, auto t) { return onebit::adam(d.groups(), t); });
    const auto lion = digests(w, [](auto& d, auto t) { return onebit::lion(d.groups(), t); });
    for (const std::size_t bucket : buckets) {
      CAPTURE(bucket);
      const onebit::sharding how{.bucket_elements = bucket};
      const auto by_adam = [&](auto& d, auto t) {
        return onebit::sharded_adam(d.groups(), t, {}, how);
      };
      CHECK(digests(w, by_adam) == adam);
      CHECK(digests<const float>(w, by_adam) == adam);
      CHECK(digests(w, [&](auto& d, auto t) {
              return onebit::sharded_lion(d.groups(), t, {}, how);
            }) == lion);
    }
  }
}

TEST_CASE("sharded: averages in bf16 are summed by owners, who round nothing") {
  const int w = 3;
  const auto mean_in_bf16 = [](training<>& data, std::uint64_t step) {
    std::vector<std::vector<float>> sums;
    for (int r = 0; r < w; ++r) {
      data.compute_gradients(r, step);
      for (std::size_t t = 0; t < data.grads.size(); ++t) {
        if (r == 0) sums.emplace_back(data.grads[t].size());
        for (std::size_t i = 0; i < sums[t].size(); ++i) {
          const float g = onebit::to_float(onebit::to_bf16(data.grads[t][i]));
          sums[t][i] = r == 0 ? g : sums[t][i] + g;
        }
      }
    }
    for (std::size_t t = 0; t < sums.size(); ++t) {
      for (std::size_t i = 0; i < sums[t].size(); ++i) data.grads[t][i] = sums[t][i] * (1.0F / w);
    }
  };
  training<> expected;
  auto alone = onebit::adam(expected.groups(), onebit::alone{});
  for (std::uint64_t step = 0; step < 8; ++step) {
    mean_in_bf16(expected, step);
    (void)alone.step(0.01F);
  }
  const auto found = on_ranks(w, [&](onebit::threads t) {
    training<> data;
    auto o = onebit::sharded_adam(data.groups(), t, {},
                                  {.sum = onebit::dense_sum::in_bf16, .bucket_elements = 600});
    for (std::uint64_t step = 0; step < 8; ++step) {
      data.compute_gradients(t.rank(), step);
      (void)o.step(0.01F);
    }
    return data.digest();
  });
  for (const std::uint64_t digest : found) CHECK(digest == expected.digest());
}

TEST_CASE("sharded: averages in int8 are off by half a unit of the largest of 32 at most") {
  const int w = 4;
  (void)on_ranks(w, [&](onebit::threads t) {
    training<> data({5000, 33});
    auto o = onebit::sharded_adam(data.groups(), t, {},
                                  {.sum = onebit::dense_sum::in_int8, .bucket_elements = 1000});
    std::vector<std::vector<std::vector<float>>> all;
    for (int r = 0; r < w; ++r) {
      data.compute_gradients(r, 0);
      all.push_back(data.grads);
    }
    data.compute_gradients(t.rank(), 0);
    (void)o.step(0.01F);  // leaves the means where the gradients of what it owns lay
    for (const onebit::owned_piece& p : o.pieces()) {
      for (std::size_t i = p.first; i < p.first + p.n; ++i) {
        double mean = 0, bound = 0;
        for (const auto& g : all) {
          const auto& x = g[p.tensor];
          mean += static_cast<double>(x[i]) / w;
          float largest = 0;
          const std::size_t first = i / 32 * 32, end = std::min(first + 32, x.size());
          for (std::size_t k = first; k < end; ++k) largest = std::max(largest, std::abs(x[k]));
          bound += static_cast<double>(largest) / 64 / 2 / w;
        }
        CHECK(std::abs(static_cast<double>(data.grads[p.tensor][i]) - mean) <= bound + 1e-6);
      }
    }
    return 0;
  });
}

TEST_CASE("sharded: each rank holds a part, and all parts are everything once") {
  for (const int w : {1, 3, 4}) {
    CAPTURE(w);
    struct told {
      std::vector<onebit::owned_piece> pieces;
      std::size_t state;
    };
    const auto of = on_ranks(w, [&](onebit::threads t) {
      training<> data;
      auto o = onebit::sharded_adam(data.groups(), t, {}, {.bucket_elements = 1024});
      train(o, data);
      return told{o.pieces(), o.state_bytes()};
    });
    std::vector<std::vector<int>> owners;
    for (const std::size_t n : mixed_sizes) owners.emplace_back(n);
    for (const told& one : of) {
      for (const onebit::owned_piece& p : one.pieces) {
        for (std::size_t i = 0; i < p.n; ++i) ++owners[p.tensor][p.first + i];
      }
      // 8 bytes an element, and what pads words and chunks: at most a word a tensor and a bucket
      CHECK(one.state <= 8 * 5798 / static_cast<std::size_t>(w) + 8 * 32 * (6 + 6 + 6));
    }
    for (const auto& tensor : owners) {
      for (const int n : tensor) CHECK(n == 1);
    }
  }
}

TEST_CASE("sharded: clipping is by the norm of the whole") {
  const auto run = [](bool shares) {
    return on_ranks(3, [&](onebit::threads t) {
      training<> data;
      std::vector<float> norms;
      const auto go = [&](auto o) {
        for (int i = 0; i < 10; ++i) norms.push_back(train(o, data).gradient_norm.value_or(-1));
      };
      const onebit::adam_options clips{.max_grad_norm = 5};
      if (shares) {
        go(onebit::sharded_adam(data.groups(), t, clips, {.bucket_elements = 512}));
      } else {
        go(onebit::adam(data.groups(), t, clips));
      }
      return std::pair(norms, data.params);
    });
  };
  const auto whole = run(false), parts = run(true);
  for (std::size_t r = 0; r < 3; ++r) {
    for (std::size_t i = 0; i < 10; ++i) {
      CHECK(whole[r].first[i] > 5);
      CHECK(parts[r].first[i] == doctest::Approx(whole[r].first[i]).epsilon(1e-6));
    }
    CHECK(parts[r].second == parts[0].second);
    double most = 0;
    for (std::size_t t = 0; t < mixed_sizes.size(); ++t) {
      for (std::size_t i = 0; i < mixed_sizes[t]; ++i) {
        const auto d = whole[r].second[t][i] - parts[r].second[t][i];
        most = std::max(most, std::abs(static_cast<double>(d)));
      }
    }
    CHECK(most < 1e-5);  // of ten steps of up to 0.01: the factors differ in the last bits
  }
}

TEST_CASE("sharded: a bad gradient anywhere makes all skip, and leaves no trace") {
  const float bad[] = {not_a_number, std::numeric_limits<float>::infinity(), 3e14F, -3e38F};
  for (const auto sum :
       {onebit::dense_sum::rank_order, onebit::dense_sum::in_bf16, onebit::dense_sum::in_int8}) {
    const auto run = [&](bool strikes) {
      return on_ranks(5, [&](onebit::threads t) {
        training<> data({33, 0, 300, 1});  // fewer words than chunks: some ranks own little
        auto o = onebit::sharded_adam(data.groups(), t, {}, {.sum = sum, .bucket_elements = 64});
        for (std::uint64_t i = 0; i < 40; ++i) {
          if (strikes && i % 3 == 1) {
            data.compute_gradients(t.rank(), o.steps());
            const std::uint64_t before = data.digest(), steps = o.steps();
            if (static_cast<int>(i / 3 % 5) == t.rank()) {
              data.grads[2][i * 7] = bad[i / 3 % 4];
            }
            CHECK(o.step(0.01F).skipped);
            CHECK(data.digest() == before);
            CHECK(o.steps() == steps);
          }
          CHECK_FALSE(train(o, data).skipped);
        }
        CHECK(o.n_skipped() == (strikes ? 13 : 0));
        return std::pair(data.digest(), saved(o));
      });
    };
    CHECK(run(true) == run(false));
  }
}

TEST_CASE("sharded: ranks that are told other things, or use it wrongly, are told so") {
  (void)on_ranks(3, [&](onebit::threads t) {
    training<> data;
    auto o = onebit::sharded_adam(data.groups(), t);
    (void)train(o, data);
    const std::uint64_t before = data.digest();
    const bool is_odd = t.rank() == 1;
    const auto refused = [&](float lr) {
      data.compute_gradients(t.rank(), o.steps());
      (void)o.step(lr);
    };
    const std::string other_rate =
        thrown<onebit::rank_mismatch>([&] { refused(is_odd ? 0.02F : 0.01F); });
    CHECK(other_rate == contains(is_odd ? "rank 0" : "rank 1"));
    if (is_odd) {
      CHECK(thrown<onebit::invalid_input>([&] { refused(not_a_number); }) == contains("lr nan"));
    } else {
      CHECK(thrown<onebit::rank_mismatch>([&] { refused(0.01F); }) == contains("rank 1"));
    }
    CHECK(data.digest() == before);
    CHECK(o.steps() == 1);
    // decays differ
    o.set_group(0, 1.0F, is_odd ? 0.5F : 0.01F);
    CHECK(thrown<onebit::rank_mismatch>([&] { refused(0.01F); }) == contains("other numbers"));
    o.set_group(0, 1.0F, 0.01F);
    CHECK_FALSE(train(o, data).skipped);
    // misuse
    CHECK(thrown<onebit::invalid_input>([&] { o.ready(0); }) == contains("without begin"));
    o.begin(0.01F);
    CHECK(thrown<onebit::invalid_input>([&] { o.begin(0.01F); }) == contains("has begun"));
    CHECK(thrown<onebit::invalid_input>([&] { o.ready(6); }) == contains("ready(6) of 6"));
    CHECK(thrown<onebit::invalid_input>([&] { o.rest(0); }) == contains("has begun"));
    CHECK(thrown<onebit::invalid_input>([&] { (void)o.step(0.5F); }) == contains("0.01"));
    data.compute_gradients(t.rank(), o.steps());
    CHECK_FALSE(o.step(0.01F).skipped);
    const auto built = [&](const onebit::sharding& how) {
      (void)onebit::sharded_adam(data.groups(), t, {}, how);
    };
    CHECK(thrown<onebit::invalid_input>([&] { built({.sum = onebit::dense_sum::transport}); }) ==
          contains("sums by the transport"));
    CHECK(thrown<onebit::invalid_input>([&] { built({.masters = true}); }) ==
          contains("2 bytes, not of 4"));
    if (is_odd) data.params[2][4000] += 1;
    CHECK(thrown<onebit::rank_mismatch>([&] { built({}); }) == contains("other initial parameter"));
    return 0;
  });
}

TEST_CASE("sharded: announced gradients, rests, groups that change, memory that moves") {
  const auto run = [](const auto& make, bool announces) {
    return on_ranks(3, [&](onebit::threads t) {
      training<> data;
      auto o = make(data, t);
      for (std::uint64_t i = 0; i < 15; ++i) {
        if (i == 4)
          o.set_group(1, {.lr_factor = 0.25F, .weight_decay = 0.1F, .own = {.beta1 = 0.8}});
        if (i == 8) o.set_group(0, {.weight_decay = 0.01F, .rests = true});
        if (i == 10) o.set_group(0, 1.0F, 0.01F);
        if (i == 11) o.set_group(0, {.weight_decay = 0.01F});
        if (i % 4 == 3) o.rest(2);
        if (i == 12) {
          auto moved = data.params;
          std::swap(moved, data.params);
          for (auto& g : data.grads) g = std::vector<float>(g.size());
          CHECK(o.rebind(data.groups()) == 5);
        }
        data.compute_gradients(t.rank(), o.steps());
        if (announces) {
          o.begin(0.01F, 0.5F);
          for (std::size_t k = data.params.size(); k-- > i % 6;) o.ready(k);
        }
        CHECK_FALSE(o.step(0.01F, 0.5F).skipped);
      }
      return data.digest();
    });
  };
  const auto whole = run([](auto& d, auto t) { return onebit::adam(d.groups(), t); }, false);
  for (const std::size_t bucket : buckets) {
    const auto parts = [&](auto& d, auto t) {
      return onebit::sharded_adam(d.groups(), t, {}, {.bucket_elements = bucket});
    };
    CHECK(run(parts, false) == whole);
    CHECK(run(parts, true) == whole);
  }
}

TEST_CASE("sharded: a checkpoint has the bits, and one that fails on a rank changes nothing") {
  const auto make = [](auto& d, auto t) {
    return onebit::sharded_adam(d.groups(), t, {}, {.bucket_elements = 700});
  };
  const auto expected = digests(3, make, 20);
  std::vector<std::string> states(3);
  std::vector<std::vector<std::vector<float>>> params(3);
  const auto found = on_ranks(3, [&](onebit::threads t) {
    const auto r = static_cast<std::size_t>(t.rank());
    {
      training<> data;
      auto o = make(data, t);
      for (int i = 0; i < 9; ++i) train(o, data);
      states[r] = saved(o);
      params[r] = data.params;
    }
    training<> data;
    auto o = make(data, t);
    train(o, data);
    for (std::size_t i = 0; i < data.params.size(); ++i) {
      std::copy(params[r][i].begin(), params[r][i].end(), data.params[i].begin());
    }
    const std::string before = saved(o);
    const auto load = [&](std::string state) {
      std::istringstream in(std::move(state));
      o.load(in);
    };
    const std::size_t n = states[r].size();
    for (const std::size_t length : {n / 40, n / 2, n - 1}) {
      const std::string part = states[r].substr(0, r == 1 ? length : n);
      CHECK(thrown<onebit::checkpoint_error>([&] { load(part); }) == contains("rank"));
      CHECK((saved(o) == before));
    }
    CHECK(thrown<onebit::checkpoint_error>([&] { load(states[(r + 1) % 3]); }) == contains("rank"));
    CHECK((saved(o) == before));
    load(states[r]);
    for (int i = 9; i < 20; ++i) train(o, data);
    return data.digest();
  });
  CHECK(found == expected);
  const auto two = on_ranks(2, [&](onebit::threads t) {
    const auto r = static_cast<std::size_t>(t.rank());
    training<> data;
    data.params = params[r];
    training<> again;
    auto o = make(again, t);
    std::istringstream in(states[r]);
    return thrown<onebit::checkpoint_error>([&] { o.load(in); });
  });
  CHECK(two[0] == contains("world size 3, this optimizer 2"));
}

namespace {

void masters_of_what_a_rank_owns(bool low_halves) {
  const auto unsharded = on_ranks(3, [&](onebit::threads t) {
    halves data;
    auto groups = data.groups();
    std::vector<std::vector<float>> masters;
    std::vector<std::vector<onebit::low_half>> low;
    for (const auto& p : data.params) {
      masters.emplace_back();
      for (const auto x : p) masters.back().push_back(onebit::to_float(x));
    }
    for (const auto& p : data.params) low.emplace_back(p.size());
    for (std::size_t i = 0; i < masters.size(); ++i) {
      if (low_halves) groups[0].tensors[i].master_low = low[i];
      if (!low_halves) groups[0].tensors[i].master = masters[i];
    }
    auto o = onebit::adam(groups, t, {}, onebit::host(), onebit::dense_sum::rank_order);
    for (std::uint64_t i = 0; i < 20; ++i) {
      data.compute_gradients(t.rank(), i);
      (void)o.step(1e-3F);
    }
    onebit::digest d;
    for (const auto& p : data.params) d.add(p.data(), p.size() * 2);
    return d.value();
  });
  const scratch files;
  const auto found = on_ranks(3, [&](onebit::threads t) {
    halves data;
    const auto make = [&] {
      return onebit::any_optimizer(onebit::sharded_adam(data.groups(), t, {},
                                                        {.sum = onebit::dense_sum::rank_order,
                                                         .bucket_elements = 900,
                                                         .masters = !low_halves,
                                                         .master_low = low_halves}));
    };
    const auto go = [&](auto& o, std::uint64_t until) {
      while (o.steps() < until) {
        data.compute_gradients(t.rank(), o.steps());
        CHECK_FALSE(o.step(1e-3F).skipped);
      }
    };
    auto o = make();
    go(o, 7);
    onebit::save_all(o, files.path, [&](std::ostream& out) {
      for (const auto& p : data.params) {
        out.write(reinterpret_cast<const char*>(p.data()),
                  static_cast<std::streamsize>(p.size() * 2));
      }
    });
    go(o, 9);
    data = halves();
    o = make();
    const auto step = onebit::load_latest(o, files.path, [&](std::istream& in) {
      for (auto& p : data.params) {
        in.read(reinterpret_cast<char*>(p.data()), static_cast<std::streamsize>(p.size() * 2));
      }
    });
    CHECK(step == std::optional<std::uint64_t>(7));
    go(o, 20);
    onebit::digest d;
    for (const auto& p : data.params) d.add(p.data(), p.size() * 2);
    return d.value();
  });
  CHECK(found == unsharded);
}

}  // namespace

TEST_CASE("sharded: masters are of what a rank owns, and a job with them goes on from its files") {
  masters_of_what_a_rank_owns(false);
}

TEST_CASE("sharded: low halves of masters are of what a rank owns, and take half the bytes") {
  masters_of_what_a_rank_owns(true);
  on_ranks(4, [](onebit::threads t) {
    std::vector<onebit::bf16> params(40000), grads(40000);
    std::vector<onebit::param_group<onebit::bf16>> groups(1);
    groups[0].tensors.push_back({params, grads});
    const auto bytes = [&](const onebit::sharding& how) {
      return onebit::sharded_adam(groups, t, {}, how).state_bytes();
    };
    const std::size_t none = bytes({}), low = bytes({.master_low = true});
    CHECK(low - none >= 2 * 10000);
    CHECK(low - none < 2 * 10100);  // words that are not whole
    CHECK(bytes({.masters = true}) - none == 2 * (low - none));
    const onebit::sharding both{.masters = true, .master_low = true};
    CHECK(thrown<onebit::invalid_input>([&] { (void)bytes(both); }) ==
          contains{"masters and master_low are both asked for"});
    std::vector<float> wide(100), wide_grads(100);
    std::vector<onebit::param_group<>> floats(1);
    floats[0].tensors.push_back({wide, wide_grads});
    CHECK(thrown<onebit::invalid_input>([&] {
            (void)onebit::sharded_adam(floats, t, {}, {.master_low = true});
          }) == contains{"low halves of masters are for parameters in bf16"});
    return 0;
  });
}

TEST_CASE(
    "sharded: a transport that fails before parameters travel changes nothing; then it says so") {
  for (const std::size_t bucket : {std::size_t{0}, std::size_t{2000}}) {
    for (std::uint64_t at = 0; at < 20; ++at) {
      CAPTURE(at);
      struct result {
        bool failed, moved, stuck;
      };
      const auto ends = on_ranks(3, [&](onebit::threads t) {
        training<> data;
        const auto told = std::make_shared<script>();
        auto o =
            onebit::sharded_adam(data.groups(), scripted(t, told), {}, {.bucket_elements = bucket});
        (void)train(o, data);
        const std::uint64_t before = data.digest();
        told->fail_at = told->calls + at;
        result r{false, false, false};
        try {
          (void)train(o, data);
        } catch (const onebit::transport_error&) {
          r.failed = true;
        }
        told->fail_at = script::never;
        r.moved = data.digest() != before;
        if (!r.failed) return r;
        try {
          (void)train(o, data);
        } catch (const onebit::transport_error& e) {
          CHECK(std::string(e.what()) == contains("load a checkpoint on all"));
          r.stuck = true;
        }
        return r;
      });
      const std::uint64_t n_buckets = bucket == 0 ? 1 : 3;
      for (const result& r : ends) {
        CHECK(r.failed == (at < 2 * n_buckets + 1));
        CHECK(r.stuck == (at > n_buckets && r.failed));
        if (r.failed && !r.stuck) CHECK_FALSE(r.moved);
      }
    }
  }
}

TEST_CASE("sharded: damaged messages and memory are found where that was asked for") {
  (void)on_ranks(3, [&](onebit::threads t) {
    training<> data;
    const auto told = std::make_shared<script>();
    auto o = onebit::sharded_adam(data.groups(), scripted(t, told));
    o.check_messages(onebit::checked::everything);
    (void)train(o, data);
    const std::uint64_t before = data.digest();
    for (std::uint64_t bit = 0; bit < 400; bit += 37) {
      told->flip_at = t.rank() == 2 ? told->calls : script::never;
      told->flip_bit = bit * 997;
      bool skipped = false;
      const auto step = [&] { skipped = train(o, data).skipped; };
      if (t.rank() == 2) {
        CHECK(thrown<onebit::transport_error>(step) == contains("damaged"));
      } else {
        step();
        CHECK(skipped);
      }
      CHECK(data.digest() == before);
    }
    told->flip_at = script::never;
    o.verify_every(2);
    CHECK_FALSE(train(o, data).skipped);
    if (t.rank() == 1) data.params[2][77] += 1;
    const auto verified = [&] {
      for (int i = 0; i < 2; ++i) (void)train(o, data);
    };
    CHECK(thrown<onebit::rank_mismatch>(verified) == contains("rank 1 has other parameters"));
    return 0;
  });
}

TEST_CASE("sharded: a step that is called off is one for those that own nothing, or what rests") {
  const auto is_refused = [](auto& o, float lr) {
    return thrown<onebit::error>([&] { (void)o.step(lr); });
  };
  for (const auto& sizes : {std::vector<std::size_t>{5000, 700}, {33}, {0, 0}}) {
    (void)on_ranks(3, [&](onebit::threads t) {
      training<> data(sizes);
      auto o = onebit::sharded_adam(data.groups(), t, {}, {.bucket_elements = 1000});
      (void)train(o, data);
      const std::uint64_t before = data.digest();
      o.rest(0);  // with what each rank owns first
      const bool is_odd = t.rank() == 1;
      const std::string what = is_refused(o, is_odd ? not_a_number : 0.01F);
      CHECK(what == contains(is_odd ? "lr nan" : "rank 1 was told other numbers"));
      CHECK(data.digest() == before);
      CHECK(o.steps() == 1);
      CHECK(o.n_skipped() == 1);
      CHECK_FALSE(train(o, data).skipped);
      return 0;
    });
  }
  for (const int w : {1, 3}) {
    (void)on_ranks(w, [&](onebit::threads t) {
      training<> data({5000, 700});
      auto o = onebit::sharded_adam(data.groups(), t, {},
                                    {.sum = onebit::dense_sum::in_int8, .bucket_elements = 1000});
      (void)train(o, data);
      const std::uint64_t before = data.digest();
      o.rest(0);
      data.compute_gradients(t.rank(), o.steps());
      if (t.rank() == 0) data.grads[1][3] = std::numeric_limits<float>::infinity();
      CHECK(o.step(0.01F).skipped);
      CHECK(data.digest() == before);
      return 0;
    });
  }
  (void)on_ranks(3, [&](onebit::threads t) {
    training<> data({33});  // two words: the last rank has none
    const auto told = std::make_shared<script>();
    auto o = onebit::sharded_adam(data.groups(), scripted(t, told));
    o.check_messages(onebit::checked::everything);
    (void)train(o, data);
    const std::uint64_t before = data.digest();
    told->flip_at = t.rank() == 2 ? told->calls : script::never;
    bool skipped = false;
    const auto step = [&] { skipped = train(o, data).skipped; };
    CHECK(o.pieces().empty() == (t.rank() == 2));
    CHECK(thrown<onebit::transport_error>(step) == contains(t.rank() == 2 ? "damaged" : "nothing"));
    CHECK(skipped == (t.rank() != 2));
    CHECK(data.digest() == before);
    CHECK(o.steps() == 1);
    return 0;
  });
}

TEST_CASE("sharded: what was odd in a step that is over is not said of the next one") {
  (void)on_ranks(2, [&](onebit::threads t) {
    training<> one, two;
    const auto told = std::make_shared<script>();
    auto a = onebit::sharded_adam(one.groups(), scripted(t, told));
    auto b = onebit::sharded_adam(two.groups(), scripted(t, told));
    (void)train(a, one);
    const std::uint64_t of_a = one.digest(), of_b = two.digest();
    const auto swapped = [&] { (void)(t.rank() == 0 ? train(a, one) : train(b, two)); };
    const std::string what = thrown<onebit::rank_mismatch>(swapped);
    CHECK(what == contains(t.rank() == 0 ? "rank 1 is at step 0" : "rank 0 is at step 1"));
    CHECK(what == contains(t.rank() == 0 ? "[rank 0/2]" : "[rank 1/2]"));
    CHECK(one.digest() == of_a);
    CHECK(two.digest() == of_b);
    CHECK_FALSE(train(a, one).skipped);
    CHECK_FALSE(train(b, two).skipped);
    for (std::uint64_t at = 0; at < 2; ++at) {
      told->fail_at = told->calls + at;
      const auto apart = [&] { (void)a.step(t.rank() == 0 ? 0.1F : 0.2F); };
      CHECK(thrown<onebit::transport_error>(apart) == contains("the network is down"));
      told->fail_at = script::never;
      CHECK_FALSE(train(a, one).skipped);
    }
    return 0;
  });
}

TEST_CASE("sharded: with one rank nothing travels, in any type") {
  for (const auto sum :
       {onebit::dense_sum::rank_order, onebit::dense_sum::in_bf16, onebit::dense_sum::in_int8}) {
    training<> whole, parts;
    auto a = onebit::adam(whole.groups(), onebit::alone{});
    auto b = onebit::sharded_adam(parts.groups(), far_alone{}, {},
                                  {.sum = sum, .bucket_elements = 1000});
    for (int i = 0; i < 4; ++i) {
      (void)train(a, whole);
      CHECK(train(b, parts).collectives == 0);
    }
    CHECK(parts.digest() == whole.digest());
  }
}

TEST_CASE("sharded: numbers, buckets, checksums, shards, and what is not to be saved") {
  (void)on_ranks(2, [&](onebit::threads t) {
    const bool is_first = t.rank() == 0;
    training<> data;
    const auto told = std::make_shared<script>();
    const auto make = [&](const onebit::sharding& how) {
      return onebit::sharded_adam(data.groups(), scripted(t, told), {}, how);
    };
    auto o = make({});
    CHECK(thrown<onebit::invalid_input>([&] { o.set_group(2, 1.0F, 0.0F); }) ==
          contains("group 2 of 2"));
    data.compute_gradients(t.rank(), 0);
    CHECK_FALSE(o.step(is_first ? 0.0F : -0.0F).skipped);
    o.begin(0.0F);
    CHECK_FALSE(o.step(-0.0F).skipped);
    // a refusal is told once, by the step
    o.begin(not_a_number);
    (void)o.settle();
    CHECK(thrown<onebit::invalid_input>([&] { (void)o.step(not_a_number); }) == contains("lr nan"));
    CHECK(o.settle() == onebit::outcome::skipped);
    CHECK_FALSE(train(o, data).skipped);
    CHECK(o.settle() == onebit::outcome::agreed);
    CHECK(thrown<onebit::invalid_input>([&] { o.join_shards(onebit::alone{}); }) ==
          contains("join_shards of 1 ranks, but 2"));
    // 5856 elements: as many words a rank in either
    CHECK(thrown<onebit::rank_mismatch>([&] {
            (void)make({.bucket_elements = is_first ? 2928U : 1464U});
          }) == contains("rank 1 has buckets 4, rank 0 has buckets 2"));
    // int8 is checked at first
    auto in_int8 = make({.sum = onebit::dense_sum::in_int8});
    if (is_first) in_int8.check_messages(onebit::checked::compressed);
    CHECK_FALSE(train(in_int8, data).skipped);
    told->flip_at = is_first ? told->calls : script::never;
    told->flip_bit = 5003;
    CHECK(thrown<onebit::transport_error>([&] { (void)train(in_int8, data); }) ==
          contains(is_first ? "damaged" : "nothing"));
    told->flip_at = script::never;
    // after parameters were taken over in part
    const std::string before = saved(o);
    told->fail_at = told->calls + 2;
    CHECK(thrown<onebit::transport_error>([&] { (void)train(o, data); }) == contains("down"));
    told->fail_at = script::never;
    CHECK(thrown<onebit::checkpoint_error>([&] { (void)saved(o); }) ==
          contains("load a checkpoint on all"));
    return 0;
  });
}
