// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <onebit/checkpoint.hpp>
#include <onebit/roll_call.hpp>
#include <onebit/verify.hpp>
#include <string>

namespace onebit::inline v0_1::detail {

/// What an optimizer of this name says of itself to other ranks and to checkpoints. Reads all
/// parameters.
template <class E>
[[nodiscard, gnu::cold]] checkpoint_card own_card(const std::string& name, E& e) {
  return {make_card(name, e.tensors.sizes, parameter_digest(e), e.compressed.slot_bytes()),
          static_cast<std::uint32_t>(e.comm.rank()),
          static_cast<std::uint32_t>(e.comm.size()),
          static_cast<std::uint32_t>(e.compressed.ranks_per_node()),
          0,
          e.step};
}

}  // namespace onebit::inline v0_1::detail
