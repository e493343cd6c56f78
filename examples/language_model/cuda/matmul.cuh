// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Products of matrices in fp32: by cuBLAS, if the program is built with it and it starts, or by a
// plain kernel that adds in a fixed order.
#pragma once

#ifdef EXAMPLE_WITH_CUBLAS
#include <cublas_v2.h>
#endif

#include <cstdio>
#include <stdexcept>
#include <string>

#include "memory.cuh"

namespace language_model::device {

// A batch of row-major matrices: matrix (i, j) of n_outer x n_inner begins at p + i * outer + j *
// inner. A transposed matrix is stored as its transpose.
struct matrices {
  float* p;
  int leading;
  bool transposed = false;
  long long outer = 0, inner = 0;
};

// c = factor * a b + keep * c + bias. c is m x n, a is m x k, b is k x n; bias has one value for
// each column, or is null.
struct product {
  int m, n, k;
  matrices a, b, c;
  float factor = 1, keep = 0;
  const float* bias = nullptr;
  int n_outer = 1, n_inner = 1;
};

inline constexpr int side = 32;  // side of the square of c that 16 x 16 threads compute

// Each thread computes 2 x 2 elements; sums run along k in order.
static __global__ void multiply(product x) {
  __shared__ float as[side][side + 1], bs[side][side + 1];
  const int tx = static_cast<int>(threadIdx.x), ty = static_cast<int>(threadIdx.y);
  const int row = static_cast<int>(blockIdx.y) * side, column = static_cast<int>(blockIdx.x) * side;
  const long long i = blockIdx.z / static_cast<unsigned>(x.n_inner),
                  j = blockIdx.z % static_cast<unsigned>(x.n_inner);
  const auto first = [i, j](const matrices& m) { return m.p + i * m.outer + j * m.inner; };
  const float *a = first(x.a), *b = first(x.b);
  float sums[2][2] = {};
  for (int k = 0; k < x.k; k += side) {
    for (int y = ty; y < side; y += 16) {
      for (int z = tx; z < side; z += 16) {
        // neighbouring threads read neighbouring addresses, in either storage order
        const int ar = x.a.transposed ? z : y, ac = x.a.transposed ? y : z;
        const int br = x.b.transposed ? z : y, bc = x.b.transposed ? y : z;
        as[ar][ac] = row + ar < x.m && k + ac < x.k
                         ? a[x.a.transposed ? (k + ac) * x.a.leading + row + ar
                                            : (row + ar) * x.a.leading + k + ac]
                         : 0;
        bs[br][bc] = k + br < x.k && column + bc < x.n
                         ? b[x.b.transposed ? (column + bc) * x.b.leading + k + br
                                            : (k + br) * x.b.leading + column + bc]
                         : 0;
      }
    }
    __syncthreads();
    for (int z = 0; z < side; ++z) {
      const float a0 = as[ty][z], a1 = as[ty + 16][z], b0 = bs[z][tx], b1 = bs[z][tx + 16];
      sums[0][0] += a0 * b0;
      sums[0][1] += a0 * b1;
      sums[1][0] += a1 * b0;
      sums[1][1] += a1 * b1;
    }
    __syncthreads();
  }
  float* const c = first(x.c);
  for (int y = 0; y < 2; ++y) {
    for (int z = 0; z < 2; ++z) {
      const int r = row + ty + 16 * y, s = column + tx + 16 * z;
      if (r >= x.m || s >= x.n) continue;
      float& to = c[r * x.c.leading + s];
      float value = x.factor * sums[y][z];
      if (x.keep != 0) value += x.keep * to;
      to = x.bias == nullptr ? value : value + x.bias[s];
    }
  }
}

static __global__ void add_bias(float* c, const float* bias, int rows, int columns) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < rows * columns) c[i] += bias[i % columns];
}

// `which`: "own", "cublas", or "any" (cuBLAS if available).
class matmul {
 public:
  matmul(cudaStream_t stream, const std::string& which) : stream_(stream) {
#ifdef EXAMPLE_WITH_CUBLAS
    if (which != "own" && cublasCreate(&cublas_) == CUBLAS_STATUS_SUCCESS) {
      check_cublas(cublasSetStream(cublas_, stream));
      return;
    }
    cublas_ = nullptr;
    (void)cudaGetLastError();
#endif
    if (which == "cublas") throw std::runtime_error("there is no cuBLAS here; take --matmul own");
  }
  matmul(const matmul&) = delete;
  matmul& operator=(const matmul&) = delete;
#ifdef EXAMPLE_WITH_CUBLAS
  ~matmul() {
    if (cublas_ != nullptr) (void)cublasDestroy(cublas_);
  }
#endif

  void operator()(const product& x) const {
#ifdef EXAMPLE_WITH_CUBLAS
    if (cublas_ != nullptr) return by_cublas(x);
#endif
    const auto blocks = [](int n) { return static_cast<unsigned>((n + side - 1) / side); };
    multiply<<<dim3(blocks(x.n), blocks(x.m), static_cast<unsigned>(x.n_outer * x.n_inner)),
               dim3(16, 16), 0, stream_>>>(x);
    check(cudaGetLastError());
  }

 private:
#ifdef EXAMPLE_WITH_CUBLAS
  static void check_cublas(cublasStatus_t status) {
    if (status != CUBLAS_STATUS_SUCCESS) throw std::runtime_error(cublasGetStatusString(status));
  }
  // cuBLAS is column-major. There a row-major c is its transpose c', and c' = b' a'.
  void by_cublas(const product& x) const {
    const auto as_is = [](const matrices& m) { return m.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
    for (int i = 0; i < x.n_outer; ++i) {
      check_cublas(cublasSgemmStridedBatched(
          cublas_, as_is(x.b), as_is(x.a), x.n, x.m, x.k, &x.factor, x.b.p + i * x.b.outer,
          x.b.leading, x.b.inner, x.a.p + i * x.a.outer, x.a.leading, x.a.inner, &x.keep,
          x.c.p + i * x.c.outer, x.c.leading, x.c.inner, x.n_inner));
    }
    if (x.bias == nullptr) return;  // a product with a bias is never batched
    const int n = x.m * x.n;
    add_bias<<<static_cast<unsigned>((n + 255) / 256), 256, 0, stream_>>>(x.c.p, x.bias, x.m, x.n);
    check(cudaGetLastError());
  }
  cublasHandle_t cublas_ = nullptr;
#endif
  cudaStream_t stream_;
};

}  // namespace language_model::device
