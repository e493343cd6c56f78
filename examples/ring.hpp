// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <onebit/onebit.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

/// Custom collective with its own roles: a compressed ring allreduce. There are W buckets. A bucket
/// starts at one rank; each rank decodes the partial sum that it receives, adds its own message and
/// residual, encodes the sum, and sends it to the right. After W - 1 rounds one rank holds the sum
/// of all ranks for this bucket; an all_gather sends the W sums to all ranks. Host only.
template <onebit::Compressor C, class B>
class ring_exchange : public onebit::worker_exchange<C, B> {
  using base = onebit::worker_exchange<C, B>;
  using base::sender_, base::comm_, base::gathered, base::work;

 public:
  static constexpr bool own_messages = false;  // the sender encodes partial sums

  ring_exchange(C codec, const onebit::communicator& w, B backend,
                std::span<const std::size_t> sizes)
      : base(std::move(codec), w, std::move(backend), sizes, 1,
             static_cast<std::size_t>(w.size()) + 1, w.size()) {
    if (w.size() == 1) return;
    // Pairs of neighbours that share no rank exchange at once: even edges, odd edges, then the last
    // edge if W is odd. All ranks call split, including ranks without a pair in this turn.
    const int me = w.rank(), left = of(me - 1);
    for (int turn = 0; turn < 2 + w.size() % 2; ++turn) {
      const bool to_right = turn_of(me) == turn, from_left = turn_of(left) == turn;
      onebit::communicator pair = w.split(to_right ? me : from_left ? left : w.size() + me, me);
      if (to_right || from_left) edges_.push_back({std::move(pair), to_right});
    }
  }

  template <class Produce, class Undo>
  void all_reduce(const Produce& produce, onebit::exchange_args<Undo> t) {
    const int w = comm_.size(), me = comm_.rank();
    const float most = t.bound.most;  // bound of means
    for (int k = 0; k < w; ++k) {
      const int bucket = of(me - k - 1);
      t.bound.most = most * static_cast<float>(k + 1);
      if (k == 0) {
        sender_.encode(produce, t, gathered(0), bucket);
        continue;
      }
      pass(gathered(of(me - k)), work(bucket));
      sender_.run_check({.now = t.now,
                         .slots = work(bucket),
                         .n = 1,
                         .part = static_cast<std::uint32_t>(bucket),
                         .propagate = true,  // a skip goes on with the sum
                         .ranks = {.n = 1, .first = static_cast<std::uint32_t>(of(me - 1))}});
      const onebit::gathered_view<C> came{sender_.codec(), sender_.format(), work(0), t.active,
                                          onebit::tile_buffer::latest};
      sender_.encode(plus<Produce>{produce, came}, t, gathered(0), bucket);
    }
    const std::size_t bytes = base::slot_bytes();
    std::copy_n(gathered(me), bytes, work(w));
    comm_.all_gather(work(w), gathered(0), bytes);
    const auto n = static_cast<std::uint32_t>(w);
    sender_.run_check({.now = t.now,
                       .slots = gathered(0),
                       .n = n,
                       .part = 0,
                       .ranks = {.n = n, .slots_per_bucket = 1}});
  }

 private:
  /// The message of this rank plus a partial sum.
  template <class Produce>
  struct plus {
    Produce own;
    onebit::gathered_view<C> came;

    template <class L>
    struct reader {
      decltype(std::declval<const Produce&>().template at<L>(onebit::tile{}, 0)) own;
      typename onebit::gathered_view<C>::template reader<L> came;
      typename L::value operator()(std::uint32_t k, const typename L::value& residual) const {
        return L::add(own(k, residual), came(k));
      }
    };
    template <class L>
    reader<L> at(const onebit::tile& t, std::size_t index) const {
      return {own.template at<L>(t, index), came.template at<L>(t, index)};
    }
  };
  struct edge {
    onebit::communicator pair;
    bool to_right;
  };

  [[nodiscard]] int of(int rank) const { return (rank + 2 * comm_.size()) % comm_.size(); }
  /// Turn of edge e, which joins ranks e and e + 1.
  [[nodiscard]] int turn_of(int e) const {
    return comm_.size() % 2 != 0 && e == comm_.size() - 1 ? 2 : e % 2;
  }
  /// Sends a slot to the right, and receives one from the left.
  void pass(const std::byte* sent, std::byte* received) {
    const std::size_t bytes = base::slot_bytes();
    both_.resize(2 * bytes);
    for (edge& e : edges_) {
      e.pair.all_gather(sent, both_.data(), bytes);
      const std::size_t other = e.pair.rank() == 0 ? bytes : 0;
      if (!e.to_right) std::copy_n(both_.data() + other, bytes, received);
    }
  }

  std::vector<edge> edges_;
  std::vector<std::byte> both_;
};

template <class C>
struct ring : onebit::collective_defaults {
  static_assert((onebit::check_compressor<C>(), true));
  static constexpr bool splits = true;  // calls split on the transport
  C codec{};

  ring() = default;
  explicit ring(C c) : codec(std::move(c)) {}
  std::string name() const { return "ring of " + onebit::policy_name(codec); }

  template <class B>
  using exchange = ring_exchange<C, B>;
  template <class B>
  exchange<B> bind(const onebit::communicator& w, const B& backend,
                   std::span<const std::size_t> sizes) const {
    return {codec, w, backend, sizes};
  }
};

static_assert((onebit::check_collective<ring<onebit::sign<>>>(), true));
