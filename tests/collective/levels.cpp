// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Exchanges in buckets, exchanges on two levels, and gradients that are announced one by one.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <onebit/collective/hierarchical.hpp>
#include <onebit/onebit.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "../support/training.hpp"

using onebit_test::contains;
using onebit_test::on_ranks;
using onebit_test::thrown;
using onebit_test::train;
using onebit_test::training;

namespace {

/// Starts collectives, and carries them out no earlier than they are waited for: whoever reads
/// before waiting finds nothing.
class lazy {
 public:
  class request {
   public:
    request(onebit::threads t, bool gathers, const void* send, void* receive, std::size_t bytes)
        : call_(call{std::move(t), gathers, send, receive, bytes}) {}
    request(request&& other) noexcept : call_(std::exchange(other.call_, std::nullopt)) {}
    request& operator=(request&&) = delete;
    ~request() = default;
    void wait() {
      if (!call_) return;
      auto c = std::exchange(call_, std::nullopt);
      if (c->gathers) {
        c->transport.all_gather(c->send, c->receive, c->bytes);
      } else {
        c->transport.all_to_all(c->send, c->receive, c->bytes);
      }
    }
    [[nodiscard]] bool test() const { return !call_; }

   private:
    struct call {
      onebit::threads transport;
      bool gathers;
      const void* send;
      void* receive;
      std::size_t bytes;
    };
    std::optional<call> call_;
  };

  explicit lazy(onebit::threads t) : inner_(std::move(t)) {}
  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int size() const { return inner_.size(); }
  void all_to_all(const void* s, void* r, std::size_t n) { inner_.all_to_all(s, r, n); }
  void all_gather(const void* s, void* r, std::size_t n) { inner_.all_gather(s, r, n); }
  void all_reduce_sum(float* data, std::size_t n) { inner_.all_reduce_sum(data, n); }
  request start_all_to_all(const void* s, void* r, std::size_t n) {
    return {inner_, false, s, r, n};
  }
  request start_all_gather(const void* s, void* r, std::size_t n) {
    return {inner_, true, s, r, n};
  }

