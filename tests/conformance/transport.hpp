// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The suite of the Transport concept. `transport_failures` runs on every rank of any transport and
// asserts nothing itself, so that it works in threads and under mpirun alike: it makes the same
// calls on all ranks whatever it finds, and returns what was wrong, in words.

#ifndef ONEBIT_TESTS_CONFORMANCE_TRANSPORT_HPP
#define ONEBIT_TESTS_CONFORMANCE_TRANSPORT_HPP

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <onebit/concepts.hpp>
#include <string>
#include <vector>

namespace onebit_test {

namespace detail {

/// Byte i of what rank `from` sends to rank `to` in round `round`.
inline std::byte pattern(int from, int to, std::size_t round, std::size_t i) {
  const std::size_t x = static_cast<std::size_t>(from) * 131 + static_cast<std::size_t>(to) * 31 +
                        round * 7 + i * 13 + i / 256;
  return static_cast<std::byte>(x % 251);
}

/// A buffer between guards that must not change.
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

/// Collective. Call on all ranks; an empty result is a pass.
template <onebit::Transport T>
std::vector<std::string> transport_failures(T& transport) {
  std::vector<std::string> failures;
  const int rank = transport.rank();
  const int size = transport.size();
  const auto n_ranks = static_cast<std::size_t>(size);
  const auto fail = [&](const std::string& what) {
    failures.push_back("rank " + std::to_string(rank) + "/" + std::to_string(size) + ": " + what);
  };
  if (size < 1 || rank < 0 || rank >= size) fail("rank() and size() do not fit together");

  // Sizes as slots have them, and sizes that no slot has: bytes are bytes.
  std::size_t round = 0;
  for (const std::size_t slot : {std::size_t{4}, std::size_t{0}, std::size_t{1}, std::size_t{3},
                                 std::size_t{68}, std::size_t{4100}, std::size_t{300004}}) {
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
    const std::string in = " of " + std::to_string(n) + " floats";
    // Integers: the sum is exact in any order.
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i) x[i] = static_cast<float>((rank + 1) * int(i % 1000));
    transport.all_reduce_sum(x.data(), n);
    bool right = true;
    for (std::size_t i = 0; i < n; ++i) {
      right = right && x[i] == static_cast<float>(size * (size + 1) / 2 * int(i % 1000));
    }
    if (!right) fail("all_reduce_sum" + in + " gave wrong sums");

    // Fractions: any order will do, but all ranks must get the same bits.
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

  // The dense exchange lets a NaN on one rank tell all ranks to skip the step.
  for (int culprit = 0; culprit < size; ++culprit) {
    std::vector<float> x(3, 1.0F);
    if (rank == culprit) x[1] = std::numeric_limits<float>::quiet_NaN();
    transport.all_reduce_sum(x.data(), x.size());
    if (!std::isnan(x[1])) fail("all_reduce_sum lost a NaN");
    if (std::isnan(x[0]) || std::isnan(x[2])) fail("all_reduce_sum spread a NaN");
  }
  return failures;
}

}  // namespace onebit_test

#endif  // ONEBIT_TESTS_CONFORMANCE_TRANSPORT_HPP
