// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <onebit/concepts/moments.hpp>
#include <onebit/concepts/plan.hpp>
#include <onebit/core/archive.hpp>
#include <onebit/core/element_types.hpp>
#include <onebit/core/error.hpp>
#include <onebit/kernel/context.hpp>
#include <onebit/kernel/moments.hpp>
#include <onebit/kernel/param_group.hpp>
#include <onebit/kernel/scalars.hpp>
#include <onebit/transport/communicator.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/// The trainer's tensors in one order: checks of their memory, and the table of their options,
/// which may change between steps.
namespace onebit { inline namespace v0_3 { namespace detail {

/// End of an error message, which says where the error is: a text, or the one that a communicator
/// has, which is made only when there is an error. Refers to what it was made from.
class error_place {
 public:
  error_place() = default;
  error_place(const std::string& text) : text_(&text) {}
  error_place(const communicator& comm) : comm_(&comm) {}
  [[nodiscard, gnu::cold]] std::string operator()() const {
    if (comm_ != nullptr) return comm_->where();
    return text_ != nullptr ? *text_ : std::string();
  }

 private:
  const std::string* text_ = nullptr;
  const communicator* comm_ = nullptr;
};

/// Address range of the parameters, gradients or masters of one tensor.
struct memory_range {
  const char* first;
  const char* end;
  std::size_t tensor, n;
  const char* what;
  bool written;  ///< a step writes to it
};

/// Throws invalid_input if a range that is written overlaps another one: parameters given twice
/// would be updated twice, and gradients among parameters would be overwritten. `who` checks.
[[gnu::cold]] inline void check_overlap(std::vector<memory_range> ranges, const char* who,
                                        error_place where) {
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
      throw invalid_input(error_text(who, ": tensors ", a->tensor, " (", a->n, " ", a->what,
                                     ") and ", b.tensor, " (", b.n, " ", b.what,
                                     ") overlap in memory; list shared parameters once", where()));
    }
    if (farthest == nullptr || b.end > farthest->end) farthest = &b;
    if (b.written && (farthest_written == nullptr || b.end > farthest_written->end)) {
      farthest_written = &b;
    }
  }
}

/// Returns the address and the type of the elements behind a pointer.
template <class Pointer>
[[nodiscard]] std::pair<const void*, element_type> place_of(const Pointer& pointer) {
  return with_type(pointer, [](const auto* p) {
    return std::pair<const void*, element_type>(p, type_of<std::remove_cvref_t<decltype(*p)>>);
  });
}

/// Throws invalid_input unless tensor t of group g can be rounded stochastically: bf16, no masters.
[[gnu::cold]] inline void check_rounding(std::size_t g, std::size_t t, element_type type,
                                         bool has_master, error_place where) {
  if (type == element_type::of_bf16 && !has_master) return;
  throw invalid_input(error_text(
      "optimizer: group ", g,
      " has stochastic_rounding, which is for bf16 without masters; its tensor ", t, " is ",
      type == element_type::of_bf16   ? "bf16 with masters"
      : type == element_type::of_fp16 ? "fp16"
                                      : "float",
      ": remove the option, or put the tensor into a group without it", where()));
}

/// Throws invalid_input for a null or misaligned address, and for more elements than memory can
/// hold, as when a negative number was converted to a size. `who` checks.
[[gnu::cold]] inline void check_range(const memory_range& r, std::size_t bytes_each,
                                      const char* who, error_place where) {
  const auto address = reinterpret_cast<std::uintptr_t>(r.first);
  const auto refuse = [&](text_part why, text_part what) {
    throw invalid_input(error_text(who, ": tensor ", r.tensor, " has ", r.n, " ", r.what,
                                   " at address ", address, ", ", why, what, where()));
  };
  if (address == 0) refuse("which is null", "");
  if (address % bytes_each != 0) refuse("which is no multiple of ", bytes_each);
  const std::uintptr_t most = PTRDIFF_MAX, left = UINTPTR_MAX - address;
  if (r.n > (most < left ? most : left) / bytes_each) {
    refuse("more than memory can hold; was a negative number converted to a size?", "");
  }
}

/// Tensors of all groups in order, checked.
template <class P, class G>
struct flat_tensors {
  std::vector<std::size_t> sizes;
  std::vector<tensor_entry<P, G>> entries;
  std::vector<std::size_t> group_ends;  ///< by group: index after its last tensor
  std::vector<group_options> options;   ///< by group

