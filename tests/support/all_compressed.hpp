// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The compressed algorithms and collectives, chosen when the program runs, so that a test goes
// through them by loops.

#ifndef ONEBIT_TESTS_SUPPORT_ALL_COMPRESSED_HPP
#define ONEBIT_TESTS_SUPPORT_ALL_COMPRESSED_HPP

#include <cstddef>
#include <cstdint>
#include <onebit/any_optimizer.hpp>
#include <onebit/collective/all_gather.hpp>
#include <onebit/collective/hierarchical.hpp>
#include <onebit/extras/papers.hpp>
#include <onebit/onebit.hpp>

namespace onebit_test {

using onebit::any_optimizer;

enum class algorithm { one_bit_adam, one_bit_lamb, zero_one_adam };
inline constexpr algorithm all_compressed[] = {algorithm::one_bit_adam, algorithm::one_bit_lamb,
                                               algorithm::zero_one_adam};

/// The step before which a schedule of `with_maker` freezes: 0/1 Adam's first that does not
/// average.
inline constexpr std::uint64_t freezes_before = 3;

/// f(make), where make(groups, transport, collective, backend) gives an optimizer. Ten steps go
/// through all phases: warm-up, freeze and compressed steps; for 0/1 Adam refreshes, exchanges and
/// local steps.
template <class F>
auto with_maker(algorithm a, std::uint64_t refreshes, const F& f) {
  if (a == algorithm::one_bit_adam) {
    return f([refreshes](const auto& groups, auto t, auto collective, auto backend) {
      return onebit::one_bit_adam(
          groups, t,
          onebit::one_bit_adam_options{
              .adam = {.beta2 = 0.99}, .freeze = {.after = 3}, .refreshes = refreshes},
          collective, backend);
    });
  }
  if (a == algorithm::one_bit_lamb && refreshes == 0) {  // the paper's
    return f([](const auto& groups, auto t, auto collective, auto backend) {
      onebit::papers::one_bit_lamb_options o(freezes_before);
      o.lamb.beta2 = 0.99;
      return onebit::one_bit_lamb(groups, t, o, collective, backend);
    });
  }
  if (a == algorithm::one_bit_lamb) {
    return f([refreshes](const auto& groups, auto t, auto collective, auto backend) {
      return onebit::one_bit_lamb(
          groups, t,
          onebit::one_bit_lamb_options{
              .lamb = {.beta2 = 0.99}, .freeze = {.after = 3}, .refreshes = refreshes},
          collective, backend);
    });
  }
  return f([](const auto& groups, auto t, auto collective, auto backend) {
    return onebit::zero_one_adam(
        groups, t,
        onebit::zero_one_adam_options{
            .adam = {.beta2 = 0.99},
            .schedule = {.kappa = 2, .warmup_steps = 4, .doubling_steps = 3, .max_interval = 2}},
        collective, backend);
  });
}

template <class Groups, class T, class Collective, class B>
[[nodiscard]] any_optimizer make_any(algorithm a, const Groups& groups, T t, Collective collective,
                                     B backend, std::uint64_t refreshes = 16) {
  return with_maker(a, refreshes, [&](const auto& make) {
    return any_optimizer(make(groups, t, collective, backend));
  });
}

enum class policy { gather_scatter, buckets, all_gather, two_levels };
inline constexpr policy all_policies[] = {policy::gather_scatter, policy::buckets,
                                          policy::all_gather, policy::two_levels};
[[nodiscard]] constexpr int ranks_of(policy p) { return p == policy::two_levels ? 4 : 2; }

/// Of the policy `buckets`.
inline const onebit::gather_scatter in_buckets{onebit::sign<>{}, 200};

/// With sign; two ranks on a node.
template <class Groups, class T, class B>
[[nodiscard]] any_optimizer make_any(algorithm a, policy p, const Groups& groups, T t, B backend) {
  const onebit::sign<> codec;
  if (p == policy::all_gather) return make_any(a, groups, t, onebit::all_gather{codec}, backend);
  if (p == policy::two_levels) {
    return make_any(a, groups, t, onebit::hierarchical{codec, 2}, backend);
  }
  if (p == policy::buckets) return make_any(a, groups, t, in_buckets, backend);
  return make_any(a, groups, t, onebit::gather_scatter{codec}, backend);
}

}  // namespace onebit_test

#endif  // ONEBIT_TESTS_SUPPORT_ALL_COMPRESSED_HPP
