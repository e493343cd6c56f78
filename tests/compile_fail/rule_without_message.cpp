// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// expect: onebit: this schedule exchanges, but the rule has no message(previous, at)

#include <cstddef>
#include <onebit/onebit.hpp>
#include <vector>

struct only_dense : onebit::rule_defaults {
  using backend_type = onebit::host;
  onebit::host& backend() { return backend_; }
  void prepare(const onebit::layout&) {}
  template <class P, class G>
  onebit::gradient_message<P, G> gradient(
      const onebit::step_context<onebit::host, P, G>& at) const {
    return {at.tensors, at.now};
  }
  template <class View, class P, class G>
  void dense_update(const View&, const onebit::step_context<onebit::host, P, G>&) {}
  std::size_t state_bytes() const { return 0; }
  template <class Archive>
  void archive(Archive&) {}

 private:
  onebit::host backend_;
};

int main() {
  onebit::run_threads(1, [](onebit::threads t) {
    std::vector<onebit::param_group<>> groups;
    onebit::optimizer o("own", groups, t, only_dense{}, onebit::freeze({.after = 3}, 0.999),
                        onebit::gather_scatter<onebit::sign<>>{});
  });
}
