// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <istream>
#include <onebit/backend/host.hpp>
#include <onebit/collective/gather_scatter.hpp>
#include <onebit/compressor/sign.hpp>
#include <onebit/concepts/exchange.hpp>
#include <onebit/concepts/stand_ins.hpp>
#include <onebit/concepts/transport.hpp>
#include <onebit/core/archive.hpp>
#include <onebit/core/config.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/words.hpp>
#include <onebit/kernel/mismatch.hpp>
#include <onebit/kernel/param_group.hpp>
#include <onebit/kernel/scalars.hpp>
#include <onebit/step/agreement.hpp>
#include <onebit/step/restore.hpp>
#include <onebit/transport/communicator.hpp>
#include <ostream>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

/// The two halves of a compressed allreduce as separate collectives, for trainers that shard their
/// optimizer states (ZeRO) or distribute matrices over ranks (Muon). Every rank owns one part.
namespace onebit { inline namespace v0_3 {

namespace detail {

/// Part of a vector that one rank owns: contiguous elements.
struct vector_part {
  std::size_t first = 0;  ///< index of the first element: a multiple of 32, or the end
  std::size_t size = 0;   ///< number of elements; may be 0
};

/// Elements of a vector from index `first` on, as a message: base + data. Padding reads as 0, so
/// that it never has a residual.
template <class T>
struct part_message {
  slot_format format;  ///< format of the slot that a server encodes into
  const T* data;
  std::size_t first;
  const step_scalars* now;

  template <class L>
  struct reader {
    gradients_of<L, const T> values;
    ONEBIT_HD typename L::value operator()(std::uint32_t k) const {
      return load_elements<L>(values.first, k, values.n);
    }
    ONEBIT_HD typename L::value operator()(std::uint32_t k, const typename L::value& base) const {
      const auto y = L::add(base, values.load(k));
      if constexpr (L::words == 1) {
        const std::uint32_t own = L::first(values.n - 32 * k);
        if (own != 0xFFFFFFFFU) return L::keep(L::load_bits(&own), y);
      }
      return y;
    }
  };
  template <class L>
  ONEBIT_HD reader<L> at(tile t, std::size_t) const {
    tensor_entry<T, const T> vector{};
    vector.grads = data;
    t.offset -= first;
    return {gradients_of<L, const T>(vector, t, now)};
  }
};

/// Writes a field to a vector from index `first` on. Values beyond fp16 become its largest value.
template <class Field, class T>
struct store_part_kernel {
  Field field;
  tiles_from tiles;
  T* to;
  std::size_t first;

  [[nodiscard]] ONEBIT_HD const tile& tile_at(std::size_t i) const { return tiles[i]; }
  template <class L>
  ONEBIT_HD void operator()(L, std::size_t i) const {
    const tile t = tile_at(i);
    const auto value = field.template at<L>(t, tiles.first + i);
    for (std::uint32_t k = 0; k < t.n_words(); k += L::words) {
      const auto v = value(k);
      store_elements<L>(to + (t.offset - first), k, t.n,
                        std::is_same_v<T, fp16> ? L::bound(v, 65504) : v);
    }
  }
};

/// Half of a gather_scatter exchange: the workers' half, or with Gathers the servers' half.
template <class C, class B, bool Gathers>
struct sharded_half {
  using codec = compressor_or_identity<C>;
  using sender_type = sender<codec, B>;
  /// True if the compressor leaves a residual, added to the data of the next call.
  static constexpr bool owes = !requires { requires codec::memoryless; };
  using undo_type = std::conditional_t<sender_type::by_word, store_at_update, store_at_encode>;

