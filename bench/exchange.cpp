// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The library's ways to average gradients, beside the transport's bare allreduce. Options: --help;
// how to read what it prints: bench/README.md.

#include <onebit/compressor/identity.hpp>
#include <onebit/compressor/quantized.hpp>
#include <onebit/compressor/sign.hpp>
#include <vector>

#include "../examples/int8_per_tile.hpp"
#include "../examples/top_k.hpp"
#include "harness.hpp"

namespace {

using namespace onebit_bench;
using onebit::dense_sum;

std::vector<contender> contenders(const options& o) {
  std::vector<contender> all{bare()};
  const auto dense = [&](const char* name, dense_sum mode) {
    all.push_back({name, "",
                   [mode](const onebit::communicator& comm, std::size_t n) {
                     return exchange(std::make_shared<dense_mean>(comm, n, mode));
                   },
                   [mode](std::uint64_t ranks, std::size_t n) { return sent_by(mode, ranks, n); }});
  };
  dense("dense", dense_sum::rank_order);
  dense("dense_bf16", dense_sum::in_bf16);
  dense("dense_int8", dense_sum::in_int8);
  dense("dense_transport", dense_sum::transport);
  dense("dense_transport_bf16", dense_sum::transport_in_bf16);

  const auto of = [&]<class C>(const char* name, const C& codec) {
    all.push_back(compressed("gather_scatter", name, onebit::gather_scatter{codec}));
    all.push_back(compressed("all_gather", name, onebit::all_gather{codec}));
    if constexpr (onebit::detail::WordCompressor<C>) {
      const auto on_nodes = [codec, given = o.ranks_per_node](std::size_t ranks) {
        const int n = given != 0 ? given : ranks > 2 && ranks % 2 == 0 ? 2 : 1;
        return onebit::hierarchical{codec, n};
      };
      all.push_back({"hierarchical", name,
                     [on_nodes](const onebit::communicator& comm, std::size_t n) {
                       const auto c = on_nodes(static_cast<std::size_t>(comm.size()));
                       return compressed("", "", c).make(comm, n);
                     },
                     [on_nodes](std::uint64_t ranks, std::size_t n) {
                       return sent_by(on_nodes(ranks), ranks, n);
                     }});
    }
  };
  of("sign", onebit::sign<>{});
  of("sign_l1", onebit::sign<onebit::l1_scale>{});
  of("2_bits", onebit::two_bits{});
  of("4_bits", onebit::four_bits{});
  of("identity", onebit::identity{});
  of("int8_per_tile", int8_per_tile{});
  of("top_k", top_k{});
  return all;
}

}  // namespace

int main(int argc, char** argv) { return compare(argc, argv, contenders); }
