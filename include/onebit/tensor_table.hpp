// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/concepts.hpp>
#include <onebit/digest.hpp>
#include <onebit/error.hpp>
#include <onebit/flat_tensors.hpp>
#include <onebit/now.hpp>
#include <onebit/numbers.hpp>
#include <onebit/tensor.hpp>
#include <string>
#include <utility>
#include <vector>

/// The trainer's tensors, and what it says of them between steps.
namespace onebit::inline v0_1 {

/// All tensors with the options of their groups, on the host, and what kernels see of them. What is
/// said of a tensor is brought to the backend before the next step, if it has changed.
template <class B, class P, class G>
struct tensor_table : detail::flat_tensors<P, G> {
  using flat = detail::flat_tensors<P, G>;

  tensor_table(flat&& tensors, B& backend)
      : flat(std::move(tensors)),
        table(to_buffer(backend, flat::entries)),
        terms(flat::sizes.size()),
        given(to_buffer(backend, terms)),
        numbers(to_buffer(backend, std::vector<tensor_numbers>(terms.size()))),
        resting(terms.size(), 0) {}

  [[nodiscard]] std::size_t size() const { return terms.size(); }
  /// For launches by tensor whose first call does more.
  [[nodiscard]] std::size_t launches() const { return size() > 0 ? size() : 1; }

  /// The options of a group, from the next step on; `rule` says which moments it has. Throws
  /// invalid_input.
  template <class R>
  [[gnu::cold]] void set_group(std::size_t g, const group_options& o, const R& rule,
                               const std::string& where) {
    if (g >= flat::group_ends.size()) {
      throw invalid_input(
          detail::message("optimizer: group ", g, " of ", flat::group_ends.size(), where));
    }
    detail::check_group(g, o, where);
    moments of = rule.own_moments();
    const std::string name = detail::message("optimizer: group ", g);
    if (o.own.any() && !R::has_moments) {
      throw invalid_input(name + " has betas or eps of its own, which this rule does not know" +
                          where);
    }
    of = {o.own.beta1.value_or(of.beta1), o.own.beta2.value_or(of.beta2),
          o.own.eps.value_or(of.eps)};
    if (o.own.any()) validate(name.c_str(), of, where);
    const std::size_t first = first_of(g), end = flat::group_ends[g];
    if (built && first < end && of.eps != terms[first].of.eps) {
      throw invalid_input(name +
                          " gets another eps; a frozen v holds it, and checkpoints compare " +
                          "it: give it where the optimizer is built" + where);
    }
    for (std::size_t t = first; t < end; ++t) {
      flat::entries[t].lr_factor = o.lr_factor;
      flat::entries[t].weight_decay = o.weight_decay;
      terms[t].of = of;
    }
    flat::options[g] = o;
    changed = true;
  }
  /// Other rates; what else the group has of its own stays.
  template <class R>
  [[gnu::cold]] void set_group(std::size_t g, float lr_factor, float weight_decay, const R& rule,
                               const std::string& where) {
    group_options o = g < flat::options.size() ? flat::options[g] : group_options{};
    o.lr_factor = lr_factor;
    o.weight_decay = weight_decay;
    set_group(g, o, rule, where);
  }
  /// A tensor has no gradient in the next step.
  [[gnu::cold]] void rest(std::size_t tensor, const std::string& where) {
    if (tensor >= size()) {
      throw invalid_input(
          detail::message("optimizer: rest(", tensor, ") of ", size(), " tensors", where));
    }
    resting[tensor] = 1;
  }
  /// Before a step: what was said goes to the backend, and what was said of one step is over.
  [[gnu::cold]] void take_terms(B& backend) {
    for (std::size_t g = 0; g < flat::options.size(); ++g) {
      for (std::size_t t = first_of(g); t < flat::group_ends[g]; ++t) {
        const bool rests = flat::options[g].rests || resting[t] != 0;
        changed = changed || rests != flat::entries[t].rests;
        flat::entries[t].rests = rests;
        terms[t].rests = rests ? 1 : 0;
        resting[t] = 0;
      }
    }
    if (!changed) return;
    backend.copy_in(table.data(), flat::entries.data(), table.size());
    backend.copy_in(given.data(), terms.data(), given.size());
    backend.launch(given.size(), detail::set_terms_kernel{given.data(), numbers.data()});
    changed = false;
  }
  /// For the kernels that begin and end a step.
  template <class R>
  [[nodiscard]] detail::moments_in_step moments_of(const R& rule, const step_plan& plan) {
    return {given.data(), numbers.data(), static_cast<std::uint32_t>(size()), rule.own_moments(),
            rule.seen(plan)};
  }
  [[nodiscard]] float largest_lr_factor() const {
    float most = 0;
    for (const auto& t : flat::entries) most = t.lr_factor > most ? t.lr_factor : most;
    return most;
  }
  /// What ranks must be told alike for a step.
  [[gnu::cold]] void add_to(digest& d) const {
    for (std::size_t g = 0; g < flat::options.size(); ++g) {
      if (first_of(g) == flat::group_ends[g]) continue;
      d.add(flat::options[g].lr_factor);
      d.add(flat::options[g].weight_decay);
      const moments& of = terms[first_of(g)].of;
      d.add(of.beta1);
      d.add(of.beta2);
      d.add(of.eps);
    }
    for (std::size_t t = 0; t < size(); ++t) {
      if (terms[t].rests != 0) d.add(t);
    }
  }
  [[nodiscard]] std::size_t bytes() const {
    return table.bytes() + given.bytes() + numbers.bytes();
  }

  /// Numbers that last.
  template <class Archive>
  [[gnu::cold]] void archive(Archive& a, B& backend) {
    std::vector<tensor_numbers> n(size());
    backend.copy_out(n.data(), numbers.data(), n.size());
    for (tensor_numbers& of : n) {
      a.local(of.bias.m);
      a.local(of.bias.v);
    }
    if constexpr (Archive::reading) {
      for (tensor_numbers& of : n) {
        of.m_correction = detail::correction(of.bias.m);
        of.v_correction = detail::correction(of.bias.v);
      }
      auto read = to_buffer(backend, n);
      a.put_aside(numbers);
      numbers = std::move(read);
    }
  }
  /// As after so many steps, in none of which a tensor rested.
  [[gnu::cold]] void count_steps(B& backend, std::uint64_t steps) {
    std::vector<tensor_numbers> n(size());
    backend.copy_out(n.data(), numbers.data(), n.size());
    for (std::size_t t = 0; t < n.size(); ++t) n[t].bias = detail::bias_after(terms[t].of, steps);
    backend.copy_in(numbers.data(), n.data(), n.size());
  }

  buffer_of<B, tensor_entry<P, G>> table;  ///< `entries`, where kernels see them
  std::vector<tensor_terms> terms;         ///< by tensor: what the host says of it
  buffer_of<B, tensor_terms> given;        ///< the same, where kernels see it
  buffer_of<B, tensor_numbers> numbers;
  std::vector<char> resting;  ///< by tensor: in the next step
  bool changed = true;        ///< since the backend saw it
  bool built = false;         ///< from then on eps stays as it is

 private:
  [[nodiscard]] std::size_t first_of(std::size_t group) const {
    return group > 0 ? flat::group_ends[group - 1] : 0;
  }
};

}  // namespace onebit::inline v0_1
