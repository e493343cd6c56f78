// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Any bytes behind a checkpoint's checksums: refused with nothing changed, or loaded, and then the
// next steps are safe. The first byte is the kind of optimizer; a card that fits is put in.

#include <sstream>

#include "bytes.hpp"

using namespace onebit_test;

namespace {

void run(std::size_t kind, const std::string& bytes) {
  training<> data(fuzz::sizes());
  fuzz::with_optimizer(kind, data, fuzz::echo(), [&](auto& o) {
    std::string own = saved(o);
    const std::size_t n = std::min(bytes.size(), sizeof(std::uint64_t));
    if (bytes.size() > 24 + sizeof(onebit::detail::checkpoint_card)) {
      // the header's length, then all that lies behind the card
      own.resize(24 + sizeof(onebit::detail::checkpoint_card));
      std::memcpy(own.data() + 16, bytes.data() + 16, n);
      own += bytes.substr(own.size());
    } else {
      own = bytes;
    }
    const std::string before = saved(o);
    std::istringstream in(own);
    try {
      o.load(in);
    } catch (const onebit::checkpoint_error&) {
      if (saved(o) != before) std::abort();
      return 0;
    }
    try {
      for (int i = 0; i < 2; ++i) (void)train(o, data);
    } catch (const onebit::error&) {
    }
    return 0;
  });
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  for (std::size_t k = 0; k < fuzz::n_kinds; ++k) {
    training<> data(fuzz::sizes());
    fuzz::with_optimizer(k, data, fuzz::echo(), [&](auto& o) {
      for (int i = 0; i < 7; ++i) {
        fuzz::write_seed("checkpoint-" + std::to_string(k) + "-" + std::to_string(i),
                         static_cast<char>(k) + saved(o));
        (void)train(o, data);
      }
      return 0;
    });
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  run(data[0] % fuzz::n_kinds, std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  return 0;
}
