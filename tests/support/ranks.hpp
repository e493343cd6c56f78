// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Ranks that give results, what an optimizer saves, what a call throws.

#ifndef ONEBIT_TESTS_SUPPORT_RANKS_HPP
#define ONEBIT_TESTS_SUPPORT_RANKS_HPP

#include <chrono>
#include <cstddef>
#include <exception>
#include <initializer_list>
#include <onebit/transport/threads.hpp>
#include <ostream>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace onebit_test {

/// What a loop goes through: `few`, and where all tests are built (tests/run.sh --all) `others`
/// too.
template <class T>
std::vector<T> cases(std::initializer_list<T> few, std::initializer_list<T> others) {
  std::vector<T> all(few);
#if defined(ONEBIT_TESTS_ALL)
  all.insert(all.end(), others);
#else
  (void)others;
#endif
  return all;
}

template <class Optimizer>
std::string saved(Optimizer& optimizer) {
  std::ostringstream out;
  optimizer.save(out);
  return std::move(out).str();
}

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

/// Calls f(transport) on n ranks and gives what each returned.
template <class F>
auto on_ranks(int n, const F& f, std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  using result = decltype(f(std::declval<onebit::threads>()));
  std::vector<result> results(static_cast<std::size_t>(n));
  onebit::run_threads(
      n,
      [&](onebit::threads transport) {
        results[static_cast<std::size_t>(transport.rank())] = f(transport);
      },
      timeout);
  return results;
}

}  // namespace onebit_test

#endif
