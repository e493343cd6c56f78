// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <onebit/concepts.hpp>
#include <onebit/error.hpp>
#include <onebit/layout.hpp>
#include <onebit/memory_view.hpp>
#include <onebit/now.hpp>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/// The trainer's memory: what it hands over, and how kernels read and write it.
namespace onebit::inline v0_1 {

/// One tensor of the trainer: views of its memory, never a copy.
///
/// The gradients are consumed: a compressed step may use their memory as scratch, so what they hold
/// afterwards is unspecified. With `G = const float`, 2-byte types and any_element they are only
/// read: 1-bit Adam and 1-bit LAMB then make their message twice instead, which takes no memory;
/// 0/1 Adam, Lion with local steps and `hierarchical` pay 4 bytes per parameter (the first two
/// with residual_in<int8, ...> 1.03).
///
/// `P` and `G` are float, bf16 or fp16 (element.hpp), or both any_element: any of them, in each
/// tensor another. With 2-byte parameters `master` may hold them
/// in float: steps then act on it, and `params` receives its rounding. Without, each step rounds.
template <class P = float, class G = P>
struct tensor {
  typename detail::view_of_elements<P>::type params;  ///< changed by each step
  typename detail::view_of_elements<G>::type grads;   ///< of this rank, read by each step
  memory_view<float> master{};                        ///< empty, or params in float
};

/// What the tensors of a group share. The effective learning rate is `lr * lr_factor`; the decay is
/// decoupled (x -= lr * weight_decay * x), in every phase. Betas and eps are the rule's, where the
/// group has none of its own. A group that rests stands still: see optimizer::rest.
struct group_options {
  float lr_factor = 1.0F;     ///< 0: parameters stay, m and v go on
  float weight_decay = 0.0F;  ///< decoupled
  group_moments own{};        ///< betas and eps, where they are not the rule's
  bool rests = false;         ///< stands still
  /// Each tensor is this rank's part of a layer that is cut over the ranks of
  /// optimizer::join_shards (Megatron's tensor_model_parallel): those rules that look at whole
  /// layers (LAMB, 1-bit LAMB) take the norms of the whole. The same tensors in the same order on
  /// all of them; replicated ones (norms, most biases) go to another group. Costs a pass over these
  /// tensors, 16 bytes an element (in compressed steps 12), and 24 bytes a tensor in one all_gather
  /// over the shards per step. Alone, until join_shards, and to rules that step element by element:
  /// nothing.
  bool tensor_parallel = false;
  friend bool operator==(const group_options&, const group_options&) = default;
};

/// Tensors that share hyperparameters: see group_options.
template <class P = float, class G = P>
struct param_group {
  std::vector<tensor<P, G>> tensors{};  ///< in an order that is the same on all ranks
  /// @{
  /// See group_options.
  float lr_factor = 1.0F;
  float weight_decay = 0.0F;
  group_moments own{};
  bool rests = false;
  bool tensor_parallel = false;
  /// @}

  /// All but the tensors.
  [[nodiscard]] group_options options() const {
    return {lr_factor, weight_decay, own, rests, tensor_parallel};
  }
};

/// What a kernel knows of a tensor: raw pointers and its group's options.
template <class P, class G>
struct tensor_entry {
  pointer_to<P> params{};
  pointer_to<G> grads{};
  float lr_factor = 1.0F;
  float weight_decay = 0.0F;
  float* master = nullptr;  ///< of 2-byte parameters, or null
  bool rests = false;       ///< in this step: it has no gradient, its parameters stay
  std::uint32_t shard = 0;  ///< of a layer: its place among those that are, from 1; 0: a layer

  [[nodiscard]] ONEBIT_HD float rate(const step_scalars* now) const {
    return rests ? 0.0F : now->lr * lr_factor;
  }
};

namespace detail {

/// Loads word k of a tile that lies at `first` in the trainer's memory, which ends after n
/// elements.
template <class L, class T>
ONEBIT_HD typename L::value load_elements(const T* first, std::uint32_t k, std::uint32_t n) {
  const std::uint32_t left = L::words > 1 ? 32 : n - 32 * k;  // several words are whole ones
  if constexpr (!std::is_same_v<T, float>) {
    return L::load_as(first + 32 * k, left >= 32 ? 32 : left);
  } else if constexpr (L::words > 1) {
    return L::load(first + 32 * k);
  } else {
    return left >= 32 ? L::load(first + 32 * k) : L::load(first + 32 * k, left);
  }
}

template <class L, class T>
ONEBIT_HD void store_elements(T* first, std::uint32_t k, std::uint32_t n,
                              const typename L::value& v) {
  const std::uint32_t left = L::words > 1 ? 32 : n - 32 * k;
  if constexpr (!std::is_same_v<T, float>) {
    L::store_as(first + 32 * k, v, left >= 32 ? 32 : left);
  } else if constexpr (L::words > 1) {
    L::store(first + 32 * k, v);
  } else if (left >= 32) {
    L::store(first + 32 * k, v);
  } else {
    L::store(first + 32 * k, v, left);
  }
}

template <class L>
ONEBIT_HD typename L::value load_elements(const any_pointer& first, std::uint32_t k,
                                          std::uint32_t n) {
  if (first.type == element_type::of_bf16)
    return load_elements<L>(static_cast<const bf16*>(first.p), k, n);
  if (first.type == element_type::of_fp16)
    return load_elements<L>(static_cast<const fp16*>(first.p), k, n);
  return load_elements<L>(static_cast<const float*>(first.p), k, n);
}
template <class L>
ONEBIT_HD void store_elements(const any_pointer& first, std::uint32_t k, std::uint32_t n,
                              const typename L::value& v) {
  if (first.type == element_type::of_bf16)
    return store_elements<L>(static_cast<bf16*>(first.p), k, n, v);
  if (first.type == element_type::of_fp16)
    return store_elements<L>(static_cast<fp16*>(first.p), k, n, v);
  store_elements<L>(static_cast<float*>(first.p), k, n, v);
}

}  // namespace detail

/// The parameters of a tile: the master copy where there is one, and its rounding.
template <class L, class P>
struct parameters_of {
  pointer_to<P> first;
  float* master;
  std::uint32_t n;

