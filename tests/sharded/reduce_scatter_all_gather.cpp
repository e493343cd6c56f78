// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The halves of a compressed allreduce: compressed_reduce_scatter and compressed_all_gather.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <onebit/compressed_allreduce.hpp>
#include <onebit/compressor/identity.hpp>
#include <onebit/compressor/rounded.hpp>
#include <onebit/compressor/sign.hpp>
#include <onebit/core/element_types.hpp>
#include <onebit/extras/sharded.hpp>
#include <onebit/testing/scripted.hpp>
#include <onebit/transport/alone.hpp>
#include <span>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/ranks.hpp"
#include "support/tile_codecs.hpp"

namespace {

using namespace onebit_test;
using onebit::outcome;

using floats = std::vector<float>;
const std::vector<std::size_t> odd_sizes = {0, 1, 31, 32, 33, 64, 97, 1000, 9001};

/// What a rank has in a call: between -1 and 1, by a hash, of mixed sizes; exact in bf16 and fp16.
floats data_of(int rank, std::uint64_t call, std::size_t n) {
  floats x(n);
  for (std::size_t i = 0; i < n; ++i) {
    std::uint64_t h = ((i + 1) * 0x9E3779B97F4A7C15U) ^ (call * 0xC2B2AE3D27D4EB4FU) ^
                      (static_cast<std::uint64_t>(rank + 1) * 0x165667B19E3779F9U);
    h = (h ^ (h >> 29U)) * 0xBF58476D1CE4E5B9U;
    const auto eighths = static_cast<float>(h >> 57U) - 63.5F;  // 8 bits with the half
    x[i] = eighths * 0x1p-6F * std::exp2(-static_cast<float>(i % 7));
  }
  return x;
}
floats part_of(const floats& all, const onebit::detail::vector_part& own) {
  const auto first = all.begin() + static_cast<std::ptrdiff_t>(own.first);
  return {first, first + static_cast<std::ptrdiff_t>(own.size)};
}
bool same_bits(const floats& a, const floats& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

/// f of one compressor of each kind.
template <class F>
void with_compressors(const F& f) {
  f(onebit::sign<>{});
  f(onebit::sign<onebit::l1_scale>{onebit::granularity::vector()});
  f(onebit::identity{});
  f(onebit::rounded::to_bf16());
  f(onebit::rounded::to_int8());
  f(int8_tile{});
}
template <class F>
void with_residuals(const F& f) {
  f(onebit::sign<>{});
  f(onebit::sign<onebit::l1_scale>{onebit::granularity::layer()});
  f(ternary{});
}

template <class C>
constexpr bool owes(const C&) {
  return onebit::detail::sharded_half<C, onebit::host, true>::owes;
}
/// The private base of either: what it owes is no part of the interface.
template <class C>
auto& inside(onebit::compressed_reduce_scatter<C>& x) {
  return (onebit::detail::sharded_half<C, onebit::host, false>&)x;
}
template <class C>
auto& inside(onebit::compressed_all_gather<C>& x) {
  return (onebit::detail::sharded_half<C, onebit::host, true>&)x;
}
void add(std::vector<double>& sums, const floats& x, std::size_t first) {
  for (std::size_t i = 0; i < x.size(); ++i) sums[first + i] += static_cast<double>(x[i]);
}

/// Both halves of one rank, which are called one after the other.
template <class C>
struct both {
  onebit::compressed_reduce_scatter<C> scatter;
  onebit::compressed_all_gather<C> gather;
  floats part;

  template <class Transport>
  both(Transport t, std::size_t n, const C& codec)
      : scatter(t, n, codec), gather(t, n, codec), part(scatter.own().size) {}
  floats mean(const floats& data) {
    floats all(data.size());
    REQUIRE(scatter.mean(data, part) == outcome::kept);
    REQUIRE(gather.gather(part, all) == outcome::kept);
    return all;
  }
  std::string saved_state() { return saved(scatter) + saved(gather); }
};

}  // namespace

TEST_CASE("sharded: parts are whole words, in order, and cover the vector") {
  for (const std::size_t n : odd_sizes) {
    for (int w = 1; w <= 4; ++w) {
      CAPTURE(n);
      CAPTURE(w);
      const auto parts = on_ranks(w, [&](onebit::threads t) {
        onebit::compressed_reduce_scatter scatter(t, n);
        onebit::compressed_all_gather gather(t, n);
        CHECK(scatter.own().first == gather.own().first);
        CHECK(scatter.own().size == gather.own().size);
        return scatter.own();
      });
      const auto ranks = static_cast<std::size_t>(w);
      std::size_t end = 0;
      for (const auto& p : parts) {
        CHECK(p.first == end);
        CHECK((p.first % 32 == 0 || p.first == n));
        CHECK(p.size <= ((n + 31) / 32 + ranks - 1) / ranks * 32);
        end += p.size;
      }
      CHECK(end == n);
    }
  }
}

TEST_CASE("sharded: without compression it is the exact mean, in rank order, bit for bit") {
  for (const std::size_t n : odd_sizes) {
    for (int w = 1; w <= 4; ++w) {
      CAPTURE(n);
      CAPTURE(w);
      floats expected = data_of(0, 0, n);
      for (int r = 1; r < w; ++r) {
        const floats x = data_of(r, 0, n);
        for (std::size_t i = 0; i < n; ++i) expected[i] += x[i];
      }
      for (float& x : expected) x *= 1.0F / static_cast<float>(w);
      onebit::run_threads(w, [&](onebit::threads t) {
        both<onebit::identity> x(t, n, {});
        CHECK(same_bits(x.mean(data_of(t.rank(), 0, n)), expected));
        CHECK(same_bits(x.part, part_of(expected, x.scatter.own())));
      });
      // data that bf16 holds, summed in fp32
      onebit::run_threads(w, [&](onebit::threads t) {
        onebit::compressed_reduce_scatter scatter(t, n, onebit::rounded::to_bf16());
        floats part(scatter.own().size);
        CHECK(scatter.mean(data_of(t.rank(), 0, n), part) == outcome::kept);
        CHECK(same_bits(part, part_of(expected, scatter.own())));
      });
    }
  }
}

TEST_CASE("sharded: int8 is within a 127th of the largest of 32; bf16 is rounded to it") {
  constexpr std::size_t n = 1000;
  onebit::run_threads(3, [&](onebit::threads t) {
    onebit::compressed_reduce_scatter scatter(t, n, onebit::rounded::to_int8());
    onebit::compressed_all_gather gather(t, n, onebit::rounded::to_bf16());
    floats part(scatter.own().size), all(n);
    CHECK(scatter.mean(data_of(t.rank(), 0, n), part) == outcome::kept);
    std::vector<double> exact(n), allowed(n);
    for (int r = 0; r < 3; ++r) {
      const floats x = data_of(r, 0, n);
      for (std::size_t i = 0; i < n; ++i) {
        double largest = 0;
        for (std::size_t k = i / 32 * 32; k < std::min(i / 32 * 32 + 32, n); ++k)
          largest = std::max(largest, std::abs(static_cast<double>(x[k])));
        exact[i] += static_cast<double>(x[i]) / 3;
        allowed[i] += largest / 127 / 3;
      }
    }
    for (std::size_t i = 0; i < part.size(); ++i) {
      const std::size_t at = scatter.own().first + i;
      REQUIRE(std::abs(static_cast<double>(part[i]) - exact[at]) <= allowed[at] + 1e-7);
    }
    CHECK(gather.gather(part, all) == outcome::kept);
    for (std::size_t i = 0; i < part.size(); ++i) {
      const float got = all[gather.own().first + i];
      REQUIRE(got == onebit::to_float(onebit::to_bf16(part[i])));
    }
  });
}

TEST_CASE("sharded: what is left out is owed: sums telescope, with every compressor that owes") {
  with_residuals([](const auto& codec) {
    CAPTURE(onebit::policy_name(codec));
    for (const std::size_t n : {33U, 1000U, 9001U}) {
      for (int w = 2; w <= 4; ++w) {
        CAPTURE(n);
        CAPTURE(w);
        constexpr std::uint64_t calls = 12;
        using sums = std::vector<double>;  // by element
        struct result {
          sums given, owed, parts, gathered, owed_of_parts;
        };
        const auto all = on_ranks(w, [&](onebit::threads t) {
          both x(t, n, codec);
          result r{sums(n), sums(n), sums(n), sums(n), sums(n)};
          const onebit::detail::vector_part own = x.scatter.own();
          for (std::uint64_t call = 0; call < calls; ++call) {
            const floats data = data_of(t.rank(), call, n), got = x.mean(data);
            add(r.given, data, 0);
            add(r.gathered, got, 0);
            add(r.parts, x.part, own.first);
          }
          auto& worker = inside(x.scatter).worker;
          const auto owed = worker.flatten(worker.residual({}));
          add(r.owed, floats(owed.data(), owed.data() + n), 0);
          const auto& of_part = inside(x.gather).server.residual();
          add(r.owed_of_parts, floats(of_part.data(), of_part.data() + own.size), own.first);
          return r;
        });
        double farthest = 0, largest_owed = 0;
        for (std::size_t i = 0; i < n; ++i) {
          double mean = 0, part = 0, owed_of_part = 0;
          for (const result& r : all) {
            mean += (r.given[i] - r.owed[i]) / w;
            part += r.parts[i];  // only one has it
            owed_of_part += r.owed_of_parts[i];
            largest_owed = std::max(largest_owed, std::abs(r.owed[i]));
          }
          farthest = std::max(farthest, std::abs(mean - part));
          farthest = std::max(farthest, std::abs(part - owed_of_part - all[0].gathered[i]));
        }
        CHECK(farthest < 2e-5);  // a few roundings each, of values up to 8
        CHECK(largest_owed > 0.01);
      }
    }
  });
}

TEST_CASE("sharded: all ranks get the same bits, into every type and in place") {
  with_compressors([](const auto& codec) {
    CAPTURE(onebit::policy_name(codec));
    for (const std::size_t n : odd_sizes) {
      for (int w = 1; w <= 4; ++w) {
        CAPTURE(n);
        CAPTURE(w);
        struct result {
          std::vector<floats> all;
          std::vector<onebit::bf16> halves;
          std::vector<onebit::fp16> small;
        };
        const auto results = on_ranks(w, [&](onebit::threads t) {
          result r{{}, std::vector<onebit::bf16>(n), std::vector<onebit::fp16>(n)};
          onebit::compressed_all_gather apart(t, n, codec), in_place(t, n, codec);
          onebit::compressed_all_gather to_bf16(t, n, codec), to_fp16(t, n, codec);
          const auto [first, size] = apart.own();
          for (std::uint64_t call = 0; call < 3; ++call) {
            floats whole(n), part = part_of(data_of(t.rank(), call, n), apart.own());
            CHECK(apart.gather(part, whole) == outcome::kept);
            CHECK(to_bf16.gather(part, r.halves) == outcome::kept);
            CHECK(to_fp16.gather(part, r.small) == outcome::kept);
            bool as_rounded = true;
            for (std::size_t i = 0; i < n; ++i) {
              as_rounded = as_rounded && r.halves[i] == onebit::to_bf16(whole[i]) &&
                           r.small[i] == onebit::to_fp16(whole[i]);
            }
            CHECK(as_rounded);
            floats around(n, -1.0F);
            std::copy(part.begin(), part.end(),
                      around.begin() + static_cast<std::ptrdiff_t>(first));
            CHECK(in_place.gather(std::span<const float>(around).subspan(first, size), around) ==
                  outcome::kept);
            CHECK(same_bits(around, whole));
            r.all.push_back(std::move(whole));
          }
          return r;
        });
        for (const result& r : results) {
          for (std::size_t call = 0; call < 3; ++call)
            CHECK(same_bits(r.all[call], results[0].all[call]));
        }
      }
    }
  });
}

TEST_CASE("sharded: a mean of 2-byte data is that of the floats; in place it is the same") {
  with_compressors([](const auto& codec) {
    CAPTURE(onebit::policy_name(codec));
    constexpr std::size_t n = 1000;
    for (int w = 1; w <= 4; ++w) {
      onebit::run_threads(w, [&](onebit::threads t) {
        onebit::compressed_reduce_scatter of_float(t, n, codec), in_place(t, n, codec);
        onebit::compressed_reduce_scatter of_bf16(t, n, codec), of_fp16(t, n, codec);
        const auto [first, size] = of_float.own();
        floats part(size), another(size);
        for (std::uint64_t call = 0; call < 3; ++call) {
          floats data = data_of(t.rank(), call, n);
          std::vector<onebit::bf16> halves;
          std::vector<onebit::fp16> small;
          for (const float x : data) {
            halves.push_back(onebit::to_bf16(x));
            small.push_back(onebit::to_fp16(x));
          }
          CHECK(of_float.mean(data, part) == outcome::kept);
          CHECK(of_bf16.mean(halves, another) == outcome::kept);
          CHECK(same_bits(part, another));
          CHECK(of_fp16.mean(small, another) == outcome::kept);
          CHECK(same_bits(part, another));
          CHECK(in_place.mean(data, std::span(data).subspan(first, size)) == outcome::kept);
          CHECK(same_bits(part, part_of(data, of_float.own())));
        }
      });
    }
  });
}

TEST_CASE("sharded: both halves, one after the other, are compressed_allreduce bit for bit") {
  with_compressors([](const auto& codec) {
    CAPTURE(onebit::policy_name(codec));
    for (const std::size_t n : odd_sizes) {
      for (int w = 1; w <= 4; ++w) {
        CAPTURE(n);
        CAPTURE(w);
        // W = 3: 1/W is no power of two, so that the mean, which is rounded when it is handed over,
        // is rounded once more when what is owed is added: the same bits while nothing is owed.
        // What a bf16 or int8 mean loses is owed by gather_scatter's servers, and here by nobody
        const bool exact = std::is_same_v<std::remove_cvref_t<decltype(codec)>, onebit::identity>;
        const std::uint64_t calls = exact || (owes(codec) && w != 3) ? 8 : 1;
        onebit::run_threads(w, [&](onebit::threads t) {
          both x(t, n, codec);
          onebit::compressed_allreduce whole(t, {n}, onebit::gather_scatter{codec});
          for (std::uint64_t call = 0; call < calls; ++call) {
            floats data = data_of(t.rank(), call, n);
            const floats got = x.mean(data);
            CHECK(whole.mean(data) == outcome::kept);
            REQUIRE(same_bits(got, data));
          }
        });
      }
    }
  });
}

TEST_CASE("sharded: bad data are skipped by all ranks, and change nothing") {
  with_compressors([](const auto& codec) {
    CAPTURE(onebit::policy_name(codec));
    constexpr std::size_t n = 1000;
    for (int w = 2; w <= 4; ++w) {
      for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                              std::numeric_limits<float>::infinity(), 1e38F}) {
        onebit::run_threads(w, [&](onebit::threads t) {
          both undisturbed(t, n, codec), x(t, n, codec);
          CHECK(same_bits(undisturbed.mean(data_of(t.rank(), 0, n)),
                          x.mean(data_of(t.rank(), 0, n))));
          floats data = data_of(t.rank(), 1, n), all(n, 5.0F);
          floats part(x.part.size(), 7.0F), seven = part;
          if (t.rank() == 1) data[77] = bad;  // rank 0's part, or 1's
          CHECK(x.scatter.mean(data, part) == outcome::skipped);
          CHECK(same_bits(part, seven));
          CHECK(x.scatter.settle() == outcome::skipped);
          if (t.rank() == 0) part[3] = bad;
          CHECK(x.gather.gather(part, all) == outcome::skipped);
          CHECK(same_bits(all, floats(n, 5.0F)));
          for (std::uint64_t call = 2; call < 5; ++call) {
            const floats next = data_of(t.rank(), call, n);
            CHECK(same_bits(undisturbed.mean(next), x.mean(next)));
          }
        });
      }
    }
  });
}

