#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# Trains with each compiler, at several levels of optimisation: the recorded bits must come out
# (bits.cpp), and what is compiled with -ffast-math or a part of it must be refused (strict.sh).
#
#   tests/compilers/run.sh [compiler...]      else all of g++ 11 to 15, clang++ 14 to 22 and
#                                             g++ for aarch64 and riscv64 that there are
#   tests/compilers/run.sh "zig c++"          a compiler with arguments
#
# Programs for another architecture run under qemu-user.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

compilers=("$@")
if ((${#compilers[@]} == 0)); then
  for compiler in g++-{11..15} clang++-{14..22} {aarch64,riscv64}-linux-gnu-g++; do
    if command -v "$compiler" >/dev/null; then
      compilers+=("$compiler")
    else
      echo "skipped: there is no $compiler"
    fi
  done
fi

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
source=tests/compilers/bits.cpp
failures=0

fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

for compiler in "${compilers[@]}"; do
  read -r -a cxx <<<"$compiler" # a compiler may come with arguments
  target="$("${cxx[@]}" -dumpmachine)"
  arch="${target%%-*}"
  native=(-O3 -march=native)
  run=()
  if [[ "$arch" != "$(uname -m)" ]]; then
    native=(-O3)
    emulator="$(command -v "qemu-$arch-static" || command -v "qemu-$arch" || true)"
    if [[ -z "$emulator" ]]; then
      echo "skipped: there is no qemu-$arch for the programs of $compiler"
      continue
    fi
    run=("$emulator" -L "/usr/$target")
  fi
  echo "==> $compiler: $("${cxx[@]}" --version | sed -n 1p)"
  for flags in -O0 -O2 "${native[*]}"; do
    read -r -a level <<<"$flags"
    if ! "${cxx[@]}" -std=c++20 "${level[@]}" -Wall -Wextra -Werror -Iinclude "$source" \
      -pthread -o "$work/bits" 2>"$work/log"; then
      head -n 20 "$work/log"
      fail "$compiler $flags does not compile"
    elif ! "${run[@]}" "$work/bits" >"$work/log" 2>&1; then
      cat "$work/log"
      fail "$compiler $flags: other bits"
    else
      echo "$compiler $flags: $(tail -n 1 "$work/log")"
    fi
  done
  if ((${#run[@]} == 0)); then tests/compilers/strict.sh "${cxx[@]}" || fail "$compiler changes arithmetic"; fi
done

((failures == 0)) || exit 1
echo "${#compilers[@]} compilers, the recorded bits"
