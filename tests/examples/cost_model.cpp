// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#include "../examples/advisor/cost_model.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <onebit/onebit.hpp>
#include <string>
#include <vector>

#include "../examples/advisor/dry_run.hpp"

namespace cost = advisor::cost;
using cost::algorithm;
using cost::exchange;

namespace {

constexpr double bert_large = 336226108;
constexpr double infinity = std::numeric_limits<double>::infinity();
const std::vector<exchange> dense = {exchange::ring, exchange::dense_gather_scatter};
const std::vector<exchange> compressed = {exchange::gather_scatter, exchange::all_gather,
                                          exchange::hierarchical};

std::vector<exchange> all() {
  std::vector<exchange> e = dense;
  e.insert(e.end(), compressed.begin(), compressed.end());
  return e;
}

/// The clusters of bench/cluster/run.sh.
cost::network cluster(int nodes, int ranks_per_node, double gbit) {
  return {nodes * ranks_per_node, ranks_per_node, {gbit * 1e9 / 8, 30e-6}, {100e9 / 8, 5e-6}};
}

cost::workload papers_run() {
  cost::workload w;
  w.parameters = bert_large;
  w.dense_element_bytes = 2;
  w.forward_backward_seconds = 96.52e-3;
  w.dense_update_seconds = 75.59e-3;
  w.compression = {0.024, 0.0004, 0.225, 0.006};
  w.steps = 152000;
  w.averages_by_transport = true;
  w.one_bit_adam = advisor::step_counts::freeze_after(23000, 152000);
  w.zero_one_adam = advisor::dry_run(
      onebit::intervals(
          {.kappa = 16, .warmup_steps = 12500, .doubling_steps = 32678, .max_interval = 16}),
      162000, [](std::uint64_t) { return 1.0F; });
  return w;
}

double seconds(const cost::network& net, exchange e) {
  return cost::exchange_seconds(net, e, bert_large, 2);
}

template <class F>
std::string refusal(const F& f) {
  try {
    f();
  } catch (const onebit::invalid_input& e) {
    return e.what();
  }
  return "";
}

struct simulated {
  int nodes, ranks_per_node;
  double gbit;
  exchange kind;
  double seconds;
};

/// Written by bench/cluster/run.sh --out bench/results/2026-11-21-cluster (SimGrid 3.32).
const simulated simulation[] = {
    {2, 4, 4.8, exchange::ring, 1.96177},
    {2, 4, 4.8, exchange::dense_gather_scatter, 3.22262},
    {2, 4, 4.8, exchange::gather_scatter, 0.201837},
    {2, 4, 4.8, exchange::hierarchical, 0.113036},
    {2, 4, 4.8, exchange::all_gather, 0.49057},
    {16, 1, 2.7, exchange::ring, 3.73678},
    {16, 1, 2.7, exchange::dense_gather_scatter, 3.73678},
    {16, 1, 2.7, exchange::gather_scatter, 0.234423},
    {16, 1, 2.7, exchange::hierarchical, 0.234423},
    {16, 1, 2.7, exchange::all_gather, 1.86841},
    {16, 1, 100, exchange::ring, 0.101798},
    {16, 1, 100, exchange::dense_gather_scatter, 0.101798},
    {16, 1, 100, exchange::gather_scatter, 0.007234},
    {16, 1, 100, exchange::hierarchical, 0.007234},
    {16, 1, 100, exchange::all_gather, 0.050914},
    {16, 4, 4.8, exchange::ring, 2.2103},
    {16, 4, 4.8, exchange::dense_gather_scatter, 5.30989},
    {16, 4, 4.8, exchange::gather_scatter, 0.335453},
    {16, 4, 4.8, exchange::hierarchical, 0.175174},
    {16, 4, 4.8, exchange::all_gather, 4.41489},
    {16, 4, 40, exchange::ring, 0.268589},
    {16, 4, 40, exchange::dense_gather_scatter, 0.64054},
    {16, 4, 40, exchange::gather_scatter, 0.043607},
    {16, 4, 40, exchange::hierarchical, 0.05959},
    {16, 4, 40, exchange::all_gather, 0.531477},
    {16, 8, 10, exchange::ring, 1.07517},
    {16, 8, 10, exchange::dense_gather_scatter, 4.57617},
    {16, 8, 10, exchange::gather_scatter, 0.293204},
    {16, 8, 10, exchange::hierarchical, 0.114063},
    {16, 8, 10, exchange::all_gather, 4.27392},
    {32, 4, 2.7, exchange::ring, 3.96144},
    {32, 4, 2.7, exchange::dense_gather_scatter, 9.70539},
    {32, 4, 2.7, exchange::gather_scatter, 0.613806},
    {32, 4, 2.7, exchange::hierarchical, 0.286087},
    {32, 4, 2.7, exchange::all_gather, 15.8189},
    {32, 8, 2.7, exchange::ring, 3.9847},
    {32, 8, 2.7, exchange::dense_gather_scatter, 17.442},
    {32, 8, 2.7, exchange::gather_scatter, 1.10466},
    {32, 8, 2.7, exchange::hierarchical, 0.293299},
    {32, 8, 2.7, exchange::all_gather, 31.7624},
    {64, 4, 100, exchange::ring, 0.122503},
    {64, 4, 100, exchange::dense_gather_scatter, 0.280746},
    {64, 4, 100, exchange::gather_scatter, 0.031921},
    {64, 4, 100, exchange::hierarchical, 0.05333},
    {64, 4, 100, exchange::all_gather, 0.865057},
    {64, 8, 40, exchange::ring, 0.29915},
    {64, 8, 40, exchange::gather_scatter, 0.105299},
    {64, 8, 40, exchange::hierarchical, 0.070449},
    {128, 4, 2.7, exchange::ring, 4.00788},
    {128, 4, 2.7, exchange::gather_scatter, 0.649413},
    {128, 4, 2.7, exchange::hierarchical, 0.29776},
    {256, 1, 2.7, exchange::ring, 3.9847},
    {256, 1, 2.7, exchange::dense_gather_scatter, 3.98478},
    {256, 1, 2.7, exchange::gather_scatter, 0.263467},
    {256, 1, 2.7, exchange::hierarchical, 0.263467},
    {256, 1, 100, exchange::ring, 0.122503},
    {256, 1, 100, exchange::dense_gather_scatter, 0.122505},
    {256, 1, 100, exchange::gather_scatter, 0.02203},
    {256, 1, 100, exchange::hierarchical, 0.02203},
    {256, 8, 2.7, exchange::hierarchical, 0.313913},
};

/// The same with SimGrid's factors for TCP, with which the model was not made. Its worst is 15.0%
/// too little, all_gather on 16 nodes of 8 ranks at 40 Gbit/s: there SimGrid lets the
/// acknowledgements of a long way may lose against the traffic inside a node (not examined).
const simulated simulation_of_tcp[] = {
    {16, 4, 2.7, exchange::ring, 4.42252},
    {16, 4, 2.7, exchange::dense_gather_scatter, 10.5732},
    {16, 4, 2.7, exchange::gather_scatter, 0.70217},
    {16, 4, 2.7, exchange::hierarchical, 0.319374},
    {16, 4, 2.7, exchange::all_gather, 8.77895},
    {16, 4, 40, exchange::ring, 0.379358},
    {16, 4, 40, exchange::dense_gather_scatter, 0.774874},
    {16, 4, 40, exchange::gather_scatter, 0.088495},
    {16, 4, 40, exchange::hierarchical, 0.076332},
    {16, 4, 40, exchange::all_gather, 0.72057},
    {64, 1, 10, exchange::ring, 1.22625},
    {64, 1, 10, exchange::dense_gather_scatter, 1.22626},
    {64, 1, 10, exchange::gather_scatter, 0.117963},
    {64, 1, 10, exchange::hierarchical, 0.117963},
    {64, 1, 10, exchange::all_gather, 2.38643},
};

}  // namespace

