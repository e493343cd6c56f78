#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Shows which faults the tests find: plants those of mutants.cmake, one at a time, and runs the tests.
#
#   tests/mutants/run.sh [--only n,n,...]
#
# All faults are compiled at once into a copy of the repository (build/mutants/tree, see plant.cmake); the
# environment variable ONEBIT_PLANTED switches one on. The quick tier runs with each, all tests with those
# that it does not find (tests of source text, labelled `static`, never). The table goes to
# build/mutants/table.txt too. Exit status 1: the quick tier misses more than 4, or nothing finds one.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

usage() {
  echo "usage: tests/mutants/run.sh [--only n,n,...]" >&2
  exit 2
}
only=""
if (($# > 0)); then
  if (($# != 2)) || [[ "$1" != --only || ! "$2" =~ ^[0-9]+(,[0-9]+)*$ ]]; then usage; fi
  only=",$2,"
fi

out="$PWD/build/mutants" tree="$PWD/build/mutants/tree" most_missed=4
unset ONEBIT_PLANTED
mkdir -p "$out"
cmake "-DTO=$tree" -P tests/mutants/plant.cmake

# build_tier <quick or all>: builds it and runs it without a fault, which must pass.
build_tier() {
  local tier="$1" all=()
  [[ "$tier" == quick ]] || all=(--all)
  echo "==> mutants: building and running the tier \"$tier\" without a fault"
  if ! ONEBIT_CMAKE_ARGS="-DONEBIT_CUDA=OFF" ONEBIT_BUILD_DIR="build/$tier" \
    "$tree/tests/run.sh" "${all[@]}" -LE static; then
    echo "mutants: the tier \"$tier\" fails without a fault" >&2
    exit 2
  fi
}

# finder <tier> <number>: sets `found` to the first test that fails, or to nothing.
found=""
finder() {
  local build="$tree/build/$1" log status=0
  log="$build/Testing/Temporary/LastTestsFailed.log"
  rm -f "$log"
  ONEBIT_PLANTED="$2" ctest --test-dir "$build" --no-tests=error -LE static --stop-on-failure \
    --timeout 120 "-j$(nproc)" >"$out/$1-$2.log" 2>&1 </dev/null || status=$?
  found=""
  ((status != 0)) || return 0
  if [[ ! -s "$log" ]]; then # no test has failed, so it says nothing of the fault
    tail -n 20 "$out/$1-$2.log" >&2
    echo "mutants: ctest itself failed with fault $2, status $status" >&2
    exit 2
  fi
  found="$(sed -n '1s/^[0-9]*://p' "$log")"
}

build_tier quick
has_all="" n=0 by_quick=0 by_all=0 by_nothing=0 rows=()
while IFS=$'\t' read -r -u 3 number header name; do
  [[ -z "$only" || "$only" == *",$number,"* ]] || continue
  n=$((n + 1))
  finder quick "$number"
  by="quick: $found"
  if [[ -n "$found" ]]; then
    by_quick=$((by_quick + 1))
  else
    if [[ -z "$has_all" ]]; then
      build_tier all
      has_all=1
    fi
    finder all "$number"
    by="all: $found"
    if [[ -n "$found" ]]; then
      by_all=$((by_all + 1))
    else
      by="nothing"
      by_nothing=$((by_nothing + 1))
    fi
  fi
  echo "==> mutants: $number, $name: $by"
  rows+=("$(printf '%2d  %-72s %-42s %s' "$number" "$name" "${header#onebit/}" "$by")")
done 3<"$tree/planted.txt"

if ((n == 0)); then
  echo "mutants: no fault has one of the numbers ${only:1:-1}" >&2
  exit 2
fi
{
  printf '%2s  %-72s %-42s %s\n' "n" "fault" "include/onebit/" "found by"
  printf '%s\n' "${rows[@]}"
  echo "$n faults: $by_quick found by the quick tier, $by_all by all tests alone, $by_nothing by nothing"
} >"$out/table.txt"
cat "$out/table.txt"
((by_nothing == 0 && n - by_quick <= most_missed))
