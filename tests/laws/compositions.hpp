// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#ifndef ONEBIT_TESTS_LAWS_COMPOSITIONS_HPP
#define ONEBIT_TESTS_LAWS_COMPOSITIONS_HPP

#include <onebit/collective/hierarchical.hpp>
#include <onebit/onebit.hpp>

#include "../support/training.hpp"

/// Optimizers of a training, as make(data, transport): three steps of warm-up.
namespace onebit_test::compositions {

inline constexpr auto plain = [](auto& data, auto t) { return onebit::adam(data.groups(), t); };
inline constexpr auto scattered = [](auto& data, auto t) {
  return onebit::one_bit_adam(data.groups(), t, frozen_after(3));
};
inline constexpr auto bucketed = [](auto& data, auto t) {
  return onebit::one_bit_adam(data.groups(), t, frozen_after(3),
                              onebit::gather_scatter{onebit::sign<>{}, 1000});
};
inline constexpr auto gathered = [](auto& data, auto t) {
  return onebit::one_bit_adam(data.groups(), t, frozen_after(3),
                              onebit::all_gather<onebit::sign<>>{});
};
inline constexpr auto by_node = [](auto& data, auto t) {
  return onebit::one_bit_adam(data.groups(), t, frozen_after(3),
                              onebit::hierarchical{onebit::sign<>{}, 2});
};
inline constexpr auto skipping = [](auto& data, auto t) {
  onebit::zero_one_adam_options o;
  o.schedule.kappa = 1;
  o.schedule.warmup_steps = 3;
  o.schedule.doubling_steps = 2;
  o.schedule.max_interval = 2;
  return onebit::zero_one_adam(data.groups(), t, o);
};

}  // namespace onebit_test::compositions

#endif  // ONEBIT_TESTS_LAWS_COMPOSITIONS_HPP
