// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <onebit/core/config.hpp>
#include <onebit/core/plan.hpp>
#include <span>
#include <string>
#include <utility>

/// Requirements on each kind of policy: what each member does, and when it is called. Optional
/// members have defaults in a `*_defaults` class, or a concept of their own.
namespace onebit { inline namespace v0_3 {

// -- where arithmetic runs -----------------------------------------------------------------------

/// Runs kernels in the order of launches, and makes the buffers that kernels use. A kernel is a
/// function object, which is called with lanes L: on the host a pack of 32 floats, on CUDA one
/// float per thread of a warp. If the backend is deferred, the host must not touch buffers itself:
/// it uses copy_in and copy_out.
template <class B>
concept Backend = requires(B backend, std::size_t n, const detail::any_kernel& kernel, float* to,
                           const float* from) {
  backend.launch(n, kernel);                     // calls kernel(L{}, i) for each i in [0, n)
  { B::deferred } -> std::convertible_to<bool>;  // true: launch may return before the kernels ran
  backend.copy_in(to, from, n);                  // copies n objects from host memory into a buffer
  backend.copy_out(to, from, n);  // waits for all kernels; copies n objects to host memory
  // a movable buffer of n zeroed objects, 64-byte aligned, with data(), size() and bytes()
  { backend.template make_buffer<float>(n).data() } -> std::same_as<float*>;
  { backend.template make_buffer<float>(n).size() } -> std::convertible_to<std::size_t>;
};

/// A kernel that handles a few scalars per call, marked by `static constexpr bool serial = true`.
/// It uses no lane values of a whole word, so the host compiles it once, not per instruction set.
template <class Kernel>
concept SerialKernel = requires {
  requires Kernel::serial;
};

/// A kernel with `static constexpr bool one_isa = true`: the host compiles it for isa::scalar only.
template <class Kernel>
concept OneIsaKernel = requires {
  requires Kernel::one_isa;
};

/// A kernel that accepts wide lanes: call i steps through the words of tile_at(i) by L::words.
template <class Kernel>
concept TileKernel = requires(const Kernel& k, std::size_t i) {
  k.tile_at(i).n;
};

// -- how bytes travel ----------------------------------------------------------------------------

/// Carries bytes between `size()` ranks. The three operations are collective and take buffers that
/// do not overlap. A call blocks until its buffers may be used again or, with a deferred backend,
/// is ordered with the backend's kernels. If a rank is lost, calls must throw in the end. There is
/// no send and receive: neighbours talk through a SplittingTransport.
template <class T>
concept Transport = requires(T transport, const void* send, void* receive, std::size_t slot_bytes,
                             float* data, std::size_t n) {
  { transport.rank() } -> std::convertible_to<int>;  // this rank, from 0
  { transport.size() } -> std::convertible_to<int>;  // number of ranks
  transport.all_to_all(send, receive, slot_bytes);   // slot i goes to rank i, or came from rank i
  transport.all_gather(send, receive, slot_bytes);   // one slot goes to all; slot i is from rank i
  transport.all_reduce_sum(data, n);                 // sum over the ranks, in place
};

namespace detail {

/// Name of the call that a gather is part of. A transport whose all_gather or host_all_gather takes
/// one as its last argument has it in its errors.
struct call_name {
  const char* text = "all_gather";
};

}  // namespace detail

/// A transport that can also start collectives and wait for them later. gather_scatter and dense
/// averages compute while other buckets travel. All ranks start the collectives of a communicator
/// in one order; several of both kinds may be in flight. A request is movable; test() is true once
/// it is done. A second wait() does nothing. An error is thrown once. The destructor waits.
template <class T>
concept StartingTransport = Transport<T> &&
    requires(T t, const void* send, void* receive, std::size_t n) {
  t.start_all_gather(send, receive, n).wait();
  { t.start_all_gather(send, receive, n).test() } -> std::convertible_to<bool>;
  requires std::move_constructible<decltype(t.start_all_gather(send, receive, n))>;
  requires std::same_as<decltype(t.start_all_to_all(send, receive, n)),
                        decltype(t.start_all_gather(send, receive, n))>;
};

/// A transport that also sums bf16.
template <class T>
concept HalfSummingTransport = Transport<T> && requires(T t, bf16* data) {
  t.all_reduce_sum(data, 1);
};

/// A transport that can be split: the ranks that pass an equal `color`, at least 0, form a new
/// transport, in the order of their keys, then of their ranks. Collective over all ranks: a rank
/// that needs no part passes a color of its own.
template <class T>
concept SplittingTransport = Transport<T> && requires(const T t, int color, int key) {
  { t.split(color, key) } -> std::convertible_to<T>;
};

/// A transport that matches collectives by their order on a channel (an MPI communicator):
/// `duplicate` returns a transport of the same ranks with a channel of its own. Each optimizer
/// takes a duplicate at construction, so that ranks may interleave optimizers in different orders.
/// Collective over all ranks.
template <class T>
concept DuplicatingTransport = Transport<T> && requires(const T t) {
  { t.duplicate() } -> std::convertible_to<T>;
};

/// A transport that knows how many ranks share a node. Collective.
template <class T>
concept NodeAwareTransport = Transport<T> && requires(const T t) {
  { t.ranks_per_node() } -> std::convertible_to<int>;
};

/// A transport of device memory with an all_gather for host memory, for small messages. Blocks.
template <class T>
concept HostGatheringTransport = Transport<T> &&
    requires(T t, const void* send, void* receive, std::size_t slot_bytes) {
  t.host_all_gather(send, receive, slot_bytes);
};

/// A transport whose collectives only enqueue work. `wait()` waits for it, and throws its errors.
template <class T>
concept WaitingTransport = Transport<T> && requires(T t) {
  t.wait();
};

/// A transport that tells whether it accepts pointers to device memory (see `staged`).
template <class T>
concept DeviceAwareTransport = Transport<T> && requires(const T t) {
  { t.device_aware() } -> std::convertible_to<bool>;
};

/// Access of a transport to the memory of buffers: a handle, cheap to copy. Copies run in order,
/// after the work that the handle stands for (on CUDA: its stream), fast from allocate_host memory.
template <class M>
concept Memory = std::copy_constructible<M> &&
    requires(M memory, void* to, const void* from, std::size_t bytes) {
  memory.copy(to, from, bytes);  // either side may be host memory, not to be used before wait()
  memory.wait();                 // waits for all copies, and for all work before them
  { memory.allocate_host(bytes) } -> std::same_as<void*>;  // 64-byte aligned; on CUDA pinned
  memory.free_host(to);  // frees memory of allocate_host; no copy of it may be in flight
  { M::host_can_touch } -> std::convertible_to<bool>;  // true: the host may access it; copy blocks
};

// -- value <-> bits ------------------------------------------------------------------------------

/// A compressor that encodes word by word, fused into the passes that produce and use the values:
/// `sign`, `identity`. compressor/sign.hpp documents each member. `decode` and `residual` must
/// accept a smaller scale than `scale` returned, since a rule may bound scales. residual(y, s) is y
/// minus its decoded value, or y itself for a scale of 0: nothing was sent.
template <class C>
concept WordCompressor = requires(const C c, std::byte* out, const std::byte* in, double statistic,
                                  std::uint64_t n, const detail::any_lanes::value& v) {
  { c.word_bytes } -> std::convertible_to<std::size_t>;           // bytes of an encoded word
  { C::scaled } -> std::convertible_to<bool>;                     // true: messages carry scales
  { c.scale_granularity() } -> std::convertible_to<granularity>;  // which elements share a scale
  { c.scale(statistic, n) } -> std::convertible_to<float>;  // scale, from the sum over n elements
  c.template encode<detail::any_lanes>(out, v);             // encodes a word, without its scale
  { c.template decode<detail::any_lanes>(in, 1.0F) } -> std::same_as<detail::any_lanes::value>;
  // adds a word to the sum of the scale; must be non-finite if a value is
  { c.template accumulate<detail::any_lanes>(v, v) } -> std::same_as<detail::any_lanes::value>;
  { c.template residual<detail::any_lanes>(v, 1.0F) } -> std::same_as<detail::any_lanes::value>;
};

/// The short way to write a compressor: a codec for tiles of n floats, 1 to 4096. The library keeps
/// the residual. On the host `encode` may throw, which takes the step back; `decode` also runs in
/// updates, and must not throw. On a device one lane of a warp calls both, if they are ONEBIT_HD.
template <class C>
concept TileCompressor = requires(const C c, const float* values, std::size_t n, std::byte* out,
                                  const std::byte* in, float* decoded) {
  { c.tile_bytes(n) } -> std::convertible_to<std::size_t>;  // must not depend on the values
  c.encode(values, n, out);  // writes all tile_bytes(n) bytes; values may be NaN or infinite
  { c.decode(in, n, decoded) }
  noexcept;
};

template <class C>
concept Compressor = WordCompressor<C> || TileCompressor<C>;

// -- when ----------------------------------------------------------------------------------------

/// Defaults of a Schedule: a base for schedules that need not define all members.
struct schedule_defaults {
  static constexpr bool compresses = true;  ///< false: never exchanges, so needs no memory for it
  /// Called after each step, unless all ranks are known to have skipped it. Changes the state.
  void done(std::uint64_t, float) {}
  /// Text for the user after a kept step with `next_needs_outcome`; empty: none.
  [[nodiscard]] std::string warning() const { return {}; }
  /// Passes each variable of the state to `a`, for checkpoints: see detail::payload_reader.
  template <class Archive>
  void archive(Archive&) {}
};

/// Decides which steps average or exchange. Not asked with one rank (in a hierarchy: one node).
template <class S>
concept Schedule = requires(S s, const S fixed, std::uint64_t step, float lr,
                            detail::any_archive a) {
  { fixed.due_in(step, lr) } -> std::same_as<due>;  // changes nothing; equal on all ranks
  s.done(step, lr);                                 // these three: see schedule_defaults
  { fixed.warning() } -> std::convertible_to<std::string>;
  s.archive(a);
  { S::compresses } -> std::convertible_to<bool>;
};

// -- what arithmetic -----------------------------------------------------------------------------

/// Defaults of a Rule: a base for rules that need not define all members.
struct rule_defaults {
  static constexpr bool local_steps = false;    ///< has steps without communication: a LocalRule
  static constexpr bool accumulates = false;    ///< the exchange sums the messages of local steps
  static constexpr bool refreshes = false;      ///< is a RefreshingRule
  static constexpr bool takes_moments = false;  ///< has take(m, v), for optimizer::start_from
  static constexpr bool has_moments = false;    ///< has betas and eps, which groups may override
  [[nodiscard]] moments own_moments() const { return {}; }  ///< the rule's betas and eps
  /// Returns which moments a step with this plan updates, and if their bias is corrected.
  [[nodiscard]] moments_updated updated(const step_plan&) const { return {}; }
  /// Limit of the global norm, to which gradients are clipped; 0: no clipping.
  [[nodiscard]] double max_grad_norm() const { return 0; }
  /// Makes the plan of a step from what is due, the step's number and lr. Changes nothing. Not
  /// asked with one rank: all steps are dense then. A LocalRule must write its own.
  [[nodiscard]] step_plan plan(const due& now, std::uint64_t, float) const {
    return detail::plan_without_local_steps(now, false);
  }
  /// Called at the start of a step, with its plan, lr, number and context, after any `freeze`.
  /// Gradients may not be ready; `now` is of the previous step. May throw.
  template <class At>
  void begin_step(const step_plan&, float, std::uint64_t, const At&) {}
  /// True if the host must know whether the step in progress is kept, even if that means to wait.
  [[nodiscard]] bool needs_outcome() const { return false; }
  /// Called after each step, with its plan and lr, unless all ranks are known to have skipped it.
  void done(const step_plan&, float) {}
  /// True after `freeze`, until `thaw`. Each FreezingRule must define this.
  [[nodiscard]] bool frozen() const { return false; }
  /// Upper bound of the scales of this rule's messages.
  [[nodiscard]] scale_bound bound() const { return {}; }
};

/// The arithmetic of an optimizer. A rule never communicates. `at` is a step_context
/// (step_context.hpp): everything that a rule sees of the step.
template <class R>
concept Rule = requires(R r, const R fixed, const layout& axis,
                        const detail::any_step_context<R>& at, const detail::any_field& field,
                        detail::any_archive a, const step_plan& plan) {
  requires Backend<typename R::backend_type>;
  r.backend();                // the backend that runs the rule's kernels
  r.prepare(axis);            // allocates the state; called once, before the first step
  fixed.gradient(at);         // returns the message that dense steps average: the local gradient
  r.dense_update(field, at);  // dense step from the mean gradient; in a LocalRule only updates v
  { fixed.state_bytes() } -> std::convertible_to<std::size_t>;  // memory of the lasting state
  r.archive(a);  // passes the lasting state to `a`, for checkpoints: see schedule_defaults
  // the members from here on: see rule_defaults
  { R::has_moments } -> std::convertible_to<bool>;
  { fixed.own_moments() } -> std::same_as<moments>;
  { fixed.updated(plan) } -> std::same_as<moments_updated>;
  { fixed.max_grad_norm() } -> std::convertible_to<double>;
  { fixed.plan(due{}, std::uint64_t{}, 0.0F) } -> std::same_as<step_plan>;
  r.begin_step(plan, 0.0F, std::uint64_t{}, at);
  { fixed.needs_outcome() } -> std::convertible_to<bool>;
  r.done(plan, 0.0F);
  { fixed.frozen() } -> std::convertible_to<bool>;
  { fixed.bound() } -> std::same_as<scale_bound>;
};

/// A rule whose messages are exchanged. `previous` is the mean message of the last kept exchange.
/// After a freeze or a resume it is 0 at first: the residual then holds the momentum handed over.
template <class R>
concept ExchangeRule = Rule<R> &&
    requires(R r, const R fixed, const detail::any_step_context<R>& at,
             const detail::any_field& latest, const detail::any_field& previous) {
  fixed.message(previous, at);  // returns this rank's message; called and read several times a step
  // Makes the step from `latest`, the mean message. The first kernel that changes state which
  // `message` reads must run through update(kernel), which finishes the message of a tile first.
  r.compressed_update(latest, previous, at, detail::any_visitor{});
};

/// A rule that freezes part of its state when the warm-up ends, after at least one dense step. A
/// rule without v need not freeze.
template <class R>
concept FreezingRule = ExchangeRule<R> &&
    requires(R r, const detail::any_step_context<R>& at, std::uint32_t* active) {
  // Returns the momentum, as initial_momentum, and sets the bits of active elements (for all:
  // all_active_kernel). Allocates before it changes anything: if it throws, the next step retries.
  r.freeze(active, at);
};

/// A rule in which each rank has a v of its own in compressed steps, from its own gradients. A
/// refresh brings v up to date with the mean of what the ranks' own v have taken in, `own_squares`,
/// and averages some floats beside (sketches of gradients). It may make elements active. `work` is
/// memory for refresh_floats, kept through the step.
template <class R>
concept RefreshingRule = ExchangeRule<R> &&
    requires(R r, const R fixed, const detail::any_step_context<R>& at,
             const detail::any_field& mean, std::uint32_t* active, float* work,
             detail::any_archive a) {
  { fixed.keeps_squares() } -> std::convertible_to<bool>;  // false: v is never refreshed
  { R::n_floats_beside(at.axis) } -> std::convertible_to<std::size_t>;   // floats that travel
  { R::n_floats_at_home(at.axis) } -> std::convertible_to<std::size_t>;  // floats that do not
  r.prepare_refreshes(at.axis, 1);  // takes the layout of messages and the number of ranks
  { fixed.own_variance() } -> std::convertible_to<const float*>;  // on the flat axis, or null
  fixed.own_squares(at.scalars);                                  // returns the field to average
  r.take_squares(r.make_variance(), at);  // refreshes v from a mean over an old job's ranks
  r.floats_beside(at, work);              // returns the field of floats to average beside
  // the first context has the layout of `mean`, the second the layout of messages
  r.take_floats_beside(mean, at, at, std::declval<step_scalars*>(), work);  // before updates
  r.refresh_variance(mean, at, at, active, work);  // after updates: v and the next `active`
  r.archive_own(a);                                // archives the state that differs between ranks
};

/// A rule with steps without communication, which each rank makes from its own gradient.
template <class R>
concept LocalRule = ExchangeRule<R> && R::local_steps &&
    requires(R r, const detail::any_step_context<R>& at, const detail::any_field& gradient,
             const step_plan& plan) {
  r.local_step(plan, at);      // step without an exchange
  r.dense_step(gradient, at);  // step from the mean gradient alone
};

/// A rule that can resume from a job with another number of ranks. For each rank of the old job a
/// rule R(options, backend) reads a checkpoint; one of these rules then moves to the new optimizer.
/// `resume` and `thaw` allocate before they change anything.
template <class R>
concept ResumingRule = ExchangeRule<R> &&
    requires(R r, const R fixed, const detail::any_field& previous,
             const detail::any_step_context<R>& at) {
  R(fixed.options(), r.backend());
  // Returns the initial_momentum of the new exchange, on the flat axis: never empty, but zeros if
  // the rule keeps its momentum. In a LocalRule `resume` returns nothing, is called only if the old
  // or the new job has one rank, and makes the current parameters the start.
  r.resume(previous, at);
  // returns to dense steps, if the new job has one rank; a LocalRule has no `thaw`
  requires R::local_steps || requires { r.thaw(previous, at); };
};

// -- who talks to whom ---------------------------------------------------------------------------

/// An exchange, by which the ranks agree on a mean message. The agreed message plus the new
/// residuals (mean of the workers', and the server's) is the mean of the ranks' messages. Only
/// `allocate` allocates. `finish` ends a step: keeps the new state or, if now->skip, the old one.
template <class X>
concept Exchange = requires(X x, const X fixed, const detail::any_field& message,
                            const exchange_args<undo_in_buffer>& t, const active_mask& active,
                            detail::any_archive a) {
  requires Backend<typename X::backend_type>;
  // true: its sender encodes only this rank's own message, which the end of a step may make again;
  // false: its sender encodes partial sums
  { X::own_messages } -> std::convertible_to<bool>;
  { fixed.travels() } -> std::convertible_to<bool>;  // false: no other rank; never exchanges
  // true: the encode pass overwrites compensated values, so their old values must be saved
  { fixed.needs_undo(exchange_memory{}) } -> std::convertible_to<bool>;
  { fixed.axis() } -> std::convertible_to<const layout&>;  // layout of messages, also for rules
  x.sender();                                              // the onebit::sender that encodes
  { x.allocate(exchange_memory{}) } -> std::same_as<typename X::space>;  // memory, for `start`
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
  x.settle(message, t);      // adds a message after `finish`, before other elements become active
  x.finish(t);               // ends a step: keeps it, or takes it back
  x.archive(a, exchange_memory{});  // reads or writes the state
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

/// @{
/// Check a compressor, a transport, a collective over a transport, and a backend. There is one
/// assertion per requirement, so that the compiler names the missing member.
#define ONEBIT_NEEDS(type, member, ...) \
  static_assert(__VA_ARGS__, "onebit: this type is no " type ": " member " is missing or differs")
template <class C>
consteval void check_compressor() {
  using lanes = detail::any_lanes;
  using value = lanes::value;
  using byte = std::byte;
  using size = std::size_t;
  constexpr bool word =
      !TileCompressor<C> && (
                                requires { C::scaled; } || requires(const C c) { c.word_bytes; } ||
                                requires(const C c) { c.scale_granularity(); } ||
                                requires(const C c) { c.scale(0.0, 1); });
  ONEBIT_NEEDS(
      "Compressor", "std::size_t tile_bytes(std::size_t n) const",
      word || requires(const C c, size n) {
        { c.tile_bytes(n) } -> std::convertible_to<size>;
      });
  ONEBIT_NEEDS(
      "Compressor", "void encode(const float* values, std::size_t n, std::byte* out) const",
      word || requires(const C c, const float* v, size n, byte* out) { c.encode(v, n, out); });
  ONEBIT_NEEDS(
      "Compressor", "void decode(const std::byte* in, std::size_t n, float* values) const noexcept",
      word || requires(const C c, const byte* in, size n, float* v) {
        { c.decode(in, n, v) }
        noexcept;
      });
  // by word, as in onebit/compressor/sign.hpp
  ONEBIT_NEEDS(
      "Compressor", "static constexpr std::size_t word_bytes", !word || requires(const C c) {
        { c.word_bytes } -> std::convertible_to<size>;
      });
  ONEBIT_NEEDS(
      "Compressor", "static constexpr bool scaled", !word || requires {
        { C::scaled } -> std::convertible_to<bool>;
      });
  ONEBIT_NEEDS(
      "Compressor", "granularity scale_granularity() const", !word || requires(const C c) {
        { c.scale_granularity() } -> std::convertible_to<granularity>;
      });
  ONEBIT_NEEDS(
      "Compressor", "float scale(double sum, std::uint64_t n) const",
      !word || requires(const C c, std::uint64_t n) {
        { c.scale(0.0, n) } -> std::convertible_to<float>;
      });
  ONEBIT_NEEDS(
      "Compressor", "encode<L>(std::byte* out, const L::value& y) const",
      !word ||
          requires(const C c, byte* out, const value& v) { c.template encode<lanes>(out, v); });
  ONEBIT_NEEDS(
      "Compressor", "L::value decode<L>(const std::byte* in, float scale) const",
      !word || requires(const C c, const byte* in) {
        { c.template decode<lanes>(in, 1.0F) } -> std::same_as<value>;
      });
  ONEBIT_NEEDS(
      "Compressor", "L::value accumulate<L>(const L::value& sum, const L::value& y) const",
      !word || requires(const C c, const value& v) {
        { c.template accumulate<lanes>(v, v) } -> std::same_as<value>;
      });
  ONEBIT_NEEDS(
      "Compressor", "L::value residual<L>(const L::value& y, float scale) const",
      !word || requires(const C c, const value& v) {
        { c.template residual<lanes>(v, 1.0F) } -> std::same_as<value>;
      });
  static_assert(
      !requires { requires !C::has_residual; },
      "onebit: remove has_residual from this compressor: where it loses nothing, its residual(y, "
      "scale) returns 0 (but y if scale is 0)");
}

template <class T>
consteval void check_transport() {
  using size = std::size_t;
  ONEBIT_NEEDS(
      "Transport", "int rank()", requires(T t) {
        { t.rank() } -> std::convertible_to<int>;
      });
  ONEBIT_NEEDS(
      "Transport", "int size()", requires(T t) {
        { t.size() } -> std::convertible_to<int>;
      });
  ONEBIT_NEEDS(
      "Transport", "all_to_all(const void* send, void* receive, std::size_t slot_bytes)",
      requires(T t, const void* s, void* r, size n) { t.all_to_all(s, r, n); });
  ONEBIT_NEEDS(
      "Transport", "all_gather(const void* send, void* receive, std::size_t slot_bytes)",
      requires(T t, const void* s, void* r, size n) { t.all_gather(s, r, n); });
  ONEBIT_NEEDS(
      "Transport", "all_reduce_sum(float* data, std::size_t n)",
      requires(T t, float* d, size n) { t.all_reduce_sum(d, n); });
}
#undef ONEBIT_NEEDS

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
template <class C, class T>
consteval void check_split() {
  check_collective<C>();
  if constexpr (Collective<C>) {
    static_assert(!C::splits || SplittingTransport<T>,
                  "onebit: this collective splits the transport, which has no split(color, key)");
  }
}

template <class B>
consteval void check_backend() {
  static_assert(Backend<B>,
                "onebit: this type is no Backend: it needs launch(n, kernel), make_buffer<T>(n), "
                "copy_in(to, from, n), copy_out(to, from, n) and a static bool `deferred` as in "
                "onebit/backend/host.hpp");
}
/// @}

}}  // namespace onebit
