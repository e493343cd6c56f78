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

#include <climits>
#include <cstddef>
#include <memory>
#include <onebit/concepts.hpp>
#include <onebit/error.hpp>
#include <string>

/// Ranks as MPI processes. The only header that includes mpi.h; needs an initialised MPI.
namespace onebit {

/// The transport of an MPI communicator: a handle, cheap to copy. Works on a duplicate of the
/// communicator, so its messages never meet the trainer's.
///
/// Cost: what the MPI library makes of MPI_Alltoall, MPI_Allgather and MPI_Allreduce. Throws
/// transport_error with MPI's own text for every code but MPI_SUCCESS.
class mpi {
 public:
  /// Collective over `communicator`.
  explicit mpi(MPI_Comm communicator) {
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
    comm_ = std::shared_ptr<void>(new MPI_Comm(own), [](void* p) {
      auto* comm = static_cast<MPI_Comm*>(p);
      int over = 0;
      if (MPI_Finalized(&over) == MPI_SUCCESS && over == 0) MPI_Comm_free(comm);
      delete comm;
    });
    check(MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check(MPI_Comm_rank(own, &rank_), "MPI_Comm_rank");
    check(MPI_Comm_size(own, &size_), "MPI_Comm_size");
  }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  void all_to_all(const void* send, void* receive, std::size_t slot_bytes) {
    if (slot_bytes == 0) return;
    const span_type slot(*this, slot_bytes);
    check(MPI_Alltoall(send, slot.count(), slot.type(), receive, slot.count(), slot.type(), comm()),
          "MPI_Alltoall");
  }

  void all_gather(const void* send, void* receive, std::size_t slot_bytes) {
    if (slot_bytes == 0) return;
    const span_type slot(*this, slot_bytes);
    check(
        MPI_Allgather(send, slot.count(), slot.type(), receive, slot.count(), slot.type(), comm()),
        "MPI_Allgather");
  }

  void all_reduce_sum(float* data, std::size_t n) {
    constexpr std::size_t most = INT_MAX;
    for (std::size_t done = 0; done < n; done += most) {
      const int count = static_cast<int>(n - done < most ? n - done : most);
      check(MPI_Allreduce(MPI_IN_PLACE, data + done, count, MPI_FLOAT, MPI_SUM, comm()),
            "MPI_Allreduce");
    }
  }

 private:
  /// A slot as (count, type): bytes while they fit an int, else one contiguous type of 2^20-byte
  /// blocks and a rest.
  class span_type {
   public:
    span_type(const mpi& owner, std::size_t bytes) {
      if (bytes <= INT_MAX) {
        count_ = static_cast<int>(bytes);
        return;
      }
      constexpr std::size_t block = std::size_t{1} << 20;
      MPI_Datatype block_type = MPI_DATATYPE_NULL;
      owner.check(MPI_Type_contiguous(static_cast<int>(block), MPI_BYTE, &block_type),
                  "MPI_Type_contiguous");
      int lengths[2] = {static_cast<int>(bytes / block), static_cast<int>(bytes % block)};
      MPI_Aint displacements[2] = {0, static_cast<MPI_Aint>(bytes / block * block)};
      MPI_Datatype types[2] = {block_type, MPI_BYTE};
      owner.check(MPI_Type_create_struct(2, lengths, displacements, types, &type_),
                  "MPI_Type_create_struct");
      owner.check(MPI_Type_free(&block_type), "MPI_Type_free");
      owner.check(MPI_Type_commit(&type_), "MPI_Type_commit");
      owned_ = true;
    }
    span_type(const span_type&) = delete;
    span_type& operator=(const span_type&) = delete;
    ~span_type() {
      if (owned_) MPI_Type_free(&type_);
    }
    [[nodiscard]] int count() const { return count_; }
    [[nodiscard]] MPI_Datatype type() const { return type_; }

   private:
    int count_ = 1;
    MPI_Datatype type_ = MPI_BYTE;
    bool owned_ = false;
  };

  [[nodiscard]] MPI_Comm comm() const { return *static_cast<MPI_Comm*>(comm_.get()); }

  void check(int code, const char* call) const {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(code, text, &length);
    throw transport_error(detail::message("mpi: ", call, " failed with code ", code, ": ",
                                          std::string(text, static_cast<std::size_t>(length)),
                                          detail::rank_suffix(rank_, size_)));
  }

  std::shared_ptr<void> comm_;
  int rank_ = 0;
  int size_ = 1;
};

static_assert(Transport<mpi>);

}  // namespace onebit
