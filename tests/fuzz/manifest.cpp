// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Any bytes as a manifest: nothing, or what is written again as the same bytes.

#include <onebit/extras/checkpoint_files.hpp>

#include "bytes.hpp"

namespace files = onebit::detail::files;

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  onebit_test::fuzz::write_seed("manifest-0", files::manifest_of(7, {}));
  onebit_test::fuzz::write_seed("manifest-1", files::manifest_of(7, {{100, 5}}));
  onebit_test::fuzz::write_seed("manifest-3", files::manifest_of(7, {{1, 2}, {3, 4}, {5, 6}}));
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string text(reinterpret_cast<const char*>(data), size);
  // whatever its lines are, under a checksum that is true
  const auto end = text.rfind("end ");
  if (end != std::string::npos) {
    text.resize(end);
    text += "end " + std::to_string(onebit::detail::crc32c(text.data(), text.size())) + "\n";
  }
  const auto ranks = files::read_manifest(text, 7);
  if (!ranks) return 0;
  // leading zeros and the like are not what is written, but mean the same
  if (files::read_manifest(files::manifest_of(7, *ranks), 7) != ranks) std::abort();
  return 0;
}