 private:
  onebit::threads inner_;
};

static_assert(onebit::detail::StartingTransport<lazy>);
static_assert(!onebit::detail::StartingTransport<onebit::threads>);

using flat = std::vector<float>;

struct state {
  std::uint64_t parameters = 0;
  std::string checkpoint;
  friend bool operator==(const state&, const state&) = default;
};

/// What the algorithms are where nothing travels.
constexpr auto adam = [](const auto& groups, auto transport) {
  return onebit::adam(groups, transport, {.beta2 = 0.99});
};
constexpr auto lamb = [](const auto& groups, auto transport) {
  return onebit::lamb(groups, transport, {.beta2 = 0.99});
};

struct one_bit_adam_maker {
  static constexpr std::uint64_t freezes_before = 5;
  static constexpr auto uncompressed = adam;
  template <class Groups, class T, class Collective>
  auto operator()(const Groups& groups, T transport, Collective collective) const {
    return onebit::one_bit_adam(
        groups, transport,
        onebit::one_bit_adam_options{.adam = {.beta2 = 0.99}, .freeze = {.after = 5}}, collective);
  }
};
struct one_bit_lamb_maker {
  static constexpr std::uint64_t freezes_before = 5;
  static constexpr auto uncompressed = lamb;
  template <class Groups, class T, class Collective>
  auto operator()(const Groups& groups, T transport, Collective collective) const {
    return onebit::one_bit_lamb(
        groups, transport,
        onebit::one_bit_lamb_options{.lamb = {.beta2 = 0.99}, .freeze = {.after = 5}}, collective);
  }
};
struct zero_one_maker {
  static constexpr std::uint64_t freezes_before = 3;
  static constexpr auto uncompressed = adam;
  template <class Groups, class T, class Collective>
  auto operator()(const Groups& groups, T transport, Collective collective) const {
    return onebit::zero_one_adam(
        groups, transport,
        onebit::zero_one_adam_options{
            .adam = {.beta2 = 0.99},
            .schedule = {.kappa = 2, .warmup_steps = 8, .doubling_steps = 6, .max_interval = 4}},
        collective);
  }
};

/// At least so many steps, and until one leaves all ranks equal; `announce` says how many tensors
/// are announced before each step, the last first.
template <class Optimizer>
state finish(Optimizer& o, training<>& data, std::uint64_t steps, std::size_t announce = 0) {
  bool equal = false;
  while (o.steps() < steps || !equal) {
    data.compute_gradients(o.rank(), o.steps());
    const float lr = 0.01F / static_cast<float>(1 + o.steps() % 3);
    if (announce > 0) {
      // As in a backward pass: what is not announced is not there yet.
      const auto final_grads = data.grads;
      for (auto& g : data.grads) g.assign(g.size(), std::numeric_limits<float>::quiet_NaN());
      const auto arrives = [&](std::size_t tensor) {
        std::copy(final_grads[tensor].begin(), final_grads[tensor].end(),
                  data.grads[tensor].begin());
      };
      o.begin(lr);
      const std::size_t n = data.params.size();
      for (std::size_t t = n; t-- > n - announce;) {
        arrives(t);
        o.ready(t);
      }
      for (std::size_t t = 0; t < n - announce; ++t) arrives(t);
    }
    const auto report = o.step(lr);
    CHECK_FALSE(report.skipped);
    // 0/1 Adam also averages between two exchanges
    equal = !std::remove_cvref_t<decltype(o.rule())>::local_steps || !o.exchange().travels() ||
            report.phase == onebit::phase::compressed;
  }
  return {data.digest(), onebit_test::saved(o)};
}

template <class T, class Make, class Collective>
std::vector<state> run(int n_ranks, const Make& make, Collective collective,
                       std::size_t announce = 0) {
  return on_ranks(n_ranks, [&](onebit::threads t) {
    training<> data;
    auto o = make(data.groups(), T(t), collective);
    return finish(o, data, 20, announce);
  });
}

template <class Make>
void check_overlap(const Make& make, bool by_layer = false) {
  const onebit::gather_scatter collective{onebit::sign<>{}, 1000};
  for (const int n : {1, 2, 3}) {
    CAPTURE(n);
    const auto plain = run<onebit::threads>(n, make, collective);
    CHECK(run<lazy>(n, make, collective) == plain);
    for (const std::size_t announced : {std::size_t{1}, std::size_t{4}, std::size_t{6}}) {
      CAPTURE(announced);
      CHECK(run<lazy>(n, make, collective, announced) == plain);
      CHECK(run<onebit::threads>(n, make, collective, announced) == plain);
    }
    const auto whole = run<onebit::threads>(n, make, onebit::gather_scatter{onebit::sign<>{}});
    // other scales, so other bits, unless nothing is compressed and no norm goes by tiles
    CHECK((whole[0].parameters == plain[0].parameters) == (n == 1 && !by_layer));
  }
}

template <class Make>
void check_levels(const Make& make) {
  for (const auto& nodes : {std::pair{4, 2}, {6, 2}, {6, 3}, {3, 1}, {2, 2}, {1, 1}}) {
    const int n = nodes.first, per_node = nodes.second;
    CAPTURE(n);
    CAPTURE(per_node);
    const onebit::hierarchical collective{onebit::sign<>{}, per_node};
    const auto states = run<onebit::threads>(n, make, collective);
    for (const auto& s : states) CHECK(s.parameters == states[0].parameters);
    if (per_node == 1 && n > 1) {
      const auto whole = run<onebit::threads>(n, make, onebit::gather_scatter{onebit::sign<>{}});
      CHECK(states[0].parameters == whole[0].parameters);
    }
    if (per_node == n) {  // nothing would travel between nodes
      const auto dense = on_ranks(n, [&](onebit::threads t) {
        training<> data;
        auto o = Make::uncompressed(data.groups(), t);
        return finish(o, data, 20);
      });
      for (const auto& s : states) CHECK(s.parameters == dense[0].parameters);
    }
    // save in the middle, load, go on
    const auto resumed = on_ranks(n, [&](onebit::threads t) {
      training<> data;
      std::string half;
      {
        auto o = make(data.groups(), t, collective);
        half = finish(o, data, 11).checkpoint;
      }
      auto o = make(data.groups(), t, collective);
      std::istringstream in(half);
      o.load(in);
      return finish(o, data, 20);
    });
    CHECK(resumed == states);
  }
}

/// A bad gradient on each rank in turn, in each step, twice: all skip, and all is as before (but
/// the freeze stays done, by the first try).
template <class Make, class Collective>
void check_skips(int n, const Make& make, Collective collective) {
  const auto digests = on_ranks(n, [&](onebit::threads t) {
    training<> data;
    auto o = make(data.groups(), t, collective);
    for (std::uint64_t step = 0; step < 9; ++step) {
      const int culprit = static_cast<int>(step) % n;
      for (int times = 0; times < 2; ++times) {
        const auto before = onebit_test::saved(o);
        const auto params = data.params;
        data.compute_gradients(o.rank(), o.steps());
        if (t.rank() == culprit) data.grads[2][7] = std::numeric_limits<float>::quiet_NaN();
        CHECK(o.step(0.01F).skipped);
        CHECK((onebit_test::saved(o) != before) == (step == Make::freezes_before && times == 0));
        CHECK(data.params == params);
      }
      CHECK_FALSE(train(o, data).skipped);
    }
    return data.digest();
  });
  for (const auto d : digests) CHECK(d == digests[0]);
}

}  // namespace

