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
#include <onebit/core/param_group.hpp>
#include <onebit/transport/communicator.hpp>
#include <optional>
#include <typeinfo>
#include <unordered_map>
#include <utility>
#include <vector>

/// Options of the adapter, and what of torch's options it takes.
namespace onebit::inline v0_2::detail {

/// In its scope torch works on the optimizer's stream, if there is one: behind what torch's current
/// stream has been given, and before what that is given afterwards.
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
    } catch (...) {  // a device that failed: later calls say so
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

}  // namespace onebit::inline v0_2::detail

/// The groups of a torch optimizer and their options, as ours.
namespace onebit::inline v0_2 {

/// Groups of tensors of any mix of element types.
using torch_groups = std::vector<param_group<any_element>>;

/// What a parameter without a gradient does in a step.
enum class undefined_gradient : std::uint8_t {
  rests,    ///< stands still, as in torch: all ranks must have the same ones, else rank_mismatch
  zeros,    ///< has a gradient of zeros, as with DistributedDataParallel; frozen ones rest
  previous  ///< rests where no rank has one, else zeros: costs an all_gather of n_tensors / 8 bytes
};

/// What an optimizer for torch does that no options of torch's tell.
struct torch_options {
  undefined_gradient undefined = undefined_gradient::rests;  ///< of a parameter on this rank
  /// Gradients travel while the backward pass goes on, as autograd makes them final: in buckets, by
  /// a transport that can start collectives. Each passes through a buffer, 4 bytes per parameter
  /// that stay. Needs undefined_gradient::zeros and torch_groups. A second backward pass before a
  /// step, and gradients that are written after theirs (clip_grad_norm_), are errors.
  bool overlap = false;
  /// All parameters in the order of the forward pass: model->parameters(). What travels during the
  /// backward pass must be final in the reverse order, which that of the groups is not where they
  /// tell matrices from biases. Empty: that of the groups.
  std::vector<at::Tensor> order{};
  /// Floats beside parameters of 2 bytes: steps act on those.
  bool masters = true;
  /// Parameters become those of rank 0 when the optimizer is built.
  bool broadcast = true;
  /// Of parameters on a device: the one that the backend was given.
  std::optional<::c10::Stream> stream{};
};

namespace detail {

using torch_group = ::torch::optim::OptimizerParamGroup;

/// What torch's options of a group say.
struct torch_terms {
  double lr = 0, weight_decay = 0;
  group_moments own;
};

/// Reads AdamWOptions, and AdamOptions without decay. Betas and eps that are not torch's defaults
/// become the group's own. Throws invalid_input for what would mean something else here.
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
      throw invalid_input(message("torch: group ", group, " has amsgrad, which is not offered"));
    }
  };
  if (const auto* adamw = dynamic_cast<const ::torch::optim::AdamWOptions*>(&options)) {
    take(*adamw);
  } else if (const auto* adam = dynamic_cast<const ::torch::optim::AdamOptions*>(&options)) {
    take(*adam);
    if (t.weight_decay != 0) {
      throw invalid_input(
          message("torch: group ", group, " has AdamOptions with weight_decay ", t.weight_decay,
                  ", which torch adds to the gradient; the decay is decoupled here: "
                  "give AdamWOptions"));
    }
  } else {
    throw invalid_input(message("torch: group ", group, " has options of type ",
                                typeid(options).name(), "; give torch::optim::AdamWOptions"));
  }
  if (!std::isfinite(t.lr) || t.lr < 0) {
    throw invalid_input(
        message("torch: group ", group, " has lr ", t.lr, ", must be finite and not negative"));
  }
  return t;
}

/// The rate of a step, and the groups' options with their share of it. A share that has only been
/// rounded otherwise stays what it was.
[[nodiscard, gnu::cold]] inline float share_rates(const std::vector<torch_group>& groups,
                                                  std::vector<group_options>& shares) {
  std::vector<torch_terms> terms;
  double most = 0;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    terms.push_back(read_terms(groups[g].options(), g));
    most = std::max(most, terms[g].lr);
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

/// Every tensor once, in the first group that has it: tied weights come as often as they are
/// registered. Throws invalid_input where a later group has other options for it.
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
        throw invalid_input(message("torch: groups ", at->second, " and ", g,
                                    " have the same tensor; list it in one of them"));
      }
    }
    once.emplace_back(std::move(params));
    if (groups[g].has_options()) once.back().set_options(groups[g].options().clone());
  }
  return once;
}

/// Sends what rank 0 has to all: n bytes, of memory that the transport carries. Collective. Costs
/// every rank about 2 n bytes, in two collectives for 32 MB.
[[gnu::cold]] inline void broadcast_from_0(communicator& comm, const at::Tensor& dense) {
  const at::NoGradGuard no_grad;
  const auto n_ranks = static_cast<std::int64_t>(comm.size());
  const auto total = static_cast<std::int64_t>(dense.nbytes());
  if (n_ranks == 1 || total == 0) return;
  const auto options = at::TensorOptions().dtype(at::kByte).device(dense.device());
  const at::Tensor bytes = at::from_blob(dense.data_ptr(), {total}, options);
  constexpr std::int64_t most = std::int64_t{1} << 25;
  for (std::int64_t done = 0; done < total; done += most) {
    const std::int64_t n = std::min(most, total - done);
    const std::int64_t slot = (n + n_ranks - 1) / n_ranks;
    const at::Tensor a = at::zeros({slot * n_ranks}, options), b = at::empty_like(a);
    a.narrow(0, 0, n).copy_(bytes.narrow(0, done, n));
    const auto slot_bytes = static_cast<std::size_t>(slot);
    comm.all_to_all(a.data_ptr(), b.data_ptr(), slot_bytes);  // rank 0's part for each lies first
    comm.all_gather(b.data_ptr(), a.data_ptr(), slot_bytes);
    bytes.narrow(0, done, n).copy_(a.narrow(0, 0, n));
  }
}

}  // namespace detail

}  // namespace onebit::inline v0_2
