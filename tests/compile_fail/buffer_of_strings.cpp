// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// expect: onebit: buffers hold trivially copyable types

#include <onebit/onebit.hpp>
#include <string>

int main() { (void)onebit::host{}.make_buffer<std::string>(3); }
