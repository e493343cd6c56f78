// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <istream>
#include <memory>
#include <onebit/concepts/moments.hpp>
#include <onebit/core/archive.hpp>
#include <onebit/core/element_types.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/function_ref.hpp>
#include <onebit/kernel/param_group.hpp>
#include <onebit/kernel/scalars.hpp>
#include <onebit/optimizer.hpp>
#include <onebit/step/report.hpp>
#include <onebit/transport/communicator.hpp>
#include <optional>
#include <ostream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/// Type-erased optimizer: for members, for containers, and for an algorithm chosen at run time.
namespace onebit { inline namespace v0_3 {

namespace detail {

/// Optimizer type that any_optimizer can own: an `optimizer`.
template <class O>
concept OwnedOptimizer = requires(O o, const typename O::groups_type& groups) {
  { o.step(1.0F) } -> std::same_as<report>;
};

}  // namespace detail

/// Owner of an optimizer of any type. Each call makes one virtual call and then calls the function
/// of this name in optimizer.hpp, which documents costs, exceptions, and whether the call is
/// collective.
///
/// Movable, not copyable. A default-constructed or moved-from object owns nothing: every call
/// except has_value() and assignment throws invalid_input. Calls that the policies of the optimizer
/// do not support (start_from, say) throw invalid_input too.
class any_optimizer {
 public:
  any_optimizer() = default;
  /// Takes ownership of an optimizer.
  template <detail::OwnedOptimizer O>
  any_optimizer(O owned) : impl_(std::make_unique<model_of<O>>(std::move(owned))) {}

  /// True if this object owns an optimizer.
  [[nodiscard]] bool has_value() const { return impl_ != nullptr; }

  /// @{
  /// As in optimizer.
  report step(float lr, float inverse_loss_scale = 1.0F) {
    return impl().step(lr, inverse_loss_scale);
  }
  report step_with(step_runner run, float lr, float inverse_loss_scale = 1.0F) {
    return impl().step_with(run, lr, inverse_loss_scale);
  }
  void begin(float lr, float inverse_loss_scale = 1.0F) { impl().begin(lr, inverse_loss_scale); }
  void ready(std::size_t tensor) { impl().ready(tensor); }
  outcome settle() { return impl().settle(); }
  [[nodiscard]] std::optional<float> gradient_norm() { return impl().gradient_norm(); }
  [[nodiscard]] std::uint64_t n_skipped() { return impl().n_skipped(); }

  void set_group(std::size_t group, const group_options& options) {
    impl().set_group(group, options);
  }
  void set_group(std::size_t group, float lr_factor, float weight_decay) {
    impl().set_rates(group, lr_factor, weight_decay);
  }
  void rest(std::size_t tensor) { impl().rest(tensor); }
  /// Takes groups of the element types of the optimizer; throws invalid_input for others.
  template <class P, class G>
  std::size_t rebind(const std::vector<param_group<P, G>>& groups) {
    return impl().rebind(&groups, elements_of<P, G>);
  }
  void start_from(const std::vector<given_moments>& moments, std::uint64_t steps) {
    impl().start_from(moments, steps);
  }
  [[nodiscard]] std::vector<tensor_moments> moments() { return impl().moments(); }
  template <class T>
  void join_model_parallel(T transport) {
    impl().join_model_parallel(communicator(std::move(transport)));
  }
  void verify() { impl().verify(); }
  void veto_with(std::function<bool(float norm)> f) { impl().veto_with(std::move(f)); }
  void rebind_with(std::nullptr_t) { impl().rebind_with(nullptr, 0); }
  template <class Groups>  ///< function that returns a std::vector<param_group<P, G>>
  void rebind_with(Groups groups) {
    using list = std::remove_cvref_t<std::invoke_result_t<Groups&>>;
    const std::function<list()> f = std::move(groups);
    impl().rebind_with(&f, elements_in(static_cast<list*>(nullptr)));
  }
  void warn_with(std::function<void(const std::string& text)> f) { impl().warn_with(std::move(f)); }

