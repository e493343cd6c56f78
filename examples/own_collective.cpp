// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Custom collectives under 1-bit Adam: recursive doubling, which trains exactly as the library's
// all_gather, and a ring.

#include "recursive_doubling.hpp"
#include "ring.hpp"
#include "toy_problem.hpp"

namespace {

template <class C>
toy::result train(const C& collective) {
  return toy::train(4, 400, 0.05F, [&](const auto& groups, onebit::threads comm) {
    return onebit::one_bit_adam(groups, comm, {}, collective);
  });
}

}  // namespace

int main() {
  const toy::result ours = train(recursive_doubling{onebit::sign<>{}});
  const toy::result theirs = train(onebit::all_gather{onebit::sign<>{}});
  const int failed = toy::verdict("recursive doubling", ours, 0.02) +
                     toy::verdict("ring", train(ring{onebit::sign<>{}}), 0.02);
  const bool same = ours.last_loss == theirs.last_loss && ours.bytes_sent == theirs.bytes_sent;
  std::printf("%s\n", same ? "the loss and the bytes of all_gather" : "all_gather's differ");
  return failed + (same ? 0 : 1);
}
