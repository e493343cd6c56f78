// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Policies of a user's own that are complete, in use: this compiles. Each case (-DCASE_<name>,
// listed in CMakeLists.txt with what the compiler then says) leaves one thing out, or gets one
// thing wrong.

#if defined(CASE_ok_double_promotion)
#include <onebit/any_optimizer.hpp>
#endif
#include <cstddef>
#include <cstdint>
#include <onebit/onebit.hpp>
#include <string>
#include <vector>

struct word_codec {
  static constexpr std::size_t word_bytes = 4;
  static constexpr bool scaled = true;
  onebit::granularity scale_granularity() const { return onebit::granularity::layer(); }
#if !defined(CASE_word_compressor_without_scale)
  float scale(double, std::uint64_t) const { return 1; }
#endif
#if !defined(CASE_word_compressor_without_accumulate)
  template <class L>
  typename L::value accumulate(const typename L::value& sum, const typename L::value&) const {
    return sum;
  }
#endif
#if !defined(CASE_word_compressor_without_residual)
  template <class L>
  typename L::value residual(const typename L::value& y, float) const {
    return y;
  }
#endif
  template <class L>
  void encode(std::byte*, const typename L::value&) const {}
#if !defined(CASE_word_compressor_without_decode)
  template <class L>
  typename L::value decode(const std::byte*, float) const {
    return L::set(0);
  }
#endif
};

struct tile_codec {
#if !defined(CASE_tile_compressor_without_tile_bytes)
  std::size_t tile_bytes(std::size_t n) const { return n; }
#endif
#if defined(CASE_tile_compressor_not_const)
  void encode(const float*, std::size_t, std::byte*) {}
#elif !defined(CASE_tile_compressor_without_encode)
  void encode(const float*, std::size_t, std::byte*) const {}  // this one may throw
#endif
#if defined(CASE_tile_compressor_decode_may_throw)
  void decode(const std::byte*, std::size_t, float*) const {}
#elif !defined(CASE_tile_compressor_without_decode)
  void decode(const std::byte*, std::size_t, float*) const noexcept {}
#endif
};

struct own_transport {  // without split()
#if !defined(CASE_transport_without_rank)
  int rank() const { return 0; }
#endif
#if !defined(CASE_transport_without_size)
  int size() const { return 1; }
#endif
#if !defined(CASE_transport_without_all_to_all)
  void all_to_all(const void*, void*, std::size_t) {}
#endif
#if defined(CASE_transport_with_other_types)
  void all_gather(const float*, float*, std::size_t) {}
#elif !defined(CASE_transport_without_all_gather)
  void all_gather(const void*, void*, std::size_t) {}
#endif
#if !defined(CASE_transport_without_all_reduce_sum)
  void all_reduce_sum(float*, std::size_t) {}
#endif
};

struct own_backend {
  static constexpr bool deferred = false;
#if !defined(CASE_backend_without_launch)
  template <class Kernel>
  void launch(std::size_t, const Kernel&) const {}
#endif
#if !defined(CASE_backend_without_make_buffer)
  template <class T>
  onebit::detail::host_buffer<T> make_buffer(std::size_t n) const {
    return onebit::detail::host_buffer<T>(n);
  }
#endif
  template <class T>
  void copy_in(T*, const T*, std::size_t) const {}
  template <class T>
  void copy_out(T*, const T*, std::size_t) const {}
};

struct own_schedule : onebit::schedule_defaults {
#if defined(CASE_schedule_whose_plan_changes_it)
  onebit::due due_in(std::uint64_t, float) {  // must be const: asking changes nothing
    return {.average = n_++ < 10};
  }
  int n_ = 0;
#elif !defined(CASE_schedule_without_plan)
  onebit::due due_in(std::uint64_t step, float) const {
    return {.average = step < 3, .exchange = step >= 3};
  }
#endif
};

struct own_rule : onebit::rule_defaults {
  using backend_type = own_backend;
  own_backend& backend() { return backend_; }
  void prepare(const onebit::layout&) {}
  template <class P, class G>
  onebit::gradient_message<P, G> gradient(const onebit::step_context<own_backend, P, G>& at) const {
    return {at.tensors, at.now};
  }
#if !defined(CASE_rule_without_refresh)
  template <class View, class P, class G>
  void dense_update(const View&, const onebit::step_context<own_backend, P, G>&) {}
#endif
#if !defined(CASE_rule_without_message)
  template <class View, class P, class G>
  onebit::gradient_message<P, G> message(const View&,
                                         const onebit::step_context<own_backend, P, G>& at) const {
    return {at.tensors, at.now};
  }
  template <class View, class P, class G, class Update>
  void compressed_update(const View&, const View&, const onebit::step_context<own_backend, P, G>&,
                         const Update&) {}
#endif
  std::size_t state_bytes() const { return 0; }
  template <class Archive>
  void archive(Archive&) {}

 private:
  own_backend backend_;
};

struct no_bind : onebit::collective_defaults {  // a collective, but for bind()
  template <class B>
  using exchange = onebit::detail::gather_scatter_exchange<onebit::identity, B>;
};

struct every_second {  // data() and size(), and nothing that tells its stride
  float* p;
  float* data() const { return p; }
  int size() const { return 2; }
};

