// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// A transport of one's own: five members. This one passes everything on to another one, and logs
// when the size of what travels changes. What the inner one can do besides (start its collectives,
// be split, carry device memory: the concepts of onebit/core/concepts.hpp) a wrapper must pass on
// as well, or it is not used.

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
  // Slot i of send goes to rank i, slot i of receive came from it.
  void all_to_all(const void* send, void* receive, std::size_t slot_bytes) {
    say("all_to_all", slot_bytes);
    inner_.all_to_all(send, receive, slot_bytes);
  }
  // All get what send points to.
  void all_gather(const void* send, void* receive, std::size_t slot_bytes) {
    say("all_gather", slot_bytes);
    inner_.all_gather(send, receive, slot_bytes);
  }
  // Only for dense_sum::transport; another of bf16 for transport_in_bf16.
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
