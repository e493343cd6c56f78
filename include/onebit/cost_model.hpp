// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/error.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

/// What a run will take, predicted from a few numbers: does compression pay, and which kind?
///
/// An alpha-beta model: a message of b bytes takes latency + b / bandwidth. Every exchange is a
/// number of turns in which each rank sends one message and receives one, and a turn takes as long
/// as its slowest message. The ranks of a node share one network card, full duplex; inside a node
/// each rank has a link of its own. Communication and computation do not overlap, as in the papers.
/// It knows no buckets. Checked against simulated clusters (bench/cluster) and bench/network.sh.
namespace onebit::cost {

/// What a program gets of a link, in each direction; not what is printed on it.
struct link {
  double bytes_per_second = 0;
  double latency_seconds = 0;  ///< from rank to rank, for a message of no bytes
};

/// `ranks` on ranks / ranks_per_node nodes, the ranks of a node being neighbours.
struct network {
  int ranks = 1;
  int ranks_per_node = 1;
  link between;  ///< of the network card that the ranks of a node share; unused with one node
  link inside;   ///< of each rank, to the others of its node; unused with one rank per node
};

/// Passes over memory, in ns per parameter of the model. What they cost depends on the rank's
/// memory bandwidth: divide the bytes by it, or measure.
struct passes {
  double encode_ns = 0;  ///< of a compressed step: about 16.4 bytes
  double serve_ns = 0;   ///< reading one bit for each parameter out of slots: about 1/8 byte
  double update_ns = 0;  ///< of a step that is not dense, local steps included: about 12.3 bytes
  double sum_ns = 0;     ///< adding what one rank sent in full: about 8 bytes
};

/// Steps by what they send: the members of `step_counts`, which a dry run of a schedule gives.
struct step_mix {
  std::uint64_t dense = 0;       ///< average the gradient
  std::uint64_t compressed = 0;  ///< exchange
  std::uint64_t both = 0;
  std::uint64_t local = 0;  ///< send nothing

