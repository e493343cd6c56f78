#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
#
#   findings/hivemind_compression.sh [folder with a virtual environment that has the packages]
#
# hivemind 1.1.12, torch 2.15.0, on the CPU: two of its 8-bit codecs for tensors that peers average. With numpy 2.4 neither decodes (a TypeError), with 2.3.5 they do. Then, silently:
#   UNIFORM_8BIT with allow_inplace=True, which may overwrite its input, loses the mean of the tensor; its
#       range ends at 3 standard deviations, and all beyond it arrive as one average
#   QUANTILE_8BIT has as many elements in each of its bins: the largest 3900 of a million arrive as one
#   Both turn all elements of a tensor with one NaN into NaN
#
# Seen:                                           UNIFORM_8BIT   QUANTILE_8BIT
#     5 + normal numbers, in place: mean          0              5
#     1000 among a million normal numbers         below 200      below 10
#     one NaN among 1000: finite elements         0              0
# Fails if one of these changes.
#
# For users who compare codecs: test with a mean, an outlier and a NaN. onebit skips a step with a NaN.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
venv=${1:-}
if [[ -z "$venv" ]]; then
  venv="$work/venv"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet hivemind==1.1.12 torch==2.15.0 numpy==2.3.5
fi
cat >"$work/seen.py" <<'PYTHON'
import torch
from hivemind.compression import deserialize_torch_tensor, serialize_torch_tensor
from hivemind.proto.runtime_pb2 import CompressionType

torch.manual_seed(0)
torch.set_num_threads(1)


def arrived(codec, x, **options):
    sent = serialize_torch_tensor(x.clone(), CompressionType.Value(codec), **options)
    return deserialize_torch_tensor(sent)


def seen(codec):
    mean = float(arrived(codec, torch.randn(10000) + 5, allow_inplace=True).mean())
    x = torch.randn(1000000)
    x[-1] = 1000
    outlier = float(arrived(codec, x)[-1])
    x = torch.randn(1000)
    x[-1] = float("nan")
    nan = arrived(codec, x)
    finite = int(nan.isfinite().sum())
    print(f"SEEN {codec}: mean {abs(mean):.3f}, 1000 arrives as {outlier:.4g}, "
          f"{finite} finite elements beside a NaN")
    return mean, outlier, finite


mean, outlier, finite = seen("UNIFORM_8BIT")
assert abs(mean) < 0.01 and outlier < 200 and finite == 0
mean, outlier, finite = seen("QUANTILE_8BIT")
assert abs(mean - 5) < 0.1 and outlier < 10 and finite == 0
PYTHON
"$venv/bin/python" "$work/seen.py" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
grep SEEN "$work/log"
