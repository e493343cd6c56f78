// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <onebit/onebit.hpp>
#include <utility>

/// Options of a custom rule, SGD with momentum: m = beta m + (1 - beta) g; x -= lr (m + decay x).
/// Dense and compressed steps may follow each other in any order. The rule defines the message and
/// the update; the library provides optimizer, schedule, collective, checkpoints and skips.
struct sgd_options {
  double beta1 = 0.9, beta2 = 0, eps = 1;  // moments_rule needs all of them; SGD has no v
  double max_grad_norm = 0;
};

class sgd_rule : public onebit::moments_rule<onebit::host, sgd_options> {
  template <class P, class G>  // types of parameters and gradients: float, bf16, fp16
  using at_step = onebit::step_context<onebit::host, P, G>;  // tensors and numbers of a step

  // Kernel over tile i: up to 4096 elements of one tensor, word by word (32 elements). L: the
  // arithmetic of one instruction set on a word. m is on the flat axis, x.load(k) in the tile.
  template <class Field, class P, class G>
  struct update_kernel {
    Field field;  // the mean gradient, or the new m
    onebit::step_tables<P, G> at;
    float* m;
    bool gradients;  // true: field is the mean gradient

    template <class L>
    ONEBIT_HD void operator()(L, std::size_t i) const {
      const onebit::tile& t = at.tiles[i];
      const auto value = field.template at<L>(t, i);
      const onebit::parameters_of<L, P> x(at.tensors[t.tensor], t, at.now);
      const float rate = at.tensors[t.tensor].rate(at.now),
                  decay = at.tensors[t.tensor].weight_decay;
      for (std::uint32_t k = 0; k < t.n_words(); ++k) {
        float* const word = m + 32 * (t.word + k);
        auto momentum = value(k);
        if (gradients)  // c holds beta1, or 1 for a tensor that rests: its m stays
          momentum = at.scalars[t.tensor].c.template next_momentum<L>(L::load(word), momentum);
        L::store(word, momentum);
        x.move(k, rate, decay, momentum);
      }
    }
  };

 public:
  explicit sgd_rule(sgd_options options, onebit::host backend = onebit::host())
      : moments_rule(options, std::move(backend), false) {
    onebit::validate_moments("sgd_options", own_moments(), options.max_grad_norm);
  }

  template <class Field, class P, class G>  // dense step, from the mean gradient
  void dense_update(const Field& mean, const at_step<P, G>& at) {
    at.launch(update_kernel<Field, P, G>{mean, at, m_.data(), true});
  }
  template <class Field, class P, class G>  // the message: beta m + (1 - beta) g
  auto message(const Field&, const at_step<P, G>& at) const {
    using message = onebit::momentum_message<onebit::flat_field, P, G>;
    return message{{m_.data()}, at.tensors, at.scalars, at.now};
  }
  template <class Field, class P, class G, class Update>  // compressed step, from the mean message
  void compressed_update(const Field& latest, const Field&, const at_step<P, G>& at,
                         const Update& run) {
    run(update_kernel<Field, P, G>{latest, at, m_.data(), false});
  }

  // Resumes with another number of ranks. m stays in the rule, so the initial momentum is zeros
  // (never an empty buffer).
  template <class Field, class At>
  onebit::initial_momentum<float_buffer> resume(const Field&, const At&) {
    return {make_floats()};
  }
  template <class Field, class At>
  void thaw(const Field&, const At&) {}
};

static_assert(onebit::ResumingRule<sgd_rule>);