TEST_CASE("cost model: within 15% of every simulated exchange") {
  for (const simulated& s : simulation) {
    CAPTURE(s.nodes);
    CAPTURE(s.ranks_per_node);
    CAPTURE(s.gbit);
    CAPTURE(cost::name_of(s.kind));
    const double predicted = seconds(cluster(s.nodes, s.ranks_per_node, s.gbit), s.kind);
    CHECK(std::fabs(predicted / s.seconds - 1) < 0.15);
  }
}

TEST_CASE("cost model: within 15% with TCP's share of bandwidth and latency taken off the links") {
  for (const simulated& s : simulation_of_tcp) {
    CAPTURE(s.nodes);
    CAPTURE(s.ranks_per_node);
    CAPTURE(s.gbit);
    CAPTURE(cost::name_of(s.kind));
    cost::network net = cluster(s.nodes, s.ranks_per_node, s.gbit);
    for (cost::link* l : {&net.between, &net.inside}) {  // SimGrid 3.32, messages above 64 KiB
      l->bytes_per_second *= 0.940694 / 1.05;
      l->latency_seconds *= 11.6436;
    }
    CHECK(std::fabs(seconds(net, s.kind) / s.seconds - 1) < 0.15);
  }
}

TEST_CASE("cost model: one effective bandwidth explains the papers' allreduces to 4%") {
  const std::vector<std::pair<int, double>> rows = {
      {16, 2.27543}, {8, 2.17335}, {4, 2.13324}, {2, 1.89721}};
  for (const auto& [nodes, measured] : rows) {
    CHECK(std::fabs(seconds(cluster(nodes, 4, 4.8), exchange::ring) / measured - 1) < 0.04);
  }
}

