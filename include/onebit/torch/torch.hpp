// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <onebit/any_optimizer.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/number_text.hpp>
#include <onebit/kernel/param_group.hpp>
#include <onebit/step/report.hpp>
#include <onebit/torch/tensors.hpp>
#include <onebit/transport/communicator.hpp>
#include <sstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/// Adapter for torch::optim::Optimizer. Needs torch's headers. No other header includes this one.
namespace onebit { inline namespace v0_3 {

/// A torch::optim::Optimizer over any algorithm, collective, backend and transport:
///
///   onebit::torch_optimizer optimizer(
///       model->parameters(), torch::optim::AdamWOptions(3e-3), comm,
///       [](const onebit::torch_groups& g, auto c) { return onebit::one_bit_adam(g, c, {}); });
///
/// The trainer leaves out DistributedDataParallel or its allreduce, because onebit averages, and
/// otherwise stays unchanged. Parameters and gradients may move between steps (zero_grad,
/// torch::load). Gradients with the strides of their parameter are used in place; others (strided,
/// sparse) are copied to a buffer that stays, 4 bytes per parameter (2 for 2-byte types). Each step
/// reads lr, which torch's schedulers set, and weight_decay of the groups; the rate of the step is
/// the largest lr. Betas and eps other than torch's defaults become the group's own.
///
/// If `make` takes torch_groups, parameters may be any mix of float, bf16 and fp16, and gradients
/// are only read. If `make` takes std::vector<param_group<float>>, all parameters must be float,
/// and steps use gradients as scratch: they are undefined tensors after the step.
///
/// Collective: constructor, add_param_group, load, broadcast_parameters, step (unless local). If
/// tensors of one rank alone cause an error in step or load, the other ranks time out.
class torch_optimizer : public ::torch::optim::Optimizer {
  using group_type = ::torch::optim::OptimizerParamGroup;
  template <class Make, class T>
  static constexpr bool takes_any = std::is_invocable_v<Make&, const torch_groups&, T>;

 public:
  /// Sets the parameters of all ranks to rank 0's (see torch_options::broadcast), then builds the
  /// optimizer with `make(groups, transport)`, by a function of algorithms.hpp or by name.
  /// Collective: throws invalid_input, rank_mismatch and errors of `make`, on all ranks.
  template <class Options, Transport T, class Make>
  torch_optimizer(const std::vector<group_type>& groups, const Options& defaults, T transport,
                  Make make, const torch_options& options = {})
      : Optimizer(detail::listed_once(groups), std::make_unique<Options>(defaults)),
        tensors_(communicator(transport), options, !takes_any<Make, T>) {
    constexpr bool any = takes_any<Make, T>;
    using P = std::conditional_t<any, any_element, float>;
    static_assert(std::is_invocable_v<Make&, const std::vector<param_group<P>>&, T>,
                  "onebit: make must take (const onebit::torch_groups&, transport), or "
                  "(const std::vector<onebit::param_group<float>>&, transport)");
    make_ = [this, make = std::move(make), transport = std::move(transport)]() mutable {
      return any_optimizer(make(tensors_.groups<P>(), transport));
    };
    rebind_ = [this] { core_.rebind(tensors_.groups<P>()); };
    build();
  }
  /// Puts all parameters in one group.
  template <class Options, Transport T, class Make>
  torch_optimizer(std::vector<at::Tensor> parameters, const Options& defaults, T transport,
                  Make make, const torch_options& options = {})
      : torch_optimizer(std::vector<group_type>{group_type(std::move(parameters))}, defaults,
                        std::move(transport), std::move(make), options) {}
  torch_optimizer(const torch_optimizer&) = delete;
  torch_optimizer& operator=(const torch_optimizer&) = delete;
  ~torch_optimizer() override { unhook(); }

