// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A compressor by tile whose members run on the host only: a kernel that decodes must not compile.
// With -DONEBIT_ON_THE_HOST the same compressor in a host backend, which must.

#include <onebit/backend/cuda.cuh>
#include <onebit/backend/host.hpp>
#include <onebit/collective/message.hpp>

struct host_codec {
  std::size_t tile_bytes(std::size_t n) const { return n; }
  void encode(const float*, std::size_t, std::byte*) const {}
  void decode(const std::byte*, std::size_t, float*) const noexcept {}
};

#if defined(ONEBIT_ON_THE_HOST)
using backend_type = onebit::host;
#else
using backend_type = onebit::cuda;
#endif

void launch_one(backend_type backend) {
  backend.launch(1, onebit::detail::finite_kernel<onebit::detail::mean_view<host_codec>>{});
}
