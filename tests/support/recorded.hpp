// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The semantics of the recorded library, as tests/golden/README.md states them, in plain loops and
// double precision: padding enters scales, masks are given by hand, everything is compressed
// tensor by tensor (LAMB: all together). N ranks live in one process. It shares no code with the
// library under test. Scalars that the recording rounds to float32 are rounded here too.

#ifndef ONEBIT_TESTS_SUPPORT_RECORDED_HPP
#define ONEBIT_TESTS_SUPPORT_RECORDED_HPP

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "golden.hpp"

namespace onebit_test::recorded {

using golden::golden_case;
using vec = std::vector<double>;
using rank_vecs = std::vector<vec>;  // one per rank, or one per tensor where the name says so
using bytes = std::vector<std::uint8_t>;

inline double f32(double x) { return static_cast<double>(static_cast<float>(x)); }

inline double sign(double x) { return x >= 0 ? 1.0 : -1.0; }  // zeros of both signs count as +1

inline double norm(const vec& x) {
  double sum = 0;
  for (const double xi : x) sum += xi * xi;
  return std::sqrt(sum);
}

inline double rms(const vec& x) { return norm(x) / std::sqrt(static_cast<double>(x.size())); }

/// n rounded up so that every rank's chunk is a whole number of bytes of signs.
inline std::size_t padded(std::size_t n, std::size_t n_ranks) {
  const std::size_t unit = n_ranks * (8 * n_ranks / std::gcd(n_ranks, std::size_t{8}));
  return (n + unit - 1) / unit * unit;
}

/// What every call of a case sent, call after call.
struct call_log {
  vec worker_scales, server_scales;
  bytes worker_sign_bytes, server_sign_bytes;
};

inline void append_signs(bytes& to, const vec& x) {
  for (std::size_t i = 0; i < x.size(); i += 8) {
    unsigned byte = 0;
    for (std::size_t j = 0; j < 8; ++j) byte = 2 * byte + (sign(x[i + j]) > 0 ? 1 : 0);
    to.push_back(static_cast<std::uint8_t>(byte));
  }
}

struct compressed_allreduce {
  compressed_allreduce(std::size_t n, std::size_t n_ranks)
      : n_padded(padded(n, n_ranks)),
        chunk(n_padded / n_ranks),
        worker_error(n_ranks, vec(n_padded, 0.0)),
        server_error(n_ranks, vec(chunk, 0.0)) {}

  /// The result has n_padded elements: the padding's values are part of the recorded LAMB.
  vec operator()(const rank_vecs& buffers, call_log& log) {
    const std::size_t n_ranks = worker_error.size();
    rank_vecs x(n_ranks);
    vec worker_scale(n_ranks);
    for (std::size_t r = 0; r < n_ranks; ++r) {
      x[r] = buffers[r];
      x[r].resize(n_padded, 0.0);
      for (std::size_t i = 0; i < n_padded; ++i) x[r][i] += worker_error[r][i];
      worker_scale[r] = rms(x[r]);
      for (std::size_t i = 0; i < n_padded; ++i) {
        worker_error[r][i] = x[r][i] - worker_scale[r] * sign(x[r][i]);
      }
      append_signs(log.worker_sign_bytes, x[r]);
      log.worker_scales.push_back(worker_scale[r]);
    }
    vec output(n_padded);
    for (std::size_t j = 0; j < n_ranks; ++j) {
      vec y(chunk, 0.0);
      for (std::size_t i = 0; i < chunk; ++i) {
        for (std::size_t r = 0; r < n_ranks; ++r) {
          const double share = f32(1.0 / static_cast<double>(n_ranks));
          y[i] += worker_scale[r] * share * sign(x[r][j * chunk + i]);
        }
        y[i] += server_error[j][i];
      }
      const double server_scale = rms(y);
      for (std::size_t i = 0; i < chunk; ++i) {
        output[j * chunk + i] = server_scale * sign(y[i]);
        server_error[j][i] = y[i] - server_scale * sign(y[i]);
      }
      append_signs(log.server_sign_bytes, y);
      log.server_scales.push_back(server_scale);
    }
    return output;
  }

  void clear_errors() {
    for (vec& e : worker_error) std::fill(e.begin(), e.end(), 0.0);
    for (vec& e : server_error) std::fill(e.begin(), e.end(), 0.0);
  }

  std::size_t n_padded, chunk;
  rank_vecs worker_error, server_error;
};

/// Everything that a recorded case holds, under the same names.
struct trajectory {
  std::map<std::string, vec> arrays;
  std::map<std::string, bytes> signs;
  std::map<std::string, vec> final_scalars;
  std::string phases;
  std::vector<std::pair<std::int64_t, std::int64_t>> compressed_calls;
};

inline void append(vec& to, const vec& from) { to.insert(to.end(), from.begin(), from.end()); }

inline vec joined(const rank_vecs& parts) {
  vec all;
  for (const vec& part : parts) append(all, part);
  return all;
}

inline std::string numbered(const char* array, std::size_t k) {
  return std::string(array) + "_tensor" + std::to_string(k);
}

inline vec dense_mean(const rank_vecs& g) {
  vec mean = g[0];
  for (std::size_t r = 1; r < g.size(); ++r) {
    for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += g[r][i];
  }
  for (double& x : mean) x *= f32(1.0 / static_cast<double>(g.size()));
  return mean;
}

/// The scalars of a case, rounded as the recording rounds them.
struct scalars {
  explicit scalars(const golden_case& c)
      : b1(f32(c.beta1())),
        c1(f32(1.0 - c.beta1())),
        b2(f32(c.beta2())),
        c2(f32(1.0 - c.beta2())),
        eps(f32(c.hyper("eps"))),
        wd(f32(c.hyper("weight_decay"))) {}

  vec momentum(const vec& m, const vec& g) const {
    vec next(m.size());
    for (std::size_t i = 0; i < m.size(); ++i) next[i] = m[i] * b1 + c1 * g[i];
    return next;
  }
  void variance(vec& v, const vec& g) const {
    for (std::size_t i = 0; i < v.size(); ++i) v[i] = v[i] * b2 + c2 * g[i] * g[i];
  }
  vec denominator(const vec& v) const {
    vec d(v.size());
    for (std::size_t i = 0; i < v.size(); ++i) d[i] = std::sqrt(v[i]) + eps;
    return d;
  }
  vec update(const vec& m, const vec& v, const vec& p) const {
    vec u = denominator(v);
    for (std::size_t i = 0; i < u.size(); ++i) u[i] = m[i] / u[i] + (wd > 0 ? wd * p[i] : 0.0);
    return u;
  }

  double b1, c1, b2, c2, eps, wd;
};

inline void add_scaled(vec& p, double a, const vec& u) {
  for (std::size_t i = 0; i < p.size(); ++i) p[i] += a * u[i];
}

inline void mask(vec& x, std::size_t zero_from) {
  for (std::size_t i = zero_from; i < x.size(); ++i) x[i] = 0.0;
}

inline rank_vecs local_gradients(const golden_case& c, std::size_t k, std::size_t t,
                                 const vec& params) {
  rank_vecs g;
  for (std::size_t r = 0; r < c.world_size(); ++r) g.push_back(c.gradient(k, r, t, params));
  return g;
}

inline bool is_recorded(const golden_case& c, std::size_t t) {
  const auto updates = c.recorded_updates();
  return std::find(updates.begin(), updates.end(), t) != updates.end();
}

}  // namespace onebit_test::recorded

#endif  // ONEBIT_TESTS_SUPPORT_RECORDED_HPP
