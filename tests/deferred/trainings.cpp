// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Whole trainings on a backend that runs behind the host, on emulated warps: the bits of the host
// backend, skipped steps, checkpoints, replayed steps, 16-bit elements. What a CUDA stream does,
// without a GPU.

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <new>
#include <onebit/any_optimizer.hpp>
#include <onebit/collective/all_gather.hpp>
#include <onebit/collective/hierarchical.hpp>
#include <onebit/extras/papers.hpp>
#include <onebit/onebit.hpp>
#include <onebit/transport/staged.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "../compiled/emulated.hpp"
#include "../golden/deepspeed_zero_one.hpp"
#include "../support/echo.hpp"
#include "../support/emulated.hpp"
#include "../support/training.hpp"

using onebit::any_optimizer;
using onebit_test::contains;
using onebit_test::emulated;
using onebit_test::emulated_memory;
using onebit_test::thrown;

namespace {

using sizes = std::vector<std::size_t>;
const sizes small = {33, 0, 1000, 1, 4100};
const sizes whole_words = {64, 0, 1024, 32, 4128};

/// One rank's tensors of P with gradients of G, and master parameters.
template <class P = float, class G = P>
struct tensors {
  std::vector<std::vector<P>> params;
  std::vector<std::vector<std::remove_const_t<G>>> grads;
  std::vector<std::vector<float>> master;

