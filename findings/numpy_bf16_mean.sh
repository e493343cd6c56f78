#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
#
#   findings/numpy_bf16_mean.sh [folder with a virtual environment that has the packages]
#
# numpy 2.4.6 with ml_dtypes 0.6.0, whose bfloat16 is how checkpoints in bf16 become arrays. numpy takes the mean
# of float16 in float32. Of bfloat16 it adds in bfloat16, where 256 + 1 is 256: sum, mean, var and std are wrong
# from some hundred elements on, and no warning comes. numpy.linalg.norm converts first, and is right.
#
# Seen, of ones:                        expected       seen
#     float16, 1000: sum, mean          1000, 1        1000, 1
#     bfloat16, 1000: sum, mean         1000, 1        256, 0.256
#     bfloat16, 100000: mean            1              0.00256
#     bfloat16, 1000: norm              31.6           31.6
# Fails if one of these changes.
#
# For users who look at exported parameters or moments: .astype(numpy.float32) first.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
venv=${1:-}
if [[ -z "$venv" ]]; then
  venv="$work/venv"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet numpy==2.4.6 ml_dtypes==0.6.0
fi
cat >"$work/seen.py" <<'PYTHON'
import ml_dtypes
import numpy as np


def seen(dtype, n):
    ones = np.ones(n, dtype)
    return tuple(float(f"{float(x):.3g}") for x in (ones.sum(), ones.mean(), np.linalg.norm(ones)))


half, brain, long = seen(np.float16, 1000), seen(ml_dtypes.bfloat16, 1000), seen(ml_dtypes.bfloat16, 100000)
for name, values in (("float16, 1000", half), ("bfloat16, 1000", brain), ("bfloat16, 100000", long)):
    print(f"SEEN {name}: sum {values[0]:g}, mean {values[1]:g}, norm {values[2]:g}")
assert half == (1000, 1, 31.6)
assert brain == (256, 0.256, 31.6), "numpy adds bfloat16 otherwise now"
assert long[1] == 0.00256
PYTHON
"$venv/bin/python" "$work/seen.py" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
grep SEEN "$work/log"
