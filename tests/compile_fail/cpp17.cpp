// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// expect: onebit needs -std=c\+\+20, in one file if the others call it through onebit/c/onebit.h
// errors: 2
// flags: -std=c++17

#include <onebit/onebit.hpp>

int main() {}