  template <class Transport>
  [[gnu::cold]] sharded_half(const char* what, Transport transport, std::size_t n,
                             const C& compressor, const B& backend)
      : comm(communicator_of<gather_scatter<C>>(std::move(transport))),
        sizes{n},
        name(std::string(what) + ", " + policy_name(compressor)),
        worker(collective_try(comm, [&] { return make_sender(compressor, backend); })),
        now(to_buffer(worker.backend(), std::vector<step_scalars>(1))) {
    header = header_of(comm, make_fingerprint(name, sizes, 0, slot_bytes()), 0);
    header.ranks.number = next_number();
    const step_scalars s = first_scalars(comm, compare_fingerprints(comm, header.ranks, sizes));
    worker.backend().copy_in(now.data(), &s, 1);
    if (!travels()) return;
    const std::size_t all = slot_bytes() * header.size, slots = Gathers ? slot_bytes() : all;
    to_send = worker.backend().template make_buffer<std::byte>(slots);
    received = worker.backend().template make_buffer<std::byte>(all);
    if (owes && !sender_type::by_word && !Gathers)
      undo = worker.make_compensated(worker.axis().n_words());
    reset();
  }
  [[nodiscard]] sender_type make_sender(const C& compressor, const B& backend) {
    check_streams(comm, backend);
    refuse_if(sizes[0] > PTRDIFF_MAX / sizeof(float), sizes[0], " elements: more than memory has");
    return sender_type(checked_compressor(compressor), backend, sizes, comm.size());
  }
  [[nodiscard]] vector_part own() const {  ///< part that this rank owns
    const std::size_t each = worker.axis().chunk_words() * word_elements, n = sizes[0];
    const std::size_t first = (std::min)(each * header.rank, n);
    return {first, (std::min)(each, n - first)};
  }
  /// Waits; returns the outcome of the last call. Not collective. Throws rank_mismatch.
  outcome settle() {
    comm.wait();
    return outcome_of(fetch_scalars(worker.backend(), now.data(), comm.rank(), comm.size()));
  }
  /// Sets this rank's residual to 0. All ranks should call it at the same point.
  [[gnu::cold]] void reset() {
    if (!owes || !travels()) return;
    const std::size_t words = worker.axis().words_of_chunk(comm.rank());
    if (Gathers) return server.start(worker.make_compensated(words));
    worker.start_from(worker.make_compensated(worker.axis().n_words()));
  }
  /// Writes this rank's residual. Throws checkpoint_error.
  [[gnu::cold]] void save(std::ostream& out) {
    header.step = step;
    save_checkpoint(*this, out, header);
  }
  /// Reads the residual that `save` wrote on this rank, in a job with equally many ranks.
  /// Collective: if one rank fails, all throw checkpoint_error, and nothing changes.
  [[gnu::cold]] void load(std::istream& in) {
    const auto own_header = [&] { return header; };
    load_checkpoint(*this, in, own_header, resume_with::same_options, "");
  }
  [[nodiscard]] const traffic& sent() const { return comm.sent(); }  ///< traffic of this rank
  [[nodiscard]] std::size_t state_bytes() const {                    ///< bytes kept between calls
    return worker.state_bytes() + server.state_bytes() + undo.bytes();
  }
  template <class... Parts>
  [[gnu::cold]] void refuse_if(bool wrong, const Parts&... why) const {
    if (wrong) throw invalid_input(error_text(name, ": ", why..., comm.where()));
  }
  [[nodiscard]] bool travels() const { return comm.size() > 1; }
  [[nodiscard]] std::size_t slot_bytes() const { return worker.format().slot_bytes; }
  /// Runs one call. Throws invalid_input for wrong sizes, or a part at a wrong place in the vector.
  template <class From, class To>
  outcome call(std::span<const From> from, std::span<To> to) {
    static_assert(Element<From> && Element<To>, "onebit: data must be float, bf16 or fp16");
    const auto [first, size] = own();
    const std::size_t takes = Gathers ? size : sizes[0], gives = Gathers ? sizes[0] : size;
    refuse_if(from.size() != takes || to.size() != gives, "given ", from.size(),
              " elements in and ", to.size(), " out, but this rank needs ", takes, " in and ",
              gives, " out");
    const auto x = reinterpret_cast<std::uintptr_t>(from.data());
    const auto y = reinterpret_cast<std::uintptr_t>(to.data());
    refuse_if((x == 0 && takes > 0) || (y == 0 && gives > 0), "memory at address 0");
    const bool apart = x + from.size_bytes() <= y || y + to.size_bytes() <= x;
    const bool in_place = std::is_same_v<From, To> && (Gathers ? x - y : y - x) == first * 4;
    refuse_if(!apart && !in_place,
              "the part overlaps the vector, but not at own().first; put it there or outside");
    const standard_arithmetic arithmetic;
    B& backend = worker.backend();
    const auto number = static_cast<std::uint32_t>(step % status_steps);
    backend.launch(1, begin_step_kernel{now.data(), {}, 0.0F, 1.0F, number, 0, false});
    const exchange_args<undo_type> args{now.data(), {}, undo_type::from(undo.data())};
    const std::size_t at = Gathers ? first : 0;
    const part_message<From> own_message{worker.format(), from.data(), at, now.data()};
    try {
      travels() ? store(exchanged(own_message, args), to.data()) : store(own_message, to.data());
    } catch (...) {
      backend.launch(1, call_off_kernel{now.data()});
      worker.finish(args);
      throw;
    }
    worker.finish(args);
    const outcome became = B::deferred ? outcome::pending : settle();
    ++step;
    return became;
  }
  /// Exchanges messages; returns the mean or the parts as a field. Data may then be overwritten.
  template <class Message, class Args>
  auto exchanged(const Message& own_message, const Args& args) {
    const check_kernel check{.now = now.data(),
                             .slots = received.data(),
                             .n = header.size,
                             .part = Gathers ? message_tag::from_server : 0,
                             .ranks = {header.size}};
    if constexpr (Gathers) {
      const auto status = worker.write_status(to_send.data(), 1, check.part, now.data());
      const int own_chunk = comm.rank();
      worker.then_write_status(
          owes ? server.average_chunk(worker, own_message, own_chunk, args, to_send.data())
               : worker.encode_chunk(own_message, no_feedback{}, own_chunk, args, to_send.data()),
          status);
      comm.all_gather(to_send.data(), received.data(), slot_bytes());
      worker.run_check(check);
      const gathered_view<codec> came{
          worker.codec(), worker.format(), received.data(), {}, tile_buffer::latest};
      if (owes) {
        const auto lost = server.residual_pass(worker, own_message, comm.rank(), came, args);
        worker.backend().launch(lost.n, lost.kernel);
      }
      return came;
    } else {
      if (owes) {
        worker.encode(own_message, args, to_send.data(), 0);
      } else {
        worker.encode_bucket(own_message, no_feedback{}, args, to_send.data(), 0);
      }
      comm.all_to_all(to_send.data(), received.data(), slot_bytes());
      worker.run_check(check);
      if (owes && sender_type::by_word) worker.store_and_update(own_message, args, any_kernel{});
      return worker.mean(worker.format(), received.data(), comm.size());
    }
  }
  /// Writes a field to the part (with Gathers, to the vector), unless the call is skipped.
  template <class Field, class T>
  void store(const Field& field, T* to) {
    const layout& axis = worker.axis();
    const tile_range part = Gathers ? axis.all_tiles() : axis.chunk_tiles(comm.rank());
    launch_unless_skipped(worker.backend(), now.data(), part.end - part.begin,
                          store_part_kernel<Field, T>{
                              field, {worker.tiles(), part.begin}, to, Gathers ? 0 : own().first});
  }
  template <class Archive>
  [[gnu::cold]] void archive(Archive& a) {
    a.scalar(step);
    worker.archive(a);
    server.archive(a, worker.backend());
  }
  void check_read(resume_with) const {}
  void restore_options(resume_with) const {}
  void adopt() const {}
  communicator comm;
  std::vector<std::size_t> sizes;  ///< one entry: n
  std::string name;
  checkpoint_header header;
  sender_type worker;
  onebit::server<codec, B> server;
  buffer_of<B, float> undo;
  buffer_of<B, std::byte> to_send, received;
  buffer_of<B, step_scalars> now;  ///< one entry: the call in progress
  std::uint64_t step = 0;          ///< number of completed calls
};

}  // namespace detail

/// Compressed reduce-scatter: the owner of a part receives the mean of this part over all ranks, in
/// fp32. Each rank adds its residual, the error of compression, to its data of the next call (error
/// feedback): the sum of all means is exact up to the last residuals. This suits gradients, which
/// are summed up. For data that are not summed up, use a compressor without a residual (identity,
/// rounded), or call reset() before each call.
///
/// A vector of n elements is cut into one part per rank. All parts have equally many 32-element
/// words, except that the last ones may be shorter or empty. C is any Compressor; data lie in the
/// memory of the Backend B. Movable; a moved-from object may only be assigned to or destroyed.
/// Memory: 4 bytes per element between calls if C has a residual (8 if C compresses by tile); two
/// messages. Source: 1-bit Adam (arXiv 2102.02888), section 4.2, the workers' part.
template <class C = sign<>, class B = host>
class compressed_reduce_scatter : detail::sharded_half<C, B, false> {
  using half = detail::sharded_half<C, B, false>;

