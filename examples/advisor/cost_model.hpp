// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "dry_run.hpp"
#include "exchange_seconds.hpp"

/// Predicts the time of a run from a few numbers: does compression pay, and which kind?
/// Communication and computation overlap only if the workload says so; in the papers they do not.
namespace advisor::cost {

/// Passes over memory, in ns per parameter of the model. The cost depends on the memory bandwidth
/// of the rank: divide the bytes by the bandwidth, or measure.
struct passes {
  double encode_ns = 0;  ///< encoding in a compressed step: about 12.4 bytes
  double serve_ns = 0;   ///< reading one bit for each parameter out of slots: about 1/8 byte
  double update_ns = 0;  ///< update in a step that is not dense (local steps too): about 36 bytes
  double sum_ns = 0;     ///< adding the uncompressed values of one rank: about 8 bytes
};

/// One training run. Leaves out algorithms whose counts have no steps.
struct workload {
  double parameters = 0;
  double dense_element_bytes = 4;       ///< of an uncompressed element on the wire
  double allreduce_factor = 1;          ///< seconds of the real allreduce / exchange::ring
  double forward_backward_seconds = 0;  ///< of one step, gradient accumulation included
  double dense_update_seconds = 0;      ///< of the optimizer's arithmetic in a dense step
  passes compression;                   ///< passes of steps that are not dense
  std::uint64_t steps = 1;              ///< of the uncompressed run: Adam, LAMB
  step_counts one_bit_adam, one_bit_lamb, zero_one_adam;
  step_counts adam_in_4_bits;  ///< compressed_allreduce of gradients, then the trainer's own Adam
  step_counts papers_one_bit, papers_zero_one;  ///< the papers' schedules; one_bit: LAMB's too
  /// True: compressed runs average by the transport's allreduce (dense_sum::transport), a ring, as
  /// in the papers. False: the library sums, by dense_gather_scatter.
  bool averages_by_transport = false;

