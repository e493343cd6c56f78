// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <onebit/transport/mpi_group.hpp>
#if defined(OPEN_MPI) && __has_include(<mpi-ext.h>)
#include <mpi-ext.h>  // MPIX_Query_cuda_support
#endif
// MPICH declares it since 4.0, Intel MPI at least since 2021.18; the header of MPI's ABI does not.
#if (defined(MPIX_CUDA_AWARE_SUPPORT) && MPIX_CUDA_AWARE_SUPPORT) || \
    (defined(MPICH_NUMVERSION) && MPICH_NUMVERSION >= 40000000) ||   \
    (defined(I_MPI_NUMVERSION) && I_MPI_NUMVERSION >= 20211800000)
#define ONEBIT_MPI_TELLS_CUDA 1
#endif

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdlib>
#include <onebit/concepts/transport.hpp>
#include <onebit/core/element_types.hpp>
#include <onebit/core/error.hpp>
#include <onebit/transport/communicator.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

/// Ranks as MPI processes. Includes mpi.h, which no other public header does. Call MPI_Init first.
namespace onebit { inline namespace v0_3 {

namespace detail {

/// Handle of a started collective. MPI owns the buffers until `wait` returns or `test` returns
/// true. Many MPI libraries make progress only inside these calls. The destructor waits if the
/// collective is not done, at most for the transport's time-out.
class mpi_request {
 public:
  /// Constructs a request that is done.
  explicit mpi_request(detail::mpi_group group) : group_(std::move(group)), slot_(group_, 0) {}
  /// @{
  /// Constructed by the transport. A moved-from request is done.
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

  /// Waits until the collective is done. Throws transport_error; the request is done then.
  void wait() {
    if (request_ != MPI_REQUEST_NULL) abandon_on_error([&] { group_.wait(request_, call_); });
  }
  /// Returns true if the collective is done; non-blocking. Throws transport_error as `wait` does.
  [[nodiscard]] bool test() {
    if (request_ == MPI_REQUEST_NULL) return true;
    bool done = false;
    abandon_on_error([&] { done = group_.test(request_, call_); });
    return done;
  }

 private:
  /// Calls f. If f throws, abandons the request, and leaves request and datatype to MPI.
  template <class F>
  void abandon_on_error(const F& f) {
    try {
      f();
    } catch (...) {
      if (request_ != MPI_REQUEST_NULL) slot_.release_to_mpi();
      request_ = MPI_REQUEST_NULL;
      throw;
    }
  }
  void finish() noexcept {
    int over = 0;
    if (request_ == MPI_REQUEST_NULL || MPI_Finalized(&over) != MPI_SUCCESS || over != 0) return;
    if (group_.is_broken()) {
      slot_.release_to_mpi();
      request_ = MPI_REQUEST_NULL;
    }
    try {
      wait();
    } catch (...) {
    }
  }

