// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The first host of a program: says what it refuses; see strict.sh.

#include <cstdio>
#include <onebit/backend/host.hpp>

int main() {
  try {
    for (const onebit::isa set : {onebit::host::best_isa(), onebit::isa::scalar}) {
      const onebit::host backend(1, set);
    }
  } catch (const onebit::invalid_input& e) {
    std::puts(e.what());
    return 1;
  }
  std::puts("as the sources say");
}
