// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Conformance suites of the Transport concept and of each of its optional members. Call them on
// every rank, in threads or under mpirun. They assert nothing, and make the same calls on all ranks
// even after a failure; they return descriptions of the failures.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <onebit/concepts/transport.hpp>
#include <onebit/core/element_types.hpp>
#include <onebit/transport/communicator.hpp>
#include <optional>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace onebit { inline namespace v0_3 { namespace testing {

namespace detail {

/// Returns byte i of the slot that rank `from` sends to rank `to` in a round.
inline std::byte pattern(int from, int to, std::size_t round, std::size_t i) {
  const std::size_t x = static_cast<std::size_t>(from) * 131 + static_cast<std::size_t>(to) * 31 +
                        round * 7 + i * 13 + i / 256;
  return static_cast<std::byte>(x % 251);
}

/// Buffer between guard bytes, which must not change.
class guarded {
 public:
  static constexpr std::size_t guard = 64;
  explicit guarded(std::size_t n) : bytes_(n + 2 * guard, std::byte{0xA5}) {}
  std::byte* data() { return bytes_.data() + guard; }
  bool intact() const {
    for (std::size_t i = 0; i < guard; ++i) {
      if (bytes_[i] != std::byte{0xA5} || bytes_[bytes_.size() - 1 - i] != std::byte{0xA5}) {
        return false;
      }
    }
    return true;
  }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace detail

/// Tests the required members, with slots of up to `largest` bytes. Collective. Returns the
/// failures: none if the test passes.
template <onebit::Transport T>
std::vector<std::string> transport_failures(T& transport, std::size_t largest = 300004) {
  std::vector<std::string> failures;
  const int rank = transport.rank();
  const int size = transport.size();
  const auto n_ranks = static_cast<std::size_t>(size);
  const auto fail = [&](const std::string& what) {
    failures.push_back("rank " + std::to_string(rank) + "/" + std::to_string(size) + ": " + what);
  };
  if (size < 1 || rank < 0 || rank >= size) fail("rank() and size() do not fit together");

  // Sizes that slots have (multiples of 4), and others.
  std::size_t round = 0;
  for (const std::size_t slot : {std::size_t{4}, std::size_t{0}, std::size_t{1}, std::size_t{3},
                                 std::size_t{68}, std::size_t{4100}, std::size_t{300004}}) {
    if (slot > largest) continue;
    ++round;
    const std::string in = " of " + std::to_string(slot) + " bytes";
    detail::guarded send(slot * n_ranks), receive(slot * n_ranks);
    for (int to = 0; to < size; ++to) {
      for (std::size_t i = 0; i < slot; ++i) {
        send.data()[static_cast<std::size_t>(to) * slot + i] = detail::pattern(rank, to, round, i);
      }
    }
    transport.all_to_all(send.data(), receive.data(), slot);
    bool right = true, kept = true;
    for (int other = 0; other < size; ++other) {
      for (std::size_t i = 0; i < slot; ++i) {
        const std::size_t at = static_cast<std::size_t>(other) * slot + i;
        right = right && receive.data()[at] == detail::pattern(other, rank, round, i);
        kept = kept && send.data()[at] == detail::pattern(rank, other, round, i);
      }
    }
    if (!right) fail("all_to_all" + in + " delivered wrong bytes");
    if (!kept) fail("all_to_all" + in + " changed what was sent");
    if (!send.intact() || !receive.intact()) fail("all_to_all" + in + " wrote outside");

    detail::guarded own(slot), gathered(slot * n_ranks);
    for (std::size_t i = 0; i < slot; ++i) own.data()[i] = detail::pattern(rank, 77, round, i);
    transport.all_gather(own.data(), gathered.data(), slot);
    right = kept = true;
    for (int other = 0; other < size; ++other) {
      for (std::size_t i = 0; i < slot; ++i) {
        right = right && gathered.data()[static_cast<std::size_t>(other) * slot + i] ==
                             detail::pattern(other, 77, round, i);
      }
    }
    for (std::size_t i = 0; i < slot; ++i) {
      kept = kept && own.data()[i] == detail::pattern(rank, 77, round, i);
    }
    if (!right) fail("all_gather" + in + " delivered wrong bytes");
    if (!kept) fail("all_gather" + in + " changed what was sent");
    if (!own.intact() || !gathered.intact()) fail("all_gather" + in + " wrote outside");
  }

  const auto everyone_has = [&](const std::vector<float>& x) {
    std::vector<float> all(x.size() * n_ranks);
    transport.all_gather(x.data(), all.data(), x.size() * sizeof(float));
    for (std::size_t r = 0; r < n_ranks; ++r) {
      if (x.empty()) continue;
      if (std::memcmp(all.data() + r * x.size(), x.data(), x.size() * sizeof(float)) != 0) {
        return false;
      }
    }
    return true;
  };
  for (const std::size_t n :
       {std::size_t{1}, std::size_t{0}, std::size_t{7}, std::size_t{1000}, std::size_t{65537}}) {
    if (n * sizeof(float) > largest) continue;
    const std::string in = " of " + std::to_string(n) + " floats";
    // Integers: sums are exact in any order.
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<float>((rank + 1) * int(i % 1000));
    transport.all_reduce_sum(x.data(), n);
    bool right = true;
    for (std::size_t i = 0; i < n; ++i) {
      right = right && x[i] == static_cast<float>(size * (size + 1) / 2 * int(i % 1000));
    }
    if (!right) fail("all_reduce_sum" + in + " gave wrong sums");

    // Fractions: any order is allowed, but all ranks must receive equal bits.
    std::vector<double> expected(n, 0.0), magnitude(n, 0.0);
    for (std::size_t i = 0; i < n; ++i) {
      for (int r = 0; r < size; ++r) {
        const float term = 1.0F / static_cast<float>(3 + r * 7 + int(i % 101)) - 0.05F;
        if (r == rank) x[i] = term;
        expected[i] += static_cast<double>(term);
        magnitude[i] += std::fabs(static_cast<double>(term));
      }
    }
    transport.all_reduce_sum(x.data(), n);
    right = true;
    for (std::size_t i = 0; i < n; ++i) {
      // size - 1 additions, each off by at most half an ulp of a partial sum
      const double bound = size * 6.0e-8 * magnitude[i];
      right = right && std::fabs(static_cast<double>(x[i]) - expected[i]) <= bound;
    }
    if (!right) fail("all_reduce_sum" + in + " is off by more than rounding");
    if (!everyone_has(x)) fail("all_reduce_sum" + in + " gave different bits on some ranks");
  }

  bool sums_halves = onebit::detail::HalfSummingTransport<T>;
  if constexpr (std::is_same_v<T, onebit::communicator>) {  // support depends on its transport
    try {
      transport.require_half_sums();
    } catch (const onebit::invalid_input&) {
      sums_halves = false;
    }
  }
  if constexpr (onebit::detail::HalfSummingTransport<T>)
    if (sums_halves) {
      for (const std::size_t n :
           {std::size_t{1}, std::size_t{0}, std::size_t{7}, std::size_t{5001}}) {
        // one rank's digit among zeros, as in a status, and small sums: exact in any order
        std::vector<onebit::bf16> x(n);
        const auto of = [&](int r, std::size_t i) {
          return i % 3 != 0                            ? static_cast<float>(i % 2)
                 : static_cast<int>(i / 3) % size == r ? static_cast<float>(i % 256)
                                                       : 0.0F;
        };
        for (std::size_t i = 0; i < n; ++i) x[i] = onebit::to_bf16(of(rank, i));
        transport.all_reduce_sum(x.data(), n);
        bool right = true;
        for (std::size_t i = 0; i < n; ++i) {
          float sum = 0;
          for (int r = 0; r < size; ++r) sum += of(r, i);
          right = right && onebit::to_float(x[i]) == sum;
        }
        if (!right) fail("all_reduce_sum of " + std::to_string(n) + " bf16 gave wrong sums");
      }
      std::vector<onebit::bf16> x(3, onebit::to_bf16(1.0F));
      if (rank == size - 1) x[1] = onebit::to_bf16(std::numeric_limits<float>::quiet_NaN());
      transport.all_reduce_sum(x.data(), x.size());
      if (!std::isnan(onebit::to_float(x[1]))) fail("all_reduce_sum of bf16 lost a NaN");
    }

  // A NaN of one rank must reach all ranks: dense averages skip a step because of it.
  for (int culprit = 0; culprit < size; ++culprit) {
    std::vector<float> x(3, 1.0F);
    if (rank == culprit) x[1] = std::numeric_limits<float>::quiet_NaN();
    transport.all_reduce_sum(x.data(), x.size());
    if (!std::isnan(x[1])) fail("all_reduce_sum lost a NaN");
    if (std::isnan(x[0]) || std::isnan(x[2])) fail("all_reduce_sum spread a NaN");
  }
  return failures;
}

/// Tests split(). Collective. Returns the failures: none if the test passes.
template <onebit::Transport T>
std::vector<std::string> split_failures(const T& transport) {
  std::vector<std::string> failures;
  const int rank = transport.rank();
  const int size = transport.size();
  T whole = transport;
  const auto members = [](T& part, int mine) {
    std::vector<int> all(static_cast<std::size_t>(part.size()));
    part.all_gather(&mine, all.data(), sizeof mine);
    return all;
  };
  // Pairs; even and odd ranks; one rank and the rest; all. Ranks in order, and in reverse order.
  const std::vector<std::function<int(int)>> colorings = {
      [](int r) { return r / 2; }, [](int r) { return r % 2; },
      [](int r) { return r == 0 ? 7 : 3; }, [](int) { return 0; }};
  for (std::size_t c = 0; c < colorings.size(); ++c) {
    for (const int direction : {0, 1, -1}) {
      T part = transport.split(colorings[c](rank), direction * rank);
      std::vector<int> expected;
      for (int r = 0; r < size; ++r) {
        if (colorings[c](r) == colorings[c](rank)) expected.push_back(r);
      }
      if (direction < 0) std::reverse(expected.begin(), expected.end());
      const auto told = [&](const std::string& what) {
        failures.push_back("rank " + std::to_string(rank) + "/" + std::to_string(size) +
                           ": coloring " + std::to_string(c) + ", keys times " +
                           std::to_string(direction) + ": " + what);
      };
      if (part.size() != static_cast<int>(expected.size())) told("another size");
      if (members(part, rank) != expected) told("other ranks, or another order");
      if (expected[static_cast<std::size_t>(part.rank())] != rank) told("another rank of its own");
      if (direction == 0) continue;
      for (const auto& failure : transport_failures(part, 4100)) told(failure);

      // Splits of a split. The whole keeps working beside parts that make other numbers of calls.
      T half = part.split(part.rank() % 2, 0);
      for (int i = 0; i <= colorings[c](rank); ++i) {
        if (members(part, rank) != expected) told("after a split: other ranks, or another order");
      }
      for (int& r : expected) r = r * 2;
      const auto halves = members(half, rank * 2);
      for (std::size_t i = 0; i < halves.size(); ++i) {
        if (halves[i] != expected[2 * i + static_cast<std::size_t>(part.rank() % 2)]) {
          told("a part of a part has other ranks");
        }
      }
      const auto everyone = members(whole, rank);
      for (int r = 0; r < size; ++r) {
        if (everyone[static_cast<std::size_t>(r)] != r) told("the whole lost its order");
      }
    }
  }
  return failures;
}

/// Tests start_all_to_all() and start_all_gather(). Collective. Returns the failures: none if the
/// test passes.
template <onebit::Transport T>
std::vector<std::string> request_failures(T& transport) {
  std::vector<std::string> failures;
  const int rank = transport.rank();
  const int size = transport.size();
  const auto n_ranks = static_cast<std::size_t>(size);
  const auto fail = [&](const std::string& what) {
    failures.push_back("rank " + std::to_string(rank) + "/" + std::to_string(size) + ": " + what);
  };
  struct flight {
    std::size_t slot, round;
    bool gather;
    detail::guarded send, receive;
  };
  using request = decltype(transport.start_all_gather(nullptr, nullptr, std::size_t{0}));
  static_assert(std::is_nothrow_move_constructible_v<request> &&
                std::is_nothrow_move_assignable_v<request> &&
                !std::is_copy_constructible_v<request>);
  const auto start = [&](flight& f) {
    const int n_sent = f.gather ? 1 : size;
    for (int to = 0; to < n_sent; ++to) {
      for (std::size_t i = 0; i < f.slot; ++i) {
        f.send.data()[static_cast<std::size_t>(to) * f.slot + i] =
            detail::pattern(rank, f.gather ? 77 : to, f.round, i);
      }
    }
    return f.gather ? transport.start_all_gather(f.send.data(), f.receive.data(), f.slot)
                    : transport.start_all_to_all(f.send.data(), f.receive.data(), f.slot);
  };
  const auto check = [&](flight& f, const std::string& how) {
    bool right = f.send.intact() && f.receive.intact();
    for (int from = 0; from < size; ++from) {
      for (std::size_t i = 0; i < f.slot; ++i) {
        right = right && f.receive.data()[static_cast<std::size_t>(from) * f.slot + i] ==
                             detail::pattern(from, f.gather ? 77 : rank, f.round, i);
      }
    }
    if (!right) {
      fail(std::string(f.gather ? "start_all_gather" : "start_all_to_all") + " of " +
           std::to_string(f.slot) + " bytes, " + how + ": wrong bytes");
    }
  };
  std::size_t round = 1000;
  const auto flights = [&] {
    std::vector<flight> all;
    for (const std::size_t slot :
         {std::size_t{4}, std::size_t{0}, std::size_t{300004}, std::size_t{3}, std::size_t{4100}}) {
      for (const bool gather : {false, true}) {
        all.push_back({slot, ++round, gather, detail::guarded(slot * n_ranks),
                       detail::guarded(slot * n_ranks)});
      }
    }
    return all;
  };
  const auto start_all = [&](std::vector<flight>& all) {
    std::vector<request> requests;  // reallocation moves requests
    for (flight& f : all) requests.push_back(start(f));
    return requests;
  };

  {  // one request at a time
    auto all = flights();
    for (flight& f : all) {
      auto under_way = start(f);
      under_way.wait();
      if (!under_way.test()) fail("test() is false after wait()");
      under_way.wait();  // a second wait has no effect
      check(f, "waited for at once");
    }
  }
  {  // several requests, completed in reverse order, with blocking collectives in between
    auto all = flights();
    auto requests = start_all(all);
    const int mine = rank;
    std::vector<int> ranks(n_ranks);
    transport.all_gather(&mine, ranks.data(), sizeof mine);
    for (std::size_t r = 0; r < n_ranks; ++r) {
      if (ranks[r] != static_cast<int>(r)) fail("a blocking all_gather between: wrong bytes");
    }
    float one = 1;
    transport.all_reduce_sum(&one, 1);
    if (one != static_cast<float>(size)) fail("a blocking sum between: wrong");
    for (std::size_t i = all.size(); i-- > 0;) {
      requests[i].wait();
      check(all[i], "waited for in reverse order");
    }
  }
  {  // test() until all requests are complete
    auto all = flights();
    auto requests = start_all(all);
    for (std::size_t done = 0; done < all.size();) {
      done = 0;
      for (request& r : requests) done += r.test() ? 1 : 0;
      std::this_thread::yield();
    }
    for (flight& f : all) check(f, "tested until done");
  }
  {  // incomplete requests are destroyed, or overwritten by other requests
    auto all = flights();
    {
      auto requests = start_all(all);
      (void)requests[0].test();
    }
    for (flight& f : all) check(f, "destroyed unfinished");
    all = flights();
    std::optional<request> last;
    for (flight& f : all) {
      if (last) {
        *last = start(f);
      } else {
        last.emplace(start(f));
      }
    }
    for (std::size_t i = 0; i + 1 < all.size(); ++i) check(all[i], "overwritten unfinished");
    request moved = std::move(*last);
    last.reset();
    moved.wait();
    check(all.back(), "moved");
  }
  return failures;
}

}}}  // namespace onebit::testing
