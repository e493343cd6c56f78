// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// What the program says at the end: the table, on paper and as JSON, the curves and their plot.
#pragma once

#include <string>
#include <vector>

#include "trainer.hpp"

namespace language_model {

struct summary {
  std::string transport;
  std::vector<training_result> results;
};

void print_table(const summary& from);
void write_json(const summary& from, const std::string& path);
void write_csv(const summary& from, const std::string& path);

// Writes plot.gp to the directory and has gnuplot make curves.svg of it. Returns whether it did.
bool write_plot(const summary& from, const std::string& directory);

}  // namespace language_model
