// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// What is shared out goes on with other ranks, who own other pieces: with the bits of the optimizer
// that is not shared out, and goes on likewise.

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <onebit/any_optimizer.hpp>
#include <onebit/checkpoint_files.hpp>
#include <onebit/sharded.hpp>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "../compiled/emulated.hpp"
#include "../support/emulated.hpp"
#include "../support/scratch.hpp"
#include "../support/training.hpp"

using namespace onebit_test;

namespace {

constexpr std::uint64_t saved_at = 9, ends_at = 17;
const int new_sizes[] = {3, 2, 1, 5, 4};

template <class Rows>
void write_rows(std::ostream& out, const Rows& rows) {
  for (const auto& p : rows) {
    out.write(reinterpret_cast<const char*>(p.data()),
              static_cast<std::streamsize>(p.size() * sizeof p[0]));
  }
}
template <class Rows>
void read_rows(std::istream& in, Rows& rows) {
  for (auto& p : rows) {
    in.read(reinterpret_cast<char*>(p.data()),
            static_cast<std::streamsize>(p.size() * sizeof p[0]));
  }
}

/// Steps in some of which a tensor rests: its bias counts apart.
template <class O, class G>
void go(O& o, training<G>& data, std::uint64_t until) {
  while (o.steps() < until) {
    if (o.steps() % 4 == 1) o.rest(2);
    CHECK_FALSE(train(o, data).skipped);
  }
}

/// What `make` makes, on w ranks until it is saved, and on `now` ranks from there on.
template <class G = float, class Make>
std::vector<std::uint64_t> stopped(int w, int now, const Make& make) {
  const scratch files;
  (void)on_ranks(w, [&](const onebit::threads& t) {
    training<G> data;
    auto o = make(data, t);
    go(o, data, saved_at);
    onebit::save_all(o, files.path, [&](std::ostream& out) { write_rows(out, data.params); });
    return 0;
  });
  return on_ranks(now, [&](const onebit::threads& t) {
    training<G> data;
    auto o = make(data, t);
    go(o, data, 2);  // what it had done goes
    const auto step =
        onebit::load_latest(o, files.path, [&](std::istream& in) { read_rows(in, data.params); });
    CHECK(step == std::optional(saved_at));
    CHECK(o.steps() == saved_at);
    go(o, data, ends_at);
    return data.digest();
  });
}

/// Files as streams that may be opened one by one.
using states = std::vector<std::string>;
auto opener(const states& of) {
  return [&of](std::size_t r) { return std::make_unique<std::istringstream>(of.at(r)); };
}

const auto by_adam = [](auto& d, const auto& t) {
  return onebit::sharded_adam(d.groups(), t, {}, {.bucket_elements = 700});
};

/// A job of w ranks after so many steps.
struct job {
  template <class Make>
  job(int w, const Make& make, std::uint64_t steps = saved_at) {
    for (auto& [state, p] : on_ranks(w, [&](const onebit::threads& t) {
           training<> data;
           auto o = make(data, t);
           go(o, data, steps);
           return std::pair(saved(o), data.params);
         })) {
      files.push_back(std::move(state));
      params = std::move(p);
    }
  }
  void restore(training<>& data) const {
    for (std::size_t k = 0; k < params.size(); ++k) {
      std::copy(params[k].begin(), params[k].end(), data.params[k].begin());
    }
  }
  states files;
  std::vector<std::vector<float>> params;
};

/// What a load of four ranks' files says.
template <class O>
std::string refused_for(O& o, const states& files) {
  return thrown<onebit::checkpoint_error>([&] { o.load_old_job(4, opener(files)); });
}

}  // namespace

TEST_CASE("resharded: the bits of adam and lion that go on with other ranks") {
  for (const int now : new_sizes) {
    CAPTURE(now);
    const auto adam =
        stopped(4, now, [](auto& d, const auto& t) { return onebit::adam(d.groups(), t); });
    for (const std::size_t bucket : {0, 64, 1000}) {
      CAPTURE(bucket);
      const onebit::sharding how{.bucket_elements = bucket};
      CHECK(stopped(4, now, [&](auto& d, const auto& t) {
              return onebit::sharded_adam(d.groups(), t, {}, how);
            }) == adam);
    }
    // gradients that are only read, and without the type
    CHECK(stopped<const float>(4, now, by_adam) == adam);
    CHECK(stopped(4, now, [&](auto& d, const auto& t) {
            return onebit::any_optimizer(by_adam(d, t));
          }) == adam);
    CHECK(stopped(4, now,
                  [](auto& d, const auto& t) { return onebit::sharded_lion(d.groups(), t); }) ==
          stopped(4, now, [](auto& d, const auto& t) { return onebit::lion(d.groups(), t); }));
    CHECK(stopped(4, now, [](auto& d, const auto& t) {
            return onebit::sharded_lion<onebit::bf16>(d.groups(), t);
          }) == stopped(4, now, [](auto& d, const auto& t) {
            return onebit::lion<onebit::bf16>(d.groups(), t);
          }));
  }
}

