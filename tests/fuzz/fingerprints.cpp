// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Any bytes as what another rank says of itself when an optimizer is built, and when a checkpoint
// is loaded: refused, or agreed; a load that is refused changes nothing.

#include <cstddef>
#include <sstream>

#include "bytes.hpp"

using namespace onebit_test;

namespace {

/// The first byte is the kind; the second says whether the rest is said at a load, or before.
void run(std::size_t kind, bool at_load, const std::uint8_t* bytes, std::size_t size) {
  training<> data(fuzz::sizes());
  fuzz::supply other;
  if (!at_load) other = {bytes, size, 0};
  try {
    fuzz::with_optimizer(kind, data, fuzz::echo(&other), [&](auto& o) {
      other.size = 0;
      for (int i = 0; i < 4; ++i) (void)train(o, data);
      const std::string before = saved(o);
      std::istringstream in(before);
      if (at_load) other = {bytes, size, 0};
      try {
        o.load(in);
      } catch (const onebit::checkpoint_error&) {
      }
      other.size = 0;
      if (saved(o) != before) std::abort();
      (void)train(o, data);
      return 0;
    });
  } catch (const onebit::rank_mismatch&) {
    if (at_load) std::abort();
  }
}

/// Seeds that differ in one field.
void write_seed(char kind, char at_load, std::size_t field) {
  std::string seed{kind, at_load};
  seed += std::string(field, '\0') + '\1' + std::string(1024, '\0');
  fuzz::write_seed("compare_fingerprints-" + std::to_string(kind) + "-" + std::to_string(at_load) +
                       "-" + std::to_string(field),
                   seed);
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  using card = onebit::detail::rank_fingerprint;
  for (char k = 0; k < static_cast<char>(fuzz::n_kinds); ++k) {
    for (const std::size_t field :
         {offsetof(card, n_tensors), offsetof(card, n_elements), offsetof(card, sizes_digest),
          offsetof(card, parameter_digest), offsetof(card, slot_bytes), offsetof(card, rejected),
          offsetof(card, number), offsetof(card, name), offsetof(card, name) + 40}) {
      write_seed(k, 0, field);
    }
    for (const std::size_t field : {std::size_t{0}, std::size_t{8}, std::size_t{16}}) {
      write_seed(k, 1, field);
    }
    // a name without an end
    std::string seed{k, 0};
    seed += std::string(offsetof(card, name), '\0') + std::string(sizeof(card::name), '\x80');
    fuzz::write_seed("compare_fingerprints-endless-" + std::to_string(k), seed);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  run(data[0] % fuzz::n_kinds, data[1] % 2 == 1, data + 2, size - 2);
  return 0;
}
