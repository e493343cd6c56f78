// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Law 1: what an exchange did not say, it still holds. With values that floats represent exactly,
// all sums are equalities; with others, they hold to a tolerance that counts the roundings. (The
// tolerance is in the suite of exchanges, onebit/testing/collective.hpp.)

#include <onebit/testing/collective.hpp>

#include "../support/tile_codecs.hpp"

using namespace onebit::testing;
using onebit::l1_scale;
using onebit::scale_per;
using onebit_test::int8_tile;
using onebit_test::ternary;

namespace {

/// The compensated values of one worker: in every 32 of them +-k with k small, sums to a multiple
/// of 32 of magnitudes, so that the L1 scale of any 32 is an integer.
float compensated(int rank, std::size_t step, std::size_t i) {
  // 16 pairs (3 - d, 3 + d): mean 3
  const std::size_t d = hashed(31, static_cast<std::uint64_t>(rank), step, i / 2) % 4;
  const float magnitude = static_cast<float>(i % 2 == 0 ? 3 - d : 3 + d);
  const bool negative = hashed(32, static_cast<std::uint64_t>(rank), step, i) % 2 != 0;
  return negative ? -magnitude : magnitude;
}

/// Messages that lead to these compensated values: y_t minus the residual of y_{t-1}.
float exact_message(int rank, std::size_t step, std::size_t i) {
  const float y = compensated(rank, step, i);
  if (step == 0) return y;
  const float before = compensated(rank, step - 1, i);
  return y - (before - (before >= 0 ? 3.0F : -3.0F));
}

template <class Model>
void check_exact(int w, const std::vector<std::size_t>& sizes, std::size_t steps) {
  CAPTURE(w);
  CAPTURE(sizes);
  const auto ranks = on_ranks(
      w, [&](onebit::threads t) { return exchange<Model>(t, sizes, steps, exact_message); });
  const std::size_t n = ranks[0].real.size();
  std::size_t n_wrong = 0, n_residual = 0;
  std::vector<double> server(n, 0.0);
  std::size_t at = 0;
  for (const exchange_trace& r : ranks) {
    for (const float e : r.server_residual.back()) server[at++] = static_cast<double>(e);
  }
  for (std::size_t i = 0; i < n; ++i) {
    double in = 0, out = server[i];
    for (int r = 0; r < w; ++r) {
      const exchange_trace& rank = ranks[static_cast<std::size_t>(r)];
      double sent = 0, put_in = 0;
      for (std::size_t step = 0; step < steps; ++step) {
        const float y = compensated(r, step, i);
        put_in += static_cast<double>(exact_message(r, step, i));
        sent += y >= 0 ? 3.0 : -3.0;
        // decode(encode(y)) + residual == y
        const double e = static_cast<double>(rank.worker_residual[step][i]);
        n_wrong += (y >= 0 ? 3.0 : -3.0) + e == static_cast<double>(y) ? 0U : 1U;
        n_residual += e != 0 ? 1U : 0U;
      }
      const double e = static_cast<double>(rank.worker_residual.back()[i]);
      n_wrong += put_in == sent + e ? 0U : 1U;  // the worker's sums telescope
      in += put_in / w;
      out += e / w;
    }
    for (std::size_t step = 0; step < steps; ++step) {
      out += static_cast<double>(ranks[0].agreed[step][i]);
    }
    n_wrong += in == out ? 0U : 1U;  // and those of both phases together
  }
  CHECK(n_wrong == 0);
  if (n > 0) CHECK(n_residual > 0);  // there was something to hold
}

using two_phases = gather_scatter_of<sign_per<l1_scale, scale_per::block, 32>>;
using one_phase_block = all_gather_of<sign_per<l1_scale, scale_per::block, 32>>;
using one_phase_vector = all_gather_of<sign_per<l1_scale, scale_per::vector>>;

}  // namespace

TEST_CASE("law 1: sums telescope exactly") {
  // Worlds of powers of two: the mean of integers is exact. Workers' values are integers up to 6.
  // The server divides by 32 in every step (5 bits), so 3 steps fit into 24 bits; without a server
  // any number of steps does.
  for (const std::size_t n : counts{0, 32, 64, 992, 4096, 8224}) {
    for (const int w : {2, 4, 8}) {
      check_exact<two_phases>(w, {n, 32}, 3);
      check_exact<one_phase_block>(w, {n, 32}, 40);
      check_exact<one_phase_vector>(w, {n, 0, 64}, 40);
    }
  }
  check_exact<two_phases>(4, {100000}, 3);
  check_exact<one_phase_vector>(2, {100000}, 10);
}

TEST_CASE("law 1: residuals do not grow over a long run, and long sums stay close") {
  // 200 steps of 33 + 1000 elements: what is agreed follows the mean of the messages, the
  // difference stays bounded by the residuals (not by the number of steps).
  constexpr std::size_t steps = 200;
  const std::vector<std::size_t> sizes = {33, 1000};
  const messages message = [](int rank, std::size_t step, std::size_t i) {
    return 0.25F + noise(41, static_cast<std::uint64_t>(rank), step, i);  // with a bias
  };
  const auto check = [&](auto model) {
    using Model = decltype(model);
    const auto ranks =
        on_ranks(3, [&](onebit::threads t) { return exchange<Model>(t, sizes, steps, message); });
    double worst_half = 0, worst = 0, worst_sum = 0;
    for (std::size_t i = 0; i < ranks[0].real.size(); ++i) {
      if (!ranks[0].real[i]) continue;
      double in = 0, out = 0;
      for (std::size_t step = 0; step < steps; ++step) {
        for (int r = 0; r < 3; ++r) in += static_cast<double>(message(r, step, i)) / 3;
        out += static_cast<double>(ranks[0].agreed[step][i]);
        double& side = step < steps / 2 ? worst_half : worst;
        side = std::max(side, std::fabs(in - out));
      }
      worst_sum = std::max(worst_sum, std::fabs(in));
    }
    CHECK(worst_sum > 40);              // the sums are of order 0.25 * 200,
    CHECK(worst < 2 * worst_half + 1);  // their distance is not
    CHECK(worst < 12);
  };
  check(gather_scatter_of<sign_per<onebit::l2_scale, scale_per::layer>>{});
  check(gather_scatter_of<sign_per<l1_scale, scale_per::block, 64>>{});
  check(all_gather_of<sign_per<onebit::l2_scale, scale_per::vector>>{});
  check(gather_scatter_of<ternary>{});
  check(gather_scatter_of<int8_tile>{});
}
