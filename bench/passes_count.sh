#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Instructions per element and rank of a compressed step of 1-bit Adam (default options, 2 ranks), by processor
# and compiler, in plain C++ (isa::scalar) and in the best lanes that the processor has. Counted by qemu-user,
# every block as it runs: 24 and 28 steps of 2^17 and 2^18 elements; of these four counts the difference of
# differences, so that the start, the warm-up and what is done once a step fall out.
#
#   bench/passes_count.sh [output folder]       the programs go there
#
# LEVEL   of optimisation, -O2     ROWS   a pattern of the rows to count     INCLUDE   of another commit
# MOST    fail where the best lanes take more

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
  local counts=() n small=$((1 << 17))
  for n in $small $((2 * small)); do
    counts+=("$(executed "$n" 24 "$1")" "$(executed "$n" 28 "$1")")
  done
  awk -v a="${counts[0]}" -v b="${counts[1]}" -v c="${counts[2]}" -v d="${counts[3]}" -v n=$((2 * 4 * small)) \
    'BEGIN { printf "%.1f", (d - c - b + a) / n }'
}

status=0
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
  scalar="$(per_element scalar)"
  best="$(per_element best)"
  printf '%-18s %8s %8s\n' "$name" "$scalar" "$best"
  if awk -v most="${MOST:-0}" -v best="$best" 'BEGIN { exit !(most > 0 && best > most) }'; then
    echo "FAILED: $name: more than $MOST"
    status=1
  fi
done
exit "$status"
