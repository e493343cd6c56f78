#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# What it costs to compile a file that includes <onebit/onebit.hpp> and makes one optimizer: user
# seconds, the median of ROUNDS (3) compilations. The budget is 3 s with g++ -O2.
#
#   bench/compile_time.sh [--where] [compiler argument...]
#
# --where   also what the headers alone cost, and where the compiler says its time goes
# CXX       the compiler, g++ unless set

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cxx="${CXX:-g++}"
rounds="${ROUNDS:-3}"
where=0
if [[ "${1:-}" == --where ]]; then where=1 && shift; fi
flags=(-std=c++20 -O2 -Iinclude "$@")
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

echo '#include <onebit/onebit.hpp>' >"$work/headers.cpp"
cat >"$work/step.cpp" <<'EOF'
#include <onebit/onebit.hpp>
#include <vector>
void train(const std::vector<onebit::param_group<>>& groups, onebit::threads transport) {
  auto optimizer = onebit::one_bit_adam(groups, transport, {.freeze_after = 100});
  optimizer.step(1e-3F);
}
EOF

user_seconds() { # command: its median
  local TIMEFORMAT=%U i
  for ((i = 0; i < rounds; ++i)); do
    { time "$@" 2>"$work/errors"; } 2>&1 || { cat "$work/errors" >&2 && return 1; }
  done | sort -n | sed -n "$(((rounds + 1) / 2))p"
}

printf '%-44s %6s s (budget 3)\n' "onebit.hpp and one_bit_adam, $cxx -O2" \
  "$(user_seconds "$cxx" "${flags[@]}" -c "$work/step.cpp" -o "$work/step.o")"
((where)) || exit 0
printf '%-44s %6s s\n' "  the same, -O0" \
  "$(user_seconds "$cxx" "${flags[@]}" -O0 -c "$work/step.cpp" -o "$work/step.o")"
printf '%-44s %6s s\n' "  the same, syntax only" \
  "$(user_seconds "$cxx" "${flags[@]}" -fsyntax-only "$work/step.cpp")"
printf '%-44s %6s s\n' "  onebit.hpp alone, syntax only" \
  "$(user_seconds "$cxx" "${flags[@]}" -fsyntax-only "$work/headers.cpp")"
for header in $(sed -n 's/^#include <\(onebit.*\)>/\1/p' include/onebit/onebit.hpp) immintrin.h \
  thread condition_variable chrono memory sstream functional; do
  echo "#include <$header>" >"$work/one.cpp"
  printf '%-44s %6s s\n' "  <$header> alone" \
    "$(user_seconds "$cxx" "${flags[@]}" -fsyntax-only "$work/one.cpp")"
done
if "$cxx" --version | grep -q 'Free Software Foundation'; then
  "$cxx" "${flags[@]}" -ftime-report -c "$work/step.cpp" -o "$work/step.o" 2>&1 |
    sed -n 's/^ *\([a-z|].*[a-z)]\) *: *\([0-9.]*\) (.*/\2 \1/p' | sort -rn | head -15 |
    awk '{ s = $1; $1 = ""; printf "  %-42s %6s s\n", $0, s }'
fi
