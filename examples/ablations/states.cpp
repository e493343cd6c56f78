// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#include <onebit/sharded.hpp>

#include "row.hpp"

using namespace onebit;
using namespace ablations;

namespace {

using compact = residual_in<int8, sign<>>;

template <class V, class Codec = sign<>>
row one_bit(const char* name, Codec codec = {}) {
  return {name, family::adam, [=](const groups& g, threads t, const settings& s) {
            return quiet(
                one_bit_adam<V>(g, t, {s.adam, {.after = s.freeze_after}}, gather_scatter{codec}));
          }};
}
template <class V, class M, class Codec = sign<>>
row zero_one(const char* name, Codec codec = {}) {
  return {name, family::adam, [=](const groups& g, threads t, const settings& s) {
            return quiet(zero_one_adam<V, M>(
                g, t,
                {.adam = {.beta2 = s.adam.beta2, .eps = s.adam.eps},
                 .schedule = {.warmup_steps = s.freeze_after, .also_every = s.meet_every}},
                gather_scatter{codec}));
          }};
}
lamb_options lambs(const settings& s) { return {.beta2 = s.adam.beta2, .eps = s.adam.eps}; }
template <class V>
row one_bit_of_lamb(const char* name) {
  return {name, family::lamb, [](const groups& g, threads t, const settings& s) {
            return quiet(one_bit_lamb<V>(g, t, {lambs(s), {.after = 2 * s.freeze_after}}));
          }};
}
/// Its decays act with rates a tenth of Adam's, and are ten times as large.
template <class Make>
row lions(const char* name, Make make) {
  return {name, family::lion, [make](groups g, threads t, const settings& s) {
            for (auto& group : g) group.weight_decay *= 10;
            return quiet(make(g, t, s));
          }};
}

}  // namespace

std::vector<row> ablations::rows_of_states() {
  return {
      {"adam", family::adam,
       [](const groups& g, threads t, const settings& s) { return quiet(adam(g, t, s.adam)); }},
      {"  averages in 8 bits", family::adam,
       [](const groups& g, threads t, const settings& s) {
         return quiet(adam(g, t, s.adam, host{}, dense_sum::in_int8));
       }},
      {"sharded_adam", family::adam,
       [](const groups& g, threads t, const settings& s) {
         return quiet(sharded_adam(g, t, s.adam));
       }},
      {"  shares in 8 bits", family::adam,
       [](const groups& g, threads t, const settings& s) {
         return quiet(sharded_adam(g, t, s.adam, {.sum = dense_sum::in_int8}));
       }},
      one_bit<float>("one_bit_adam"),
      one_bit<bf16>("  v in bf16"),
      one_bit<int8>("  v in 8 bits"),
      one_bit<int8>("  v and residuals in 8 bits", compact{}),
      zero_one<float, float>("zero_one_adam"),
      zero_one<float, float>("  residuals in 8 bits", compact{}),
      zero_one<int8, bf16>("  v and residuals in 8 bits, m in bf16", compact{}),
      {"lamb", family::lamb,
       [](const groups& g, threads t, const settings& s) { return quiet(lamb(g, t, lambs(s))); }},
      one_bit_of_lamb<float>("one_bit_lamb"),
      one_bit_of_lamb<bf16>("  v in bf16"),
      lions("lion", [](const groups& g, threads t, const settings&) { return lion(g, t); }),
      lions("  m in bf16",
            [](const groups& g, threads t, const settings&) { return lion<bf16>(g, t); }),
      lions("sharded_lion",
            [](const groups& g, threads t, const settings&) { return sharded_lion(g, t); }),
      lions("one_bit_lion",
            [](const groups& g, threads t, const settings&) { return one_bit_lion(g, t); }),
      lions("  m in bf16",
            [](const groups& g, threads t, const settings&) { return one_bit_lion<bf16>(g, t); }),
      lions("zero_one_lion",
            [](const groups& g, threads t, const settings& s) {
              return zero_one_lion(
                  g, t, {.schedule = {.warmup_steps = s.freeze_after, .also_every = s.meet_every}});
            }),
  };
}
