// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <onebit/backend/strict_math.hpp>
#include <onebit/testing/backend.hpp>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

using namespace onebit::testing;

namespace {

/// Counts its calls, and throws in one of them.
struct throws_at {
  std::uint32_t* counts;
  std::size_t at;
  template <class L>
  void operator()(L, std::size_t i) const {
    ++counts[i];
    if (i == at) throw std::runtime_error("thrown at " + std::to_string(i));
  }
};

// Lanes as a compiler makes them that may reassociate sums, divide by multiplying with reciprocals,
// drop a zero that is added, take no number for a NaN, or contract products and sums.
using plain = onebit::detail::portable_lanes;
struct reassociated : plain {
  static value add(const value& a, const value&) { return a; }  // (a + b) - b is a
  static value sub(const value& a, const value&) { return a; }
};
struct reciprocal : plain {
  static value div(const value& a, const value& b) { return mul(a, plain::div(set(1), b)); }
};
struct unsigned_zeros : plain {
  static value bound(const value& a, float most) { return max(a, set(-most)); }
};
struct no_nans : plain {
  static value max(const value& a, const value& b) { return select(positive(sub(b, a)), b, a); }
};
struct contracted : plain {
  static value mul(const value& a, const value&) { return a; }
  static value add(const value& a, const value& b) { return fma(a, a, b); }
};

template <class L>
void check_strict_math(const std::string& flag) {
  std::string text;
  try {
    onebit::detail::require_strict_math([](const auto& kernel) { kernel(L{}, 0); });
  } catch (const onebit::invalid_input& e) {
    text = e.what();
  }
  CAPTURE(text);
  CHECK(text.empty() == flag.empty());
  CHECK(text.find(flag) != std::string::npos);
}

#if defined(__linux__) && defined(MADV_HUGEPAGE)
/// True if the system knows that the memory at p should have huge pages.
bool prefers_huge_pages(const void* p) {
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool within = false;
  while (std::getline(maps, line)) {
    std::istringstream words(line);
    std::uintptr_t begin = 0, end = 0;
    char dash = 0;
    if (words >> std::hex >> begin >> dash >> end && dash == '-') {
      const auto at = reinterpret_cast<std::uintptr_t>(p);
      within = begin <= at && at < end;
    } else if (within && line.starts_with("VmFlags:")) {
      return line.find(" hg") != std::string::npos;
    }
  }
  return false;
}
#endif

}  // namespace

TEST_CASE_TEMPLATE_INVOKE(backend_conformance, scalar_1, scalar_2, avx2_1, avx2_2, vector_2);

TEST_CASE("host: what it is asked for is what it runs, or it throws") {
  for (const onebit::isa set : instruction_sets()) {
    const onebit::host one(1, set), three(3, set);
    CHECK(one.instruction_set() == set);
    CHECK(one.threads() == 1);
    CHECK(three.threads() == 3);
  }
  CHECK_THROWS_AS(onebit::host(0), onebit::invalid_input);
  CHECK_THROWS_AS(onebit::host(-1), onebit::invalid_input);
  for (const onebit::isa set : {onebit::isa::avx2, onebit::isa::vector, onebit::isa{3}}) {
    if (set != onebit::host::best_isa()) {
      CHECK_THROWS_AS(onebit::host(1, set), onebit::invalid_input);
    }
  }
  CHECK(onebit::host().instruction_set() == onebit::host::best_isa());
}

TEST_CASE("host: arithmetic that a compiler has changed is refused with the flag's name") {
  check_strict_math<plain>("");
  check_strict_math<reassociated>("-fassociative-math");
  check_strict_math<reciprocal>("-freciprocal-math");
  check_strict_math<unsigned_zeros>("-fno-signed-zeros");
  check_strict_math<no_nans>("-ffinite-math-only");
  check_strict_math<contracted>("-ffp-contract=fast");
}

#if defined(__linux__) && defined(MADV_HUGEPAGE)
TEST_CASE("host: large buffers ask for huge pages, and are zeroed as all are") {
  constexpr std::size_t mib = std::size_t{1} << 20U;
  void* const own =
      ::mmap(nullptr, 4 * mib, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(own != MAP_FAILED);
  const bool known = ::madvise(own, 4 * mib, MADV_HUGEPAGE) == 0 && prefers_huge_pages(own);
  ::munmap(own, 4 * mib);
  if (!known) {
    MESSAGE("skipped: this system has no huge pages on request");
    return;
  }
  const onebit::host backend;
  for (const std::size_t n : {std::size_t{1}, 2 * mib, 8 * mib + 3}) {
    errno = 77;
    const auto buffer = backend.make_buffer<unsigned char>(n);
    CHECK(errno == 77);
    CHECK(std::count(buffer.data(), buffer.data() + n, 0) == static_cast<std::ptrdiff_t>(n));
    if (n > 4 * mib) CHECK(prefers_huge_pages(buffer.data() + n / 2));
  }
}
#endif

TEST_CASE("host: more threads than work, and many small launches") {
  onebit::host backend(5);
  auto counts = backend.make_buffer<std::uint32_t>(7);
  for (std::uint32_t round = 0; round < 2000; ++round) {
    backend.launch(round % 8, backend_suite::count_calls{counts.data()});
  }
  for (std::size_t i = 0; i < 7; ++i) {  // round % 8 > i
    CHECK(counts.data()[i] == 2000 / 8 * (7 - i));
  }
}

TEST_CASE("host: what a kernel throws, on any thread, the caller of launch catches") {
  for (const int threads : {1, 3}) {
    onebit::host backend(threads);
    for (std::size_t at = 0; at < 30; ++at) {
      std::vector<std::uint32_t> counts(30, 0);
      std::string text;
      try {
        backend.launch(30, throws_at{counts.data(), at});
      } catch (const std::runtime_error& e) {
        text = e.what();
      }
      CHECK(text == "thrown at " + std::to_string(at));
      for (const std::uint32_t n : counts) CHECK(n <= 1);
      CHECK(counts[at] == 1);
      // the other threads' shares are done, and the next launch is as if nothing had been
      for (std::size_t i = 0; i < 30; ++i) {
        if (threads == 3 && i / 10 != at / 10) CHECK(counts[i] == 1);
      }
      backend.launch(30, throws_at{counts.data(), 30});
      CHECK(counts[29] >= 1);
    }
    std::vector<std::uint32_t> counts(30, 0);
    backend.launch(30, throws_at{counts.data(), 30});
    CHECK(counts == std::vector<std::uint32_t>(30, 1));
  }
}

TEST_CASE("host: one handle may serve several ranks at once") {
  // Copies share the threads, so ranks of one process meet in them when a user hands one backend to
  // all. Each rank has its own buffers; all indices must run before its launch returns.
  const onebit::host shared(2);
  const auto wrong = on_ranks(4, [&](onebit::threads) {
    const onebit::host mine = shared;
    auto counts = mine.make_buffer<std::uint32_t>(64);
    std::size_t bad = 0;
    for (std::uint32_t round = 1; round <= 500; ++round) {
      mine.launch(64, backend_suite::count_calls{counts.data()});
      for (std::size_t i = 0; i < 64; ++i) bad += counts.data()[i] != round ? 1U : 0U;
    }
    return bad;
  });
  for (const std::size_t bad : wrong) CHECK(bad == 0);
}
