// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <onebit/core/element_types.hpp>
#include <onebit/core/error.hpp>
#include <onebit/kernel/param_group.hpp>
#include <onebit/transport/communicator.hpp>
#include <optional>
#include <typeinfo>
#include <unordered_map>
#include <utility>
#include <vector>

/// Options of the adapter for torch, and the options of torch that the adapter reads.
namespace onebit { inline namespace v0_3 { namespace detail {

/// Scope in which torch works on the optimizer's stream, if there is one: after all earlier work of
/// torch's current stream, and before all later work of the current stream.
class on_stream {
 public:
  explicit on_stream(const std::optional<::c10::Stream>& stream) : stream_(stream) {
    if (!stream_) return;
    current_ = ::c10::impl::VirtualGuardImpl(stream_->device_type()).getStream(stream_->device());
    hand_over(*current_, *stream_);
    guard_.emplace(*stream_);
  }
  on_stream(const on_stream&) = delete;
  on_stream& operator=(const on_stream&) = delete;
  ~on_stream() {
    if (!stream_) return;
    guard_.reset();
    try {
      hand_over(*stream_, *current_);
    } catch (...) {  // the device failed: later calls report it
    }
  }

 private:
  static void hand_over(const ::c10::Stream& from, const ::c10::Stream& to) {
    if (from == to) return;
    ::c10::Event done(from.device_type());
    done.record(from);
    done.block(to);
  }
  std::optional<::c10::Stream> stream_, current_;
  std::optional<::c10::StreamGuard> guard_;
};

}}}  // namespace onebit::detail

