// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Trains a small character-level transformer with several optimizers, each from the same initial
// parameters and on the same data, and compares how well they learn and how much they send.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>

#include "program.hpp"

int main(int argc, char** argv) {
  using namespace language_model;
  program_options o;
  std::string transport = "threads";
  int ranks = 0;
  CLI::App app{"Trains a small language model with onebit's optimizers and compares them."};
  declare(app, o);
  app.add_option("--transport", transport, "What connects the ranks; mpi under mpirun (threads)")
      ->check(CLI::IsMember(common::available_transports()));
  app.add_option("--ranks", ranks, "Ranks that train together (4; with mpi: as mpirun started)")
      ->check(CLI::Range(1, 64));
  CLI11_PARSE(app, argc, argv);
  try {
    complete(o);
    const text source = text::load(o.text_file);
    common::run_ranks(transport, ranks,
                      [&](common::rank_link& link) { train_all(link, source, transport, o); });
  } catch (const std::exception& error) {
    std::fprintf(stderr, "language_model: %s\n", error.what());
    return 1;
  }
  return 0;
}
