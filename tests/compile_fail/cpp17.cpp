// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// expect: onebit needs -std=c\+\+20: compile this file with it
// errors: 2
// flags: -std=c++17

#include <onebit/onebit.hpp>

int main() {}
