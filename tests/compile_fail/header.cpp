// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// The header and nothing else: it compiles, but for what the options of a case in CMakeLists.txt
// say.

#if defined(CASE_wide_floats)
#include <cfloat>
#undef FLT_EVAL_METHOD
#define FLT_EVAL_METHOD 2  // as <cfloat> says for x87
#endif
#include <onebit/onebit.hpp>

int main() {}
