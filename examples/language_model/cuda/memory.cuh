// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Device memory of the model, and errors of CUDA as exceptions.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>

namespace language_model::device {

inline void check(cudaError_t code) {
  if (code != cudaSuccess) throw std::runtime_error(cudaGetErrorString(code));
}

// n objects on the current device, all bits 0.
template <class T>
class array {
 public:
  array() = default;
  explicit array(std::size_t n) : n_(n) {
    if (n == 0) return;
    check(cudaMalloc(&p_, n * sizeof(T)));
    check(cudaMemset(p_, 0, n * sizeof(T)));
    check(cudaDeviceSynchronize());  // the memset is not on the model's stream
  }
  array(array&& other) noexcept
      : n_(std::exchange(other.n_, 0)), p_(std::exchange(other.p_, nullptr)) {}
  array& operator=(array&& other) noexcept {
    std::swap(n_, other.n_);
    std::swap(p_, other.p_);
    return *this;
  }
  ~array() { (void)cudaFree(p_); }
  T* data() const { return p_; }
  std::size_t size() const { return n_; }
  // Ensures room for at least n objects. If the array grows, its contents are lost.
  void reserve(std::size_t n) {
    if (n > n_) *this = array(n);
  }

 private:
  std::size_t n_ = 0;
  T* p_ = nullptr;
};

// n objects in pinned host memory, which the host writes and the device reads.
template <class T>
class pinned_array {
 public:
  explicit pinned_array(std::size_t n) { check(cudaMallocHost(&p_, n * sizeof(T))); }
  pinned_array(pinned_array&& other) noexcept : p_(std::exchange(other.p_, nullptr)) {}
  pinned_array& operator=(pinned_array&&) = delete;
  ~pinned_array() { (void)cudaFreeHost(p_); }
  T* data() const { return p_; }

 private:
  T* p_ = nullptr;
};

}  // namespace language_model::device
