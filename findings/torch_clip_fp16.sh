#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
#
#   findings/torch_clip_fp16.sh [folder with a virtual environment that has the packages]
#
# torch 2.15.0, on the CPU. clip_grad_norm_ returns the norm in the gradients' own type. Of fp16 gradients a
# norm above 65504, the largest fp16, is infinite, though each gradient is finite. The factor is then
# max_norm / inf: all gradients become 0. Nothing is printed; error_if_nonfinite is off unless asked for.
# Scaled gradients have such norms early: a norm of 1 at a loss scale of 2^16 is enough. bf16 and
# float do as expected, and so does the largest element in place of the norm.
#
# Seen, of a million gradients of 100 and max_norm 1:
#     type     expected norm, gradient      seen
#     fp16     100000, 0.001                inf, 0
#     fp32     100000, 0.001                99937, 0.001
# Fails if fp16 gradients are not 0, or fp32 ones are.
#
# For users who clip before they hand fp16 gradients over: onebit sees zeros, which are finite, and keeps the
# step. Use max_grad_norm: it adds squares in float, after the loss scale is divided out.
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


def clipped(dtype, foreach):
    w = torch.nn.Parameter(torch.zeros(10**6, dtype=dtype))
    w.grad = torch.full_like(w, 100.0)
    norm = torch.nn.utils.clip_grad_norm_([w], 1.0, foreach=foreach)
    return float(norm), float(w.grad.min()), float(w.grad.max())


for foreach in (False, True):
    half, single = clipped(torch.float16, foreach), clipped(torch.float32, foreach)
    print(f"SEEN foreach={foreach}: fp16 norm {half[0]:g}, gradient {half[2]:g}; "
          f"fp32 norm {single[0]:g}, gradient {single[2]:g}")
    assert half == (float("inf"), 0.0, 0.0), "fp16 gradients survive now"
    assert abs(single[0] - 1e5) < 100 and abs(single[2] - 1e-3) < 1e-5
PYTHON
"$venv/bin/python" "$work/seen.py" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
grep SEEN "$work/log"
