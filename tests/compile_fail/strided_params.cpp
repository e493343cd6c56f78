// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// expect: a tensor's memory must be contiguous, and this type does not say that it is: span it
// yourself

#include <onebit/onebit.hpp>

struct every_second {  // data() and size(), and nothing that tells its stride
  float* p;
  float* data() const { return p; }
  int size() const { return 2; }
};

int main() {
  float x[4] = {};
  every_second some{x};
  onebit::tensor<> t;
  t.params = some;
}
