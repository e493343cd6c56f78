// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The least that has a kernel: must not compile where subnormals are dropped.

#include <onebit/backend/cuda.cuh>

void launch_one(onebit::cuda backend) { backend.launch(1, onebit::detail::any_kernel{}); }
