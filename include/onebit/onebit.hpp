// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Algorithms and policies for the host, with ranks as threads. Other headers are included
/// separately: transports (transport/mpi.hpp, ...), checkpoint_files.hpp, any_optimizer.hpp,
/// extras/by_name.hpp.
#include <onebit/algorithms.hpp>
#include <onebit/backend/host.hpp>
#include <onebit/collective/all_gather.hpp>
#include <onebit/collective/dense_average.hpp>
#include <onebit/collective/gather_scatter.hpp>
#include <onebit/collective/hierarchical.hpp>
#include <onebit/compressed_allreduce.hpp>
#include <onebit/compressor/identity.hpp>
#include <onebit/compressor/sign.hpp>
#include <onebit/core/element_types.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/kernel/param_group.hpp>
#include <onebit/optimizer.hpp>
#include <onebit/rule/adam.hpp>
#include <onebit/rule/lamb.hpp>
#include <onebit/rule/zero_one_adam.hpp>
#include <onebit/schedule/custom.hpp>
#include <onebit/schedule/freeze.hpp>
#include <onebit/schedule/intervals.hpp>
#include <onebit/step/report.hpp>
#include <onebit/transport/threads.hpp>
#if defined(ONEBIT_COMPILED)
#include <onebit/compiled.hpp>
#endif
