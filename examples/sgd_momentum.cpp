// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A rule of one's own: 1-bit SGD with momentum. A rule says what is sent and what is done with what
// was agreed; optimizer, schedule, collective, checkpoints and the skipping of bad steps are there.

#include <cstddef>
#include <cstdint>
#include <utility>

#include "toy_problem.hpp"

namespace {

using floats = onebit::host_buffer<float>;
using step_context =
    onebit::step_context<onebit::host, float, float>;  // all that a rule sees of a step

// A kernel does tile i, at most 4096 elements of one tensor, in words of 32: L is the processor's
// arithmetic on one. This one: m = beta m + (1 - beta) g.
template <class Field>
struct momentum_kernel {
  Field gradient;
  step_context at;
  float* m;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const onebit::tile& t = at.tiles[i];
    const auto g = gradient.template at<L>(t, i);
    const onebit::moments_constants c = at.scalars[t.tensor].c;  // of its group
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      float* word = m + (t.word + k) * 32;
      L::store(word, c.next_momentum<L>(L::load(word), g(k)));
    }
  }
};

// x -= lr m, without weight decay.
template <class Field>
struct descent_kernel {
  Field momentum;
  step_context at;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const onebit::tile& t = at.tiles[i];
    const auto m = momentum.template at<L>(t, i);
    const onebit::parameters_of<L, float> x(at.tensors[t.tensor], t);
    const auto step = L::set(-at.tensors[t.tensor].rate(at.now));
    for (std::uint32_t k = 0; k < t.n_words(); ++k) x.store(k, L::fma(step, m(k), x.load(k)));
  }
};

class sgd_rule : public onebit::rule_defaults {
 public:
  using backend_type = onebit::host;

  explicit sgd_rule(double beta) : beta_(beta) {}
  onebit::host& backend() { return backend_; }
  static constexpr bool has_moments = true;  // groups may have a beta of their own
  onebit::moments own_moments() const { return {.beta1 = beta_}; }
  void prepare(const onebit::layout& axis) { m_ = floats(axis.n_words() * 32); }

  // The warm-up: what is averaged, and a step from the mean.
  auto gradient(const step_context& at) const {
    return onebit::gradient_message<float, float>{at.tensors, at.now};
  }
  template <class Field>
  void dense_update(const Field& mean, const step_context& at) {
    at.launch(momentum_kernel<Field>{mean, at, m_.data()});
    at.launch(descent_kernel<onebit::flat_field>{{m_.data()}, at});
  }
  // Its end: all elements take part from now on, and the momentum goes to who exchanges it.
  onebit::initial_momentum<floats> freeze(std::uint32_t* active, const step_context& at) {
    for (const onebit::tile& t : at.axis.tiles()) {
      for (std::uint32_t i = 0; i < t.n; ++i) active[t.word + i / 32] |= 1U << (i % 32);
    }
    return {std::move(m_), nullptr, at.scalars};
  }
  // After it: what is exchanged, and a step from what was agreed.
  template <class Field>
  auto message(const Field& previous,
               const step_context& at) const {  // base + beta m + (1 - beta) g
    return onebit::momentum_message<Field, float, float>{previous, at.tensors, at.scalars, at.now};
  }
  template <class Field>
  void compressed_update(const Field& latest, const Field&, const step_context& at) {
    at.launch(descent_kernel<Field>{latest, at});
  }

  std::size_t state_bytes() const { return m_.bytes(); }
  template <class Archive>
  void archive(Archive& a) {
    a.buffer(m_, backend_);
  }

 private:
  double beta_;
  onebit::host backend_;
  floats m_;
};

}  // namespace

int main() {
  const toy::result r = toy::train(4, 400, 0.5F, [](const auto& groups, onebit::threads comm) {
    return onebit::optimizer("sgd with momentum 0.9", groups, comm, sgd_rule(0.9),
                             onebit::freeze({.after = 40}, 0.999),
                             onebit::gather_scatter<onebit::sign<>>{});
  });
  return toy::verdict("1-bit SGD with momentum", r, 0.02);
}
