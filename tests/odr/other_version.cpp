// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// With a.cpp: a program may hold two libraries that were built with two versions of onebit. This
// file is compiled with headers that say another version; its names must be others, or the linker
// would take one function for the other.

#include <onebit/onebit.hpp>
#include <typeinfo>

const char* report_of_another_version();

const char* report_of_another_version() { return typeid(onebit::report).name(); }
