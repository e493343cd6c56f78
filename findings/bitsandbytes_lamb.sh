#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
#
#   findings/bitsandbytes_lamb.sh [folder with a virtual environment that has the packages]
#
# bitsandbytes 0.50.2, torch 2.15.0, on the CPU (its code for torch.compile has the same lines). LAMB
# multiplies the update by norm(parameters) / norm(update), or by 1 where one of them is 0. The class LAMB
# of bitsandbytes multiplies by min(1, norm(parameters) / norm(update)): a tensor that starts at 0, as biases
# do, stays 0 for ever, and one whose norm is above the update's gets Adam's step. bias_correction=False
# and adam_w_mode=False change nothing. Nothing is printed.
#
# Seen, of tensors of 64 equal elements, gradients of 1 and a rate of 0.01:
#     elements     expected first step     seen
#     100          1                       0.01
#     0            0.01                    0, also after 100 steps
# Fails if one of these changes.
#
# For users who compare onebit's LAMB with it, or move here: the learning rate means something else.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
venv=${1:-}
if [[ -z "$venv" ]]; then
  venv="$work/venv"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet bitsandbytes==0.50.2 torch==2.15.0 numpy==2.4.6
fi
cat >"$work/seen.py" <<'PYTHON'
import bitsandbytes
import torch


def moved(start, steps, **options):
    w = torch.nn.Parameter(torch.full((64,), start))
    lamb = bitsandbytes.optim.LAMB([w], lr=0.01, **options)
    for _ in range(steps):
        w.grad = torch.ones(64)
        lamb.step()
    return start - float(w.detach()[0])


large, zero, later = moved(100.0, 1), moved(0.0, 1), moved(0.0, 100)
print(f"SEEN first step from 100: {large:.3g}, from 0: {zero:g}; 100 steps from 0: {later:g}")
same = all(moved(0.5, 5, **{name: False}) == moved(0.5, 5) for name in ("bias_correction", "adam_w_mode"))
print(f"SEEN bias_correction=False and adam_w_mode=False change nothing: {same}")
assert abs(large - 0.01) < 1e-4, "the ratio may be above 1 now"
assert zero == 0 and later == 0, "parameters of 0 are trained now"
assert same, "bias_correction or adam_w_mode counts now"
PYTHON
"$venv/bin/python" "$work/seen.py" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
grep SEEN "$work/log"
