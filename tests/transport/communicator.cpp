// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Any transport without its type: what it can do is what the transport can, or the next best; what
// it carries is counted, by copies and parts as well; and its requests are movable tickets.

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <onebit/onebit.hpp>
#include <onebit/testing/scripted.hpp>
#include <onebit/testing/transport.hpp>
#include <onebit/transport/communicator.hpp>
#include <onebit/transport/staged.hpp>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/training.hpp"

using onebit_test::contains;
using onebit_test::on_ranks;
using onebit_test::saved;
using onebit_test::thrown;
using onebit_test::training;

namespace {

// --- user transports: the three collectives, and each of what may be there besides
// ----------------

class minimal {
 public:
  explicit minimal(onebit::threads inner) : inner_(std::move(inner)) {}
  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int size() const { return inner_.size(); }
  void all_to_all(const void* s, void* r, std::size_t n) { inner_.all_to_all(s, r, n); }
  void all_gather(const void* s, void* r, std::size_t n) { inner_.all_gather(s, r, n); }
  void all_reduce_sum(float* data, std::size_t n) { inner_.all_reduce_sum(data, n); }

 protected:
  onebit::threads inner_;
};

struct splitting : minimal {
  using minimal::minimal;
  [[nodiscard]] splitting split(int color, int key) const {
    return splitting(inner_.split(color, key));
  }
};

struct in_pairs : splitting {
  using splitting::splitting;
  explicit in_pairs(const splitting& s) : splitting(s) {}
  [[nodiscard]] in_pairs split(int color, int key) const {
    return in_pairs(splitting::split(color, key));
  }
  [[nodiscard]] static int ranks_per_node() { return 2; }
};

/// What a transport was asked for beside its collectives.
struct notes {
  int host_gathers = 0, waits = 0, started = 0, under_way = 0;
  bool start_fails = false;
};

struct host_gathering : minimal {
  std::shared_ptr<notes> told;
  host_gathering(onebit::threads inner, std::shared_ptr<notes> n)
      : minimal(std::move(inner)), told(std::move(n)) {}
  void host_all_gather(const void* s, void* r, std::size_t n) {
    ++told->host_gathers;
    inner_.all_gather(s, r, n);
  }
};

struct waiting : minimal {
  std::shared_ptr<notes> told;
  waiting(onebit::threads inner, std::shared_ptr<notes> n)
      : minimal(std::move(inner)), told(std::move(n)) {}
  void wait() const { ++told->waits; }
};

/// Tells how many duplicates were made of it.
struct duplicating : minimal {
  std::shared_ptr<int> n_made;
  duplicating(onebit::threads inner, std::shared_ptr<int> n)
      : minimal(std::move(inner)), n_made(std::move(n)) {}
  [[nodiscard]] duplicating duplicate() const {
    ++*n_made;
    return {inner_.split(0, inner_.rank()), n_made};
  }
};
static_assert(onebit::detail::DuplicatingTransport<duplicating> &&
              !onebit::detail::DuplicatingTransport<onebit::threads>);

/// Starts its collectives: they run when they are waited for, or at the second test.
struct lazy : minimal {
  class pending {
   public:
    pending(std::function<void()> run, std::shared_ptr<notes> n)
        : run_(std::move(run)), told_(std::move(n)) {
      ++told_->started;
      ++told_->under_way;
    }
    pending(pending&& other) noexcept
        : run_(std::exchange(other.run_, nullptr)), told_(other.told_), tests_(other.tests_) {}
    pending& operator=(pending&&) = delete;
    ~pending() { wait(); }
    void wait() {
      if (!run_) return;
      --told_->under_way;
      std::exchange(run_, nullptr)();
    }
    bool test() {
      if (run_ && ++tests_ > 1) wait();
      return !run_;
    }

   private:
    std::function<void()> run_;
    std::shared_ptr<notes> told_;
    int tests_ = 0;
  };