TEST_CASE("sharded: saved and loaded they go on as if never stopped; reset they are new") {
  with_compressors([](const auto& codec) {
    CAPTURE(onebit::policy_name(codec));
    for (int w = 1; w <= 4; ++w) {
      onebit::run_threads(w, [&](onebit::threads t) {
        constexpr std::size_t n = 1000;
        const auto means = [&](auto& x, std::uint64_t first, std::uint64_t end) {
          std::vector<floats> all;
          for (; first < end; ++first) all.push_back(x.mean(data_of(t.rank(), first, n)));
          return all;
        };
        both x(t, n, codec), y(t, n, codec);
        const auto of_new = means(x, 0, 3);
        std::stringstream scatter, gather;
        x.scatter.save(scatter);
        x.gather.save(gather);
        const auto expected = means(x, 3, 6);
        (void)means(y, 8, 9);
        // a file that is damaged on one rank: nothing is loaded on any
        std::string damaged = scatter.str();
        if (t.rank() == w - 1) damaged[damaged.size() / 2] ^= 1;
        const std::string before = y.saved_state();
        std::istringstream bad(damaged);
        CHECK_THROWS_AS(y.scatter.load(bad), onebit::checkpoint_error);
        CHECK(y.saved_state() == before);
        // the other half's file
        std::istringstream other(scatter.str());
        CHECK(thrown<onebit::checkpoint_error>([&] { y.gather.load(other); }) ==
              contains{"compressed_reduce_scatter"});
        y.scatter.load(scatter);
        y.gather.load(gather);
        CHECK(means(y, 3, 6) == expected);
        y.scatter.reset();
        y.gather.reset();
        CHECK(means(y, 0, 3) == of_new);
      });
    }
  });
}

