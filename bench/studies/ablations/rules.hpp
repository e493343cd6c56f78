// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
//
// Parts that the ablations need and the library lacks: Adam on compressed gradients, and a sign
// compressor without error feedback.
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/onebit.hpp>
#include <string>
#include <utility>

namespace ablations {

using floats = onebit::detail::host_buffer<float>;
using step_context = onebit::step_context<onebit::host, float, float>;

/// The sign without error feedback: the compression error is not sent later. Only for collectives
/// without servers: a server has a residual of its own.
template <class Scale = onebit::l2_scale>
struct forgetful_sign : onebit::sign<Scale> {
  [[nodiscard]] std::string name() const { return "forgetful " + onebit::sign<Scale>::name(); }
  /// Before the first message (scale 0) the residual holds the initial momentum, which stays.
  template <class L>
  ONEBIT_HD typename L::value residual(const typename L::value& y, float s) const {
    return s == 0.0F ? y : L::set(0.0F);
  }
};

/// Naive 1-bit Adam: compresses the gradients, and updates m and v from the received mean. v then
/// holds squares of scales, equal for all elements that share a scale: Adam's adaptivity is gone.
class compressed_gradients : public onebit::rule_defaults {
 public:
  using backend_type = onebit::host;

  static constexpr bool has_moments = true;

  explicit compressed_gradients(onebit::adam_options o) : options_(o) {}
  [[nodiscard]] onebit::moments_updated updated(const onebit::step_plan&) const {
    return {true, true, true};
  }
  [[nodiscard]] onebit::moments own_moments() const {
    return {options_.beta1, options_.beta2, options_.eps};
  }
  [[nodiscard]] onebit::host& backend() { return backend_; }
  void prepare(const onebit::layout& axis) {
    m_ = floats(axis.n_words() * onebit::word_elements);
    v_ = floats(axis.n_words() * onebit::word_elements);
  }
  [[nodiscard]] onebit::gradient_message<float, float> gradient(const step_context& at) const {
    return {at.tensors, at.now};
  }
  template <class View>
  void dense_update(const View& gradient, const step_context& at) {
    at.launch(
        onebit::detail::adam_dense_kernel<View, float, float>{gradient, at, m_.data(), v_.data()});
  }
  template <class View>
  [[nodiscard]] onebit::gradient_message<float, float> message(const View&,
                                                               const step_context& at) const {
    return gradient(at);
  }
  template <class View, class Update>
  void compressed_update(const View& latest, const View&, const step_context& at,
                         const Update& update) {
    update(onebit::detail::adam_dense_kernel<View, float, float>{latest, at, m_.data(), v_.data()});
  }
  [[nodiscard]] std::size_t state_bytes() const { return m_.bytes() + v_.bytes(); }
  template <class Archive>
  void archive(Archive& a) {
    a.buffer(m_, backend_);
    a.buffer(v_, backend_);
  }

 private:
  onebit::adam_options options_;
  onebit::host backend_;
  floats m_, v_;
};

}  // namespace ablations
