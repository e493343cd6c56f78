// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// bench_exchange for gradients on CUDA devices: `--transport nccl`, or threads that share a device.

#include "../exchange.cpp"
