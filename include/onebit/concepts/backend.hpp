// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <onebit/concepts/stand_ins.hpp>

/// Where arithmetic runs.
namespace onebit { inline namespace v0_3 {

/// Runs kernels in the order of launches, and makes the buffers that kernels use. A kernel is a
/// function object, which is called with lanes L: on the host a pack of 32 floats, on CUDA one
/// float per thread of a warp. If the backend is deferred, the host must not touch buffers itself:
/// it uses copy_in and copy_out.
template <class B>
concept Backend = requires(B backend, std::size_t n, const detail::any_kernel& kernel, float* to,
                           const float* from) {
  backend.launch(n, kernel);                     // calls kernel(L{}, i) for each i in [0, n)
  { B::deferred } -> std::convertible_to<bool>;  // true: launch may return before the kernels ran
  backend.copy_in(to, from, n);                  // copies n objects from host memory into a buffer
  backend.copy_out(to, from, n);  // waits for all kernels; copies n objects to host memory
  // a movable buffer of n zeroed objects, 64-byte aligned, with data(), size() and bytes()
  { backend.template make_buffer<float>(n).data() } -> std::same_as<float*>;
  { backend.template make_buffer<float>(n).size() } -> std::convertible_to<std::size_t>;
};

namespace detail {

/// A kernel that handles a few scalars per call, marked by `static constexpr bool serial = true`.
/// It uses no lane values of a whole word, so the host compiles it once, not per instruction set.
template <class Kernel>
concept SerialKernel = requires {
  requires Kernel::serial;
};

/// A kernel with `static constexpr bool one_isa = true`: the host compiles it for isa::scalar only.
template <class Kernel>
concept OneIsaKernel = requires {
  requires Kernel::one_isa;
};

/// A kernel that accepts wide lanes: call i steps through the words of tile_at(i) by L::words.
template <class Kernel>
concept TileKernel = requires(const Kernel& k, std::size_t i) {
  k.tile_at(i).n;
};

/// Returns p, a pointer into the memory of a backend B, if the host may use it at once. Returns
/// null if B is deferred, since launched kernels may still be running.
template <class B, class T>
[[nodiscard]] constexpr T* host_view(T* p) {
  return B::deferred ? nullptr : p;
}

/// Checks a backend.
template <class B>
consteval void check_backend() {
  static_assert(Backend<B>,
                "onebit: this type is no Backend: it needs launch(n, kernel), make_buffer<T>(n), "
                "copy_in(to, from, n), copy_out(to, from, n) and a static bool `deferred` as in "
                "onebit/backend/host.hpp");
}

}  // namespace detail

}}  // namespace onebit