  explicit tensors(bool with_master = false, const sizes& of = small) {
    for (std::size_t t = 0; t < of.size(); ++t) {
      params.emplace_back(of[t]);
      grads.emplace_back(of[t]);
      master.emplace_back(with_master ? of[t] : 0);
      for (std::size_t i = 0; i < of[t]; ++i) {
        const float x = onebit_test::noise(t * 1000003 + i);
        params[t][i] = onebit::from_float<P>(x);
        if (with_master) master[t][i] = x;
      }
    }
  }
  std::vector<onebit::param_group<P, G>> groups() {
    std::vector<onebit::param_group<P, G>> result(2);
    result[0].weight_decay = 0.01F;
    result[1].lr_factor = 0.5F;
    for (std::size_t t = 0; t < params.size(); ++t) {
      result[t == 0 ? 0 : 1].tensors.push_back({params[t], grads[t], master[t]});
    }
    return result;
  }
  void fill(int rank, std::uint64_t call, float scale = 1) {
    const std::uint64_t seed = 7919 * (call + 1) + 104729 * static_cast<std::uint64_t>(rank + 1);
    for (std::size_t t = 0; t < grads.size(); ++t) {
      for (std::size_t i = 0; i < grads[t].size(); ++i) {
        const float g = onebit_test::noise(seed * 1000003 + t * 50021 + i) * scale;
        grads[t][i] = onebit::from_float<std::remove_const_t<G>>(i % 17 == 5 ? 0.0F : g);
      }
    }
  }
  std::uint64_t digest() const {
    onebit::detail::digest d;
    for (const auto& p : params) d.add(p.data(), p.size() * sizeof(P));
    for (const auto& m : master) d.add(m.data(), m.size() * sizeof(float));
    return d.value();
  }
};

/// f(transport, backend) on n ranks of the host, and of the emulated device.
template <class F>
std::vector<std::uint64_t> on_host(int n, const F& f) {
  return onebit_test::on_ranks(n, [&](onebit::threads t) { return f(t, onebit::host()); });
}
template <class F>
std::vector<std::uint64_t> on_device(int n, const F& f) {
  std::vector<emulated> backends(static_cast<std::size_t>(n));
  for (auto& b : backends) b = emulated();
  std::vector<emulated_memory> memories(backends.begin(), backends.end());
  std::vector<std::uint64_t> results(backends.size());
  onebit::run_threads(
      memories,
      [&](onebit::basic_threads<emulated_memory> t) {
        const auto r = static_cast<std::size_t>(t.rank());
        results[r] = f(t, backends[r]);
      },
      std::chrono::seconds(60));
  return results;
}

/// `calls` steps; the gradients of the calls in `bad` have an infinity on rank 1.
std::uint64_t steps(any_optimizer& o, tensors<>& data, std::uint64_t first, std::uint64_t calls,
                    const std::vector<std::uint64_t>& bad = {}) {
  for (std::uint64_t call = first; call < calls; ++call) {
    data.fill(o.rank(), call);
    const bool is_bad = std::find(bad.begin(), bad.end(), call) != bad.end();
    if (is_bad && o.rank() == o.size() - 1) {
      data.grads[2][7] = std::numeric_limits<float>::infinity();
    }
    const auto before = data.digest();
    const auto report = o.step(0.01F);
    CHECK((o.settle() == onebit::outcome::skipped) == is_bad);
    if (!report.pending) CHECK(report.skipped == is_bad);
    if (is_bad) CHECK(data.digest() == before);
  }
  CHECK(o.n_skipped() == bad.size());
  return data.digest();
}

const std::vector<std::string> algorithms = {
    "adam",          "lamb",    "one_bit_adam",          "one_bit_lamb",
    "zero_one_adam", "variant", "one_bit_adam, clipped", "zero_one_adam, clipped"};
/// The last step of the warm-up is the one before.
std::uint64_t freezes_before(const std::string& algorithm) {
  if (algorithm.starts_with("zero_one_adam")) return 3;
  return algorithm == "variant" ? 5 : 4;
}

template <class T, class C, class B>
any_optimizer make(const std::string& algorithm, tensors<>& data, const T& t, C c, B b) {
  const auto g = data.groups();
  const onebit::communicator w(t);
  const double norm = algorithm.ends_with("clipped") ? 1 : 0;  // most gradients are larger
  if (algorithm == "adam") return onebit::adam(g, w, {}, b);
  if (algorithm == "lamb") return onebit::lamb(g, w, {}, b);
  if (algorithm.starts_with("one_bit_adam")) {
    return onebit::one_bit_adam(
        g, w,
        onebit::one_bit_adam_options{
            .adam = {.max_grad_norm = norm}, .freeze = {.after = 4}, .refreshes = 2},
        c, b);
  }
  if (algorithm == "one_bit_lamb") {
    return onebit::one_bit_lamb(g, w, onebit::one_bit_lamb_options{.freeze = {.after = 4}}, c, b);
  }
  if (algorithm.starts_with("zero_one_adam")) {
    return onebit::zero_one_adam(
        g, w,
        onebit::zero_one_adam_options{
            .adam = {.max_grad_norm = norm},
            .schedule = {.kappa = 2, .warmup_steps = 5, .doubling_steps = 3, .max_interval = 2}},
        c, b);
  }
  return deepspeed::zero_one_adam(g, w,
                                  deepspeed::zero_one_options{.var_freeze_step = 5,
                                                              .var_update_scaler = 2,
                                                              .local_step_scaler = 3,
                                                              .local_step_clipper = 2},
                                  c, b);
}

template <class Collective>
void check_same_bits(int n, const Collective& collective) {
  for (const std::string& algorithm : algorithms) {
    CAPTURE(algorithm);
    const auto train = [&](auto t, auto b) {
      tensors<> data;
      auto o = make(algorithm, data, t, collective, b);
      return steps(o, data, 0, 11);
    };
    CHECK(on_device(n, train) == on_host(n, train));
  }
}

using in_two_phases = onebit::gather_scatter<onebit::sign<>>;
using echo = onebit_test::echo<emulated_memory>;

/// Starts its collectives, too, as NCCL does on a second stream: whether one is done can not be
/// asked while a graph is captured.
class starting_echo : public echo {
 public:
  using echo::echo;
  struct request {
    void wait() {}
    [[nodiscard]] bool test() const { throw onebit::transport_error("test() in a capture"); }
  };
  request start_all_to_all(const void* send, void* receive, std::size_t n) {
    all_to_all(send, receive, n);
    return {};
  }
  request start_all_gather(const void* send, void* receive, std::size_t n) {
    all_gather(send, receive, n);
    return {};
  }
};
static_assert(onebit::detail::StartingTransport<starting_echo>);

/// Throws in the collective that it is told, before it enqueues anything.
class failing_echo : public echo {
 public:
  struct script {
    std::uint64_t calls = 0, fail_at = ~std::uint64_t{0};
  };
  failing_echo(emulated_memory memory, int size, script* told)
      : echo(std::move(memory), size), told_(told) {}
  void all_to_all(const void* send, void* receive, std::size_t n) {
    count();
    echo::all_to_all(send, receive, n);
  }
  void all_gather(const void* send, void* receive, std::size_t n) {
    count();
    echo::all_gather(send, receive, n);
  }

