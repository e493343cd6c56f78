// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

#include "nccl/stand_in.hpp"

#include <cstdlib>
#include <cstring>
#include <utility>

namespace {

onebit_test::stand_in& here() { return onebit_test::stand_in::of_this_rank(); }

void note(const char* call, cudaStream_t stream) {
  here().calls.push_back(std::string(call) +
                         (stream == onebit_test::user_stream() ? " user" : " side"));
}

/// What a call answers; does `f` unless it is to fail.
template <class F>
ncclResult_t answer(const F& f) {
  const ncclResult_t code = std::exchange(here().next, ncclSuccess);
  if (code != ncclSuccess) return code;
  f();
  here().questions_left = here().in_progress;
  return here().in_progress > 0 ? ncclInProgress : ncclSuccess;
}

std::size_t bytes(std::size_t count, ncclDataType_t type) {
  return count * (type == ncclUint32 ? 4 : 1);
}

template <class T>
cudaError_t make(T* p, int& alive) {
  *p = reinterpret_cast<T>(std::malloc(1));
  ++alive;
  return cudaSuccess;
}

template <class T>
cudaError_t drop(T p, int& alive) {
  std::free(reinterpret_cast<void*>(p));
  --alive;
  return cudaSuccess;
}

}  // namespace

onebit_test::stand_in& onebit_test::stand_in::of_this_rank() {
  thread_local stand_in own;
  return own;
}

extern "C" {

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "the device has come off the bus"; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) { return make(s, here().streams); }
cudaError_t cudaStreamDestroy(cudaStream_t s) { return drop(s, here().streams); }
cudaError_t cudaStreamQuery(cudaStream_t) { return here().stuck ? cudaErrorNotReady : here().cuda; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  *status = here().capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t, unsigned) {
  note("wait", s);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) { return make(e, here().events); }
cudaError_t cudaEventDestroy(cudaEvent_t e) { return drop(e, here().events); }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t s) {
  note("record", s);
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t) { return here().stuck ? cudaErrorNotReady : here().cuda; }
cudaError_t cudaMalloc(void** p, size_t n) {
  *p = std::malloc(n);
  ++here().allocations;
  return cudaSuccess;
}
cudaError_t cudaFree(void* p) { return drop(p, here().allocations); }
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t n, cudaMemcpyKind, cudaStream_t) {
  std::memcpy(to, from, n);
  return cudaSuccess;
}

const char* ncclGetErrorString(ncclResult_t) { return "a word of NCCL"; }
const char* ncclGetLastError(ncclComm_t) { return "its last words"; }
ncclResult_t ncclGroupStart() {
  ++here().open_groups;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  --here().open_groups;
  const ncclComm_t comm = std::exchange(here().in_group, nullptr);
  if (comm == nullptr) return ncclSuccess;
  return answer([&] { comm->ranks.all_to_all(here().from, here().to, here().slot_bytes); });
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* state) {
  *state = here().on_the_way;
  if (here().questions_left > 0) {
    --here().questions_left;
    *state = ncclInProgress;
  }
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->ranks.rank();
  return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  *count = comm->ranks.size();
  return ncclSuccess;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t, int* device) {
  *device = 0;
  return std::exchange(here().next, ncclSuccess);
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  here().aborted.push_back(comm);
  if (here().open_groups != 1) ++here().aborts_outside_of_a_group;
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  ++here().destroyed;
  delete comm;
  return ncclSuccess;
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part, ncclConfig_t*) {
  return answer([&] { *part = new ncclComm{comm->ranks.split(color, key)}; });
}
#if NCCL_VERSION_CODE >= 22700
ncclResult_t ncclCommShrink(ncclComm_t comm, int*, int, ncclComm_t* part, ncclConfig_t*,
                            int flags) {
  here().shrink_flags = flags;
  if ((flags & NCCL_SHRINK_ABORT) != 0) {
    here().stuck = false;
    here().on_the_way = ncclSuccess;
  }
  return answer([&] { *part = new ncclComm{comm->ranks.split(0, comm->ranks.rank())}; });
}
#endif
ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  note("gather", stream);
  return answer([&] { comm->ranks.all_gather(from, to, bytes(count, type)); });
}
ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  note("reduce", stream);
  if (from != to || op != ncclSum) return ncclInvalidArgument;
  if (type == ncclBfloat16) {
    return answer([&] { comm->ranks.all_reduce_sum(static_cast<onebit::bf16*>(to), count); });
  }
  if (type != ncclFloat) return ncclInvalidArgument;
  return answer([&] { comm->ranks.all_reduce_sum(static_cast<float*>(to), count); });
}
#if NCCL_VERSION_CODE >= 22800
ncclResult_t ncclAlltoAll(const void* from, void* to, size_t count, ncclDataType_t type,
                          ncclComm_t comm, cudaStream_t stream) {
  note("alltoall", stream);
  return answer([&] { comm->ranks.all_to_all(from, to, bytes(count, type)); });
}
#else
ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  if (here().open_groups != 1) return ncclInvalidUsage;
  if (peer == 0) {
    note("alltoall", stream);
    here().from = from;
    here().slot_bytes = bytes(count, type);
    here().in_group = comm;
  }
  return ncclSuccess;
}
ncclResult_t ncclRecv(void* to, size_t, ncclDataType_t, int peer, ncclComm_t, cudaStream_t) {
  if (peer == 0) here().to = to;
  return ncclSuccess;
}
#endif

}  // extern "C"