  void save(std::ostream& out) { impl().save(out); }
  void load(std::istream& in, resume_with with = resume_with::same_options) {
    impl().load(in, with);
  }
  static constexpr bool resumes = true;  ///< load_old_job throws invalid_input if the rule cannot
  template <class Open>
  void load_old_job(std::size_t n_ranks, const Open& open,
                    resume_with with = resume_with::same_options) {
    impl().load_old_job(
        n_ranks, [&open](std::size_t r) -> std::unique_ptr<std::istream> { return open(r); }, with);
  }
  /// @}

  /// @{
  /// As in optimizer.
  [[nodiscard]] detail::known_checkpoints& checkpoints() { return impl().checkpoints(); }
  [[nodiscard]] communicator transport() const { return impl().transport(); }
  [[nodiscard]] int rank() const { return impl().rank(); }
  [[nodiscard]] int size() const { return impl().size(); }
  [[nodiscard]] std::uint64_t steps() const { return impl().steps(); }
  [[nodiscard]] std::size_t n_parameters() const { return impl().n_parameters(); }
  [[nodiscard]] std::size_t state_bytes() const { return impl().state_bytes(); }
  [[nodiscard]] std::size_t work_bytes() const { return impl().work_bytes(); }
  /// @}
  /// Algorithm, options and groups at construction, as text: compared by ranks and checkpoints.
  [[nodiscard]] const std::string& description() const { return impl().description(); }

 private:
  using opener = function_ref<std::unique_ptr<std::istream>(std::size_t)>;

  /// Number for each pair of element types, in place of RTTI, which may be switched off.
  template <class T>
  static constexpr int element = std::is_same_v<T, float>  ? 0
                                 : std::is_same_v<T, bf16> ? 1
                                 : std::is_same_v<T, fp16> ? 2
                                                           : 3;
  template <class P, class G>
  static constexpr int elements_of = 8 * element<P> + 2 * element<std::remove_const_t<G>> +
                                     (std::is_const_v<G> ? 1 : 0);
  template <class P, class G>
  static constexpr int elements_in(const std::vector<param_group<P, G>>*) {
    return elements_of<P, G>;
  }

  struct erased {
    erased() = default;
    erased(const erased&) = delete;
    erased& operator=(const erased&) = delete;
    virtual ~erased() = default;
    virtual report step(float lr, float scale) = 0;
    virtual report step_with(step_runner run, float lr, float scale) = 0;
    virtual void begin(float lr, float scale) = 0;
    virtual void ready(std::size_t tensor) = 0;
    virtual outcome settle() = 0;
    virtual std::optional<float> gradient_norm() = 0;
    virtual std::uint64_t n_skipped() = 0;
    virtual void set_group(std::size_t group, const group_options& options) = 0;
    virtual void set_rates(std::size_t group, float lr_factor, float weight_decay) = 0;
    virtual void rest(std::size_t tensor) = 0;
    virtual std::size_t rebind(const void* groups, int elements) = 0;
    virtual void start_from(const std::vector<given_moments>& moments, std::uint64_t steps) = 0;
    [[nodiscard]] virtual std::vector<tensor_moments> moments() = 0;
    virtual void join_model_parallel(communicator transport) = 0;
    virtual void verify() = 0;
    virtual void veto_with(std::function<bool(float norm)> f) = 0;
    virtual void rebind_with(const void* groups, int elements) = 0;
    virtual void warn_with(std::function<void(const std::string&)> f) = 0;
    virtual void save(std::ostream& out) = 0;
    virtual void load(std::istream& in, resume_with with) = 0;
    virtual void load_old_job(std::size_t n_ranks, opener open, resume_with with) = 0;
    [[nodiscard]] virtual detail::known_checkpoints& checkpoints() = 0;
    [[nodiscard]] virtual communicator transport() const = 0;
    [[nodiscard]] virtual int rank() const = 0;
    [[nodiscard]] virtual int size() const = 0;
    [[nodiscard]] virtual std::uint64_t steps() const = 0;
    [[nodiscard]] virtual std::size_t n_parameters() const = 0;
    [[nodiscard]] virtual std::size_t state_bytes() const = 0;
    [[nodiscard]] virtual std::size_t work_bytes() const = 0;
    [[nodiscard]] virtual const std::string& description() const = 0;
  };

