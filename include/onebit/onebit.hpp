// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// The algorithms and their policies, on the host and among threads. Others, each of its own
/// header: transports (transport/mpi.hpp, ...), checkpoint_files.hpp, any_optimizer.hpp,
/// make_optimizer.hpp.
#include <onebit/algorithms.hpp>
#include <onebit/backend/host.hpp>
#include <onebit/collective/all_gather.hpp>
#include <onebit/collective/dense.hpp>
#include <onebit/collective/gather_scatter.hpp>
#include <onebit/collective/hierarchical.hpp>
#include <onebit/compress/identity.hpp>
#include <onebit/compress/sign.hpp>
#include <onebit/concepts.hpp>
#include <onebit/element.hpp>
#include <onebit/error.hpp>
#include <onebit/layout.hpp>
#include <onebit/optimizer.hpp>
#include <onebit/report.hpp>
#include <onebit/rule/adam.hpp>
#include <onebit/rule/lamb.hpp>
#include <onebit/rule/zero_one.hpp>
#include <onebit/schedule.hpp>
#include <onebit/tensor.hpp>
#include <onebit/transport/threads.hpp>
