// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ops/from_blob.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <onebit/error.hpp>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

/// Groups of torch's process groups, and their collectives under way.
namespace onebit::inline v0_1 {

namespace detail {

/// What torch says of an error, without its backtrace.
[[nodiscard, gnu::cold]] inline std::string torch_text(const std::exception& e) {
  const auto* const torch = dynamic_cast<const ::c10::Error*>(&e);
  return torch != nullptr ? torch->what_without_backtrace() : e.what();
}

/// Two groups of the same ranks, since calls of the two kinds may come in another order on another
/// rank (buckets that one announces early), and c10d matches calls by their order.
struct c10d_group {
  using backend_pointer = ::c10::intrusive_ptr<::c10d::Backend>;
  using store_pointer = ::c10::intrusive_ptr<::c10d::Store>;

  backend_pointer scatters, gathers;
  store_pointer store;                  ///< for splits; null: there are none
  std::optional<::c10::Stream> stream;  ///< of the device whose memory travels
  int rank = 0, size = 1;
  int name = 0, n_whole = 1;  ///< in the group that was split
  int n_splits = 0;
  std::string broken;  ///< why no collective can be used any more

  [[nodiscard]] std::string suffix() const { return rank_suffix(name, n_whole); }

  /// Calls f; what torch throws becomes a transport_error that names the call and the rank.
  template <class F>
  auto guarded(const char* call, const F& f) {
    try {
      return f();
    } catch (const error&) {
      throw;
    } catch (const std::exception& e) {
      broken = message("c10d: ", call, " failed: ", torch_text(e),
                       ". This transport is of no use any more: end the job, restart it from a "
                       "checkpoint",
                       suffix());
    }
    throw transport_error(broken);
  }
  /// A view of the trainer's memory.
  [[nodiscard]] at::Tensor view(const void* p, std::size_t n, at::ScalarType type) const {
    const at::Device device = stream ? stream->device() : at::Device(at::kCPU);
    return at::from_blob(const_cast<void*>(p), {static_cast<std::int64_t>(n)},
                         at::TensorOptions().dtype(type).device(device));
  }
};

/// Some torches call these by other names.
template <class B>
concept GathersSingle = requires(B& b, at::Tensor& t) {
  b.all_gather_single(t, t);
};
template <class B>
concept SwapsSingle = requires(B& b, at::Tensor& t, std::vector<std::int64_t>& sizes) {
  b.all_to_all_single(t, t, sizes, sizes);
};
template <class B>
[[nodiscard]] auto c10d_all_gather(B& b, at::Tensor& to, at::Tensor& from) {
  if constexpr (GathersSingle<B>) {
    return b.all_gather_single(to, from);
  } else {
    return b._allgather_base(to, from);
  }
}
template <class B>
[[nodiscard]] auto c10d_all_to_all(B& b, at::Tensor& to, at::Tensor& from) {
  std::vector<std::int64_t> equal;  // empty: slots of one size
  if constexpr (SwapsSingle<B>) {
    return b.all_to_all_single(to, from, equal, equal);
  } else {
    return b.alltoall_base(to, from, equal, equal);
  }
}

}  // namespace detail

/// A collective that was started: wait for it, or test it. Its buffers are torch's until then.
/// Destroyed unfinished, it waits, no longer than the group's time-out.
class c10d_request {
 public:
  using work_pointer = ::c10::intrusive_ptr<::c10d::Work>;
  /// Done already.
  c10d_request() = default;
  c10d_request(std::shared_ptr<detail::c10d_group> group, work_pointer work, const char* call)
      : group_(std::move(group)), work_(std::move(work)), call_(call) {}
  c10d_request(c10d_request&& other) noexcept
      : group_(std::move(other.group_)), work_(std::move(other.work_)), call_(other.call_) {}
  c10d_request& operator=(c10d_request&& other) noexcept {
    if (this != &other) {
      finish();
      group_ = std::move(other.group_);
      work_ = std::move(other.work_);
      call_ = other.call_;
    }
    return *this;
  }
  ~c10d_request() { finish(); }

  /// Waits until it is done; on a device: lets the transport's stream wait. Throws transport_error,
  /// once.
  void wait() {
    if (!work_) return;
    const work_pointer work = std::move(work_);
    group_->guarded(call_, [&] {
      std::optional<::c10::StreamGuard> on;
      if (group_->stream) on.emplace(*group_->stream);
      if (!work->wait()) throw std::runtime_error("it was aborted");
    });
  }
  /// Does not wait; true when it is done. Throws transport_error, once.
  [[nodiscard]] bool test() {
    if (!work_) return true;
    const bool done = group_->guarded(call_, [&] { return work_->isCompleted(); });
    if (done) wait();
    return done;
  }

 private:
  void finish() noexcept {
    try {
      wait();
    } catch (...) {
    }
  }
  std::shared_ptr<detail::c10d_group> group_;
  work_pointer work_;
  const char* call_ = "";
};

}  // namespace onebit::inline v0_1