  detail::mpi_group group_;
  detail::mpi_slot slot_;  ///< kept until the collective ends: some libraries read its type
  MPI_Request request_ = MPI_REQUEST_NULL;
  const char* call_ = "";
};

inline void mpi_add_halves(void* from, void* to, int* n, MPI_Datatype*) {
  const auto* a = static_cast<const bf16*>(from);
  auto* b = static_cast<bf16*>(to);
  for (int i = 0; i < *n; ++i) b[i] = to_bf16(to_float(a[i]) + to_float(b[i]));
}

/// If MPI_COMM_WORLD has one rank while the environment tells of a launcher that started several,
/// returns why this is wrong; else an empty text. Each process would train alone, unnoticed.
[[nodiscard]] inline std::string wrong_launcher() {
  int size = 0;
  if (MPI_Comm_size(MPI_COMM_WORLD, &size) != MPI_SUCCESS || size != 1) return {};
  const auto number_in = [](const char* name) {
    const char* const value = std::getenv(name);
    std::string_view text(value == nullptr ? "" : value);
    unsigned long n = 0;
    return detail::take_number(text, n) ? n : 0UL;
  };
  const char* const open_mpi = "OMPI_COMM_WORLD_SIZE";
  const char* const hydra = "PMI_SIZE";             // the launcher of MPICH and Intel MPI
  const char* const srun = "SLURM_STEP_NUM_TASKS";  // counts for less: mpirun may use it beneath
  if (number_in(open_mpi) == 1 || number_in(hydra) == 1) return {};  // this rank alone was started
  const char* const found = number_in(open_mpi) > 1 ? open_mpi
                            : number_in(hydra) > 1  ? hydra
                                                    : srun;
  const unsigned long n_started = number_in(found);
  if (n_started <= 1) return {};
  char library[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(library, &length);
  const std::string text(library, static_cast<std::size_t>(length));
  return "MPI_COMM_WORLD has 1 rank, but the launcher started " + detail::number_text(n_started) +
         " processes (" + found + "): it is not the launcher of the MPI library that the program " +
         "runs on, " + text.substr(0, text.find_first_of(",\n")) +
         ". Start the job with that library's own mpirun" +
         (found == srun ? ", or with srun --mpi=pmi2 or --mpi=pmix, whichever it was built for"
                        : "") +
         "; if each process shall train alone, pass MPI_COMM_SELF";
}

}  // namespace detail

/// Transport over an MPI communicator: a handle, cheap to copy. Holds two duplicates of the
/// communicator, so its messages never match those of the trainer. Each optimizer that is built
/// from it takes two of its own (`duplicate`).
///
/// Cost: that of MPI_Ialltoall, MPI_Iallgather, MPI_Iallreduce. Throws transport_error, with the
/// message of MPI, for every code other than MPI_SUCCESS. (MPI libraries need not notice that ranks
/// pass other sizes. Open MPI 4 and Intel MPI give errors of started calls to the error handler of
/// MPI_COMM_WORLD, which by default ends the job.) Also throws if a collective exceeds the
/// time-out: the error names the ranks that do not wait in any collective of this transport
/// (stopped, dead, or busy). After a time-out the job cannot continue, and MPI may still use the
/// buffers: end the job with MPI_Abort and std::_Exit, and restart it from a checkpoint.
///
/// Threads: one thread at a time uses an object, its copies and its requests, and MPI's level must
/// allow that thread's calls. With MPI_THREAD_MULTIPLE several threads may each use an optimizer of
/// their own, in any order; build these one after another, in the same order on all ranks. In one
/// thread the order of calls that start something is free, but those that wait for other ranks
/// (step; ready with one bucket, and in dense steps) need one order. Changes nothing of the
/// process: no error handler of a communicator that is not its own.
class mpi {
  using kind = detail::mpi_group::kind;

 public:
  /// Collective over `communicator`. `timeout`: longest wait in a collective; 0: unlimited. Throws
  /// transport_error for an intercommunicator, and if MPI_COMM_WORLD has one rank although the
  /// launcher started several (an mpirun of another MPI library), unless `communicator` is
  /// MPI_COMM_SELF. Sums 256 KB over the ranks, and throws on a rank whose sum is wrong: MPI
  /// libraries may lose messages of ranks in containers of their own, without an error.
  explicit mpi(MPI_Comm communicator, std::chrono::milliseconds timeout = std::chrono::minutes(10))
      : group_(checked(communicator, timeout), timeout) {
    require_delivery();
  }

  /// @{
  /// Operations of the Transport concept.
  [[nodiscard]] int rank() const { return group_.rank(); }
  [[nodiscard]] int size() const { return group_.size(); }

  void all_to_all(const void* send, void* receive, std::size_t slot_bytes) {
    start_all_to_all(send, receive, slot_bytes).wait();
  }
  void all_gather(const void* send, void* receive, std::size_t slot_bytes) {
    start_all_gather(send, receive, slot_bytes).wait();
  }
  /// @}
  /// Sums host memory with MPI_Iallreduce.
  void all_reduce_sum(float* data, std::size_t n) { sum(data, n, false); }
  /// Sums bf16, with an MPI_Op of our own: MPI libraries that have a bf16 type round it otherwise,
  /// or cannot sum it.
  void all_reduce_sum(bf16* data, std::size_t n) { sum(data, n, false); }
  /// Sums device memory, or host memory, with MPI_Allreduce, if device_aware(): libraries that take
  /// device memory there need not take it in MPI_Iallreduce. The time-out covers only a barrier
  /// before the call: a rank that is lost inside MPI_Allreduce leaves the others waiting.
  template <class T>
  void all_reduce_sum_on_device(T* data, std::size_t n) {
    sum(data, n, true);
  }

