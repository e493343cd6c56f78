#!/usr/bin/env bash
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
#
#   findings/deepspeed_fp16_loss_scale.sh [folder with a virtual environment that has the packages]
#
# DeepSpeed 0.19.6, torch 2.15.0, on the CPU. With fp16 and no ZeRO (1-bit optimizers refuse ZeRO)
# engine.backward(loss) does not multiply the loss by the loss scale: it does so for ZeRO's optimizers
# alone. FP16_Optimizer.step divides the gradients by the scale all the same. So gradients reach the
# optimizer divided by the loss scale (65536 at first), small gradients underflow in fp16 as without
# a scale, and gradient_clipping (1.0 unless given) acts at 65536 times its value. Nothing is printed.
# exp_avg is 1/scale and exp_avg_sq 1/scale^2 of their values in fp32, eps weighs `scale` times
# more, and a doubled scale halves the gradients.
#
# Seen, of a loss whose gradient is 1 in each element:
#     fp32: exp_avg 0.1 after a step
#     fp16, loss scale 65536: exp_avg times the scale 0.1
# Fails if exp_avg is 0.1 in fp16, too.
#
# For users who move here: moments of such a job must be multiplied by the scale and its square.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
venv=${1:-}
if [[ -z "$venv" ]]; then
  venv="$work/venv"
  python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet deepspeed==0.19.6 torch==2.15.0 numpy==2.4.6
fi
# CuPy, which DeepSpeed imports here, does nothing with one rank.
echo >"$work/cupy.py"
cat >"$work/seen.py" <<'PYTHON'
import deepspeed
import torch

# DeepSpeed asks for CPUs with fast fp16; the arithmetic is the same without.
deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True
deepspeed.init_distributed(dist_backend="gloo", verbose=False)


class Sum(torch.nn.Module):
    """The sum of 8 parameters: their gradients are 1."""

    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(8))

    def forward(self, x):
        return (self.w * x).sum()


def exp_avg(config, dtype):
    engine = deepspeed.initialize(model=Sum(), config={
        "train_micro_batch_size_per_gpu": 1, "gradient_clipping": 0.0,
        "optimizer": {"type": "OneBitAdam", "params": {"lr": 0.01}}, **config})[0]
    for step in range(2 if not config else 1):  # fp32: the first step only makes buffers
        engine.backward(engine(torch.ones(8, dtype=dtype)))
        engine.step()
    inner = getattr(engine.optimizer, "optimizer", engine.optimizer)
    return float(next(iter(inner.state.values()))["exp_avg"][0]), engine.optimizer


plain, _ = exp_avg({}, torch.float32)
half, optimizer = exp_avg({"fp16": {"enabled": True, "hysteresis": 1}}, torch.float16)
scale = optimizer.loss_scale_config.cur_scale
print(f"SEEN fp32: exp_avg {plain:.3g}")
print(f"SEEN fp16, loss scale {scale:g}: exp_avg {half:.3g}, times the scale {half * scale:.3g}")
assert abs(plain - 0.1) < 1e-6 and scale > 1
assert abs(half * scale - 0.1) < 1e-3, "exp_avg is not divided by the loss scale any more"
PYTHON
RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 LOCAL_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + RANDOM % 10000)) \
  DS_ACCELERATOR=cpu PYTHONPATH="$work" "$venv/bin/python" "$work/seen.py" >"$work/log" 2>&1 ||
  { cat "$work/log" >&2; exit 1; }
grep SEEN "$work/log"
