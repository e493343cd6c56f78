#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
#
#   findings/deepspeed_fp32_resume.sh [folder with a virtual environment that has the packages]
#
# DeepSpeed 0.19.6, torch 2.15.0, two ranks on the CPU. The first step of an fp32 job with OneBitAdam
# after load_checkpoint makes buffers. It drops its gradient, changes no parameter, counts as a step,
# and sends the momentum through the compressed all-reduce, although the job is in its warm-up: of
# each tensor's momentum only the signs remain, at one size. Nothing is said of it. (With bf16 and
# fp16 this step happens on a momentum of 0, before the checkpoint is loaded.)
#
# Seen, of a tensor of 64 elements, resumed at step 5 of a warm-up of 1000:
#     step 5: 64 magnitudes in exp_avg; step 6: 1 magnitude, the parameters moved by 0
# Fails if the momentum keeps its magnitudes, or the parameters move.
#
# CuPy and NCCL need a GPU: CuPy's functions are NumPy's here, and Gloo, unlike NCCL, refuses to gather
# a scalar into vectors of one element, so that scalars become such vectors.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
venv=${1:-}
if [[ -z "$venv" ]]; then
  venv="$work/venv"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet deepspeed==0.19.6 torch==2.15.0 numpy==2.4.6
fi
cat >"$work/cupy.py" <<'PYTHON'
from types import SimpleNamespace

import torch
from numpy import packbits, split, unpackbits, zeros  # noqa: F401


def from_dlpack(capsule):
    return torch.utils.dlpack.from_dlpack(capsule).numpy()


cuda = SimpleNamespace(Device=lambda _: SimpleNamespace(use=lambda: None),
                       get_current_stream=lambda: SimpleNamespace(synchronize=lambda: None))
PYTHON
cat >"$work/seen.py" <<'PYTHON'
import sys

import deepspeed
import torch

all_gather = deepspeed.comm.all_gather
deepspeed.comm.all_gather = lambda to, x, **o: all_gather(to, x.reshape(to[0].shape), **o)
deepspeed.init_distributed(dist_backend="gloo", verbose=False)


def make():
    torch.manual_seed(0)
    return deepspeed.initialize(model=torch.nn.Linear(64, 1, bias=False), config={
        "train_micro_batch_size_per_gpu": 4,
        "optimizer": {"type": "OneBitAdam", "params": {"lr": 0.01, "freeze_step": 1000}}})[0]


def step(engine, n):
    torch.manual_seed(n)
    engine.backward(engine(torch.randn(4, 64)).square().mean())
    engine.step()


job = make()
for n in range(5):
    step(job, n)
job.save_checkpoint(sys.argv[1])
again = make()
again.load_checkpoint(sys.argv[1])
w = again.module.weight
state = again.optimizer.state[w]
before, parameters = len(state["exp_avg"].abs().unique()), w.detach().clone()
step(again, 5)
state = again.optimizer.state[w]
after, moved = len(state["exp_avg"].abs().unique()), float((w - parameters).detach().abs().max())
print(f"SEEN step 5: {before} magnitudes in exp_avg; step {state['step']}: {after} magnitude, "
      f"the parameters moved by {moved:g}")
assert before == 64 and state["step"] == 6
assert after == 1 and moved == 0, "a resume keeps the momentum now, or learns"
PYTHON
export WORLD_SIZE=2 LOCAL_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + RANDOM % 10000))
export DS_ACCELERATOR=cpu OMP_NUM_THREADS=1 PYTHONPATH="$work"
RANK=1 LOCAL_RANK=1 "$venv/bin/python" "$work/seen.py" "$work/saved" >"$work/log1" 2>&1 &
RANK=0 LOCAL_RANK=0 "$venv/bin/python" "$work/seen.py" "$work/saved" >"$work/log" 2>&1 ||
  { cat "$work/log" >&2; exit 1; }
wait $!
grep SEEN "$work/log"
