#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
#
#   findings/gloo_strided.sh [folder with a virtual environment that has the packages]
#
# torch 2.15.0, torch.distributed over Gloo, two ranks on the CPU. all_reduce of a view with a stride,
# x[::2]: one expects the sums in the elements of the view, or an error. Gloo takes as many elements
# as the view has, in a row from its first: elements of x that are not in the view are summed, and
# the last ones of the view are not. No error, no warning.
#
# Seen, of x = 0 1 2 3 4 5 on both ranks, after all_reduce(x[::2]):
#     expected 0 1 4 3 8 5, seen 0 2 4 3 4 5
# Fails if x is anything else.
#
# For users who reduce views themselves: .contiguous() first, and copy back. onebit's tensors are spans.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
venv=${1:-}
if [[ -z "$venv" ]]; then
  venv="$work/venv"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet torch==2.15.0 numpy==2.4.6
fi
cat >"$work/seen.py" <<'PYTHON'
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.arange(6.0)
dist.all_reduce(x[::2])
print("SEEN", *(f"{v:g}" for v in x.tolist()))
assert x.tolist() == [0, 2, 4, 3, 4, 5]
dist.destroy_process_group()
PYTHON
export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + RANDOM % 10000)) OMP_NUM_THREADS=1
RANK=1 "$venv/bin/python" "$work/seen.py" >"$work/log1" 2>&1 &
RANK=0 "$venv/bin/python" "$work/seen.py" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
wait $!
grep SEEN "$work/log"
