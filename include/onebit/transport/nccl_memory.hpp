// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <onebit/error.hpp>
#include <onebit/transport/nccl.hpp>
#include <string>
#include <utility>
#include <vector>

/// Device memory whose messages NCCL can send from where they lie.
namespace onebit::inline v0_1 {

/// Options of `nccl_memory`.
struct nccl_memory_options {
  /// False: messages are memory as any other.
  bool registers = true;
  /// A message of fewer bytes is not registered: NCCL's memory comes in pages of 2 MiB.
  std::size_t at_least = std::size_t{1} << 18U;
  /// An allocation or a registration that NCCL refuses is an error. Otherwise such a message lies
  /// in other memory, or travels through NCCL's own buffers.
  bool must_register = false;
};

/// A stream-ordered resource, for cuda_resource_of: messages come from ncclMemAlloc, and are
/// registered (ncclCommRegister) with the transport's communicator and with all that are split from
/// it before; everything else comes from `upstream`, a cuda_memory_resource. A handle.
///
///     onebit::nccl comm(communicator, stream);
///     onebit::nccl_memory messages(comm, onebit::default_cuda_memory());
///     onebit::cuda_resource_of memory(messages);
///     onebit::cuda backend(stream, memory);
///
/// Off unless it is used. What NCCL makes of registered memory (no copy into its own buffers, sums
/// in switches) hangs on the network; nobody has measured it here. Memory is given back after the
/// stream is done, so that this waits. From NCCL 2.19 on; before, nothing is registered.
template <class Upstream>
class nccl_memory {
 public:
  /// One thread at a time uses it, as the transport. `upstream` must outlive what comes from it.
  /// Throws transport_error where it must register, and NCCL is too old for that.
  nccl_memory(const nccl& transport, Upstream& upstream, nccl_memory_options options = {})
      : state_(std::make_shared<state>(state{transport.member_, &upstream, options, {}})) {
    if (options.registers && options.must_register && !can_register) {
      throw transport_error(detail::message("nccl_memory: NCCL ", NCCL_VERSION_CODE,
                                            " registers no memory; 2.19 is the first that does",
                                            transport.member_->suffix()));
    }
  }

  /// What is no message.
  void* allocate_async(std::size_t bytes, std::size_t, cudaStream_t stream) {
    return state_->upstream->allocate(bytes, stream);
  }
  /// A message. Throws transport_error where it must be registered, and NCCL refuses.
  void* allocate_message_async(std::size_t bytes, std::size_t, cudaStream_t stream) {
    void* p = nullptr;
    if (can_register && state_->options.registers && bytes >= state_->options.at_least) {
      p = allocate_registered(bytes);
    }
    return p != nullptr ? p : state_->upstream->allocate(bytes, stream);
  }
  /// What either of them gave.
  void deallocate_async(void* p, std::size_t bytes, std::size_t, cudaStream_t stream) noexcept {
    const auto found = state_->messages.find(p);
    if (found == state_->messages.end()) return state_->upstream->deallocate(p, bytes, stream);
    const message_entry known = std::move(found->second);
    state_->messages.erase(found);
    give_back(p, known);
  }
  /// Registers with another transport from now on, as for what comes after nccl::shrink.
  void follow(const nccl& transport) { state_->member = transport.member_; }

  /// How many messages are registered now, with one communicator or more.
  [[nodiscard]] std::size_t n_registered() const {
    std::size_t n = 0;
    for (const auto& [p, known] : state_->messages) n += known.handles.empty() ? 0 : 1;
    return n;
  }

 private:
  static constexpr bool can_register = NCCL_VERSION_CODE >= 21900;
  struct message_entry {
    std::shared_ptr<detail::nccl_member> member;
    std::vector<std::pair<ncclComm_t, void*>> handles;
  };
  struct state {
    std::shared_ptr<detail::nccl_member> member;
    Upstream* upstream;
    nccl_memory_options options;
    std::map<void*, message_entry> messages;
  };

#if NCCL_VERSION_CODE >= 21900
  /// Null where NCCL refuses, and may.
  void* allocate_registered(std::size_t bytes) {
    detail::nccl_member& member = *state_->member;
    detail::nccl_family& family = *member.family;
    if (state_->options.must_register) family.check_alive(member.suffix());
    if (family.failed()) return nullptr;
    const detail::cuda_device_scope current(family.device());
    void* p = nullptr;
    if (refuses(member.comm, ncclMemAlloc(&p, bytes), "ncclMemAlloc")) return nullptr;
    message_entry known{state_->member, {}};
    try {
      for (const ncclComm_t comm : family.comms()) {
        void* handle = nullptr;
        const ncclResult_t code = ncclCommRegister(comm, p, bytes, &handle);
        if (code == ncclInProgress) {
          family.check(comm, code, "ncclCommRegister", member.suffix());
        } else if (refuses(comm, code, "ncclCommRegister")) {
          continue;
        }
        known.handles.emplace_back(comm, handle);
      }
      state_->messages.emplace(p, known);
    } catch (...) {
      give_back(p, known);
      throw;
    }
    return p;
  }
  [[nodiscard]] bool refuses(ncclComm_t comm, ncclResult_t code, const char* call) const {
    if (code == ncclSuccess) return false;
    if (!state_->options.must_register) return true;
    throw transport_error(detail::message(
        "nccl_memory: ", detail::nccl_family::failure(comm, code, call), state_->member->suffix()));
  }
  static void give_back(void* p, const message_entry& known) noexcept {
    detail::nccl_family& family = *known.member->family;
    const detail::cuda_device_scope current(family.device());
    try {
      family.wait(known.member->suffix());
    } catch (...) {
      family.end();  // or a kernel might still use it
    }
    for (const auto& [comm, handle] : known.handles) {
      if (family.watches(comm)) (void)ncclCommDeregister(comm, handle);
    }
    (void)ncclMemFree(p);
  }
#else
  static void* allocate_registered(std::size_t) { return nullptr; }
  static void give_back(void*, const message_entry&) noexcept {}
#endif

  std::shared_ptr<state> state_;
};

}  // namespace onebit::inline v0_1
