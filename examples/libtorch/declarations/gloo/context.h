// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

// torch's libraries have Gloo inside, but neither its wheels nor its archives bring Gloo's headers,
// without which torch's own ProcessGroupGloo.hpp does not compile. These files declare what that
// header names: never more than pointers to it, and functions that only torch's library calls. No
// object of these types is made or looked into here. Gloo's own headers do as well.
namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
