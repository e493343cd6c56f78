#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

# What it costs to compile a file that includes <onebit/onebit.hpp> and makes one optimizer, with the
# optimizer, or where another file compiles it (examples/compiled_once), and that file: user seconds,
# the median of ROUNDS (3) compilations. The budget is 3 s with g++ -O2.
#
#   bench/compile_time.sh [--against DIR] [--where] [compiler argument...]
#   bench/compile_time.sh --compiled [compiler argument...]
#
# --against DIR   the first with the headers in DIR, compiled in turn with these, and the ratios
# --where         also what the headers alone cost, and where the compiler says its time goes
# --compiled      instead: for each algorithm a file that steps one, with the headers alone and with
#                 onebit::compiled, in turn, the ratio, and the files of that target
# CXX             the compiler, g++ unless set

set -euo pipefail
here="$PWD"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cxx="${CXX:-g++}"
rounds="${ROUNDS:-3}"
where=0 compiled=0 against=""
while [[ "${1:-}" == --* ]]; do
  case "$1" in
    --where) where=1 ;;
    --compiled) compiled=1 ;;
    --against)
      against="$(cd "$here" && realpath -e -- "${2:?}")"
      shift
      ;;
    *) break ;;
  esac
  shift
done
flags=(-std=c++20 -O2 "$@")
work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT

echo '#include <onebit/onebit.hpp>' >"$work/headers.cpp"
cat >"$work/step.cpp" <<'END'
#include <onebit/onebit.hpp>
#include <vector>
void train(const std::vector<onebit::param_group<>>& groups, onebit::threads transport) {
  auto optimizer = onebit::one_bit_adam(groups, transport, onebit::one_bit_adam_options{});
  optimizer.step(1e-3F);
}
END
type='onebit::optimizer<onebit::adam_rule<onebit::host>, onebit::freeze,
                        onebit::gather_scatter<onebit::sign<>>, float, float>'
sed "2a extern template class $(tr '\n' ' ' <<<"$type");" "$work/step.cpp" >"$work/split.cpp"
printf '#include <onebit/onebit.hpp>\ntemplate class %s;\n' "$type" >"$work/other.cpp"
step=(-c "$work/step.cpp" -o "$work/step.o")
split=(-c "$work/split.cpp" -o "$work/split.o")
other=(-c "$work/other.cpp" -o "$work/other.o")

once() { # include directory, compiler arguments: user seconds
  local TIMEFORMAT=%U
  { time "$cxx" "${flags[@]}" "-I$1" "${@:2}" 2>"$work/errors"; } 2>&1 ||
    { cat "$work/errors" >&2 && return 1; }
}
median() { sort -n | sed -n "$(((rounds + 1) / 2))p"; }
tell() { printf '%-48s %6s%s\n' "$@"; }
user_seconds() { # compiler arguments
  local i
  for ((i = 0; i < rounds; ++i)); do once include "$@"; done | median
}

if ((compiled)); then
  total=0
  for name in one_bit_adam one_bit_lamb zero_one_adam adam lamb; do
    sed "s/= onebit::one_bit_adam(.*/= onebit::$name(groups, transport);/" "$work/step.cpp" >"$work/$name.cpp"
    printf '#include <onebit/compiled.hpp>\nONEBIT_COMPILE(%s)\n' "$name" >"$work/part.cpp"
    for ((i = 0; i < rounds; ++i)); do
      once include -c "$work/$name.cpp" -o "$work/step.o" >>"$work/$name.alone"
      once include -DONEBIT_COMPILED -c "$work/$name.cpp" -o "$work/step.o" >>"$work/$name.with"
    done
    alone="$(median <"$work/$name.alone")" with="$(median <"$work/$name.with")"
    part="$(once include -c "$work/part.cpp" -o "$work/part.o")"
    total="$(awk "BEGIN { print $total + $part }")"
    tell "$name, $cxx -O2, headers alone" "$alone" " s"
    tell "  with onebit::compiled" "$with" " s"
    tell "  the second to the first" "$(awk "BEGIN { printf \"%.2f\", $with / $alone }")" ""
    tell "  its file of that target, float and bf16" "$part" " s"
  done
  printf '#include <onebit/compiled.hpp>\nONEBIT_COMPILE(threads)\n' >"$work/part.cpp"
  part="$(once include -c "$work/part.cpp" -o "$work/part.o")"
  tell "threads' file of that target" "$part" " s"
  tell "all files of that target" "$(awk "BEGIN { print $total + $part }")" " s"
  exit 0
fi

for ((i = 0; i < rounds; ++i)); do
  once include "${step[@]}" >>"$work/ours"
  once include "${split[@]}" >>"$work/ours_split"
  once include "${other[@]}" >>"$work/ours_other"
  [[ -z "$against" ]] || once "$against" "${step[@]}" >>"$work/theirs"
done
ours="$(median <"$work/ours")"
ours_split="$(median <"$work/ours_split")"
tell "onebit.hpp and one_bit_adam, $cxx -O2" "$ours" " s (budget 3)"
tell "  where another file compiles the optimizer" "$ours_split" " s (budget 3)"
tell "  that file, all its calls" "$(median <"$work/ours_other")" " s"
if [[ -n "$against" ]]; then
  theirs="$(median <"$work/theirs")"
  tell "  the first with $against" "$theirs" " s"
  tell "  the first to that" "$(awk "BEGIN { printf \"%.2f\", $ours / $theirs }")" ""
  tell "  the second to that" "$(awk "BEGIN { printf \"%.2f\", $ours_split / $theirs }")" ""
fi
((where)) || exit 0
tell "  the same, -O0" "$(user_seconds -O0 "${step[@]}")" " s"
tell "  the same, syntax only" "$(user_seconds -fsyntax-only "$work/step.cpp")" " s"
tell "  onebit.hpp alone, syntax only" "$(user_seconds -fsyntax-only "$work/headers.cpp")" " s"
for header in $(sed -n 's/^#include <\(onebit.*\)>/\1/p' include/onebit/onebit.hpp) immintrin.h \
  thread condition_variable chrono memory sstream functional; do
  echo "#include <$header>" >"$work/one.cpp"
  tell "  <$header> alone" "$(user_seconds -fsyntax-only "$work/one.cpp")" " s"
done
if "$cxx" --version | grep -q 'Free Software Foundation'; then
  "$cxx" "${flags[@]}" -Iinclude -ftime-report "${step[@]}" 2>&1 |
    sed -n 's/^ *\([a-z|].*[a-z)]\) *: *\([0-9.]*\) (.*/\2 \1/p' | sort -rn | head -15 |
    awk '{ s = $1; $1 = ""; printf "  %-46s %6s s\n", $0, s }'
fi