 private:
  void count() {
    if (told_->calls++ == told_->fail_at) throw onebit::transport_error("the network is down");
  }
  script* told_;
};

enum class failure { none, collective, allocation };

/// Trains on a device of one, every step in graphs. Each collective, or allocation, of each step
/// fails before the step works, where it runs at once and where it is recorded; replayed steps have
/// none. Nothing may change then but that the freeze stays done. Gives the state after each step.
std::vector<std::pair<std::uint64_t, std::string>> train_through_failures(
    const std::string& algorithm, std::size_t bucket, failure what) {
  const emulated backend;
  failing_echo::script told;
  tensors<> data(false, whole_words);  // what one rank says for all is no padding elsewhere
  auto o = make(algorithm, data, failing_echo(emulated_memory(backend), 2, &told),
                in_two_phases{{}, bucket}, backend);
  onebit_test::emulated_graphs graphs(backend);
  const auto state = [&] { return std::pair(data.digest(), onebit_test::saved(o)); };
  std::vector<std::pair<std::uint64_t, std::string>> states;
  int n_failed = 0;
  for (std::uint64_t call = 0; call < 12; ++call) {
    CAPTURE(call);
    const auto step = [&] {
      data.fill(0, call);
      (void)o.step_with(std::ref(graphs), 0.01F / static_cast<float>(1 + call % 3));
    };
    bool done = false, may_freeze = call == freezes_before(algorithm);
    for (std::uint64_t k = 0; what != failure::none && !done; ++k) {
      CAPTURE(k);
      const auto before = state();
      if (what == failure::collective) told.fail_at = told.calls + k;
      if (what == failure::allocation) backend.fail_allocation(k);
      try {
        step();
        done = true;
      } catch (const onebit::transport_error&) {
        ++n_failed;
      } catch (const std::bad_alloc&) {
        ++n_failed;
      }
      told.fail_at = ~std::uint64_t{0};
      backend.fail_no_allocation();
      if (done) break;
      const auto after = state();
      CHECK(after.first == before.first);
      CHECK((after.second == before.second || std::exchange(may_freeze, false)));
      CHECK(o.steps() == call);
    }
    if (!done) step();
    CHECK(o.settle() == onebit::outcome::kept);
    states.push_back(state());
    // a rank on which nothing fails replays the same steps
    states.back().second += " after " + std::to_string(graphs.n_replayed) + " replays";
  }
  CHECK(graphs.n_replayed > 2);
  // recordings failed too, and none allocates
  CHECK((graphs.n_recorded > graphs.size()) == (what == failure::collective));
  CHECK((n_failed > 2) == (what != failure::none));
  return states;
}

/// Trains on a device of one, a step in graphs if `replay`; in the steps of `early` the last tensor
/// is announced.
template <class T>
std::uint64_t train_in_graphs(const std::string& algorithm, std::size_t bucket, bool replay,
                              const std::set<std::uint64_t>& early = {}) {
  const emulated backend;
  tensors<> data;
  auto o =
      make(algorithm, data, T(emulated_memory(backend), 2), in_two_phases{{}, bucket}, backend);
  onebit_test::emulated_graphs graphs(backend);
  for (std::uint64_t call = 0; call < 20; ++call) {
    data.fill(0, call);
    if (call == 13) data.grads[2][7] = std::numeric_limits<float>::quiet_NaN();
    const float lr = 0.01F / static_cast<float>(1 + call % 3);
    const float scale = call % 2 == 0 ? 1.0F : 0.5F;
    if (early.contains(call)) {
      o.begin(lr, scale);
      o.ready(data.params.size() - 1);
    }
    if (replay) {
      (void)o.step_with(std::ref(graphs), lr, scale);
    } else {
      (void)o.step(lr, scale);
    }
    CHECK((o.settle() == onebit::outcome::skipped) == (call == 13));
  }
  if (replay) CHECK(graphs.n_replayed > 2);
  if (replay && early.empty()) CHECK(graphs.n_replayed > 8);
  return data.digest();
}

}  // namespace

