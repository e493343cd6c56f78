// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#include <onebit/testing/collective.hpp>

#include "../../examples/recursive_doubling.hpp"
#include "../../examples/ring.hpp"
#include "../support/tile_codecs.hpp"

using namespace onebit::testing;
using onebit::l1_scale;
using onebit::l2_scale;
using onebit::scale_per;
using onebit_test::int8_tile;
using onebit_test::ternary;

namespace {

using two_l2_vector = gather_scatter_of<sign_per<l2_scale, scale_per::vector>>;
using two_l2_layer = gather_scatter_of<sign_per<l2_scale, scale_per::layer>>;
using two_l2_chunk = gather_scatter_of<sign_per<l2_scale, scale_per::chunk>>;
using two_l2_block = gather_scatter_of<sign_per<l2_scale, scale_per::block, 96>>;
using two_l1_vector = gather_scatter_of<sign_per<l1_scale, scale_per::vector>>;
using two_l1_layer = gather_scatter_of<sign_per<l1_scale, scale_per::layer>>;
using two_l1_chunk = gather_scatter_of<sign_per<l1_scale, scale_per::chunk>>;
using two_l1_block = gather_scatter_of<sign_per<l1_scale, scale_per::block, 32>>;
using two_identity = gather_scatter_of<onebit::identity>;
using two_ternary = gather_scatter_of<ternary>;
using two_int8 = gather_scatter_of<int8_tile>;
using one_l2_vector = all_gather_of<sign_per<l2_scale, scale_per::vector>>;
using one_l2_layer = all_gather_of<sign_per<l2_scale, scale_per::layer>>;
using one_l2_chunk = all_gather_of<sign_per<l2_scale, scale_per::chunk>>;
using one_l2_block = all_gather_of<sign_per<l2_scale, scale_per::block, 4128>>;
using one_l1_layer = all_gather_of<sign_per<l1_scale, scale_per::layer>>;
using one_identity = all_gather_of<onebit::identity>;
using one_ternary = all_gather_of<ternary>;
using one_int8 = all_gather_of<int8_tile>;
using dense_in_rank_order = dense_model<onebit::dense_sum::rank_order>;
using dense_by_transport = dense_model<onebit::dense_sum::transport>;

/// A user's, here and below.
template <class C>
struct ring_of {
  static auto make(const onebit::communicator& w, onebit::host backend,
                   const std::vector<std::size_t>& sizes) {
    return ring{C()}.bind(w, backend, sizes);
  }
  static exchange_limits limits() {
    return {.ranks = {1, 2, 3, 4, 5}, .collectives = 9, .largest_residual = 64};
  }
};
struct doubling {
  static onebit::sign<> codec() { return {}; }
  static auto make(const onebit::communicator& w, onebit::host backend,
                   const std::vector<std::size_t>& sizes) {
    return recursive_doubling{codec()}.bind(w, backend, sizes);
  }
  static exchange_limits limits() { return {{1, 2, 4, 8}, 3}; }
};

}  // namespace

TEST_CASE_TEMPLATE_INVOKE(collective_conformance, doubling, ring_of<onebit::sign<>>,
                          ring_of<onebit::identity>, ring_of<int8_tile>);
TEST_CASE_TEMPLATE_INVOKE(collective_conformance, two_l2_vector, two_l2_layer, two_l2_chunk,
                          two_l2_block, two_l1_vector, two_l1_layer, two_l1_chunk, two_l1_block,
                          two_identity, two_ternary, two_int8);
TEST_CASE_TEMPLATE_INVOKE(collective_conformance, one_l2_vector, one_l2_layer, one_l2_chunk,
                          one_l2_block, one_l1_layer, one_identity, one_ternary, one_int8,
                          dense_in_rank_order, dense_by_transport);