  std::shared_ptr<notes> told;
  lazy(onebit::threads inner, std::shared_ptr<notes> n)
      : minimal(std::move(inner)), told(std::move(n)) {}
  pending start_all_to_all(const void* s, void* r, std::size_t n) {
    return start([t = inner_, s, r, n]() mutable { t.all_to_all(s, r, n); });
  }
  pending start_all_gather(const void* s, void* r, std::size_t n) {
    return start([t = inner_, s, r, n]() mutable { t.all_gather(s, r, n); });
  }
  [[nodiscard]] lazy split(int color, int key) const { return {inner_.split(color, key), told}; }

 private:
  [[nodiscard]] pending start(std::function<void()> run) const {
    if (told->start_fails) throw onebit::transport_error("lazy: not today");
    return {std::move(run), told};
  }
};

static_assert(onebit::detail::SplittingTransport<splitting> &&
              onebit::detail::NodeAwareTransport<in_pairs>);
static_assert(onebit::detail::HostGatheringTransport<host_gathering> &&
              onebit::detail::WaitingTransport<waiting>);
static_assert(onebit::detail::StartingTransport<lazy> && onebit::detail::SplittingTransport<lazy>);

static_assert(std::is_copy_constructible_v<onebit::communicator> &&
              std::is_move_assignable_v<onebit::communicator>);
static_assert(std::is_nothrow_move_constructible_v<onebit::request> &&
              !std::is_copy_constructible_v<onebit::request>);
static_assert(!std::is_constructible_v<onebit::communicator, int>);

/// All that a rank of a transport delivers to `all_gather`, through f(send, receive).
template <class F>
std::vector<int> gathered(const onebit::communicator& w, const F& f) {
  const int mine = 10 + w.rank();
  std::vector<int> all(static_cast<std::size_t>(w.size()), -1);
  f(&mine, all.data());
  return all;
}

void check_nothing(const std::vector<std::vector<std::string>>& failures) {
  for (const auto& of_rank : failures) {
    for (const auto& failure : of_rank) FAIL_CHECK(failure);
  }
}

}  // namespace

TEST_CASE("a wire conforms, whatever it is made of") {
  for (const int n : {1, 3, 4}) {
    const auto check = [](onebit::communicator w, bool splits) {
      auto failures = onebit_test::transport_failures(w);
      for (auto& f : onebit_test::request_failures(w)) failures.push_back(std::move(f));
      if (!splits) return failures;
      for (auto& f : onebit_test::split_failures(w)) failures.push_back(std::move(f));
      auto part = w.split(w.rank() % 2, 0);
      for (auto& f : onebit_test::request_failures(part)) failures.push_back(std::move(f));
      return failures;
    };
    check_nothing(on_ranks(
        n, [&](onebit::threads t) { return check(onebit::communicator(minimal(t)), false); }));
    check_nothing(
        on_ranks(n, [&](onebit::threads t) { return check(onebit::communicator(t), true); }));
    check_nothing(on_ranks(n, [&](onebit::threads t) {
      return check(onebit::communicator(lazy(t, std::make_shared<notes>())), true);
    }));
  }
}

TEST_CASE("what a transport can not, a wire does the next best way") {
  onebit::run_threads(3, [](onebit::threads t) {
    onebit::communicator w{minimal(t)};
    const std::vector<int> expected = {10, 11, 12};
    // started collectives are over at once
    std::optional<onebit::request> request;
    CHECK(gathered(w, [&](const void* s, void* r) {
            request.emplace(w.start_all_gather(s, r, sizeof(int)));
          }) == expected);
    CHECK(request->test());
    request->wait();
    // host memory is gathered as any other
    CHECK(gathered(w, [&](const void* s, void* r) { w.host_all_gather(s, r, sizeof(int)); }) ==
          expected);
    CHECK(w.ranks_per_node() == 0);  // not known
    CHECK_NOTHROW(w.wait());         // nothing is under way
    const std::string text = thrown<onebit::invalid_input>([&] { (void)w.split(0, 0); });
    CHECK(text ==
          contains{"communicator: this transport cannot be split: it has no split(color, key)"});
    CHECK(text == contains{w.where()});
    // nothing is next best to a sum of bf16; a wire within another transport is told when it is due
    onebit::staged within(w, onebit::host_memory{});
    std::vector<onebit::bf16> halves(2);
    CHECK(thrown<onebit::invalid_input>([&] { within.all_reduce_sum(halves.data(), 2); }) ==
          contains{"this transport has no all_reduce_sum(onebit::bf16* data"});
  });
}

