// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>
#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>  // MPIX_Query_cuda_support
#endif

#include <climits>
#include <cstddef>
#include <memory>
#include <onebit/concepts.hpp>
#include <onebit/error.hpp>
#include <string>
#include <utility>
#include <vector>

/// Ranks as MPI processes. The only header that includes mpi.h; needs an initialised MPI.
namespace onebit {

namespace detail {

/// A communicator of our own, shared by all that use it, and its error codes as exceptions.
class mpi_group {
 public:
  /// Takes `own`, which is freed with the last copy.
  explicit mpi_group(MPI_Comm own)
      : comm_(new MPI_Comm(own), [](MPI_Comm* comm) {
          int over = 0;
          if (MPI_Finalized(&over) == MPI_SUCCESS && over == 0) MPI_Comm_free(comm);
          delete comm;
        }) {
    check(MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check(MPI_Comm_rank(own, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(own, &size_), "MPI_Comm_size");
  }

  [[nodiscard]] MPI_Comm comm() const { return *comm_; }
  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] std::string suffix() const { return rank_suffix(rank_, size_); }

  void check(int code, const char* call) const {
    if (code != MPI_SUCCESS) fail(code, call, suffix());
  }
  [[noreturn]] static void fail(int code, const char* call, const std::string& suffix) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    throw transport_error(message("mpi: ", call, " failed with code ", code, ": ",
                                  std::string(text, static_cast<std::size_t>(length)), suffix));
  }

 private:
  std::shared_ptr<MPI_Comm> comm_;
  int rank_ = 0;
  int size_ = 1;
};

/// A slot as (count, type): bytes while they fit an int, else one contiguous type of 2^20-byte
/// blocks and a rest.
class mpi_slot {
 public:
  mpi_slot(const mpi_group& group, std::size_t bytes) {
    if (bytes <= INT_MAX) {
      count_ = static_cast<int>(bytes);
      return;
    }
    constexpr std::size_t block = std::size_t{1} << 20;
    MPI_Datatype block_type = MPI_DATATYPE_NULL;
    group.check(MPI_Type_contiguous(static_cast<int>(block), MPI_BYTE, &block_type),
                "MPI_Type_contiguous");
    int lengths[2] = {static_cast<int>(bytes / block), static_cast<int>(bytes % block)};
    MPI_Aint displacements[2] = {0, static_cast<MPI_Aint>(bytes / block * block)};
    MPI_Datatype types[2] = {block_type, MPI_BYTE};
    group.check(MPI_Type_create_struct(2, lengths, displacements, types, &type_),
                "MPI_Type_create_struct");
    group.check(MPI_Type_free(&block_type), "MPI_Type_free");
    group.check(MPI_Type_commit(&type_), "MPI_Type_commit");
    owned_ = true;
  }
  mpi_slot(mpi_slot&& other) noexcept
      : count_(other.count_), type_(other.type_), owned_(std::exchange(other.owned_, false)) {}
  mpi_slot& operator=(mpi_slot&& other) noexcept {
    std::swap(count_, other.count_);
    std::swap(type_, other.type_);
    std::swap(owned_, other.owned_);
    return *this;
  }
  ~mpi_slot() {
    if (owned_) MPI_Type_free(&type_);
  }
  [[nodiscard]] int count() const { return count_; }
  [[nodiscard]] MPI_Datatype type() const { return type_; }