#if defined(CASE_ok_double_promotion)
// No float becomes a double by itself: on a device that would be slow, and elsewhere other bits.
onebit::any_optimizer make(const std::vector<onebit::param_group<>>& groups, onebit::threads t,
                           int which) {
  if (which == 0) return onebit::one_bit_adam(groups, t, {});
  if (which == 1) return onebit::one_bit_lamb(groups, t, {});
  return onebit::zero_one_adam(groups, t, {});
}
onebit::compressed_allreduce<> mean(onebit::threads t) { return {t, {5, 6}}; }
#endif

template <class P, class G>
void train(onebit::threads t) {
  std::vector<onebit::param_group<P, G>> groups;
  (void)onebit::one_bit_adam(groups, t, {});
}

void use(const std::vector<onebit::param_group<>>& groups, onebit::threads t) {
  using adam = onebit::adam_rule<onebit::host>;
#if defined(CASE_ok_double_promotion)
  (void)make(groups, t, 0);
#elif defined(CASE_word_compressor_without_scale) ||    \
    defined(CASE_word_compressor_without_accumulate) || \
    defined(CASE_word_compressor_without_residual) || defined(CASE_word_compressor_without_decode)
  (void)onebit::one_bit_adam(groups, t, {}, onebit::gather_scatter<word_codec>{});
#elif defined(CASE_tile_compressor_without_tile_bytes)
  (void)onebit::one_bit_adam(groups, t, {}, onebit::gather_scatter<tile_codec>{});
#elif defined(CASE_tile_compressor_without_encode)
  (void)onebit::one_bit_adam(groups, t, {}, onebit::all_gather<tile_codec>{});
#elif defined(CASE_tile_compressor_without_decode)
  (void)onebit::one_bit_adam(groups, t, {}, onebit::gather_scatter{tile_codec{}});
#elif defined(CASE_tile_compressor_not_const) || defined(CASE_tile_compressor_decode_may_throw)
  (void)onebit::gather_scatter<tile_codec>{};
#elif defined(CASE_transport_without_all_to_all) || defined(CASE_transport_without_all_gather)
  (void)onebit::one_bit_adam(groups, own_transport{}, {});
#elif defined(CASE_transport_without_rank) || defined(CASE_transport_without_size) || \
    defined(CASE_transport_without_all_reduce_sum) || defined(CASE_transport_with_other_types)
  (void)onebit::adam(groups, own_transport{});
#elif defined(CASE_transport_without_split)
  (void)onebit::one_bit_adam(groups, own_transport{}, {}, onebit::hierarchical<onebit::sign<>>{});
#elif defined(CASE_backend_without_launch) || defined(CASE_backend_without_make_buffer)
  (void)onebit::adam(groups, t, {}, own_backend{});
#elif defined(CASE_buffer_of_strings)
  (void)onebit::host{}.make_buffer<std::string>(3);
#elif defined(CASE_schedule_without_plan) || defined(CASE_schedule_whose_plan_changes_it)
  onebit::optimizer("own", groups, t, adam({}, onebit::host{}), own_schedule{},
                    onebit::gather_scatter<onebit::sign<>>{});
#elif defined(CASE_rule_without_refresh)
  onebit::optimizer("own", groups, t, own_rule{}, onebit::always_dense{},
                    onebit::gather_scatter<onebit::identity>{});
#elif defined(CASE_rule_without_message)
  onebit::optimizer("own", groups, t, own_rule{}, onebit::freeze({.after = 3}, 0.999),
                    onebit::gather_scatter<onebit::sign<>>{});
#elif defined(CASE_collective_without_bind)
  onebit::optimizer("own", groups, t, adam({}, onebit::host{}), onebit::always_dense{}, no_bind{});
#elif defined(CASE_compressor_as_collective)
  onebit::one_bit_adam(groups, t, {}, onebit::sign<>{}).step(0.1F);
#elif defined(CASE_policy_of_no_kind)
  onebit::one_bit_adam(groups, t, {}, 4).step(0.1F);
#elif defined(CASE_two_collectives)
  const onebit::all_gather<onebit::sign<>> twice{};
  onebit::one_bit_adam(groups, t, {}, twice, twice).step(0.1F);
#elif defined(CASE_mean_of_a_compressor)
  std::vector<float> data(10);
  onebit::compressed_allreduce mean(t, {10}, onebit::sign<>{});
  mean.mean(data);
#elif defined(CASE_const_params)
  train<const float, float>(t);
#elif defined(CASE_double_params)
  train<double, double>(t);
#elif defined(CASE_double_grads)
  train<float, double>(t);
#elif defined(CASE_int_grads)
  train<float, int>(t);
#elif defined(CASE_vectors_of_double)
  std::vector<double> params(10), grads(10);
  std::vector<onebit::param_group<>> own(1);
  own[0].tensors.push_back({params, grads});
#elif defined(CASE_strided_params)
  float x[4] = {};
  every_second some{x};
  onebit::tensor<> own;
  own.params = some;
#else
  const own_transport own;
  (void)onebit::one_bit_adam(groups, own, {}, onebit::gather_scatter<word_codec>{}, own_backend{});
  (void)onebit::one_bit_adam(groups, own, {}, onebit::all_gather{tile_codec{}}, own_backend{});
  (void)onebit::optimizer("own", groups, own, own_rule{}, own_schedule{},
                          onebit::gather_scatter{tile_codec{}});
#endif
}

int main() {
  onebit::run_threads(2, [](onebit::threads t) { use({}, t); });
}