TEST_CASE("deferred: every algorithm has the bits of the host") {
  SUBCASE("gather_scatter") { check_same_bits(2, onebit::gather_scatter<onebit::sign<>>{}); }
  SUBCASE("one rank") { check_same_bits(1, onebit::gather_scatter<onebit::sign<>>{}); }
  SUBCASE("buckets") { check_same_bits(3, onebit::gather_scatter{onebit::sign<>{}, 1000}); }
  SUBCASE("all_gather") { check_same_bits(2, onebit::all_gather<onebit::sign<>>{}); }
  SUBCASE("two levels") { check_same_bits(4, onebit::hierarchical{onebit::sign<>{}, 2}); }
}

TEST_CASE("deferred: a bad gradient changes nothing, in each phase, also where the host looks") {
  // Call 4 or 5 is the first compressed one: LAMB's momentum must outlive it if it is skipped.
  const std::vector<std::vector<std::uint64_t>> when = {{0}, {1, 2}, {3}, {4}, {5}, {8, 9}};
  for (const auto& bad : when) {
    CAPTURE(bad[0]);
    const auto train = [&](auto t, auto b) {
      tensors<> data;
      // where v follows the schedule goes on counting, on a device skipped steps, too
      onebit::any_optimizer o =
          onebit::one_bit_lamb(data.groups(), onebit::communicator(t),
                               onebit::papers::one_bit_lamb_options(4), in_two_phases{}, b);
      return steps(o, data, 0, 12, bad);
    };
    const auto device = on_device(2, train);
    CHECK(device[0] == device[1]);
    // The host agrees from the last step of the warm-up on, the outcome of which is waited for;
    // after the freeze the schedule counts no steps.
    if (bad[0] >= 3) CHECK(device == on_host(2, train));
  }
  const auto train = [&](auto t, auto b) {
    tensors<> data;
    any_optimizer o = onebit::zero_one_adam(
        data.groups(), onebit::communicator(t),
        onebit::zero_one_adam_options{.schedule = {.kappa = 16, .warmup_steps = 50}},
        in_two_phases{}, b);
    return steps(o, data, 0, 8, {0, 3, 6});
  };
  const auto device = on_device(2, train);
  CHECK(device == on_host(2, train));
}

TEST_CASE("deferred: save, load, go on") {
  for (const std::string& algorithm : algorithms) {
    CAPTURE(algorithm);
    const auto whole = [&](auto t, auto b) {
      tensors<> data;
      auto o = make(algorithm, data, t, in_two_phases{}, b);
      return steps(o, data, 0, 11);
    };
    const auto halves = [&](auto t, auto b) {
      tensors<> data;
      std::string file;
      {
        auto o = make(algorithm, data, t, in_two_phases{}, b);
        (void)steps(o, data, 0, 6);
        file = onebit_test::saved(o);
      }
      auto o = make(algorithm, data, t, in_two_phases{}, b);
      std::istringstream in(file);
      o.load(in);
      return steps(o, data, 6, 11);
    };
    CHECK(on_device(2, halves) == on_device(2, whole));
  }
}

TEST_CASE("deferred: what one rank saves on the device, it goes on with on the host") {
  std::vector<tensors<>> halfway(2);
  std::vector<std::string> files(2);
  (void)on_device(2, [&](auto t, auto b) {
    const auto r = static_cast<std::size_t>(t.rank());
    auto o = make("one_bit_adam", halfway[r], t, in_two_phases{}, b);
    (void)steps(o, halfway[r], 0, 6);
    files[r] = onebit_test::saved(o);
    return std::uint64_t{0};
  });
  const auto host = on_host(2, [&](auto t, auto b) {
    const auto r = static_cast<std::size_t>(t.rank());
    auto o = make("one_bit_adam", halfway[r], t, in_two_phases{}, b);
    std::istringstream in(files[r]);
    o.load(in);
    return steps(o, halfway[r], 6, 10);
  });
  CHECK(host == on_host(2, [&](auto t, auto b) {
          tensors<> data;
          auto o = make("one_bit_adam", data, t, in_two_phases{}, b);
          return steps(o, data, 0, 10);
        }));
}

