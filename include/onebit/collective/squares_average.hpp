// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <onebit/collective/rounded_exchange.hpp>
#include <onebit/compressor/rounded.hpp>
#include <onebit/concepts/backend.hpp>
#include <onebit/concepts/stand_ins.hpp>
#include <onebit/core/layout.hpp>
#include <onebit/kernel/context.hpp>
#include <onebit/kernel/scalars.hpp>
#include <onebit/transport/communicator.hpp>
#include <span>
#include <utility>
#include <vector>

/// What a refresh of v sends: squares in 6 bits, and floats beside them.
namespace onebit { inline namespace v0_3 { namespace detail {

/// Averages squares of the ranks' gradients, in 6 bits (5, and an exponent for 32 elements), and
/// floats beside them, in 16 bits.
///
/// Cost: 2 collectives per bucket, and 2 for the floats beside; 2 (W-1)/W 0.75 bytes per element,
/// 4 (W-1)/W bytes per float beside. Memory while in use: 0.75 bytes per element for the mean,
/// 0.75 (1 + 1/W) for messages of up to 4 buckets, 4 + 2/W per float beside; and `work`, 4 bytes
/// per float beside and at home.
template <class B>
class squares_average {
 public:
  /// Takes the sizes of tensors, the number of floats that travel beside squares and of those
  /// that do not, and the bucket size of dense averages. Not collective.
  squares_average(const communicator& w, const B& backend, std::span<const std::size_t> sizes,
                  std::size_t n_beside, std::size_t n_at_home, std::size_t bucket_elements)
      : squares_(rounded::to_powers_of_two(), w, backend, sizes,  // must sum values: see rounded
                 buckets_of_means(sizes, bucket_elements)),
        beside_(rounded::to_roots(), w, backend, std::span(&n_beside, 1), 1),
        n_work_(n_beside + n_at_home) {}

  [[nodiscard]] rounded_exchange<B>& squares() { return squares_; }  ///< holds the mean squares
  [[nodiscard]] rounded_exchange<B>& beside() { return beside_; }    ///< mean floats beside
  /// Collective; blocks, unless the backend is deferred.
  template <class Squares, class Beside>
  [[gnu::cold]] void all_reduce(const Squares& squares, const Beside& beside, step_scalars* now) {
    squares_.all_reduce(squares, now, detail::no_consumer);
    // a rank that is out of step may not join a second collective
    if (const step_scalars* const seen = host_view<B>(now);
        seen && seen->verdict.mismatched_rank != 0)
      return;
    beside_.all_reduce(beside, now, detail::no_consumer);
  }
  /// Ends the step. Keeps nothing but the memory.
  void finish() {
    squares_.finish();
    beside_.finish();
  }
  /// Work space that the rule uses: refresh_floats (rule/sketch.hpp).
  [[nodiscard]] float* work() { return work_.data(); }
  /// Allocates the memory, unless it is there. Returns true if it allocated.
  [[gnu::cold]] bool prepare() {
    if (work_.size() > 0) return false;
    auto work = squares_.sender().backend().template make_buffer<float>(n_work_);
    squares_.allocate(rounded_exchange<B>::use::whole);
    beside_.allocate(rounded_exchange<B>::use::whole);
    work_ = std::move(work);
    return true;
  }
  /// Frees the memory.
  void release() noexcept {
    squares_.release();
    beside_.release();
    work_ = {};
  }
  /// Bytes of tables and of the memory that is allocated now.
  [[nodiscard, gnu::cold]] std::size_t work_bytes() const {
    return squares_.work_bytes() + beside_.work_bytes() + work_.bytes();
  }

 private:
  rounded_exchange<B> squares_, beside_;
  std::size_t n_work_;
  buffer_of<B, float> work_;
};

}}}  // namespace onebit::detail
