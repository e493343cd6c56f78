#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# The fused passes' share of axpy's bandwidth, by compiler and optimisation level, with no -march:
# eight figures at 2^26 elements, one thread, the machine's best instruction set.
#
#   bench/passes_matrix.sh [output folder]      the programs and one JSON file each go there
#
# CXXS     the compilers, "g++ clang++" unless set    ROUNDS   rounds over all builds, 3
# SECONDS_EACH   seconds per figure and round, 1.5

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out="${1:-build/bench/matrix}"
rounds="${ROUNDS:-3}"
seconds="${SECONDS_EACH:-1.5}"
read -r -a compilers <<<"${CXXS:-g++ clang++}"
n=$((1 << 26))
mkdir -p "$out"

builds=()
for cxx in "${compilers[@]}"; do
  command -v "$cxx" >/dev/null || { echo "$cxx not found: left out" >&2 && continue; }
  for level in -O2 -O3; do
    build="${cxx##*/}$level"
    "$cxx" -std=c++20 "$level" -DNDEBUG -Iinclude bench/passes.cpp -o "$out/$build" \
      -lbenchmark -pthread
    builds+=("$build")
  done
done

for ((round = 1; round <= rounds; ++round)); do
  for build in "${builds[@]}"; do
    isa="$("$out/$build" --benchmark_list_tests | sed -n 's|^encode/\([a-z0-9]*\)/.*|\1|p' | tail -1)"
    "$out/$build" --benchmark_filter="^(encode|update)/$isa/threads:1/n:$n/" \
      --benchmark_min_time="$seconds" --benchmark_format=json >"$out/$build.$round.json" 2>/dev/null
  done
done

# The median over the rounds.
share() { # build, pass, counter
  awk -v pass="$2" -v counter="\"$3\":" '
    /"name":/ { name = $2 }
    $1 == counter { if (name ~ pass "/") { sub(",", "", $2); print $2 + 0 } }
  ' "$out/$1".*.json | sort -n | awk '{ v[NR] = $1 } END { printf "%.3f", v[int((NR + 1) / 2)] }'
}
echo "share of axpy's bandwidth"
printf '%-12s %8s %8s\n' "" encode update
for build in "${builds[@]}"; do
  printf '%-12s' "$build"
  for pass in encode update; do
    printf '  %7s' "$(share "$build" "$pass" share_of_axpy)"
  done
  echo
done
