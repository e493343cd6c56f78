// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Kernels of the transformer, except products; layers.hpp has the mathematics. A warp computes a
// row, and folds its sums in a fixed order. Sums over rows add in a fixed order too: results do not
// depend on how blocks are scheduled.
#pragma once

#include <cuda_runtime.h>

#include <cmath>

namespace language_model::device {

constexpr int block = 256, warps = block / 32;

static __device__ float sum_of_warp(float x) {
  for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(0xFFFFFFFFU, x, i);
  return x;
}
static __device__ float largest_of_warp(float x) {
  for (int i = 16; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(0xFFFFFFFFU, x, i));
  return x;
}
static __device__ int row_of_warp() {
  return static_cast<int>(blockIdx.x) * warps + static_cast<int>(threadIdx.x) / 32;
}
static __device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
static __device__ int index() { return static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); }

// x[i] = embedding[token i] + positions[i % context]
static __global__ void embed(float* x, const int* tokens, const float* embedding,
                             const float* positions, int rows, int width, int context) {
  const int i = index(), row = i / width, c = i % width;
  if (row < rows) x[i] = embedding[tokens[row] * width + c] + positions[row % context * width + c];
}

// Gradient of both tables: adds, for each token, the rows in which the token occurs, in order. One
// block for each token of the vocabulary, then one for each position.
static __global__ void embed_backward(float* embedding, float* positions, const int* tokens,
                                      const float* dx, int rows, int width, int context,
                                      int vocabulary) {
  const int b = static_cast<int>(blockIdx.x);
  for (int c = static_cast<int>(threadIdx.x); c < width; c += static_cast<int>(blockDim.x)) {
    float sum = 0;
    if (b < vocabulary) {
      for (int r = 0; r < rows; ++r) sum += tokens[r] == b ? dx[r * width + c] : 0;
      embedding[b * width + c] += sum;
    } else {
      for (int r = b - vocabulary; r < rows; r += context) sum += dx[r * width + c];
      positions[(b - vocabulary) * width + c] = sum;
    }
  }
}

// Also stores values for the backward pass: the normalized rows and 1 / deviation.
static __global__ void norm_forward(float* y, float* normalized, float* inverse, const float* x,
                                    const float* gain, const float* bias, int rows, int width) {
  const int row = row_of_warp();
  if (row >= rows) return;
  const auto n = static_cast<float>(width);
  x += row * width, y += row * width, normalized += row * width;
  float sum = 0, squares = 0;
  for (int c = lane(); c < width; c += 32) sum += x[c];
  const float mean = sum_of_warp(sum) / n;
  for (int c = lane(); c < width; c += 32) squares += (x[c] - mean) * (x[c] - mean);
  const float scale = 1 / sqrtf(sum_of_warp(squares) / n + 1e-5F);
  for (int c = lane(); c < width; c += 32) {
    const float z = (x[c] - mean) * scale;
    normalized[c] = z;
    y[c] = z * gain[c] + bias[c];
  }
  if (lane() == 0) inverse[row] = scale;
}

// Adds to dx: every norm sits on a branch beside a residual connection.
static __global__ void norm_backward(float* dx, const float* dy, const float* normalized,
                                     const float* inverse, const float* gain, int rows, int width) {
  const int row = row_of_warp();
  if (row >= rows) return;
  const auto n = static_cast<float>(width);
  dx += row * width, dy += row * width, normalized += row * width;
  float sum = 0, along = 0;
  for (int c = lane(); c < width; c += 32) {
    sum += dy[c] * gain[c];
    along += dy[c] * gain[c] * normalized[c];
  }
  const float mean = sum_of_warp(sum) / n, slope = sum_of_warp(along) / n;
  for (int c = lane(); c < width; c += 32) {
    dx[c] += inverse[row] * (dy[c] * gain[c] - mean - normalized[c] * slope);
  }
}