  /// Does one step like any_optimizer::step, with the groups' rates. First calls `closure`, which
  /// computes gradients and the loss to return. Collective; blocks unless the backend is deferred.
  /// Throws invalid_input if no gradient exists, rank_mismatch if ranks lack different gradients.
  at::Tensor step(LossClosure closure = nullptr) override {
    at::Tensor loss;
    if (closure) {
      const at::AutoGradMode with_gradients(true);
      loss = closure();
    }
    const std::lock_guard lock(mutex_);
    const at::NoGradGuard no_grad;
    const detail::on_stream ordered(options().stream);
    const closing end{*this};
    if (is_open_) {
      follow_groups();
      tensors_.complete();
      take_rates();  // rates and options that changed since begin() are an error
    } else {
      prepare(false);
    }
    last_ = core_.step(lr_, inverse_loss_scale_);
    tensors_.finish();
    return loss;
  }
  /// Returns the report of the last step.
  [[nodiscard]] const report& last() const { return last_; }
  /// Sets the factor that the trainer scales the loss by: later steps divide gradients by it.
  void set_loss_scale(float scale) { inverse_loss_scale_ = 1.0F / scale; }
  /// With torch_options::overlap: give false before the last backward pass of a step, else true.
  void accumulate(bool more) { accumulates_ = more; }
  /// Returns onebit's optimizer, for calls that torch's interface lacks: verify, start_from, ...
  [[nodiscard]] any_optimizer& core() { return core_; }

  /// Adds a group, before the first step. Collective; throws invalid_input after a step.
  void add_param_group(const group_type& group) {
    Optimizer::add_param_group(group);
    const std::lock_guard lock(mutex_);
    try {
      follow_groups();
    } catch (...) {
      param_groups_.pop_back();
      throw;
    }
  }
  /// Sets the parameters of all ranks to rank 0's, after changes on one rank. Collective.
  void broadcast_parameters() {
    const at::NoGradGuard no_grad;
    const detail::on_stream ordered(options().stream);
    tensors_.follow_parameters();
    tensors_.broadcast();
  }

  /// Writes, for torch::save, all that this rank needs to go on (masters too) except the model.
  /// Each rank needs a file of its own. The trainer saves the model: on each rank between exchanges
  /// of 0/1 Adam, when parameters differ. Not collective.
  void save(::torch::serialize::OutputArchive& archive) const override {
    std::ostringstream out;
    core_.save(out);
    const std::string bytes = std::move(out).str();
    at::Tensor state = at::empty({static_cast<std::int64_t>(bytes.size())}, at::kByte);
    std::copy(bytes.begin(), bytes.end(), static_cast<char*>(state.data_ptr()));
    archive.write("onebit", state, true);
    for (std::size_t g = 0; g < param_groups_.size(); ++g) {
      ::torch::serialize::OutputArchive of(archive.compilation_unit());
      param_groups_[g].options().serialize(of);
      archive.write("group" + detail::number_text(g), of);
    }
    tensors_.each_master([&](const std::string& key, const at::Tensor& master) {
      archive.write(key, master.cpu(), true);
    });
  }
  /// Reads, for torch::load, what `save` wrote on this rank. Load the model first: parameters are
  /// compared. Collective: throws checkpoint_error on all ranks if one fails; then nothing has
  /// changed except masters of 2-byte parameters.
  void load(::torch::serialize::InputArchive& archive) override {
    const std::lock_guard lock(mutex_);
    const at::NoGradGuard no_grad;
    const detail::on_stream ordered(options().stream);
    std::string bytes;  // empty if a part is missing: core_.load throws on all ranks
    at::Tensor state;
    follow_groups();
    tensors_.follow_parameters();
    bool whole = archive.try_read("onebit", state, true);
    tensors_.each_master([&](const std::string& key, const at::Tensor& master) {
      at::Tensor saved;
      whole = whole && archive.try_read(key, saved, true) && saved.numel() == master.numel();
      if (whole) master.copy_(saved.reshape(master.sizes()));
    });
    if (whole) {
      const auto* const first = static_cast<const char*>(state.data_ptr());
      bytes.assign(first, first + state.numel());
    }
    if (tensors_.tell()) rebind_();
    std::istringstream in(bytes);
    core_.load(in);
    for (std::size_t g = 0; g < param_groups_.size(); ++g) {
      ::torch::serialize::InputArchive of;
      if (archive.try_read("group" + detail::number_text(g), of)) {
        param_groups_[g].options().serialize(of);
      }
    }
  }