TEST_CASE("what a transport can, a wire asks it for") {
  onebit::run_threads(4, [](onebit::threads t) {
    const std::vector<int> expected = {10, 11, 12, 13};
    const auto told = std::make_shared<notes>();
    onebit::communicator host{host_gathering(t, told)};
    CHECK(gathered(host, [&](const void* s, void* r) {
            host.host_all_gather(s, r, sizeof(int));
          }) == expected);
    CHECK(told->host_gathers == 1);
    host.all_gather(nullptr, nullptr, 0);
    CHECK(told->host_gathers == 1);

    onebit::communicator waits{waiting(t, told)};
    waits.wait();
    CHECK(told->waits == 1);
    CHECK(waits.sent().collectives == 0);

    const onebit::communicator pairs{in_pairs(t)};
    CHECK(pairs.ranks_per_node() == 2);
    CHECK(pairs.split(t.rank() / 2, 0).size() == 2);

    onebit::communicator starts{lazy(t, told)};
    const int mine = 10 + t.rank();
    std::vector<int> all(4, -1);
    auto request = starts.start_all_gather(&mine, all.data(), sizeof mine);
    CHECK(all == std::vector<int>(4, -1));  // under way
    CHECK_FALSE(request.test());
    CHECK(request.test());
    CHECK(all == expected);
  });
}

TEST_CASE("tickets are used again, also those of collectives that could not start") {
  onebit::run_threads(2, [](onebit::threads t) {
    using onebit::detail::collective_call;
    const auto told = std::make_shared<notes>();
    onebit::detail::transport_holder<lazy> line{lazy(t, told)};
    std::vector<int> a(2), b(2);
    const auto start = [&] {
      return line.start(collective_call::all_gather, a.data(), b.data(), sizeof(int));
    };
    CHECK(start() == 0);
    CHECK(start() == 1);
    CHECK(start() == 2);
    line.finish(1);
    CHECK(told->under_way == 2);
    CHECK(start() == 1);
    line.wait_for(0);
    CHECK(line.is_done(0));
    CHECK(start() == 3);  // 0 is done, but not finished
    line.finish(0);
    told->start_fails = true;
    CHECK_THROWS_AS((void)start(), onebit::transport_error);
    told->start_fails = false;
    CHECK(start() == 0);
    for (int ticket = 0; ticket < 4; ++ticket) line.finish(ticket);
    CHECK(told->under_way == 0);
    for (int round = 0; round < 100; ++round) {
      CHECK(start() == 0);
      line.finish(0);
    }
    // a transport that cannot start has no tickets
    onebit::detail::transport_holder<minimal> plain{minimal(t)};
    CHECK(plain.start(collective_call::all_to_all, a.data(), b.data(), sizeof(int)) ==
          onebit::detail::transport_interface::done);
  });
}

TEST_CASE("a request that was moved from is over; one that is assigned to ends first") {
  onebit::run_threads(2, [](onebit::threads t) {
    const auto told = std::make_shared<notes>();
    onebit::communicator w{lazy(t, told)};
    const int mine = 10 + t.rank();
    std::vector<int> first(2), second(2);
    const std::vector<int> expected = {10, 11};
    onebit::request none;
    CHECK(none.test());
    none.wait();

    auto a = w.start_all_gather(&mine, first.data(), sizeof mine);
    onebit::request b = std::move(a);
    CHECK(a.test());  // NOLINT: over, by contract
    a.wait();
    CHECK(told->under_way == 1);
    auto& same = b;
    b = std::move(same);
    CHECK(told->under_way == 1);
    b = w.start_all_gather(&mine, second.data(), sizeof mine);
    CHECK(first == expected);
    CHECK(told->under_way == 1);
    none = std::move(b);
    CHECK(told->under_way == 1);
    none.wait();
    CHECK(second == expected);
    none = {};
    CHECK(told->started == 2);
    CHECK(told->under_way == 0);

    // A request keeps what it needs: the wire may go first.
    std::optional<onebit::communicator> gone(std::in_place, lazy(t, told));
    auto last = gone->start_all_gather(&mine, first.data(), sizeof mine);
    first = {0, 0};
    gone.reset();
    last.wait();
    CHECK(first == expected);
  });
}