TEST_CASE("sharded: a network that fails changes nothing") {
  with_compressors([](const auto& codec) {
    CAPTURE(onebit::policy_name(codec));
    constexpr std::size_t n = 1000;
    onebit::run_threads(3, [&](onebit::threads t) {
      both undisturbed(t, n, codec);
      const auto told = std::make_shared<script>();
      both x(scripted(t, told), n, codec);
      for (std::uint64_t call = 0; call < 3; ++call) {
        const floats data = data_of(t.rank(), call, n), expected = undisturbed.mean(data);
        const std::string before = x.saved_state();
        floats part(x.part.size(), 7.0F), all(n, 5.0F), given = part;
        for (const bool delivered : {false, true}) {
          told->fail_at = told->calls;
          told->fail_after_delivery = delivered;
          CHECK_THROWS_AS(x.scatter.mean(data, part), onebit::transport_error);
          CHECK(same_bits(part, floats(part.size(), 7.0F)));
          told->fail_at = told->calls;
          CHECK_THROWS_AS(x.gather.gather(given, all), onebit::transport_error);
          CHECK(same_bits(all, floats(n, 5.0F)));
        }
        told->fail_at = script::never;
        CHECK(x.saved_state() == before);
        CHECK(same_bits(x.mean(data), expected));
      }
    });
  });
}

