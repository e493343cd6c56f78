// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Any bytes behind a checkpoint's checksums: refused with nothing changed, or loaded, and then the
// next steps are safe. The first byte is the kind of optimizer; a card that fits is put in, unless
// its upper half says not.

#include <cstddef>
#include <sstream>

#include "bytes.hpp"

using namespace onebit_test;

namespace {

void run(std::size_t kind, bool with_card, const std::string& bytes) {
  training<> data(fuzz::sizes());
  fuzz::with_optimizer(kind, data, fuzz::echo(), [&](auto& o) {
    std::string own = saved(o);
    const std::size_t n = std::min(bytes.size(), sizeof(std::uint64_t));
    if (with_card && bytes.size() > 24 + sizeof(onebit::detail::checkpoint_header)) {
      // the header's length, then all that lies behind the card
      own.resize(24 + sizeof(onebit::detail::checkpoint_header));
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

/// Seeds that differ in one field of the header or the card.
void write_cards(std::size_t kind, const std::string& whole) {
  using card = onebit::detail::checkpoint_header;
  using ranks = onebit::detail::rank_fingerprint;
  const std::size_t begin = 24 + offsetof(card, ranks);
  const std::size_t fields[] = {0,
                                8,
                                12,
                                16,
                                begin + offsetof(ranks, n_tensors),
                                begin + offsetof(ranks, n_elements),
                                begin + offsetof(ranks, sizes_digest),
                                begin + offsetof(ranks, parameter_digest),
                                begin + offsetof(ranks, slot_bytes),
                                begin + offsetof(ranks, name),
                                24 + offsetof(card, rank),
                                24 + offsetof(card, size),
                                24 + offsetof(card, ranks_per_node),
                                24 + offsetof(card, step)};
  for (const std::size_t at : fields) {
    std::string seed = static_cast<char>(kind + 128) + whole;
    seed[1 + at] = static_cast<char>(seed[1 + at] ^ 1);
    fuzz::write_seed("checkpoint-card-" + std::to_string(kind) + "-" + std::to_string(at), seed);
  }
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
      write_cards(k, saved(o));
      return 0;
    });
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  run(data[0] % 16 % fuzz::n_kinds, data[0] < 128,
      std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  return 0;
}
