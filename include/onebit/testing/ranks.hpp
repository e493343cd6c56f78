// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Ranks that give results, and what an optimizer saves.

#include <chrono>
#include <cstddef>
#include <initializer_list>
#include <onebit/transport/threads.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace onebit { inline namespace v0_3 { namespace testing {

/// What a loop goes through: `few`, and with ONEBIT_TESTS_ALL (tests/run.sh --all) `others` too.
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

}}}  // namespace onebit::testing
