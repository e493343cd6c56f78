// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <onebit/transport/mpi_group.hpp>
#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>  // MPIX_Query_cuda_support
#endif

#include <chrono>
#include <climits>
#include <cstddef>
#include <onebit/core/concepts.hpp>
#include <onebit/core/element_types.hpp>
#include <onebit/core/error.hpp>
#include <thread>
#include <utility>
#include <vector>

/// Ranks as MPI processes. The only header that includes mpi.h; needs an initialised MPI.
namespace onebit::inline v0_2 {

/// A collective that was started: wait for it, or test it now and then, which is also what lets
/// many MPI libraries make progress. Its buffers are MPI's until then. Destroyed unfinished, it
/// waits, but no longer than the transport's time-out.
class mpi_request {
 public:
  /// Done already.
  explicit mpi_request(detail::mpi_group group) : group_(std::move(group)), slot_(group_, 0) {}
  /// @{
  /// Of the transport's own making; moved from, it is done.
  mpi_request(detail::mpi_group group, detail::mpi_slot slot, MPI_Request request, const char* call)
      : group_(std::move(group)), slot_(std::move(slot)), request_(request), call_(call) {}
  mpi_request(mpi_request&& other) noexcept
      : group_(other.group_),
        slot_(std::move(other.slot_)),
        request_(std::exchange(other.request_, MPI_REQUEST_NULL)),
        call_(other.call_) {}
  mpi_request& operator=(mpi_request&& other) noexcept {
    if (this == &other) return *this;
    finish();
    group_ = other.group_;
    slot_ = std::move(other.slot_);
    request_ = std::exchange(other.request_, MPI_REQUEST_NULL);
    call_ = other.call_;
    return *this;
  }
  ~mpi_request() { finish(); }
  /// @}

  /// Waits until it is done. Throws transport_error, once.
  void wait() {
    if (request_ != MPI_REQUEST_NULL) guarded([&] { group_.wait(request_, call_); });
  }
  /// Does not wait; true when it is done. Throws transport_error, once.
  [[nodiscard]] bool test() {
    if (request_ == MPI_REQUEST_NULL) return true;
    bool done = false;
    guarded([&] { done = group_.test(request_, call_); });
    return done;
  }

 private:
  /// What was given up is left to MPI, with its type.
  template <class F>
  void guarded(const F& f) {
    try {
      f();
    } catch (...) {
      if (request_ != MPI_REQUEST_NULL) slot_.leave();
      request_ = MPI_REQUEST_NULL;
      throw;
    }
  }
  void finish() noexcept {
    int over = 0;
    if (request_ == MPI_REQUEST_NULL || MPI_Finalized(&over) != MPI_SUCCESS || over != 0) return;
    if (group_.is_broken()) {
      slot_.leave();
      request_ = MPI_REQUEST_NULL;
    }
    try {
      wait();
    } catch (...) {
    }
  }

  detail::mpi_group group_;
  detail::mpi_slot slot_;  ///< outlives the collective: some libraries look at the type until then
  MPI_Request request_ = MPI_REQUEST_NULL;
  const char* call_ = "";
};

namespace detail {

inline void mpi_add_halves(void* from, void* to, int* n, MPI_Datatype*) {
  const auto* a = static_cast<const bf16*>(from);
  auto* b = static_cast<bf16*>(to);
  for (int i = 0; i < *n; ++i) b[i] = to_bf16(to_float(a[i]) + to_float(b[i]));
}

}  // namespace detail

/// The transport of an MPI communicator: a handle, cheap to copy. Works on duplicates of the
/// communicator, so its messages never meet the trainer's.
///
/// Cost: what the MPI library makes of MPI_Ialltoall, MPI_Iallgather, MPI_Iallreduce. Throws
/// transport_error with MPI's own text for every code but MPI_SUCCESS, and when a collective is not
/// done in time: the error names the ranks that are in none (stopped, gone, or elsewhere). Then the
/// job cannot go on, and MPI may still use the buffers: end it, by MPI_Abort, and restart it from a
/// checkpoint.
class mpi {
  using kind = detail::mpi_group::kind;

 public:
  /// Collective over `communicator`. A collective may take `timeout`; 0: for ever.
  explicit mpi(MPI_Comm communicator, std::chrono::milliseconds timeout = std::chrono::minutes(10))
      : group_(checked(communicator, timeout), timeout) {}