TEST_CASE(
    "buckets that overlap, or start early, give the bits of buckets one after the other "
    "[hierarchical]") {
  SUBCASE("1-bit Adam") { check_overlap(one_bit_adam_maker{}); }
  SUBCASE("1-bit LAMB") { check_overlap(one_bit_lamb_maker{}, true); }
  SUBCASE("0/1 Adam") { check_overlap(zero_one_maker{}); }
}

TEST_CASE("buckets hold no element back: dense averages do not depend on them [hierarchical]") {
  const auto train_adam = [](auto collective) {
    return on_ranks(3, [&](onebit::threads t) {
      training<> data;
      auto o =
          onebit::one_bit_adam(data.groups(), lazy(t),
                               onebit::one_bit_adam_options{.freeze = {.after = 50}}, collective);
      for (int i = 0; i < 10; ++i) (void)train(o, data);
      return data.digest();
    });
  };
  const auto whole = train_adam(onebit::gather_scatter{onebit::sign<>{}});
  CHECK(train_adam(onebit::gather_scatter{onebit::sign<>{}, 96}) == whole);
}

TEST_CASE("ready and begin say what is wrong [hierarchical]") {
  training<> data;
  onebit::run_threads(1, [&](onebit::threads t) {
    auto o = onebit::adam(data.groups(), t);
    CHECK(thrown<onebit::invalid_input>([&] { o.ready(0); }) == contains{"without begin()"});
    CHECK(thrown<onebit::invalid_input>([&] { o.begin(0.1F, 0.0F); }) ==
          contains{"inverse loss scale 0"});
    o.begin(0.1F);
    CHECK(thrown<onebit::invalid_input>([&] { o.begin(0.1F); }) == contains{"begin() twice"});
    CHECK(thrown<onebit::invalid_input>([&] { o.ready(6); }) == contains{"of 6 tensors"});
    CHECK(thrown<onebit::invalid_input>([&] { (void)o.step(0.2F); }) == contains{"was told 0.1"});
    CHECK_FALSE(o.step(0.1F).skipped);
    CHECK(o.steps() == 1);
  });
}

TEST_CASE(
    "two levels: all ranks the same bits, and those of the flat exchange where they meet "
    "[hierarchical]") {
  SUBCASE("1-bit Adam") { check_levels(one_bit_adam_maker{}); }
  SUBCASE("1-bit LAMB") { check_levels(one_bit_lamb_maker{}); }
  SUBCASE("0/1 Adam") { check_levels(zero_one_maker{}); }
}

