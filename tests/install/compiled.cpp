// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Every optimizer that onebit::compiled has, for each of its types: this file compiles none of
// them, unless it is told to (COMPILE_HERE, for the single header).

#include <cstddef>
#include <cstdlib>
#include <onebit/onebit.hpp>
#include <vector>

#if !defined(ONEBIT_COMPILED)
#error "the target says nothing of what it has"
#endif

namespace {

/// Steps of an optimizer that `make` makes, on two ranks: parameters fall, as gradients say.
template <class E, class Make>
void train(const Make& make) {
  onebit::run_threads(2, [&](onebit::threads comm) {
    const auto one = onebit::from_float<E>(1);
    std::vector<E> w(100, one), g(w);
    std::vector<float> masters(sizeof(E) == 2 ? w.size() : 0);
    std::vector<onebit::param_group<E>> groups(1);
    groups[0].tensors.push_back({w, g, masters});
    auto optimizer = make(groups, comm);
    for (int i = 0; i < 10; ++i) {
      for (E& x : g) x = one;
      (void)optimizer.step(0.01F);
    }
    for (const E x : w) {
      if (!(onebit::to_float(x) < 1)) std::abort();
    }
    optimizer.verify();
  });
}

template <class E>
void train_all() {
  train<E>([](auto& groups, auto comm) { return onebit::adam(groups, comm); });
  train<E>([](auto& groups, auto comm) { return onebit::lamb(groups, comm); });
  train<E>([](auto& groups, auto comm) { return onebit::one_bit_adam(groups, comm); });
  train<E>([](auto& groups, auto comm) { return onebit::one_bit_lamb(groups, comm); });
  train<E>([](auto& groups, auto comm) {
    onebit::zero_one_adam_options o;
    o.schedule.max_interval = 1;  // ranks are alike after each step, for verify
    return onebit::zero_one_adam(groups, comm, o);
  });
}

}  // namespace

int main() {
  train_all<float>();
  train_all<onebit::bf16>();
}

#if defined(COMPILE_HERE)
ONEBIT_COMPILE(adam)
ONEBIT_COMPILE(lamb)
ONEBIT_COMPILE(one_bit_adam)
ONEBIT_COMPILE(one_bit_lamb)
ONEBIT_COMPILE(zero_one_adam)
ONEBIT_COMPILE(threads)
#endif