  /// @{
  /// See Transport.
  [[nodiscard]] int rank() const { return group_.rank(); }
  [[nodiscard]] int size() const { return group_.size(); }

  void all_to_all(const void* send, void* receive, std::size_t slot_bytes) {
    start_all_to_all(send, receive, slot_bytes).wait();
  }
  void all_gather(const void* send, void* receive, std::size_t slot_bytes) {
    start_all_gather(send, receive, slot_bytes).wait();
  }
  /// @}
  /// By MPI_Iallreduce. Without a timeout, or where memory may be a device's, which that need not
  /// take, by MPI_Allreduce, which took half as long in Open MPI 4: all ranks meet before, in time
  /// or not, but one that is lost inside of it leaves the others waiting.
  void all_reduce_sum(float* data, std::size_t n) { reduce(data, n, MPI_FLOAT, MPI_SUM); }
  /// The same of bf16, by an operation of its own: MPI has no such type.
  void all_reduce_sum(bf16* data, std::size_t n) {
    MPI_Op sum = MPI_OP_NULL;
    group_.check(MPI_Op_create(&detail::mpi_add_halves, 1, &sum), "MPI_Op_create");
    reduce(data, n, MPI_UINT16_T, sum);  // one that fails may still be at work, and keeps it
    group_.check(MPI_Op_free(&sum), "MPI_Op_free");
  }

  /// Collective, does not wait: all ranks start all their all_to_alls in the same order, and so
  /// their all_gathers; the two need no common order. The buffers stay untouched until the request
  /// is done.
  [[nodiscard]] mpi_request start_all_to_all(const void* send, void* receive,
                                             std::size_t slot_bytes) {
    if (slot_bytes == 0) return mpi_request(group_);
    detail::mpi_slot slot(group_, slot_bytes);
    const int n = slot.count();
    MPI_Datatype type = slot.type();
    return start(std::move(slot), "MPI_Ialltoall", [&](MPI_Request* request) {
      return MPI_Ialltoall(send, n, type, receive, n, type, group_.comm(kind::scatters), request);
    });
  }
  /// Collective, does not wait: as start_all_to_all.
  [[nodiscard]] mpi_request start_all_gather(const void* send, void* receive,
                                             std::size_t slot_bytes) {
    if (slot_bytes == 0) return mpi_request(group_);
    detail::mpi_slot slot(group_, slot_bytes);
    const int n = slot.count();
    MPI_Datatype type = slot.type();
    return start(std::move(slot), "MPI_Iallgather", [&](MPI_Request* request) {
      return MPI_Iallgather(send, n, type, receive, n, type, group_.comm(kind::gathers), request);
    });
  }

  /// Collective over all ranks, waits: the transport over the ranks that gave the same color,
  /// ordered by key, then rank. Throws invalid_input, on all ranks, for a negative color.
  [[nodiscard]] mpi split(int color, int key) const {
    group_.meet("split");
    int least = 0;
    group_.check(MPI_Allreduce(&color, &least, 1, MPI_INT, MPI_MIN, group_.comm(kind::gathers)),
                 "MPI_Allreduce");
    if (least < 0) {  // MPI would fail on that rank alone, or give it no communicator
      throw invalid_input(detail::message("mpi: split: a rank has color ", least,
                                          "; must not be negative", group_.suffix()));
    }
    MPI_Comm part = MPI_COMM_NULL;
    group_.check(MPI_Comm_split(group_.comm(kind::gathers), color, key, &part), "MPI_Comm_split");
    mpi own(detail::mpi_group(part, group_.timeout(), &group_));
    MPI_Comm_free(&part);
    return own;
  }

