#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Builds the fuzzers (clang++ with libFuzzer and the sanitizers) and runs each, from seeds that it
# makes itself.
#
#   tests/fuzz/run.sh [seconds for each, 30] [libFuzzer option...]

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
seconds="${1:-30}"
shift || true

build=build/fuzz
mkdir -p "$build"
for source in tests/fuzz/*.cpp; do
  name="$(basename "$source" .cpp)"
  # the macro lets them look behind checksums
  clang++ -std=c++20 -O1 -g1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined \
    -DFUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION -Iinclude -Itests "$source" -o "$build/$name" -pthread
  corpus="$build/$name-corpus"
  mkdir -p "$corpus"
  ONEBIT_FUZZ_SEEDS="$corpus" "$build/$name" -runs=0 >/dev/null 2>&1
  echo "fuzzing: $name, $seconds s"
  log="$build/$name.log"
  "$build/$name" "$corpus" -max_total_time="$seconds" -max_len=8192 -print_final_stats=1 \
    -artifact_prefix="$build/" "$@" >"$log" 2>&1 || {
    tail -n 40 "$log"
    exit 1
  }
  grep -E ' DONE |number_of_executed_units' "$log"
done
