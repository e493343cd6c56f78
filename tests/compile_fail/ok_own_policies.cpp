// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The control: policies of a user's own that are complete.
// expect-ok

#include <cstddef>
#include <cstdint>
#include <onebit/onebit.hpp>
#include <vector>

struct word_codec {
  static constexpr std::size_t word_bytes = 4;
  static constexpr bool scaled = true;
  onebit::granularity scale_granularity() const { return onebit::granularity::layer(); }
  float scale(double, std::uint64_t) const { return 1; }
  template <class L>
  typename L::value accumulate(const typename L::value& sum, const typename L::value&) const {
    return sum;
  }
  template <class L>
  typename L::value residual(const typename L::value& y, float) const {
    return y;
  }
  template <class L>
  void encode(std::byte*, const typename L::value&) const {}
  template <class L>
  typename L::value decode(const std::byte*, float) const {
    return L::set(0);
  }
};

struct tile_codec {
  std::size_t tile_bytes(std::size_t n) const { return n; }
  void encode(const float*, std::size_t, std::byte*) const {}
  void decode(const std::byte*, std::size_t, float*) const noexcept {}
};

struct own_transport {
  int rank() const { return 0; }
  int size() const { return 1; }
  void all_to_all(const void*, void*, std::size_t) {}
  void all_gather(const void*, void*, std::size_t) {}
  void all_reduce_sum(float*, std::size_t) {}
};

struct own_backend {
  static constexpr bool deferred = false;
  template <class Kernel>
  void launch(std::size_t, const Kernel&) const {}
  template <class T>
  onebit::detail::host_buffer<T> make_buffer(std::size_t n) const {
    return onebit::detail::host_buffer<T>(n);
  }
  template <class T>
  void copy_in(T*, const T*, std::size_t) const {}
  template <class T>
  void copy_out(T*, const T*, std::size_t) const {}
};

struct own_schedule : onebit::schedule_defaults {
  onebit::due due_in(std::uint64_t step, float) const {
    return {.average = step < 3, .exchange = step >= 3};
  }
};

struct own_rule : onebit::rule_defaults {
  using backend_type = own_backend;
  own_backend& backend() { return backend_; }
  void prepare(const onebit::layout&) {}
  template <class P, class G>
  onebit::gradient_message<P, G> gradient(const onebit::step_context<own_backend, P, G>& at) const {
    return {at.tensors, at.now};
  }
  template <class View, class P, class G>
  void dense_update(const View&, const onebit::step_context<own_backend, P, G>&) {}
  template <class View, class P, class G>
  onebit::gradient_message<P, G> message(const View&,
                                         const onebit::step_context<own_backend, P, G>& at) const {
    return {at.tensors, at.now};
  }
  template <class View, class P, class G, class Update>
  void compressed_update(const View&, const View&, const onebit::step_context<own_backend, P, G>&,
                         const Update&) {}
  std::size_t state_bytes() const { return 0; }
  template <class Archive>
  void archive(Archive&) {}

 private:
  own_backend backend_;
};

int main() {
  std::vector<onebit::param_group<>> groups;
  const own_transport t;
  (void)onebit::one_bit_adam(groups, t, {}, onebit::gather_scatter<word_codec>{}, own_backend{});
  (void)onebit::one_bit_adam(groups, t, {}, onebit::all_gather{tile_codec{}}, own_backend{});
  (void)onebit::optimizer("own", groups, t, own_rule{}, own_schedule{},
                          onebit::gather_scatter{tile_codec{}});
}
