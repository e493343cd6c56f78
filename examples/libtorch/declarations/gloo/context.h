// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

// torch's libraries contain Gloo, but neither torch's wheels nor its archives bring Gloo's headers,
// without which torch's ProcessGroupGloo.hpp does not compile. These files declare the names that
// it uses: only as pointers, and functions that only torch's library calls. No object of these
// types is made or read here. Gloo's own headers work too.
namespace gloo {

class Context {
 public:
  void setTimeout(std::chrono::milliseconds timeout);
};

}  // namespace gloo