TEST_CASE("cost model: one rank exchanges nothing, and compression cannot pay") {
  const cost::network alone;  // no link is looked at
  for (const exchange e : all()) CHECK(seconds(alone, e) == 0);
  const cost::advice a = cost::advise(alone, papers_run());
  CHECK_FALSE(a.pays);
  for (const cost::prediction& p : a.all) CHECK(p.speed_up <= 1);
}

TEST_CASE("cost model: with bandwidth without end, compression does not pay") {
  cost::network net = cluster(16, 4, 10);
  net.between = {infinity, 0};
  net.inside = {infinity, 0};
  for (const exchange e : all()) CHECK(seconds(net, e) == 0);
  const cost::advice a = cost::advise(net, papers_run());
  CHECK_FALSE(a.pays);
  CHECK(a.all.front().by == algorithm::adam);
  CHECK(a.sentence.find("will not pay") != std::string::npos);
}

TEST_CASE("cost model: slow networks pay, and the advice says how much") {
  const cost::advice a = cost::advise(cluster(16, 4, 2.7), papers_run());
  CHECK(a.pays);
  CHECK(a.all.size() == 8);
  CHECK(a.all.front().by == algorithm::zero_one_adam);
  CHECK(a.all.front().with == exchange::hierarchical);
  CHECK(a.sentence.find("Compression pays: one_bit_adam by hierarchical") != std::string::npos);
  for (std::size_t i = 1; i < a.all.size(); ++i) {
    CHECK(a.all[i - 1].speed_up >= a.all[i].speed_up);
  }
  const cost::advice flat = cost::advise(cluster(16, 4, 2.7), papers_run(), false);
  CHECK(flat.all.size() == 6);
  CHECK(flat.all.front().with == exchange::gather_scatter);
}

TEST_CASE("cost model: a short run on a slow network: 4 bits into the trainer's own Adam") {
  cost::workload w = papers_run();
  w.zero_one_adam = {};
  w.averages_by_transport = false;
  const auto best = [&](std::uint64_t steps) {
    w.steps = steps;
    w.one_bit_adam = advisor::one_bit_run(steps, advisor::squares_bits(w.parameters));
    w.adam_in_4_bits = advisor::four_bits_run(steps);
    return cost::advise(cluster(16, 1, 1), w);
  };
  CHECK(best(20).all.front().by == algorithm::adam_in_4_bits);
  CHECK(best(20).sentence.find("quantized<4>") != std::string::npos);
  CHECK(best(1000).all.front().by == algorithm::one_bit_adam);
  CHECK(best(1000).sentence.find("quantized<4>") == std::string::npos);
  // five words of 32 in place of one
  const cost::network net = cluster(16, 1, 1);
  const double n = 1e9, one = cost::exchange_seconds(net, exchange::gather_scatter, n, 4);
  CHECK(cost::exchange_seconds(net, exchange::gather_scatter, n, 4, 5) ==
        doctest::Approx(5 * one).epsilon(1e-2));
}

TEST_CASE("cost model: more bandwidth or less latency never takes longer; more elements do") {
  for (const int ranks_per_node : {1, 4}) {
    for (const exchange e : all()) {
      CAPTURE(cost::name_of(e));
      double last = infinity;
      for (const double gbit : {1.0, 2.7, 10.0, 40.0, 100.0, 400.0}) {
        const double now = seconds(cluster(8, ranks_per_node, gbit), e);
        CHECK(now <= last);
        last = now;
      }
      cost::network net = cluster(8, ranks_per_node, 10);
      const double before = seconds(net, e);
      net.between.latency_seconds *= 10;
      CHECK(seconds(net, e) > before);
      CHECK(cost::exchange_seconds(net, e, 2e6, 2) > cost::exchange_seconds(net, e, 1e6, 2));
    }
  }
}

