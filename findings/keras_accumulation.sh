#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
#
#   findings/keras_accumulation.sh [folder with a virtual environment that has the packages]
#
# keras 3.15.1 on torch 2.15.0, on the CPU. With gradient_accumulation_steps an optimizer averages so many
# gradients, then updates. optimizer.iterations counts updates, as one expects. The variable `iteration`
# that is saved counts batches, and learning rate schedules are asked with batches: with 4 a
# schedule over 1000 updates is over after 250. In the saved variables the accumulators stand
# between the rate and the moments. Nothing is printed.
#
# Seen, Adam, gradient_accumulation_steps=4, 8 batches:
#     asked                                        expected              seen
#     optimizer.iterations                         2                     2
#     `iteration` in the saved file (vars/0)       2                     8
#     steps that the schedule was asked with       0 1                   3 7
#     vars/2, vars/3 of two parameters             momentum, velocity    two accumulators
# Fails if one of these changes.
#
# For users who give such moments to start_from: `steps` is a quarter of the saved `iteration`, and the
# moments are from vars/4 on, m and v of each parameter in turn.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
venv=${1:-}
if [[ -z "$venv" ]]; then
  venv="$work/venv"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet keras==3.15.1 torch==2.15.0 numpy==2.4.6 h5py==3.16.0
fi
cat >"$work/seen.py" <<'PYTHON'
import io
import sys
import zipfile

import h5py
import keras
import numpy as np

asked = []


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        asked.append(int(step))
        return 1e-3

    def get_config(self):
        return {}


def train(rate):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(rate, gradient_accumulation_steps=4), "mse")
    model.fit(np.ones((32, 2)), np.ones((32, 1)), batch_size=4, epochs=1, verbose=0)
    return model


train(Schedule())
model = train(1e-3)
model.save(sys.argv[1])
updates = int(model.optimizer.iterations)
with zipfile.ZipFile(sys.argv[1]) as saved:
    held = h5py.File(io.BytesIO(saved.read("model.weights.h5")))["optimizer/vars"]
    batches = int(held["0"][()])
    shapes = [held[str(i)].shape for i in range(2, len(held))]
    idle = [float(np.abs(held[str(i)][()]).max()) for i in (2, 3)]
print(f"SEEN iterations {updates}, saved iteration {batches}, schedule asked with {sorted(set(asked))}, "
      f"shapes from vars/2 on {shapes}, largest values of vars/2 and vars/3 {idle}")
assert updates == 2 and batches == 8, "batches or updates are counted otherwise now"
assert sorted(set(asked)) == [3, 7], "schedules count updates now"
assert shapes == [(2, 1), (1,), (2, 1), (2, 1), (1,), (1,)] and idle == [0, 0]
PYTHON
KERAS_BACKEND=torch "$venv/bin/python" "$work/seen.py" "$work/model.keras" >"$work/log" 2>&1 ||
  { cat "$work/log" >&2; exit 1; }
grep SEEN "$work/log"
