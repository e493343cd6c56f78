// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/Stream.h>
#include <c10/core/StreamGuard.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <onebit/concepts/backend.hpp>
#include <onebit/concepts/transport.hpp>
#include <onebit/core/error.hpp>
#include <onebit/core/number_text.hpp>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

/// Transport over torch's process groups: Gloo, NCCL, MPI or another backend of libtorch. Needs
/// torch's headers, like torch/torch.hpp; no other header of the library includes this one.
namespace onebit { inline namespace v0_3 {

namespace detail {

/// Returns the text of an exception, without the backtrace that torch adds.
[[nodiscard, gnu::cold]] inline std::string torch_text(const std::exception& e) {
  const auto* const torch = dynamic_cast<const ::c10::Error*>(&e);
  return torch != nullptr ? torch->what_without_backtrace() : e.what();
}

/// Two process groups over the same ranks. c10d matches the calls of a group by their order, but
/// all_to_alls and all_gathers may interleave differently on each rank (one may announce buckets
/// earlier than another), so each kind has its own group.
struct c10d_group {
  using backend_pointer = ::c10::intrusive_ptr<::c10d::Backend>;
  using store_pointer = ::c10::intrusive_ptr<::c10d::Store>;

  backend_pointer scatters, gathers;    ///< for all_to_all; for all_gather and allreduce
  store_pointer store;                  ///< for the groups of `split`; null: cannot be split
  std::optional<::c10::Stream> stream;  ///< of the device that holds the buffers; empty: host
  int rank = 0, size = 1;
  int name = 0, n_whole = 1;  ///< rank and size in the trainer's group, for error messages
  int n_splits = 0;           ///< number of splits so far
  std::string broken;         ///< text of the last failure; empty: none, collectives may be used

  [[nodiscard]] std::string suffix() const { return rank_suffix(name, n_whole); }

  /// Calls f. Converts torch's exceptions to a transport_error that names the call and the rank,
  /// and sets `broken`.
  template <class F>
  auto guarded(const char* call, const F& f) {
    try {
      return f();
    } catch (const error&) {
      throw;
    } catch (const std::exception& e) {
      broken = error_text("c10d: ", call, " failed: ", torch_text(e),
                          ". This transport is of no use any more: end the job, restart it from a "
                          "checkpoint",
                          suffix());
    }
    throw transport_error(broken);
  }
  /// Returns a tensor that views n elements at p.
  [[nodiscard]] at::Tensor view(const void* p, std::size_t n, at::ScalarType type) const {
    const at::Device device = stream ? stream->device() : at::Device(at::kCPU);
    return at::from_blob(const_cast<void*>(p), {static_cast<std::int64_t>(n)},
                         at::TensorOptions().dtype(type).device(device));
  }
};

// The names of these two collectives differ between versions of torch.
template <class B>
[[nodiscard]] auto c10d_all_gather(B& b, at::Tensor& to, at::Tensor& from) {
  if constexpr (requires { b.all_gather_single(to, from); }) {
    return b.all_gather_single(to, from);
  } else {
    return b._allgather_base(to, from);
  }
}
template <class B>
[[nodiscard]] auto c10d_all_to_all(B& b, at::Tensor& to, at::Tensor& from) {
  std::vector<std::int64_t> equal;  // empty: slots of one size
  if constexpr (requires { b.all_to_all_single(to, from, equal, equal); }) {
    return b.all_to_all_single(to, from, equal, equal);
  } else {
    return b.alltoall_base(to, from, equal, equal);
  }
}

/// Handle of a started collective, whose buffers must not be touched until the collective is done.
/// The destructor waits until then, at most the group's time-out, and ignores errors.
class c10d_request {
 public:
  using work_pointer = ::c10::intrusive_ptr<::c10d::Work>;
  /// Constructs the handle of a finished collective.
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

