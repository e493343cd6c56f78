// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <onebit/concepts/backend.hpp>
#include <onebit/concepts/compressor.hpp>
#include <onebit/concepts/stand_ins.hpp>
#include <onebit/concepts/transport.hpp>
#include <span>
#include <string>
#include <utility>

/// Who talks to whom.
namespace onebit { inline namespace v0_3 {

namespace detail {

/// Memory that an exchange needs, beside its messages.
struct exchange_memory {
  bool previous = false;     ///< the mean message of the last exchange, which messages read
  bool accumulates = false;  ///< sums of the messages of local steps
  bool compensated =
      true;  ///< false: the residual starts from the momentum that the rule hands over
};

}  // namespace detail

/// An exchange, by which the ranks agree on a mean message. Its law, with W ranks:
///
///     latest + mean over ranks(worker's residual) + server's residual == mean over ranks(message)
///
/// Only `allocate` allocates. `finish` ends a step: it keeps the new state, or the old one if
/// now->verdict.skip.
template <class X>
concept Exchange = requires(X x, const X fixed, const detail::any_field& message,
                            const exchange_args<detail::store_at_encode>& t,
                            const active_mask& active, detail::any_archive a) {
  requires Backend<typename X::backend_type>;
  // true: its sender encodes only this rank's own message, which the update pass may make again;
  // false: its sender encodes partial sums
  { X::own_messages } -> std::convertible_to<bool>;
  { fixed.travels() } -> std::convertible_to<bool>;  // false: no other rank; never exchanges
  // true: the encode pass overwrites compensated values, so their old values must be saved
  { fixed.needs_undo(detail::exchange_memory{}) } -> std::convertible_to<bool>;
  { fixed.axis() } -> std::convertible_to<const layout&>;  // layout of messages, also for rules
  x.sender();                                              // the onebit::sender that encodes
  {
    x.allocate(detail::exchange_memory{})
    } -> std::same_as<typename X::space>;  // memory, for `start`
  // starts from a momentum, or from zeros if that is empty; an empty space frees the memory
  x.start(std::declval<typename X::space>(),
          std::declval<initial_momentum<typename X::float_buffer>>());
  { fixed.started() } -> std::convertible_to<bool>;  // true: holds memory
  x.count_active(active);  // only these elements count in scales from now on
  x.previous(active);      // field: mean message of the last kept step
  x.latest(active);        // field: mean message of this step
  { fixed.n_unsent() } -> std::convertible_to<int>;  // number of buckets not sent in this step
  x.send_next(message, t);   // collective: sends the next bucket early; called if n_unsent() > 0
  x.all_reduce(message, t);  // collective: sends the other buckets, and computes `latest`
  x.accumulate(message, t);  // adds the message of a local step to the residual
  x.fold_in(message, t);     // adds a message after `finish`, before other elements become active
  x.finish(t);               // ends a step: keeps it, or takes it back
  x.archive(a, detail::exchange_memory{});  // reads or writes the state
  // For jobs with another number of ranks: tiles whose compensated values this rank holds; calls
  // its arguments with this rank's residuals, as gather_scatter_exchange does.
  x.compensated_tiles();
  x.visit_residuals(detail::any_visitor{}, detail::any_visitor{});
  {
    fixed.bytes_between_nodes()
    } -> std::convertible_to<std::uint64_t>;                    // bytes to other nodes, or 0
  { fixed.ranks_per_node() } -> std::convertible_to<int>;       // 1 if it knows no nodes
  { fixed.slot_bytes() } -> std::convertible_to<std::size_t>;   // bytes of a slot
  { fixed.state_bytes() } -> std::convertible_to<std::size_t>;  // memory of lasting state
  { fixed.work_bytes() } -> std::convertible_to<std::size_t>;   // all other memory
};

/// Defaults of a Collective: a base for policies that need not define all members.
struct collective_defaults {
  static constexpr bool splits = false;  ///< true: requires a SplittingTransport
  /// Text that must be equal on all ranks before `bind` is called; empty: nothing is compared.
  [[nodiscard]] std::string agreement() const { return {}; }
  /// Approximate number of elements in a bucket of dense averages; 0: 2^22.
  static constexpr std::size_t bucket_elements = 0;
};

/// Decides which rank talks to which: makes an Exchange. `exchange<B>` is its type for a backend B.
template <class C>
concept Collective = requires(const C c, const communicator& w, const detail::any_backend& backend,
                              std::span<const std::size_t> sizes) {
  requires Exchange<typename C::template exchange<detail::any_backend>>;
  // collective: makes the exchange for tensors of `sizes` elements; the other three: see above
  { c.bind(w, backend, sizes) } -> std::same_as<typename C::template exchange<detail::any_backend>>;
  { C::splits } -> std::convertible_to<bool>;
  { c.agreement() } -> std::convertible_to<std::string>;
  { c.bucket_elements } -> std::convertible_to<std::size_t>;
};

/// Returns the name of a policy for checkpoints and error messages: name(), or "custom".
template <class Policy>
[[nodiscard]] std::string policy_name(const Policy& policy) {
  if constexpr (requires { std::string(policy.name()); }) {
    return policy.name();
  } else {
    return "custom";
  }
}

/// Checks a collective.
template <class C>
consteval void check_collective() {
  static_assert(!Compressor<C>,
                "onebit: a compressor stands where a collective should: wrap it, as in "
                "onebit::gather_scatter{compressor}");
  if constexpr (requires {
                  requires !Exchange<typename C::template exchange<detail::any_backend>>;
                }) {
    static_assert(Exchange<typename C::template exchange<detail::any_backend>>,
                  "onebit: what this collective binds to is no Exchange: see the concept for the "
                  "members, and the compiler's next note for the one that is missing");
  } else {
    static_assert(Compressor<C> || Collective<C>,
                  "onebit: this type is no Collective: derive from collective_defaults and write "
                  "exchange<B> and bind, as in onebit/collective/all_gather.hpp");
  }
}
namespace detail {

/// Checks a collective over a transport.
template <class C, class T>
consteval void check_split() {
  check_collective<C>();
  if constexpr (Collective<C>) {
    static_assert(!C::splits || detail::SplittingTransport<T>,
                  "onebit: this collective splits the transport, which has no split(color, key)");
  }
}

}  // namespace detail

}}  // namespace onebit
