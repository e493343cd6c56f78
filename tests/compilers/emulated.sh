#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# The recorded bits (tests/bits, a selection), a short training (bits.cpp) and the lanes' suite, compiled for
# other processors and executed by qemu-user: they are what x86-64 computes. Needs g++ for them and doctest.
#
#   tests/compilers/emulated.sh [processor...]      else aarch64 and riscv64
#
# LEVEL   of optimisation, -O1     JOBS   programs compiled at once, one for each core

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

processors=("$@")
((${#processors[@]})) || processors=(aarch64 riscv64)
level="${LEVEL:--O1}"
jobs="${JOBS:-$(nproc)}"
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

# Of the system's headers, doctest alone: the others are this processor's.
doctest="$(c++ -E -x c++ - <<<"#include <doctest/doctest.h>" | sed -n 's/^# 1 "\(.*\)\/doctest.h".*/\1/p' | head -n 1)"
mkdir "$work/include"
ln -s "$doctest" "$work/include/doctest"

failures=0
fail() {
  echo "FAILED: $*"
  failures=$((failures + 1))
}

for processor in "${processors[@]}"; do
  cxx="$processor-linux-gnu-g++"
  emulator="$(command -v "qemu-$processor-static" || command -v "qemu-$processor" || true)"
  if ! command -v "$cxx" >/dev/null || [[ -z "$emulator" ]]; then
    echo "skipped: $processor: there is no $cxx, or no qemu-$processor"
    continue
  fi
  echo "==> $processor: $("$cxx" --version | sed -n 1p)"
  objects="$work/$processor"
  mkdir "$objects"
  if ! printf '%s\n' tests/main.cpp tests/bits/*.cpp tests/backend/lanes.cpp tests/compilers/bits.cpp |
    xargs -P "$jobs" -I{} bash -c 'name="${1//\//_}"
      "$2" -std=c++20 "$3" -Wall -Wextra -Werror -Iinclude -I"$4/include" -c "$1" -o "$5/${name%.cpp}.o"' \
      _ {} "$cxx" "$level" "$work" "$objects"; then
    fail "$processor: does not compile"
    continue
  fi
  for program in bits lanes training; do
    case "$program" in
      bits) parts=("$objects"/tests_main.o "$objects"/tests_bits_*.o) ;;
      lanes) parts=("$objects"/tests_main.o "$objects"/tests_backend_lanes.o) ;;
      training) parts=("$objects"/tests_compilers_bits.o) ;;
    esac
    "$cxx" -static -pthread "${parts[@]}" -o "$objects/$program"
    if "$emulator" "$objects/$program" >"$work/log" 2>&1; then
      echo "$processor, $program: $(grep -v '^\[doctest\] Status' "$work/log" | tail -n 1)"
    else
      tail -n 40 "$work/log"
      fail "$processor, $program"
    fi
  done
done
((failures == 0))
