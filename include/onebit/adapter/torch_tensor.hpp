// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <onebit/element.hpp>
#include <onebit/error.hpp>
#include <onebit/tensor.hpp>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/// A parameter of torch as an optimizer sees it: dense memory that may be another one in each step.
namespace onebit::inline v0_1::detail {

[[nodiscard, gnu::cold]] inline std::string shape_of(const at::Tensor& x) {
  std::string text = "[";
  for (const std::int64_t n : x.sizes()) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(n);
  }
  return text + "]";
}

/// Its element type, if it is one of ours.
[[nodiscard]] inline bool element_of(const at::Tensor& x, element_type& type) {
  switch (x.scalar_type()) {
    case at::kFloat:
      type = element_type::of_float;
      return true;
    case at::kBFloat16:
      type = element_type::of_bf16;
      return true;
    case at::kHalf:
      type = element_type::of_fp16;
      return true;
    default:
      return false;
  }
}

/// Whether its elements fill their memory in the order of these strides; dimensions of 1 have no
/// stride that matters.
[[nodiscard]] inline bool lies_in_order(const at::Tensor& x, at::IntArrayRef strides) {
  if (!x.is_non_overlapping_and_dense()) return false;
  for (std::int64_t d = 0; d < x.dim(); ++d) {
    if (x.size(d) > 1 && x.stride(d) != strides[static_cast<std::size_t>(d)]) return false;
  }
  return true;
}

/// One parameter, and where its gradient lies.
class torch_tensor {
 public:
  /// `name` is for errors. `masters`: floats beside 2-byte parameters. Throws invalid_input for
  /// element types that onebit does not know, and for tensors it cannot step on.
  [[gnu::cold]] torch_tensor(at::Tensor param, std::string name, at::Device device, bool masters)
      : param_(std::move(param)), name_(std::move(name)) {
    if (!param_.defined()) throw invalid_input(message("torch: ", name_, " is undefined"));
    if (!element_of(param_, type_) || param_.layout() != at::kStrided) {
      throw invalid_input(message("torch: ", name_, " is of ", at::toString(param_.scalar_type()),
                                  param_.layout() == at::kStrided ? "" : ", and sparse",
                                  "; parameters are dense, of Float, BFloat16 or Half: to() it"));
    }
    check_device(device);
    if (at::has_internal_overlap(param_) == at::MemOverlap::Yes) {
      throw invalid_input(message("torch: ", name_,
                                  " is expanded: several of its elements share their memory; give "
                                  "the tensor that was expanded"));
    }
    const at::NoGradGuard no_grad;
    const bool dense_already = param_.is_non_overlapping_and_dense();
    if (!dense_already) held_ = param_.contiguous().clone();
    sizes_ = param_.sizes().vec();
    order_ = dense().strides().vec();
    if (masters && type_ != element_type::of_float) master_ = in_order(at::kFloat).copy_(dense());
    remember();
  }

