// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <onebit/element.hpp>
#include <onebit/error.hpp>
#include <onebit/flat_tensors.hpp>
#include <onebit/tensor.hpp>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace onebit::inline v0_1::detail {

/// Where elements lie, and of which type they are.
template <class Pointer>
[[nodiscard]] std::pair<const void*, element_type> place_of(const Pointer& pointer) {
  return with_type(pointer, [](const auto* p) {
    return std::pair<const void*, element_type>(p, type_of<std::remove_cvref_t<decltype(*p)>>);
  });
}

/// The trainer's memory is where `groups` says now: `tensors`, a tensor_table, looks there from the
/// next step on. Numbers of groups, of tensors and of their elements must be what they were;
/// options of the groups are not looked at. How many tensors have moved: 0 costs a comparison of
/// pointers. Throws invalid_input; then nothing has changed.
template <class Table, class P, class G>
[[gnu::cold]] std::size_t rebind(Table& tensors, const std::vector<param_group<P, G>>& groups,
                                 const std::string& where) {
  if (groups.size() != tensors.group_ends.size()) {
    throw invalid_input(message("rebind: ", groups.size(), " groups, but the optimizer has ",
                                tensors.group_ends.size(), where));
  }
  std::size_t n_moved = 0, t = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::size_t n_tensors = tensors.group_ends[g] - t;
    if (groups[g].tensors.size() != n_tensors) {
      throw invalid_input(message("rebind: group ", g, " has ", groups[g].tensors.size(),
                                  " tensors, but had ", n_tensors, where));
    }
    for (const tensor<P, G>& x : groups[g].tensors) {
      const tensor_entry<P, G>& was = tensors.entries[t];
      const std::size_t n_masters = was.master != nullptr ? tensors.sizes[t] : 0;
      if (x.params.size() != tensors.sizes[t] || x.master.size() != n_masters) {
        throw invalid_input(message("rebind: tensor ", t, " has ", x.params.size(), " params and ",
                                    x.master.size(), " masters, but had ", tensors.sizes[t],
                                    " and ", n_masters, where));
      }
      const auto params = place_of(x.params.data()), grads = place_of(x.grads.data());
      const auto old_params = place_of(was.params), old_grads = place_of(was.grads);
      if (params.second != old_params.second || grads.second != old_grads.second) {
        throw invalid_input(
            message("rebind: tensor ", t, " has other types of elements than it had", where));
      }
      const bool same = params == old_params && grads == old_grads &&
                        x.grads.size() == x.params.size() &&
                        (n_masters == 0 || x.master.data() == was.master);
      n_moved += same ? 0 : 1;
      ++t;
    }
  }
  if (n_moved == 0) return 0;
  std::vector<param_group<P, G>> memory;
  for (const auto& g : groups) memory.push_back({g.tensors});
  const flat_tensors<P, G> now(memory, where);  // checks addresses, gradients and overlaps
  for (t = 0; t < now.entries.size(); ++t) {
    tensors.entries[t].params = now.entries[t].params;
    tensors.entries[t].grads = now.entries[t].grads;
    tensors.entries[t].master = now.entries[t].master;
  }
  tensors.changed = true;
  return n_moved;
}

}  // namespace onebit::inline v0_1::detail