  /// Starts an all_to_all. Collective, non-blocking. All ranks must start their all_to_alls in one
  /// order and their all_gathers in one order; the order between the two kinds is free. The buffers
  /// must not be touched until the request is done.
  [[nodiscard]] detail::mpi_request start_all_to_all(const void* send, void* receive,
                                                     std::size_t slot_bytes) {
    if (slot_bytes == 0) return detail::mpi_request(group_);
    detail::mpi_slot slot(group_, slot_bytes);
    const int n = slot.count();
    MPI_Datatype type = slot.type();
    return start(std::move(slot), "MPI_Ialltoall", [&](MPI_Request* request) {
      return MPI_Ialltoall(send, n, type, receive, n, type, group_.comm(kind::scatters), request);
    });
  }
  /// Starts an all_gather, under the conditions of start_all_to_all. Collective, non-blocking.
  [[nodiscard]] detail::mpi_request start_all_gather(const void* send, void* receive,
                                                     std::size_t slot_bytes) {
    if (slot_bytes == 0) return detail::mpi_request(group_);
    detail::mpi_slot slot(group_, slot_bytes);
    const int n = slot.count();
    MPI_Datatype type = slot.type();
    return start(std::move(slot), "MPI_Iallgather", [&](MPI_Request* request) {
      return MPI_Iallgather(send, n, type, receive, n, type, group_.comm(kind::gathers), request);
    });
  }

  /// Returns the transport of the ranks that passed the same color, ordered by key, then rank.
  /// Collective over all ranks, blocking. Throws invalid_input, on all ranks, for a negative color.
  [[nodiscard]] mpi split(int color, int key) const {
    group_.barrier("split");
    int least = 0;
    group_.require(MPI_Allreduce(&color, &least, 1, MPI_INT, MPI_MIN, group_.comm(kind::gathers)),
                   "MPI_Allreduce");
    if (least < 0) {  // MPI would fail on that rank alone, or give it no communicator
      throw invalid_input(detail::error_text("mpi: split: a rank has color ", least,
                                             "; must not be negative", group_.suffix()));
    }
    MPI_Comm part = MPI_COMM_NULL;
    group_.require(MPI_Comm_split(group_.comm(kind::gathers), color, key, &part), "MPI_Comm_split");
    mpi own(detail::mpi_group(part, group_.timeout(), &group_));
    MPI_Comm_free(&part);
    return own;
  }

  /// Returns a transport of the same ranks, on two communicators of its own: the order of calls
  /// between it and this one is free. Collective, blocking. Throws transport_error, also if MPI has
  /// no more communicators.
  [[nodiscard]] mpi duplicate() const {
    group_.barrier("duplicate");
    return mpi(detail::mpi_group(group_.comm(kind::gathers), group_.timeout(), &group_));
  }

  /// Returns the number of ranks per node. Collective over all ranks, blocking. Throws
  /// transport_error, on all ranks, if nodes differ in it or their ranks are not contiguous.
  [[nodiscard]] int ranks_per_node() const {
    group_.barrier("ranks_per_node");
    MPI_Comm shared = MPI_COMM_NULL;
    group_.require(MPI_Comm_split_type(group_.comm(kind::gathers), MPI_COMM_TYPE_SHARED, rank(),
                                       MPI_INFO_NULL, &shared),
                   "MPI_Comm_split_type");
    detail::mpi_node mine{0, rank(), rank()};
    const int own = rank();
    group_.require(MPI_Comm_size(shared, &mine.size), "MPI_Comm_size");
    group_.require(MPI_Allreduce(&own, &mine.first, 1, MPI_INT, MPI_MIN, shared), "MPI_Allreduce");
    group_.require(MPI_Allreduce(&own, &mine.last, 1, MPI_INT, MPI_MAX, shared), "MPI_Allreduce");
    MPI_Comm_free(&shared);
    std::vector<detail::mpi_node> nodes(static_cast<std::size_t>(size()));
    mpi(*this).all_gather(&mine, nodes.data(), sizeof mine);
    return detail::ranks_per_node(nodes, group_.suffix());
  }

  /// Returns true if buffers may be in the memory of a CUDA device.
  [[nodiscard]] bool device_aware() const {
#ifdef ONEBIT_MPI_TELLS_CUDA
    return MPIX_Query_cuda_support() == 1;
#else
    return false;
#endif
  }

