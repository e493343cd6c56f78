// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Plugin of qemu-user that prints how many instructions a program has executed, on all threads.
// Declares what it needs of qemu-plugin.h (interface 1), which distributions do not package.

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct qemu_plugin_tb;  // a block of instructions
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id,
                                           void (*f)(uint64_t id, struct qemu_plugin_tb* block));
void qemu_plugin_register_vcpu_tb_exec_cb(struct qemu_plugin_tb* block,
                                          void (*f)(unsigned thread, void* p), int flags, void* p);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb* block);
void qemu_plugin_register_atexit_cb(uint64_t id, void (*f)(uint64_t id, void* p), void* p);

enum { max_threads = 64 };
static struct { uint64_t n, padding[7]; } executed[max_threads];

static void on_block(unsigned thread, void* n) { executed[thread % max_threads].n += (uintptr_t)n; }
static void on_translated(uint64_t id, struct qemu_plugin_tb* block) {
  (void)id;
  const uintptr_t n = qemu_plugin_tb_n_insns(block);
  qemu_plugin_register_vcpu_tb_exec_cb(block, on_block, 0, (void*)n);
}
static void at_exit(uint64_t id, void* p) {
  (void)id, (void)p;
  uint64_t sum = 0;
  for (int i = 0; i < max_threads; ++i) sum += executed[i].n;
  fprintf(stderr, "%llu\n", (unsigned long long)sum);
}

int qemu_plugin_version = 1;
int qemu_plugin_install(uint64_t id, const void* machine, int argc, char** argv) {
  (void)machine, (void)argc, (void)argv;
  qemu_plugin_register_vcpu_tb_trans_cb(id, on_translated);
  qemu_plugin_register_atexit_cb(id, at_exit, NULL);
  return 0;
}
