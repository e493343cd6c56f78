#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Instructions per element and rank of a compressed step of 1-bit Adam (default options, 2 ranks), by processor
# and compiler, in plain C++ (isa::scalar) and in the best lanes that the processor has. Counted by qemu-user,
# every block as it runs: four steps and none, of 2^18 and 2^19 elements; of these four counts the difference
# of differences, so that starts, warm-ups and what is done once a step fall out. No GPU, no other machine.
#
#   bench/passes_count.sh [output folder]       the programs go there
#
# LEVEL   of optimisation, -O2     ROWS   a pattern of the rows to count     INCLUDE   of another commit

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out="${1:-build/bench/count}"
level="${LEVEL:--O2}"
include="${INCLUDE:-include}"
mkdir -p "$out"
cc -O2 -shared -fPIC bench/passes_count.c -o "$out/count.so"

# name | compiler | emulator; x86-64 with AVX2 and without, riscv64 without vectors
rows=(
  "aarch64 g++|aarch64-linux-gnu-g++|qemu-aarch64"
  "aarch64 clang++|clang++ --target=aarch64-linux-gnu|qemu-aarch64"
  "x86-64 AVX2 g++|g++|qemu-x86_64 -cpu max"
  "x86-64 SSE g++|g++|qemu-x86_64 -cpu Nehalem"
  "riscv64 g++|riscv64-linux-gnu-g++|qemu-riscv64"
)

executed() { "${emulator[@]}" -plugin "$out/count.so" "$program" "$@" 2>&1 >/dev/null | tail -n 1; }
per_element() { # scalar or best
  local -i few=1 many=2 steps=4
  local -i small=$((1 << 18))
  local counts=() n
  for n in $((few * small)) $((many * small)); do
    counts+=("$(executed "$n" 24 "$1")" "$(executed "$n" $((24 + steps)) "$1")")
  done
  awk -v a="${counts[0]}" -v b="${counts[1]}" -v c="${counts[2]}" -v d="${counts[3]}" -v n=$((2 * steps * small)) \
    'BEGIN { printf "%.1f", (d - c - b + a) / n }'
}

printf '%-18s %8s %8s\n' "$level" scalar best
for row in "${rows[@]}"; do
  IFS='|' read -r name compiler command <<<"$row"
  [[ "$name" =~ ${ROWS:-.} ]] || continue
  read -r -a cxx <<<"$compiler"
  read -r -a emulator <<<"$command"
  if ! command -v "${cxx[0]}" >/dev/null || ! command -v "${emulator[0]}" >/dev/null; then
    echo "skipped: $name: there is no ${cxx[0]}, or no ${emulator[0]}"
    continue
  fi
  program="$out/${name// /-}"
  "${cxx[@]}" -std=c++20 "$level" -DNDEBUG -static -I"$include" bench/passes_count.cpp -o "$program" -pthread
  printf '%-18s %8s %8s\n' "$name" "$(per_element scalar)" "$(per_element best)"
done
