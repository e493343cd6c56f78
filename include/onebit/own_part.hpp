// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/collective/dense.hpp>
#include <onebit/collective/reduce_scatter.hpp>
#include <onebit/error.hpp>
#include <onebit/flat_tensors.hpp>
#include <onebit/now.hpp>
#include <onebit/tensor.hpp>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/// What a rank owns of parameters that are shared out.
namespace onebit::inline v0_1 {

/// How a sharded optimizer shares out.
struct sharding {
  dense_sum sum = dense_sum::automatic;  ///< in what gradients travel; not `transport`
  /// Elements that travel at once, about: two times as many have their messages in memory.
  std::size_t bucket_elements = default_bucket_elements;
  /// The part that a rank owns is also held in float, which steps act on: for 2-byte parameters. A
  /// trainer that changes parameters between steps then changes nothing that lasts.
  bool masters = false;
  /// In place of `masters`, of bf16 parameters: in 2 bytes what these lack of floats, which steps
  /// act on as exactly; what a trainer writes to parameters counts. See tensor::master_low.
  bool master_low = false;
};

namespace detail {

/// The masters that start from parameters.
template <class P>
struct fill_masters_kernel {
  const owned_piece* pieces;
  const P* const* params;
  float* masters;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const owned_piece& p = pieces[i];
    const auto n = static_cast<std::uint32_t>(p.n);
    for (std::uint32_t k = 0; k * 32 < n; ++k) {
      float* const to = masters + p.word * word_elements;
      store_elements<L>(to, k, n, load_elements<L>(params[i], k, n));
    }
  }
};

/// Throws invalid_input when these tensors cannot be shared out so.
template <class P, class G>
[[gnu::cold]] void validate(const sharding& how, const std::vector<param_group<P, G>>& groups,
                            const std::string& where) {
  if (by_transport(how.sum)) {
    throw invalid_input(message("sharded: sums by the transport are not to be had: ",
                                "give rank_order, in_bf16 or in_int8", where));
  }
  if (how.master_low && !std::is_same_v<P, bf16>) {
    throw invalid_input(
        message("sharded: low halves of masters are for parameters in bf16, not in ",
                sizeof(P) == 2 ? "fp16" : "float", where));
  }
  if (how.master_low && how.masters) {
    throw invalid_input(
        message("sharded: masters and master_low are both asked for; give one", where));
  }
  if (how.masters && sizeof(P) != 2) {
    throw invalid_input(
        message("sharded: masters are for parameters of 2 bytes, not of ", sizeof(P), where));
  }
  for (const auto& g : groups) {
    for (const auto& t : g.tensors) {
      if (t.master.empty() && t.master_low.empty()) continue;
      throw invalid_input(message("sharded: a tensor of ", t.params.size(), " has masters; ",
                                  "sharding::masters or master_low holds a W-th of them on each ",
                                  "rank instead", where));
    }
  }
}

/// What parameters lack of the floats that steps act on, or all of these: words that a rank owns.
/// Both empty: there are none.
template <class B>
struct own_masters {
  buffer_of<B, float> floats{};
  buffer_of<B, low_half> low{};

  own_masters(B& backend, std::size_t n_words, const sharding& how)
      : floats(backend.template make_buffer<float>(how.masters ? n_words * word_elements : 0)),
        low(backend.template make_buffer<low_half>(how.master_low ? n_words * word_elements : 0)) {}
  [[nodiscard]] std::size_t bytes() const { return floats.bytes() + low.bytes(); }
  template <class Archive>
  [[gnu::cold]] void archive(Archive& a, B& backend) {
    if (low.size() > 0) return a.buffer(low, backend);
    a.buffer(floats, backend);
  }
};

/// The pieces of tensors that a rank owns, as tensors of an optimizer of its own: parameters where
/// the trainer has them, gradients where the means are put, masters.
template <class B, class P, class G>
struct own_part {
  using exchange_type = reduce_scatter<B, P, G>;
  using groups_type = std::vector<param_group<P, float>>;
  static constexpr bool in_place = exchange_type::in_place;

  /// Pieces among so many words, with masters of 0.
  own_part(B& backend, std::vector<owned_piece> owned, std::size_t n_words, const sharding& how)
      : pieces(std::move(owned)),
        means(backend.template make_buffer<float>(in_place ? 0 : n_words * word_elements)),
        masters(backend, n_words, how) {}
  own_part(exchange_type& exchange, const flat_tensors<P, G>& tensors, const sharding& how)
      : own_part(exchange.backend(), exchange.pieces(), exchange.own_words(), how) {
    if (!how.masters) return;  // low halves start from 0
    std::vector<const P*> params;
    for (const owned_piece& p : pieces) {
      params.push_back(tensors.entries[p.tensor].params + p.first);
    }
    B& backend = exchange.backend();
    const auto at = to_buffer(backend, pieces);
    const auto from = to_buffer(backend, params);
    float* const to = masters.floats.data();
    backend.launch(pieces.size(), fill_masters_kernel<P>{at.data(), from.data(), to});
    std::vector<float> last(1);
    backend.copy_out(last.data(), to, masters.floats.size() > 0 ? 1 : 0);  // the tables go
  }

  /// In the groups that they are of.
  [[nodiscard, gnu::cold]] groups_type groups(const flat_tensors<P, G>& tensors) {
    groups_type all;
    std::size_t first = 0;
    for (std::size_t g = 0; g < tensors.group_ends.size(); ++g) {
      const group_options& o = tensors.options[g];
      param_group<P, float> group{{},    o.lr_factor, o.weight_decay,
                                  o.own, o.rests,     o.tensor_parallel};
      for (const owned_piece& p : pieces) {
        if (p.tensor < first || p.tensor >= tensors.group_ends[g]) continue;
        const auto of = [&](auto& b) {
          return std::span(b.size() > 0 ? b.data() + p.word * word_elements : nullptr,
                           b.size() > 0 ? p.n : 0);
        };
        group.tensors.push_back({{tensors.entries[p.tensor].params + p.first, p.n},
                                 {mean_of(p, tensors), p.n},
                                 of(masters.floats),
                                 of(masters.low)});
      }
      first = tensors.group_ends[g];
      all.push_back(std::move(group));
    }
    return all;
  }
  /// Calls f(place, tensor) for each of them: its place in those groups, and what it is a piece of.
  template <class F>
  void for_each(const flat_tensors<P, G>& tensors, const F& f) const {
    std::size_t place = 0, first = 0;
    for (const std::size_t end : tensors.group_ends) {
      for (const owned_piece& p : pieces) {
        if (p.tensor >= first && p.tensor < end) f(place++, p.tensor);
      }
      first = end;
    }
  }
  /// Where the mean of a piece is put.
  [[nodiscard]] float* mean_of(const owned_piece& p, const flat_tensors<P, G>& tensors) {
    if constexpr (in_place) {
      return tensors.entries[p.tensor].grads + p.first;
    } else {
      return means.data() + p.word * word_elements;
    }
  }

  std::vector<owned_piece> pieces;
  buffer_of<B, float> means;  ///< where gradients cannot hold them
  own_masters<B> masters;
};

}  // namespace detail
}  // namespace onebit::inline v0_1