 private:
  int count_ = 1;
  MPI_Datatype type_ = MPI_BYTE;
  bool owned_ = false;
};

/// Which ranks a rank shares a node with: how many, the first and the last.
struct mpi_node {
  int size = 1, first = 0, last = 0;
};

/// How many ranks every node has; `nodes[r]` is rank r's. Throws transport_error when they differ
/// or a node's ranks are not contiguous.
[[nodiscard]] inline int ranks_per_node(const std::vector<mpi_node>& nodes,
                                        const std::string& suffix) {
  for (std::size_t r = 0; r < nodes.size(); ++r) {
    const mpi_node& node = nodes[r];
    if (node.size != nodes[0].size) {
      throw transport_error(message("mpi: ranks_per_node: the node of rank 0 has ", nodes[0].size,
                                    " ranks, the node of rank ", r, " has ", node.size,
                                    "; must be equal", suffix));
    }
    if (node.last - node.first + 1 != node.size) {
      throw transport_error(message("mpi: ranks_per_node: the node of rank ", r, " has ", node.size,
                                    " of the ranks ", node.first, " to ", node.last,
                                    "; must be contiguous (map ranks by node)", suffix));
    }
  }
  return nodes[0].size;
}

}  // namespace detail

/// A collective that was started: wait for it, or test it now and then, which is also what lets
/// many MPI libraries make progress. Its buffers are MPI's until then. Destroyed unfinished, it
/// waits.
///
/// Open MPI 4 shows its errors to the handler of MPI_COMM_WORLD first, which ends the program
/// unless the trainer has set MPI_ERRORS_RETURN there too.
class mpi_request {
 public:
  /// Done already.
  explicit mpi_request(detail::mpi_group group) : group_(std::move(group)), slot_(group_, 0) {}
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

  /// Waits until it is done. Throws transport_error, once.
  void wait() {
    if (request_ == MPI_REQUEST_NULL) return;
    checked(MPI_Wait(&request_, MPI_STATUS_IGNORE));
  }
  /// Does not wait; true when it is done. Throws transport_error, once.
  [[nodiscard]] bool test() {
    if (request_ == MPI_REQUEST_NULL) return true;
    int done = 0;
    checked(MPI_Test(&request_, &done, MPI_STATUS_IGNORE));
    return done != 0;
  }

 private:
  void checked(int code) {
    if (code == MPI_SUCCESS) return;
    request_ = MPI_REQUEST_NULL;  // MPI does not say what became of it: never wait for it again
    group_.check(code, call_);
  }
  void finish() noexcept {
    int over = 0;
    if (request_ == MPI_REQUEST_NULL || MPI_Finalized(&over) != MPI_SUCCESS || over != 0) return;
    MPI_Wait(&request_, MPI_STATUS_IGNORE);
    request_ = MPI_REQUEST_NULL;
  }

  detail::mpi_group group_;
  detail::mpi_slot slot_;  ///< outlives the collective: some libraries look at the type until then
  MPI_Request request_ = MPI_REQUEST_NULL;
  const char* call_ = "";
};

/// The transport of an MPI communicator: a handle, cheap to copy. Works on a duplicate of the
/// communicator, so its messages never meet the trainer's.
///
/// Cost: what the MPI library makes of MPI_Alltoall, MPI_Allgather, MPI_Allreduce, MPI_Ialltoall
/// and MPI_Iallgather. Throws transport_error with MPI's own text for every code but MPI_SUCCESS.
class mpi {
 public:
  /// Collective over `communicator`.
  explicit mpi(MPI_Comm communicator) : group_(duplicate(communicator)) {}

  [[nodiscard]] int rank() const { return group_.rank(); }
  [[nodiscard]] int size() const { return group_.size(); }

  void all_to_all(const void* send, void* receive, std::size_t slot_bytes) {
    if (slot_bytes == 0) return;
    const detail::mpi_slot slot(group_, slot_bytes);
    group_.check(MPI_Alltoall(send, slot.count(), slot.type(), receive, slot.count(), slot.type(),
                              group_.comm()),
                 "MPI_Alltoall");
  }

  void all_gather(const void* send, void* receive, std::size_t slot_bytes) {
    if (slot_bytes == 0) return;
    const detail::mpi_slot slot(group_, slot_bytes);
    group_.check(MPI_Allgather(send, slot.count(), slot.type(), receive, slot.count(), slot.type(),
                               group_.comm()),
                 "MPI_Allgather");
  }

