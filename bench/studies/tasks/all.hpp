// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "columns.hpp"
#include "echo.hpp"
#include "factors.hpp"
#include "mlp.hpp"
#include "units.hpp"
#include "zipf.hpp"

namespace tasks {

/// A task with its default training. Of the rates 0.001, 0.003, 0.01, 0.03 and 0.1, Adam and LAMB
/// end lowest at 0.01, or Adam ends less than 2% above its lowest loss. Exceptions: in echo Adam
/// gets from 0.0009 to 0.0002 at 0.03; units takes 0.03, and so does columns, where Adam gets
/// from 1.0 to 0.8 at 0.1.
template <class Real>
struct entry {
  std::string name;
  std::int64_t steps;
  double rate;
  std::unique_ptr<task<Real>> (*make)(std::uint64_t seed);
};

template <class Task>
std::unique_ptr<task<typename Task::real>> make(std::uint64_t seed) {
  return std::make_unique<Task>(seed);
}

template <class Real>
std::vector<entry<Real>> all() {
  return {{"echo", 1000, 0.01, make<echo<Real>>},   {"zipf", 2000, 0.01, make<zipf<Real>>},
          {"mlp", 2000, 0.01, make<mlp<Real>>},     {"factors", 1500, 0.01, make<factors<Real>>},
          {"units", 1000, 0.03, make<units<Real>>}, {"columns", 800, 0.03, make<columns<Real>>}};
}

}  // namespace tasks
