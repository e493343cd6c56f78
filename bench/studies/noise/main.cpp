// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// What the library makes of gradients that are noise, without a model: noise spike | quadratic
#include <cstdio>
#include <exception>
#include <string_view>

#include "quadratic.hpp"
#include "spike.hpp"

int main(int argc, char** argv) {
  const std::string_view what = argc == 2 ? argv[1] : "";
  try {
    if (what == "spike") return noise::spike(), 0;
    if (what == "quadratic") return noise::quadratic(), 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "noise: %s\n", error.what());
    return 1;
  }
  std::fprintf(stderr, "usage: noise spike | quadratic\n");
  return 2;
}
