// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <onebit/core/element_types.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/number_text.hpp>
#include <onebit/kernel/param_group.hpp>
#include <onebit/torch/options.hpp>
#include <onebit/transport/communicator.hpp>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

/// One parameter of a torch optimizer, as onebit uses it.
namespace onebit { inline namespace v0_3 { namespace detail {

[[nodiscard, gnu::cold]] inline std::string shape_of(const at::Tensor& x) {
  std::string text = "[";
  for (const std::int64_t n : x.sizes()) {
    text += (text.size() > 1 ? ", " : "") + number_text(n);
  }
  return text + "]";
}

/// Sets `type` to the element type of x. Returns false if onebit lacks this type.
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

/// Returns true if x is dense and has these strides. Ignores strides of dimensions of size 1.
[[nodiscard]] inline bool lies_in_order(const at::Tensor& x, at::IntArrayRef strides) {
  if (!x.is_non_overlapping_and_dense()) return false;
  for (std::int64_t d = 0; d < x.dim(); ++d) {
    if (x.size(d) > 1 && x.stride(d) != strides[static_cast<std::size_t>(d)]) return false;
  }
  return true;
}

/// One parameter, with its master and the memory of its gradient.
class torch_tensor {
 public:
  /// `name` appears in errors. `masters`: keeps a float master of a 2-byte parameter. Throws
  /// invalid_input for undefined, sparse and expanded tensors, other devices and unknown types.
  [[gnu::cold]] torch_tensor(at::Tensor param, std::string name, at::Device device, bool masters)
      : param_(std::move(param)), name_(std::move(name)) {
    if (!param_.defined()) throw invalid_input(error_text("torch: ", name_, " is undefined"));
    if (!element_of(param_, type_) || param_.layout() != at::kStrided) {
      throw invalid_input(
          error_text("torch: ", name_, " is of ", at::toString(param_.scalar_type()),
                     param_.layout() == at::kStrided ? "" : ", and sparse",
                     "; parameters are dense, of Float, BFloat16 or Half: to() it"));
    }
    check_device(device);
    if (at::has_internal_overlap(param_) == at::MemOverlap::Yes) {
      throw invalid_input(
          error_text("torch: ", name_,
                     " is expanded: several of its elements share their memory; give "
                     "the tensor that was expanded"));
    }
    const at::NoGradGuard no_grad;
    const bool dense_already = param_.is_non_overlapping_and_dense();
    if (!dense_already) held_ = param_.contiguous().clone();
    sizes_ = param_.sizes().vec();
    order_ = dense().strides().vec();
    if (masters && type_ != element_type::of_float) master_ = in_order(at::kFloat).copy_(dense());
  }

  [[nodiscard]] const at::Tensor& param() const { return param_; }
  [[nodiscard]] const at::Tensor& master() const { return master_; }
  [[nodiscard]] const std::string& name() const { return name_; }
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(param_.numel()); }
  [[nodiscard]] std::size_t bytes() const { return static_cast<std::size_t>(param_.nbytes()); }
  [[nodiscard]] element_type type() const { return type_; }
  /// Tensor that steps act on: the parameter, or a dense copy if it has gaps or changed strides.
  [[nodiscard]] const at::Tensor& dense() const { return held_.defined() ? held_ : param_; }

  // -- before a step -----------------------------------------------------------------------------

  /// Adapts to what the trainer did to the parameter: moved it (torch::load, set_data), changed its
  /// strides, wrote to it. Throws invalid_input if type, shape or device have changed.
  void follow_param(at::Device device) {
    check_device(device);
    element_type type{};
    if (!element_of(param_, type) || type != type_ || param_.sizes() != sizes_) {
      throw invalid_input(error_text("torch: ", name_, " is ", shape_of(param_), " of ",
                                     at::toString(param_.scalar_type()),
                                     " now; build a new optimizer after to() and the like"));
    }
    const bool in_place = lies_in_order(param_, order_);  // as in the optimizer's state
    if (in_place == held_.defined()) held_ = in_place ? at::Tensor() : in_order(plain().dtype());
    if (held_.defined()) held_.copy_(param_);
  }
  /// Finds the gradient of this step, in place if type, device and strides fit and not always_copy;
  /// else copies it to own_slot(). Returns false if there is none. Throws for another shape.
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
      throw invalid_input(error_text("torch: the gradient of ", name_, " has shape ", shape_of(g)));
    }
    own_slot().copy_(g);
    grad_ = slot_;
    return true;
  }
  /// Uses own_slot() for a gradient that the backward pass has not computed yet.
  void expect_gradient() { grad_ = own_slot(); }
  /// Uses zeros in own_slot() as the gradient.
  void zero_gradient() {
    own_slot().zero_();
    grad_ = slot_;
  }
  at::Tensor& own_slot() {  // gradient buffer of this object
    if (!slot_.defined()) slot_ = in_order(plain().dtype());
    return slot_;
  }

