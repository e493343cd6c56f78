// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/concepts/backend.hpp>
#include <onebit/concepts/rule.hpp>
#include <onebit/core/config.hpp>
#include <onebit/core/element_types.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/kernel/launch.hpp>
#include <onebit/kernel/param_group.hpp>
#include <onebit/kernel/scalars.hpp>
#include <type_traits>
#include <utility>

/// Kernel-side views of a step: the trainer's tensors, the step context that rules receive, and the
/// arguments of an exchange.
namespace onebit { inline namespace v0_3 {

namespace detail {
struct tensor_scalars;  // kernel/moments.hpp
/// Kernel-side view of one tensor: raw pointers and the options of its group.
template <class P, class G>
struct tensor_entry {
  pointer_to<P> params{};
  pointer_to<G> grads{};
  float lr_factor = 1.0F;
  float weight_decay = 0.0F;
  float* master = nullptr;           ///< float copy of 2-byte parameters, or null
  bool rests = false;                ///< no gradient in this step: parameters do not change
  bool stochastic_rounding = false;  ///< for bf16 parameters without master

  [[nodiscard]] ONEBIT_HD float rate(const step_scalars* now) const {
    return rests ? 0.0F : now->given.lr * lr_factor;
  }
};

/// Loads word k (with wide lanes: L::words words) of a tile of n elements that starts at `first` in
/// the trainer's memory.
template <class L, class T>
ONEBIT_HD typename L::value load_elements(const T* first, std::uint32_t k, std::uint32_t n) {
  const std::uint32_t left = L::words > 1 ? 32 : n - 32 * k;  // wide lanes read whole words only
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

/// Returns the master if it rounds to its parameter (of the pointer's type), else the parameter.
template <class L, class T>
ONEBIT_HD typename L::value master_or_parameter(const T*, const typename L::value& master,
                                                const typename L::value& param) {
  return L::template unrounded<std::remove_const_t<T>>(master, param);
}
template <class L>
ONEBIT_HD typename L::value master_or_parameter(const any_pointer& of,
                                                const typename L::value& master,
                                                const typename L::value& param) {
  if (of.type == element_type::of_float) return param;
  if (of.type == element_type::of_bf16) return L::template unrounded<bf16>(master, param);
  return L::template unrounded<fp16>(master, param);
}

}  // namespace detail

/// Access to the parameters of a tile. A master that rounds to its parameter is read instead.
template <class L, class P>
struct parameters_of {
  detail::pointer_to<P> first;
  float* master;
  std::uint32_t n;
  bool stochastic;    ///< stores round stochastically
  std::uint32_t key;  ///< hash key of the tile's first element in this step

  /// With `now` == null, stores round to nearest in all tensors.
  template <class G>
  ONEBIT_HD parameters_of(const detail::tensor_entry<P, G>& tensor, const tile& t,
                          const step_scalars* now = nullptr)
      : first(tensor.params + t.offset),
        master(tensor.master == nullptr ? nullptr : tensor.master + t.offset),
        n(t.n),
        stochastic(tensor.stochastic_rounding && now != nullptr),
        key(stochastic
                ? detail::mixed(now->given.number + 1) + static_cast<std::uint32_t>(t.word * 32)
                : 0) {}

