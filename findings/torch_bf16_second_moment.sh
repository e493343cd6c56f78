#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
#
#   findings/torch_bf16_second_moment.sh [folder with a virtual environment that has the packages]
#
# torch 2.15.0, on the CPU. torch.optim.AdamW keeps the moments of bf16 parameters in bf16. With its
# default beta2 of 0.999 exp_avg_sq times 0.999 rounds to exp_avg_sq: it never falls. One large
# gradient counts for ever, and the growth stops far below the average, at another value for fused=True.
# The denominator is then wrong by a constant factor, whatever `step` says. Nothing is printed.
#
# Seen of exp_avg_sq, after                    fp32      bf16     bf16, fused=True
#     3000 gradients of 1                      0.950     0.5      0.25
#     one gradient of 10, 5000 of 0.1          0.0106    0.1      0.1
#     1000 gradients of 1, 3000 of 0           0.0314    0.5      0.25
# Fails if a value of bf16 changes.
#
# For users who give such moments to start_from: v is up to 4 times too small, or too large without a bound.
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

torch.set_num_threads(1)
JOBS = {"3000 of 1": ((3000, 1.0),), "10, 5000 of 0.1": ((1, 10.0), (5000, 0.1)),
        "1000 of 1, 3000 of 0": ((1000, 1.0), (3000, 0.0))}


def second_moment(job, dtype, **options):
    w = torch.nn.Parameter(torch.zeros(4, dtype=dtype))
    adam = torch.optim.AdamW([w], lr=0.0, **options)
    for steps, gradient in job:
        w.grad = torch.full((4,), gradient, dtype=dtype)
        for _ in range(steps):
            adam.step()
    return float(adam.state[w]["exp_avg_sq"][0])


seen = {}
for name, job in JOBS.items():
    values = (second_moment(job, torch.float32), second_moment(job, torch.bfloat16),
              second_moment(job, torch.bfloat16, fused=True))
    seen[name] = tuple(float(f"{v:.3g}") for v in values)
    print(f"SEEN {name}: fp32 {values[0]:.3g}, bf16 {values[1]:.3g}, fused {values[2]:.3g}")
assert seen == {"3000 of 1": (0.95, 0.5, 0.25), "10, 5000 of 0.1": (0.0106, 0.1, 0.1),
                "1000 of 1, 3000 of 0": (0.0314, 0.5, 0.25)}
PYTHON
"$venv/bin/python" "$work/seen.py" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
grep SEEN "$work/log"