  [[nodiscard]] const at::Tensor& param() const { return param_; }
  [[nodiscard]] const at::Tensor& master() const { return master_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(param_.numel()); }
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(param_.nbytes()); }
  [[nodiscard]] element_type type() const { return type_; }
  /// The dense memory that steps act on: the parameter's own, or a copy of one that has gaps.
  [[nodiscard]] const at::Tensor& dense() const { return held_.defined() ? held_ : param_; }

  // -- before a step -----------------------------------------------------------------------------

  /// What the trainer did to the parameter: moved it (torch::load, set_data), laid it out
  /// otherwise, wrote to it. What it wrote wins over a master. Throws invalid_input when it is of
  /// another type, shape or device now.
  void follow_param(at::Device device) {
    check_device(device);
    element_type type{};
    if (!element_of(param_, type) || type != type_ || param_.sizes() != sizes_) {
      throw invalid_input(message("torch: ", name_, " is ", shape_of(param_), " of ",
                                  at::toString(param_.scalar_type()),
                                  " now; build a new optimizer after to() and the like"));
    }
    const bool in_place = lies_in_order(param_, order_);  // that of the optimizer's state
    if (in_place == held_.defined()) held_ = in_place ? at::Tensor() : in_order(plain().dtype());
    const bool written =
        held_.defined() || param_.data_ptr() != seen_at_ || param_._version() != version_;
    if (written && held_.defined()) held_.copy_(param_);
    if (written && master_.defined()) {
      const at::Tensor other = master_.to(param_.scalar_type()).ne(dense());
      master_.copy_(at::where(other, dense().to(at::kFloat), master_));
    }
  }
  /// The gradient's memory for this step: in place where it lies as the parameter does, else a copy
  /// in a buffer of our own, as it is where `always_copy`. False: there is none.
  bool follow_gradient(bool always_copy) {
    const at::Tensor& given = param_.grad();
    if (!given.defined()) return false;
    at::Tensor g = given.detach();
    if (g.is_sparse()) g = g.to_dense();
    const bool fits = g.scalar_type() == param_.scalar_type() && g.layout() == at::kStrided &&
                      g.device() == param_.device() && g.sizes() == sizes_ &&
                      lies_in_order(g, order_);
    if (fits && (!always_copy || (slot_.defined() && g.data_ptr() == slot_.data_ptr()))) {
      grad_ = g;
      return true;
    }
    if (g.sizes() != param_.sizes()) {
      throw invalid_input(message("torch: the gradient of ", name_, " has shape ", shape_of(g)));
    }
    own_slot().copy_(g);
    grad_ = slot_;
    return true;
  }
  /// It will come to our own buffer.
  void expect_gradient() { grad_ = own_slot(); }
  /// A gradient of zeros in our own buffer.
  void zero_gradient() {
    own_slot().zero_();
    grad_ = slot_;
  }
  at::Tensor& own_slot() {
    if (!slot_.defined()) slot_ = in_order(plain().dtype());
    return slot_;
  }

  // -- what the optimizer is told ----------------------------------------------------------------

  /// Spans of where everything lies now; `nothing` stands for a gradient that is not there.
  template <class P>
  [[nodiscard]] tensor<P, P> spans(void* nothing) {
    void* const grads = grad_.defined() ? grad_.data_ptr() : nothing;
    tensor<P, P> t{span_to<P>(dense().data_ptr()), span_to<P>(grads)};
    if (master_.defined()) t.master = {static_cast<float*>(master_.data_ptr()), size()};
    return t;
  }
  /// Whether that is what the optimizer was told last; it is told it now.
  [[nodiscard]] bool tell(void* nothing) {
    const void* const p = dense().data_ptr();
    const void* const g = grad_.defined() ? grad_.data_ptr() : nothing;
    const void* const m = master_.defined() ? master_.data_ptr() : nullptr;
    const bool same = p == told_param_ && g == told_grad_ && m == told_master_;
    told_param_ = p;
    told_grad_ = g;
    told_master_ = m;
    return same;
  }

  // -- after a step ------------------------------------------------------------------------------

  /// The parameter was stepped on: autograd hears of it, and gradients that were scratch are gone.
  void finish(bool consumed) {
    if (held_.defined()) {
      param_.copy_(held_);
    } else {
      param_.unsafeGetTensorImpl()->bump_version();
    }
    if (consumed && grad_.defined()) param_.mutable_grad().reset();
    grad_.reset();
    remember();
  }
  /// A parameter that came from elsewhere, in dense().
  void take_dense() {
    if (held_.defined()) param_.copy_(held_);
    if (master_.defined()) master_.copy_(dense());
    remember();
  }

  void release_gradient() { grad_.reset(); }
  /// The parameter is as the last step left it.
  void remember() {
    seen_at_ = param_.data_ptr();
    version_ = param_._version();
  }

  bool is_final = false;  ///< its gradient was announced in this step
  /// The gradient in our buffer is on its way, and what the trainer sees.
  void announce() {
    param_.mutable_grad() = slot_;
    is_final = true;
    announced_ = look();
  }
  /// Whether the gradient that was announced is as it was, as far as a look tells: where it lies,
  /// torch's count of writes, which those to data() do not raise, and some elements.
  [[nodiscard]] bool is_as_announced() const {
    const at::Tensor& g = param_.grad();
    return g.defined() && g.data_ptr() == slot_.data_ptr() && announced_ == look();
  }

 private:
  void check_device(at::Device device) const {
    if (param_.device() == device) return;
    throw invalid_input(message(
        "torch: ", name_, " lies on ", param_.device().str(), ", but the optimizer works on ",
        device.str(),
        "; for parameters on a device give torch_options::stream and the backend of that stream"));
  }
  [[nodiscard]] std::uint64_t look() const {
    std::uint64_t seen = static_cast<std::uint64_t>(param_.grad()._version());
    if (!slot_.is_cpu()) return seen;
    const auto* const bytes = static_cast<const unsigned char*>(slot_.data_ptr());
    const std::size_t each = bytes_of_element(), n = slot_.nbytes() / each;
    for (std::size_t i = 0; i < n; i += n / 64 + 1) {
      std::uint32_t element = 0;
      std::memcpy(&element, bytes + i * each, each);
      seen = seen * 1099511628211U + element;
    }
    return seen;
  }
  [[nodiscard]] std::size_t bytes_of_element() const {
    return type_ == element_type::of_float ? 4 : 2;
  }
  [[nodiscard]] at::TensorOptions plain() const { return param_.options().requires_grad(false); }
  [[nodiscard]] at::Tensor in_order(caffe2::TypeMeta type) const {
    return at::empty_strided(sizes_, order_, plain().dtype(type));
  }
  [[nodiscard]] at::Tensor in_order(at::ScalarType type) const {
    return in_order(at::scalarTypeToTypeMeta(type));
  }
  template <class P>
  [[nodiscard]] span_of<P> span_to(void* p) const {
    if constexpr (std::is_same_v<P, any_element>) {
      return any_span(any_pointer{p, type_}, size());
    } else {
      return {static_cast<P*>(p), size()};
    }
  }

  at::Tensor param_;   ///< the trainer's
  at::Tensor held_;    ///< a dense copy of a parameter that has gaps
  at::Tensor master_;  ///< floats of a parameter of 2 bytes
  at::Tensor slot_;    ///< a gradient of our own, in the order of dense()
  at::Tensor grad_;    ///< of this step: the trainer's, or the slot
  std::string name_;
  element_type type_ = element_type::of_float;
  std::vector<std::int64_t> sizes_, order_;  ///< shape, and strides of the optimizer's state
  const void* seen_at_ = nullptr;            ///< where the parameter was after the last step
  std::uint64_t announced_ = 0;
  std::int64_t version_ = 0;  ///< and torch's count of the writes to it
  const void *told_param_ = nullptr, *told_grad_ = nullptr, *told_master_ = nullptr;
};

}  // namespace onebit::inline v0_1::detail
