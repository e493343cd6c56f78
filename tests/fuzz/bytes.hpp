// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// What the fuzzers share: an optimizer of each kind on rank 0 of 2, whose other rank says the same
// as this one, or what the fuzzer wants.

#ifndef ONEBIT_TESTS_FUZZ_BYTES_HPP
#define ONEBIT_TESTS_FUZZ_BYTES_HPP

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <onebit/collective/hierarchical.hpp>
#include <onebit/onebit.hpp>
#include <string>
#include <utility>

#include "../support/training.hpp"

namespace onebit_test::fuzz {

/// Bytes to hand out, over and over.
struct supply {
  const std::uint8_t* data = nullptr;
  std::size_t size = 0, at = 0;
  std::uint8_t next() {
    if (size == 0) return 0;
    const std::uint8_t byte = data[at % size];
    ++at;
    return byte;
  }
};

/// Rank 0 of 2, unless told. The other ranks say what this one does; with a supply, its bytes,
/// xored.
class echo {
 public:
  explicit echo(supply* other = nullptr, int rank = 0, int size = 2)
      : other_(other), rank_(rank), size_(size) {}
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  void all_to_all(const void* send, void* receive, std::size_t n) { answer(send, receive, n); }
  void all_gather(const void* send, void* receive, std::size_t n) { answer(send, receive, n); }
  void all_reduce_sum(float* data, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) data[i] *= static_cast<float>(size_);
  }
  [[nodiscard]] echo split(int, int) const { return *this; }

 private:
  void answer(const void* own, void* receive, std::size_t n) {
    auto* to = static_cast<std::uint8_t*>(receive);
    for (int r = 0; r < size_ && n > 0; ++r) {
      auto* const slot = to + static_cast<std::size_t>(r) * n;
      std::memcpy(slot, own, n);
      if (r == rank_ || other_ == nullptr || other_->size == 0) continue;
      for (std::size_t i = 0; i < n; ++i) slot[i] ^= other_->next();
    }
  }
  supply* other_;
  int rank_, size_;
};

inline constexpr std::size_t n_kinds = 5;

/// Calls f(optimizer) with one of a kind.
template <class F>
auto with_optimizer(std::size_t k, training<>& data, const echo& t, const F& f) {
  onebit::one_bit_adam_options o;
  o.freeze.after = 3;
  o.refreshes = 2;
  onebit::one_bit_lamb_options l;
  l.freeze.after = 3;
  onebit::zero_one_adam_options z;
  z.schedule.kappa = 2;
  z.schedule.warmup_steps = 2;
  z.schedule.doubling_steps = 2;
  z.schedule.max_interval = 2;
  const auto groups = data.groups();
  const onebit::host backend(1, onebit::isa::scalar);
  if (k == 0) {
    auto own =
        onebit::one_bit_adam(groups, t, o, onebit::gather_scatter<onebit::sign<>>{}, backend);
    return f(own);
  }
  if (k == 1) {
    auto own =
        onebit::one_bit_lamb(groups, t, l, onebit::gather_scatter<onebit::sign<>>{}, backend);
    return f(own);
  }
  if (k == 2) {
    auto own =
        onebit::zero_one_adam(groups, t, z, onebit::gather_scatter<onebit::sign<>>{}, backend);
    return f(own);
  }
  if (k == 3) {
    auto own = onebit::one_bit_adam(groups, t, o, onebit::all_gather<onebit::sign<>>{}, backend);
    return f(own);
  }
  auto own = onebit::adam(groups, t, {}, backend);
  return f(own);
}
inline const std::vector<std::size_t>& sizes() {
  static const std::vector<std::size_t> s = {33, 0, 70};
  return s;
}

/// Where seeds go: set ONEBIT_FUZZ_SEEDS to a folder, and a fuzzer writes its own there as it
/// starts.
inline void write_seed(const std::string& name, const std::string& bytes) {
  if (const char* folder = std::getenv("ONEBIT_FUZZ_SEEDS")) {
    std::ofstream(std::string(folder) + "/" + name, std::ios::binary) << bytes;
  }
}

}  // namespace onebit_test::fuzz

#endif  // ONEBIT_TESTS_FUZZ_BYTES_HPP