  /// Collective over all ranks, waits: how many ranks each node has. Throws transport_error, on all
  /// ranks, when nodes have different numbers of ranks or the ranks of a node are not contiguous.
  [[nodiscard]] int ranks_per_node() const {
    group_.meet("ranks_per_node");
    MPI_Comm shared = MPI_COMM_NULL;
    group_.check(MPI_Comm_split_type(group_.comm(kind::gathers), MPI_COMM_TYPE_SHARED, rank(),
                                     MPI_INFO_NULL, &shared),
                 "MPI_Comm_split_type");
    detail::mpi_node mine{0, rank(), rank()};
    const int own = rank();
    group_.check(MPI_Comm_size(shared, &mine.size), "MPI_Comm_size");
    group_.check(MPI_Allreduce(&own, &mine.first, 1, MPI_INT, MPI_MIN, shared), "MPI_Allreduce");
    group_.check(MPI_Allreduce(&own, &mine.last, 1, MPI_INT, MPI_MAX, shared), "MPI_Allreduce");
    MPI_Comm_free(&shared);
    std::vector<detail::mpi_node> nodes(static_cast<std::size_t>(size()));
    mpi(*this).all_gather(&mine, nodes.data(), sizeof mine);
    return detail::ranks_per_node(nodes, group_.suffix());
  }

  /// May the buffers lie in a CUDA device's memory?
  [[nodiscard]] bool device_aware() const {
#if defined(MPIX_CUDA_AWARE_SUPPORT) && MPIX_CUDA_AWARE_SUPPORT
    return MPIX_Query_cuda_support() == 1;
#else
    return false;
#endif
  }

 private:
  template <class T>
  void reduce(T* data, std::size_t n, MPI_Datatype type, MPI_Op sum) {
    constexpr std::size_t most = INT_MAX;
    const bool blocks = group_.timeout().count() == 0 || device_aware();
    if (n > 0 && blocks) group_.meet("MPI_Allreduce");
    for (std::size_t done = 0; done < n; done += most) {
      const int count = static_cast<int>(n - done < most ? n - done : most);
      const MPI_Comm comm = group_.comm(kind::gathers);
      if (blocks) {
        group_.check(MPI_Allreduce(MPI_IN_PLACE, data + done, count, type, sum, comm),
                     "MPI_Allreduce");
        continue;
      }
      start(detail::mpi_slot(group_, sizeof(T)), "MPI_Iallreduce", [&](MPI_Request* request) {
        return MPI_Iallreduce(MPI_IN_PLACE, data + done, count, type, sum, comm, request);
      }).wait();
    }
  }
  explicit mpi(detail::mpi_group group) : group_(std::move(group)) {}

  template <class Call>
  [[nodiscard]] mpi_request start(detail::mpi_slot slot, const char* name, const Call& call) {
    group_.require_whole();
    MPI_Request request = MPI_REQUEST_NULL;
    group_.check(call(&request), name);
    return {group_, std::move(slot), request, name};
  }
  /// All ranks have come to it, in time.
  static MPI_Comm checked(MPI_Comm communicator, std::chrono::milliseconds timeout) {
    const auto check = [](int code, const char* call) {
      if (code != MPI_SUCCESS) detail::fail_mpi(code, call, "");
    };
    int initialised = 0;
    check(MPI_Initialized(&initialised), "MPI_Initialized");
    if (initialised == 0) {
      throw transport_error(detail::message("mpi: call MPI_Init before building a transport"));
    }
    int finalised = 0;
    check(MPI_Finalized(&finalised), "MPI_Finalized");
    if (finalised != 0) throw transport_error(detail::message("mpi: MPI_Finalize was called"));
    if (communicator == MPI_COMM_NULL) {  // MPI itself would abort the program
      throw transport_error(detail::message("mpi: the communicator is MPI_COMM_NULL"));
    }
    const auto start = std::chrono::steady_clock::now();
    MPI_Request all_here = MPI_REQUEST_NULL;
    check(MPI_Ibarrier(communicator, &all_here), "MPI_Ibarrier");
    for (int done = 0; done == 0;) {
      check(MPI_Test(&all_here, &done, MPI_STATUS_IGNORE), "MPI_Test");
      if (done == 0 && timeout.count() > 0 && std::chrono::steady_clock::now() - start > timeout) {
        throw transport_error(detail::message("mpi: after ", timeout.count(), " ms not all ranks ",
                                              "of the communicator build a transport on it"));
      }
      std::this_thread::yield();
    }
    return communicator;
  }

  detail::mpi_group group_;
};

static_assert(StartingTransport<mpi> && SplittingTransport<mpi> && NodeAwareTransport<mpi> &&
              DeviceAwareTransport<mpi>);

}  // namespace onebit::inline v0_2
