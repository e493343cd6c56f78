// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A warp without a GPU: 32 lanes as fibers on one thread, each with its own stack and locals, that
// wait for each other wherever a warp would. Lanes run one after the other between two such
// points, in rising and in falling order by turns, so code that lets one lane read what another
// writes without a sync gives wrong numbers here, as it may on a device.

#ifndef ONEBIT_TESTS_SUPPORT_EMULATED_WARP_HPP
#define ONEBIT_TESTS_SUPPORT_EMULATED_WARP_HPP

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <onebit/backend/cuda_lanes.hpp>
#include <onebit/kernel/launch.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ONEBIT_TESTS_ASAN 1
#endif
#if __has_feature(thread_sanitizer)
#define ONEBIT_TESTS_TSAN 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define ONEBIT_TESTS_ASAN 1
#endif
#if defined(__SANITIZE_THREAD__)
#define ONEBIT_TESTS_TSAN 1
#endif
#if defined(ONEBIT_TESTS_ASAN)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(ONEBIT_TESTS_TSAN)
#include <sanitizer/tsan_interface.h>
#endif
#if defined(__x86_64__) && !defined(ONEBIT_TESTS_ASAN) && !defined(ONEBIT_TESTS_TSAN)
#define ONEBIT_TESTS_OWN_SWITCH 1
#else
#include <ucontext.h>
#endif

namespace onebit_test {

#if defined(ONEBIT_TESTS_OWN_SWITCH)
/// Where a stack was left: as ucontext, that asks the kernel for the signal mask at each switch.
class stack_context {
 public:
  /// Will run body(), which never returns, on this stack.
  void make(std::byte* stack, std::size_t bytes, void (*body)()) {
    const auto top = (reinterpret_cast<std::uintptr_t>(stack) + bytes) & ~std::uintptr_t{15};
    auto* p = reinterpret_cast<void**>(top);
    *--p = nullptr;  // the return address of body
    *--p = reinterpret_cast<void*>(body);
    for (int i = 0; i < 6; ++i) *--p = nullptr;
    sp_ = p;
  }
  void leave_for(stack_context& to) { change(&sp_, to.sp_); }

 private:
  __attribute__((naked, noinline)) static void change(void**, void*) {
    __asm__(
        "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
        "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
        "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret");
  }
  void* sp_ = nullptr;
};
#else
class stack_context {
 public:
  // apart from loops: getcontext returns twice for all that a compiler knows
  __attribute__((noinline)) void make(std::byte* stack, std::size_t bytes, void (*body)()) {
    getcontext(&context_);
    context_.uc_stack.ss_sp = stack;
    context_.uc_stack.ss_size = bytes;
    context_.uc_link = nullptr;
    makecontext(&context_, body, 0);
  }
  void leave_for(stack_context& to) { swapcontext(&context_, &to.context_); }

 private:
  ucontext_t context_{};
};
#endif

/// 32 fibers that run one kernel call together. One object per thread, made when first needed.
class warp_fibers {
 public:
  static constexpr std::uint32_t n_lanes = 32;

  warp_fibers() : lanes_(n_lanes) { make_fibers(); }
  warp_fibers(const warp_fibers&) = delete;
  warp_fibers& operator=(const warp_fibers&) = delete;
  ~warp_fibers() { destroy_fibers(); }

  /// Calls kernel(warp_lanes<...>{}, i) on all lanes, or with lanes of four words, as on a device.
  /// Throws what a lane throws, and logic_error where lanes come to different points of the kernel.
  template <class L, class Kernel>
  static void run(const Kernel& kernel, std::size_t i) {
    thread_local warp_fibers own;
    current_ = &own;
    own.run_call(
        [](const void* k, std::size_t at) {
          onebit::detail::run_wide<L>(*static_cast<const Kernel*>(k), at);
        },
        &kernel, i);
  }

  static warp_fibers& current() { return *current_; }
  std::uint32_t lane() const { return lane_; }
  float* tile(std::uint32_t i) { return tiles_.data() + i * onebit::tile_elements; }

