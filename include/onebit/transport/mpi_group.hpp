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

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <onebit/core/error.hpp>
#include <onebit/core/number_text.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

/// MPI communicators with time-outs: a failed collective throws an error that names missing ranks.
namespace onebit { inline namespace v0_3 { namespace detail {

[[noreturn]] inline void fail_mpi(int code, const char* call, const std::string& suffix) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw transport_error(error_text("mpi: ", call, " failed with code ", code, ": ",
                                   std::string(text, static_cast<std::size_t>(length)), suffix));
}

/// Duplicates of a communicator, shared by copies of the group; MPI errors become exceptions. Ranks
/// may interleave scatters and gathers in different orders (one rank announces buckets early), so
/// each kind has a communicator. Notes about waiting ranks are messages, which no collective meets.
/// Error handlers are set on these duplicates alone: those of others belong to the trainer.
class mpi_group {
 public:
  using clock = std::chrono::steady_clock;
  enum kind : std::size_t { scatters, gathers };

  /// Duplicates `base`. Collective over `base`. `whole`: the group that this one was made from, or
  /// null. Error messages number ranks as in the first group that splits started from.
  mpi_group(MPI_Comm base, std::chrono::milliseconds timeout, const mpi_group* whole = nullptr)
      : shared_(std::make_shared<shared>(base, timeout)) {
    shared& s = *shared_;
    s.n_whole = whole == nullptr ? s.size : whole->shared_->n_whole;
    const int own = whole == nullptr ? s.rank : whole->name(whole->rank());
    s.names.resize(static_cast<std::size_t>(s.size));
    require(MPI_Allgather(&own, 1, MPI_INT, s.names.data(), 1, MPI_INT, comm(gathers)),
            "MPI_Allgather");
  }

  [[nodiscard]] MPI_Comm comm(kind k) const { return shared_->comms[k]; }
  [[nodiscard]] int rank() const { return shared_->rank; }
  [[nodiscard]] int size() const { return shared_->size; }
  [[nodiscard]] std::chrono::milliseconds timeout() const { return shared_->timeout; }
  [[nodiscard]] std::string suffix() const { return rank_suffix(name(rank()), shared_->n_whole); }
  [[nodiscard]] bool is_broken() const { return !shared_->broken.empty(); }

