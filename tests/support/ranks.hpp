// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// What a call throws; and what the installed suites share, under the name of all tests.

#ifndef ONEBIT_TESTS_SUPPORT_RANKS_HPP
#define ONEBIT_TESTS_SUPPORT_RANKS_HPP

#include <exception>
#include <onebit/testing/ranks.hpp>
#include <ostream>
#include <string>

namespace onebit_test {

using namespace onebit::testing;

/// What f says when it throws an E; anything else is told, so that a comparison fails and shows it.
template <class E, class F>
std::string thrown(const F& f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  } catch (const std::exception& e) {
    return std::string("thrown: another exception: ") + e.what();
  }
  return "thrown: nothing";
}

/// For CHECK(text == contains(part)).
struct contains {
  std::string part;
  friend bool operator==(const std::string& text, const contains& c) {
    return text.find(c.part) != std::string::npos;
  }
  friend std::ostream& operator<<(std::ostream& out, const contains& c) {
    return out << "... " << c.part << " ...";
  }
};

}  // namespace onebit_test

#endif