  /// Waits until every lane is at such a point; gives what they brought, by lane, valid until the
  /// next one.
  const std::uint64_t* meet(const char* where, std::uint64_t mine) {
    const std::size_t turn = turn_;  // two arrays by turns: lanes read one while others write next
    brought_[turn % 2][lane_] = mine;
    lanes_[lane_].where = where;
    leave_lane();
    return brought_[turn % 2];
  }

 private:
  static constexpr std::size_t stack_bytes = std::size_t{256} << 10U;
  struct fiber {
    stack_context context{};
    std::unique_ptr<std::byte[]> stack{};
    const char* where = nullptr;  ///< null: the call has returned
    void* sanitizer = nullptr;
  };

  void run_call(void (*call)(const void*, std::size_t), const void* kernel, std::size_t i) {
    call_ = call;
    kernel_ = kernel;
    index_ = i;
    do {
      for (std::uint32_t k = 0; k < n_lanes; ++k) {
        lane_ = turn_ % 2 == 0 ? k : n_lanes - 1 - k;
        enter_lane();
      }
      ++turn_;
      for (const fiber& f : lanes_) {
        if (f.where == lanes_[0].where || thrown_) continue;
        const auto name = [](const char* p) { return p ? p : "return"; };
        const std::string what = std::string("lanes diverged: one is at ") + name(f.where) +
                                 ", lane 0 is at " + name(lanes_[0].where);
        start_anew();
        throw std::logic_error(what);
      }
      if (thrown_) {
        start_anew();
        std::rethrow_exception(std::exchange(thrown_, nullptr));
      }
    } while (lanes_[0].where != nullptr);
  }

  /// The body of every fiber: call after call.
  static void body() {
    warp_fibers& self = current();
    self.arrived_in_lane(nullptr);
    for (;;) {
      try {
        self.call_(self.kernel_, self.index_);
      } catch (...) {
        self.thrown_ = std::current_exception();
      }
      self.lanes_[self.lane_].where = nullptr;
      self.leave_lane();
    }
  }

  void enter_lane() {
    fiber& to = lanes_[lane_];
#if defined(ONEBIT_TESTS_ASAN)
    void* fake_stack = nullptr;
    __sanitizer_start_switch_fiber(&fake_stack, to.stack.get(), stack_bytes);
#endif
#if defined(ONEBIT_TESTS_TSAN)
    caller_sanitizer_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(to.sanitizer, 0);
#endif
    caller_.leave_for(to.context);
#if defined(ONEBIT_TESTS_ASAN)
    __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
  }
  void leave_lane() {
    void* fake_stack = nullptr;
#if defined(ONEBIT_TESTS_ASAN)
    __sanitizer_start_switch_fiber(&fake_stack, caller_stack_, caller_stack_bytes_);
#endif
#if defined(ONEBIT_TESTS_TSAN)
    __tsan_switch_to_fiber(caller_sanitizer_, 0);
#endif
    lanes_[lane_].context.leave_for(caller_);
    arrived_in_lane(fake_stack);
  }
  void arrived_in_lane([[maybe_unused]] void* fake_stack) {
#if defined(ONEBIT_TESTS_ASAN)
    __sanitizer_finish_switch_fiber(fake_stack, &caller_stack_, &caller_stack_bytes_);
#endif
  }

  void make_fibers() {
    for (fiber& f : lanes_) {
      if (!f.stack) f.stack.reset(new std::byte[stack_bytes]);  // not touched before it is used
      f.context.make(f.stack.get(), stack_bytes, &body);
      f.where = nullptr;
#if defined(ONEBIT_TESTS_TSAN)
      f.sanitizer = __tsan_create_fiber(0);
#endif
    }
  }
  void destroy_fibers() {
#if defined(ONEBIT_TESTS_TSAN)
    for (fiber& f : lanes_) __tsan_destroy_fiber(f.sanitizer);
#endif
  }
  void start_anew() {  // lanes that stopped half-way never go on
    destroy_fibers();
    make_fibers();
  }

  static inline thread_local warp_fibers* current_ = nullptr;

