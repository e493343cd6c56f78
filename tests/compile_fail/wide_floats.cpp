// SPDX-FileCopyrightText: 2026 The onebit authors
// SPDX-License-Identifier: Apache-2.0

// alone
// expect: floats are evaluated in wider registers here: compile with -msse2 -mfpmath=sse

#include <cfloat>
#undef FLT_EVAL_METHOD
#define FLT_EVAL_METHOD 2  // as <cfloat> says for x87
#include <onebit/onebit.hpp>

int main() {}