  [[nodiscard]] std::uint64_t steps() const { return dense + compressed + both + local; }
  /// Of 1-bit Adam and 1-bit LAMB.
  [[nodiscard]] static step_mix freeze_after(std::uint64_t warmup_steps, std::uint64_t steps) {
    const std::uint64_t dense = std::min(warmup_steps, steps);
    return {dense, steps - dense, 0, 0};
  }
  template <class Counts>
  [[nodiscard]] static step_mix of(const Counts& n) {
    return {n.dense, n.compressed, n.both, n.local};
  }
};

/// One training run. A mix of no steps leaves its algorithm out.
struct workload {
  double parameters = 0;
  double dense_element_bytes = 4;       ///< of an uncompressed element on the wire
  double allreduce_factor = 1;          ///< seconds of the real allreduce / exchange::ring
  double forward_backward_seconds = 0;  ///< of one step, gradient accumulation included
  double dense_update_seconds = 0;      ///< of the optimizer's arithmetic in a dense step
  passes compression;                   ///< the same for the steps that are not dense
  std::uint64_t steps = 1;              ///< of the uncompressed run: Adam, LAMB
  step_mix one_bit_adam, one_bit_lamb, zero_one_adam;
};

enum class algorithm : std::uint8_t { adam, one_bit_adam, one_bit_lamb, zero_one_adam };

enum class exchange : std::uint8_t {
  ring,                  ///< dense: the transport's allreduce, as a ring
  dense_gather_scatter,  ///< dense: all_to_all, sum in rank order, all_gather
  gather_scatter,        ///< compressed: all_to_all, average, all_gather, among all ranks
  all_gather,            ///< compressed: everything to everyone
  hierarchical           ///< in full inside a node, compressed between nodes
};

[[nodiscard]] inline const char* name_of(algorithm a) {
  constexpr const char* names[] = {"adam", "one_bit_adam", "one_bit_lamb", "zero_one_adam"};
  return names[static_cast<std::size_t>(a)];
}
[[nodiscard]] inline const char* name_of(exchange e) {
  constexpr const char* names[] = {"ring", "dense_gather_scatter", "gather_scatter", "all_gather",
                                   "hierarchical"};
  return names[static_cast<std::size_t>(e)];
}

/// Throws invalid_input, with the number, unless both can be computed with.
inline void check(const network& net) {
  const auto refuse = [](const auto&... parts) {
    throw invalid_input(detail::message("cost::network: ", parts...));
  };
  if (net.ranks < 1 || net.ranks_per_node < 1 || net.ranks % net.ranks_per_node != 0) {
    refuse("ranks is ", net.ranks, " and ranks_per_node ", net.ranks_per_node,
           "; both must be at least 1, and every node must have equally many");
  }
  const auto check_link = [&](const link& l, const char* name) {
    if (!(l.bytes_per_second > 0)) {
      refuse(name, ".bytes_per_second is ", l.bytes_per_second, ", must be above 0");
    }
    if (!(l.latency_seconds >= 0 && std::isfinite(l.latency_seconds))) {
      refuse(name, ".latency_seconds is ", l.latency_seconds, ", must be finite and at least 0");
    }
  };
  if (net.ranks > net.ranks_per_node) check_link(net.between, "between");
  if (net.ranks_per_node > 1) check_link(net.inside, "inside");
}
inline void check(const workload& work) {
  const auto at_least = [](double least, double x, const char* name) {
    if (x >= least && std::isfinite(x)) return;
    throw invalid_input(detail::message("cost::workload: ", name, " is ", x,
                                        ", must be finite and at least ", least));
  };
  at_least(1, work.parameters, "parameters");
  at_least(0.125, work.dense_element_bytes, "dense_element_bytes");
  at_least(0, work.allreduce_factor, "allreduce_factor");
  at_least(0, work.forward_backward_seconds, "forward_backward_seconds");
  at_least(0, work.dense_update_seconds, "dense_update_seconds");
  at_least(0, work.compression.encode_ns, "compression.encode_ns");
  at_least(0, work.compression.serve_ns, "compression.serve_ns");
  at_least(0, work.compression.update_ns, "compression.update_ns");
  at_least(0, work.compression.sum_ns, "compression.sum_ns");
  at_least(1, static_cast<double>(work.steps), "steps");
}

namespace model {

/// A turn in which `sharers` messages of `bytes` leave and enter every network card: they share
/// it, and each passes the rank's own link too.
[[nodiscard]] inline double turn(const network& net, double bytes, int sharers) {
  if (sharers == 0) return net.inside.latency_seconds + bytes / net.inside.bytes_per_second;
  double seconds = bytes * sharers / net.between.bytes_per_second;
  if (net.ranks_per_node > 1) seconds = std::max(seconds, bytes / net.inside.bytes_per_second);
  return net.between.latency_seconds + seconds;
}

/// Pairwise: in turn i every rank sends to the i-th ahead. Of the L ranks of a node, min(i, L, W-i)
/// send out of it: nothing is won by neighbours sharing a node, and all share its card.
[[nodiscard]] inline double all_to_all(const network& net, double slot) {
  const int w = net.ranks, l = net.ranks_per_node;
  double seconds = 0;
  for (int i = 1; i < w; ++i) {
    seconds += turn(net, slot, w > l ? std::min({i, l, w - i}) : 0);
  }
  return seconds;
}

/// W - 1 turns on a ring of neighbours: one message leaves each node and one enters it.
[[nodiscard]] inline double ring(const network& net, double slot) {
  return (net.ranks - 1) * turn(net, slot, net.ranks > net.ranks_per_node ? 1 : 0);
}

/// The ranks inside a node, as a network of their own.
[[nodiscard]] inline network one_node(const network& net) {
  return {net.ranks_per_node, net.ranks_per_node, net.between, net.inside};
}

inline constexpr double bit = 0.125;       ///< bytes of a compressed element
inline constexpr double sealed = 8;        ///< bytes of the scale and the status in a slot
inline constexpr double status_bytes = 4;  ///< in a slot that is not compressed

}  // namespace model

/// Seconds that one exchange of all parameters takes on the network. W ranks, L of them per node,
/// N = W / L nodes, n parameters of e bytes; B the card, b a link inside, a the latency.
///
///   ring                  2 (W-1) (n e / W / B + a): each card sends and receives once per turn
///   dense_gather_scatter  L (W-L) n e / W / B for the all_to_all, in which L ranks share a card;
///                         (W-1) n e / W / B for the all_gather, a ring; 2 (W-1) a
///   gather_scatter        the same with e = 1/8 and a scale per slot: it gains 32 times (of fp32)
///                         over that, but less over a ring, which crosses each card only once
///   all_gather            (W-1) (n/8 / B + a): a ring
///   hierarchical          all_to_all of n e / L inside the node; gather_scatter of n / L among the
///                         N ranks of equal place, L such groups sharing each card:
///                         2 (N-1) (n/8 / N / B + a); all_gather of n/8 / L inside. With one
///                         node it is dense_gather_scatter
///
/// B / L and B are replaced by b where that is slower. Throws invalid_input.
[[nodiscard]] inline double exchange_seconds(const network& net, exchange kind, double parameters,
                                             double dense_element_bytes) {
  using namespace model;
  check(net);
  const double w = net.ranks, l = net.ranks_per_node, nodes = w / l;
  if (net.ranks == 1) return 0;
  const double dense = parameters * dense_element_bytes, packed = parameters * bit;
  const auto gather_scatter = [&](double slot) { return all_to_all(net, slot) + ring(net, slot); };
  switch (kind) {
    case exchange::ring:
      return 2 * ring(net, dense / w);
    case exchange::dense_gather_scatter:
      return gather_scatter(dense / w + status_bytes);
    case exchange::gather_scatter:
      return gather_scatter(packed / w + sealed);
    case exchange::all_gather:
      return ring(net, packed + sealed);
    case exchange::hierarchical:
      break;
  }
  if (nodes < 2) return gather_scatter(dense / w + status_bytes);  // exact then
  const network node = one_node(net);
  const double inside =
      all_to_all(node, dense / l + status_bytes) + ring(node, packed / l + sealed);
  return inside + 2 * (nodes - 1) * turn(net, packed / l / nodes + sealed, net.ranks_per_node);
}

/// Seconds of arithmetic in a step after that exchange. hierarchical encodes and serves n / L.
[[nodiscard]] inline double pass_seconds(const network& net, const workload& work, exchange kind) {
  const passes& p = work.compression;
  const double n = work.parameters * 1e-9, w = net.ranks, l = net.ranks_per_node;
  switch (kind) {
    case exchange::ring:  // adds up within the transport
      return work.dense_update_seconds;
    case exchange::dense_gather_scatter:
      return work.dense_update_seconds + n * p.sum_ns;
    case exchange::gather_scatter:
      return n * (p.encode_ns + p.serve_ns + p.update_ns);
    case exchange::all_gather:
      return n * (p.encode_ns + w * p.serve_ns + p.update_ns);
    case exchange::hierarchical:
      break;
  }
  return n * (p.sum_ns + (p.encode_ns + p.serve_ns) / l + p.update_ns);
}

/// One way to train.
struct prediction {
  algorithm by = algorithm::adam;
  exchange with = exchange::ring;
  double exchange_seconds = 0;  ///< of the exchange named, on the network
  double step_seconds = 0;      ///< of a step with it: dense for adam, else compressed
  double seconds = 0;           ///< of all steps, end to end
  double speed_up = 1;          ///< in steps per second, end to end, over adam with a ring
};

/// From the seconds that the exchanges take, wherever they are from. Adam takes `work.steps` dense
/// steps by `with`; the others the steps of their mix, the dense ones by a ring. Throws
/// invalid_input.
[[nodiscard]] inline prediction predict(const network& net, const workload& work, algorithm by,
                                        exchange with, double ring_seconds, double with_seconds) {
  check(net);
  check(work);
  const bool compresses = with != exchange::ring && with != exchange::dense_gather_scatter;
  if (compresses == (by == algorithm::adam)) {
    throw invalid_input(
        detail::message("cost::predict: ", name_of(by), " does not exchange by ", name_of(with)));
  }
  const double forward_backward = work.forward_backward_seconds;
  const double dense_step = forward_backward + ring_seconds + work.dense_update_seconds;
  // One rank has nobody to exchange with: its steps are dense.
  const double step = compresses && net.ranks == 1
                          ? dense_step
                          : forward_backward + with_seconds + pass_seconds(net, work, with);
  prediction p{by, with, with_seconds, step, 0, 1};
  if (!compresses) {
    p.seconds = static_cast<double>(work.steps) * step;
    p.speed_up = step > 0 ? dense_step / step : 1;
    return p;
  }
  const step_mix& mix = by == algorithm::one_bit_adam   ? work.one_bit_adam
                        : by == algorithm::one_bit_lamb ? work.one_bit_lamb
                                                        : work.zero_one_adam;
  if (mix.steps() == 0) {
    throw invalid_input(
        detail::message("cost::predict: the workload has no steps of ", name_of(by)));
  }
  const double local = net.ranks == 1
                           ? dense_step
                           : forward_backward + work.parameters * work.compression.update_ns * 1e-9;
  p.seconds = static_cast<double>(mix.dense) * dense_step +
              static_cast<double>(mix.compressed) * step +
              static_cast<double>(mix.both) * (step + ring_seconds) +
              static_cast<double>(mix.local) * local;
  p.speed_up = p.seconds > 0 ? static_cast<double>(mix.steps()) * dense_step / p.seconds : 1;
  return p;
}
/// From the sizes alone.
[[nodiscard]] inline prediction predict(const network& net, const workload& work, algorithm by,
                                        exchange with) {
  const auto seconds = [&](exchange e) {
    return exchange_seconds(net, e, work.parameters, work.dense_element_bytes) *
           (e == exchange::ring ? work.allreduce_factor : 1);
  };
  return predict(net, work, by, with, seconds(exchange::ring), seconds(with));
}

struct advice {
  std::vector<prediction> all;  ///< the fastest first
  bool pays = false;            ///< is a compressed run `worthwhile` times as fast as the others?
  std::string sentence;         ///< the same in words, with numbers
};

/// All predictions, sorted by speed-up, and what to do. A speed-up below `worthwhile` is none: the
/// model is not better than that. Every compressed algorithm of the workload is considered, with
/// hierarchical only where there are nodes of several ranks. Throws invalid_input.
[[nodiscard]] inline advice advise(const network& net, const workload& work,
                                   bool with_hierarchical = true, double worthwhile = 1.1) {
  advice a;
  for (const exchange e : {exchange::ring, exchange::dense_gather_scatter}) {
    a.all.push_back(predict(net, work, algorithm::adam, e));
  }
  const double adam = std::max(a.all[0].speed_up, a.all[1].speed_up);
  const auto add = [&](algorithm by, const step_mix& mix) {
    if (mix.steps() == 0) return;
    a.all.push_back(predict(net, work, by, exchange::gather_scatter));
    a.all.push_back(predict(net, work, by, exchange::all_gather));
    if (!with_hierarchical || net.ranks_per_node == 1 || net.ranks == net.ranks_per_node) return;
    a.all.push_back(predict(net, work, by, exchange::hierarchical));
  };
  add(algorithm::one_bit_adam, work.one_bit_adam);
  add(algorithm::one_bit_lamb, work.one_bit_lamb);
  add(algorithm::zero_one_adam, work.zero_one_adam);
  std::stable_sort(a.all.begin(), a.all.end(), [](const prediction& x, const prediction& y) {
    return x.speed_up > y.speed_up;
  });

  const auto best = std::find_if(a.all.begin(), a.all.end(),
                                 [](const prediction& p) { return p.by != algorithm::adam; });
  std::ostringstream out;
  out.precision(3);
  if (best == a.all.end()) {
    out << "No compressed algorithm was asked for.";
  } else {
    const double gain = best->speed_up / adam;
    a.pays = gain >= worthwhile;
    out << (a.pays ? "Compression pays: " : "Compression will not pay: ") << name_of(best->by)
        << " by " << name_of(best->with) << ", the fastest, makes " << gain
        << " times the steps per second of uncompressed training, end to end";
    if (!a.pays) out << ", and " << worthwhile << " times would be worth the change";
    out << ".";
  }
  a.sentence = std::move(out).str();
  return a;
}

}  // namespace onebit::cost
