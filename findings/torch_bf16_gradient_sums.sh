#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
#
#   findings/torch_bf16_gradient_sums.sh [folder with a virtual environment that has the packages]
#
# torch 2.15.0, on the CPU. The gradient of a bias is a sum over the rows of a batch, that of an embedding's row a
# sum over its uses. Layers in bf16 add in float and round once, as one expects: Linear, RMSNorm, GroupNorm,
# convolutions. LayerNorm and Embedding add in bf16, where 256 + 1 is 256: LayerNorm so in each thread, so
# that its gradients depend on the number of threads. fp32 parameters under bf16 autocast do not help. fp16
# stops at 2048. Nothing is printed.
#
# Seen, 8192 rows, a gradient of 1 from each:     threads     expected     seen
#     Linear, bias; RMSNorm, weight               1           8192         8192
#     LayerNorm, bias                             1           8192         256
#     LayerNorm, bias                             2           8192         512
#     LayerNorm in fp32, bf16 autocast, bias      1           8192         256
#     Embedding, one row used 8192 times          1           8192         256
# Fails if one of these changes.
#
# For users who train in bf16 on the CPU: these gradients are up to batch / 256 times too small, and differ between
# ranks with other numbers of threads. Keep these layers and their inputs in float.
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
from torch import nn

ROWS, BF16 = 8192, torch.bfloat16


def gradient(of, layer, batch, autocast=False):
    with torch.autocast("cpu", dtype=BF16, enabled=autocast):
        out = layer(batch)
    out.sum().backward()
    return float(getattr(layer, of).grad.flatten()[0])


def seen(threads):
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    normal, ones = torch.randn(ROWS, 8).to(BF16), torch.ones(ROWS, 8, dtype=BF16)
    return {"Linear": gradient("bias", nn.Linear(8, 2, dtype=BF16), normal),
            "RMSNorm": gradient("weight", nn.RMSNorm(8, dtype=BF16), ones),
            "LayerNorm": gradient("bias", nn.LayerNorm(8, dtype=BF16), normal),
            "LayerNorm fp32, autocast": gradient("bias", nn.LayerNorm(8), normal, autocast=True),
            "Embedding": gradient("weight", nn.Embedding(4, 8, dtype=BF16),
                                  torch.zeros(ROWS, dtype=torch.long))}


one, two = seen(1), seen(2)
for name, value in one.items():
    print(f"SEEN {name}: {value:g} with one thread, {two[name]:g} with two")
assert one["Linear"] == one["RMSNorm"] == ROWS
assert one["LayerNorm"] == one["LayerNorm fp32, autocast"] == 256, "LayerNorm adds in float now"
assert two["LayerNorm"] == 512, "threads add otherwise now"
assert one["Embedding"] == 256, "Embedding adds in float now"
PYTHON
"$venv/bin/python" "$work/seen.py" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
grep SEEN "$work/log"
