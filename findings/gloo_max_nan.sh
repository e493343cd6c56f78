#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
#
#   findings/gloo_max_nan.sh [folder with a virtual environment that has the packages]
#
# torch 2.15.0, torch.distributed over Gloo, two ranks on the CPU. all_reduce with ReduceOp.MAX or MIN of a
# tensor that is NaN on one rank: one expects NaN in each element, on all ranks. Which rank's value is
# compared with which depends on the position, so that some elements are NaN, and others are the value
# of the other rank. A scalar (a norm, a loss, that all ranks look at to skip a step) is NaN if rank 0's
# is, and an ordinary number if rank 1's is.
#
# Seen, NaN on rank 0 and 1.0 on rank 1 and the other way round:
#     1 element:     NaN on rank 0 arrives, NaN on rank 1 does not
#     3 elements:    some are NaN, the others 1, on all ranks alike
# Fails if NaN arrives, or is lost, everywhere.
#
# For users who decide by such a maximum: reduce a flag (norm is finite), or a sum.
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
rank = dist.get_rank()


def reduced(op, size, nan_on):
    x = torch.full((size,), float("nan") if rank == nan_on else 1.0)
    dist.all_reduce(x, op)
    return x.tolist()


same, mixed = True, True
for name, op in (("MAX", dist.ReduceOp.MAX), ("MIN", dist.ReduceOp.MIN)):
    for nan_on in (0, 1):
        one, three = reduced(op, 1, nan_on), reduced(op, 3, nan_on)
        if rank == 0:
            print(f"SEEN {name}, NaN on rank {nan_on}: of 1 element {one}, of 3 {three}")
        lost = [v == 1.0 for v in three]
        mixed = mixed and any(lost) and not all(lost)
        same = same and (one == [1.0]) == (nan_on == 1)
assert same, "a NaN of rank 1 arrives now, or one of rank 0 does not"
assert mixed, "all elements have the same fate now"
dist.destroy_process_group()
PYTHON
export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + RANDOM % 10000)) OMP_NUM_THREADS=1
RANK=1 "$venv/bin/python" "$work/seen.py" >"$work/log1" 2>&1 &
RANK=0 "$venv/bin/python" "$work/seen.py" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
wait $!
grep SEEN "$work/log"
