// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <onebit/element.hpp>
#include <onebit/error.hpp>
#include <onebit/tensor.hpp>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/// The trainer's tensors in one order, and what is checked of them.
namespace onebit::inline v0_1::detail {

/// A range of the trainer's memory: the i-th tensor's parameters, gradients or masters.
struct memory_range {
  const char* first;
  const char* end;
  std::size_t tensor, n;
  const char* what;
  bool written;  ///< by a step
};

/// Throws invalid_input when a range that is written overlaps another one: parameters given twice
/// would be updated twice, gradients among parameters would be overwritten.
[[gnu::cold]] inline void check_overlap(std::vector<memory_range> ranges,
                                        const std::string& where) {
  const auto by_address = [](const void* a, const void* b) {
    const auto first = [](const void* p) { return static_cast<const memory_range*>(p)->first; };
    return first(a) < first(b) ? -1 : first(a) > first(b) ? 1 : 0;
  };
  if (!ranges.empty()) {
    std::qsort(ranges.data(), ranges.size(), sizeof ranges[0], by_address);
  }
  const memory_range *farthest = nullptr, *farthest_written = nullptr;
  for (const memory_range& b : ranges) {
    const memory_range* a = b.written ? farthest : farthest_written;
    if (a != nullptr && b.first < a->end) {
      throw invalid_input(message("optimizer: tensors ", a->tensor, " (", a->n, " ", a->what,
                                  ") and ", b.tensor, " (", b.n, " ", b.what,
                                  ") overlap in memory; list shared parameters once", where));
    }
    if (farthest == nullptr || b.end > farthest->end) farthest = &b;
    if (b.written && (farthest_written == nullptr || b.end > farthest_written->end)) {
      farthest_written = &b;
    }
  }
}

/// Throws invalid_input unless a group's options and a tensor's sizes can be used.
[[gnu::cold]] inline void check_group(std::size_t g, const group_options& o,
                                      const std::string& where) {
  if (!std::isfinite(o.lr_factor) || o.lr_factor < 0) {
    throw invalid_input(message("optimizer: group ", g, " has lr_factor ", o.lr_factor,
                                ", must be finite and not negative", where));
  }
  if (!std::isfinite(o.weight_decay) || o.weight_decay < 0) {
    throw invalid_input(message("optimizer: group ", g, " has weight_decay ", o.weight_decay,
                                ", must be finite and not negative", where));
  }
}
struct tensor_sizes {
  std::size_t group, tensor, params, grads, masters, bytes_each;
};
[[gnu::cold]] inline void check_tensor(const tensor_sizes& s, const std::string& where) {
  if (s.params != s.grads) {
    throw invalid_input(message("optimizer: group ", s.group, " tensor ", s.tensor, " has ",
                                s.params, " params but ", s.grads, " grads", where));
  }
  if (s.masters != 0 && (s.bytes_each != 2 || s.masters != s.params)) {
    throw invalid_input(message("optimizer: group ", s.group, " tensor ", s.tensor, " has ",
                                s.params, " params of ", s.bytes_each, " bytes and ", s.masters,
                                " master parameters; give as many, and only ",
                                "with 2-byte parameters", where));
  }
}

/// Throws invalid_input for memory that is not there, or that no element can start at.
[[gnu::cold]] inline void check_address(const memory_range& r, std::size_t bytes_each,
                                        const std::string& where) {
  const auto address = reinterpret_cast<std::uintptr_t>(r.first);
  if (address != 0 && address % bytes_each == 0) return;
  throw invalid_input(message("optimizer: tensor ", r.tensor, " has ", r.n, " ", r.what,
                              " at address ", address, ", which is ",
                              address == 0 ? "null" : "no multiple of ",
                              address == 0 ? "" : std::to_string(bytes_each), where));
}

/// The tensors of all groups in order, checked.
template <class P, class G>
struct flat_tensors {
  std::vector<std::size_t> sizes;
  std::vector<tensor_entry<P, G>> entries;
  std::vector<std::size_t> group_ends;  ///< by group: the tensors up to its last
  std::vector<group_options> options;   ///< by group

  /// Throws invalid_input; `where` names the rank.
  [[gnu::cold]] flat_tensors(const std::vector<param_group<P, G>>& groups,
                             const std::string& where) {
    std::vector<memory_range> ranges;
    const auto add = [&](const auto& values, const char* what, bool written) {
      if (values.empty()) return;
      with_type(values.data(), [&](const auto* p) {
        const auto* const first = reinterpret_cast<const char*>(p);
        memory_range range{first, first, sizes.size(), values.size(), what, written};
        check_address(range, sizeof *p, where);
        range.end += values.size() * sizeof *p;  // not of a null pointer
        ranges.push_back(range);
      });
    };
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const param_group<P, G>& group = groups[g];
      check_group(g, group.options(), where);
      options.push_back(group.options());
      for (std::size_t t = 0; t < group.tensors.size(); ++t) {
        const tensor<P, G>& x = group.tensors[t];
        tensor_sizes n{g, t, x.params.size(), x.grads.size(), x.master.size(), 0};
        with_type(x.params.data(), [&](const auto* p) { n.bytes_each = sizeof *p; });
        check_tensor(n, where);
        add(x.params, "params", true);
        add(x.master, "masters", true);
        const bool is_scratch = !std::is_const_v<G> && !std::is_same_v<G, any_element>;
        add(x.grads, "grads", is_scratch);
        sizes.push_back(x.params.size());
        entries.push_back({x.params.data(), x.grads.data(), group.lr_factor, group.weight_decay,
                           x.master.empty() ? nullptr : x.master.data(), false});
      }
      group_ends.push_back(sizes.size());
    }
    check_overlap(std::move(ranges), where);
  }
};

/// The groups that these are of.
template <class P, class G>
[[nodiscard, gnu::cold]] std::vector<param_group<P, G>> groups_of(const flat_tensors<P, G>& flat) {
  std::vector<param_group<P, G>> groups;
  std::size_t t = 0;
  for (std::size_t g = 0; g < flat.group_ends.size(); ++g) {
    const group_options& o = flat.options[g];
    param_group<P, G> group{{}, o.lr_factor, o.weight_decay, o.own, o.rests};
    for (; t < flat.group_ends[g]; ++t) {
      const tensor_entry<P, G>& x = flat.entries[t];
      const std::size_t n = flat.sizes[t];
      group.tensors.push_back({{x.params, n},
                               {x.grads, n},
                               {x.master, x.master != nullptr ? n : 0}});
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace onebit::inline v0_1::detail
