// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A compressor, a collective and a whole exchange of one's own in the benchmark.

#include "../examples/int8_per_tile.hpp"
#include "../examples/recursive_doubling.hpp"
#include "harness.hpp"

// [own_contender]
int main(int argc, char** argv) {
  using namespace onebit_bench;
  const std::vector<contender> yours = {
      // a compressor, a collective: the names are for the table
      compressed("gather_scatter", "int8_per_tile", onebit::gather_scatter{int8_per_tile{}}),
      compressed("recursive_doubling", "sign", recursive_doubling{onebit::sign<>{}}),
      // anything that averages a span<float>; what it sends by comm is counted
      {"sum_then_divide", "",
       [](onebit::communicator comm, std::size_t) {
         return [comm](std::span<float> grads) mutable {
           comm.all_reduce_sum(grads.data(), grads.size());
           for (float& g : grads) g /= static_cast<float>(comm.size());
         };
       },
       // not needed: bytes and collectives of a call, which are then checked
       [](std::uint64_t ranks, std::size_t n) {
         return expected_traffic{2 * (ranks - 1) * 4 * n / ranks, 1};
       }}};
  return compare(argc, argv, yours);
}
// [/own_contender]