 private:
  /// Throws transport_error unless messages of the other ranks arrive. MPICH 5 between user
  /// namespaces reports success, and delivers nothing: averages would be of what lay there.
  [[gnu::cold]] void require_delivery() {
    const auto number_of = [](int rank) { return static_cast<float>(rank % 64 + 1); };
    std::vector<float> sums(std::size_t{1} << 16U, number_of(rank()));
    all_reduce_sum(sums.data(), sums.size());
    float wanted = 0;
    for (int r = 0; r < size(); ++r) wanted += number_of(r);
    const auto lost = static_cast<std::size_t>(
        std::count_if(sums.begin(), sums.end(), [&](float x) { return x != wanted; }));
    if (lost == 0) return;
    throw transport_error(detail::error_text(
        "mpi: MPI_Iallreduce reported success, but ", lost, " of ", sums.size(), " sums over ",
        size(),
        " ranks are wrong: MPI loses messages. Where each rank has a container of its own, "
        "let them share user and PID namespaces; with MPICH, MPIR_CVAR_CH4_CMA_ENABLE=0 helps "
        "[rank ",
        rank(), "/", size(), "]"));
  }
  void sum(float* data, std::size_t n, bool blocks) { reduce(data, n, MPI_FLOAT, MPI_SUM, blocks); }
  void sum(bf16* data, std::size_t n, bool blocks) {
    MPI_Op add = MPI_OP_NULL;
    group_.require(MPI_Op_create(&detail::mpi_add_halves, 1, &add), "MPI_Op_create");
    // if this throws, MPI may still use `add`: not freed
    reduce(data, n, MPI_UINT16_T, add, blocks);
    group_.require(MPI_Op_free(&add), "MPI_Op_free");
  }
  template <class T>
  void reduce(T* data, std::size_t n, MPI_Datatype type, MPI_Op sum, bool blocks) {
    constexpr std::size_t most = INT_MAX;
    if (n > 0 && blocks) group_.barrier("MPI_Allreduce");
    for (std::size_t done = 0; done < n; done += most) {
      const int count = static_cast<int>(n - done < most ? n - done : most);
      const MPI_Comm comm = group_.comm(kind::gathers);
      if (blocks) {
        group_.require(MPI_Allreduce(MPI_IN_PLACE, data + done, count, type, sum, comm),
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
  [[nodiscard]] detail::mpi_request start(detail::mpi_slot slot, const char* name,
                                          const Call& call) {
    group_.require_usable();
    MPI_Request request = MPI_REQUEST_NULL;
    group_.require(call(&request), name);
    return {group_, std::move(slot), request, name};
  }
  /// Returns `communicator` when all its ranks have called this. Throws transport_error otherwise.
  static MPI_Comm checked(MPI_Comm communicator, std::chrono::milliseconds timeout) {
    const auto require = [](int code, const char* call) {
      if (code != MPI_SUCCESS) detail::fail_mpi(code, call, "");
    };
    int initialised = 0;
    require(MPI_Initialized(&initialised), "MPI_Initialized");
    if (initialised == 0) {
      throw transport_error(detail::error_text("mpi: call MPI_Init before building a transport"));
    }
    int finalised = 0;
    require(MPI_Finalized(&finalised), "MPI_Finalized");
    if (finalised != 0) throw transport_error(detail::error_text("mpi: MPI_Finalize was called"));
    if (communicator == MPI_COMM_NULL) {  // MPI itself would abort the program
      throw transport_error(detail::error_text("mpi: the communicator is MPI_COMM_NULL"));
    }
    int is_inter = 0;
    require(MPI_Comm_test_inter(communicator, &is_inter), "MPI_Comm_test_inter");
    if (is_inter != 0) {  // its rank and size are those of one side, its collectives go across
      throw transport_error(detail::error_text("mpi: the communicator is an intercommunicator; ",
                                               "MPI_Intercomm_merge makes one of all its ranks"));
    }
    if (communicator != MPI_COMM_SELF) {
      const std::string wrong = detail::wrong_launcher();
      if (!wrong.empty()) throw transport_error(detail::error_text("mpi: ", wrong));
    }
    const auto start = std::chrono::steady_clock::now();
    MPI_Request all_here = MPI_REQUEST_NULL;
    require(MPI_Ibarrier(communicator, &all_here), "MPI_Ibarrier");
    for (int done = 0; done == 0;) {
      require(MPI_Test(&all_here, &done, MPI_STATUS_IGNORE), "MPI_Test");
      if (done == 0 && timeout.count() > 0 && std::chrono::steady_clock::now() - start > timeout) {
        throw transport_error(detail::error_text("mpi: after ", timeout.count(),
                                                 " ms not all ranks ",
                                                 "of the communicator build a transport on it"));
      }
      std::this_thread::yield();
    }
    return communicator;
  }

  detail::mpi_group group_;
};

static_assert(detail::StartingTransport<mpi> && detail::SplittingTransport<mpi> &&
              detail::NodeAwareTransport<mpi> && detail::DeviceAwareTransport<mpi> &&
              detail::DuplicatingTransport<mpi>);

#if defined(ONEBIT_COMPILED_MPI)  // see compiled.hpp
extern template class detail::transport_holder<mpi>;
extern template communicator::communicator(mpi transport);
#endif

}}  // namespace onebit
