// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/core/error.hpp>
#include <sstream>
#include <utility>

/// Predicts the time of one exchange on a network.
///
/// An alpha-beta model: a message of b bytes takes latency + b / bandwidth. Every exchange is a
/// number of turns in which each rank sends one message and receives one, and a turn takes as long
/// as its slowest message. The ranks of a node share one network card, full duplex; inside a node
/// each rank has a link of its own. Checked against simulated clusters (bench/cluster) and
/// bench/network.sh.
namespace advisor::cost {

/// Link as programs see it, in each direction: achieved values, not nominal ones.
struct link {
  double bytes_per_second = 0;
  double latency_seconds = 0;  ///< from rank to rank, for a message of no bytes
};

/// `ranks` ranks on ranks / ranks_per_node nodes. The ranks of a node are neighbours.
struct network {
  int ranks = 1;
  int ranks_per_node = 1;
  link between;  ///< network card that the ranks of a node share; unused with one node
  link inside;   ///< link of each rank to the others of its node; unused with one rank per node
};

enum class exchange : std::uint8_t {
  ring,                  ///< dense: the transport's allreduce, as a ring
  dense_gather_scatter,  ///< dense: all_to_all, sum in rank order, all_gather
  gather_scatter,        ///< compressed: all_to_all, average, all_gather, among all ranks
  all_gather,            ///< compressed: every rank sends its message to all ranks
  hierarchical,          ///< uncompressed inside a node, compressed between nodes
  in_buckets             ///< gather_scatter; one bucket travels while the next is encoded
};

[[nodiscard]] inline const char* name_of(exchange e) {
  constexpr const char* names[] = {"ring",       "dense_gather_scatter", "gather_scatter",
                                   "all_gather", "hierarchical",         "in_buckets"};
  return names[static_cast<std::size_t>(e)];
}

/// Throws invalid_input with a message of these parts.
template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  throw onebit::invalid_input(std::move(out).str());
}

/// Throws invalid_input, with the bad value, unless the network is valid.
inline void check(const network& net) {
  if (net.ranks < 1 || net.ranks_per_node < 1 || net.ranks % net.ranks_per_node != 0) {
    refuse("cost::network: ranks is ", net.ranks, " and ranks_per_node ", net.ranks_per_node,
           "; both must be at least 1, and every node must have equally many");
  }
  const auto check_link = [](const link& l, const char* name) {
    if (!(l.bytes_per_second > 0)) {
      refuse("cost::network: ", name, ".bytes_per_second is ", l.bytes_per_second,
             ", must be above 0");
    }
    if (!(l.latency_seconds >= 0 && std::isfinite(l.latency_seconds))) {
      refuse("cost::network: ", name, ".latency_seconds is ", l.latency_seconds,
             ", must be finite and at least 0");
    }
  };
  if (net.ranks > net.ranks_per_node) check_link(net.between, "between");
  if (net.ranks_per_node > 1) check_link(net.inside, "inside");
}

namespace model {

/// Seconds of a turn in which `sharers` messages of `bytes` leave and enter every network card.
/// They share the card; each also passes the link of its rank. 0 sharers: a turn inside the nodes.
[[nodiscard]] inline double turn(const network& net, double bytes, int sharers) {
  if (sharers == 0) return net.inside.latency_seconds + bytes / net.inside.bytes_per_second;
  double seconds = bytes * sharers / net.between.bytes_per_second;
  if (net.ranks_per_node > 1) seconds = std::max(seconds, bytes / net.inside.bytes_per_second);
  return net.between.latency_seconds + seconds;
}

/// Pairwise: in turn i every rank sends to the i-th rank ahead. Of the L ranks of a node, min(i, L,
/// W-i) send out of the node, and share its card. That neighbours share a node saves nothing.
[[nodiscard]] inline double all_to_all(const network& net, double slot) {
  const int w = net.ranks, l = net.ranks_per_node;
  double seconds = 0;
  for (int i = 1; i < w; ++i) {
    seconds += turn(net, slot, w > l ? std::min({i, l, w - i}) : 0);
  }
  return seconds;
}

/// W - 1 turns on a ring of neighbours. In a turn one message leaves each node and one enters.
[[nodiscard]] inline double ring(const network& net, double slot) {
  return (net.ranks - 1) * turn(net, slot, net.ranks > net.ranks_per_node ? 1 : 0);
}

inline constexpr double bit = 0.125;        ///< bytes of a bit
inline constexpr double sealed = 16;        ///< bytes of the scale and the status in a slot
inline constexpr double status_bytes = 12;  ///< bytes of the status in an uncompressed slot

}  // namespace model

/// Seconds that one exchange of all parameters takes on the network. W ranks, L of them per node,
/// N = W / L nodes, n parameters of e bytes. Bytes per second: B of a card, b of a link inside a
/// node. a: latency.
///
///   ring                  2 (W-1) (n e / W / B + a): each card sends and receives once per turn
///   dense_gather_scatter  L (W-L) n e / W / B for the all_to_all, in which L ranks share a card;
///                         (W-1) n e / W / B for the all_gather, a ring; 2 (W-1) a
///   gather_scatter        as dense_gather_scatter, with e = 1/8 and a scale per slot: 32 times as
///                         fast as fp32; less over a ring, which crosses each card only once
///   all_gather            (W-1) (n/8 / B + a): a ring
///   hierarchical          all_to_all of n e / L inside the node; gather_scatter of n / L among the
///                         N ranks of equal place, L such groups sharing each card:
///                         2 (N-1) (n/8 / N / B + a); all_gather of n/8 / L inside. With one
///                         node it is dense_gather_scatter
/// Where b is smaller, b replaces B / L and B. A message of `message_bits` per element has that
/// many times n/8 bytes. Throws invalid_input.
[[nodiscard]] inline double exchange_seconds(const network& net, exchange kind, double parameters,
                                             double dense_element_bytes, double message_bits = 1) {
  using namespace model;
  check(net);
  const double w = net.ranks, l = net.ranks_per_node, nodes = w / l;
  if (net.ranks == 1) return 0;
  const double dense = parameters * dense_element_bytes;
  const double packed = parameters * message_bits * bit;
  const auto gather_scatter = [&](double slot) { return all_to_all(net, slot) + ring(net, slot); };
  switch (kind) {
    case exchange::ring:
      return 2 * ring(net, dense / w);
    case exchange::dense_gather_scatter:
      return gather_scatter(dense / w + status_bytes);
    case exchange::gather_scatter:
    case exchange::in_buckets:
      return gather_scatter(packed / w + sealed);
    case exchange::all_gather:
      return ring(net, packed + sealed);
    case exchange::hierarchical:
      break;
  }
  if (nodes < 2) return gather_scatter(dense / w + status_bytes);  // one node: averages are exact
  const network node{net.ranks_per_node, net.ranks_per_node, {}, net.inside};
  const double inside =
      all_to_all(node, dense / l + status_bytes) + ring(node, packed / l + sealed);
  return inside + 2 * (nodes - 1) * turn(net, packed / l / nodes + sealed, net.ranks_per_node);
}

}  // namespace advisor::cost
