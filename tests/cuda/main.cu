// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The main function of the tests that need a GPU: without one it says so, and exits with the code
// that ctest reports as skipped.

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdio>
#include <onebit/backend/cuda.cuh>

int main(int argc, char** argv) {
  if (onebit::cuda_device_count() == 0) {
    std::puts("skipped: no CUDA device");
    return 77;
  }
  return doctest::Context(argc, argv).run();
}