/// Conversion of the groups of a torch optimizer, and of their options, to onebit's.
namespace onebit { inline namespace v0_3 {

/// Groups whose tensors may have different element types.
using torch_groups = std::vector<param_group<any_element>>;

/// Treatment of a parameter that has no gradient in a step.
enum class undefined_gradient : std::uint8_t {
  rests,    ///< does not change (optimizer::rest), as in torch; rank_mismatch if ranks disagree
  zeros,    ///< gets zeros, as in DistributedDataParallel; rests without requires_grad
  previous  ///< zeros if some rank has a gradient, else rests; all_gather of n_tensors / 8 bytes
};

/// Options of torch_optimizer that torch's own options do not cover.
struct torch_options {
  undefined_gradient undefined = undefined_gradient::rests;  ///< if a gradient is missing
  /// Sends gradients during the backward pass as they become final, by bucket; on a transport that
  /// cannot start collectives this blocks. Needs torch_groups and undefined_gradient::zeros.
  /// Buffers take 4 bytes per parameter (2 for 2-byte types). Errors: a second backward pass before
  /// a step (see accumulate), and writes to gradients after their backward pass (clip_grad_norm_).
  bool overlap = false;
  /// All parameters in the order of the forward pass (model->parameters()); empty: in the groups'
  /// order. `overlap` sends from the last parameter to the first, and a late gradient delays all
  /// before it. Give the order if groups have another one: matrices first, then biases, say.
  std::vector<at::Tensor> order{};
  /// Keeps float masters of 2-byte parameters; steps act on the masters.
  bool masters = true;
  /// Sets the parameters of all ranks to rank 0's values when the optimizer is built.
  bool broadcast = true;
  /// Stream of the backend, for parameters on a device; empty: parameters are on the host.
  std::optional<::c10::Stream> stream{};
};

namespace detail {

using torch_group = ::torch::optim::OptimizerParamGroup;

/// Numbers read from the torch options of one group.
struct torch_terms {
  double lr = 0, weight_decay = 0;
  group_moments own;
};

/// Reads AdamWOptions, or AdamOptions without decay. Betas and eps other than torch's defaults
/// become the group's own. Throws invalid_input for options that onebit lacks or takes otherwise.
[[nodiscard, gnu::cold]] inline torch_terms read_terms(
    const ::torch::optim::OptimizerOptions& options, std::size_t group) {
  torch_terms t;
  const auto take = [&](const auto& o) {
    t.lr = o.lr();
    t.weight_decay = o.weight_decay();
    const auto [beta1, beta2] = o.betas();
    if (beta1 != 0.9) t.own.beta1 = beta1;
    if (beta2 != 0.999) t.own.beta2 = beta2;
    if (o.eps() != 1e-8) t.own.eps = o.eps();
    if (o.amsgrad()) {
      throw invalid_input(error_text("torch: group ", group, " has amsgrad, which is not offered"));
    }
  };
  if (const auto* adamw = dynamic_cast<const ::torch::optim::AdamWOptions*>(&options)) {
    take(*adamw);
  } else if (const auto* adam = dynamic_cast<const ::torch::optim::AdamOptions*>(&options)) {
    take(*adam);
    if (t.weight_decay != 0) {
      throw invalid_input(
          error_text("torch: group ", group, " has AdamOptions with weight_decay ", t.weight_decay,
                     ", which torch adds to the gradient; the decay is decoupled here: "
                     "give AdamWOptions"));
    }
  } else {
    throw invalid_input(error_text("torch: group ", group, " has options of type ",
                                   typeid(options).name(), "; give torch::optim::AdamWOptions"));
  }
  if (!std::isfinite(t.lr) || t.lr < 0) {
    throw invalid_input(
        error_text("torch: group ", group, " has lr ", t.lr, ", must be finite and not negative"));
  }
  return t;
}

/// Returns the rate of a step, the largest of all groups, and writes the groups' options to
/// `shares`. lr_factor, a group's share of the rate, changes only by more than rounding (4e-7).
[[nodiscard, gnu::cold]] inline float share_rates(const std::vector<torch_group>& groups,
                                                  std::vector<group_options>& shares) {
  std::vector<torch_terms> terms;
  double most = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    terms.push_back(read_terms(groups[g].options(), g));
    most = (std::max)(most, terms[g].lr);
  }
  shares.resize(groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto share = most > 0 ? static_cast<float>(terms[g].lr / most) : shares[g].lr_factor;
    const float was = shares[g].lr_factor;
    if (std::fabs(share - was) > 4e-7F * was) shares[g].lr_factor = share;
    shares[g].weight_decay = static_cast<float>(terms[g].weight_decay);
    shares[g].own = terms[g].own;
  }
  return static_cast<float>(most);
}

/// Copies the groups with each tensor once: torch lists tied weights as often as they are
/// registered. Throws invalid_input if two groups have the same tensor.
[[nodiscard, gnu::cold]] inline std::vector<torch_group> listed_once(
    const std::vector<torch_group>& groups) {
  std::unordered_map<const void*, std::size_t> first;
  std::vector<torch_group> once;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::vector<at::Tensor> params;
    for (const at::Tensor& p : groups[g].params()) {
      const auto [at, is_new] = first.emplace(p.unsafeGetTensorImpl(), g);
      if (is_new) {
        params.push_back(p);
      } else if (at->second != g) {
        throw invalid_input(error_text("torch: groups ", at->second, " and ", g,
                                       " have the same tensor; list it in one of them"));
      }
    }
    once.emplace_back(std::move(params));
    if (groups[g].has_options()) once.back().set_options(groups[g].options().clone());
  }
  return once;
}

/// Copies `dense` from rank 0 to all ranks, in memory that the transport carries. Collective. Each
/// rank sends about twice the bytes of `dense`, in two collectives per 32 MiB.
[[gnu::cold]] inline void broadcast_from_0(communicator& comm, const at::Tensor& dense) {
  const at::NoGradGuard no_grad;
  const auto n_ranks = static_cast<std::int64_t>(comm.size());
  const auto total = static_cast<std::int64_t>(dense.nbytes());
  if (n_ranks == 1 || total == 0) return;
  const auto options = at::TensorOptions().dtype(at::kByte).device(dense.device());
  const at::Tensor bytes = at::from_blob(dense.data_ptr(), {total}, options);
  constexpr std::int64_t most = std::int64_t{1} << 25;
  for (std::int64_t done = 0; done < total; done += most) {
    const std::int64_t n = (std::min)(most, total - done);
    const std::int64_t slot = (n + n_ranks - 1) / n_ranks;
    const at::Tensor a = at::zeros({slot * n_ranks}, options), b = at::empty_like(a);
    a.narrow(0, 0, n).copy_(bytes.narrow(0, done, n));
    const auto slot_bytes = static_cast<std::size_t>(slot);
    comm.all_to_all(a.data_ptr(), b.data_ptr(), slot_bytes);  // slot 0 of b is from rank 0
    comm.all_gather(b.data_ptr(), a.data_ptr(), slot_bytes);
    bytes.narrow(0, done, n).copy_(a.narrow(0, 0, n));
  }
}

}  // namespace detail

}}  // namespace onebit