  std::vector<fiber> lanes_;
  std::vector<float> tiles_ =
      std::vector<float>(onebit::detail::tile_buffers * onebit::tile_elements);
  stack_context caller_;
  std::uint32_t lane_ = 0;
  std::size_t turn_ = 0;
  std::uint64_t brought_[2][n_lanes] = {};
  void (*call_)(const void*, std::size_t) = nullptr;
  const void* kernel_ = nullptr;
  std::size_t index_ = 0;
  std::exception_ptr thrown_;
  [[maybe_unused]] const void* caller_stack_ = nullptr;
  [[maybe_unused]] std::size_t caller_stack_bytes_ = 0;
  [[maybe_unused]] void* caller_sanitizer_ = nullptr;
};

/// The Warp of onebit::detail::warp_lanes on these fibers.
struct emulated_warp {
  static std::uint32_t lane() { return warp_fibers::current().lane(); }
  static std::uint32_t own_bit() { return 1U << lane(); }
  static std::uint32_t own_shift() { return 31U - lane(); }
  static float shuffle(float x, unsigned from) {
    const std::uint64_t* all =
        warp_fibers::current().meet("shuffle", std::bit_cast<std::uint32_t>(x));
    return std::bit_cast<float>(static_cast<std::uint32_t>(all[from % 32]));
  }
  struct transposition {
    std::uint32_t operator()(std::uint32_t mine) const {
      const std::uint64_t* all = warp_fibers::current().meet("transposition", mine);
      std::uint32_t word = 0;
      for (std::uint32_t l = 0; l < 32; ++l) {
        word |= static_cast<std::uint32_t>(all[l] >> lane() & 1U) << l;
      }
      return word;
    }
  };
  static float with_sign(float x, std::uint32_t word) { return word >> 31U != 0 ? x : -x; }
  static void sync() { warp_fibers::current().meet("sync", 0); }
  static float* tile(std::uint32_t i) { return warp_fibers::current().tile(i); }
  static std::uint32_t ballot(bool mine) {
    const std::uint64_t* all = warp_fibers::current().meet("ballot", mine ? 1U : 0U);
    std::uint32_t word = 0;
    for (std::uint32_t l = 0; l < 32; ++l) word |= static_cast<std::uint32_t>(all[l]) << l;
    return word;
  }
  static std::uint64_t shuffle_xor(std::uint64_t x, std::uint32_t mask) {
    const std::uint64_t* all = warp_fibers::current().meet("shuffle", x);
    return all[lane() ^ mask];
  }
  static double shuffle_xor(double x, std::uint32_t mask) {
    return std::bit_cast<double>(shuffle_xor(std::bit_cast<std::uint64_t>(x), mask));
  }
  static float shuffle_xor(float x, std::uint32_t mask) {
    const std::uint64_t word = std::bit_cast<std::uint32_t>(x);
    return std::bit_cast<float>(static_cast<std::uint32_t>(shuffle_xor(word, mask)));
  }
  static std::uint32_t largest(std::uint32_t x) {
    const std::uint64_t* all = warp_fibers::current().meet("largest", x);
    return static_cast<std::uint32_t>(*std::max_element(all, all + 32));
  }
  static float add(float a, float b) { return a + b; }
  static float sub(float a, float b) { return a - b; }
  static float mul(float a, float b) {
    float r = a * b;
    __asm__("" : "+m"(r));  // opaque: not to be contracted with a sum that follows
    return r;
  }
  static float div(float a, float b) { return a / b; }
  static float sqrt(float a) { return std::sqrt(a); }
  static float about_reciprocal(float a) { return 1 / a; }
  static float about_reciprocal_root(float a) {
    return static_cast<float>(1 / std::sqrt(static_cast<double>(a)));
  }
  static float fma(float a, float b, float c) { return std::fma(a, b, c); }
  static std::uint32_t count(std::uint32_t word) {
    return static_cast<std::uint32_t>(std::popcount(word));
  }
  static std::uint32_t arrive(std::uint32_t* count) {
    const std::uint64_t* all = warp_fibers::current().meet("arrive", *count);
    const auto before = static_cast<std::uint32_t>(all[0]);
    *count = before + 1;
    return before;
  }
  static void raise(std::uint32_t* flag) { *flag = 1; }
};

}  // namespace onebit_test

#endif  // ONEBIT_TESTS_SUPPORT_EMULATED_WARP_HPP
