// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// expect: onebit needs exceptions: compile this file with them, or include only onebit/c/onebit.h
// errors: 2
// flags: -fno-exceptions

#include <onebit/onebit.hpp>

int main() {}
