// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Results of the program: the table, printed and as JSON; the loss curves and their plot.
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

// Writes plot.gp to the directory, and runs gnuplot to make curves.svg. Returns true on success.
bool write_plot(const summary& from, const std::string& directory);

}  // namespace language_model