TEST_CASE("cost model: volumes, on nodes of one rank and a network without latency") {
  for (const int w : {2, 3, 16, 64}) {
    cost::network net = cluster(w, 1, 8);  // 1e9 bytes per second
    net.between.latency_seconds = 0;
    const double share = (w - 1.0) / w, n = 1e9;
    const auto close = [&](exchange e, double element_bytes, double expected) {
      CHECK(cost::exchange_seconds(net, e, n, element_bytes) ==
            doctest::Approx(expected).epsilon(1e-5));  // 16 bytes beside each of 126 slots
    };
    close(exchange::ring, 4, 2 * share * 4);
    close(exchange::dense_gather_scatter, 4, 2 * share * 4);
    close(exchange::gather_scatter, 4, 2 * share / 8);
    close(exchange::hierarchical, 4, 2 * share / 8);
    close(exchange::all_gather, 4, (w - 1.0) / 8);
  }
}

TEST_CASE("cost model: the ranks of a node share its card") {
  cost::network net = cluster(16, 4, 10);
  net.between.latency_seconds = net.inside.latency_seconds = 0;
  net.inside.bytes_per_second = infinity;
  // On the card of 64 ranks, 4 to a node: 6.65 times less than a ring of fp16, not 16 times.
  CHECK(seconds(net, exchange::ring) / seconds(net, exchange::gather_scatter) ==
        doctest::Approx(6.65).epsilon(1e-3));
  CHECK(seconds(net, exchange::ring) / seconds(net, exchange::hierarchical) ==
        doctest::Approx(16.8).epsilon(1e-3));  // 16 * (63/64) / (15/16)
}

TEST_CASE("cost model: end to end is the sum over the steps of the mix") {
  const cost::network net = cluster(8, 1, 10);
  cost::workload w = papers_run();
  w.one_bit_adam = {3, 5, 0, 0};
  w.zero_one_adam = {1, 2, 4, 8};
  const cost::prediction adam = cost::predict(net, w, algorithm::adam, exchange::ring);
  const cost::prediction one =
      cost::predict(net, w, algorithm::one_bit_adam, exchange::gather_scatter);
  CHECK(one.seconds == doctest::Approx(3 * adam.step_seconds + 5 * one.step_seconds));
  CHECK(one.speed_up == doctest::Approx(8 * adam.step_seconds / one.seconds));
  const cost::prediction zero =
      cost::predict(net, w, algorithm::zero_one_adam, exchange::gather_scatter);
  const double local = w.forward_backward_seconds + bert_large * w.compression.update_ns * 1e-9;
  CHECK(zero.seconds ==
        doctest::Approx(adam.step_seconds + 2 * zero.step_seconds +
                        4 * (zero.step_seconds + adam.exchange_seconds) + 8 * local));
  CHECK(adam.seconds == doctest::Approx(152000 * adam.step_seconds));

  w.allreduce_factor = 3;  // of every dense step, in the warm-up too
  const cost::prediction slow = cost::predict(net, w, algorithm::adam, exchange::ring);
  CHECK(slow.step_seconds == doctest::Approx(adam.step_seconds + 2 * adam.exchange_seconds));
  CHECK(cost::predict(net, w, algorithm::one_bit_adam, exchange::gather_scatter).seconds ==
        doctest::Approx(one.seconds + 3 * 2 * adam.exchange_seconds));
}

TEST_CASE("cost model: one node of several ranks is exact, and has no card to share") {
  const cost::network net = cluster(1, 4, 1);
  CHECK(seconds(net, exchange::hierarchical) == seconds(net, exchange::dense_gather_scatter));
  cost::network other = net;
  other.between = {};
  for (const exchange e : all()) CHECK(seconds(other, e) == seconds(net, e));
}

