#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
#
#   findings/torch_fresh_optimizer_state.sh [folder with a virtual environment that has the packages]
#
# torch 2.15.0, on the CPU. distributed.checkpoint.state_dict.get_optimizer_state_dict reads the state of an
# optimizer. Called before the first step it makes a step: gradients of 0, a rate of 0, and then leaves
# what that did in the optimizer and in the checkpoint. `step` is 1, so that bias correction counts a
# gradient that never was; decay that is added to gradients (Adam, SGD) is in the momentum. Where
# gradients are there already no step is made, and the state is empty. Nothing is printed.
#
# Seen, of a job that saves before its first step, and of one that loads that checkpoint:
#     asked                                           expected    seen
#     `step` of AdamW in the checkpoint               0           1
#     AdamW's first step, in rates, after saving      1           0.744
#     the same after loading                          1           0.744
#     Adam, weight_decay 0.1, weights of 2: exp_avg   0           0.02
#     AdamW with gradients of its first batch         no state    no state
# Fails if one of these changes.
#
# For users who give such moments to start_from: its `steps` counts squares, of which there is one fewer than
# `step` says. Save after the first step, or start without moments.
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
import sys

import torch
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import (get_model_state_dict, get_optimizer_state_dict,
                                                     set_model_state_dict, set_optimizer_state_dict)

RATE = 0.01


def make(kind=torch.optim.AdamW, decay=0.0):
    model = torch.nn.Linear(4, 4, bias=False)
    torch.nn.init.constant_(model.weight, 2.0)
    return model, kind(model.parameters(), lr=RATE, weight_decay=decay)


def first_step(model, optimizer):
    model.weight.grad = torch.ones(4, 4)
    optimizer.step()
    return float((2.0 - model.weight.detach()).mean()) / RATE


def states(model, optimizer):
    return {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}


undisturbed = first_step(*make())
job = make()
saved = states(*job)
counted = float(saved["optimizer"]["state"]["weight"]["step"])
checkpoint.save(saved, checkpoint_id=sys.argv[1], no_dist=True)
after_saving = first_step(*job)

job = make()
loaded = states(*job)
checkpoint.load(loaded, checkpoint_id=sys.argv[1], no_dist=True)
set_model_state_dict(job[0], loaded["model"])
set_optimizer_state_dict(*job, loaded["optimizer"])
after_loading = first_step(*job)

decayed = get_optimizer_state_dict(*make(torch.optim.Adam, 0.1))["state"]["weight"]["exp_avg"]
model, optimizer = make()
model.weight.grad = torch.ones(4, 4)
with_gradients = get_optimizer_state_dict(model, optimizer)["state"]

print(f"SEEN step {counted:g}; first step {undisturbed:.3f} rates, after saving {after_saving:.3f}, "
      f"after loading {after_loading:.3f}; exp_avg of decay {float(decayed[0, 0]):.3g}; "
      f"with gradients {len(with_gradients)} states")
assert abs(undisturbed - 1) < 1e-3
assert counted == 1, "a fresh optimizer is saved as it is now"
assert abs(after_saving - 0.744) < 1e-3 and abs(after_loading - 0.744) < 1e-3
assert abs(float(decayed[0, 0]) - 0.02) < 1e-6 and not with_gradients
PYTHON
"$venv/bin/python" "$work/seen.py" "$work/saved" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
grep SEEN "$work/log"