TEST_CASE("sharded: bytes sent and state are the formula's") {
  constexpr std::size_t n = 9001, words = (n + 31) / 32;
  for (std::size_t w = 1; w <= 4; ++w) {
    const std::size_t each = (words + w - 1) / w;  // words of a part
    const auto check = [&](const auto& codec, std::size_t message, std::size_t owed) {
      CAPTURE(onebit::policy_name(codec));
      CAPTURE(w);
      onebit::run_threads(static_cast<int>(w), [&](onebit::threads t) {
        const auto told = std::make_shared<script>();
        both x(scripted(t, told), n, codec);
        const std::uint64_t built = told->bytes_to_others;
        CHECK(x.scatter.sent().bytes_sent + x.gather.sent().bytes_sent == built);
        const std::uint64_t before = x.scatter.sent().bytes_sent;
        (void)x.mean(data_of(t.rank(), 0, n));
        const std::uint64_t status = 12;
        const std::uint64_t half = (w - 1) * (message + status);
        CHECK(x.scatter.sent().bytes_sent - before == half);
        CHECK(told->bytes_to_others - built == (w > 1 ? 2 * half : 0));
        const std::size_t own_words = (x.gather.own().size + 31) / 32;
        const bool owes_now = w > 1 && owed > 0;
        const std::size_t scales = inside(x.scatter).worker.scales().size() * 4;
        CHECK(x.scatter.state_bytes() == scales + (owes_now ? words * 32 * owed : 0));
        CHECK(x.gather.state_bytes() == scales + (owes_now ? own_words * 32 * 4 : 0));
      });
    };
    check(onebit::identity{}, each * 128, 0);
    check(onebit::rounded::to_bf16(), each * 64 + 4, 0);
    check(onebit::rounded::to_int8(), (each * 33 + 3) / 4 * 4 + 4, 0);
    check(onebit::sign<>{onebit::granularity::chunk()}, each * 4 + 4, 4);
  }
}

