// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// expect: onebit: this type is no Rule: derive from rule_defaults and write
// expect: dense_update(mean, at)

#include <cstddef>
#include <onebit/onebit.hpp>
#include <vector>

struct no_refresh : onebit::rule_defaults {
  using backend_type = onebit::host;
  onebit::host& backend() { return backend_; }
  void prepare(const onebit::layout&) {}
  template <class P, class G>
  onebit::gradient_message<P, G> gradient(
      const onebit::step_context<onebit::host, P, G>& at) const {
    return {at.tensors, at.now};
  }
  std::size_t state_bytes() const { return 0; }
  template <class Archive>
  void archive(Archive&) {}

 private:
  onebit::host backend_;
};

int main() {
  onebit::run_threads(1, [](onebit::threads t) {
    std::vector<onebit::param_group<>> groups;
    onebit::optimizer o("own", groups, t, no_refresh{}, onebit::always_dense{},
                        onebit::gather_scatter<onebit::identity>{});
  });
}