TEST_CASE("a request counts once, when it starts; the time of its calls counts, no other") {
  using namespace std::chrono_literals;
  onebit::run_threads(3, [](onebit::threads t) {
    const auto told = std::make_shared<notes>();
    onebit::communicator w{lazy(t, told)};
    std::vector<char> a(300), b(300);
    auto one = w.start_all_to_all(a.data(), b.data(), 100);
    CHECK(w.sent().bytes_sent == 200);
    CHECK(w.sent().collectives == 1);
    std::this_thread::sleep_for(100ms);
    CHECK(w.sent().seconds < 0.09);
    one.wait();
    one.wait();
    CHECK(one.test());
    CHECK(w.sent().bytes_sent == 200);
    CHECK(w.sent().collectives == 1);
    told->start_fails = true;  // counted whether or not it succeeds
    CHECK_THROWS_AS((void)w.start_all_gather(a.data(), b.data(), 50), onebit::transport_error);
    CHECK(w.sent().bytes_sent == 300);
    CHECK(w.sent().collectives == 2);
  });
}

TEST_CASE("copies of a wire share the counts, and parts count for the whole, in any order") {
  onebit::run_threads(4, [](onebit::threads t) {
    onebit::communicator whole{lazy(t, std::make_shared<notes>())};
    onebit::communicator copy = whole;
    std::vector<char> a(400), b(400);
    copy.all_gather(a.data(), b.data(), 10);
    CHECK(whole.sent().bytes_sent == 30);
    CHECK(whole.sent().collectives == 1);

    onebit::communicator pair = whole.split(t.rank() / 2, 0), other = copy.split(t.rank() % 2, 0);
    CHECK(whole.sent().collectives == 1);  // splitting counts for nothing
    CHECK(pair.sent().collectives == 0);
    auto under_way = pair.start_all_gather(a.data(), b.data(), 100);
    under_way.wait();
    other.all_to_all(a.data(), b.data(), 7);
    CHECK(pair.sent().bytes_sent == 100);
    CHECK(other.sent().bytes_sent == 7);
    CHECK(whole.sent().bytes_sent == 137);
    CHECK(copy.sent().collectives == 3);
    std::vector<float> x(8);
    pair.all_reduce_sum(x.data(), x.size());  // as a ring of 2: 2 * 1/2 * 32 bytes
    CHECK(pair.sent().bytes_sent == 132);
    CHECK(whole.sent().bytes_sent == 169);

    onebit::communicator alone = pair.split(t.rank() % 2, 0);
    alone.all_gather(a.data(), b.data(), 100);  // a slot to itself does not leave the rank
    CHECK(alone.sent().collectives == 1);
    CHECK(pair.sent().collectives == 3);
    CHECK(whole.sent().collectives == 5);
    CHECK(whole.sent().bytes_sent == 169);
    const onebit::traffic since = whole.sent() - onebit::traffic{137, 3, 0};
    CHECK(since.bytes_sent == 32);
    CHECK(since.collectives == 2);
    // what counts for a whole that is gone is still carried
    pair = onebit::communicator(t).split(t.rank() / 2, 0);
    pair.all_gather(a.data(), b.data(), 5);
    CHECK(pair.sent().bytes_sent == 5);
    CHECK(whole.sent().bytes_sent == 169);
  });
}