 private:
  /// Autograd hook: announces the gradient of a parameter when backward has accumulated it.
  struct hook final : ::torch::autograd::PostAccumulateGradHook {
    hook(torch_optimizer* o, std::size_t t,
         std::unique_ptr<::torch::autograd::PostAccumulateGradHook> b)
        : owner(o), tensor(t), before(std::move(b)) {}
    void operator()(const at::Tensor& x) override {
      if (before) (*before)(x);
      owner->announce(tensor);
    }
    torch_optimizer* owner;
    std::size_t tensor;
    std::unique_ptr<::torch::autograd::PostAccumulateGradHook> before;  ///< hook of the trainer
  };
  /// Scope guard: ends the step in progress, also after an exception.
  struct closing {
    torch_optimizer& o;
    ~closing() {
      o.is_open_ = false;
      o.tensors_.forget_step();
    }
  };

  [[nodiscard]] const torch_options& options() const { return tensors_.options(); }

  [[gnu::cold]] void build() {
    unhook();
    {
      const at::NoGradGuard no_grad;
      const detail::on_stream ordered(options().stream);
      tensors_.take(param_groups_);
      lr_ = tensors_.share_rates(param_groups_);
      if (options().broadcast) tensors_.broadcast();
      (void)tensors_.tell();
      core_ = make_();
    }
    hook_all();
  }
  void hook_all() {
    told_.clear();
    for (std::size_t g = 0; g < tensors_.n_groups(); ++g) told_.push_back(tensors_.share(g));
    if (!options().overlap) return;
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      const at::Tensor& x = tensors_[t].param();
      if (!x.requires_grad()) continue;
      auto before = std::move(::torch::autograd::impl::post_acc_grad_hooks(x));
      ::torch::autograd::impl::set_post_acc_grad_hooks(
          x, std::make_unique<hook>(this, t, std::move(before)));
      hooked_.push_back(x);
    }
  }
  void unhook() {
    for (const at::Tensor& x : hooked_) {
      auto& own = ::torch::autograd::impl::post_acc_grad_hooks(x);
      if (auto* ours = dynamic_cast<hook*>(own.get())) {
        auto before = std::move(ours->before);
        own = std::move(before);
      }
    }
    hooked_.clear();
  }
  /// Rebuilds the optimizer if groups or tensors have changed; throws after the first step.
  void follow_groups() {
    if (tensors_.are_of(param_groups_)) return;
    if (is_open_ || core_.steps() > 0) {
      throw invalid_input(
          detail::error_text("torch: the optimizer was given other tensors ",
                             is_open_ ? "within step " : "after step ", core_.steps(),
                             "; add groups before the first step, and before its backward pass",
                             detail::rank_suffix(core_.rank(), core_.size())));
    }
    build();
  }
  /// Reads the groups' rates and options, and passes changed options to the optimizer.
  void take_rates() {
    lr_ = tensors_.share_rates(param_groups_);
    for (std::size_t g = 0; g < told_.size(); ++g) {
      if (told_[g] == tensors_.share(g)) continue;
      core_.set_group(g, tensors_.share(g));
      told_[g] = tensors_.share(g);
    }
  }
  /// Prepares core_.step, or (`announced`) core_.begin, when gradients do not exist yet.
  void prepare(bool announced) {
    follow_groups();
    take_rates();
    tensors_.follow_parameters();
    const std::vector<std::size_t>& resting = tensors_.follow_gradients(announced);
    if (tensors_.tell()) rebind_();
    for (const std::size_t t : resting) core_.rest(t);
  }
  void announce(std::size_t t) {
    if (accumulates_) return;
    const std::lock_guard lock(mutex_);
    const at::NoGradGuard no_grad;
    const detail::on_stream ordered(options().stream);
    try {
      if (!is_open_) {
        prepare(true);
        core_.begin(lr_, inverse_loss_scale_);
        is_open_ = true;
      }
      tensors_.announce(t, [&](std::size_t next) { core_.ready(next); });
    } catch (...) {
      const closing end{*this};
      throw;
    }
  }

  detail::torch_tensors tensors_;
  mutable any_optimizer core_;  // save() here is const, any_optimizer::save is not
  std::function<any_optimizer()> make_;
  std::function<void()> rebind_;
  std::vector<group_options> told_;  ///< by group: options that core_ has
  std::vector<at::Tensor> hooked_;
  std::mutex mutex_;  ///< hooks run on autograd's threads
  report last_;
  float lr_ = 0, inverse_loss_scale_ = 1;
  bool is_open_ = false, accumulates_ = false;
};

}}  // namespace onebit
