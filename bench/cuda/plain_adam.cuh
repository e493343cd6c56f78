// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#ifndef ONEBIT_BENCH_CUDA_PLAIN_ADAM_CUH
#define ONEBIT_BENCH_CUDA_PLAIN_ADAM_CUH

#include <cstddef>

namespace onebit_bench {

/// Adam as one writes it by hand, for one tensor: every byte once, 16 at a time. 28 bytes per
/// element.
static __global__ void plain_adam_kernel(float4* x, const float4* g, float4* m, float4* v,
                                         std::size_t n, float lr) {
  const std::size_t stride = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
    float4 a = x[i], b = g[i], c = m[i], d = v[i];
    const auto one = [lr](float& p, float grad, float& m1, float& m2) {
      m1 = 0.9F * m1 + 0.1F * grad;
      m2 = 0.999F * m2 + 0.001F * grad * grad;
      p -= lr * (m1 / (sqrtf(m2) + 1e-8F) + 0.01F * p);
    };
    one(a.x, b.x, c.x, d.x);
    one(a.y, b.y, c.y, d.y);
    one(a.z, b.z, c.z, d.z);
    one(a.w, b.w, c.w, d.w);
    x[i] = a;
    m[i] = c;
    v[i] = d;
  }
}

}  // namespace onebit_bench

#endif