  /// Share of forward_backward_seconds, at its end, in which gradients come one after the other and
  /// can travel. adam's ring then models torch's DistributedDataParallel, exchange::in_buckets an
  /// optimizer with calls of `ready`. 0: nothing travels before the end of the backward pass.
  double backward_share = 0;
  double dense_bucket_bytes = 25 << 20;  ///< bucket of the ring; the first bucket has 1 MiB
  double bucket_elements = 1 << 20;      ///< bucket of in_buckets
};

/// Algorithms with the library's defaults; papers_*: with the papers' schedules.
enum class algorithm : std::uint8_t {
  adam,
  one_bit_adam,
  one_bit_lamb,
  zero_one_adam,
  adam_in_4_bits,
  papers_one_bit,
  papers_zero_one
};

[[nodiscard]] inline const char* name_of(algorithm a) {
  constexpr const char* names[] = {
      "adam",           "one_bit_adam",    "one_bit_lamb",    "zero_one_adam",
      "adam in 4 bits", "papers' one-bit", "papers' zero-one"};
  return names[static_cast<std::size_t>(a)];
}

/// Throws invalid_input, with the bad value, unless the workload is valid.
inline void check(const workload& work) {
  const auto at_least = [](double least, double x, const char* name) {
    if (x >= least && std::isfinite(x)) return;
    refuse("cost::workload: ", name, " is ", x, ", must be finite and at least ", least);
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
  at_least(0, work.backward_share, "backward_share");
  at_least(1, work.dense_bucket_bytes, "dense_bucket_bytes");
  at_least(32, work.bucket_elements, "bucket_elements");
  if (work.backward_share > 1) {
    refuse("cost::workload: backward_share is ", work.backward_share, ", must be at most 1");
  }
}

/// Seconds of arithmetic in a step that exchanges by `kind`. hierarchical encodes and serves n / L.
[[nodiscard]] inline double pass_seconds(const network& net, const workload& work, exchange kind) {
  const passes& p = work.compression;
  const double n = work.parameters * 1e-9, w = net.ranks, l = net.ranks_per_node;
  switch (kind) {
    case exchange::ring:  // the transport adds
      return work.dense_update_seconds;
    case exchange::dense_gather_scatter:
      return work.dense_update_seconds + n * p.sum_ns;
    case exchange::gather_scatter:
    case exchange::in_buckets:
      return n * (p.encode_ns + p.serve_ns + p.update_ns);
    case exchange::all_gather:
      return n * (p.encode_ns + w * p.serve_ns + p.update_ns);
    case exchange::hierarchical:
      break;
  }
  return n * (p.sum_ns + (p.encode_ns + p.serve_ns) / l + p.update_ns);
}

/// Seconds of forward, backward and a ring that takes `ring_seconds` in all. Buckets travel in the
/// order in which the backward pass completes them.
[[nodiscard]] inline double seconds_to_ring(const workload& work, double ring_seconds) {
  const double compute = work.forward_backward_seconds, backward = compute * work.backward_share;
  const double bytes = work.parameters * work.dense_element_bytes;
  double come = 0, end = 0;
  for (double bucket = std::min(1048576.0, work.dense_bucket_bytes); come < bytes;
       bucket = work.dense_bucket_bytes) {
    const double part = std::min(bucket, bytes - come);
    come += part;
    end = std::max(end, compute - backward * (1 - come / bytes)) + ring_seconds * part / bytes;
  }
  return end;
}

/// Seconds of forward, backward, encoding and the exchange in buckets. The ranks encode a bucket
/// when the backward pass has completed it; the bucket travels while they go on computing.
[[nodiscard]] inline double seconds_to_buckets(const network& net, const workload& work,
                                               double message_bits) {
  const double n = std::max(1.0, std::floor(work.parameters / work.bucket_elements));
  const double passes =
      work.parameters * 1e-9 * (work.compression.encode_ns + work.compression.serve_ns);
  const double compute = work.forward_backward_seconds + passes;
  const double making = work.forward_backward_seconds * work.backward_share + passes;
  const double part =
      exchange_seconds(net, exchange::in_buckets, work.parameters / n, 4, message_bits);
  return std::max(compute - making * (1 - 1 / n) + n * part, compute + part);
}

/// One way to train.
struct prediction {
  algorithm by = algorithm::adam;
  exchange with = exchange::ring;
  double exchange_seconds = 0;  ///< of one exchange by `with`
  double step_seconds = 0;      ///< of a step with this exchange: dense for adam, else compressed
  double seconds = 0;           ///< of all steps, end to end
  double speed_up = 1;          ///< in steps per second, end to end, over adam with a ring
};

/// Returns the counts of an algorithm that compresses.
[[nodiscard]] inline const step_counts& steps_of(const workload& work, algorithm by) {
  const step_counts* const counts[] = {&work.one_bit_adam,   &work.one_bit_lamb,
                                       &work.zero_one_adam,  &work.adam_in_4_bits,
                                       &work.papers_one_bit, &work.papers_zero_one};
  return *counts[static_cast<std::size_t>(by) - 1];
}

/// Returns the bits per element of an algorithm's messages, without scales.
[[nodiscard]] inline double bits_of(const workload& work, algorithm by) {
  return by == algorithm::adam ? 1 : std::max(1.0, std::floor(steps_of(work, by).message));
}

/// Predicts from given seconds of the exchanges. Adam takes `work.steps` dense steps by `with`;
/// other algorithms take their own counts of steps. Their dense steps average by
/// dense_gather_scatter, which does not overlap with computation, or by a ring
/// (averages_by_transport). Throws invalid_input.
[[nodiscard]] inline prediction predict(const network& net, const workload& work, algorithm by,
                                        exchange with, double ring_seconds, double with_seconds) {
  check(net);
  check(work);
  const bool compresses = with != exchange::ring && with != exchange::dense_gather_scatter;
  if (compresses == (by == algorithm::adam)) {
    refuse("cost::predict: ", name_of(by), " does not exchange by ", name_of(with));
  }
  const double forward_backward = work.forward_backward_seconds;
  const double dense_step = seconds_to_ring(work, ring_seconds) + work.dense_update_seconds;
  // A single rank does not exchange: its steps are dense.
  const bool alone = net.ranks == 1;
  const double step = (compresses && alone) || with == exchange::ring ? dense_step
                      : with == exchange::in_buckets
                          ? seconds_to_buckets(net, work, bits_of(work, by)) +
                                work.parameters * work.compression.update_ns * 1e-9
                          : forward_backward + with_seconds + pass_seconds(net, work, with);
  prediction p{by, with, with_seconds, step, 0, 1};
  if (!compresses) {
    p.seconds = static_cast<double>(work.steps) * step;
    p.speed_up = step > 0 ? dense_step / step : 1;
    return p;
  }
  const step_counts& n = steps_of(work, by);
  if (n.steps() == 0) refuse("cost::predict: the workload has no steps of ", name_of(by));
  const double local =
      alone ? dense_step : forward_backward + work.parameters * work.compression.update_ns * 1e-9;
  constexpr auto by_library = exchange::dense_gather_scatter;
  const auto summed = [&](double bytes) {
    return alone ? 0 : exchange_seconds(net, by_library, work.parameters, bytes);
  };
  double own_dense_step = dense_step, average = ring_seconds;
  if (!work.averages_by_transport && !alone) {
    average = summed(work.dense_element_bytes);
    own_dense_step = forward_backward + average + pass_seconds(net, work, by_library);
  }
  p.seconds =
      static_cast<double>(n.dense) * own_dense_step + static_cast<double>(n.compressed) * step +
      static_cast<double>(n.both) * (step + average) + static_cast<double>(n.local) * local +
      static_cast<double>(n.refreshes) * (summed(n.squares / 8) + summed(0));  // two exchanges
  p.speed_up = p.seconds > 0 ? static_cast<double>(n.steps()) * dense_step / p.seconds : 1;
  return p;
}
/// Predicts from sizes alone, with the seconds of the model.
[[nodiscard]] inline prediction predict(const network& net, const workload& work, algorithm by,
                                        exchange with) {
  const auto seconds = [&](exchange e) {
    return exchange_seconds(net, e, work.parameters, work.dense_element_bytes, bits_of(work, by)) *
           (e == exchange::ring ? work.allreduce_factor : 1);
  };
  return predict(net, work, by, with, seconds(exchange::ring), seconds(with));
}

struct advice {
  std::vector<prediction> all;  ///< the fastest first
  bool pays = false;            ///< a compressed run is `worthwhile` times as fast as the others
  std::string sentence;         ///< the advice in words, with numbers
};

/// Returns all predictions, sorted by speed-up, and advice. A speed-up below `worthwhile` counts as
/// none: the model is not more accurate. Predicts every compressed algorithm of the workload, and
/// considers all but the papers' forms. Takes hierarchical only if there are several nodes of
/// several ranks, in_buckets only if communication overlaps. Throws invalid_input.
[[nodiscard]] inline advice advise(const network& net, const workload& work,
                                   bool with_hierarchical = true, double worthwhile = 1.1) {
  advice a;
  const auto add = [&](algorithm by, exchange with) {
    a.all.push_back(predict(net, work, by, with));
  };
  add(algorithm::adam, exchange::ring);
  add(algorithm::adam, exchange::dense_gather_scatter);
  const double adam = std::max(a.all[0].speed_up, a.all[1].speed_up);
  const bool has_levels = net.ranks_per_node > 1 && net.ranks > net.ranks_per_node;
  for (const algorithm by :
       {algorithm::one_bit_adam, algorithm::one_bit_lamb, algorithm::zero_one_adam,
        algorithm::adam_in_4_bits, algorithm::papers_one_bit, algorithm::papers_zero_one}) {
    if (steps_of(work, by).steps() == 0) continue;
    add(by, exchange::gather_scatter);
    add(by, exchange::all_gather);
    if (work.backward_share > 0 && work.parameters >= 2 * work.bucket_elements) {
      add(by, exchange::in_buckets);
    }
    if (with_hierarchical && has_levels) add(by, exchange::hierarchical);
  }
  std::stable_sort(a.all.begin(), a.all.end(), [](const prediction& x, const prediction& y) {
    return x.speed_up > y.speed_up;
  });

  // The advice is the fastest at Adam's loss. 0/1 Adam, which costs loss, is named if it is faster.
  const auto fastest = [&](bool at_adams_loss) {
    return std::find_if(a.all.begin(), a.all.end(), [&](const prediction& p) {
      return p.by != algorithm::adam && p.by < algorithm::papers_one_bit &&
             !(at_adams_loss && p.by == algorithm::zero_one_adam);
    });
  };
  const auto first = fastest(false);
  const auto best = fastest(true) != a.all.end() ? fastest(true) : first;
  std::ostringstream out;
  out.precision(3);
  if (best == a.all.end()) {
    out << "No compressed algorithm was asked for.";
  } else {
    const double gain = best->speed_up / adam;
    a.pays = gain >= worthwhile;
    out << (a.pays ? "Compression pays: " : "Compression will not pay: ") << name_of(best->by)
        << " by " << name_of(best->with) << " makes " << gain
        << " times the steps per second of uncompressed training, end to end";
    if (!a.pays) out << ", and " << worthwhile << " times would be worth the change";
    out << ".";
    if (best->by == algorithm::adam_in_4_bits) {
      out << " So keep your own Adam, and average gradients by compressed_allreduce with "
             "quantized<4>: in so few steps a 1-bit optimizer sends more.";
    }
    if (first != best && first->speed_up >= worthwhile * adam) {
      out << " Faster, but up to 12% behind in loss: " << name_of(first->by) << " by "
          << name_of(first->with) << ", " << first->speed_up / adam << " times.";
    }
  }
  a.sentence = std::move(out).str();
  return a;
}

}  // namespace advisor::cost