TEST_CASE("each object that communicates takes one duplicate, whose traffic counts in the whole") {
  onebit::run_threads(2, [](onebit::threads t) {
    const auto n_made = std::make_shared<int>(0);
    const duplicating transport(t, n_made);
    training<> data, other;
    auto first = onebit::adam(data.groups(), transport);
    CHECK(*n_made == 1);
    onebit::communicator whole{transport};
    auto second = onebit::adam(other.groups(), whole);
    CHECK(*n_made == 2);
    const onebit::traffic before = whole.sent();
    CHECK(before.collectives > 0);  // of the construction
    CHECK(second.transport().sent().collectives == before.collectives);
    (void)train(first, data);
    CHECK(whole.sent().collectives == before.collectives);
    const auto report = train(second, other);
    CHECK((whole.sent() - before).bytes_sent == report.bytes_sent);
    onebit::communicator copy = onebit::communicator(t).duplicate();  // cannot: shares all
    CHECK(copy.size() == 2);
  });
}

TEST_CASE("a failure is passed on, and counted") {
  onebit::run_threads(2, [](onebit::threads t) {
    const auto told = std::make_shared<onebit_test::script>();
    told->fail_at = 1;
    onebit::communicator w{onebit_test::scripted(t, told)};
    const int mine = 1;
    int all[2] = {};
    w.all_gather(&mine, all, sizeof mine);
    CHECK(thrown<onebit::transport_error>([&] { w.all_gather(&mine, all, sizeof mine); }) ==
          "scripted: the network is down");
    CHECK(w.sent().collectives == 2);
    w.host_all_gather(&mine, all, sizeof mine);
    CHECK(w.sent().collectives == 3);
    CHECK(w.sent().bytes_sent == told->bytes_to_others);
  });
}

TEST_CASE("two_phases: waits for one, pokes them in their order, ends them all") {
  onebit::run_threads(2, [](onebit::threads t) {
    const auto told = std::make_shared<notes>();
    onebit::communicator w{lazy(t, told)};
    const int mine = t.rank();
    const int both[2] = {mine, mine};
    int received[3][2] = {}, all[3][2] = {};
    const auto bytes = [](const auto& x) { return reinterpret_cast<const std::byte*>(&x); };
    const auto place = [](auto& x) { return reinterpret_cast<std::byte*>(&x); };
    onebit::detail::two_phases phases(w, 3, sizeof mine);
    phases.wait_gathered(0);  // none is there: nothing to wait for
    phases.poke();
    CHECK_FALSE(phases.serves_now());
    for (int bucket = 2; bucket >= 0; --bucket) {
      CHECK(phases.n_unsent() == bucket + 1);
      CHECK(phases.next_to_send() == bucket);
      phases.scatter(bytes(both), place(received[bucket]));
      CHECK(phases.serves_now() == (bucket < 2));  // one travels while the next is encoded
    }
    CHECK(told->under_way == 3);
    phases.poke();  // the first is not done at the first test: no other is asked
    CHECK(told->under_way == 3);
    phases.poke();
    CHECK(told->under_way == 2);
    CHECK(phases.next_to_serve() == 2);
    CHECK(phases.next_to_serve() == 1);
    CHECK(told->under_way == 1);
    CHECK(received[1][1] == 1);
    for (auto& slots : {&all[0], &all[1]}) phases.gather(bytes(mine), place(*slots));
    CHECK(told->under_way == 3);
    phases.wait_gathered(1);
    CHECK(told->under_way == 2);
    CHECK(all[1][1] == 1);
    phases.clear();
    CHECK(told->under_way == 0);
    CHECK(all[0][1] == 1);
    CHECK(phases.n_unsent() == 3);
    phases.wait_gathered(1);
  });
}

namespace {

/// What training leaves behind on a transport that `make` puts around threads.
template <class Collective, class Make>
std::vector<std::string> trained(int n, const Collective& collective, const Make& make,
                                 bool announces = false) {
  return on_ranks(n, [&](onebit::threads t) {
    training<> data;
    auto o = onebit::one_bit_adam(data.groups(), make(t), {.freeze = {.after = 3}}, collective);
    std::string all;
    for (int i = 0; i < 6; ++i) {
      data.compute_gradients(t.rank(), o.steps());
      if (announces) {
        o.begin(0.01F);
        for (std::size_t k = data.params.size(); k-- > 1;) o.ready(k);
      }
      const auto report = o.step(0.01F);
      all += std::to_string(report.bytes_sent) + "/" + std::to_string(report.collectives) + " ";
    }
    return all + std::to_string(data.digest()) + saved(o);
  });
}

}  // namespace

