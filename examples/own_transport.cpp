// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A custom transport: five members. This one forwards all calls to another transport, and logs when
// the number of bytes changes. A wrapper must also forward the optional abilities of the inner
// transport (to start collectives, to be split, to carry device memory: the concepts of
// onebit/concepts/transport.hpp); otherwise the library does not use them.

#include <cstddef>
#include <cstdio>

#include "toy_problem.hpp"

namespace {

template <onebit::Transport T>
class logged {
 public:
  logged(T inner, std::FILE* log) : inner_(inner), log_(log) {}
  int rank() const { return inner_.rank(); }
  int size() const { return inner_.size(); }
  // Slot i of send goes to rank i; slot i of receive came from rank i.
  void all_to_all(const void* send, void* receive, std::size_t slot_bytes) {
    say("all_to_all", slot_bytes);
    inner_.all_to_all(send, receive, slot_bytes);
  }
  // Every rank receives the slots of all ranks.
  void all_gather(const void* send, void* receive, std::size_t slot_bytes) {
    say("all_gather", slot_bytes);
    inner_.all_gather(send, receive, slot_bytes);
  }
  // Only for dense_sum::transport; transport_in_bf16 needs an overload for bf16.
  void all_reduce_sum(float* data, std::size_t n) {
    say("all_reduce_sum", n * sizeof(float));
    inner_.all_reduce_sum(data, n);
  }

 private:
  void say(const char* what, std::size_t bytes) {
    if (rank() == 0 && bytes != last_) std::fprintf(log_, "%s: %zu bytes\n", what, bytes);
    last_ = bytes;
  }

  T inner_;
  std::FILE* log_;
  std::size_t last_ = 0;
};

}  // namespace

int main() {
  const toy::result r = toy::train(4, 400, 0.02F, [](const auto& groups, onebit::threads comm) {
    return onebit::one_bit_adam(
        groups, logged(comm, stdout),
        onebit::one_bit_adam_options{.adam = {.beta2 = 0.99}, .freeze = {.after = 100}});
  });
  return toy::verdict("1-bit Adam, logged", r, 0.02);
}