  void all_reduce_sum(float* data, std::size_t n) {
    constexpr std::size_t most = INT_MAX;
    for (std::size_t done = 0; done < n; done += most) {
      const int count = static_cast<int>(n - done < most ? n - done : most);
      group_.check(
          MPI_Allreduce(MPI_IN_PLACE, data + done, count, MPI_FLOAT, MPI_SUM, group_.comm()),
          "MPI_Allreduce");
    }
  }

  /// Collective, does not wait: all ranks start all their collectives in the same order. The
  /// buffers stay untouched until the request is done.
  [[nodiscard]] mpi_request start_all_to_all(const void* send, void* receive,
                                             std::size_t slot_bytes) {
    if (slot_bytes == 0) return mpi_request(group_);
    detail::mpi_slot slot(group_, slot_bytes);
    MPI_Request request = MPI_REQUEST_NULL;
    group_.check(MPI_Ialltoall(send, slot.count(), slot.type(), receive, slot.count(), slot.type(),
                               group_.comm(), &request),
                 "MPI_Ialltoall");
    return {group_, std::move(slot), request, "MPI_Ialltoall"};
  }

  /// Collective, does not wait: as start_all_to_all.
  [[nodiscard]] mpi_request start_all_gather(const void* send, void* receive,
                                             std::size_t slot_bytes) {
    if (slot_bytes == 0) return mpi_request(group_);
    detail::mpi_slot slot(group_, slot_bytes);
    MPI_Request request = MPI_REQUEST_NULL;
    group_.check(MPI_Iallgather(send, slot.count(), slot.type(), receive, slot.count(), slot.type(),
                                group_.comm(), &request),
                 "MPI_Iallgather");
    return {group_, std::move(slot), request, "MPI_Iallgather"};
  }

  /// Collective over all ranks, waits: the transport over the ranks that gave the same color,
  /// ordered by key, then rank. Throws invalid_input, on all ranks, for a negative color.
  [[nodiscard]] mpi split(int color, int key) const {
    int least = 0;
    group_.check(MPI_Allreduce(&color, &least, 1, MPI_INT, MPI_MIN, group_.comm()),
                 "MPI_Allreduce");
    if (least < 0) {  // MPI would fail on that rank alone, or give it no communicator
      throw invalid_input(detail::message("mpi: split: a rank has color ", least,
                                          "; must not be negative", group_.suffix()));
    }
    MPI_Comm part = MPI_COMM_NULL;
    group_.check(MPI_Comm_split(group_.comm(), color, key, &part), "MPI_Comm_split");
    return mpi(detail::mpi_group(part));
  }

  /// Collective over all ranks, waits: how many ranks each node has. Throws transport_error, on all
  /// ranks, when nodes have different numbers of ranks or the ranks of a node are not contiguous.
  [[nodiscard]] int ranks_per_node() const {
    MPI_Comm shared = MPI_COMM_NULL;
    group_.check(
        MPI_Comm_split_type(group_.comm(), MPI_COMM_TYPE_SHARED, rank(), MPI_INFO_NULL, &shared),
        "MPI_Comm_split_type");
    const detail::mpi_group node(shared);
    detail::mpi_node mine{node.size(), rank(), rank()};
    const int own = rank();
    node.check(MPI_Allreduce(&own, &mine.first, 1, MPI_INT, MPI_MIN, shared), "MPI_Allreduce");
    node.check(MPI_Allreduce(&own, &mine.last, 1, MPI_INT, MPI_MAX, shared), "MPI_Allreduce");
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
  explicit mpi(detail::mpi_group group) : group_(std::move(group)) {}

  static MPI_Comm duplicate(MPI_Comm communicator) {
    const auto check = [](int code, const char* call) {
      if (code != MPI_SUCCESS) detail::mpi_group::fail(code, call, "");
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
    MPI_Comm own = MPI_COMM_NULL;
    check(MPI_Comm_dup(communicator, &own), "MPI_Comm_dup");
    return own;
  }

  detail::mpi_group group_;
};

static_assert(StartingTransport<mpi> && SplittingTransport<mpi> && NodeAwareTransport<mpi> &&
              DeviceAwareTransport<mpi>);

}  // namespace onebit