TEST_CASE("deferred: through staging memory, as over MPI") {
  const auto train = [](auto t, auto b) {
    tensors<> data;
    auto o = make("one_bit_adam", data, t, in_two_phases{}, b);
    return steps(o, data, 0, 8);
  };
  const auto staged = onebit_test::on_ranks(2, [&](onebit::threads t) {
    const emulated backend;
    return train(onebit::staged(t, emulated_memory(backend)), backend);
  });
  CHECK(staged == on_host(2, train));
}

TEST_CASE("deferred: ranks at different steps are told once, by settle") {
  const auto say = [](auto t, auto backend) -> std::uint64_t {
    using B = decltype(backend);
    onebit::detail::gather_scatter_exchange<onebit::sign<>, B> x({}, onebit::communicator(t),
                                                                 backend, small);
    x.start(x.allocate({.previous = true}), {});
    auto params = backend.template make_buffer<float>(x.sender().flat_elements());
    auto now = backend.template make_buffer<onebit::step_scalars>(1);
    const auto rank = static_cast<std::uint32_t>(t.rank());
    const onebit::step_scalars own{.given = {.number = 7U + rank, .rank = rank}};
    backend.copy_in(now.data(), &own, 1);
    const onebit::exchange_args<onebit::detail::store_at_encode> turn{
        now.data(), {}, {params.data()}};
    x.all_reduce(onebit::flat_field{params.data()}, turn);
    x.finish(turn);
    const int other = 1 - t.rank();
    const auto settle = [&] {
      return onebit::detail::outcome_of(
          onebit::detail::fetch_scalars(backend, now.data(), t.rank(), t.size()));
    };
    CHECK(thrown<onebit::rank_mismatch>([&] { (void)settle(); }) ==
          contains{"rank " + std::to_string(other) + " is at step " + std::to_string(7 + other) +
                   " while this rank is at step " + std::to_string(7 + t.rank())});
    CHECK(settle() == onebit::outcome::skipped);
    return 0;
  };
  CHECK(on_device(2, say) == std::vector<std::uint64_t>{0, 0});
}

TEST_CASE("deferred: a replayed step is the step") {
  for (const std::string& algorithm : algorithms) {
    CAPTURE(algorithm);
    CHECK(train_in_graphs<echo>(algorithm, 0, true) == train_in_graphs<echo>(algorithm, 0, false));
  }
}

TEST_CASE("deferred: a collective or an allocation that fails, also in a recording: no change") {
  for (const std::size_t bucket : {std::size_t{0}, std::size_t{1000}}) {
    for (const std::string& algorithm : algorithms) {
      CAPTURE(bucket);
      CAPTURE(algorithm);
      const auto expected = train_through_failures(algorithm, bucket, failure::none);
      for (const failure what : {failure::collective, failure::allocation}) {
        CHECK(train_through_failures(algorithm, bucket, what) == expected);
      }
    }
  }
}

TEST_CASE("deferred: buckets in replayed steps, and steps announced between them") {
  for (const std::string& algorithm : algorithms) {
    CAPTURE(algorithm);
    const auto plain = train_in_graphs<echo>(algorithm, 1000, false);
    CHECK(train_in_graphs<starting_echo>(algorithm, 1000, true) == plain);
    const std::set<std::uint64_t> early = {2, 3, 7, 10, 11, 13, 15};
    CHECK(train_in_graphs<starting_echo>(algorithm, 1000, true, early) == plain);
  }
}

