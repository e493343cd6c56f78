// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

// Conformance suite of exchanges (objects that a collective policy's bind() returns), and the loop
// that drives an exchange without an optimizer. A model has
//   make(communicator, backend, sizes)   returns the exchange
//   limits()                             optional, returns exchange_limits
// The suite calls the exchange as an optimizer does (stateful_exchange). An exchange with residuals
// of servers has server_residual(), which returns them chunk after chunk of the flat axis. A dense
// exchange has no needs_undo().

#include <functional>
#include <istream>
#include <limits>
#include <memory>
#include <onebit/backend/host.hpp>
#include <onebit/collective/all_gather.hpp>
#include <onebit/collective/dense_average.hpp>
#include <onebit/collective/gather_scatter.hpp>
#include <onebit/collective/stateful_exchange.hpp>
#include <onebit/compressor/sign.hpp>
#include <onebit/core/archive.hpp>
#include <onebit/testing/ranks.hpp>
#include <onebit/testing/values.hpp>
#include <onebit/transport/communicator.hpp>
#include <onebit/transport/threads.hpp>
#include <ostream>
#include <sstream>
#include <type_traits>

namespace onebit { inline namespace v0_3 { namespace testing {

/// Returns element i, on the flat axis, of a rank's message in a step. Padding is ignored.
using messages = std::function<float(int rank, std::size_t step, std::size_t i)>;

/// Results of a number of exchanges on one rank.
struct exchange_trace {
  std::vector<flat> agreed;  ///< mean messages by step, on the flat axis; empty if skipped
  std::vector<flat> worker_residual, server_residual;  ///< after each step
  std::vector<onebit::traffic> sent;                   ///< by step
  std::vector<bool> skipped;
  std::vector<bool> real;  ///< by element of the flat axis; false: padding
  /// By tile: the number of ranks whose residuals this rank's visit_residuals tells.
  std::vector<int> told;
  flat settled;  ///< the last worker_residual, after a fold_in that doubles it
  bool scaled = false;
};

/// Returns, by element of the flat axis, true unless it is padding.
inline std::vector<bool> real_elements(const onebit::layout& axis) {
  std::vector<bool> real(axis.n_words() * 32, false);
  for (const onebit::tile& t : axis.tiles()) {
    for (std::uint32_t i = 0; i < t.n; ++i) real[t.word * 32 + i] = true;
  }
  return real;
}

/// Type-erased exchange, so that the suite is compiled once.
class driven {
 public:
  driven() = default;
  driven(const driven&) = delete;
  driven& operator=(const driven&) = delete;
  virtual ~driven() = default;
  [[nodiscard]] virtual const onebit::layout& axis() const = 0;
  virtual void start() = 0;
  virtual void all_reduce(const float* values) = 0;
  virtual void finish() = 0;
  /// Mean message of this step, and of the last step that was kept.
  [[nodiscard]] virtual flat latest() = 0;
  [[nodiscard]] virtual flat previous() = 0;
  [[nodiscard]] virtual flat worker_residual() = 0;
  [[nodiscard]] virtual flat server_residual() = 0;
  /// See exchange_trace::told.
  [[nodiscard]] virtual std::vector<int> told() = 0;
  /// Doubles the residuals, by a message.
  virtual void fold_in() = 0;
  virtual void save(std::ostream& out) = 0;
  virtual void load(std::istream& in) = 0;

  float most = 0;  ///< bound of scales; 0: none
  onebit::step_scalars now;
  bool is_dense = false;  ///< no previous message and no residuals
  bool scaled = false;    ///< messages carry scales
};

template <class X>
class driven_exchange final : public driven {
 public:
  static constexpr bool dense = !requires(X x) { x.needs_undo({}); };

