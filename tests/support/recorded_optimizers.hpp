// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The four kinds of recorded runs, each replayed by one function that follows the section of its
// name in tests/golden/README.md line by line.

#ifndef ONEBIT_TESTS_SUPPORT_RECORDED_OPTIMIZERS_HPP
#define ONEBIT_TESTS_SUPPORT_RECORDED_OPTIMIZERS_HPP

#include "recorded.hpp"

namespace onebit_test::recorded {

inline trajectory run_compressed_allreduce(const golden_case& c) {
  const auto n = c.json().at("size").get<std::size_t>();
  const auto n_calls = c.json().at("calls").get<std::size_t>();
  const std::size_t n_ranks = c.world_size();
  compressed_allreduce reduce(n, n_ranks);
  if (reduce.n_padded != c.json().at("padded_size").get<std::size_t>() ||
      reduce.chunk != c.json().at("chunk_size").get<std::size_t>()) {
    throw std::runtime_error("recorded: " + c.name() + ": padded to another size");
  }
  const vec input = c.values("input");
  const vec worker_error = c.values("worker_error");  // index 0 is given
  const vec server_error = c.values("server_error");
  const auto part = [](const vec& from, std::size_t index, std::size_t length) {
    const auto begin = from.begin() + static_cast<std::ptrdiff_t>(index * length);
    return vec(begin, begin + static_cast<std::ptrdiff_t>(length));
  };
  for (std::size_t r = 0; r < n_ranks; ++r) {
    reduce.worker_error[r] = part(worker_error, r, reduce.n_padded);
    reduce.server_error[r] = part(server_error, r, reduce.chunk);
  }
  trajectory out;
  call_log log;
  const auto keep_errors = [&] {
    append(out.arrays["worker_error"], joined(reduce.worker_error));
    append(out.arrays["server_error"], joined(reduce.server_error));
  };
  keep_errors();
  for (std::size_t call = 0; call < n_calls; ++call) {
    rank_vecs buffers;
    for (std::size_t r = 0; r < n_ranks; ++r) {
      buffers.push_back(part(input, call * n_ranks + r, n));
    }
    append(out.arrays["output"], part(reduce(buffers, log), 0, n));
    keep_errors();
  }
  out.arrays["worker_scales"] = log.worker_scales;
  out.arrays["server_scales"] = log.server_scales;
  out.signs["worker_sign_bytes"] = log.worker_sign_bytes;
  out.signs["server_sign_bytes"] = log.server_sign_bytes;
  return out;
}

inline trajectory run_onebit_adam(const golden_case& c) {
  const scalars s(c);
  const std::size_t n_ranks = c.world_size();
  const auto freeze_step = c.hyper<std::size_t>("freeze_step");
  struct state {
    vec p, m, v;
    compressed_allreduce reduce;
  };
  std::vector<state> tensors;
  for (std::size_t k = 0; k < c.tensors().size(); ++k) {
    const std::size_t n = c.tensors()[k].size;
    tensors.push_back({c.initial_params<double>(k), vec(n, 0.0), vec(n, 0.0), {n, n_ranks}});
  }
  trajectory out;
  call_log log;
  for (std::size_t t = 1; t <= c.updates(); ++t) {
    const bool dense_phase = t + 1 <= freeze_step;
    out.phases += dense_phase ? 'D' : 'C';
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      state& x = tensors[k];
      const rank_vecs g = local_gradients(c, k, t, x.p);
      if (dense_phase || c.tensors()[k].non_freeze) {
        const vec mean = dense_mean(g);
        x.m = s.momentum(x.m, mean);
        s.variance(x.v, mean);
      } else {
        rank_vecs b;
        for (std::size_t r = 0; r < n_ranks; ++r) b.push_back(s.momentum(x.m, g[r]));
        if (n_ranks == 1) {
          x.m = b[0];
        } else {
          x.m = x.reduce(b, log);
          x.m.resize(x.p.size());
          out.compressed_calls.emplace_back(t, k);
        }
        mask(x.m, c.tensors()[k].mask_zero_from);
      }
      add_scaled(x.p, f32(-c.lr(t)), s.update(x.m, x.v, x.p));
      if (is_recorded(c, t)) append(out.arrays[numbered("params", k)], x.p);
    }
  }
  for (std::size_t k = 0; k < tensors.size(); ++k) {
    out.arrays[numbered("exp_avg", k)] = tensors[k].m;
    out.arrays[numbered("exp_avg_sq", k)] = tensors[k].v;
    if (n_ranks == 1 || c.tensors()[k].non_freeze) continue;
    out.arrays[numbered("worker_error", k)] = joined(tensors[k].reduce.worker_error);
    out.arrays[numbered("server_error", k)] = joined(tensors[k].reduce.server_error);
  }
  if (n_ranks > 1) {
    out.arrays["worker_scales"] = log.worker_scales;
    out.arrays["server_scales"] = log.server_scales;
  }
  return out;
}