TEST_CASE("16-bit elements: the same bits on host and warps, masters rounded, losses scaled") {
  const auto make = [](const auto& g, auto t, auto b) {
    return onebit::one_bit_adam(g, onebit::communicator(t),
                                onebit::one_bit_adam_options{.freeze = {.after = 4}},
                                in_two_phases{}, b);
  };
  const auto train = [&]<class P, class G>(bool with_master, std::type_identity<tensors<P, G>>) {
    const auto run = [&](auto t, auto b) {
      tensors<P, G> data(with_master);
      auto o = make(data.groups(), t, b);
      for (std::uint64_t call = 0; call < 12; ++call) {
        data.fill(o.rank(), call, 1024);
        (void)o.step(0.01F, 1.0F / 1024);
        CHECK(o.settle() == onebit::outcome::kept);
      }
      bool rounded = true;
      for (std::size_t i = 0; with_master && i < data.params.size(); ++i) {
        for (std::size_t k = 0; k < data.params[i].size(); ++k) {
          const P x = onebit::from_float<P>(data.master[i][k]);
          rounded = rounded && onebit::to_float(x) == onebit::to_float(data.params[i][k]);
        }
      }
      CHECK(rounded);
      return data.digest();
    };
    const auto host = on_host(2, run);
    CHECK(host[0] == host[1]);
    CHECK(on_device(2, run) == host);
    return host[0];
  };
  using onebit::bf16;
  using onebit::fp16;
  const auto a = train(false, std::type_identity<tensors<bf16, bf16>>{});
  const auto b = train(true, std::type_identity<tensors<bf16, bf16>>{});
  const auto c = train(true, std::type_identity<tensors<fp16, fp16>>{});
  (void)train(false, std::type_identity<tensors<float, bf16>>{});
  CHECK(a != b);
  CHECK(b != c);
}

TEST_CASE("16-bit elements: a float master with float-exact gradients is the float training") {
  // Gradients that bf16 holds exactly: then bf16 with masters and float are the same training.
  const auto exact = [](auto& data, int rank, std::uint64_t call) {
    for (std::size_t t = 0; t < data.grads.size(); ++t) {
      for (std::size_t i = 0; i < data.grads[t].size(); ++i) {
        const auto bits = static_cast<int>((i * 31 + call * 17 + t * 7) % 255) - 127 + rank;
        using G = std::remove_cvref_t<decltype(data.grads[t][i])>;
        data.grads[t][i] = onebit::from_float<G>(static_cast<float>(bits) / 64);
      }
    }
  };
  const auto last = [&](auto data, auto t) {
    auto o = onebit::zero_one_adam(data.groups(), t,
                                   onebit::zero_one_adam_options{.schedule = {.warmup_steps = 6}});
    for (std::uint64_t call = 0; call < 9; ++call) {
      exact(data, t.rank(), call);
      CHECK_FALSE(o.step(0.01F, 0.25F).skipped);
    }
    std::vector<float> flat;
    for (std::size_t i = 0; i < data.params.size(); ++i) {
      for (std::size_t k = 0; k < data.params[i].size(); ++k) {
        flat.push_back(data.master[i].empty() ? onebit::to_float(data.params[i][k])
                                              : data.master[i][k]);
      }
    }
    return flat;
  };
  const auto both = onebit_test::on_ranks(2, [&](onebit::threads t) {
    return std::pair(last(tensors<onebit::bf16>(true), t), last(tensors<>(), t));
  });
  for (const auto& [half, full] : both) CHECK(half == full);
}

TEST_CASE("16-bit elements: an overflow of the loss scale skips, wrong masters are told") {
  onebit::run_threads(1, [](onebit::threads t) {
    tensors<onebit::fp16> data(true);
    auto o = onebit::adam(data.groups(), t);
    data.fill(0, 0, 1e6F);  // infinite as fp16
    CHECK(o.step(0.1F, 1e-6F).skipped);
    data.fill(0, 0, 1e4F);
    CHECK_FALSE(o.step(0.1F, 1e-4F).skipped);
    auto shared = data.groups();
    shared[1].tensors[3].master =
        shared[1].tensors[1].master.first(1);  // of tensor 2, for tensor 4
    CHECK(thrown<onebit::invalid_input>([&] { (void)onebit::adam(shared, t); }) ==
          contains{"4100 params of 2 bytes and 1 master"});
    shared[1].tensors[3].master = data.master[4];
    shared[1].tensors[1].master = std::span(data.master[4]).first(1000);
    CHECK(thrown<onebit::invalid_input>([&] { (void)onebit::adam(shared, t); }) ==
          contains{"(4100 masters) overlap"});
    data.master[2].pop_back();
    CHECK(thrown<onebit::invalid_input>([&] { (void)onebit::adam(data.groups(), t); }) ==
          contains{"1000 params of 2 bytes and 999 master"});
    tensors<> plain(true);
    CHECK(thrown<onebit::invalid_input>([&] { (void)onebit::adam(plain.groups(), t); }) ==
          contains{"only with 2-byte parameters"});
  });
}

