#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Compiles a program with each flag that lets a compiler change arithmetic: either it does not compile, or
# its first host throws; both name a flag. Without such a flag it runs.
#
#   tests/compilers/strict.sh <compiler> [option...]

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

cxx=("$@")
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
failures=0
fail() {
  echo "FAILED: ${cxx[*]} $1"
  head -n 20 "$work/log"
  failures=$((failures + 1))
}
# build <option...>: 2 if the compiler does not know an option, or has no library for it.
build() {
  "${cxx[@]}" -std=c++20 -Werror "$@" -fsyntax-only -x c++ - <<<"#include <cerrno>" 2>/dev/null || return 2
  "${cxx[@]}" -std=c++20 "$@" -Iinclude tests/compilers/strict.cpp -pthread -o "$work/strict" >"$work/log" 2>&1
}

n=0
for flags in -O0 -O2 "-O3 -ffp-contract=fast -fno-math-errno"; do
  read -r -a options <<<"$flags"
  if ! build "${options[@]}" || ! "$work/strict" >"$work/log" 2>&1; then fail "$flags"; fi
done
for flags in -ffast-math -Ofast -ffp-model=fast -ffp-model=aggressive "-ffast-math -fno-finite-math-only" \
  -funsafe-math-optimizations "-fassociative-math -fno-signed-zeros -fno-trapping-math" -freciprocal-math \
  -fno-signed-zeros -ffinite-math-only -fno-honor-nans "-m32 -mfpmath=387"; do
  read -r -a options <<<"-O2 $flags"
  status=0
  build "${options[@]}" || status=$?
  if ((status == 2)); then continue; fi
  n=$((n + 1))
  if ((status != 0)); then
    grep -qE "compile without -ffast-math|compile with -msse2" "$work/log" || fail "$flags: does not compile"
  elif "$work/strict" >"$work/log" 2>&1; then
    fail "$flags: is not refused"
  elif ! grep -q "compiled as with -f" "$work/log"; then
    fail "$flags: ends otherwise"
  fi
done
((n > 0 && failures == 0)) || exit 1
echo "${cxx[*]}: $n ways to change arithmetic, all refused"