  template <class G>
  ONEBIT_HD parameters_of(const tensor_entry<P, G>& tensor, const tile& t)
      : first(tensor.params + t.offset),
        master(tensor.master == nullptr ? nullptr : tensor.master + t.offset),
        n(t.n) {}

  ONEBIT_HD typename L::value load(std::uint32_t k) const {
    if constexpr (!std::is_same_v<P, float>) {
      if (master != nullptr)
        return detail::load_elements<L>(static_cast<const float*>(master), k, n);
    }
    return detail::load_elements<L>(pointer_to<const P>(first), k, n);
  }
  ONEBIT_HD void store(std::uint32_t k, const typename L::value& v) const {
    if constexpr (!std::is_same_v<P, float>) {
      if (master != nullptr) detail::store_elements<L>(master, k, n, v);
    }
    detail::store_elements<L>(first, k, n, v);
  }
};

/// Gradients of this size and above count as not finite: up to it their squares, and those of what
/// is sent (a thousand times as large, summed over a tile), are finite, and a step that was kept
/// leaves no state that makes later ones overflow. 2.8e14.
inline constexpr float gradient_limit = 0x1p48F;

/// The gradients of a tile, without the loss scale; NaN where they reach gradient_limit; 0, and not
/// read, where the tensor rests.
template <class L, class G>
struct gradients_of {
  pointer_to<const G> first;
  std::uint32_t n;
  float inverse_loss_scale;

  template <class P>
  ONEBIT_HD gradients_of(const tensor_entry<P, G>& tensor, const tile& t, const step_scalars* now)
      : first(tensor.rests ? pointer_to<const G>{} : tensor.grads + t.offset),
        n(t.n),
        inverse_loss_scale(now->inverse_loss_scale) {}

  ONEBIT_HD typename L::value load(std::uint32_t k) const {
    if (first == nullptr) return L::set(0.0F);
    const auto g = L::mul(detail::load_elements<L>(first, k, n), L::set(inverse_loss_scale));
    return L::fma(L::mul(g, L::set(static_cast<float>(0x1p128 / gradient_limit))), L::set(0.0F),
                  g);  // inf 0 is NaN
  }
};

// -- what is checked of it --------------------------------------------------------------------

namespace detail {

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
  bool may_have_masters;
};
[[gnu::cold]] inline void check_tensor(const tensor_sizes& s, const std::string& where) {
  if (s.params != s.grads) {
    throw invalid_input(message("optimizer: group ", s.group, " tensor ", s.tensor, " has ",
                                s.params, " params but ", s.grads, " grads", where));
  }
  if (s.masters != 0 && (!s.may_have_masters || s.masters != s.params)) {
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
  std::uint32_t n_shards = 0;           ///< tensors of tensor_parallel groups

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
        const std::size_t each =
            with_type(x.params.data(), [](const auto* p) { return sizeof *p; });
        check_tensor({g, t, x.params.size(), x.grads.size(), x.master.size(), each, each == 2},
                     where);
        add(x.params, "params", true);
        add(x.master, "masters", true);
        const bool is_scratch = !std::is_const_v<G> && !std::is_same_v<G, any_element>;
        add(x.grads, "grads", is_scratch);
        sizes.push_back(x.params.size());
        entries.push_back({x.params.data(), x.grads.data(), group.lr_factor, group.weight_decay,
                           x.master.empty() ? nullptr : x.master.data(), false,
                           group.tensor_parallel ? ++n_shards : 0});
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
    param_group<P, G> group{{}, o.lr_factor, o.weight_decay, o.own, o.rests, o.tensor_parallel};
    for (; t < flat.group_ends[g]; ++t) {
      const tensor_entry<P, G>& x = flat.entries[t];
      const std::size_t n = flat.sizes[t];
      group.tensors.push_back(
          {{x.params, n}, {x.grads, n}, {x.master, x.master != nullptr ? n : 0}});
    }
    groups.push_back(std::move(group));
  }
  return groups;
}

}  // namespace detail
}  // namespace onebit::inline v0_1
