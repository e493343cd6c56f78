// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Any bytes as what another rank sends in a step, of every phase: the step is kept, skipped or
// refused; nothing is written elsewhere, and a step that was not kept changes nothing.

#include "bytes.hpp"

using namespace onebit_test;

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  for (char k = 0; k < static_cast<char>(fuzz::n_kinds); ++k) {
    for (char before : {0, 2, 3, 5, 8, 10, 11, 13}) {
      fuzz::write_seed("slots-" + std::to_string(k) + "-" + std::to_string(before),
                       std::string{k, before, 0, 0, 0, 1});
    }
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  if (size < 2) return 0;
  training<> data(fuzz::sizes());
  fuzz::supply other;
  return fuzz::with_optimizer(bytes[0] % fuzz::n_kinds, data, fuzz::echo(&other), [&](auto& o) {
    for (int i = 0; i < bytes[1] % 8; ++i) (void)train(o, data);
    other = {bytes + 2, size - 2, 0};
    const auto params = data.params;
    bool kept = false;
    try {
      kept = !train(o, data).skipped;
    } catch (const onebit::rank_mismatch&) {
    } catch (const onebit::transport_error&) {
    }
    if (!kept && data.params != params) std::abort();
    other.size = 0;
    try {
      (void)train(o, data);
    } catch (const onebit::error&) {
    }
    return 0;
  });
}
