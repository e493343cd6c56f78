#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
#
#   findings/run.sh [NAME ...]
#
# Runs the findings, or those named (without .sh), each in a temporary folder of its own, and prints a
# table: still seen, changed (or its packages cannot be installed), and the seconds. Ends with 1 if one
# is not seen any more.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

names=("$@")
if ((${#names[@]} == 0)); then
  for script in *.sh; do [[ "$script" == run.sh ]] || names+=("${script%.sh}"); done
fi
status=0
printf '%-40s %-8s %s\n' finding result seconds
for name in "${names[@]}"; do
  if [[ ! -f "$name.sh" ]]; then
    echo "findings/run.sh: there is no findings/$name.sh" >&2
    exit 2
  fi
  start=$SECONDS result=seen log="$(mktemp)"
  bash "./$name.sh" >"$log" 2>&1 || result=changed status=1
  printf '%-40s %-8s %d\n' "$name" "$result" $((SECONDS - start))
  if [[ "$result" == changed ]]; then tail -n 20 "$log" | sed 's/^/    /'; fi
  rm -f "$log"
done
exit "$status"