TEST_CASE(
    "two levels == flat over the nodes, where the ranks of a node say the same [hierarchical]") {
  const std::vector<std::size_t> sizes = {5000, 33, 0, 700};
  const auto value = [](int node, std::size_t step, std::size_t i) {
    return onebit_test::noise(static_cast<std::uint64_t>(node) * 7919 + step * 104729 + i);
  };
  const auto agree = [&](auto& x, int node, int rank) {
    onebit::host backend;
    const std::size_t n = x.sender().flat_elements();
    auto message = backend.make_buffer<float>(n), undo = backend.make_buffer<float>(n);
    auto active = backend.make_buffer<std::uint32_t>(n / 32);
    for (const onebit::tile& t : x.axis().tiles()) {
      for (std::uint32_t i = 0; i < t.n; ++i) active.data()[t.word + i / 32] |= 1U << (i % 32);
    }
    onebit::step_scalars now{.given = {.rank = static_cast<std::uint32_t>(rank)}};
    const onebit::exchange_args<onebit::detail::store_at_encode> turn{
        &now, {active.data()}, {undo.data()}};
    x.start(x.allocate({.previous = true}), {});
    x.count_active(turn.active);
    std::vector<flat> agreed;
    for (std::size_t step = 0; step < 12; ++step) {
      now.given.number = static_cast<std::uint32_t>(step);
      for (std::size_t i = 0; i < n; ++i) message.data()[i] = value(node, step, i);
      x.all_reduce(onebit::flat_field{message.data()}, turn);
      REQUIRE(now.verdict.skip == 0);
      auto& copy = agreed.emplace_back(n);
      const auto heard = x.latest(turn.active);
      using view = std::remove_const_t<decltype(heard)>;
      backend.launch(x.axis().tiles().size(),
                     onebit::detail::flatten_kernel<view>{heard, x.sender().tiles(), copy.data()});
      x.finish(turn);
    }
    return agreed;
  };
  const auto two = on_ranks(6, [&](onebit::threads t) {
    onebit::detail::hierarchical_exchange<onebit::sign<>, onebit::host> x(
        {}, onebit::communicator(t), onebit::host(), sizes, 2);
    auto agreed = agree(x, t.rank() / 2, t.rank());
    // 12 steps of two phases to two other nodes; slots of a sixth of the words
    CHECK(x.bytes_between_nodes() == 12 * 2 * 2 * x.slot_bytes());
    return agreed;
  });
  const auto flat_ranks = on_ranks(3, [&](onebit::threads t) {
    onebit::detail::gather_scatter_exchange<onebit::sign<>, onebit::host> x(
        {}, onebit::communicator(t), onebit::host(), sizes, 2);
    return agree(x, t.rank(), t.rank());
  });
  for (const auto& rank : two) CHECK(rank == flat_ranks[0]);
}

TEST_CASE("two levels and buckets: a bad gradient anywhere is skipped everywhere [hierarchical]") {
  const onebit::hierarchical levels{onebit::sign<>{}, 2};
  const onebit::gather_scatter buckets{onebit::sign<>{}, 1000};
  SUBCASE("1-bit Adam") {
    check_skips(4, one_bit_adam_maker{}, levels);
    check_skips(3, one_bit_adam_maker{}, buckets);
  }
  SUBCASE("1-bit LAMB") {
    check_skips(4, one_bit_lamb_maker{}, levels);
    check_skips(3, one_bit_lamb_maker{}, buckets);
  }
}

TEST_CASE("two levels: sizes of nodes that cannot be, in words [hierarchical]") {
  const auto say = [](int n, int per_node) {
    return on_ranks(n, [&](onebit::threads t) {
      training<> data;
      return thrown<onebit::invalid_input>([&] {
        (void)one_bit_adam_maker{}(data.groups(), t,
                                   onebit::hierarchical{onebit::sign<>{}, per_node});
      });
    })[0];
  };
  CHECK(say(3, 2) == contains{"3 ranks in nodes of 2"});
  CHECK(say(2, -1) == contains{"2 ranks in nodes of -1"});
  CHECK(say(2, 0) == contains{"2 ranks in nodes of 0"});
}

TEST_CASE(
    "0/1 Adam: a local step that one rank leaves out does not part the ranks [hierarchical]") {
  const auto digests = on_ranks(3, [&](onebit::threads t) {
    training<> data;
    auto o = zero_one_maker{}(data.groups(), t, onebit::gather_scatter<onebit::sign<>>{});
    int n_left_out = 0;
    bool exchanged = false;
    while (n_left_out == 0 || !exchanged) {
      REQUIRE(o.steps() < 100);
      data.compute_gradients(o.rank(), o.steps());
      const auto plan = o.schedule().due_in(o.steps(), 0.01F);
      const bool alone = !plan.exchange && !plan.average;
      if (alone && t.rank() == 1) data.grads[2][7] = std::numeric_limits<float>::infinity();
      const auto report = o.step(0.01F);
      CHECK(report.skipped == (alone && t.rank() == 1));
      n_left_out += alone;
      exchanged = report.phase == onebit::phase::compressed;
    }
    return data.digest();
  });
  CHECK(digests[0] == digests[1]);
  CHECK(digests[0] == digests[2]);
}
