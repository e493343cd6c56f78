// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstring>
#include <onebit/onebit.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

/// Custom collective: the ranks gather messages in log2(W) rounds. In round k each rank exchanges
/// all slots that it has with the rank whose number differs in bit k. For networks on which the
/// transport's all_gather is slow with many ranks. Host only; W is a power of two.
class doubling_gather {
 public:
  explicit doubling_gather(const onebit::communicator& w) : rank_(w.rank()) {
    for (int d = 1; d < w.size(); d *= 2) {
      pairs_.push_back(w.split(rank_ - (rank_ & d), rank_));  // colour: the pair's lower rank
    }
  }
  void all_gather(const std::byte* own, std::byte* all, std::size_t slot_bytes) {
    const auto at = [&](int r) { return all + static_cast<std::size_t>(r) * slot_bytes; };
    std::memcpy(at(rank_), own, slot_bytes);
    int d = 1;  // slots that this rank has: [first, first + d)
    for (onebit::communicator& pair : pairs_) {
      const int first = rank_ & ~(d - 1), both = first & ~d;
      const std::size_t n = static_cast<std::size_t>(d) * slot_bytes;
      had_.assign(at(first), at(first) + n);
      pair.all_gather(had_.data(), at(both), n);
      d *= 2;
    }
  }

 private:
  int rank_;
  std::vector<onebit::communicator> pairs_;
  std::vector<std::byte> had_;
};

template <class C>
struct recursive_doubling : onebit::collective_defaults {
  static_assert((onebit::check_compressor<C>(), true));  // names members that C lacks
  static constexpr bool splits = true;                   // calls split on the transport
  C codec{};

  recursive_doubling() = default;
  explicit recursive_doubling(C c) : codec(std::move(c)) {}

  std::string name() const { return "recursive doubling of " + onebit::policy_name(codec); }

  template <class B>
  using exchange = onebit::all_gather_exchange<C, B, doubling_gather>;
  template <class B>
  exchange<B> bind(const onebit::communicator& w, const B& backend,
                   std::span<const std::size_t> sizes) const {
    if ((w.size() & (w.size() - 1)) != 0) {
      throw onebit::invalid_input("recursive_doubling: " + std::to_string(w.size()) +
                                  " ranks; it takes a power of two");
    }
    return {codec, w, backend, sizes};
  }
};

static_assert((onebit::check_collective<recursive_doubling<onebit::sign<>>>(), true));
