// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// No float becomes a double by itself: on a device that would be slow, and elsewhere other bits.
// expect-ok
// flags: -Werror=double-promotion

#include <onebit/any_optimizer.hpp>
#include <onebit/onebit.hpp>

onebit::any_optimizer make(const std::vector<onebit::param_group<>>& groups, onebit::threads t,
                           int which) {
  if (which == 0) return onebit::one_bit_adam(groups, t, {});
  if (which == 1) return onebit::one_bit_lamb(groups, t, {});
  return onebit::zero_one_adam(groups, t, {});
}
onebit::compressed_allreduce<> mean(onebit::threads t) { return {t, {5, 6}}; }