TEST_CASE("resharded: masters of 2-byte parameters go to their new owners") {
  const std::vector<std::size_t> sizes = {33, 0, 1000, 1, 64, 300};
  struct halves {
    explicit halves(const std::vector<std::size_t>& sizes) {
      for (std::size_t k = 0; k < sizes.size(); ++k) {
        params.emplace_back(sizes[k]);
        grads.emplace_back(sizes[k]);
        for (std::size_t i = 0; i < sizes[k]; ++i) {
          params[k][i] = onebit::to_bf16(noise(k * 1000003 + i));
          masters.resize(k + 1);
          masters[k].push_back(onebit::to_float(params[k][i]));
        }
        low.emplace_back(sizes[k]);
      }
      masters.resize(sizes.size());
    }
    [[nodiscard]] std::vector<onebit::param_group<onebit::bf16>> groups(bool with_masters,
                                                                        bool with_low) {
      std::vector<onebit::param_group<onebit::bf16>> all(1);
      for (std::size_t k = 0; k < params.size(); ++k) {
        all[0].tensors.push_back({params[k], grads[k]});
        if (with_masters) all[0].tensors.back().master = masters[k];
        if (with_low) all[0].tensors.back().master_low = low[k];
      }
      return all;
    }
    void compute_gradients(int rank, std::uint64_t step) {
      const std::uint64_t seed = 31 * step + static_cast<std::uint64_t>(rank);
      for (std::size_t k = 0; k < params.size(); ++k) {
        for (std::size_t i = 0; i < params[k].size(); ++i) {
          const float x = onebit::to_float(params[k][i]);
          grads[k][i] = onebit::to_bf16(noise(seed * 1000003 + k * 50021 + i) + 0.3F * x);
        }
      }
    }
    std::vector<std::vector<onebit::bf16>> params, grads;
    std::vector<std::vector<float>> masters;
    std::vector<std::vector<onebit::low_half>> low;
  };
  const auto run = [&](int now, bool shares, std::size_t bucket, bool halved) {
    const scratch files;
    const auto part = [&](const onebit::threads& t, bool first) {
      halves data(sizes);
      const auto steps = [&](auto o) {
        const auto until = [&](std::uint64_t end) {
          while (o.steps() < end) {
            data.compute_gradients(t.rank(), o.steps());
            CHECK_FALSE(o.step(1e-3F).skipped);
          }
        };
        if (first) {
          until(saved_at);
          onebit::save_all(o, files.path, [&](std::ostream& out) {
            write_rows(out, data.params);
            write_rows(out, data.masters);
            write_rows(out, data.low);
          });
          return;
        }
        const auto step = onebit::load_latest(o, files.path, [&](std::istream& in) {
          read_rows(in, data.params);
          read_rows(in, data.masters);
          read_rows(in, data.low);
        });
        CHECK(step == std::optional(saved_at));
        until(ends_at);
      };
      if (shares) {
        steps(onebit::sharded_adam(data.groups(false, false), t, {},
                                   {.sum = onebit::dense_sum::rank_order,
                                    .bucket_elements = bucket,
                                    .masters = !halved,
                                    .master_low = halved}));
      } else {
        steps(onebit::adam(data.groups(!halved, halved), t, {}, onebit::host(),
                           onebit::dense_sum::rank_order));
      }
      onebit::digest d;
      for (const auto& p : data.params) d.add(p.data(), p.size() * 2);
      return d.value();
    };
    (void)on_ranks(4, [&](const onebit::threads& t) { return part(t, true); });
    return on_ranks(now, [&](const onebit::threads& t) { return part(t, false); });
  };
  for (const int now : new_sizes) {
    CAPTURE(now);
    for (const bool halved : {false, true}) {
      const auto whole = run(now, false, 0, halved);
      CHECK(run(now, true, 0, halved) == whole);
      CHECK(run(now, true, 200, halved) == whole);
    }
  }
}

TEST_CASE("resharded: more ranks than words, and fewer") {
  const std::vector<std::size_t> sizes = {33, 0, 1};
  for (const int w : {2, 7}) {
    for (const int now : {1, 3, 7}) {
      CAPTURE(w);
      CAPTURE(now);
      const auto run = [&](const auto& make) {
        states files;
        std::vector<std::vector<float>> params;
        for (auto& [state, p] : on_ranks(w, [&](const onebit::threads& t) {
               training<> data(sizes);
               auto o = make(data, t);
               for (int i = 0; i < 5; ++i) (void)train(o, data);
               return std::pair(saved(o), data.params);
             })) {
          files.push_back(std::move(state));
          params = std::move(p);
        }
        return on_ranks(now, [&](const onebit::threads& t) {
          training<> again(sizes);
          again.params = params;
          auto next = make(again, t);
          next.load_old_job(files.size(), opener(files));
          for (int i = 0; i < 5; ++i) (void)train(next, again);
          return again.digest();
        });
      };
      CHECK(run(by_adam) ==
            run([](auto& d, const auto& t) { return onebit::adam(d.groups(), t); }));
    }
  }
}