TEST_CASE("training is the same over a user's transport, whatever it can do besides") {
  const auto plain = [](onebit::threads t) { return t; };
  for (const int n : {1, 2, 4}) {
    const onebit::gather_scatter buckets{onebit::sign<>{}, 1000};
    const auto expected = trained(n, buckets, plain);
    CHECK(trained(n, buckets, [](onebit::threads t) { return minimal(t); }) == expected);
    CHECK(trained(n, buckets, [](onebit::threads t) { return onebit::communicator(minimal(t)); }) ==
          expected);
    CHECK(trained(n, buckets, [](onebit::threads t) {
            return host_gathering(t, std::make_shared<notes>());
          }) == expected);
    CHECK(trained(n, buckets, [](onebit::threads t) {
            return waiting(t, std::make_shared<notes>());
          }) == expected);
    for (const bool announces : {false, true}) {
      std::vector<std::shared_ptr<notes>> told;  // by rank
      for (int r = 0; r < n; ++r) told.push_back(std::make_shared<notes>());
      const auto make = [&](onebit::threads t) {
        return lazy(t, told[static_cast<std::size_t>(t.rank())]);
      };
      CHECK(trained(n, buckets, make, announces) == expected);
      for (const auto& of_rank : told) {
        CHECK((of_rank->started > 0) == (n > 1));
        CHECK(of_rank->under_way == 0);
      }
    }
  }
}

TEST_CASE("a hierarchy asks the transport for its nodes, and splits it") {
  const auto make = [](onebit::threads t) { return in_pairs(t); };
  const onebit::hierarchical<onebit::sign<>> told{{}, 2}, asked{};
  // the names differ, and so do the checkpoints: compare what comes before
  const auto without_checkpoint = [](std::vector<std::string> all) {
    for (auto& text : all) text = text.substr(0, text.find("onebit\r\n"));
    return all;
  };
  CHECK(without_checkpoint(trained(4, told, make)) == without_checkpoint(trained(4, asked, make)));
  CHECK(trained(4, told, make) == trained(4, told, [](onebit::threads t) { return t; }));
  // a transport that does not know its nodes, and one that cannot be split
  for (const auto& text : on_ranks(4, [&](onebit::threads t) {
         training<> data;
         return thrown<onebit::invalid_input>([&] {
           (void)onebit::one_bit_adam(data.groups(), splitting(t), {.freeze = {.after = 3}}, asked);
         });
       })) {
    CHECK(text == contains{"hierarchical: 4 ranks in nodes of 0; give the number of ranks"});
  }
  for (const auto& text : on_ranks(4, [&](onebit::threads t) {
         training<> data;
         return thrown<onebit::invalid_input>([&] {
           const onebit::communicator w{
               minimal(t)};  // only a wire can get this far: see compile_fail
           (void)onebit::one_bit_adam(data.groups(), w, {.freeze = {.after = 3}}, told);
         });
       })) {
    CHECK(text == contains{"this transport cannot be split"});
  }
}

TEST_CASE("optimizers may share a wire; each counts its own steps") {
  onebit::run_threads(2, [](onebit::threads t) {
    const onebit::communicator w(t);
    training<> a, b;
    auto one = onebit::one_bit_adam(a.groups(), w, {.freeze = {.after = 2}});
    auto two = onebit::adam(b.groups(), w);
    for (int i = 0; i < 4; ++i) {
      const auto before = w.sent();
      const auto first = train(one, a);
      const auto between = w.sent();
      const auto second = train(two, b);
      CHECK(first.bytes_sent == (between - before).bytes_sent);
      CHECK(second.bytes_sent == (w.sent() - between).bytes_sent);
      CHECK(second.collectives == 2);
    }
  });
}