TEST_CASE("deferred: a step that one rank refuses is counted by all or by none") {
  const auto train = [](const auto& make) {
    return on_device(3, [&](auto t, auto b) {
      tensors<> data;
      auto o = make(data, t, b);
      for (std::uint64_t call = 0; call < 12; ++call) {
        const bool is_bad = call % 3 == 1, is_odd = t.rank() == 1;
        const auto before = data.digest();
        data.fill(t.rank(), call);
        const auto step = [&] {
          (void)o.step(is_bad && is_odd ? std::numeric_limits<float>::quiet_NaN() : 0.01F);
          return o.settle();
        };
        if (!is_bad) {
          CHECK(step() == onebit::outcome::kept);
        } else if (is_odd) {
          CHECK(thrown<onebit::invalid_input>([&] { (void)step(); }) == contains{"lr nan"});
        } else {
          CHECK(thrown<onebit::rank_mismatch>([&] { (void)step(); }) ==
                contains{"rank 1 was told other numbers"});
        }
        CHECK((data.digest() == before) == is_bad);
      }
      return data.digest();
    });
  };
  const auto check = [&](const auto& make) {
    const auto found = train(make);
    CHECK(found[1] == found[0]);
    CHECK(found[2] == found[0]);
  };
  check([](auto& d, auto t, auto b) { return onebit::adam(d.groups(), t, {}, b); });
  check([](auto& d, auto t, auto b) {
    return onebit::one_bit_adam(d.groups(), t, onebit_test::frozen_after(4),
                                onebit::gather_scatter<onebit::sign<>>{}, b);
  });
}

TEST_CASE("deferred: a veto skips the steps that it skips on the host, on all ranks") {
  for (const std::string& algorithm : algorithms) {
    CAPTURE(algorithm);
    const auto train = [&](auto t, auto b) {
      tensors<> data;
      auto o = make(algorithm, data, t, in_two_phases{}, b);
      std::uint64_t call = 0;
      const auto vetoes = [&] { return call % 4 == 2; };
      o.veto_with([&](float norm) { return norm > 0 && vetoes() && t.rank() == 1; });
      for (; call < 14; ++call) {
        data.fill(t.rank(), call);
        const auto before = data.digest();
        const auto report = o.step(0.01F);
        const bool skipped = o.settle() == onebit::outcome::skipped;
        // in a local step the rank that vetoes leaves its gradient out, and decays all the same
        const bool local = report.phase == onebit::phase::local && !report.refreshed;
        CHECK(skipped == (vetoes() && (!local || t.rank() == 1)));
        if (skipped && !local) CHECK(data.digest() == before);
      }
      return data.digest();
    };
    const auto device = on_device(2, train), host = on_host(2, train);
    // in others a skipped step counts for the schedule of a device
    if (algorithm == "adam" || algorithm == "lamb") CHECK(device == host);
    if (!algorithm.starts_with("zero_one") && algorithm != "variant") CHECK(device[0] == device[1]);
  }
}

TEST_CASE(
    "deferred: a run that skips on and on is told, where the host asks and where it does not") {
  static std::vector<std::string> said;
  for (const bool asks : {true, false}) {
    said.clear();
    (void)on_device(2, [&](auto t, auto b) {
      tensors<> data;
      auto o = make("adam", data, t, in_two_phases{}, b);
      o.warn_with(nullptr);
      if (t.rank() == 0) o.warn_with([](const std::string& text) { said.push_back(text); });
      for (std::uint64_t call = 0; call < 130; ++call) {
        data.fill(t.rank(), call);
        data.grads[4][40] = std::numeric_limits<float>::infinity();
        (void)o.step(0.01F);
        if (asks) CHECK(o.settle() == onebit::outcome::skipped);
      }
      return data.digest();
    });
    REQUIRE(said.size() == (asks ? 4 : 1));  // after 10, 20, 40, 80; after 128
    CHECK(said.back() == contains{asks ? "80 steps in a row were skipped, 80 in all"
                                       : "128 steps in a row were skipped, 128 in all"});
    CHECK(said.back() == contains{asks ? "step() says which gradient"
                                       : "the gradient of tensor 4, element 40, is "});
  }
}