TEST_CASE("resharded: a job goes on from what one of other ranks has saved anew") {
  const auto run = [](const auto& make) {
    states files;
    std::vector<std::vector<float>> params;
    for (const int w : {4, 1, 3, 5, 2}) {
      std::vector<std::pair<std::string, std::vector<std::vector<float>>>> ends =
          on_ranks(w, [&](const onebit::threads& t) {
            training<> data;
            if (!params.empty()) data.params = params;
            auto o = make(data, t);
            if (!files.empty()) o.load_old_job(files.size(), opener(files));
            go(o, data, o.steps() + 5);
            return std::pair(saved(o), data.params);
          });
      files.clear();
      params = ends[0].second;
      for (auto& e : ends) files.push_back(std::move(e.first));
    }
    return params;
  };
  CHECK(run(by_adam) == run([](auto& d, const auto& t) { return onebit::adam(d.groups(), t); }));
}

TEST_CASE("resharded: what does not fit is refused on all, and nothing has changed") {
  const job good(4, by_adam), later(4, by_adam, saved_at + 1);
  const job other(4, [](auto& d, const auto& t) {
    return onebit::sharded_lion(d.groups(), t, {}, {.bucket_elements = 700});
  });
  const job cut(4, [](auto& d, const auto& t) {
    return onebit::sharded_adam(d.groups(), t, {}, {.bucket_elements = 1400});
  });
  const job whole(4, [](auto& d, const auto& t) { return onebit::adam(d.groups(), t); });
  (void)on_ranks(3, [&](const onebit::threads& t) {
    training<> data;
    auto o = by_adam(data, t);
    (void)train(o, data);
    good.restore(data);
    const std::string before = saved(o);
    const std::uint64_t bits = data.digest();
    const auto refused = [&](const states& files, std::size_t n) {
      const std::string text =
          thrown<onebit::checkpoint_error>([&] { o.load_old_job(n, opener(files)); });
      CHECK((saved(o) == before));
      CHECK(data.digest() == bits);
      return text;
    };
    for (std::size_t r = 0; r < 4; ++r) {
      const std::size_t n = good.files[r].size();
      for (const std::size_t length : {std::size_t{0}, std::size_t{7}, n / 40, n / 2, n - 1}) {
        states files = good.files;
        files[r].resize(length);
        CHECK(refused(files, 4) == contains{"rank"});
      }
      states files = good.files;
      files[r][n / 2] = static_cast<char>(files[r][n / 2] ^ 4);
      CHECK(refused(files, 4) == contains{"rank"});
      files = good.files;
      files[r] = good.files[(r + 1) % 4];
      CHECK(refused(files, 4) == contains{"rank"});
      files[r] = later.files[r];  // its parameters are others too
      CHECK(refused(files, 4) == contains{"rank"});
    }
    CHECK(refused(other.files, 4) == contains{"sharded_lion"});
    CHECK(refused(whole.files, 4) == contains{"has adam"});
    CHECK(refused(cut.files, 4) == contains{"buckets"});
    CHECK(refused(good.files, 3) == contains{"world size 4"});
    CHECK(refused(good.files, 0) == contains{"0 ranks to load"});
    CHECK(refused(good.files, 5) == contains{"world size 4"});
    // on one rank alone
    const auto open_here = opener(good.files);
    CHECK(thrown<onebit::checkpoint_error>([&] {
            o.load_old_job(4, [&](std::size_t r) {
              if (t.rank() == 1) throw std::runtime_error("the disk is gone");
              return open_here(r);
            });
          }) == contains{t.rank() == 1 ? "the disk is gone" : "rank 1 could not read"});
    CHECK((saved(o) == before));
    data.params[2][17] += 1;
    CHECK(refused_for(o, good.files) == contains{"parameters in memory"});
    data.params[2][17] = good.params[2][17];
    o.begin(0.01F);
    CHECK(refused_for(o, good.files) == contains{"between begin() and step()"});
    data.compute_gradients(t.rank(), 1);
    CHECK_FALSE(o.step(0.01F).skipped);
    good.restore(data);
    o.load_old_job(4, opener(good.files));
    CHECK(o.steps() == saved_at);
    // in the process they would have to tell each other all that they own
    onebit::any_optimizer any(std::move(o));
    CHECK(thrown<onebit::invalid_input>([&] { any.regroup(t); }) ==
          contains{"regroup: its state is shared out; save it"});
    CHECK(thrown<onebit::invalid_input>([&] { any.change_tensors(data.groups(), {}); }) ==
          contains{"its state is shared out"});
    return 0;
  });
}