  /// Waits until the collective is done; on a device only the transport's stream waits. Throws
  /// transport_error on the first call after a failure; later calls do nothing.
  void wait() {
    if (!work_) return;
    const work_pointer work = std::move(work_);
    group_->guarded(call_, [&] {
      std::optional<::c10::StreamGuard> on;
      if (group_->stream) on.emplace(*group_->stream);
      if (!work->wait()) throw std::runtime_error("it was aborted");
    });
  }
  /// Returns true if the collective is done, without waiting. Throws like `wait`.
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

}  // namespace detail

/// Transport over a c10d::ProcessGroup or c10d::Backend: a handle, cheap to copy. Splits the given
/// group into two groups of its own, so that its messages never mix with the trainer's. Each
/// optimizer that is built from it takes two of its own (`duplicate`).
///
/// Collectives cost as much as the backend's all_to_all_single, all_gather_single and allreduce.
/// The allreduce does not sum in rank order. The group's time-outs apply. Throws transport_error
/// with torch's own text. The groups cannot be used after that, as in torch, and the job cannot go
/// on: end it, and restart it from a checkpoint.
///
/// With a stream, buffers are in the memory of its device (NCCL), and collectives are ordered with
/// the work of the stream, which must be the stream of the CUDA backend.
class c10d {
  using group_type = detail::c10d_group;

 public:
  using backend_pointer = group_type::backend_pointer;  ///< pointer to a c10d::Backend
  using store_pointer = group_type::store_pointer;      ///< pointer to a c10d::Store

  /// Splits `backend`. Collective over its ranks; blocks. The ranks share `store`, on which no
  /// other group may have been built (give a PrefixStore of a store that has one). Throws
  /// invalid_input if the backend cannot be split: use `over` then.
  c10d(const backend_pointer& backend, const store_pointer& store,
       std::optional<::c10::Stream> stream = std::nullopt)
      : group_(std::make_shared<group_type>()) {
    group_type whole;
    whole.scatters = whole.gathers = backend;
    whole.stream = stream;
    whole.rank = whole.name = backend->getRank();
    whole.size = whole.n_whole = backend->getSize();
    whole.store = whole.guarded("its store", [&] {
      // all ranks build their k-th transport together, and each adds 1: the quotient is k
      const std::int64_t before = store->add("onebit/transports", 1) - 1;
      return named("onebit/" + detail::number_text(before / whole.size), store);
    });
    *group_ = part_of(whole, all_of(whole), "whole");
  }
  /// Splits the group's backend for the stream's device (without a stream: the CPU). Uses the
  /// group's store. Collective over the group; blocks.
  explicit c10d(const ::c10::intrusive_ptr<::c10d::ProcessGroup>& group,
                std::optional<::c10::Stream> stream = std::nullopt)
      : c10d(group->getBackend(stream ? stream->device_type() : at::kCPU), group->getStore(),
             stream) {}
  /// Returns a transport over two groups, for backends that cannot be split. Both must have the
  /// same ranks in the same order, and no other user. Throws invalid_input if their ranks or sizes
  /// differ. Not collective. `split` of this transport throws invalid_input.
  [[nodiscard]] static c10d over(const backend_pointer& scatters, const backend_pointer& gathers,
                                 std::optional<::c10::Stream> stream = std::nullopt) {
    group_type two;
    two.scatters = scatters;
    two.gathers = gathers;
    two.stream = stream;
    two.rank = two.name = scatters->getRank();
    two.size = two.n_whole = scatters->getSize();
    if (gathers->getSize() != two.size || gathers->getRank() != two.rank || scatters == gathers) {
      throw invalid_input(detail::error_text(
          "c10d: two groups of the same ranks are needed, but one is of ", two.size, " and one of ",
          gathers->getSize(), scatters == gathers ? ", and they are the same" : "", two.suffix()));
    }
    return c10d(std::move(two));
  }

  [[nodiscard]] int rank() const { return group_->rank; }  ///< number of this rank
  [[nodiscard]] int size() const { return group_->size; }  ///< number of ranks

  /// @{
  /// See Transport.
  void all_to_all(const void* send, void* receive, std::size_t slot_bytes) {
    start_all_to_all(send, receive, slot_bytes).wait();
  }
  void all_gather(const void* send, void* receive, std::size_t slot_bytes) {
    start_all_gather(send, receive, slot_bytes).wait();
  }
  void all_reduce_sum(float* data, std::size_t n) { reduce(data, n, at::kFloat); }
  /// @}
  /// Sums bf16 over the ranks. See HalfSummingTransport. torch's Gloo may reject bf16.
  void all_reduce_sum(bf16* data, std::size_t n) { reduce(data, n, at::kBFloat16); }