  // -- addresses for the optimizer ---------------------------------------------------------------

  /// Returns the memory of parameter, gradient (`nothing` if there is none) and master.
  template <class P>
  [[nodiscard]] tensor<P, P> spans(void* nothing) {
    void* const grads = grad_.defined() ? grad_.data_ptr() : nothing;
    tensor<P, P> t{span_to<P>(dense().data_ptr()), span_to<P>(grads)};
    if (master_.defined()) t.master = {static_cast<float*>(master_.data_ptr()), size()};
    return t;
  }
  /// Records the addresses that `spans` returns. Returns true if none differs from the last call.
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

  /// Ends a step: writes a copied parameter back, or else tells autograd that the parameter was
  /// written to. Resets the trainer's gradient if the step `consumed` it as scratch.
  void finish(bool consumed) {
    if (held_.defined()) {
      param_.copy_(held_);
    } else {
      param_.unsafeGetTensorImpl()->bump_version();
    }
    if (consumed && grad_.defined()) param_.mutable_grad().reset();
    grad_.reset();
  }
  /// Copies new values in dense() to the parameter and to the master.
  void take_dense() {
    if (held_.defined()) param_.copy_(held_);
    if (master_.defined()) master_.copy_(dense());
  }

  void release_gradient() { grad_.reset(); }

  bool is_final = false;  ///< gradient of this step is announced, or none will come
  /// Marks the gradient in slot_ as announced, and makes slot_ the trainer's gradient.
  void announce() {
    param_.mutable_grad() = slot_;
    is_final = true;
    announced_ = look();
  }
  /// Returns true if the announced gradient seems unchanged. Compares its address, torch's version
  /// count (which writes to data() do not raise), and on the host up to 64 elements.
  [[nodiscard]] bool is_as_announced() const {
    const at::Tensor& g = param_.grad();
    return g.defined() && g.data_ptr() == slot_.data_ptr() && announced_ == look();
  }

 private:
  void check_device(at::Device device) const {
    if (param_.device() == device) return;
    throw invalid_input(error_text(
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

  at::Tensor param_;   ///< the trainer's parameter
  at::Tensor held_;    ///< copy for `dense`; undefined: the parameter is used in place
  at::Tensor master_;  ///< float master of a 2-byte parameter, or undefined
  at::Tensor slot_;    ///< gradient buffer of this object, with the strides of dense()
  at::Tensor grad_;    ///< gradient of this step: the trainer's tensor, or slot_
  std::string name_;
  element_type type_ = element_type::of_float;
  std::vector<std::int64_t> sizes_, order_;  ///< shape; strides of the optimizer's state
  std::uint64_t announced_ = 0;              ///< `look` at the announced gradient
  const void *told_param_ = nullptr, *told_grad_ = nullptr, *told_master_ = nullptr;
};

}}}  // namespace onebit::detail

/// All parameters of a torch optimizer, and their bookkeeping in a step.
namespace onebit { inline namespace v0_3 { namespace detail {

/// Parameters in the order of torch_options::order. `consumes`: steps use gradients as scratch.
class torch_tensors {
 public:
  torch_tensors(communicator comm, const torch_options& options, bool consumes)
      : comm_(std::move(comm)), options_(options), consumes_(consumes) {
    if (options_.overlap && consumes_) {
      throw invalid_input(error_text(
          "torch: overlap with groups of floats may overwrite gradients between backward() "
          "and step(); let make take const onebit::torch_groups&, or leave overlap out",
          comm_.where()));
    }
    if (options_.overlap && options_.undefined != undefined_gradient::zeros) {
      throw invalid_input(
          error_text("torch: overlap begins a step before it is known which parameters get a "
                     "gradient, so none can rest: give undefined_gradient::zeros",
                     comm_.where()));
    }
  }

