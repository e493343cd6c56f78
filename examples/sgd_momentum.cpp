// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A rule of one's own: 1-bit SGD with momentum. A rule says what is sent and what is done with what
// was agreed; optimizer, schedule, collective, checkpoints and the skipping of bad steps are there.

#include <cstdint>
#include <utility>

#include "toy_problem.hpp"

namespace {

// m = beta m + g in the warm-up, x -= lr m; marks the real elements of the tile as live.
template <class View, class P, class G>
struct sgd_dense_kernel {
  View gradient;
  const onebit::tile* tiles;
  const onebit::tensor_entry<P, G>* tensors;
  const onebit::step_scalars* now;
  float* m;
  float beta;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const onebit::tile& t = tiles[i];
    const auto g = gradient.template at<L>(t, i);
    const onebit::parameters_of<L, P> x(tensors[t.tensor], t);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      float* word = m + (t.word + k) * 32;
      const auto next = L::fma(L::load(word), L::set(beta), g(k));
      L::store(word, next);
      x.store(k, L::fma(L::set(-now->lr), next, x.load(k)));
    }
  }
};

// The message, base + beta m + g with m as last agreed.
template <class View, class P, class G>
struct sgd_message {
  View agreed;
  const onebit::tensor_entry<P, G>* tensors;
  const onebit::step_scalars* now;
  float beta;

  template <class L>
  struct reader {
    typename View::template reader<L> m;
    onebit::gradients_of<L, G> g;
    float beta;
    ONEBIT_HD typename L::value operator()(std::uint32_t k, const typename L::value& base) const {
      return L::add(L::fma(m(k), L::set(beta), base), g.load(k));
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(const onebit::tile& t, std::size_t i) const {
    return {agreed.template at<L>(t, i), onebit::gradients_of<L, G>(tensors[t.tensor], t, now),
            beta};
  }
};

// x -= lr m
template <class View, class P, class G>
struct sgd_update_kernel {
  View momentum;
  const onebit::tile* tiles;
  const onebit::tensor_entry<P, G>* tensors;
  const onebit::step_scalars* now;

  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const onebit::tile& t = tiles[i];
    const auto m = momentum.template at<L>(t, i);
    const onebit::parameters_of<L, P> x(tensors[t.tensor], t);
    for (std::uint32_t k = 0; k < t.n_words(); ++k) {
      x.store(k, L::fma(L::set(-now->lr), m(k), x.load(k)));
    }
  }
};

class sgd_rule {
 public:
  static constexpr bool accumulates = false, local_steps = false;
  using floats = onebit::host_buffer<float>;

  explicit sgd_rule(float beta) : beta_(beta) {}
  void prepare(const onebit::layout& axis) { m_ = floats(axis.n_words() * 32); }

  template <class P, class G>
  auto gradient(const onebit::tensor_entry<P, G>* tensors, const onebit::step_scalars* now) const {
    return onebit::gradient_message<P, G>{tensors, now};
  }
  template <class View, class Worker, class P, class G>
  void refresh(const View& gradient, Worker& at, const onebit::tensor_entry<P, G>* tensors,
               const onebit::step_scalars* now) {
    onebit::launch_commit(
        at.backend(), now, at.axis().tiles().size(),
        sgd_dense_kernel<View, P, G>{gradient, at.tiles(), tensors, now, m_.data(), beta_});
  }
  template <class Worker>
  double variance_norm(Worker&) const {
    return 0;  // asked only by an automatic freeze, which needs a variance
  }
  // The end of the warm-up: every real element takes part, the padding does not.
  template <class Worker>
  onebit::handover<floats> freeze(std::uint32_t* live, Worker& at, std::uint64_t) {
    for (const onebit::tile& t : at.axis().tiles()) {
      for (std::uint32_t i = 0; i < t.n; ++i) live[t.word + i / 32] |= 1U << (i % 32);
    }
    return {std::move(m_), nullptr, beta_};
  }
  template <class View, class P, class G>
  auto message(const View& agreed, const onebit::tensor_entry<P, G>* tensors,
               const onebit::step_scalars* now) const {
    return sgd_message<View, P, G>{agreed, tensors, now, beta_};
  }
  template <class View, class Worker, class P, class G>
  void apply(const View& agreed, const View&, Worker& at, const onebit::tensor_entry<P, G>* tensors,
             const onebit::step_scalars* now) {
    onebit::launch_commit(at.backend(), now, at.axis().tiles().size(),
                          sgd_update_kernel<View, P, G>{agreed, at.tiles(), tensors, now});
  }
  std::size_t state_bytes() const { return m_.bytes(); }
  template <class Archive>
  void archive(Archive& a) {
    onebit::host backend;
    a.buffer(m_, backend);
  }

 private:
  float beta_;
  floats m_;
};

}  // namespace

int main() {
  using collective = onebit::gather_scatter<onebit::sign<>>;
  const toy::result r = toy::train(4, 400, 0.05F, [](const auto& groups, onebit::threads comm) {
    return onebit::optimizer<sgd_rule, onebit::freeze, collective, onebit::threads, onebit::host,
                             float, float>("sgd with momentum 0.9", groups, comm, onebit::host(),
                                           sgd_rule(0.9F), onebit::freeze({.after = 40}, 0.999),
                                           collective{});
  });
  return toy::verdict("1-bit SGD with momentum", r, 0.02);
}
