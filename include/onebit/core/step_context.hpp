// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/core/concepts.hpp>
#include <onebit/core/element_types.hpp>
#include <onebit/core/launch.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/core/param_group.hpp>
#include <onebit/core/step_state.hpp>
#include <type_traits>
#include <utility>

/// What kernels see of a step: the trainer's tensors, the step context that a rule is given, and
/// what an exchange is told.
namespace onebit::inline v0_2 {

/// What a kernel knows of a tensor: raw pointers and its group's options.
template <class P, class G>
struct tensor_entry {
  pointer_to<P> params{};
  pointer_to<G> grads{};
  float lr_factor = 1.0F;
  float weight_decay = 0.0F;
  float* master = nullptr;           ///< of 2-byte parameters, or null
  bool rests = false;                ///< in this step: it has no gradient, its parameters stay
  bool stochastic_rounding = false;  ///< bf16 without master

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
  if (first.type == element_type::of_float)
    return load_elements<L>(static_cast<const float*>(first.p), k, n);
  if (first.type == element_type::of_bf16)
    return load_elements<L>(static_cast<const bf16*>(first.p), k, n);
  return load_elements<L>(static_cast<const fp16*>(first.p), k, n);
}
template <class L>
ONEBIT_HD void store_elements(const any_pointer& first, std::uint32_t k, std::uint32_t n,
                              const typename L::value& v) {
  if (first.type == element_type::of_float)
    return store_elements<L>(static_cast<float*>(first.p), k, n, v);
  if (first.type == element_type::of_bf16)
    return store_elements<L>(static_cast<bf16*>(first.p), k, n, v);
  store_elements<L>(static_cast<fp16*>(first.p), k, n, v);
}

/// A master, where it rounds to its parameter; else that.
template <class L, class T>
ONEBIT_HD typename L::value exact_of(const T*, const typename L::value& master,
                                     const typename L::value& param) {
  return L::template unrounded<std::remove_const_t<T>>(master, param);
}
template <class L>
ONEBIT_HD typename L::value exact_of(const any_pointer& of, const typename L::value& master,
                                     const typename L::value& param) {
  if (of.type == element_type::of_bf16) return L::template unrounded<bf16>(master, param);
  return L::template unrounded<fp16>(master, param);
}

}  // namespace detail

/// The parameters of a tile, or their masters, where these round to them.
template <class L, class P>
struct parameters_of {
  pointer_to<P> first;
  float* master;
  std::uint32_t n;
  bool stochastic;    ///< rounding
  std::uint32_t key;  ///< of its first element, in this step

  /// Without `now` all parameters are rounded to nearest.
  template <class G>
  ONEBIT_HD parameters_of(const tensor_entry<P, G>& tensor, const tile& t,
                          const step_scalars* now = nullptr)
      : first(tensor.params + t.offset),
        master(tensor.master == nullptr ? nullptr : tensor.master + t.offset),
        n(t.n),
        stochastic(tensor.stochastic_rounding && now != nullptr),
        key(stochastic ? mixed(now->number + 1) + static_cast<std::uint32_t>(t.word * 32) : 0) {}

  ONEBIT_HD typename L::value operator()(std::uint32_t k) const { return load(k); }
  ONEBIT_HD typename L::value load(std::uint32_t k) const {
    const pointer_to<const P> at(first);
    if constexpr (!std::is_same_v<P, float>) {
      if (master != nullptr) {
        const auto exact = detail::load_elements<L>(static_cast<const float*>(master), k, n);
        return detail::exact_of<L>(first, exact, detail::load_elements<L>(at, k, n));
      }
    }
    return detail::load_elements<L>(at, k, n);
  }
  ONEBIT_HD void store(std::uint32_t k, const typename L::value& v) const {
    if constexpr (!std::is_same_v<P, float>) {
      if (master != nullptr) detail::store_elements<L>(master, k, n, v);
    }
    if constexpr (std::is_same_v<P, bf16> || std::is_same_v<P, any_element>) {
      if (stochastic) {
        return detail::store_elements<L>(first, k, n, L::stochastic_bf16(v, key + 32 * k));
      }
    }
    detail::store_elements<L>(first, k, n, v);
  }
};

/// Gradients of this size and above count as not finite: up to it their squares, and those of
/// momenta and residuals (a thousand times as large, summed over a tile), are finite, and a step
/// that was kept leaves no state that makes later ones overflow. A gradient over 1e18 times its
/// denominator has no finite direction, and is skipped likewise, unless directions are bounded
/// (direction_units). 2.8e14.
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
    return L::fma(L::mul(g, L::set(0x1p80F)), L::set(0.0F),
                  g);  // at gradient_limit 2^128, inf; inf 0 is NaN
  }
};