  /// Lists and checks the tensors. Throws invalid_input; `where` names the rank in the message.
  [[gnu::cold]] flat_tensors(const std::vector<param_group<P, G>>& groups, error_place where) {
    std::vector<memory_range> ranges;
    const auto add = [&](const auto& values, const char* what, bool written) {
      if (values.empty()) return;
      with_type(values.data(), [&](const auto* p) {
        const auto* const first = reinterpret_cast<const char*>(p);
        memory_range range{first, first, sizes.size(), values.size(), what, written};
        check_range(range, sizeof *p, "optimizer", where);
        range.end += values.size() * sizeof *p;
        ranges.push_back(range);
      });
    };
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const param_group<P, G>& group = groups[g];
      options.push_back(group.options());
      for (std::size_t t = 0; t < group.tensors.size(); ++t) {
        const tensor<P, G>& x = group.tensors[t];
        const std::size_t n = x.params.size(), n_masters = x.master.size();
        const auto refuse_if = [&](bool wrong, std::initializer_list<text_part> what) {
          if (wrong)
            throw invalid_input(error_text("optimizer: group ", g, " tensor ", t, " has ", n,
                                           " params ", join(what), where()));
        };
        refuse_if(n != x.grads.size(), {"but ", x.grads.size(), " grads"});
        const std::size_t bytes_each =
            with_type(x.params.data(), [](const auto* p) { return sizeof *p; });
        refuse_if(n_masters != 0 && (bytes_each != 2 || n_masters != n),
                  {"of ", bytes_each, " bytes and ", n_masters,
                   " master parameters; give as many, and only with 2-byte parameters"});
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
    check_overlap(std::move(ranges), "optimizer", where);
  }
};

/// Returns the groups that `flat` was made from.
template <class P, class G>
[[nodiscard, gnu::cold]] std::vector<param_group<P, G>> groups_of(const flat_tensors<P, G>& flat) {
  std::vector<param_group<P, G>> groups;
  std::size_t t = 0;
  for (std::size_t g = 0; g < flat.group_ends.size(); ++g) {
    const group_options& o = flat.options[g];
    param_group<P, G> group{{}, o.lr_factor, o.weight_decay, o.own, o.rests, o.stochastic_rounding};
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

/// Options of a group in a checkpoint. Has no padding: part of the format.
struct saved_options {
  double beta1, beta2, eps;  ///< NaN: the value of the rule
  float lr_factor, weight_decay;
  std::uint32_t rests, stochastic_rounding;

  [[nodiscard, gnu::cold]] static saved_options of(const group_options& o) {
    const double none = std::numeric_limits<double>::quiet_NaN();
    return {o.own.beta1.value_or(none),
            o.own.beta2.value_or(none),
            o.own.eps.value_or(none),
            o.lr_factor,
            o.weight_decay,
            o.rests ? 1U : 0U,
            o.stochastic_rounding ? 1U : 0U};
  }
  [[nodiscard, gnu::cold]] group_options options() const {
    const auto own = [](double x) { return std::isnan(x) ? std::nullopt : std::optional(x); };
    return {lr_factor,
            weight_decay,
            {own(beta1), own(beta2), own(eps)},
            rests != 0,
            stochastic_rounding != 0};
  }
};

/// All tensors with the options of their groups: on the host, and in the memory of the backend.
/// Changes on the host are copied to the backend before the next step.
template <class B, class P, class G>
struct tensor_table : detail::flat_tensors<P, G> {
  using flat = detail::flat_tensors<P, G>;

  tensor_table(flat&& tensors, B& backend)
      : flat(std::move(tensors)),
        table(to_buffer(backend, flat::entries)),
        host_options(flat::sizes.size()),
        given(to_buffer(backend, host_options)),
        scalars(to_buffer(backend, std::vector<tensor_scalars>(host_options.size()))),
        resting(host_options.size(), 0) {}

  [[nodiscard]] std::size_t size() const { return host_options.size(); }
  /// Number of calls for kernels that run by tensor and do more in call 0: at least 1.
  [[nodiscard]] std::size_t launches() const { return size() > 0 ? size() : 1; }

  /// Sets the options of a group from the next step on; `rule` has the default betas and eps.
  /// Throws invalid_input.
  template <class R>
  [[gnu::cold]] void set_group(std::size_t g, const group_options& o, const R& rule,
                               detail::error_place where) {
    const moments of = checked_options(g, o, rule, where);
    for (std::size_t t = first_of(g); t < flat::group_ends[g]; ++t) {
      flat::entries[t].lr_factor = o.lr_factor;
      flat::entries[t].weight_decay = o.weight_decay;
      flat::entries[t].stochastic_rounding = o.stochastic_rounding;
      host_options[t].of = of;
    }
    flat::options[g] = o;
    changed = true;
  }
  /// Sets the rates of a group; its other options stay.
  template <class R>
  [[gnu::cold]] void set_group(std::size_t g, float lr_factor, float weight_decay, const R& rule,
                               detail::error_place where) {
    group_options o = g < flat::options.size() ? flat::options[g] : group_options{};
    o.lr_factor = lr_factor;
    o.weight_decay = weight_decay;
    set_group(g, o, rule, where);
  }
  /// Marks a tensor as without a gradient in the next step.
  [[gnu::cold]] void rest(std::size_t tensor, detail::error_place where) {
    if (tensor >= size()) {
      throw invalid_input(
          detail::error_text("optimizer: rest(", tensor, ") of ", size(), " tensors", where()));
    }
    resting[tensor] = 1;
  }
  /// Prepares a step: copies changes to the backend, and clears the marks of `rest`.
  [[gnu::cold]] void take_options(B& backend) {
    for (std::size_t g = 0; g < flat::options.size(); ++g) {
      for (std::size_t t = first_of(g); t < flat::group_ends[g]; ++t) {
        const bool rests = flat::options[g].rests || resting[t] != 0;
        changed = changed || rests != flat::entries[t].rests;
        flat::entries[t].rests = rests;
        host_options[t].rests = rests ? 1 : 0;
        resting[t] = 0;
      }
    }
    copy_changes(backend);
  }
  /// Copies changes to the backend: for kernels outside of a step.
  [[gnu::cold]] void copy_changes(B& backend) {
    if (!changed) return;
    backend.copy_in(table.data(), flat::entries.data(), table.size());
    backend.copy_in(given.data(), host_options.data(), given.size());
    backend.launch(given.size(), detail::set_options_kernel{given.data(), scalars.data()});
    changed = false;
  }
  /// Arguments of the kernels that begin and end a step: all moments, and their updates in it.
  template <class R>
  [[nodiscard]] detail::moments_in_step moments_of(const R& rule, const step_plan& plan) {
    return {given.data(), scalars.data(), static_cast<std::uint32_t>(size()), rule.own_moments(),
            rule.updated(plan)};
  }
  [[nodiscard]] float largest_lr_factor() const {
    float most = 0;
    for (const auto& t : flat::entries) most = t.lr_factor > most ? t.lr_factor : most;
    return most;
  }
  /// Calls add(x) for each number that must be equal on all ranks in a step.
  template <class F>
  [[gnu::cold]] void visit_agreed_numbers(const F& add) const {
    for (std::size_t g = 0; g < flat::options.size(); ++g) {
      const bool empty = first_of(g) == flat::group_ends[g];
      const moments of = empty ? moments{} : host_options[first_of(g)].of;
      add(empty ? 0.0F : flat::options[g].lr_factor);
      add(empty ? 0.0F : flat::options[g].weight_decay);
      add(!empty && flat::options[g].stochastic_rounding ? 1 : 0);
      add(of.beta1);
      add(of.beta2);
      add(of.eps);
    }
    for (const tensor_options& t : host_options) add(t.rests);
  }
  /// Name of the i-th number of `visit_agreed_numbers`.
  [[nodiscard, gnu::cold]] std::string agreed_number_name(std::size_t i) const {
    constexpr const char* names[] = {"lr_factor", "weight_decay", "stochastic_rounding",
                                     "beta1",     "beta2",        "eps"};
    constexpr std::size_t n = std::size(names);
    const std::size_t groups = flat::options.size();
    if (i < n * groups) return detail::join({names[i % n], " of group ", i / n});
    i -= n * groups;
    if (i < size()) return detail::join({"whether tensor ", i, " rests"});
    constexpr const char* last[] = {"earlier local steps had another lr, plan or group option",
                                    "start_from was given other moments or another number of steps",
                                    "tensor written by the trainer after a local step"};
    return last[i - size()];
  }
  [[nodiscard]] std::size_t bytes() const {
    return table.bytes() + given.bytes() + scalars.bytes();
  }

  /// Reads or writes the numbers that last. A reader stores the groups' options in `saved`:
  /// `check_saved` checks them, `restore_saved` applies them.
  template <class Archive>
  [[gnu::cold]] void archive(Archive& a, B& backend) {
    if (!Archive::reading) {
      saved.clear();
      for (const group_options& o : flat::options) saved.push_back(saved_options::of(o));
    }
    std::uint64_t n_groups = saved.size();
    a.local(n_groups);
    if (n_groups > size() + flat::options.size() + 4096) {
      throw checkpoint_error(
          detail::error_text("checkpoint: damaged: it has ", n_groups, " groups"));
    }
    a.vector(saved, n_groups);
    std::vector<tensor_scalars> n(size());
    backend.copy_out(n.data(), scalars.data(), n.size());
    for (tensor_scalars& of : n) {
      a.local(of.bias.m);
      a.local(of.bias.v);
      a.local(of.decay_since);
    }
    if (Archive::reading) {
      for (tensor_scalars& of : n) {
        of.m_correction = detail::correction(of.bias.m);
        of.v_correction = detail::correction(of.bias.v);
      }
      auto read = to_buffer(backend, n);
      a.back_up(scalars);
      scalars = std::move(read);
    }
  }
  /// Throws invalid_input or checkpoint_error if the options in `saved` cannot be used.
  template <class R>
  [[gnu::cold]] void check_saved(const R& rule, detail::error_place where) const {
    if (saved.size() != flat::options.size()) {
      throw checkpoint_error(detail::error_text(
          "checkpoint: saved with ", saved.size(), " groups, loaded with ", flat::options.size(),
          "; resume_with::other_options takes those of this optimizer"));
    }
    for (std::size_t g = 0; g < saved.size(); ++g) {
      (void)checked_options(g, saved[g].options(), rule, where);
    }
  }
  /// Sets the options of all groups to those in `saved`.
  template <class R>
  [[gnu::cold]] void restore_saved(const R& rule) {
    for (std::size_t g = 0; g < saved.size(); ++g) set_group(g, saved[g].options(), rule, {});
  }
  /// Sets the biases of moments to those after as many gradients of each tensor.
  [[gnu::cold]] void count_steps(B& backend, const std::vector<std::uint64_t>& gradients) {
    std::vector<tensor_scalars> n(size());
    backend.copy_out(n.data(), scalars.data(), n.size());
    for (std::size_t t = 0; t < n.size(); ++t)
      n[t].bias = detail::bias_after(host_options[t].of, gradients[t]);
    backend.copy_in(scalars.data(), n.data(), n.size());
  }

  buffer_of<B, tensor_entry<P, G>> table;    ///< `entries` in the backend's memory
  std::vector<tensor_options> host_options;  ///< by tensor: betas, eps and rest
  buffer_of<B, tensor_options> given;        ///< `host_options` in the backend's memory
  buffer_of<B, tensor_scalars> scalars;
  std::vector<char> resting;         ///< by tensor: not 0 if it rests in the next step
  std::vector<saved_options> saved;  ///< by group: options in the last checkpoint
  bool changed = true;               ///< the host has changes that the backend has not
  bool built = false;                ///< construction is over: eps may not change

 private:
  /// Checks options, and returns the betas and eps of a group with them. Throws invalid_input.
  template <class R>
  [[nodiscard, gnu::cold]] moments checked_options(std::size_t g, const group_options& o,
                                                   const R& rule, detail::error_place where) const {
    if (g >= flat::group_ends.size()) {
      throw invalid_input(
          detail::error_text("optimizer: group ", g, " of ", flat::group_ends.size(), where()));
    }
    const auto name = [&] { return detail::error_text("optimizer: group ", g); };
    const auto require = [&](const char* what, float x) {
      if (std::isfinite(x) && x >= 0) return;
      throw invalid_input(
          name() + detail::join({" has ", what, " ", x, ", must be finite and not negative"}) +
          where());
    };
    require("lr_factor", o.lr_factor);
    require("weight_decay", o.weight_decay);
    moments of = rule.own_moments();
    if (o.own.any() && !R::has_moments) {
      throw invalid_input(name() + " has betas or eps of its own, which this rule does not know" +
                          where());
    }
    of = {o.own.beta1.value_or(of.beta1), o.own.beta2.value_or(of.beta2),
          o.own.eps.value_or(of.eps)};
    if (o.own.any()) {
      try {
        validate(detail::join({"optimizer: group ", g}).c_str(), of);
      } catch (const invalid_input& e) {
        throw invalid_input(e.what() + where());
      }
    }
    const std::size_t first = first_of(g), end = flat::group_ends[g];
    for (std::size_t t = first; t < end && o.stochastic_rounding; ++t) {
      const auto& x = flat::entries[t];
      detail::check_rounding(g, t - first, detail::place_of(x.params).second, x.master != nullptr,
                             where);
    }
    if (built && first < end && of.eps != host_options[first].of.eps) {
      throw invalid_input(name() +
                          " gets another eps, which is fixed at construction (a frozen v " +
                          "contains it); set it in the param_group that you build with" + where());
    }
    return of;
  }
  [[nodiscard]] std::size_t first_of(std::size_t group) const {
    return group > 0 ? flat::group_ends[group - 1] : 0;
  }
};

}  // namespace detail

}}  // namespace onebit

namespace onebit { inline namespace v0_3 { namespace detail {

/// Describes the first gradient that is not finite or reaches gradient_limit, or returns an empty
/// text. Reads all gradients on the host (means, if a step has overwritten the gradients).
template <class Table, class B>
[[nodiscard, gnu::cold]] std::string first_bad_gradient(Table& tensors, B& backend,
                                                        float inverse_loss_scale) {
  std::string found;
  for (std::size_t t = 0; t < tensors.size() && found.empty(); ++t) {
    if (tensors.host_options[t].rests != 0) continue;
    std::size_t first = 0;
    const auto look = [&](const auto* here, std::size_t n) {
      for (std::size_t i = 0; i < n && found.empty(); ++i) {
        const float g = to_float(here[i]);
        if (std::fabs(g * inverse_loss_scale) < gradient_limit) continue;
        found = join({"the gradient of tensor ", t, ", element ", first + i, ", is ", g,
                      " (inverse loss scale ", inverse_loss_scale, ")"});
        if (std::isfinite(g)) found += join({"; their product must be below ", gradient_limit});
      }
      first += n;
    };
    with_type(tensors.entries[t].grads,
              [&](const auto* p) { read_on_host(backend, p, tensors.sizes[t], look); });
  }
  return found;
}

/// Points `tensors`, a tensor_table, to the memory in `groups` from the next step on. Numbers of
/// groups, of tensors and of their elements must be unchanged; options of the groups are ignored.
/// Returns the number of tensors that have moved: 0 costs a comparison of pointers. Throws
/// invalid_input; then nothing has changed.
template <class Table, class P, class G>
[[gnu::cold]] std::size_t rebind(Table& tensors, const std::vector<param_group<P, G>>& groups,
                                 error_place where) {
  if (groups.size() != tensors.group_ends.size()) {
    throw invalid_input(error_text("rebind: ", groups.size(), " groups, but the optimizer has ",
                                   tensors.group_ends.size(), where()));
  }
  std::size_t n_moved = 0, t = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::size_t n_tensors = tensors.group_ends[g] - t;
    if (groups[g].tensors.size() != n_tensors) {
      throw invalid_input(error_text("rebind: group ", g, " has ", groups[g].tensors.size(),
                                     " tensors, but had ", n_tensors, where()));
    }
    for (const tensor<P, G>& x : groups[g].tensors) {
      const tensor_entry<P, G>& was = tensors.entries[t];
      const std::size_t n_masters = was.master != nullptr ? tensors.sizes[t] : 0;
      if (x.params.size() != tensors.sizes[t] || x.master.size() != n_masters) {
        throw invalid_input(error_text("rebind: tensor ", t, " has ", x.params.size(),
                                       " params and ", x.master.size(), " masters, but had ",
                                       tensors.sizes[t], " and ", n_masters, where()));
      }
      const auto params = place_of(x.params.data()), grads = place_of(x.grads.data());
      const auto old_params = place_of(was.params), old_grads = place_of(was.grads);
      if (params.second != old_params.second || grads.second != old_grads.second) {
        throw invalid_input(
            error_text("rebind: tensor ", t, " has other types of elements than it had", where()));
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

}}}  // namespace onebit::detail