TEST_CASE("sharded: what does not fit is said, with its numbers") {
  onebit::run_threads(2, [](onebit::threads t) {
    const int rank = t.rank();
    const auto mismatch = [](const auto& f) { return thrown<onebit::rank_mismatch>(f); };
    const auto invalid = [](const auto& f) { return thrown<onebit::invalid_input>(f); };
    CHECK(mismatch([&] { onebit::compressed_reduce_scatter x(t, rank == 0 ? 10U : 11U); }) ==
          contains{"elements of tensor 0: 11 on rank 1, 10 on rank 0"});
    CHECK(mismatch([&] {
            onebit::compressed_all_gather x(
                t, 100, rank == 0 ? onebit::rounded::to_bf16() : onebit::rounded::to_int8());
          }) == contains{"rank 1 has int8, rank 0 has bf16"});
    CHECK(mismatch([&] {
            if (rank == 0) onebit::compressed_all_gather x(t, 100);
            if (rank == 1) onebit::compressed_reduce_scatter x(t, 100);
          }) == contains{"rank 1 has compressed_reduce_scatter, rank 0 has"});
    CHECK(invalid([&] { onebit::compressed_all_gather x(t, static_cast<std::size_t>(-10)); }) ==
          contains{"18446744073709551606 elements"});

    onebit::compressed_reduce_scatter scatter(t, 100), second(t, 100);
    onebit::compressed_all_gather gather(t, 100);
    const std::size_t size = scatter.own().size, first = scatter.own().first;
    CHECK(size == (rank == 0 ? 64 : 36));
    floats data(100, 1.0F), part(size);
    CHECK(invalid([&] { scatter.mean(floats(99), part); }) == contains{"given 99 elements in"});
    CHECK(invalid([&] { scatter.mean(data, std::span(part).first(size - 1)); }) ==
          contains{"this rank needs 100 in and " + std::to_string(size) + " out"});
    CHECK(invalid([&] { gather.gather(floats(size + 1), data); }) ==
          contains{"this rank needs " + std::to_string(size) + " in and 100 out"});
    CHECK(invalid([&] { gather.gather(part, std::span(static_cast<float*>(nullptr), 100)); }) ==
          contains{"address 0"});
    CHECK(invalid([&] { scatter.mean(data, std::span(data).subspan(first == 0 ? 1 : 0, size)); }) ==
          contains{"overlaps"});
    CHECK(invalid([&] {
            gather.gather(std::span(data).subspan(first == 0 ? 1 : 0, size), data);
          }) == contains{"overlaps"});
    CHECK(scatter.mean(data, part) == outcome::kept);
    CHECK(second.mean(data, part) == outcome::kept);

    // two of them in another order: found in the call, by all
    floats kept = part;
    auto& mine = rank == 0 ? scatter : second;
    CHECK(mismatch([&] { mine.mean(data, part); }) ==
          contains{"all ranks must call their optimizers in the same order"});
    CHECK(same_bits(part, kept));
    CHECK(scatter.mean(data, part) == outcome::kept);
  });
}

