// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/core/config.hpp>

/// Stand-ins for the arguments of policies, of which concepts ask whether they compile.
namespace onebit { inline namespace v0_3 {

// Of the headers that say what they are.
struct bf16;          // element_types.hpp
struct tile;          // layout.hpp
class layout;         // layout.hpp
struct granularity;   // layout.hpp
struct active_mask;   // kernel/context.hpp
struct step_scalars;  // kernel/scalars.hpp
class communicator;   // transport/communicator.hpp
template <class B, class P, class G>
struct step_context;  // kernel/context.hpp
template <class Buffer>
struct initial_momentum;  // kernel/context.hpp
template <class Undo>
struct exchange_args;  // kernel/context.hpp
namespace detail {
struct store_at_encode;  // kernel/context.hpp

/// Stand-in for the lanes that a backend passes to a kernel. Used in concepts only.
struct any_lanes {
  struct value {};
  struct bits {};
  static value set(float);
  static value load(const float*);
  static void store(float*, const value&);
  static value add(const value&, const value&);
  static value mul(const value&, const value&);
  static value fma(const value&, const value&, const value&);
  static value select(const bits&, const value&, const value&);
  static bits not_negative(const value&);
  static bits load_bits(const std::uint32_t*);
  static void store_bits(std::uint32_t*, const bits&);
};

struct any_kernel {
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t) const {}
};

/// Stand-in for a field or a message. Used in concepts only.
struct any_field {
  template <class L>
  struct reader {
    typename L::value operator()(std::uint32_t) const;
    typename L::value operator()(std::uint32_t, const typename L::value&) const;
  };
  template <class L>
  reader<L> at(const tile&, std::size_t) const;
};

/// Accepts any arguments.
struct any_visitor {
  template <class... T>
  void operator()(T&&...) const {}
};

/// Stand-in for a backend. Used in concepts only.
struct any_backend {
  static constexpr bool deferred = false;
  template <class T>
  struct buffer {
    T* data() const;
    std::size_t size() const;
    std::size_t bytes() const;
  };
  template <class T>
  buffer<T> make_buffer(std::size_t) const;
  template <class Kernel>
  void launch(std::size_t, const Kernel&) const;
  template <class T>
  void copy_in(T*, const T*, std::size_t) const;
  template <class T>
  void copy_out(T*, const T*, std::size_t) const;
};

/// Step context that concepts pass to a rule of type R.
template <class R>
using any_step_context = step_context<typename R::backend_type, float, float>;

struct any_archive {
  static constexpr bool reading = true;
  template <class T>
  void scalar(T&) {}
  template <class T>
  void local(T&) {}
  template <class T>
  void vector(T&, std::size_t) {}
  template <class Buffer, class B>
  void buffer(Buffer&, B&) {}
  template <class Buffer, class B>
  void buffer(Buffer&, B&, std::size_t) {}
  template <class T>
  void back_up(T&) {}
};

}  // namespace detail

}}  // namespace onebit
