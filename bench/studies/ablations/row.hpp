// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Row of the tables: a composition that trains, in a line or two.
#pragma once

#include <cstdint>
#include <functional>
#include <onebit/any_optimizer.hpp>
#include <onebit/onebit.hpp>
#include <utility>
#include <vector>

namespace ablations {

using groups = std::vector<onebit::param_group<>>;

struct settings {
  onebit::adam_options adam;
  std::uint64_t freeze_after, meet_every;
};

enum class family { adam, lamb };  // decides the learning rate

struct row {
  const char* name;
  family like;
  std::function<onebit::any_optimizer(const groups&, onebit::threads, const settings&)> make;
};

template <class Optimizer>
onebit::any_optimizer quiet(Optimizer made) {
  made.warn_with(nullptr);  // no warnings about the options of a row
  return made;
}

std::vector<row> rows();

}  // namespace ablations