TEST_CASE("resharded: files of two steps are refused, where parameters are the same too") {
  states files, later;
  std::vector<std::vector<float>> params;
  for (auto& [state, next, p] : on_ranks(4, [](const onebit::threads& t) {
         training<> data;
         auto o = by_adam(data, t);
         go(o, data, saved_at);
         std::string state = saved(o);
         data.compute_gradients(t.rank(), o.steps());
         (void)o.step(0.0F);  // moves moments alone
         return std::tuple(std::move(state), saved(o), data.params);
       })) {
    files.push_back(std::move(state));
    later.push_back(std::move(next));
    params = std::move(p);
  }
  for (const int w : {1, 3}) {
    (void)on_ranks(w, [&](const onebit::threads& t) {
      training<> data;
      data.params = params;
      auto o = by_adam(data, t);
      const std::string before = saved(o);
      for (std::size_t r = 0; r < 4; ++r) {
        states mixed = files;
        mixed[r] = later[r];
        CHECK(refused_for(o, mixed) == contains{"rank"});
        CHECK((saved(o) == before));
      }
      o.load_old_job(4, opener(later));
      CHECK(o.steps() == saved_at + 1);
      return 0;
    });
  }
}

TEST_CASE("resharded: any rule that steps element by element, with what it keeps by tensor") {
  // on one rank the mean of equal gradients has the bits of that on two
  const auto make = [](training<>& data, const onebit::threads& t) {
    return onebit::detail::make_sharded(data.groups(), t, onebit::host(),
                                        [](const auto& own, onebit::alone one, onebit::host b) {
                                          return onebit::zero_one_adam(
                                              own, one, {.schedule = {.warmup_steps = 3}},
                                              onebit::gather_scatter<onebit::sign<>>{}, b);
                                        },
                                        {.bucket_elements = 700});
  };
  const auto steps = [](auto& o, training<>& data, int n) {
    for (int i = 0; i < n; ++i) {
      data.compute_gradients(0, o.steps());
      CHECK_FALSE(o.step(0.01F).skipped);
    }
  };
  const auto two = on_ranks(2, [&](const onebit::threads& t) {
    training<> data;
    auto o = make(data, t);
    steps(o, data, 6);
    return std::pair(saved(o), data.params);
  });
  const states files = {two[0].first, two[1].first};
  const auto one = on_ranks(1, [&](const onebit::threads& t) {
    training<> data, never;
    auto whole = make(never, t);
    steps(whole, never, 12);
    data.params = two[0].second;
    auto o = make(data, t);
    o.load_old_job(2, opener(files));
    steps(o, data, 6);
    CHECK(data.digest() == never.digest());
    return saved(o) == saved(whole);
  });
  CHECK(one[0]);
}

TEST_CASE("resharded: on a backend that runs behind the host") {
  const job before(3, by_adam);
  const auto go_on = [&](const auto& t, auto backend) {
    training<> data;
    data.params = before.params;
    auto o = onebit::sharded_adam(data.groups(), t, {}, {.bucket_elements = 700}, backend);
    if constexpr (decltype(backend)::deferred) {  // memory that fails on one rank
      const std::string was = saved(o);
      for (std::uint64_t more = 0; o.steps() == 0; ++more) {
        REQUIRE(more < 1000);
        if (t.rank() == 1) backend.fail_allocation(more);
        try {
          o.load_old_job(3, opener(before.files));
        } catch (const onebit::checkpoint_error&) {
          backend.fail_no_allocation();
          CHECK((saved(o) == was));
        }
        backend.fail_no_allocation();
      }
    } else {
      o.load_old_job(3, opener(before.files));
    }
    for (int i = 0; i < 4; ++i) {
      data.compute_gradients(t.rank(), o.steps());
      (void)o.step(0.01F);
      CHECK(o.settle() == onebit::outcome::agreed);
    }
    return data.digest();
  };
  const auto host = on_ranks(2, [&](const onebit::threads& t) { return go_on(t, onebit::host()); });
  std::vector<emulated> backends(2);
  std::vector<emulated_memory> memories(backends.begin(), backends.end());
  std::vector<std::uint64_t> device(2);
  onebit::run_threads(
      memories,
      [&](const onebit::basic_threads<emulated_memory>& t) {
        const auto r = static_cast<std::size_t>(t.rank());
        device[r] = go_on(t, backends[r]);
      },
      std::chrono::seconds(60));
  CHECK(device == host);
}