/// One bit per element: clear in padding and in elements without variance at the freeze and since.
/// They send and receive 0, have no residual, and count in no scale. Null pointer: all set.
struct active_mask {
  const std::uint32_t* words = nullptr;

  /// The active elements of a word; what is left out turns `check` from 0 to NaN if it is not
  /// finite.
  template <class L>
  ONEBIT_HD typename L::value keep(std::size_t word, const typename L::value& v,
                                   typename one_word<L>::value& check) const {
    using one = one_word<L>;
    if (words == nullptr) return v;
    if (all_of<L>(words + word)) return v;
    for (unsigned j = 0; j < L::words; ++j) {
      check = one::fma(word_of<L>(v, j), one::set(0.0F), check);
    }
    return L::keep(L::load_bits(words + word), v);
  }
  template <class L>
  ONEBIT_HD typename L::value keep(std::size_t word, const typename L::value& v) const {
    if (words == nullptr) return v;
    if (all_of<L>(words + word)) return v;
    return L::keep(L::load_bits(words + word), v);
  }

 private:
  template <class L>
  [[nodiscard]] ONEBIT_HD static bool all_of(const std::uint32_t* p) {
    std::uint32_t common = *p;
    for (unsigned j = 1; j < L::words; ++j) common &= p[j];
    return common == 0xFFFFFFFFU;
  }
};

/// Something that a step replaces: what holds, and what will hold if the step is kept. `keeping` is
/// the only place that knows how: it swaps the two where the host can see what became of the step,
/// and copies, unless the step was called off, where it cannot. Either side may be empty: then
/// there is nothing to keep. T has whole 4-byte words.
template <class B, class T>
struct two_sided {
  buffer_of<B, T> current, next;

  /// Ends the step for this buffer, but for calls that are left to launch.
  [[nodiscard]] calls<detail::unless_skipped<copy_kernel>> keeping(const step_scalars* now) {
    const bool both = current.size() > 0 && next.size() > 0;
    const copy_kernel copy{next.data(), current.data(), current.bytes() / 4};
    const step_scalars* const seen = host_view<B>(now);
    if (seen == nullptr) return {{copy, now}, both ? copy.launches() : 0};
    if (both && seen->skip == 0) std::swap(current, next);
    return {{copy, now}, 0};
  }
};

/// The bits of all elements, for rules that leave none out: padding must not enter residuals.
struct all_active_kernel {
  static constexpr bool one_isa = true;
  const tile* tiles;
  std::uint32_t* active;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      L::store_scalar(active + t.word + k, L::first(t.n - 32 * k));
    }
  }
};

/// What a rule gives a collective at the end of the warm-up. Empty: start from nothing.
template <class Buffer>
struct initial_momentum {
  Buffer momentum{};               ///< on the flat axis
  const float* factors = nullptr;  ///< by tensor: what is agreed is factor * momentum; null: 1
  const tensor_scalars* scalars = nullptr;  ///< by tensor: the next message takes beta1 of it
};

inline constexpr std::size_t step_tables_sums = 3;  ///< arrays of step_tables::sums

/// The trainer's tensors on the flat axis, cut into tiles, with the step in progress, as kernels
/// see them. A view; the pointers are the backend's memory.
template <class P, class G>
struct step_tables {
  const tile* tiles;
  const tile_range* tensor_tiles;     ///< by tensor
  float* sums;                        ///< work space: three arrays by tile
  const tensor_entry<P, G>* tensors;  ///< parameters, gradients, options of each
  const tensor_scalars* scalars;      ///< of the moments of each
  const step_scalars* now;            ///< learning rate, and whether to skip
  active_mask active;                 ///< which elements take part
};

/// All that a rule needs to launch its kernels.
template <class B, class P, class G>
struct step_context : step_tables<P, G> {
  B& backend;
  const layout& axis;

  [[nodiscard]] std::size_t n_tiles() const { return axis.tiles().size(); }
  /// The second and the third array of `sums`.
  [[nodiscard]] float* second_sums() const { return this->sums + n_tiles(); }
  [[nodiscard]] float* third_sums() const { return this->sums + 2 * n_tiles(); }
  /// Runs kernel(L{}, i) for each tile i, unless the step was called off.
  template <class Kernel>
  void launch(const Kernel& kernel) const {
    launch_unless_skipped(backend, this->now, n_tiles(), kernel);
  }
  /// The same for i in [0, n).
  template <class Kernel>
  void launch(std::size_t n, const Kernel& kernel) const {
    launch_unless_skipped(backend, this->now, n, kernel);
  }
};

