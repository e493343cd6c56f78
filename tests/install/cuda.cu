// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Compiles where the target onebit::cuda says all that nvcc must be told.

#include <onebit/backend/cuda.cuh>

static_assert(onebit::Backend<onebit::cuda>);

onebit::cuda on(cudaStream_t stream) { return onebit::cuda(stream); }