  [[nodiscard]] const torch_options& options() const { return options_; }
  [[nodiscard]] std::size_t size() const { return all_.size(); }
  [[nodiscard]] const torch_tensor& operator[](std::size_t t) const { return all_[t]; }
  /// Number of onebit's groups: one for each run of consecutive tensors of one torch group.
  [[nodiscard]] std::size_t n_groups() const { return stretches_.size(); }
  [[nodiscard]] const group_options& share(std::size_t g) const {
    return shares_[stretches_[g].group];
  }
  [[nodiscard]] float share_rates(const std::vector<torch_group>& groups) {
    return detail::share_rates(groups, shares_);
  }
  /// Returns true if `groups` list the parameters that `take` was given.
  [[nodiscard]] bool are_of(const std::vector<torch_group>& groups) const {
    std::size_t i = 0;
    if (groups.size() != ends_.size()) return false;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      for (const at::Tensor& p : groups[g].params()) {
        if (i == place_.size() || !all_[place_[i++]].param().is_same(p)) return false;
      }
      if (i != ends_[g]) return false;
    }
    return true;
  }

  /// Takes the parameters of groups. Collective: throws on all ranks if one fails or sizes differ.
  [[gnu::cold]] void take(const std::vector<torch_group>& groups) {
    std::exception_ptr failure;
    std::array<std::uint64_t, 3> mine{};  // 1 if failed; number of tensors; digest of sizes
    all_.clear();
    ends_.clear();
    stretches_.clear();
    offsets_.clear();
    try {
      add_all(groups);
      for (const torch_tensor& t : all_) mine[2] = mine[2] * 1000003 + t.bytes();
      mine[1] = all_.size();
      make_nothing();
    } catch (...) {
      mine[0] = 1;
      failure = std::current_exception();
    }
    std::vector<std::array<std::uint64_t, 3>> cards(static_cast<std::size_t>(comm_.size()));
    comm_.host_all_gather(mine.data(), cards.data(), sizeof mine);
    if (failure) std::rethrow_exception(failure);
    for (std::size_t r = 0; r < cards.size(); ++r) {
      if (cards[r][0] == 0) continue;
      throw rank_mismatch(
          error_text("torch: rank ", r, " cannot use its parameters, and says why", comm_.where()));
    }
    for (std::size_t r = 0; r < cards.size(); ++r) {
      if (cards[r] == cards[0]) continue;
      throw rank_mismatch(error_text(
          "torch: rank ", r, " has ", cards[r][1], " parameters, rank 0 ", cards[0][1],
          ", but not of the same sizes in the same order; build one model on all", comm_.where()));
    }
  }
  /// Sets the parameters of all ranks to rank 0's values. Collective.
  [[gnu::cold]] void broadcast() {
    for (torch_tensor& t : all_) {
      broadcast_from_0(comm_, t.dense());
      t.take_dense();
    }
  }

  template <class P>
  [[nodiscard]] std::vector<param_group<P>> groups() {
    std::vector<param_group<P>> out;
    std::size_t t = 0;
    for (const stretch& r : stretches_) {
      const group_options& o = shares_[r.group];
      param_group<P> group{{}, o.lr_factor, o.weight_decay, o.own, o.rests};
      for (; t < r.end; ++t) group.tensors.push_back(all_[t].template spans<P>(nothing_for(t)));
      out.push_back(std::move(group));
    }
    return out;
  }
  /// Records all addresses. Returns true if one has changed: the caller must rebind the optimizer.
  [[nodiscard]] bool tell() {
    bool moved = false;
    for (std::size_t t = 0; t < all_.size(); ++t) moved = !all_[t].tell(nothing_for(t)) || moved;
    return moved;
  }

  // -- a step ------------------------------------------------------------------------------------

