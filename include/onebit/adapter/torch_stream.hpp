// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <optional>

namespace onebit::inline v0_1::detail {

/// In its scope torch works on the optimizer's stream, if there is one: behind what torch's current
/// stream has been given, and before what that is given afterwards.
class on_stream {
 public:
  explicit on_stream(const std::optional<::c10::Stream>& stream) : stream_(stream) {
    if (!stream_) return;
    current_ = ::c10::impl::VirtualGuardImpl(stream_->device_type()).getStream(stream_->device());
    hand_over(*current_, *stream_);
    guard_.emplace(*stream_);
  }
  on_stream(const on_stream&) = delete;
  on_stream& operator=(const on_stream&) = delete;
  ~on_stream() {
    if (!stream_) return;
    guard_.reset();
    try {
      hand_over(*stream_, *current_);
    } catch (...) {  // a device that failed: later calls say so
    }
  }

 private:
  static void hand_over(const ::c10::Stream& from, const ::c10::Stream& to) {
    if (from == to) return;
    ::c10::Event done(from.device_type());
    done.record(from);
    done.block(to);
  }
  std::optional<::c10::Stream> stream_, current_;
  std::optional<::c10::StreamGuard> guard_;
};

}  // namespace onebit::inline v0_1::detail