// sums[c] = sum over the rows of a, or of a * b unless b is null. Blocks of 32 columns x 8 rows.
static __global__ void sum_rows(float* sums, const float* a, const float* b, int rows, int width) {
  __shared__ float parts[8][32];
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
  const int c = static_cast<int>(blockIdx.x) * 32 + x;
  float sum = 0;
  for (int r = y; r < rows && c < width; r += 8) {
    sum += b == nullptr ? a[r * width + c] : a[r * width + c] * b[r * width + c];
  }
  parts[y][x] = sum;
  __syncthreads();
  if (y != 0 || c >= width) return;
  for (int i = 1; i < 8; ++i) sum += parts[i][x];
  sums[c] = sum;
}

constexpr float gelu_outer = 0.7978845608028654F, gelu_cubic = 0.044715F;

// The tanh in GELU's approximation of x Phi(x).
static __device__ float gelu_tangent(float x) {
  return 1 - 2 / (1 + __expf(2 * gelu_outer * x * (1 + gelu_cubic * x * x)));
}

static __global__ void gelu_forward(float* y, const float* x, int n) {
  const int i = index();
  if (i >= n) return;
  const float v = x[i];
  y[i] = 0.5F * v * (1 + gelu_tangent(v));
}
static __global__ void gelu_backward(float* dy, const float* x, int n) {
  const int i = index();
  if (i >= n) return;
  const float v = x[i], t = gelu_tangent(v);
  dy[i] *= 0.5F * (1 + t) + 0.5F * v * (1 - t * t) * gelu_outer * (1 + 3 * gelu_cubic * v * v);
}

// Row i of each context x context square becomes probabilities of columns 0..i.
static __global__ void causal_softmax(float* scores, int rows, int context) {
  const int row = row_of_warp(), last = row % context;
  if (row >= rows) return;
  scores += static_cast<long long>(row) * context;
  float largest = -INFINITY, sum = 0;
  for (int c = lane(); c <= last; c += 32) largest = fmaxf(largest, scores[c]);
  largest = largest_of_warp(largest);
  for (int c = lane(); c < context; c += 32) {
    const float p = c <= last ? __expf(scores[c] - largest) : 0;
    scores[c] = p;
    sum += p;
  }
  sum = sum_of_warp(sum);
  for (int c = lane(); c <= last; c += 32) scores[c] /= sum;
}
// Replaces d, the gradient of the probabilities p, by the gradient of the scores.
static __global__ void causal_softmax_backward(float* d, const float* p, int rows, int context) {
  const int row = row_of_warp();
  if (row >= rows) return;
  d += static_cast<long long>(row) * context, p += static_cast<long long>(row) * context;
  float along = 0;
  for (int c = lane(); c < context; c += 32) along += d[c] * p[c];
  along = sum_of_warp(along);
  for (int c = lane(); c < context; c += 32) d[c] = (d[c] - along) * p[c];
}

// Replaces logits by the gradient of the mean cross-entropy. losses: the loss of each row.
static __global__ void softmax_loss(float* logits, float* losses, const int* target, int rows,
                                    int vocabulary) {
  const int row = row_of_warp();
  if (row >= rows) return;
  logits += row * vocabulary;
  float largest = -INFINITY, sum = 0;
  for (int c = lane(); c < vocabulary; c += 32) largest = fmaxf(largest, logits[c]);
  largest = largest_of_warp(largest);
  for (int c = lane(); c < vocabulary; c += 32) sum += __expf(logits[c] - largest);
  sum = sum_of_warp(sum);
  if (lane() == 0) losses[row] = logf(sum) - (logits[target[row]] - largest);
  __syncwarp();
  const float share = 1 / static_cast<float>(rows);
  for (int c = lane(); c < vocabulary; c += 32) {
    logits[c] = (__expf(logits[c] - largest) / sum - (c == target[row] ? 1.0F : 0.0F)) * share;
  }
}
// The mean of n values, by one block.
static __global__ void mean(float* to, const float* values, int n) {
  __shared__ float parts[block];
  const int t = static_cast<int>(threadIdx.x);
  float sum = 0;
  for (int i = t; i < n; i += block) sum += values[i];
  parts[t] = sum;
  __syncthreads();
  for (int half = block / 2; half > 0; half /= 2) {
    if (t < half) parts[t] += parts[t + half];
    __syncthreads();
  }
  if (t == 0) *to = parts[0] / static_cast<float>(n);
}

}  // namespace language_model::device
