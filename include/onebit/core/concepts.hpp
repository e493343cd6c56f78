// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <onebit/core/config.hpp>
#include <span>
#include <string>
#include <utility>

/// What each policy promises. What it need not have is in `*_defaults`, or a concept of its own.
namespace onebit::inline v0_2 {

// -- where arithmetic runs -----------------------------------------------------------------------

/// Where arithmetic runs. `launch(n, kernel)` calls `kernel(L{}, i)` for i in [0, n), L being its
/// lanes: on the host a pack of 32 floats, on CUDA one float per thread of a warp.
/// `make_buffer<T>(n)` gives n zeroed objects, 64-byte aligned, owned, movable: `.data()`,
/// `.size()`, `.bytes()`. `deferred`: launch may return before the kernels have run, in order, and
/// the host must not touch buffers: `copy_in(to, from, n)` brings n objects into one, `copy_out(to,
/// from, n)` waits for all kernels and fetches n objects.
template <class B>
concept Backend = requires(B backend, std::size_t n, const detail::any_kernel& kernel, float* to,
                           const float* from) {
  backend.launch(n, kernel);
  { B::deferred } -> std::convertible_to<bool>;
  backend.copy_in(to, from, n);
  backend.copy_out(to, from, n);
  { backend.template make_buffer<float>(n).data() } -> std::same_as<float*>;
  { backend.template make_buffer<float>(n).size() } -> std::convertible_to<std::size_t>;
};

/// A kernel of a few scalars a call, that says `static constexpr bool serial = true`: it needs no
/// lanes that hold a word, and the host compiles it once, not for every instruction set.
template <class Kernel>
concept SerialKernel = requires {
  requires Kernel::serial;
};

/// One that says `static constexpr bool one_isa = true`: the host compiles it for one instruction
/// set.
template <class Kernel>
concept OneIsaKernel = requires {
  requires Kernel::one_isa;
};

/// A kernel that goes through the words of a tile L::words at a time says which tile that is.
template <class Kernel>
concept TileKernel = requires(const Kernel& k, std::size_t i) {
  k.tile_at(i).n;
};

// -- how bytes travel ----------------------------------------------------------------------------

/// How bytes travel between `size()` ranks. All three operations are collective and take buffers
/// that do not overlap; slot i of `send` goes to rank i, slot i of `receive` came from it. They
/// wait, or, with a deferred backend, are ordered with its kernels. There is no send and receive:
/// neighbours talk through `split` (SplittingTransport).
template <class T>
concept Transport = requires(T transport, const void* send, void* receive, std::size_t slot_bytes,
                             float* data, std::size_t n) {
  { transport.rank() } -> std::convertible_to<int>;
  { transport.size() } -> std::convertible_to<int>;
  transport.all_to_all(send, receive, slot_bytes);
  transport.all_gather(send, receive, slot_bytes);
  transport.all_reduce_sum(data, n);
};

/// Can also start its collectives, and wait for them later: gather_scatter with buckets computes
/// meanwhile (nothing else starts them). All ranks of a communicator start all of its in the same
/// order; several of both kinds may be under way. A request is movable; `test()` says whether it is
/// done; `wait()` may be called again, and does nothing then; an error is thrown once; destroyed,
/// it waits.
template <class T>
concept StartingTransport = Transport<T> &&
    requires(T t, const void* send, void* receive, std::size_t n) {
  t.start_all_gather(send, receive, n).wait();
  { t.start_all_gather(send, receive, n).test() } -> std::convertible_to<bool>;
  requires std::move_constructible<decltype(t.start_all_gather(send, receive, n))>;
  requires std::same_as<decltype(t.start_all_to_all(send, receive, n)),
                        decltype(t.start_all_gather(send, receive, n))>;
};

/// Sums bf16, too.
template <class T>
concept HalfSummingTransport = Transport<T> && requires(T t, bf16* data) {
  t.all_reduce_sum(data, 1);
};

/// split(color, key): collective. Ranks with the same color, at least 0, become one transport, in
/// the order of their keys, then of their ranks. A rank that needs none gives a color of its own.
template <class T>
concept SplittingTransport = Transport<T> && requires(const T t, int color, int key) {
  { t.split(color, key) } -> std::convertible_to<T>;
};

template <class T>
concept NodeAwareTransport = Transport<T> && requires(const T t) {
  { t.ranks_per_node() } -> std::convertible_to<int>;
};

/// Carries device memory, and host memory by this.
template <class T>
concept HostGatheringTransport = Transport<T> &&
    requires(T t, const void* send, void* receive, std::size_t slot_bytes) {
  t.host_all_gather(send, receive, slot_bytes);
};

/// Its collectives only enqueue; `wait()` waits, and tells what went wrong.
template <class T>
concept WaitingTransport = Transport<T> && requires(T t) {
  t.wait();
};

template <class T>
concept DeviceAwareTransport = Transport<T> && requires(const T t) {
  { t.device_aware() } -> std::convertible_to<bool>;
};

/// How a rank reaches the memory its buffers lie in: a handle, cheap to copy. Copies are ordered
/// among each other and after whatever work the handle stands for (on CUDA: its stream).
/// copy(to, from, bytes): either side may be device or host memory, which the host may use again
/// only after wait(), which waits for all copies and all work before them. allocate_host(bytes):
/// 64-byte aligned host memory from which copies run at full speed (on CUDA: pinned), until
/// free_host(p), when no copy may be under way. host_can_touch: the host may read and write this
/// memory itself, and copies are done when they return.
template <class M>
concept Memory = std::copy_constructible<M> &&
    requires(M memory, void* to, const void* from, std::size_t bytes) {
  memory.copy(to, from, bytes);
  memory.wait();
  { memory.allocate_host(bytes) } -> std::same_as<void*>;
  memory.free_host(to);
  { M::host_can_touch } -> std::convertible_to<bool>;
};

// -- value <-> bits ------------------------------------------------------------------------------

/// A compressor whose codec works word by word and fuses into the passes that produce and use the
/// values: `sign`, `identity`. See compressor/sign.hpp for what each member means. `decode` and
/// `residual` may be given a smaller scale than `scale` gave: a rule's bound; and residual(y, 0) is
/// y, since a scale of 0 stands for nothing that was sent.
template <class C>
concept WordCompressor = requires(const C c, std::byte* out, const std::byte* in, double statistic,
                                  std::uint64_t n, const detail::any_lanes::value& v) {
  { c.word_bytes } -> std::convertible_to<std::size_t>;
  { C::scaled } -> std::convertible_to<bool>;
  c.scale_granularity();
  { c.scale(statistic, n) } -> std::convertible_to<float>;
  c.template encode<detail::any_lanes>(out, v);
  { c.template decode<detail::any_lanes>(in, 1.0F) } -> std::same_as<detail::any_lanes::value>;
  { c.template accumulate<detail::any_lanes>(v, v) } -> std::same_as<detail::any_lanes::value>;
  { c.template residual<detail::any_lanes>(v, 1.0F) } -> std::same_as<detail::any_lanes::value>;
};

/// The short way to write a compressor: a codec for a tile of at most 4096 floats, whose residual
/// is kept for it. `encode` may throw on the host: the step is taken back; `decode` is noexcept: it
/// runs in updates too. On a device one lane of a warp calls them, where they are ONEBIT_HD.
template <class C>
concept TileCompressor = requires(const C c, const float* values, std::size_t n, std::byte* out,
                                  const std::byte* in, float* decoded) {
  { c.tile_bytes(n) } -> std::convertible_to<std::size_t>;  // whatever the values
  c.encode(values, n, out);
  { c.decode(in, n, decoded) }
  noexcept;
};

template <class C>
concept Compressor = WordCompressor<C> || TileCompressor<C>;

// -- when ----------------------------------------------------------------------------------------

/// What a schedule need not say.
struct schedule_defaults {
  static constexpr bool compresses = true;  ///< never exchanging, it needs no memory for it
  /// After each step that was done.
  void done(std::uint64_t, float) {}
  /// After a step that `ends_warm_up` was done: what the user should hear; empty: nothing.
  [[nodiscard]] std::string warning() const { return {}; }
  /// What it remembers, for checkpoints.
  template <class Archive>
  void archive(Archive&) {}
};

/// When a step averages and exchanges. `plan` changes nothing, and is the same on every rank.
template <class S>
concept Schedule = requires(S s, const S fixed, std::uint64_t step, float lr,
                            detail::any_archive a) {
  { fixed.plan(step, lr) } -> std::same_as<step_plan>;
  s.done(step, lr);
  { fixed.warning() } -> std::convertible_to<std::string>;
  s.archive(a);
  { S::compresses } -> std::convertible_to<bool>;
};

// -- what arithmetic -----------------------------------------------------------------------------

/// What a rule need not say.
struct rule_defaults {
  static constexpr bool local_steps = false;    ///< steps without communication
  static constexpr bool accumulates = false;    ///< their messages are added up by the exchange
  static constexpr bool refreshes = false;      ///< it is a RefreshingRule
  static constexpr bool takes_moments = false;  ///< has take(m, v): optimizer::start_from
  /// Whether it has betas and eps, and which; what a step does to the bias of m and v.
  static constexpr bool has_moments = false;
  [[nodiscard]] moments own_moments() const { return {}; }                      ///< those
  [[nodiscard]] moments_updated updated(const step_plan&) const { return {}; }  ///< of such a step
  /// What gradients are clipped to, by their global norm; 0: they are not.
  [[nodiscard]] double max_grad_norm() const { return 0; }
  /// Before anything of a step, by begin(): gradients may not be there yet, and `now` is the last
  /// step's. May make the plan smaller, or throw.
  template <class At>
  void begin_step(step_plan&, float, std::uint64_t, const At&) {}
  /// Whether the host must know the outcome of the step that comes.
  [[nodiscard]] bool needs_outcome() const { return false; }
  /// Of rules with local steps: whether the step that `begin_step` has begun is `dense_step`.
  [[nodiscard]] bool dense() const { return false; }
  /// After each step that was done.
  void done(const step_plan&, float) {}
  /// Whether `freeze` was called: asked of rules with local steps, which exchange before it too.
  [[nodiscard]] bool frozen() const { return false; }
  /// The largest scale with which its messages are sent.
  [[nodiscard]] scale_bound bound() const { return {}; }
};

/// What every rule has. `at` is a step_context (step_context.hpp): all that a rule sees of the
/// step.
template <class R>
concept Rule = requires(R r, const R fixed, const layout& axis,
                        const detail::any_step_context<R>& at, const detail::any_field& field,
                        detail::any_archive a, step_plan& plan) {
  requires Backend<typename R::backend_type>;
  r.backend();                // where it runs
  r.prepare(axis);            // its state, for these tensors
  fixed.gradient(at);         // the message that is averaged
  r.dense_update(field, at);  // the dense step, from the mean; in one that exchanges too only v
  { fixed.state_bytes() } -> std::convertible_to<std::size_t>;
  r.archive(a);
  { R::has_moments } -> std::convertible_to<bool>;
  { fixed.own_moments() } -> std::same_as<moments>;
  { fixed.updated(plan) } -> std::same_as<moments_updated>;
  { fixed.max_grad_norm() } -> std::convertible_to<double>;
  r.begin_step(plan, 0.0F, std::uint64_t{}, at);
  { fixed.needs_outcome() } -> std::convertible_to<bool>;
  r.done(plan, 0.0F);
  { fixed.frozen() } -> std::convertible_to<bool>;
  { fixed.bound() } -> std::same_as<scale_bound>;
};

/// A rule whose messages are exchanged. `previous` is what was agreed in the last exchange; after a
/// freeze or a resume it is 0 at first, and what was handed over is in the residual. A message may
/// be made twice in a step. So the kernel that first changes what the message reads is run by
/// `update(kernel)`, which calls it for each tile when the message of this tile has been made.
template <class R>
concept ExchangeRule = Rule<R> &&
    requires(R r, const R fixed, const detail::any_step_context<R>& at,
             const detail::any_field& latest, const detail::any_field& previous) {
  fixed.message(previous, at);  // what is exchanged, from what was agreed in the last exchange
  // the update, from what was received in this one
  r.compressed_update(latest, previous, at, detail::any_visitor{});
};

/// A rule that freezes something at the end of the warm-up, hands its momentum over, and fills
/// `active` with the bits of the elements that take part from then on (all_active_kernel: all). A
/// dense step must come before; a rule without a v need not freeze.
/// `freeze` allocates before it changes anything: when that fails the next step tries again.
template <class R>
concept FreezingRule = ExchangeRule<R> &&
    requires(R r, const detail::any_step_context<R>& at, std::uint32_t* active) {
  r.freeze(active, at);
};

/// A rule whose v follows, at the end of steps that average squares: from what each rank keeps of
/// its own gradients, and what it says of this one. Elements that have got variance come to life
/// then.
template <class R>
concept RefreshingRule = ExchangeRule<R> &&
    requires(R r, const R fixed, const detail::any_step_context<R>& at,
             const detail::any_field& mean, std::uint32_t* active, float* sums,
             detail::any_archive a) {
  { fixed.keeps_squares() } -> std::convertible_to<bool>;  // false: no such steps
  // what travels beside the squares, where messages are exchanged on an axis: so many floats
  { R::n_beside(at.axis) } -> std::convertible_to<std::size_t>;
  r.prepare_squares(at.axis);
  r.take_kept(r.make_kept());
  r.squares(at, sums);  // what is averaged: the squares, and what is beside
  // from their means, each on its axis: the latter before the exchange, the former after it
  r.take_mean_beside(mean, at, at, std::declval<step_scalars*>(), sums);
  r.refresh_variance(mean, at, at, active, sums);
  fixed.rescaled(mean, at);  // the residual in new units, and what was agreed in old ones; `ratios`
  r.restart_squares(at);     // begins to keep squares anew
  r.archive_squares(a);      // what it keeps of its own, and `archive` does not have
};

/// A rule with steps in which nothing travels.
template <class R>
concept LocalRule = ExchangeRule<R> && R::local_steps &&
    requires(R r, const detail::any_step_context<R>& at, const detail::any_field& gradient,
             const step_plan& plan) {
  r.local_step(plan, at);
  r.dense_step(gradient, at);  // the whole step, where nothing would travel, or it says `dense`
};

/// A rule that can go on with other ranks. One rank of the old job is built anew, as
/// R(options, backend), and read; it moves to the new job. `resume` returns its momentum, on the
/// flat axis, never empty (zeros where the rule keeps its own), for an exchange that starts. `thaw`
/// goes back to dense steps: one rank alone exchanges nothing. Both allocate before they change
/// anything. A rule with local steps has no `thaw`: its `resume`, after steps of one rank alone,
/// starts from the parameters there are.
template <class R>
concept ResumingRule = ExchangeRule<R> &&
    requires(R r, const R fixed, const detail::any_field& previous,
             const detail::any_step_context<R>& at) {
  R(fixed.options(), r.backend());
  r.resume(previous, at);
  requires R::local_steps || requires { r.thaw(previous, at); };
};

// -- who talks to whom ---------------------------------------------------------------------------

/// An exchange as the step uses it: the ranks agree on a message. Only `allocate` allocates; what a
/// step changes is changed by `finish`, which keeps it or takes it back, as `now->skip` says. What
/// is agreed, and the mean of what ranks still owe (workers' residuals over W, and servers'), are
/// the mean of the messages.
template <class X>
concept Exchange = requires(X x, const X fixed, const detail::any_field& message,
                            const exchange_args<undo_in_buffer>& t, const active_mask& active,
                            detail::any_archive a) {
  requires Backend<typename X::backend_type>;
  // true: all that its sender encodes is this rank's own message, so that the end of a step can
  // make it once more; false where it encodes sums on their way
  { X::own_messages } -> std::convertible_to<bool>;
  { fixed.travels() } -> std::convertible_to<bool>;  // false: the plan never exchanges
  { fixed.needs_undo(exchange_memory{}) } -> std::convertible_to<bool>;
  { fixed.axis() } -> std::convertible_to<const layout&>;
  x.sender();  // an onebit::sender: its axis is the one that rules see
  { x.allocate(exchange_memory{}) } -> std::same_as<typename X::space>;
  // from a momentum, or from nothing
  x.start(std::declval<typename X::space>(),
          std::declval<initial_momentum<typename X::float_buffer>>());
  { fixed.started() } -> std::convertible_to<bool>;
  x.count_active(active);                            // these elements take part from now on
  x.previous(active), x.latest(active);              // fields: of the last exchange, of this step's
  { fixed.n_unsent() } -> std::convertible_to<int>;  // buckets of this step
  x.send_next(message, t);
  x.all_reduce(message, t);
  x.accumulate(message, t);
  x.rescale(message, t);  // other units: see `sender`
  x.finish(t), x.archive(a, exchange_memory{});
  x.compensated_tiles(), x.visit_residuals(detail::any_visitor{}, detail::any_visitor{});
  { fixed.sent_across() } -> std::convertible_to<std::uint64_t>;  // to other nodes, if it knows any
  { fixed.ranks_per_node() } -> std::convertible_to<int>;         // that it knows: else 1
  { fixed.slot_bytes() } -> std::convertible_to<std::size_t>;
  { fixed.state_bytes() } -> std::convertible_to<std::size_t>;
  { fixed.work_bytes() } -> std::convertible_to<std::size_t>;
};

/// What a collective policy need not say.
struct collective_defaults {
  /// Whether it needs a SplittingTransport.
  static constexpr bool splits = false;
  /// What ranks must agree on before it is bound, in words.
  [[nodiscard]] std::string agreement() const { return {}; }
  /// The buckets of the dense averages beside it: about so many elements each, 0: of 2^22.
  static constexpr std::size_t bucket_elements = 0;
};

/// Who talks to whom: `bind` makes the exchange for a communicator, a backend and tensor sizes.
/// Collective.
template <class C>
concept Collective = requires(const C c, const communicator& w, const detail::any_backend& backend,
                              std::span<const std::size_t> sizes) {
  requires Exchange<typename C::template exchange<detail::any_backend>>;
  { c.bind(w, backend, sizes) } -> std::same_as<typename C::template exchange<detail::any_backend>>;
  { C::splits } -> std::convertible_to<bool>;
  { c.agreement() } -> std::convertible_to<std::string>;
  { c.bucket_elements } -> std::convertible_to<std::size_t>;
};

/// What a policy calls itself by `name()`, as checkpoints and error messages tell it, or "custom".
template <class Policy>
[[nodiscard]] std::string policy_name(const Policy& policy) {
  if constexpr (requires { std::string(policy.name()); }) {
    return policy.name();
  } else {
    return "custom";
  }
}

/// @{
/// One assertion per requirement, so that a compiler says in words what is missing: of a
/// compressor, a transport, a collective over a transport, and a backend.
template <class C>
consteval void check_compressor() {
  using lanes = detail::any_lanes;
  using value = lanes::value;
  constexpr bool by_word = requires(const C c) { c.word_bytes; };
  static_assert(
      by_word ||
          requires(const C c, std::size_t n) {
            { c.tile_bytes(n) } -> std::convertible_to<std::size_t>;
          },
      "onebit: this type is no Compressor: std::size_t tile_bytes(std::size_t n) const is missing "
      "(by tile), or word_bytes (by word, as in onebit/compressor/sign.hpp)");
  static_assert(
      by_word || requires(const C c, const float* v, std::size_t n,
                          std::byte* out) { c.encode(v, n, out); },
      "onebit: this type is no Compressor: void encode(const float* values, std::size_t n, "
      "std::byte* out) const is missing");
  static_assert(
      by_word ||
          requires(const C c, const std::byte* in, std::size_t n, float* v) {
            { c.decode(in, n, v) }
            noexcept;
          },
      "onebit: this type is no Compressor: void decode(const std::byte* in, std::size_t n, float* "
      "values) const noexcept is missing, or it is not noexcept");
  static_assert(
      !requires { requires !C::has_residual; },
      "onebit: every compressor has a residual: leave has_residual out, and let "
      "residual(y, scale) give 0 (but y for a scale of 0) where nothing is owed");
  static_assert(
      !by_word ||
          requires(const C c, double sum, std::uint64_t n) {
            { C::scaled } -> std::convertible_to<bool>;
            c.scale_granularity();
            { c.scale(sum, n) } -> std::convertible_to<float>;
          },
      "onebit: this type is no Compressor: scaled, scale_granularity() const or float "
      "scale(double sum, std::uint64_t n) const is missing (onebit/compressor/sign.hpp)");
  static_assert(
      !by_word ||
          requires(const C c, std::byte* out, const value& v) {
            c.template encode<lanes>(out, v);
            { c.template accumulate<lanes>(v, v) } -> std::same_as<value>;
          },
      "onebit: this type is no Compressor: encode<L>(out, value) const or accumulate<L>(sum, "
      "value) "
      "const is missing (onebit/compressor/sign.hpp)");
  static_assert(
      !by_word ||
          requires(const C c, const std::byte* in, const value& v) {
            { c.template decode<lanes>(in, 1.0F) } -> std::same_as<value>;
            { c.template residual<lanes>(v, 1.0F) } -> std::same_as<value>;
          },
      "onebit: this type is no Compressor: decode<L>(in, scale) const or residual<L>(value, scale) "
      "const is missing (onebit/compressor/sign.hpp)");
}

template <class T>
consteval void check_transport() {
  static_assert(
      requires(T t) {
        { t.rank() } -> std::convertible_to<int>;
      },
      "onebit: this type is no Transport: int rank() is missing");
  static_assert(
      requires(T t) {
        { t.size() } -> std::convertible_to<int>;
      },
      "onebit: this type is no Transport: int size() is missing");
  static_assert(
      requires(T t, const void* s, void* r, std::size_t n) { t.all_to_all(s, r, n); },
      "onebit: this type is no Transport: all_to_all(const void* send, void* receive, "
      "std::size_t slot_bytes) is missing");
  static_assert(
      requires(T t, const void* s, void* r, std::size_t n) { t.all_gather(s, r, n); },
      "onebit: this type is no Transport: all_gather(const void* send, void* receive, "
      "std::size_t slot_bytes) is missing");
  static_assert(
      requires(T t, float* d, std::size_t n) { t.all_reduce_sum(d, n); },
      "onebit: this type is no Transport: all_reduce_sum(float* data, std::size_t n) is "
      "missing");
}

template <class C, class T>
consteval void check_split() {
  static_assert(!Compressor<C>,
                "onebit: a compressor stands where a collective should: wrap it, as in "
                "onebit::gather_scatter{compressor}");
  if constexpr (requires { typename C::template exchange<detail::any_backend>; }) {
    static_assert(Exchange<typename C::template exchange<detail::any_backend>>,
                  "onebit: what this collective binds to is no Exchange: see the concept for the "
                  "members, and the compiler's next note for the one that is missing");
  }
  static_assert(Compressor<C> || Collective<C>,
                "onebit: this type is no Collective: derive from collective_defaults and write "
                "exchange<B> and bind, as in onebit/collective/all_gather.hpp");
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

}  // namespace onebit::inline v0_2