TEST_CASE("cost model: nonsense is refused, with the number") {
  const cost::workload w = papers_run();
  const auto of = [&](cost::network net) { return refusal([&] { (void)cost::advise(net, w); }); };
  CHECK(of({6, 4, {1, 0}, {1, 0}}).find("ranks is 6 and ranks_per_node 4") != std::string::npos);
  CHECK(of({0, 1, {1, 0}, {1, 0}}).find("ranks is 0") != std::string::npos);
  CHECK(of({8, 4, {0, 0}, {1, 0}}).find("between.bytes_per_second is 0") != std::string::npos);
  CHECK(of({8, 4, {1, 0}, {-3, 0}}).find("inside.bytes_per_second is -3") != std::string::npos);
  CHECK(of({8, 4, {1, -1}, {1, 0}}).find("between.latency_seconds is -1") != std::string::npos);
  CHECK(of({8, 4, {std::nan(""), 0}, {1, 0}}).find("nan") != std::string::npos);

  const cost::network net = cluster(2, 1, 10);
  const auto changed = [&](auto&& change) {
    cost::workload other = w;
    change(other);
    return refusal([&] { (void)cost::advise(net, other); });
  };
  CHECK(changed([](auto& x) { x.parameters = 0; }).find("parameters is 0") != std::string::npos);
  CHECK(changed([](auto& x) { x.forward_backward_seconds = -2; }).find("-2") != std::string::npos);
  CHECK(changed([](auto& x) { x.dense_element_bytes = 0; }).find("is 0") != std::string::npos);
  CHECK(changed([](auto& x) { x.compression.serve_ns = infinity; }).find("inf") !=
        std::string::npos);
  CHECK(changed([](auto& x) { x.steps = 0; }).find("steps is 0") != std::string::npos);
  CHECK(refusal([&] {
          (void)cost::predict(net, w, algorithm::one_bit_lamb, exchange::all_gather);
        }).find("no steps of one_bit_lamb") != std::string::npos);
  CHECK(refusal([&] {
          (void)cost::predict(net, w, algorithm::adam, exchange::all_gather);
        }).find("adam does not exchange by all_gather") != std::string::npos);
  CHECK(refusal([&] {
          (void)cost::predict(net, w, algorithm::one_bit_adam, exchange::ring);
        }).find("one_bit_adam does not exchange by ring") != std::string::npos);
}

TEST_CASE("cost model: what the backward pass has made travels while it goes on") {
  const cost::network net = cluster(16, 1, 10);
  cost::workload w = papers_run();
  const double compute = w.forward_backward_seconds, ring = seconds(net, exchange::ring);
  CHECK(cost::seconds_to_ring(w, ring) == doctest::Approx(compute + ring));
  double last = infinity;
  for (const double share : {0.1, 0.5, 1.0}) {
    w.backward_share = share;
    const double now = cost::seconds_to_ring(w, ring);
    CHECK(now < last);
    CHECK(now > std::max(compute, ring));
    CHECK(now >= compute * (1 - share) + ring);
    last = now;
  }
  // a long one hides all but the last bucket, and then nothing can gain by sending less
  w.backward_share = 0.67;
  w.forward_backward_seconds = 100;
  const double bucket = w.dense_bucket_bytes / (w.parameters * w.dense_element_bytes);
  CHECK(cost::seconds_to_ring(w, ring) <= 100 + ring * bucket * 1.000001);
  const cost::advice a = cost::advise(net, w);
  CHECK_FALSE(a.pays);
  for (const cost::prediction& p : a.all) CHECK(p.speed_up < 1.01);
}

TEST_CASE("cost model: buckets hide behind the backward pass, but their encoding does not") {
  const cost::network net = cluster(16, 1, 2.7);
  cost::workload w = papers_run();
  w.backward_share = 0.67;
  const auto step = [&](exchange e) {
    return cost::predict(net, w, algorithm::one_bit_adam, e).step_seconds;
  };
  const double passes = cost::pass_seconds(net, w, exchange::in_buckets);
  CHECK(step(exchange::in_buckets) > step(exchange::gather_scatter));  // 320 times the latency
  w.bucket_elements = 1 << 24;
  CHECK(step(exchange::in_buckets) < step(exchange::gather_scatter));
  CHECK(step(exchange::in_buckets) > w.forward_backward_seconds + passes);
  w.forward_backward_seconds = 0;  // the network alone: what buckets cost is latency
  CHECK(step(exchange::in_buckets) > seconds(net, exchange::gather_scatter));
  w.bucket_elements = w.parameters;
  CHECK(step(exchange::in_buckets) == doctest::Approx(step(exchange::gather_scatter)));
}