  void require(int code, const char* call) const {
    if (code != MPI_SUCCESS) fail_mpi(code, call, suffix());
  }
  /// Throws transport_error if an earlier collective was given up. Call before each new one.
  void require_usable() const {
    if (is_broken()) throw transport_error(shared_->broken);
  }
  /// Waits for a request of this group. Throws transport_error if the request fails or exceeds the
  /// time-out. After a time-out the error names the ranks that wait in no collective, and ranks
  /// that wait in another call. All ranks that wait in this group then give up together.
  void wait(MPI_Request& request, const char* call) const {
    const auto start = clock::now();
    int done = 0;
    for (std::uint32_t spins = 0;; ++spins) {
      finished(MPI_Test(&request, &done, MPI_STATUS_IGNORE), request, call);
      if (done != 0) return;
      if (spins % 32 != 31) continue;
      const auto waited = clock::now() - start;
      if (waited < std::chrono::milliseconds(100)) {
        std::this_thread::yield();
        continue;
      }
      answer_others(call);
      if (shared_->timeout.count() > 0 && waited > shared_->timeout) give_up(call);
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
  [[nodiscard]] bool test(MPI_Request& request, const char* call) const {
    int done = 0;
    finished(MPI_Test(&request, &done, MPI_STATUS_IGNORE), request, call);
    return done != 0;
  }
  /// Waits until all ranks have called this. Collective. Throws transport_error on a time-out.
  void barrier(const char* call) const {
    require_usable();
    MPI_Request request = MPI_REQUEST_NULL;
    require(MPI_Ibarrier(comm(gathers), &request), "MPI_Ibarrier");
    wait(request, call);
    // a late rank completes the barrier, but finds notes of ranks that have given up
    note n{};
    int from = 0;
    while (shared_->receive(n, from)) {
      if (n.what != note::answer) break_off(call, make_note(note::question, call), gave_up(from));
    }
  }

 private:
  /// Note between ranks: question (who waits, and where?), answer, or verdict (missing ranks).
  struct note {
    enum : int { question, answer, verdict } what;
    int n_missing;
    std::array<int, 8> missing;
    char call[24];
  };
  struct shared {
    std::array<MPI_Comm, 2> comms{MPI_COMM_NULL, MPI_COMM_NULL};
    int rank = 0, size = 1, n_whole = 1;
    std::vector<int> names;  ///< number of each rank in error messages
    std::chrono::milliseconds timeout;
    int asker = -1;           ///< last rank that sent a question; -1: none
    clock::time_point asked;  ///< time of the first question
    std::string broken;       ///< error after which no collective can be used; empty: none

    shared(MPI_Comm base, std::chrono::milliseconds t) : timeout(t) {
      MPI_Comm_rank(base, &rank);
      MPI_Comm_size(base, &size);
      for (MPI_Comm& c : comms) {
        if (const int code = MPI_Comm_dup(base, &c); code != MPI_SUCCESS) {
          c = MPI_COMM_NULL;
          free_comms();
          fail_mpi(code, "MPI_Comm_dup",
                   "; each optimizer, and each transport or part of one, holds 2 communicators "
                   "until it is destroyed, and MPICH has 2045 in all" +
                       rank_suffix(rank, size));
        }
        MPI_Comm_set_errhandler(c, MPI_ERRORS_RETURN);
        base = c;  // the next error comes back here
      }
    }
    shared(const shared&) = delete;
    shared& operator=(const shared&) = delete;
    ~shared() {
      int over = 0;
      // abandoned collectives may still be in progress
      if (!broken.empty() || MPI_Finalized(&over) != MPI_SUCCESS || over != 0) return;
      // MPICH ends a program that frees a communicator with messages that nobody received. Ranks
      // that have given up sent some long ago; a probe need not find what it has just taken in.
      note n{};
      int from = 0;
      for (int misses = 0; misses < 10;) misses = receive(n, from) ? 0 : misses + 1;
      free_comms();
    }
    void free_comms() {
      for (MPI_Comm& c : comms) {
        if (c != MPI_COMM_NULL) MPI_Comm_free(&c);
      }
    }
    /// Receives a note, if there is one.
    [[nodiscard]] bool receive(note& n, int& from) const {
      int there = 0;
      MPI_Status status;
      MPI_Iprobe(MPI_ANY_SOURCE, 0, comms[scatters], &there, &status);
      if (there == 0) return false;
      from = status.MPI_SOURCE;
      MPI_Recv(&n, sizeof n, MPI_BYTE, from, 0, comms[scatters], MPI_STATUS_IGNORE);
      return true;
    }
  };

  [[nodiscard]] int name(int r) const {
    const auto i = static_cast<std::size_t>(r);
    return i < shared_->names.size() ? shared_->names[i] : r;
  }
  void finished(int code, MPI_Request& request, const char* call) const {
    if (code == MPI_SUCCESS) return;
    request = MPI_REQUEST_NULL;  // its state is undefined: never wait for it again
    require(code, call);
  }
  void send(int to, const note& n) const {
    // usually so small that MPI has sent it when Isend returns; otherwise the buffer is leaked
    auto kept = std::make_unique<note>(n);
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Isend(kept.get(), sizeof n, MPI_BYTE, to, 0, comm(scatters), &request);
    int done = 0;
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
    if (done == 0) (void)kept.release();
  }
  [[nodiscard]] static note make_note(int what, const char* call) {
    note n{};
    n.what = static_cast<decltype(n.what)>(what);
    std::copy_n(call, (std::min)(std::string(call).size(), sizeof n.call - 1), n.call);
    return n;
  }
  /// Answers questions of ranks that give up. Throws transport_error when a verdict arrives.
  void answer_others(const char* call) const {
    note n{};
    int from = 0;
    while (shared_->receive(n, from)) {
      if (n.what == note::verdict) break_off(call, n, found_by(from));
      if (n.what != note::question) continue;
      send(from, make_note(note::answer, call));
      if (shared_->asker < 0) shared_->asked = clock::now();
      shared_->asker = from;
    }
    // the asker sends its verdict to all ranks that it heard; without one, give up after 1 s
    if (shared_->asker >= 0 && clock::now() - shared_->asked > std::chrono::seconds(1)) {
      break_off(call, make_note(note::question, call), gave_up(shared_->asker));
    }
  }
  [[nodiscard]] std::string gave_up(int r) const { return named(r) + " has given up before"; }
  [[noreturn]] void give_up(const char* call) const {
    std::vector<std::string> calls(static_cast<std::size_t>(size()));
    calls[static_cast<std::size_t>(rank())] = call;
    for (int r = 0; r < size(); ++r) {
      if (r != rank()) send(r, make_note(note::question, call));
    }
    const auto end = clock::now() + std::chrono::milliseconds(500);
    note n{};
    int from = 0;
    std::size_t n_known = 1;
    while (clock::now() < end && n_known < calls.size()) {
      if (!shared_->receive(n, from)) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        continue;
      }
      if (n.what == note::question) send(from, make_note(note::answer, call));
      if (n.what == note::verdict) break_off(call, n, found_by(from));
      auto& known = calls[static_cast<std::size_t>(from)];
      if (known.empty()) ++n_known;
      known = n.call;
    }
    note found = make_note(note::verdict, call);
    std::string others;
    for (int r = 0; r < size(); ++r) {
      const std::string& its = calls[static_cast<std::size_t>(r)];
      if (its.empty()) {
        if (found.n_missing < static_cast<int>(found.missing.size())) {
          found.missing[static_cast<std::size_t>(found.n_missing)] = r;
        }
        ++found.n_missing;
      } else if (its != call) {
        others += "; rank " + number_text(name(r)) + " waits in " + its;
      }
    }
    for (int r = 0; r < size(); ++r) {
      if (r != rank() && !calls[static_cast<std::size_t>(r)].empty()) send(r, found);
    }
    break_off(call, found, others);
  }
  [[nodiscard]] std::string found_by(int r) const { return ", as " + named(r) + " found"; }
  [[nodiscard]] std::string named(int r) const { return "rank " + number_text(name(r)); }
  [[noreturn]] void break_off(const char* call, const note& found, const std::string& more) const {
    std::string who = found.what == note::question ? ""
                      : found.n_missing == 0       ? "all ranks wait"
                                                   : "no answer (dead, stuck or elsewhere) from:";
    const int n_named = (std::min)(found.n_missing, static_cast<int>(found.missing.size()));
    for (int i = 0; i < n_named; ++i) {
      who += " rank " + number_text(name(found.missing[static_cast<std::size_t>(i)]));
    }
    if (found.n_missing > n_named) {
      who += " and " + number_text(found.n_missing - n_named) + " more";
    }
    shared_->broken = error_text(
        "mpi: gave up ", call, " after ", shared_->timeout.count(), " ms; ", who, more,
        ". This transport cannot be used any more: call MPI_Abort (MPI_Finalize may hang), and ",
        "restart from a checkpoint", suffix());
    throw transport_error(shared_->broken);
  }

  std::shared_ptr<shared> shared_;
};

/// A slot as MPI count and datatype: MPI_BYTE if the size fits in an int, else one element of a
/// type made of 2^20-byte blocks and a rest.
class mpi_slot {
 public:
  mpi_slot(const mpi_group& group, std::size_t bytes) {
    if (bytes <= INT_MAX) {
      count_ = static_cast<int>(bytes);
      return;
    }
    constexpr std::size_t block = std::size_t{1} << 20;
    MPI_Datatype block_type = MPI_DATATYPE_NULL;
    group.require(MPI_Type_contiguous(static_cast<int>(block), MPI_BYTE, &block_type),
                  "MPI_Type_contiguous");
    int lengths[2] = {static_cast<int>(bytes / block), static_cast<int>(bytes % block)};
    MPI_Aint displacements[2] = {0, static_cast<MPI_Aint>(bytes / block * block)};
    MPI_Datatype types[2] = {block_type, MPI_BYTE};
    group.require(MPI_Type_create_struct(2, lengths, displacements, types, &type_),
                  "MPI_Type_create_struct");
    group.require(MPI_Type_free(&block_type), "MPI_Type_free");
    group.require(MPI_Type_commit(&type_), "MPI_Type_commit");
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
  /// Gives the type up to MPI: it is never freed.
  void release_to_mpi() noexcept { owned_ = false; }
  [[nodiscard]] int count() const { return count_; }
  [[nodiscard]] MPI_Datatype type() const { return type_; }

 private:
  int count_ = 1;
  MPI_Datatype type_ = MPI_BYTE;
  bool owned_ = false;
};

/// Ranks on the node of one rank: their number, the first and the last.
struct mpi_node {
  int size = 1, first = 0, last = 0;
};

/// Returns the number of ranks per node; `nodes[r]` is the node of rank r. Throws transport_error
/// if the number differs between nodes, or if the ranks of a node are not contiguous.
[[nodiscard]] inline int ranks_per_node(const std::vector<mpi_node>& nodes,
                                        const std::string& suffix) {
  for (std::size_t r = 0; r < nodes.size(); ++r) {
    const mpi_node& node = nodes[r];
    if (node.size != nodes[0].size) {
      throw transport_error(error_text("mpi: ranks_per_node: the node of rank 0 has ",
                                       nodes[0].size, " ranks, the node of rank ", r, " has ",
                                       node.size,
                                       "; must be equal: start L on each, by mpirun --map-by "
                                       "ppr:L:node, mpiexec -ppn L or srun --ntasks-per-node=L",
                                       suffix));
    }
    if (node.last - node.first + 1 != node.size) {
      throw transport_error(error_text(
          "mpi: ranks_per_node: the node of rank ", r, " has ", node.size, " of the ranks ",
          node.first, " to ", node.last, "; must be contiguous: place them by mpirun --map-by ppr:",
          node.size, ":node, mpiexec -ppn ", node.size, " or srun --distribution=block", suffix));
    }
  }
  return nodes[0].size;
}

}}}  // namespace onebit::detail