  ONEBIT_HD typename L::value operator()(std::uint32_t k) const { return load(k); }
  ONEBIT_HD typename L::value load(std::uint32_t k) const {
    const detail::pointer_to<const P> at(first);
    if constexpr (!std::is_same_v<P, float>) {
      if (master != nullptr) {
        const auto exact = detail::load_elements<L>(static_cast<const float*>(master), k, n);
        return detail::master_or_parameter<L>(first, exact, detail::load_elements<L>(at, k, n));
      }
    }
    return detail::load_elements<L>(at, k, n);
  }
  /// Moves the elements of word k: x <- x - rate (u + decay x). A rate of 0 stores nothing, and a
  /// decay of 0 does not multiply, so that an infinite parameter, as of a mask, stays as it is.
  ONEBIT_HD void move(std::uint32_t k, float rate, float decay, const typename L::value& u) const {
    if (rate == 0) return;
    const auto x = load(k);
    const auto by = decay == 0 ? u : L::fma(L::set(decay), x, u);
    store(k, L::fma(L::set(-rate), by, x));
  }
  /// Returns word k, or `exact` in elements that are `exact` rounded: for a rule that keeps floats
  /// of parameters of 2 bytes.
  ONEBIT_HD typename L::value exact(std::uint32_t k, const float* exact) const {
    const auto x = load(k);
    if constexpr (std::is_same_v<P, float>) {
      return x;
    } else {
      return master != nullptr ? x : detail::master_or_parameter<L>(first, L::load(exact), x);
    }
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

/// Gradients from 2^48, 2.8e14, on count as infinite: so no large gradient of a kept step makes a
/// later step overflow. (Residuals may be a thousand times as large, and are summed over a tile.)
/// With a constant v directions may still overflow, from 1e18 times the denominator on; then the
/// step is skipped.
inline constexpr float gradient_limit = 0x1p48F;

/// Reads the gradients of a tile, times inverse_loss_scale. Magnitudes from gradient_limit on read
/// as NaN. A tensor that rests reads as 0, and its gradient memory is not touched.
template <class L, class G>
struct gradients_of {
  detail::pointer_to<const G> first;
  std::uint32_t n;
  float inverse_loss_scale;

  template <class P>
  ONEBIT_HD gradients_of(const detail::tensor_entry<P, G>& tensor, const tile& t,
                         const step_scalars* now)
      : first(tensor.rests ? detail::pointer_to<const G>{} : tensor.grads + t.offset),
        n(t.n),
        inverse_loss_scale(now->given.inverse_loss_scale) {}

  ONEBIT_HD typename L::value load(std::uint32_t k) const {
    if (first == nullptr) return L::set(0.0F);
    const auto g = load_kept(k);
    return L::fma(L::mul(g, L::set(0x1p80F)), L::set(0.0F),
                  g);  // from 2^48 on g 2^80 is inf, and inf * 0 is NaN
  }
  /// The same in a step that is kept, where all magnitudes are below the limit.
  ONEBIT_HD typename L::value load_kept(std::uint32_t k) const {
    if (first == nullptr) return L::set(0.0F);
    return L::mul(detail::load_elements<L>(first, k, n), L::set(inverse_loss_scale));
  }
};

/// One bit per element, set if the element is active. Padding and elements that have had no
/// variance, at the freeze or since, are inactive: they send and receive 0, and do not count in
/// scales. A worker carries their values until they are active; padding has none. Null pointer: all
/// elements are active.
struct active_mask {
  const std::uint32_t* words = nullptr;

  /// Returns the mask for the words of one tile: null if all its elements are active, as in most
  /// tiles. That saves a load and a test per word. All lanes of a warp must call it together.
  template <class L>
  [[nodiscard]] ONEBIT_HD active_mask of_tile(const tile& t) const {
    using word_lanes = detail::one_word<L>;
    if (words == nullptr) return {};
    std::uint32_t missing = 0;
#if defined(__CUDA_ARCH__)
#pragma unroll 1  // four rounds at most
#endif
    for (std::uint32_t k = word_lanes::own_index(); k < t.n_words(); k += word_lanes::n_indices()) {
      missing |= ~words[t.word + k];
    }
    return word_lanes::any(missing != 0) ? *this : active_mask{};
  }
  /// Returns v with inactive elements set to 0. A non-finite inactive element makes `check` NaN.
  template <class L>
  ONEBIT_HD typename L::value keep(std::size_t word, const typename L::value& v,
                                   typename detail::one_word<L>::value& check) const {
    using word_lanes = detail::one_word<L>;
    if (words == nullptr) return v;
    if (all_of<L>(words + word)) return v;
    for (unsigned j = 0; j < L::words; ++j) {
      check = word_lanes::fma(word_of<L>(v, j), word_lanes::set(0.0F), check);
    }
    return L::keep(L::load_bits(words + word), v);
  }
  template <class L>
  ONEBIT_HD typename L::value keep(std::size_t word, const typename L::value& v) const {
    if (words == nullptr) return v;
    if (all_of<L>(words + word)) return v;
    return L::keep(L::load_bits(words + word), v);
  }
  /// Returns `v` in active elements, `other` in the others.
  template <class L>
  ONEBIT_HD typename L::value select(std::size_t word, const typename L::value& v,
                                     const typename L::value& other) const {
    if (words == nullptr) return v;
    if (all_of<L>(words + word)) return v;
    return L::select(L::load_bits(words + word), v, other);
  }

 private:
  template <class L>
  [[nodiscard]] ONEBIT_HD static bool all_of(const std::uint32_t* p) {
    std::uint32_t common = *p;
    for (unsigned j = 1; j < L::words; ++j) common &= p[j];
    return common == 0xFFFFFFFFU;
  }
};

namespace detail {

/// A buffer that a step replaces: `next` becomes `current` if the step is kept. Only `commit` does
/// this: it swaps the buffers if the host can read `skip`; on a deferred backend it copies, unless
/// the step is skipped. No-op if either buffer is empty. Sizes are multiples of 4 bytes.
template <class B, class T>
struct double_buffer {
  buffer_of<B, T> current, next;

  /// Ends the step for this buffer. Returns the kernel calls that the caller must launch, if any.
  [[nodiscard]] detail::calls<detail::unless_skipped<detail::copy_kernel>> commit(
      const step_scalars* now) {
    const bool both = current.size() > 0 && next.size() > 0;
    const detail::copy_kernel copy{next.data(), current.data(), current.bytes() / 4};
    const step_scalars* const seen = host_view<B>(now);
    if (seen == nullptr) return {{copy, now}, both ? copy.launches() : 0};
    if (both && seen->verdict.skip == 0) std::swap(current, next);
    return {{copy, now}, 0};
  }
};

}  // namespace detail

/// Makes all elements active, for rules that exclude none. The bits of padding stay clear, since
/// padding must not enter residuals.
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

/// Momentum that a rule hands to the exchange when the dense steps end. Empty: start from zeros.
template <class Buffer>
struct initial_momentum {
  Buffer momentum{};               ///< on the flat axis
  const float* factors = nullptr;  ///< by tensor: the exchange averages factor * momentum; null: 1
  const detail::tensor_scalars* scalars =
      nullptr;  ///< own_beta1 by tensor, a second factor; null: 1
};

namespace detail {

inline constexpr std::size_t step_tables_sums = 3;  ///< arrays of step_tables::sums

}  // namespace detail

/// Kernel-side view of the trainer's tensors on the flat axis, cut into tiles, and of the step in
/// progress. The pointers point into the backend's memory.
template <class P, class G>
struct step_tables {
  const tile* tiles;
  const tile_range* tensor_tiles;             ///< tiles of each tensor
  float* sums;                                ///< work space: three arrays of one float per tile
  const detail::tensor_entry<P, G>* tensors;  ///< parameters, gradients, options of each tensor
  const detail::tensor_scalars* scalars;      ///< betas, eps, bias corrections of each tensor
  const step_scalars* now;                    ///< scalars of the step in progress
  active_mask active;                         ///< elements that take part
};

/// Everything a rule needs to launch its kernels.
template <class B, class P, class G>
struct step_context : step_tables<P, G> {
  B& backend;
  const layout& axis;

  [[nodiscard]] std::size_t n_tiles() const { return axis.tiles().size(); }
  /// Return the second and the third array of `sums`.
  [[nodiscard]] float* second_sums() const { return this->sums + n_tiles(); }
  [[nodiscard]] float* third_sums() const { return this->sums + 2 * n_tiles(); }
  /// Runs kernel(L{}, i) for each tile i, unless the step was called off.
  template <class Kernel>
  void launch(const Kernel& kernel) const {
    launch_unless_skipped(backend, this->now, n_tiles(), kernel);
  }
  /// Runs kernel(L{}, i) for each i in [0, n), unless the step was called off.
  template <class Kernel>
  void launch(std::size_t n, const Kernel& kernel) const {
    launch_unless_skipped(backend, this->now, n, kernel);
  }
};

namespace detail {

/// Calls the step off if a value of the message `produce`, with base 0, is not finite.
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
    if (!(one_word<L>::fold(all) == 0.0F)) L::raise(&now->verdict.skip);
  }
};

/// A field that declares `static constexpr bool single_word = true`: kernels read one word of it at
/// a time, since several at once would take more registers than a device has.
template <class Field>
concept SingleWordField = requires {
  requires Field::single_word;
};

}  // namespace detail

/// The local gradient, as a field g and as a message base + g.
template <class P, class G>
struct gradient_message {
  const detail::tensor_entry<P, G>* tensors;
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

namespace detail {

/// The parameters, as a field.
template <class P, class G>
struct parameter_field {
  const tensor_entry<P, G>* tensors;

