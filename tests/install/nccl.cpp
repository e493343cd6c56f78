// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// Built, not run: the installed NCCL transport compiles and links.

#include <onebit/onebit.hpp>
#include <onebit/transport/nccl.hpp>

int main(int argc, char**) {
  if (argc > 1) onebit::nccl(nullptr, nullptr).wait();
}