  driven_exchange(X x, onebit::host backend) : x_(std::move(x)), backend_(std::move(backend)) {
    is_dense = dense;
    scaled = std::remove_reference_t<decltype(x_.sender())>::scaled;
  }
  [[nodiscard]] const onebit::layout& axis() const override { return x_.axis(); }
  void start() override {
    if constexpr (!dense) x_.start_from_nothing(memory);
  }
  void all_reduce(const float* values) override {
    values_ = values;
    if constexpr (dense) {
      x_.all_reduce(onebit::flat_field{values}, &now);
    } else {
      x_.all_reduce(onebit::flat_field{values}, turn());
    }
  }
  void finish() override {
    if constexpr (dense) {
      x_.finish();
    } else {
      x_.updates_after(onebit::flat_field{values_}, turn())(onebit::detail::any_kernel{});
      x_.finish(turn());
    }
  }
  [[nodiscard]] flat latest() override {
    if constexpr (dense) {
      return copied(x_.latest(&now), x_.sender(), backend_);
    } else {
      return copied(x_.latest(), x_.sender(), backend_);
    }
  }
  [[nodiscard]] flat previous() override {
    if constexpr (dense) {
      return {};
    } else {
      return copied(x_.previous(), x_.sender(), backend_);
    }
  }
  [[nodiscard]] flat worker_residual() override {
    if constexpr (dense) {
      return {};
    } else {
      return copied(x_.sender().residual({}), x_.sender(), backend_);
    }
  }
  [[nodiscard]] flat server_residual() override {
    if constexpr (requires { x_.server_residual(); }) {
      const auto& server = x_.server_residual();
      return {server.data(), server.data() + server.size()};
    } else {
      return {};
    }
  }
  [[nodiscard]] std::vector<int> told() override {
    std::vector<int> n(axis().tiles().size());
    if constexpr (!dense) {
      x_.visit_residuals(
          [&](auto&, onebit::tile_range tiles, bool every_rank) {
            const int each = every_rank ? 1 : x_.ranks_per_node();
            for (auto i = tiles.begin; i < tiles.end; ++i) n[i] += each;
          },
          onebit::detail::any_visitor{});
    }
    return n;
  }
  void fold_in() override {
    if constexpr (!dense) x_.fold_in(doubled{}, turn());
  }
  void save([[maybe_unused]] std::ostream& out) override {
    if constexpr (!dense) {
      onebit::detail::write_checkpoint(
          out, [&](onebit::detail::payload_writer& a) { x_.archive(a, memory); });
    }
  }
  void load([[maybe_unused]] std::istream& in) override {
    if constexpr (!dense) {
      onebit::detail::payload_reader a(in);
      x_.archive(a, memory);
      a.finish();
      a.keep();
      x_.allocate_undo(memory);
      x_.count_active(x_.mask());
    }
  }

