// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

/// A reference to any callable of one signature.
namespace onebit { inline namespace v0_3 {

/// Non-owning reference to a callable of this signature: the callable must outlive the reference.
template <class Signature>
class function_ref;
/// Reference to a callable: two pointers. A call converts the result to Result; void drops it.
template <class Result, class... Args>
class function_ref<Result(Args...)> {
 public:
  /// Refers to a function object or a function.
  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, function_ref> &&
             std::is_invocable_r_v<Result, F&, Args...>)
  function_ref(F&& f) {
    using called = std::remove_reference_t<F>;
    if constexpr (std::is_function_v<called>) {
      called_.function = reinterpret_cast<void (*)()>(&f);
      call_ = [](target t, Args... args) -> Result {
        return static_cast<Result>(
            reinterpret_cast<called*>(t.function)(static_cast<Args>(args)...));
      };
    } else {
      called_.object = const_cast<void*>(static_cast<const volatile void*>(std::addressof(f)));
      call_ = [](target t, Args... args) -> Result {
        return static_cast<Result>((*static_cast<called*>(t.object))(static_cast<Args>(args)...));
      };
    }
  }
  /// Calls the callable.
  Result operator()(Args... args) const { return call_(called_, static_cast<Args>(args)...); }

 private:
  union target {
    void* object;
    void (*function)();
  };
  target called_{};
  Result (*call_)(target, Args...);
};

/// Calls enqueue(), or repeats the work of an earlier call with an equal key: optimizer::step_with.
using step_runner = function_ref<void(std::uint64_t key, function_ref<void()> enqueue)>;

}}  // namespace onebit
