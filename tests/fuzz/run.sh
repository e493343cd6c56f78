#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Builds the fuzzers (clang++ with libFuzzer and the sanitizers) and runs each, from seeds that it
# makes itself.
#
#   tests/fuzz/run.sh [seconds for each, 30] [libFuzzer option...]
#   tests/fuzz/run.sh --coverage    which lines of the readers the inputs found so far reach, and
#                                   which ones none of them does

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=build/fuzz
mkdir -p "$build"

# compile SOURCE PROGRAM [OPTION...]
compile() {
  # the macro lets them look behind checksums
  clang++ -std=c++20 "$level" -g1 -DFUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION -Iinclude -Itests "$1" \
    -o "$2" -pthread "${@:3}"
}
# seed PROGRAM CORPUS
seed() {
  mkdir -p "$2"
  ONEBIT_FUZZ_SEEDS="$2" "$1" -runs=0
}

cover() {
  local readers=(include/onebit/{core/archive,step/restore,extras/{checkpoint_directory,checkpoint_files}}.hpp
    include/onebit/{step/agreement,collective/message}.hpp)
  local source name program
  for source in tests/fuzz/*.cpp; do
    name="$(basename "$source" .cpp)"
    program="$build/$name-coverage"
    compile "$source" "$program" -fsanitize=fuzzer -fprofile-instr-generate -fcoverage-mapping
    export LLVM_PROFILE_FILE="$program.profraw"
    seed "$program" "$build/$name-corpus" >/dev/null 2>&1
    "$program" "$build/$name-corpus" -runs=0 >/dev/null 2>&1
    llvm-profdata merge -sparse "$program.profraw" -o "$program.profdata"
    echo "$name: $(find "$build/$name-corpus" -type f | wc -l) inputs"
    llvm-cov report "$program" -instr-profile="$program.profdata" "${readers[@]}" |
      awk '/hpp/ && $8 > $9 { printf "  %-24s %3d of %3d lines\n", $1, $8 - $9, $8 }'
    llvm-cov show "$program" -instr-profile="$program.profdata" -show-instantiations=false \
      "${readers[@]}" >"$program.lines"
  done
  echo "lines that no input reaches:"
  awk -F'|' '/^\/.*:$/ { file = $0; sub(".*/include/", "", file) }
             $2 !~ /[0-9]/ { next }
             { place = file $1 }
             $2 ~ /^ *0$/ { text = $0; sub(/^[^|]*\|[^|]*\|/, "", text); missed[place] = text; next }
             { reached[place] = 1 }
             END { for (p in missed) if (!(p in reached)) print p ":" missed[p] }' \
    "$build"/*-coverage.lines | sort -V
}

level=-O0
if [[ "${1:-}" == --coverage ]]; then
  cover
  exit
fi
seconds="${1:-30}"
shift || true
((seconds < 30)) || level=-O1 # with sanitizers four times the time to compile, which long runs repay

# fuzz NAME SECONDS [OPTION...]
fuzz() {
  local name="$1" log="$build/$1.log" corpus="$build/$1-corpus"
  compile "tests/fuzz/$name.cpp" "$build/$name" -fsanitize=fuzzer,address,undefined \
    -fno-sanitize-recover=undefined
  {
    seed "$build/$name" "$corpus" &&
      "$build/$name" "$corpus" -max_total_time="$2" -max_len=8192 -print_final_stats=1 \
        -artifact_prefix="$build/" "${@:3}"
  } >"$log" 2>&1 || {
    echo "fuzzing: $name failed"
    tail -n 40 "$log"
    return 1
  }
  echo "fuzzing: $name, $2 s"
  grep -E ' DONE |number_of_executed_units' "$log"
}
export -f compile seed fuzz
export build level

# as many at a time as there are processors
find tests/fuzz -name '*.cpp' -exec basename -s .cpp {} + | sort |
  xargs -P "$(nproc)" -I{} bash -euo pipefail -c 'fuzz "$@"' fuzz {} "$seconds" "$@"