  /// Starts an all_to_all and does not wait. Collective: all ranks start their all_to_alls in the
  /// same order, and their all_gathers in the same order, but may interleave the two kinds
  /// differently. Leave the buffers alone until the request is done.
  [[nodiscard]] detail::c10d_request start_all_to_all(const void* send, void* receive,
                                                      std::size_t slot_bytes) {
    return start("all_to_all_single", send, n_ranks() * slot_bytes, receive, n_ranks() * slot_bytes,
                 [&](at::Tensor& from, at::Tensor& to) {
                   return detail::c10d_all_to_all(*group_->scatters, to, from);
                 });
  }
  /// Starts an all_gather. See start_all_to_all.
  [[nodiscard]] detail::c10d_request start_all_gather(const void* send, void* receive,
                                                      std::size_t slot_bytes) {
    return start("all_gather_single", send, slot_bytes, receive, n_ranks() * slot_bytes,
                 [&](at::Tensor& from, at::Tensor& to) {
                   return detail::c10d_all_gather(*group_->gathers, to, from);
                 });
  }
  /// Gathers host memory, also over a group that needs device memory. Collective; blocks.
  void host_all_gather(const void* send, void* receive, std::size_t slot_bytes) {
    if (!group_->stream) return all_gather(send, receive, slot_bytes);
    const ::c10::StreamGuard on(*group_->stream);
    const auto bytes = static_cast<std::int64_t>(slot_bytes);
    at::Tensor mine = at::from_blob(const_cast<void*>(send), {bytes}, at::kByte);
    const at::Tensor there = mine.to(group_->stream->device());
    const at::Tensor all = at::empty({size() * bytes}, there.options());
    all_gather(there.data_ptr(), all.data_ptr(), slot_bytes);
    std::memcpy(receive, all.cpu().data_ptr(), n_ranks() * slot_bytes);
  }
  /// Waits until all work of the stream is done; without a stream returns at once.
  void wait() {
    group_->guarded("wait", [&] {
      if (group_->stream) group_->stream->synchronize();
    });
  }

  /// Returns the transport over the ranks that gave the same color, ordered by key, then by rank.
  /// Collective over all ranks; blocks. Throws invalid_input, on all ranks, for a negative color.
  [[nodiscard]] c10d split(int color, int key) const {
    const std::array<int, 2> mine{color, key};
    std::vector<std::array<int, 2>> all(n_ranks());
    c10d(*this).host_all_gather(&mine, all.data(), sizeof mine);
    std::vector<int> ranks;
    for (int r = 0; r < size(); ++r) {
      const int of = all[static_cast<std::size_t>(r)][0];
      if (of < 0) {
        throw invalid_input(detail::error_text("c10d: split: a rank has color ", of,
                                               "; must not be negative", group_->suffix()));
      }
      if (of == color) ranks.push_back(r);
    }
    std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
      return all[static_cast<std::size_t>(a)][1] < all[static_cast<std::size_t>(b)][1];
    });
    return c10d(
        part_of(*group_, ranks,
                detail::number_text(group_->n_splits++) + "/" + detail::number_text(color)));
  }

  /// Returns a transport of the same ranks, over two groups of its own: the order of calls between
  /// it and this one is free. Returns this one again if its groups cannot be split (`over`), and
  /// with a stream, which orders the calls, and whose groups cost device memory. Collective;
  /// blocks.
  [[nodiscard]] c10d duplicate() const {
    if (group_->stream || !can_be_split(*group_)) return *this;
    return c10d(
        part_of(*group_, all_of(*group_), detail::number_text(group_->n_splits++) + "/duplicate"));
  }

  /// Returns the number of ranks of each node; ranks with equal host names are on one node.
  /// Collective over all ranks; blocks. Throws transport_error, on all ranks, if nodes have
  /// different numbers of ranks or the ranks of a node are not contiguous.
  [[nodiscard]] int ranks_per_node() const {
    std::array<char, 64> host{};
    if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '?';
    std::vector<std::array<char, 64>> hosts(n_ranks());
    c10d(*this).host_all_gather(host.data(), hosts.data(), host.size());
    std::size_t first_of_run = 0, per_node = 0;
    for (std::size_t r = 1; r <= hosts.size(); ++r) {
      if (r < hosts.size() && hosts[r] == hosts[first_of_run]) continue;
      const std::size_t n = r - first_of_run;
      const bool again =
          std::find(hosts.begin(), hosts.begin() + static_cast<long>(first_of_run),
                    hosts[first_of_run]) != hosts.begin() + static_cast<long>(first_of_run);
      if (again || (per_node != 0 && n != per_node)) {
        throw transport_error(detail::error_text(
            "c10d: ranks_per_node: ranks ", first_of_run, " to ", r - 1, " are on ",
            hosts[first_of_run].data(), again ? ", and others before them" : "",
            "; every node must have as many ranks as that of rank 0 (", per_node,
            "), one after the other", group_->suffix()));
      }
      per_node = n;
      first_of_run = r;
    }
    return static_cast<int>(per_node);
  }

