// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <onebit/concepts/exchange.hpp>
#include <onebit/concepts/rule.hpp>
#include <onebit/core/words.hpp>
#include <onebit/kernel/context.hpp>
#include <onebit/kernel/scalars.hpp>
#include <type_traits>
#include <utility>

/// Exchange with the memory that its steps need, as optimizers and compressed_allreduce hold it.
namespace onebit { inline namespace v0_3 { namespace detail {

/// Exchange X, with the mask of active elements, and with what a step needs that may be called off.
///
/// The encode pass writes nothing that lasts. If a message can be made twice (`repeats`), the
/// update pass makes it again, tile by tile, while it moves the parameters:
///
///     encode    gradient, residual -> message -> signs and scales       stores signs alone
///       ... collectives; from here on the step is kept or called off ...
///     update    gradient, residual -> the same message, over the old compensated value
///               mean message -> parameters                         same tile, same pass
///     finish    new scales become current: compensated value - its decoding is the residual now
///
/// Else encode overwrites the compensated value, and saves the old one: 4 bytes per element. The
/// mask adds 1 bit per element to `state_bytes`.
template <class X>
class stateful_exchange : public X {
  using B = typename X::backend_type;

 public:
  using mask_buffer = buffer_of<B, std::uint32_t>;
  using sender_type = std::remove_reference_t<decltype(std::declval<X&>().sender())>;
  /// True if the update pass makes the message again, so that nothing must be saved.
  static constexpr bool repeats = sender_type::by_word && X::own_messages;
  using undo_type = std::conditional_t<repeats, detail::store_at_update, store_at_encode>;
  using args_type = exchange_args<undo_type>;

  explicit stateful_exchange(X&& exchange) : X(std::move(exchange)) {}

  [[nodiscard]] active_mask mask() const { return {active_.data()}; }  ///< active elements
  /// @{
  /// Mean message of this step, and of the last kept one, in active elements.
  using X::latest, X::previous;
  [[nodiscard]] auto latest() { return X::latest(mask()); }
  [[nodiscard]] auto previous() { return X::previous(mask()); }
  /// @}
  [[nodiscard]] mask_buffer& active() { return active_; }
  [[nodiscard]] mask_buffer make_mask() {
    return backend().template make_buffer<std::uint32_t>(X::axis().n_words());
  }
  /// Makes only `elements` active from now on; an empty buffer changes nothing.
  [[gnu::cold]] void set_active(mask_buffer&& elements) {
    if (elements.size() == 0) return;
    active_ = std::move(elements);
    X::count_active(mask());
  }
  /// Makes all elements active, but not padding, which must not enter residuals. Only launches.
  [[gnu::cold]] void activate_all(mask_buffer&& elements) {
    auto& s = X::sender();
    backend().launch(elements.size() > 0 ? s.axis().tiles().size() : 0,
                     all_active_kernel{s.tiles(), elements.data()});
    set_active(std::move(elements));
  }
  void allocate_undo(const exchange_memory& memory) {
    if (repeats || !X::needs_undo(memory) || undo_.size() > 0) return;
    undo_ = backend().template make_buffer<float>(X::axis().n_words() * word_elements);
  }
  /// Starts without a momentum. Allocates before it changes anything.
  [[gnu::cold]] void start_from_nothing(const exchange_memory& memory) {
    allocate_undo(memory);
    auto elements = active_.size() == 0 ? make_mask() : mask_buffer{};
    X::start(X::allocate(memory), {});
    activate_all(std::move(elements));
  }

  /// Arguments of a step for calls of this exchange.
  [[nodiscard]] args_type args(step_scalars* now, active_mask takes_part, scale_bound bound = {}) {
    return {now, takes_part, undo_type::from(undo_.data()), bound};
  }
  /// Returns a function that runs the last pass of a step that is kept: the kernel `update` on all
  /// tiles. On each tile it first completes what the encode pass has left out.
  template <class Message>
  [[nodiscard]] auto updates_after(const Message& message, const args_type& args) {
    return [this, message, args](const auto& update) {
      if constexpr (repeats) {
        X::sender().store_and_update(message, args, update);
      } else {
        (void)message;
        launch_unless_skipped(backend(), args.now, X::axis().tiles().size(), update);
      }
    };
  }

  [[nodiscard, gnu::cold]] std::size_t state_bytes() const {
    return X::state_bytes() + undo_.bytes() + active_.bytes();
  }
  template <class Archive>
  [[gnu::cold]] void archive(Archive& a, const exchange_memory& memory) {
    X::archive(a, memory);
    a.buffer(active_, backend(), X::started() ? X::axis().n_words() : 0);
  }

 private:
  [[nodiscard]] B& backend() { return X::sender().backend(); }

  mask_buffer active_;
  buffer_of<B, float> undo_;
};

}  // namespace detail

}}  // namespace onebit
