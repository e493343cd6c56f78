// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The halves of a compressed allreduce on emulated warps behind an emulated stream: the host's
// bits.

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <onebit/backend/host.hpp>
#include <onebit/compressor/rounded.hpp>
#include <onebit/compressor/sign.hpp>
#include <onebit/extras/sharded.hpp>
#include <onebit/transport/staged.hpp>
#include <span>
#include <sstream>
#include <vector>

#include "../support/emulated.hpp"
#include "../support/ranks.hpp"
#include "../support/tile_codecs.hpp"

using namespace onebit_test;

namespace {

// Tiles of four words at a time and of one, and a ragged end; of three ranks the last has less.
constexpr std::size_t n = 3 * 4096 + 1000;

/// What all ranks get, by rank, after five calls in a row, the third with bad data; in the fourth
/// what was saved before goes on.
template <class B, class C, class Transport>
std::vector<float> means_on(const Transport& t, const C& codec, const B& backend) {
  onebit::compressed_reduce_scatter<C, B> reduce_scatter(t, n, codec, backend);
  onebit::compressed_all_gather<C, B> all_gather(t, n, codec, backend);
  auto data = backend.template make_buffer<float>(n), all = backend.template make_buffer<float>(n);
  auto part = backend.template make_buffer<float>(reduce_scatter.own().size);
  const std::span<float> of_part(part.data(), part.size());
  std::vector<float> here(n), results;
  std::stringstream scatter, gather;
  for (int call = 0; call < 5; ++call) {
    for (std::size_t i = 0; i < n; ++i) {
      const auto x = static_cast<float>(i * 7 + static_cast<std::size_t>(call * 31 + t.rank() * 3));
      here[i] = std::sin(x) * std::exp2(-static_cast<float>(i % 5));
    }
    if (call == 2 && t.rank() == 1) here[77] = std::numeric_limits<float>::quiet_NaN();
    B(backend).copy_in(data.data(), here.data(), n);
    if (call == 3) {
      reduce_scatter.load(scatter);
      all_gather.load(gather);
    }
    reduce_scatter.mean(std::span<const float>(data.data(), n), of_part);
    CHECK((reduce_scatter.settle() == onebit::outcome::skipped) == (call == 2));
    all_gather.gather(of_part, std::span<float>(all.data(), n));
    CHECK(all_gather.settle() == onebit::outcome::kept);
    if (call == 2) continue;
    B(backend).copy_out(here.data(), all.data(), n);
    results.insert(results.end(), here.begin(), here.end());
    if (call == 1) {
      reduce_scatter.save(scatter);
      all_gather.save(gather);
    }
  }
  return results;
}

}  // namespace

TEST_CASE("deferred: both halves of an allreduce have the bits of the host") {
  const auto check = [](const auto& codec) {
    CAPTURE(onebit::policy_name(codec));
    const auto on_host =
        on_ranks(3, [&](onebit::threads t) { return means_on(t, codec, onebit::host()); });
    const auto on_warps = on_ranks(3, [&](onebit::threads t) {
      const emulated warps;
      return means_on(onebit::staged(t, emulated_memory(warps)), codec, warps);
    });
    for (std::size_t r = 0; r < 3; ++r) {
      CHECK(on_host[r] == on_host[0]);
      CHECK(on_warps[r] == on_host[0]);
    }
  };
  check(onebit::sign<>{});
  check(onebit::rounded::to_int8());
  check(int8_tile{});
}