 private:
  void reduce(void* data, std::size_t n, at::ScalarType type) {
    if (n == 0 || size() == 1) return;
    start("allreduce", [&] {
      std::vector<at::Tensor> values{group_->view(data, n, type)};
      return group_->gathers->allreduce(values);
    }).wait();
  }
  explicit c10d(group_type group) : group_(std::make_shared<group_type>(std::move(group))) {}

  [[nodiscard]] std::size_t n_ranks() const { return static_cast<std::size_t>(size()); }
  [[nodiscard]] static store_pointer named(const std::string& name, const store_pointer& store) {
    return ::c10::make_intrusive<::c10d::PrefixStore>(name, store);
  }
  [[nodiscard]] static bool can_be_split(const group_type& group) {
    return group.store && group.scatters->supportsSplitting();
  }
  /// Returns the numbers of all ranks of a group.
  [[nodiscard]] static std::vector<int> all_of(const group_type& group) {
    std::vector<int> all(static_cast<std::size_t>(group.size));
    for (std::size_t r = 0; r < all.size(); ++r) all[r] = static_cast<int>(r);
    return all;
  }
  /// Splits two groups of `ranks` off `whole`. Throws invalid_input if `whole` cannot be split.
  [[nodiscard, gnu::cold]] static group_type part_of(group_type& whole,
                                                     const std::vector<int>& ranks,
                                                     const std::string& name) {
    if (!can_be_split(whole)) {
      throw invalid_input(detail::error_text("c10d: backend ", whole.scatters->getBackendName(),
                                             whole.store ? "" : " without a store",
                                             " cannot be split: give two groups of the same ranks, "
                                             "c10d::over(scatters, gathers), and no "
                                             "hierarchy",
                                             whole.suffix()));
    }
    group_type part;
    part.store = named(name, whole.store);
    part.stream = whole.stream;
    part.n_whole = whole.n_whole;
    part.name = whole.name;
    part.size = static_cast<int>(ranks.size());
    part.rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), whole.rank) - ranks.begin());
    const auto make = [&](const char* kind, const backend_pointer& from) {
      return whole.guarded("split", [&] {
        const auto options = from->getBackendOptions()->clone();
        options->group_name = "onebit/" + name + kind;
        return from->split(named(kind, part.store), ranks, options);
      });
    };
    part.scatters = make("scatters", whole.scatters);
    part.gathers = make("gathers", whole.gathers);
    return part;
  }

  template <class Call>
  [[nodiscard]] detail::c10d_request start(const char* name, const Call& call) {
    if (!group_->broken.empty()) throw transport_error(group_->broken);
    return {group_,
            group_->guarded(name,
                            [&] {
                              std::optional<::c10::StreamGuard> on;
                              if (group_->stream) on.emplace(*group_->stream);
                              return call();
                            }),
            name};
  }
  template <class Call>
  [[nodiscard]] detail::c10d_request start(const char* name, const void* send, std::size_t n_send,
                                           void* receive, std::size_t n_receive, const Call& call) {
    if (n_receive == 0) return {};
    at::Tensor from = group_->view(send, n_send, at::kByte);
    at::Tensor to = group_->view(receive, n_receive, at::kByte);
    return start(name, [&] { return call(from, to); });
  }

  std::shared_ptr<group_type> group_;
};

static_assert(detail::StartingTransport<c10d> && detail::SplittingTransport<c10d> &&
              detail::NodeAwareTransport<c10d> && detail::DuplicatingTransport<c10d> &&
              detail::HostGatheringTransport<c10d> && detail::WaitingTransport<c10d>);

}}  // namespace onebit