  void follow_parameters() {
    for (torch_tensor& t : all_) t.follow_param(device());
  }
  /// Finds the gradients of this step. Returns the tensors that rest. `announced`: called before
  /// the gradients exist, so that only tensors without requires_grad lack one.
  [[nodiscard]] const std::vector<std::size_t>& follow_gradients(bool announced) {
    resting_.clear();
    missing_.assign(all_.size(), 0);
    std::size_t n_missing = 0;
    for (std::size_t t = 0; t < all_.size(); ++t) {
      const bool there =
          announced ? all_[t].param().requires_grad() : all_[t].follow_gradient(options_.overlap);
      if (there && announced) all_[t].expect_gradient();
      missing_[t] = there ? 0 : 1;
      n_missing += there ? 0U : 1U;
      all_[t].is_final = announced && (!there || all_[t].size() == 0);
    }
    next_ = all_.size();
    if (options_.undefined == undefined_gradient::previous) {
      agree_on_missing();
    } else if (n_missing == all_.size() && n_missing > 0) {
      throw invalid_input(
          error_text("torch: none of ", n_missing,
                     " parameters has a gradient: step() without backward(), or after "
                     "zero_grad()",
                     comm_.where()));
    }
    for (std::size_t t = 0; t < all_.size(); ++t) {
      if (missing_[t] == 0) continue;
      const bool zeros = options_.undefined == undefined_gradient::zeros
                             ? all_[t].param().requires_grad()
                             : missing_[t] == 2;
      if (zeros && consumes_) all_[t].zero_gradient();
      if (!zeros) resting_.push_back(t);
    }
    return resting_;
  }
  /// Marks the gradient of tensor t as final. Calls tell(i) once for each tensor i, from the last
  /// to the first, as far as all gradients are final: in the same order on all ranks.
  template <class Tell>
  void announce(std::size_t t, const Tell& tell) {
    torch_tensor& x = all_[t];
    if (x.is_final) {
      throw invalid_input(
          error_text("torch: ", x.name(),
                     " got a second gradient before step(), but its first is on its way; call "
                     "accumulate(true) before backward passes that are not the last",
                     comm_.where()));
    }
    (void)x.follow_gradient(true);
    x.announce();
    while (next_ > 0 && all_[next_ - 1].is_final) tell(--next_);
  }
  /// Finds gradients that were not announced. Throws invalid_input if an announced one has changed.
  void complete() {
    for (std::size_t t = 0; t < all_.size(); ++t) {
      torch_tensor& x = all_[t];
      if (!x.param().requires_grad() || x.size() == 0) continue;
      if (x.is_final && !x.is_as_announced()) {
        throw invalid_input(error_text(
            "torch: the gradient of ", x.name(),
            " was changed after backward(), when it was on its way; clip by the algorithm's "
            "max_grad_norm, or leave overlap out",
            comm_.where()));
      }
      if (!x.is_final && !x.follow_gradient(true)) x.zero_gradient();
    }
  }
  void finish() {
    for (torch_tensor& t : all_) t.finish(consumes_);
  }
  void forget_step() {
    for (torch_tensor& t : all_) {
      t.is_final = false;
      t.release_gradient();
    }
  }
  /// Calls f(key, master) for each tensor that has a master.
  template <class F>
  void each_master(const F& f) const {
    for (std::size_t t = 0; t < all_.size(); ++t) {
      if (all_[t].master().defined()) f("master" + number_text(t), all_[t].master());
    }
  }