 public:
  /// Collective: the ranks compare n and the compressor, and all throw if one differs. Throws
  /// invalid_input, rank_mismatch.
  template <class Transport>
  [[gnu::cold]] compressed_reduce_scatter(Transport transport, std::size_t n,
                                          const C& compressor = {}, const B& backend = B())
      : half("compressed_reduce_scatter", std::move(transport), n, compressor, backend) {}

  /// Writes into `part` (own().size elements) the mean over the ranks of `data` (n float, bf16 or
  /// fp16, contiguous) plus residual. `part` may lie at its own place in `data`. With one rank
  /// `data` is copied, non-finite values included.
  ///
  /// Collective; waits, unless the backend is deferred. Cost: one all_to_all that sends (W-1)/W of
  /// the message (n/8 bytes for `sign`; scales; 12 bytes per rank); 2 passes over data and
  /// residual. If data of a rank are not finite (or reach gradient_limit), no rank changes anything
  /// and all return `skipped`; on a deferred backend `pending`, then settle() returns the outcome.
  /// If mean() throws, nothing has changed on this rank. Throws rank_mismatch if a rank is in
  /// another call; what the transport throws; invalid_input for wrong spans, here alone (the other
  /// ranks wait).
  template <class Data>
  outcome mean(const Data& data, std::span<float> part) {
    return half::call(std::span<const std::remove_cvref_t<decltype(data[0])>>(data), part);
  }
  using half::own, half::settle, half::reset, half::save, half::load, half::sent, half::state_bytes;
};

/// Compressed all-gather: every rank sends its part, and all ranks receive all parts with equal
/// bits; a rank also receives its own part in compressed form. The residual of a part is added to
/// the part of the next call. This suits increments, such as updates of parameters. For states,
/// such as parameters, use a compressor without a residual, or call reset() before each call.
///
/// Parts, C and B as in compressed_reduce_scatter. Memory: 4/W bytes per element between calls if C
/// has a residual; a message, and a part of one. Source: as there, the servers' part. If the number
/// of ranks is a power of 2, a reduce-scatter and an all-gather of its mean give the same bits as
/// compressed_allreduce; else the mean is rounded once more if C has a residual.
template <class C = sign<>, class B = host>
class compressed_all_gather : detail::sharded_half<C, B, true> {
  using half = detail::sharded_half<C, B, true>;

 public:
  /// As the constructor of compressed_reduce_scatter.
  template <class Transport>
  [[gnu::cold]] compressed_all_gather(Transport transport, std::size_t n, const C& compressor = {},
                                      const B& backend = B())
      : half("compressed_all_gather", std::move(transport), n, compressor, backend) {}

  /// Writes into `all` (n float, bf16 or fp16, contiguous) the compressed `part` plus residual of
  /// each rank. `part` (own().size elements) may lie at its own place in `all`. Rounding to 2 bytes
  /// leaves no residual. Collective. Outcome, errors and bytes as in
  /// compressed_reduce_scatter::mean; one all_gather; 2 passes over `part`, one over `all`.
  template <class All>
  outcome gather(std::span<const float> part, All&& all) {
    return half::call(part, std::span<std::remove_cvref_t<decltype(all[0])>>(all));
  }
  using half::own, half::settle, half::reset, half::save, half::load, half::sent, half::state_bytes;
};

}}  // namespace onebit