TEST_CASE("deferred: after a skipped exchange 0/1 Adam refuses what it refuses on the host") {
  const auto train = [](auto t, auto b) {
    tensors<> data;
    auto o = make("zero_one_adam", data, t, in_two_phases{}, b);
    bool local = false;  // the last step
    for (std::uint64_t call = 0; call < 40; ++call) {
      data.fill(t.rank(), call);
      const bool is_bad = call >= 12 && local && t.rank() == 1;
      if (is_bad) data.grads[2][7] = std::numeric_limits<float>::infinity();
      local = o.step(0.01F).phase == onebit::phase::local;
      if (o.settle() == onebit::outcome::kept || local) continue;
      // the exchange has not ended the local step: the ranks differ
      CHECK(thrown<onebit::invalid_input>([&] { (void)o.moments(); }) ==
            contains{"the ranks are between two exchanges"});
      CHECK(thrown<onebit::invalid_input>([&] { o.verify(); }) ==
            contains{"the ranks are between two exchanges"});
      const std::string file = onebit_test::saved(o);
      const auto good = data.params;
      data.params[4][9] = 7;
      CHECK(thrown<onebit::invalid_input>([&] { (void)onebit_test::saved(o); }) ==
            contains{"the trainer wrote to the parameters of tensor 4 after a local step"});
      data.params = good;
      std::istringstream in(file);
      o.load(in);
      // the next exchange ends it
      do {
        data.fill(t.rank(), ++call);
        local = o.step(0.01F).phase == onebit::phase::local;
        CHECK(o.settle() == onebit::outcome::kept);
      } while (local);
      o.verify();
      (void)o.moments();
      return data.digest();
    }
    FAIL("no exchange was skipped");
    return std::uint64_t{0};
  };
  // a skipped step counts for the schedule of a device alone
  for (const auto& ranks : {on_device(2, train), on_host(2, train)}) CHECK(ranks[0] == ranks[1]);
}

TEST_CASE("deferred: moments after a skipped refresh are those before it [moments]") {
  const auto check = [](auto t, auto b) {
    tensors<> data;
    auto o = onebit::one_bit_adam(data.groups(), t, {}, b);
    std::uint64_t call = 0;
    for (; call < 6; ++call) {  // five dense steps and a compressed one
      data.fill(t.rank(), call);
      (void)o.step(0.01F);
    }
    const auto before = o.moments();
    data.fill(t.rank(), call);
    if (t.rank() == 1) data.grads[2][7] = std::numeric_limits<float>::infinity();
    CHECK(o.step(0.01F).refreshed);  // the first refresh, for all that the host knows
    CHECK(o.settle() == onebit::outcome::skipped);
    const auto after = o.moments();
    // they count as after one step more, since a skipped step counts here
    const double of_m = (1 - std::pow(0.9, 7)) / (1 - std::pow(0.9, 6));
    const double of_v = (1 - std::pow(0.999, 7)) / (1 - std::pow(0.999, 6));
    std::size_t n_off = 0, n = 0;
    const auto compare = [&](const auto& was, const auto& is, double factor) {
      for (std::size_t i = 0; i < was.size(); ++i, ++n) {
        const double wanted = factor * static_cast<double>(was[i]);
        n_off += std::abs(static_cast<double>(is[i]) - wanted) > 1e-5 * std::abs(wanted) ? 1 : 0;
      }
    };
    for (std::size_t k = 0; k < before.size(); ++k) {
      compare(before[k].m, after[k].m, of_m);
      compare(before[k].v, after[k].v, of_v);
    }
    CHECK(n > 8000);
    CHECK(n_off == 0);
    return data.digest();
  };
  (void)on_device(2, check);
}