 private:
  [[nodiscard]] at::Device device() const {
    return options_.stream ? options_.stream->device() : at::Device(at::kCPU);
  }
  struct listed {
    at::Tensor x;
    std::size_t group, i;  ///< x is tensor i of the torch group
  };
  struct stretch {
    std::size_t group, end;  ///< torch group; index behind the last tensor
  };
  [[gnu::cold]] void add_all(const std::vector<torch_group>& groups) {
    std::vector<listed> all;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      (void)read_terms(groups[g].options(), g);
      for (const at::Tensor& x : groups[g].params()) {
        all.push_back({x, g, all.size() - (g > 0 ? ends_[g - 1] : 0)});
      }
      ends_.push_back(all.size());
    }
    std::vector<std::size_t> by(all.size());
    for (std::size_t i = 0; i < by.size(); ++i) by[i] = i;
    if (!options_.order.empty()) {
      std::unordered_map<const void*, std::size_t> rank;
      for (const at::Tensor& x : options_.order) {
        rank.emplace(x.unsafeGetTensorImpl(), rank.size());
      }
      for (const listed& l : all) {
        if (rank.count(l.x.unsafeGetTensorImpl()) != 0) continue;
        throw invalid_input(error_text("torch: parameter ", l.i, " of group ", l.group, ", ",
                                       shape_of(l.x), ", is not in torch_options::order",
                                       comm_.where()));
      }
      std::stable_sort(by.begin(), by.end(), [&](std::size_t a, std::size_t b) {
        return rank.at(all[a].x.unsafeGetTensorImpl()) < rank.at(all[b].x.unsafeGetTensorImpl());
      });
    }
    place_.resize(all.size());
    for (const std::size_t i : by) {
      place_[i] = all_.size();
      add(all[i].x, all[i].group, all[i].i);
      if (stretches_.empty() || stretches_.back().group != all[i].group)
        stretches_.push_back({all[i].group, 0});
      stretches_.back().end = all_.size();
    }
  }
  [[gnu::cold]] void add(const at::Tensor& x, std::size_t g, std::size_t i) {
    const std::string name = "parameter " + number_text(i) + " of group " + number_text(g) +
                             (x.defined() ? ", " + shape_of(x) + "," : "");
    all_.emplace_back(x, name, device(), options_.masters);
    if (consumes_ && all_.back().type() != element_type::of_float) {
      throw invalid_input(error_text("torch: ", name,
                                     " is of 2 bytes, but make takes groups of floats: let it take "
                                     "onebit::torch_groups",
                                     comm_.where()));
    }
  }
  /// Sets missing_[t] from 1 to 2 if another rank has a gradient of tensor t. Collective.
  void agree_on_missing() {
    std::vector<std::uint8_t> mine((all_.size() + 7) / 8);
    for (std::size_t t = 0; t < all_.size(); ++t) {
      if (missing_[t] == 0) mine[t / 8] = static_cast<std::uint8_t>(mine[t / 8] | 1U << t % 8);
    }
    std::vector<std::uint8_t> all(mine.size() * static_cast<std::size_t>(comm_.size()));
    if (!mine.empty()) comm_.host_all_gather(mine.data(), all.data(), mine.size());
    for (std::size_t t = 0; t < all_.size(); ++t) {
      for (std::size_t b = t / 8; b < all.size() && missing_[t] == 1; b += mine.size()) {
        if ((all[b] >> t % 8 & 1U) != 0) missing_[t] = 2;
      }
    }
  }

  /// Allocates zeros for missing gradients. On the host, pages that are never touched cost nothing.
  [[gnu::cold]] void make_nothing() {
    std::size_t most = 0, sum = 0;
    for (const torch_tensor& t : all_) {
      offsets_.push_back(sum);
      most = (std::max)(most, t.bytes());
      sum += t.bytes();
    }
    const std::size_t bytes = (std::max<std::size_t>)(consumes_ ? sum : most, 64);
    if (options_.stream) {
      const at::Tensor zeros = at::zeros({static_cast<std::int64_t>(bytes)},
                                         at::TensorOptions().dtype(at::kByte).device(device()));
      nothing_ = {zeros.data_ptr(), [zeros](void*) {}};
    } else {
      nothing_ = {std::calloc(1, bytes), std::free};
    }
    if (!nothing_) throw std::bad_alloc();
  }
  [[nodiscard]] void* nothing_for(std::size_t t) const {
    return static_cast<char*>(nothing_.get()) + (consumes_ ? offsets_[t] : 0);
  }

  communicator comm_;
  torch_options options_;
  bool consumes_;
  std::vector<torch_tensor> all_;
  std::vector<stretch> stretches_;
  std::vector<std::size_t> ends_, place_;  ///< by torch group: end; by torch's order: index in all_
  std::vector<std::size_t> offsets_;       ///< by tensor: bytes of the tensors before
  std::vector<group_options> shares_;      ///< by torch group
  std::shared_ptr<void> nothing_;          ///< zeros for missing gradients
  std::vector<std::size_t> resting_;
  std::vector<std::uint8_t> missing_;  ///< by tensor: 0: gradient; 1: none; 2: on other ranks
  std::size_t next_ = 0;               ///< tensors from here on were passed to optimizer::ready
};

}}}  // namespace onebit::detail