  template <class O>
  struct model_of final : erased {
    using groups_type = typename O::groups_type;
    static constexpr int own_elements = elements_in(static_cast<groups_type*>(nullptr));

    explicit model_of(O owned) : o(std::move(owned)) {}

    report step(float lr, float scale) override { return o.step(lr, scale); }
    report step_with(step_runner run, float lr, float scale) override {
      return o.step_with(run, lr, scale);
    }
    void begin(float lr, float scale) override { o.begin(lr, scale); }
    void ready(std::size_t tensor) override { o.ready(tensor); }
    outcome settle() override { return o.settle(); }
    std::optional<float> gradient_norm() override { return o.gradient_norm(); }
    std::uint64_t n_skipped() override { return o.n_skipped(); }
    void set_group(std::size_t group, const group_options& options) override {
      o.set_group(group, options);
    }
    void set_rates(std::size_t group, float lr_factor, float weight_decay) override {
      o.set_group(group, lr_factor, weight_decay);
    }
    void rest(std::size_t tensor) override { o.rest(tensor); }
    std::size_t rebind(const void* groups, int elements) override {
      if (elements != own_elements) refuse("rebind", "of other element types");
      return o.rebind(*static_cast<const groups_type*>(groups));
    }
    void start_from([[maybe_unused]] const std::vector<given_moments>& moments,
                    [[maybe_unused]] std::uint64_t steps) override {
      if constexpr (O::takes_moments) {
        o.start_from(moments, steps);
      } else {
        refuse("start_from", "its rule takes no moments over");
      }
    }
    std::vector<tensor_moments> moments() override {
      if constexpr (O::gives_moments) {
        return o.moments();
      } else {
        refuse("moments", "its rule gives none");
      }
    }
    void join_model_parallel(communicator transport) override {
      o.join_model_parallel(std::move(transport));
    }
    void verify() override { o.verify(); }
    void veto_with(std::function<bool(float norm)> f) override { o.veto_with(std::move(f)); }
    void rebind_with(const void* groups, int elements) override {
      if (groups == nullptr) return o.rebind_with(nullptr);
      if (elements != own_elements) refuse("rebind_with", "of other element types");
      o.rebind_with(*static_cast<const std::function<groups_type()>*>(groups));
    }
    void warn_with(std::function<void(const std::string&)> f) override {
      o.warn_with(std::move(f));
    }
    void save(std::ostream& out) override { o.save(out); }
    void load(std::istream& in, resume_with with) override { o.load(in, with); }
    void load_old_job([[maybe_unused]] std::size_t n_ranks, [[maybe_unused]] opener open,
                      [[maybe_unused]] resume_with with) override {
      if constexpr (O::resumes) {
        o.load_old_job(n_ranks, open, with);
      } else {
        refuse("load_old_job", "its rule cannot go on with other ranks");
      }
    }
    [[nodiscard]] detail::known_checkpoints& checkpoints() override { return o.checkpoints(); }
    [[nodiscard]] communicator transport() const override { return o.transport(); }
    [[nodiscard]] int rank() const override { return o.rank(); }
    [[nodiscard]] int size() const override { return o.size(); }
    [[nodiscard]] std::uint64_t steps() const override { return o.steps(); }
    [[nodiscard]] std::size_t n_parameters() const override { return o.n_parameters(); }
    [[nodiscard]] std::size_t state_bytes() const override { return o.state_bytes(); }
    [[nodiscard]] std::size_t work_bytes() const override { return o.work_bytes(); }
    [[nodiscard]] const std::string& description() const override { return o.description(); }

    [[noreturn, gnu::cold]] void refuse(const char* call, const char* why) const {
      throw invalid_input(detail::error_text("any_optimizer: ", call, ": ", why, " (",
                                             o.description(), ")",
                                             detail::rank_suffix(o.rank(), o.size())));
    }

    O o;
  };

  [[nodiscard]] erased& impl() const {
    if (impl_ == nullptr) {
      throw invalid_input(detail::error_text(
          "any_optimizer: it owns no optimizer: it was moved from, or never given "
          "one"));
    }
    return *impl_;
  }

  std::unique_ptr<erased> impl_;
};

}}  // namespace onebit