TEST_CASE("sharded: a rank that has made another number of calls is told") {
  onebit::run_threads(2, [](onebit::threads t) {
    const auto told = std::make_shared<script>();
    both x(scripted(t, told), 100, onebit::sign<>{});
    const floats data(100, 1.0F);
    floats all(100);
    if (t.rank() == 0) {
      told->fail_at = told->calls;
      told->fail_after_delivery = true;
      CHECK_THROWS_AS(x.scatter.mean(data, x.part), onebit::transport_error);
      told->fail_at = script::never;
    } else {
      CHECK(x.scatter.mean(data, x.part) == outcome::kept);
    }
    CHECK(thrown<onebit::rank_mismatch>([&] { x.scatter.mean(data, x.part); }) ==
          contains{t.rank() == 0 ? "rank 1 is at step 1 while this rank is at step 0"
                                 : "rank 0 is at step 0 while this rank is at step 1"});
    CHECK(x.gather.gather(x.part, all) == outcome::kept);
  });
}

TEST_CASE("sharded: with one rank nothing is sent, and all is a copy") {
  floats data = {1, -2, std::numeric_limits<float>::infinity()}, part(3), all(3);
  onebit::compressed_reduce_scatter scatter(onebit::alone(), 3);
  onebit::compressed_all_gather gather(onebit::alone(), 3);
  CHECK(scatter.mean(data, part) == outcome::kept);
  CHECK(gather.gather(part, all) == outcome::kept);
  CHECK(same_bits(all, data));
  auto moved = std::move(scatter);
  CHECK(moved.mean(data, part) == outcome::kept);
}
