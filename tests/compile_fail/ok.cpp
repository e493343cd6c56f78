// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The control: what the other files here do wrong, done right, compiles.
// expect-ok

#include <onebit/onebit.hpp>

int main() {}