TEST_CASE("cost model: a warm-up that the library sums costs what its own averages cost") {
  const cost::network net = cluster(16, 4, 10);
  for (const double share : {0.0, 0.67}) {
    cost::workload w = papers_run();
    w.backward_share = share;
    w.averages_by_transport = false;
    w.one_bit_adam = advisor::step_counts::freeze_after(8, 8);
    const cost::prediction adam = cost::predict(net, w, algorithm::adam, exchange::ring);
    const cost::prediction own =
        cost::predict(net, w, algorithm::adam, exchange::dense_gather_scatter);
    const cost::prediction warm_up =
        cost::predict(net, w, algorithm::one_bit_adam, exchange::gather_scatter);
    CHECK(own.step_seconds > adam.step_seconds);
    CHECK(warm_up.seconds == doctest::Approx(8 * own.step_seconds));
  }
}

TEST_CASE(
    "cost model: an average in full beside an exchange, and a refresh, an exchange of squares") {
  const cost::network net = cluster(16, 1, 10);
  cost::workload w = papers_run();
  w.averages_by_transport = false;
  w.one_bit_adam = {0, 0, 8, 0};
  const auto run = [&] {
    return cost::predict(net, w, algorithm::one_bit_adam, exchange::gather_scatter);
  };
  const double without = run().seconds;
  CHECK(without ==
        doctest::Approx(8 * (run().step_seconds + seconds(net, exchange::dense_gather_scatter))));
  w.one_bit_adam.refreshes = 8;
  w.one_bit_adam.squares = 16;
  // Squares of two bytes, and what is beside them in an exchange of its own.
  const double empty = cost::exchange_seconds(net, exchange::dense_gather_scatter, w.parameters, 0);
  CHECK(run().seconds ==
        doctest::Approx(without + 8 * (seconds(net, exchange::dense_gather_scatter) + empty)));
}

TEST_CASE("cost model: the papers' forms are predicted, and not advised") {
  cost::workload w = papers_run();
  w.papers_one_bit = advisor::step_counts::freeze_after(1, 152000);  // the fastest there could be
  w.one_bit_adam = w.zero_one_adam = advisor::one_bit_run(152000, 16.5);
  const cost::advice a = cost::advise(cluster(16, 4, 4.8), w);
  CHECK(a.all[0].by == algorithm::papers_one_bit);
  CHECK(a.pays);
  CHECK(a.sentence.find("papers") == std::string::npos);
}

TEST_CASE("counts of what the defaults send are what optimizers send") {
  constexpr std::size_t n = std::size_t{1} << 19U;
  constexpr std::uint64_t n_steps = 40;
  const onebit::intervals_options intervals{.warmup_steps = 20, .doubling_steps = 10};
  const auto rate = [](std::uint64_t) { return 1e-3F; };
  const auto check = [&](const advisor::step_counts& counts, const auto& make) {
    std::uint64_t sent[2] = {};
    onebit::run_threads(2, [&](onebit::threads comm) {
      std::vector<float> x(n, 1.0F), g(n);
      std::vector<onebit::param_group<>> groups(1);
      groups[0].tensors.push_back({x, g});
      auto optimizer = make(groups, comm);
      for (std::uint64_t step = 0; step < n_steps; ++step) {
        for (std::size_t i = 0; i < n; ++i) g[i] = static_cast<float>((i * 7 + step) % 13) - 6;
        sent[comm.rank()] += optimizer.step(rate(step)).bytes_sent;
      }
    });
    CHECK(counts.steps() == n_steps);
    CHECK(static_cast<double>(sent[0]) ==
          doctest::Approx(counts.bits(16) * n_steps * n / 8).epsilon(0.002));
  };
  constexpr auto sum = onebit::dense_sum::in_bf16;
  check(advisor::one_bit_run(n_steps, advisor::squares_bits(n)),
        [&](const auto& g, onebit::threads t) {
          return onebit::one_bit_adam(g, t, {.warm_up_sum = sum});
        });
  check(advisor::one_bit_run(n_steps, advisor::lamb_squares_bits(n)),
        [&](const auto& g, onebit::threads t) {
          return onebit::one_bit_lamb(g, t, {.warm_up_sum = sum});
        });
  check(advisor::zero_one_run(intervals, n_steps, rate, advisor::squares_bits(n)),
        [&](const auto& g, onebit::threads t) {
          return onebit::zero_one_adam(g, t, {.schedule = intervals, .refresh_sum = sum});
        });
}