inline trajectory run_onebit_lamb(const golden_case& c) {
  const scalars s(c);
  const std::size_t n_ranks = c.world_size();
  const std::size_t n_tensors = c.tensors().size();
  const auto freeze_step = c.hyper<std::size_t>("freeze_step");
  const double coeff_beta = c.hyper("coeff_beta"), threshold = c.hyper("factor_threshold");
  if (n_ranks == 1) throw std::runtime_error("recorded: LAMB is recorded with several ranks only");

  struct state {
    vec p, m, v, w;
    double F = 0, L = 1, q = 1;
  };
  std::vector<state> tensors;
  std::size_t n_all = 0;
  for (std::size_t k = 0; k < n_tensors; ++k) {
    const std::size_t n = c.tensors()[k].size;
    tensors.push_back({c.initial_params<double>(k), vec(n, 0.0), vec(n, 0.0), vec(n, 0.0)});
    n_all += n;
  }
  compressed_allreduce reduce(n_all, n_ranks);
  vec padding(reduce.n_padded - n_all, 0.0);
  bool scaled = false;

  trajectory out;
  call_log log;
  for (std::size_t t = 1; t <= c.updates(); ++t) {
    const bool dense_phase = t + 1 <= freeze_step;
    out.phases += dense_phase ? 'D' : 'C';
    std::vector<rank_vecs> g;
    for (std::size_t k = 0; k < n_tensors; ++k) {
      g.push_back(local_gradients(c, k, t, tensors[k].p));
    }
    vec coefficient(n_tensors, 0.0);
    if (dense_phase) {
      for (std::size_t k = 0; k < n_tensors; ++k) {
        state& x = tensors[k];
        const vec mean = dense_mean(g[k]);
        x.m = s.momentum(x.m, mean);
        s.variance(x.v, mean);
        if (t + 1 == freeze_step) x.w = x.v;
        const vec u = s.update(x.m, x.v, x.p);
        double co = 1;
        if (norm(x.p) != 0 && norm(u) != 0) {
          co = norm(x.p) / norm(u);
          co = std::max(std::min(co, c.hyper("max_coeff")), c.hyper("min_coeff"));
        }
        if (co != 1) x.F = coeff_beta * x.F + (1 - coeff_beta) * co;
        add_scaled(x.p, f32(-c.lr(t) * co), u);
        coefficient[k] = co;
      }
    } else {
      if (!scaled) {
        double mean = 0;
        for (const state& x : tensors) mean += rms(x.m);
        mean /= static_cast<double>(n_tensors);
        for (state& x : tensors) x.q = mean / rms(x.m);
        scaled = true;
      }
      rank_vecs b(n_ranks);
      for (std::size_t r = 0; r < n_ranks; ++r) {
        for (std::size_t k = 0; k < n_tensors; ++k) {
          vec message = s.momentum(tensors[k].m, g[k][r]);
          for (double& value : message) value *= f32(tensors[k].q);
          append(b[r], message);
        }
        append(b[r], padding);
      }
      const vec agreed = reduce(b, log);
      out.compressed_calls.emplace_back(t, -1);
      std::size_t at = 0;
      for (std::size_t k = 0; k < n_tensors; ++k) {
        state& x = tensors[k];
        const vec m_old = x.m;
        for (double& value : x.m) value = agreed[at++] / f32(x.q);
        mask(x.m, c.tensors()[k].mask_zero_from);
        vec h(x.m.size());
        for (std::size_t i = 0; i < h.size(); ++i) h[i] = (x.m[i] - m_old[i] * s.b1) / s.c1;
        s.variance(x.w, h);
        const vec d = s.denominator(x.v), d_fresh = s.denominator(x.w);
        vec u0(x.m.size());
        double f = 0;
        for (std::size_t i = 0; i < u0.size(); ++i) {
          u0[i] = x.m[i] / d[i];
          f = std::max(f, d[i] / d_fresh[i]);
        }
        const vec u = s.update(x.m, x.v, x.p);
        if (s.wd > 0) {
          const double share = std::min(1.0, norm(u0) / norm(u));
          f = f * share + (1 - share);
        }
        f = std::max(std::min(f, c.hyper("factor_max")), c.hyper("factor_min"));
        f = std::max(std::min(f, x.L * (1 + threshold)), x.L * (1 - threshold));
        x.L = f;
        coefficient[k] = x.F * f;
        add_scaled(x.p, f32(-c.lr(t) * coefficient[k]), u);
      }
      padding.assign(agreed.begin() + static_cast<std::ptrdiff_t>(at), agreed.end());
    }
    append(out.arrays["lamb_coeffs"], coefficient);
    for (std::size_t k = 0; k < n_tensors && is_recorded(c, t); ++k) {
      append(out.arrays[numbered("params", k)], tensors[k].p);
    }
  }
  for (std::size_t k = 0; k < n_tensors; ++k) {
    const state& x = tensors[k];
    out.arrays[numbered("exp_avg", k)] = x.m;
    out.arrays[numbered("exp_avg_sq", k)] = x.v;
    out.arrays[numbered("exp_avg_sq_fresh", k)] = x.w;
    out.final_scalars["lamb_coeff_freeze"].push_back(x.F);
    out.final_scalars["last_factor"].push_back(x.L);
    out.final_scalars["scaling_coeff"].push_back(x.q);
  }
  if (!padding.empty()) out.arrays["exp_avg_padding"] = padding;
  out.arrays["worker_error"] = joined(reduce.worker_error);
  out.arrays["server_error"] = joined(reduce.server_error);
  out.arrays["worker_scales"] = log.worker_scales;
  out.arrays["server_scales"] = log.server_scales;
  return out;
}

