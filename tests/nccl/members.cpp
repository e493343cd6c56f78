// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Communicators that shrink, against the stand-in.

#include <doctest/doctest.h>

#include <chrono>
#include <onebit/transport/nccl.hpp>
#include <vector>

#include "nccl/stand_in.hpp"
#include "support/ranks.hpp"

using namespace std::chrono_literals;
using onebit_test::contains;
using onebit_test::on_stand_ins;
using onebit_test::stand_in;
using onebit_test::thrown;
using onebit_test::user_stream;

#if NCCL_VERSION_CODE >= 22700
TEST_CASE("the ranks that stay have a smaller transport") {
  for (const bool failed : {false, true}) {
    on_stand_ins(3, [&](ncclComm_t comm, stand_in& record) {
      onebit::nccl transport(comm, user_stream(), {.timeout = 20ms, .keep_for_shrink = failed});
      if (transport.rank() == 1) {  // lost
        (void)comm->ranks.split(1, 0);
        return;
      }
      if (failed) {
        record.stuck = true;
        CHECK(thrown<onebit::transport_error>([&] { transport.wait(); }) ==
              contains{"waited 20 ms for the stream; shrink() leaves lost ranks out [rank "});
        CHECK(thrown<onebit::transport_error>([&] { transport.wait(); }) ==
              contains{"the communicators have failed: waited 20 ms for the stream [rank "});
        CHECK(record.aborted.empty());
      }
      {
        onebit::nccl left = transport.shrink({1});
        CHECK(record.shrink_flags == (failed ? NCCL_SHRINK_ABORT : NCCL_SHRINK_DEFAULT));
        CHECK(left.size() == 2);
        CHECK(left.rank() == transport.rank() / 2);
        const int mine = transport.rank();
        int all[2] = {};
        left.host_all_gather(&mine, all, sizeof mine);
        CHECK(all[0] == 0);
        CHECK(all[1] == 2);
      }
      CHECK(record.destroyed == 1);
      CHECK(record.aborted.empty());
    });
  }
}

TEST_CASE("a list that is none, and communicators that are gone") {
  on_stand_ins(2, [](ncclComm_t comm, stand_in& record) {
    onebit::nccl transport(comm, user_stream(), {.timeout = 20ms});
    const int other = 1 - transport.rank();
    for (const std::vector<int>& list :
         {std::vector<int>{}, {-1}, {2}, {other, other}, {transport.rank()}}) {
      CHECK(thrown<onebit::invalid_input>([&] { (void)transport.shrink(list); }) ==
            contains{"nccl: shrink: needs a list of other ranks, each once [rank "});
    }
    record.stuck = true;
    CHECK_THROWS_AS(transport.wait(), onebit::transport_error);
    CHECK(thrown<onebit::transport_error>([&] { (void)transport.shrink({other}); }) ==
          contains{"the communicators were aborted: waited 20 ms for the stream"});
    record.stuck = false;
  });
}
#endif