/// Calls the step off when what is produced is not finite.
template <class Produce>
struct finite_kernel {
  Produce produce;
  const tile* tiles;
  step_scalars* now;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile t = tile_at(i);
    const auto value = produce.template at<L>(t, i);
    const auto zero = L::set(0.0F);
    auto check = zero;
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      check = L::fma(value(k, zero), zero, check);
    }
    auto all = one_word<L>::set(0.0F);
    add_words<L>(all, check);
    if (!(one_word<L>::fold(all) == 0.0F)) L::raise(&now->skip);
  }
};

/// A field that says `static constexpr bool single_word = true`: so much to read that a device has
/// no registers left for several words.
template <class Field>
concept SingleWordField = requires {
  requires Field::single_word;
};

/// The local gradient, as a field g and as a message base + g.
template <class P, class G>
struct gradient_message {
  const tensor_entry<P, G>* tensors;
  const step_scalars* now;

  template <class L>
  struct reader {
    gradients_of<L, G> gradient;
    ONEBIT_HD typename L::value operator()(std::uint32_t k) const { return gradient.load(k); }
    ONEBIT_HD typename L::value operator()(std::uint32_t k, const typename L::value& base) const {
      return L::add(base, gradient.load(k));
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t) const {
    return {gradients_of<L, G>(tensors[t.tensor], t, now)};
  }
};

/// The parameters, as a field.
template <class P, class G>
struct parameter_field {
  const tensor_entry<P, G>* tensors;

  template <class L>
  ONEBIT_HD parameters_of<L, P> at(const tile& t, std::size_t) const {
    return {tensors[t.tensor], t};
  }
};

/// A buffer on the flat axis, as a field y and as a message base + y.
struct flat_field {
  const float* flat;

  template <class L>
  struct reader {
    const float* first;
    ONEBIT_HD typename L::value operator()(std::uint32_t k) const {
      return L::load(first + 32 * k);
    }
    ONEBIT_HD typename L::value operator()(std::uint32_t k, const typename L::value& base) const {
      return L::add(base, L::load(first + 32 * k));
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t) const {
    return {flat + t.word * 32};
  }
};

/// A field, on the flat axis.
template <class Field>
struct flatten_kernel {
  static constexpr bool one_isa = true;
  Field field;
  const tile* tiles;
  float* flat;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile& t = tiles[i];
    const auto value = field.template at<L>(t, i);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      L::store(flat + (t.word + k) * 32, value(k));
    }
  }
};

/// Saves the compensated values that a step overwrites in a buffer of the optimizer's own.
struct undo_in_buffer {
  static constexpr bool repeats = false;
  float* values = nullptr;
  std::size_t first_word = 0;  ///< of the flat axis

  static undo_in_buffer from(float* buffer) { return {buffer}; }

  template <class L>
  struct writer {
    float* values;
    std::size_t word;
    /// From here on a tile's values are overwritten.
    ONEBIT_HD void begin(std::uint32_t* saved) const { L::store_scalar(saved, std::uint32_t{1}); }
    template <class Place>
    ONEBIT_HD void replace(const Place& place, std::uint32_t k, const typename L::value& old,
                           const typename L::value& now) const {
      L::store(values + (word + k) * 32, old);
      place.store(k, now);
    }
    ONEBIT_HD typename L::value load(std::uint32_t k) const {
      return L::load(values + (word + k) * 32);
    }
  };
  template <class L>
  ONEBIT_HD writer<L> at(const tile& t) const {
    return {values, t.word - first_word};
  }
};

/// Saves nothing: the encode pass leaves the compensated values alone, and the end of a step that
/// is kept makes the message once more, of gradients that nobody has written.
struct undo_by_repeating {
  static constexpr bool repeats = true;

  static undo_by_repeating from(float*) { return {}; }
  template <class L>
  struct writer {
    ONEBIT_HD void begin(std::uint32_t*) const {}
    template <class Place>
    ONEBIT_HD void replace(const Place&, std::uint32_t, const typename L::value&,
                           const typename L::value&) const {}
  };
  template <class L>
  ONEBIT_HD writer<L> at(const tile&) const {
    return {};
  }
};

/// What an exchange is told of the step in progress.
template <class Undo>
struct exchange_args {
  step_scalars* now;
  active_mask active;
  Undo undo;            ///< where an encode pass saves what it overwrites
  scale_bound bound{};  ///< of the message
};

}  // namespace onebit::inline v0_2