inline trajectory run_zero_one_adam(const golden_case& c) {
  const scalars s(c);
  const std::size_t n_ranks = c.world_size();
  const std::size_t n_tensors = c.tensors().size();
  const auto var_freeze_step = c.hyper<std::size_t>("var_freeze_step");
  if (n_ranks == 1) throw std::runtime_error("recorded: 0/1 Adam is recorded with several ranks");

  struct state {
    rank_vecs p, m, a;
    vec v;
    compressed_allreduce reduce;
  };
  std::vector<state> tensors;
  for (std::size_t k = 0; k < n_tensors; ++k) {
    const std::size_t n = c.tensors()[k].size;
    const rank_vecs zeros(n_ranks, vec(n, 0.0));
    tensors.push_back(
        {rank_vecs(n_ranks, c.initial_params<double>(k)), zeros, zeros, vec(n, 0.0), {n, n_ranks}});
  }
  std::size_t var_interval = 1, var_counter = 0, local_interval = 1, local_counter = 0;
  double lrs = 0;
  bool frozen = false;

  trajectory out;
  call_log log;
  for (std::size_t t = 1; t <= c.updates(); ++t) {
    const std::size_t step = t + 1;
    const char phase =
        frozen ? (step % local_interval == 0 ? 'S' : 'L') : (step % var_interval == 0 ? 'V' : 'C');
    out.phases += phase;
    const double lr = c.lr(t);
    if (frozen) lrs += lr;
    for (std::size_t k = 0; k < n_tensors; ++k) {
      state& x = tensors[k];
      const std::size_t zero_from = c.tensors()[k].mask_zero_from;
      const auto compressed = [&](const rank_vecs& buffers) {
        vec result = x.reduce(buffers, log);
        result.resize(x.v.size());
        mask(result, zero_from);
        out.compressed_calls.emplace_back(t, k);
        return result;
      };
      rank_vecs g;
      for (std::size_t r = 0; r < n_ranks; ++r) g.push_back(c.gradient(k, r, t, x.p[r]));
      if (!frozen) {
        const vec agreed = phase == 'V' ? dense_mean(g) : compressed(g);
        if (phase == 'V') s.variance(x.v, agreed);
        g.assign(n_ranks, agreed);
      }
      for (std::size_t r = 0; r < n_ranks; ++r) {
        x.m[r] = s.momentum(x.m[r], g[r]);
        const vec u = s.update(x.m[r], x.v, x.p[r]);
        add_scaled(x.p[r], f32(-lr), u);
        if (frozen) add_scaled(x.a[r], f32(-lr), u);
      }
      if (phase == 'S') {
        const vec d = s.denominator(x.v);
        rank_vecs message = x.a;
        for (std::size_t r = 0; r < n_ranks; ++r) {
          for (std::size_t i = 0; i < d.size(); ++i) {
            x.p[r][i] -= x.a[r][i];
            message[r][i] = x.a[r][i] * d[i];
          }
        }
        const vec b = compressed(message);
        for (std::size_t r = 0; r < n_ranks; ++r) {
          for (std::size_t i = 0; i < d.size(); ++i) {
            x.m[r][i] = -(b[i] / f32(lrs));
            x.p[r][i] += b[i] / d[i];
            x.a[r][i] = 0;
          }
        }
      }
      if (is_recorded(c, t)) append(out.arrays[numbered("params", k)], joined(x.p));
    }
    if (phase == 'S') lrs = 0;
    if (phase == 'V' && ++var_counter == c.hyper<std::size_t>("var_update_scaler")) {
      var_counter = 0;
      var_interval *= 2;
    }
    if (frozen && ++local_counter == c.hyper<std::size_t>("local_step_scaler")) {
      local_counter = 0;
      local_interval = std::min(c.hyper<std::size_t>("local_step_clipper"), 2 * local_interval);
    }
    if (step > var_freeze_step && !frozen) {
      frozen = true;
      for (state& x : tensors) x.reduce.clear_errors();
    }
  }
  for (std::size_t k = 0; k < n_tensors; ++k) {
    const state& x = tensors[k];
    out.arrays[numbered("exp_avg", k)] = joined(x.m);
    out.arrays[numbered("exp_avg_sq", k)] = x.v;
    out.arrays[numbered("momentum_accumulator", k)] = joined(x.a);
    out.arrays[numbered("worker_error", k)] = joined(x.reduce.worker_error);
    out.arrays[numbered("server_error", k)] = joined(x.reduce.server_error);
    out.final_scalars["var_interval"].push_back(static_cast<double>(var_interval));
    out.final_scalars["var_counter"].push_back(static_cast<double>(var_counter));
    out.final_scalars["local_step_interval"].push_back(static_cast<double>(local_interval));
    out.final_scalars["local_step_counter"].push_back(static_cast<double>(local_counter));
    out.final_scalars["lrs"].push_back(lrs);
  }
  out.arrays["worker_scales"] = log.worker_scales;
  out.arrays["server_scales"] = log.server_scales;
  return out;
}

/// Replays a case of any kind; throws for a kind that is not known.
inline trajectory run(const golden_case& c) {
  if (c.optimizer() == "compressed_allreduce") return run_compressed_allreduce(c);
  if (c.optimizer() == "onebit_adam") return run_onebit_adam(c);
  if (c.optimizer() == "onebit_lamb") return run_onebit_lamb(c);
  if (c.optimizer() == "zero_one_adam") return run_zero_one_adam(c);
  throw std::runtime_error("recorded: " + c.name() + ": unknown optimizer " + c.optimizer());
}

}  // namespace onebit_test::recorded

#endif  // ONEBIT_TESTS_SUPPORT_RECORDED_OPTIMIZERS_HPP