  template <class L>
  ONEBIT_HD parameters_of<L, P> at(const tile& t, std::size_t) const {
    return {tensors[t.tensor], t};
  }
};

}  // namespace detail

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

namespace detail {

/// A field times a factor of each tensor; `Factor` returns that of a tile.
template <class Field, class Factor>
struct scaled_field {
  Field values;
  Factor factor;

  template <class L>
  struct reader {
    typename Field::template reader<L> values;
    float factor;
    ONEBIT_HD typename L::value operator()(std::uint32_t k) const {
      return L::mul(values(k), L::set(factor));
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const tile& t, std::size_t index) const {
    return {values.template at<L>(t, index), factor(t)};
  }
};

/// Writes a field to a buffer on the flat axis.
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

/// The encode pass stores the compensated values, and saves the old ones in a buffer of the
/// exchange: a step that is called off restores them.
struct store_at_encode {
  static constexpr bool repeats = false;
  float* values = nullptr;
  std::size_t first_word = 0;  ///< word of the flat axis at which `values` starts

  static store_at_encode from(float* buffer) { return {buffer}; }

  template <class L>
  struct writer {
    float* values;
    std::size_t word;
    /// Marks the tile: its values are overwritten from here on.
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

/// The encode pass stores no compensated value, so that nothing must be restored. The update pass,
/// which does nothing in a step that is called off, makes the message again and stores it.
/// Gradients, the previous mean and v must not change in between.
struct store_at_update {
  static constexpr bool repeats = true;

  static store_at_update from(float*) { return {}; }
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

}  // namespace detail

/// Arguments of an exchange in the step in progress.
template <class Undo>
struct exchange_args {
  step_scalars* now;
  active_mask active;
  Undo undo;            ///< saves the compensated values that an encode pass overwrites
  scale_bound bound{};  ///< of the message's scales
};

}}  // namespace onebit