 private:
  static constexpr onebit::detail::exchange_memory memory{.previous = true};
  struct doubled {
    template <class L>
    struct reader {
      typename L::value operator()(std::uint32_t, const typename L::value& residual) const {
        return L::add(residual, residual);
      }
    };
    template <class L>
    reader<L> at(const onebit::tile&, std::size_t) const {
      return {};
    }
  };
  [[nodiscard]] auto turn() { return x_.args(&now, x_.mask(), {.most = most}); }
  std::conditional_t<dense, X, onebit::detail::stateful_exchange<X>> x_;
  onebit::host backend_;
  const float* values_ = nullptr;
};

/// Special conditions of an exchange.
struct conditions {
  float most = 0;                     ///< bound of scales; 0: none
  std::size_t resumed_before = none;  ///< step before which another exchange goes on from a file
};

/// Makes `steps` exchanges on one rank, with objects that `make` returns. All ranks skip steps in
/// which `message` returns a non-finite value; a skipped step is not counted, as in the optimizer.
inline exchange_trace drive(const std::function<std::unique_ptr<driven>()>& make,
                            const onebit::communicator& counted, std::size_t steps,
                            const messages& message, const conditions& how) {
  std::unique_ptr<driven> owned = make();
  exchange_trace trace;
  trace.real = real_elements(owned->axis());
  flat values(trace.real.size());
  owned->now.given.rank = static_cast<std::uint32_t>(counted.rank());
  owned->start();
  std::size_t last = none;  // last step that was kept
  for (std::size_t step = 0; step < steps; ++step) {
    if (step == how.resumed_before && !owned->is_dense) {
      std::stringstream file;
      owned->save(file);
      const onebit::step_scalars now = owned->now;
      owned = make();
      owned->load(file);
      owned->now = now;
      if (last != none) {
        CHECK_MESSAGE(first_difference(owned->previous(), trace.agreed[last]) == none,
                      "archive leaves the previous mean message out");
      }
    }
    driven& x = *owned;
    x.most = how.most;
    for (std::size_t i = 0; i < trace.real.size(); ++i) {
      values[i] = trace.real[i] ? message(counted.rank(), step, i) : 0.0F;
    }
    const onebit::traffic before = counted.sent();
    x.now.verdict.skip = x.now.verdict.nonfinite = 0;
    x.all_reduce(values.data());
    trace.sent.push_back(counted.sent() - before);
    const bool kept = x.now.verdict.skip == 0;
    trace.skipped.push_back(!kept);
    trace.agreed.push_back(kept ? x.latest() : flat{});
    x.finish();
    if (kept) last = step;
    if (!x.is_dense && last != none) {
      // a kept step replaces the previous message; a skipped step leaves it unchanged
      CHECK(first_difference(x.previous(), trace.agreed[last]) == none);
    }
    x.now.given.number += kept ? 1U : 0U;
    if (x.is_dense) continue;
    flat residual = x.worker_residual();
    for (std::size_t i = 0; i < residual.size(); ++i) {
      if (!trace.real[i]) residual[i] = 0;  // the field does not mask padding
    }
    trace.worker_residual.push_back(std::move(residual));
    trace.server_residual.push_back(x.server_residual());
  }
  trace.told = owned->told();
  trace.scaled = owned->scaled;
  owned->now.verdict.skip = 0;
  owned->fold_in();
  trace.settled = owned->worker_residual();
  return trace;
}

/// Makes `steps` exchanges with an exchange of Model.
template <class Model>
exchange_trace exchange(onebit::threads transport, const std::vector<std::size_t>& sizes,
                        std::size_t steps, const messages& message, const conditions& how = {}) {
  const onebit::communicator counted(std::move(transport));
  const onebit::host backend;
  const auto make = [&]() -> std::unique_ptr<driven> {
    auto made = Model::make(counted, backend, sizes);
    return std::make_unique<driven_exchange<decltype(made)>>(std::move(made), backend);
  };
  return drive(make, counted, steps, message, how);
}

// --- models -------------------------------------------------------------------------------

template <class C>
struct gather_scatter_of {
  static C codec() { return {}; }
  static auto make(const onebit::communicator& w, onebit::host backend,
                   const std::vector<std::size_t>& sizes) {
    return onebit::detail::gather_scatter_exchange<C, onebit::host>(codec(), w, backend, sizes);
  }
};
template <class C>
struct all_gather_of {
  static C codec() { return {}; }
  static auto make(const onebit::communicator& w, onebit::host backend,
                   const std::vector<std::size_t>& sizes) {
    return onebit::all_gather_exchange<C, onebit::host>(codec(), w, backend, sizes);
  }
};
template <onebit::dense_sum Sum>
struct dense_model {
  static auto make(const onebit::communicator& w, onebit::host backend,
                   const std::vector<std::size_t>& sizes) {
    return onebit::detail::dense_average<onebit::host>(Sum, w, backend, sizes);
  }
};

/// `sign` with its granularity in the type, so that models can be types. Its factor is 1, so that
/// values of equal size are sent exactly.
template <class Scale, onebit::scale_per Unit, std::size_t Block = 0>
struct sign_per : onebit::sign<Scale> {
  constexpr sign_per() : onebit::sign<Scale>{{Unit, Block}, 1} {}
};

/// Limits of an exchange, which a model's `limits()` may return.
struct exchange_limits {
  std::vector<int> ranks = {1, 2, 3, 5, 8};  ///< numbers of ranks to test
  std::uint64_t collectives = 2;             ///< most collectives in an exchange
  double largest_residual = 16;              ///< of messages below 1; sums of them have larger ones
  bool equal_bytes = true;                   ///< all ranks send equally many
};

/// Runs the suite; `exchange` is exchange<Model>.
inline void check_exchange(exchange_trace (*exchange)(onebit::threads,
                                                      const std::vector<std::size_t>&, std::size_t,
                                                      const messages&, const conditions&),
                           const exchange_limits& limits) {
  constexpr std::size_t steps = 6;
  const std::vector<std::vector<std::size_t>> all_sizes = {{},        {0, 0},   {1},        {33},
                                                           {0, 5, 0}, {64, 64}, odd_sizes()};
  for (const auto& sizes : all_sizes) {
    for (const int w : limits.ranks) {
      std::string elements;  // sizes of the tensors
      for (const std::size_t n : sizes) elements += std::to_string(n) + ' ';
      CAPTURE(elements);
      CAPTURE(w);
      const auto n_ranks = static_cast<std::size_t>(w);
      const messages message = [](int rank, std::size_t step, std::size_t i) {
        return noise(21, static_cast<std::uint64_t>(rank), step, i);
      };
      const auto ranks =
          on_ranks(w, [&](onebit::threads t) { return exchange(t, sizes, steps, message, {}); });
      const exchange_trace& first = ranks[0];
      const std::size_t n = first.real.size();
      std::size_t n_skipped = 0, n_different = 0, n_padding = 0;
      std::uint64_t most_collectives = 0;
      for (const exchange_trace& r : ranks) {
        for (std::size_t step = 0; step < steps; ++step) {
          n_skipped += r.skipped[step] ? 1U : 0U;
          n_different += first_difference(r.agreed[step], first.agreed[step]) != none ? 1U : 0U;
          most_collectives = std::max<std::uint64_t>(most_collectives, r.sent[step].collectives);
          if (!limits.equal_bytes) continue;
          CHECK_MESSAGE(r.sent[step].bytes_sent == first.sent[step].bytes_sent,
                        "ranks send other numbers of bytes: limits() may allow it");
        }
      }
      CHECK_MESSAGE(most_collectives <= limits.collectives,
                    most_collectives << " collectives in an exchange of " << w
                                     << " ranks, more than " << limits.collectives
                                     << ": the model's limits() may allow more");
      CHECK_MESSAGE(n_skipped == 0, n_skipped
                                        << " exchanges were skipped: messages that did not come, "
                                        << "or came twice");
      CHECK_MESSAGE(n_different == 0, n_different
                                          << " times ranks held other bits than rank 0: do all "
                                          << "hold the same slots, and add them in rank order?");
      if (n_skipped != 0) continue;  // a skipped step has no mean message
      if (w == 1) CHECK(first.sent[0].bytes_sent == 0);

      // Nothing is lost: the mean of the ranks' messages, summed over the steps, is the sum of the
      // mean messages plus the residuals. Every step rounds each element a few times (message,
      // residual, mean over w, server's message and residual), each time by at most 2^-24 of a
      // magnitude below largest_residual.
      const double bound =
          static_cast<double>(steps) * (w + 6) * limits.largest_residual / (1 << 24);
      double worst = 0, largest = 0;
      std::vector<double> server(n, 0.0);
      std::size_t at = 0;
      for (const exchange_trace& r : ranks) {
        if (r.server_residual.empty()) break;
        for (const float e : r.server_residual.back()) {
          REQUIRE(at < n);
          server[at++] = static_cast<double>(e);
        }
      }
      for (std::size_t i = 0; i < n; ++i) {
        double in = 0, out = server[i];
        for (std::size_t r = 0; r < n_ranks; ++r) {
          for (std::size_t step = 0; step < steps; ++step) {
            in += static_cast<double>(message(static_cast<int>(r), step, i)) / w;
          }
          if (!ranks[r].worker_residual.empty()) {
            const auto e = static_cast<double>(ranks[r].worker_residual.back()[i]);
            out += e / w;
            largest = std::max(largest, std::fabs(e));
          }
        }
        largest = std::max(largest, std::fabs(server[i]));
        for (std::size_t step = 0; step < steps; ++step) {
          out += static_cast<double>(first.agreed[step][i]);
          if (!first.real[i] && first.agreed[step][i] != 0) ++n_padding;
        }
        if (first.real[i]) worst = std::max(worst, std::fabs(in - out));
      }
      CHECK_MESSAGE(largest < limits.largest_residual,
                    "a residual has grown to " << largest << "; sums of messages may need another "
                                               << "limits().largest_residual");
      CHECK_MESSAGE(worst <= bound,
                    "messages differ from mean messages and residuals by "
                        << worst << ": a residual that is not kept, or not that of the message "
                        << "(own_messages), or a sum in place of a mean");
      CHECK_MESSAGE(n_padding == 0, n_padding << " elements of padding are not 0");
      if (!first.worker_residual.empty()) {
        // a job with other ranks takes every tile's residual over, from each rank or node
        std::size_t n_untold = 0, n_not_doubled = 0, n_cut = 0, n_lost = 0;
        for (std::size_t i = 0; i < first.told.size(); ++i) {
          int told = 0;
          for (const exchange_trace& r : ranks) told += r.told[i];
          n_untold += told != w ? 1U : 0U;
        }
        CHECK_MESSAGE(n_untold == 0,
                      "visit_residuals tells " << n_untold << " tiles too rarely or too often");
        for (const exchange_trace& r : ranks) {
          for (std::size_t i = 0; i < n; ++i) {
            if (!first.real[i]) continue;
            n_not_doubled += r.settled[i] != 2 * r.worker_residual.back()[i] ? 1U : 0U;
          }
        }
        CHECK_MESSAGE(n_not_doubled == 0, "fold_in left " << n_not_doubled << " residuals wrong");
        // equal messages of 2, whose scale is bounded by 1: the mean is 1, not less
        const messages two = [](int, std::size_t, std::size_t) { return 2.0F; };
        const auto cut =
            on_ranks(w, [&](onebit::threads t) { return exchange(t, sizes, 1, two, {.most = 1}); });
        for (std::size_t i = 0; i < n; ++i) {
          if (!first.real[i]) continue;
          const float mean = cut[0].agreed[0][i];
          n_cut += mean < 0.99F || (first.scaled && mean > 1.01F) ? 1U : 0U;
        }
        CHECK_MESSAGE(n_cut == 0, n_cut << " elements are not at the bound of scales: it is for "
                                        << "means; a sum of k messages has k times the bound");
        const auto resumed = on_ranks(w, [&](onebit::threads t) {
          return exchange(t, sizes, steps, message, {.resumed_before = 3});
        });
        for (std::size_t r = 0; r < n_ranks; ++r) {
          for (std::size_t step = 3; step < steps; ++step) {
            const auto differs = [&](const flat& a, const flat& b) {
              return a.size() != b.size() || first_difference(a, b) != none;
            };
            n_lost +=
                differs(resumed[r].agreed[step], ranks[r].agreed[step]) ||
                        differs(resumed[r].worker_residual[step], ranks[r].worker_residual[step])
                    ? 1U
                    : 0U;
          }
        }
        CHECK_MESSAGE(n_lost == 0, n_lost << " steps after a checkpoint differ: archive leaves "
                                          << "something out");
      }

      // One non-finite element on one rank: all ranks skip the step, and continue as if it had not
      // been made.
      if (n == 0) continue;
      const int culprit = w / 2;
      const std::size_t element = [&] {
        std::size_t i = n - 1;
        while (!first.real[i]) --i;
        return i;
      }();
      std::size_t variant = 0;
      for (const float bad :
           {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
            -std::numeric_limits<float>::infinity()}) {
        const std::size_t bad_step = 2 * variant++;  // 0, 2 and 4
        const messages poisoned = [&](int rank, std::size_t step, std::size_t i) {
          if (step == bad_step && rank == culprit && i == element) return bad;
          return message(rank, step > bad_step ? step - 1 : step, i);
        };
        const auto others = on_ranks(
            w, [&](onebit::threads t) { return exchange(t, sizes, steps + 1, poisoned, {}); });
        std::size_t n_wrong = 0;
        for (std::size_t r = 0; r < n_ranks; ++r) {
          for (std::size_t step = 0; step <= steps; ++step) {
            n_wrong += others[r].skipped[step] == (step == bad_step) ? 0U : 1U;
            if (step == bad_step) continue;
            const std::size_t same = step > bad_step ? step - 1 : step;
            n_wrong +=
                first_difference(others[r].agreed[step], ranks[r].agreed[same]) == none ? 0U : 1U;
            if (ranks[r].worker_residual.empty()) continue;
            n_wrong += first_difference(others[r].worker_residual[step],
                                        ranks[r].worker_residual[same]) == none
                           ? 0U
                           : 1U;
            n_wrong += first_difference(others[r].server_residual[step],
                                        ranks[r].server_residual[same]) == none
                           ? 0U
                           : 1U;
          }
        }
        CHECK_MESSAGE(n_wrong == 0,
                      "a rank did not skip, or a skipped step left a trace: `propagate` of "
                      "a check, the last check, finish");
      }
    }
  }
}

TEST_CASE_TEMPLATE_DEFINE("exchange", Model, collective_conformance) {
  exchange_limits limits;
  if constexpr (requires { Model::limits(); }) limits = Model::limits();
  check_exchange(&exchange<Model>, limits);
}

}}}  // namespace onebit::testing
