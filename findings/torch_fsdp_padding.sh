#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
#
#   findings/torch_fsdp_padding.sh [folder with a virtual environment that has the packages]
#
# torch 2.15.0, two ranks on the CPU over Gloo. FullyShardedDataParallel with use_orig_params=True lays the
# parameters of a module out in one flat parameter. One expects them side by side, and zeros where
# padding is needed. Each begins at a multiple of 16 bytes, and the padding is 42.0, between the
# parameters and at the end. It stays 42 in training, and LOCAL_STATE_DICT saves it in _flat_param.
# With use_orig_params=False there is none between parameters.
#
# Seen, of parameters of three 1, five 2 and two 3, before training:
#     expected     1 1 1 2 2 | 2 2 2 3 3
#     seen         1 1 1 42 2 2 2 | 2 2 42 42 42 3 3
# Fails if the flat parameter is anything else, or the saved one is.
#
# For users who read flat shards as raw floats: cut them at flat_param._numels_with_padding, or save with
# FULL_STATE_DICT. Trained as parameters, 42s dominate norms: LAMB's ratio, and clipping of weights.
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
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for value, (name, size) in enumerate({"a": 3, "b": 5, "c": 2}.items(), start=1):
            setattr(self, name, torch.nn.Parameter(torch.full((size,), float(value))))

    def forward(self):
        return self.a.sum() + self.b.sum() + self.c.sum()


def gathered(shard):
    shards = [None, None]
    dist.all_gather_object(shards, [float(f"{x:.3g}") for x in shard.tolist()])
    return shards


def shards_of(original):
    model = FullyShardedDataParallel(Model(), use_orig_params=original, device_id=torch.device("cpu"))
    before = gathered(model._handle.flat_param.detach())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, weight_decay=0.1)
    model().backward()
    optimizer.step()
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.LOCAL_STATE_DICT):
        saved = model.state_dict()["_flat_param"].local_tensor()
    return before, gathered(saved)


dist.init_process_group("gloo")
before, saved = shards_of(True)
plain, _ = shards_of(False)
print("SEEN", *(" ".join(f"{x:g}" for x in shard) for shard in before), sep=" | ")
print("SEEN saved after a step", *(" ".join(f"{x:g}" for x in shard) for shard in saved), sep=" | ")
assert before == [[1, 1, 1, 42, 2, 2, 2], [2, 2, 42, 42, 42, 3, 3]]
assert saved == [[-0.1, -0.1, -0.1, 42, 0.8, 0.8, 0.8], [0.8, 0.8, 42, 42, 42, 1.7, 1.7]]
assert plain == [[1, 1, 1, 2, 2], [2, 2, 2, 3, 3]]
dist.destroy_process_group()
PYTHON
export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + RANDOM % 10000)) OMP_NUM_THREADS=1
RANK=1 "$venv/bin/python" "$work/seen.py" >"$work/log1" 2>&1 &
RANK=0 "$venv/bin/python" "$work/seen.py" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
wait $!
grep SEEN "$work/log"
