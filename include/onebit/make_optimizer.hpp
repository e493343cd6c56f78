// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <onebit/algorithms.hpp>
#include <onebit/any_optimizer.hpp>
#include <onebit/read_options.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// An optimizer from a name and options that are texts: what a configuration file says.
namespace onebit::inline v0_1 {

namespace detail {

/// Groups with the decay that the options name. It goes to a single group that has none; several
/// groups must show which of them it is for. Throws invalid_input.
template <class P, class G>
[[nodiscard, gnu::cold]] std::vector<param_group<P, G>> with_decay(
    std::vector<param_group<P, G>> groups, std::optional<double> decay) {
  if (!decay) return groups;
  const auto wanted = static_cast<float>(*decay);
  bool is_there = false;
  for (const auto& g : groups) is_there = is_there || g.weight_decay == wanted;
  if (groups.size() == 1 && groups[0].weight_decay == 0) {
    groups[0].weight_decay = wanted;
  } else if (!is_there) {
    throw invalid_input(message("make_optimizer: weight_decay is ", wanted, ", but none of ",
                                groups.size(),
                                " groups has it; the decay belongs to groups: set "
                                "param_group::weight_decay of those that it is for"));
  }
  return groups;
}

}  // namespace detail

/// An optimizer by its name: `read_options` says which there are. Collective over the transport;
/// all ranks give the same; throws as it does, and as the algorithm does, on all ranks. `backend`
/// as the algorithms take it.
///
/// The option lr is only remembered (any_optimizer::lr); weight_decay goes to a single group that
/// has none, and is compared with those of several. Compiles all algorithms for P, G and B.
template <class P, class G, class T, class B = host>
[[nodiscard, gnu::cold]] any_optimizer make_optimizer(const std::string& name,
                                                      const option_map& options,
                                                      const std::vector<param_group<P, G>>& groups,
                                                      T transport, B backend = B{}) {
  detail::check_policies<T, B>();
  wire comm = detail::wire_of<gather_scatter<sign<>>>(std::move(transport));
  const auto [o, all] = detail::attend(comm, [&] {
    const named_optimizer read = read_options(name, options);
    return std::pair(read, detail::with_decay(groups, read.weight_decay));
  });
  const auto lr = static_cast<float>(std::min(o.lr, 3e38));
  using signs = gather_scatter<sign<l2_scale>>;
  const granularity scales =
      o.scale_elements > 0 ? granularity::block(o.scale_elements) : granularity::layer();
  switch (o.which) {
    case algorithm::adam:
      return {adam(all, comm, o.adam, std::move(backend), o.sum), lr};
    case algorithm::lamb:
      return {lamb(all, comm, o.lamb, std::move(backend), o.sum), lr};
    case algorithm::one_bit_adam:
      return {one_bit_adam(all, comm, o.one_bit_adam, signs{{scales}, o.bucket_elements},
                           std::move(backend)),
              lr};
    case algorithm::one_bit_lamb:
      return {one_bit_lamb(all, comm, o.one_bit_lamb,
                           signs{{granularity::vector()}, o.bucket_elements}, std::move(backend)),
              lr};
    case algorithm::zero_one_adam:
      return {zero_one_adam(all, comm, o.zero_one_adam, signs{{scales}, o.bucket_elements},
                            std::move(backend)),
              lr};
  }
  throw invalid_input(detail::message("make_optimizer: no algorithm"));
}

}  // namespace onebit::inline v0_1
