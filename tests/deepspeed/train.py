# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
"""Trains a small model with DeepSpeed's 1-bit optimizers on the CPU, saves, goes on, and resumes.

    train.py FOLDER [CASE]   on each rank, with RANK, WORLD_SIZE, ... from the environment

For each case (without CASE: all but `alone`) FOLDER/CASE gets the checkpoint, the batches that
follow it (data.f32), and the parameters after these batches: of the job that was not stopped
(whole.RANK.f32) and of the one that resumed (resumed.RANK.f32). The jobs of AGAIN save once more
after their resume, under another name, with the number of squares that exp_avg_sq has averaged.
The classes of DeepSpeed are used as they are. Three things that they meet on the CPU only are put
right: see cupy_on_host, and the lines below.
"""

import os
import pathlib
import sys

import deepspeed
import numpy
import torch

# NCCL gathers a scalar into vectors of one element, Gloo refuses.
all_gather = deepspeed.comm.all_gather
deepspeed.comm.all_gather = lambda to, x, **o: all_gather(to, x.reshape(to[0].shape), **o)
# "Not supported" says that it is slow where the CPU has no instructions for it.
deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True

ROWS, INPUTS, OUTPUTS = 8, 40, (24, 9)
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
LR = 0.01

# name: optimizer, type, groups, (var_)freeze_step, step of the checkpoint, last step
CASES = {
    "alone": ("OneBitAdam", "fp32", 1, 1000, 30, 80),  # for a single rank
    "warm_up": ("OneBitAdam", "fp32", 1, 1000, 30, 80),
    "fp32": ("OneBitAdam", "fp32", 1, 40, 60, 260),
    "bf16": ("OneBitAdam", "bf16", 2, 40, 60, 260),
    "fp16": ("OneBitAdam", "fp16", 2, 40, 60, 260),
    "zero_one": ("ZeroOneAdam", "fp32", 1, 1000, 60, 260),
    "lamb": ("OneBitLamb", "fp32", 1, 40, 60, 260),
}
AGAIN = {"fp32": "twice", "zero_one": "zero_one_twice"}


class Model(torch.nn.Module):
    """Two linear layers on one input: a C++ program can compute the same gradients."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(INPUTS, OUTPUTS[0])
        self.second = torch.nn.Linear(INPUTS, OUTPUTS[1])
        self.register_buffer("calls", torch.zeros(3))  # in ["module"], and no parameter

    def forward(self, x):
        return torch.cat([self.first(x), self.second(x)], 1)


def optimum():
    """Returns weights and bias of each layer, side by side."""
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(n, INPUTS + 1, generator=draw) for n in OUTPUTS]


def batch(step, rank):
    """Returns inputs of different sizes, and noisy targets."""
    draw = torch.Generator().manual_seed(1000 + 64 * step + rank)
    x = torch.randn(ROWS, INPUTS, generator=draw) * torch.logspace(-0.5, 0, INPUTS)
    exact = torch.cat([x @ w[:, :-1].T + w[:, -1] for w in optimum()], 1)
    return x, exact + torch.randn(exact.shape, generator=draw)


def groups_of(model, n_groups):
    if n_groups == 1:
        return list(model.parameters())
    return [{"params": [model.first.weight, model.second.weight], "weight_decay": 0.01},
            {"params": [model.first.bias, model.second.bias], "weight_decay": 0.0}]


def engine_of(case):
    optimizer, kind, n_groups, freeze_step, _, _ = CASES[case]
    torch.manual_seed(0)
    model = Model()
    freeze = "var_freeze_step" if optimizer == "ZeroOneAdam" else "freeze_step"
    config = {
        "train_micro_batch_size_per_gpu": ROWS,
        "optimizer": {"type": optimizer, "params": {"lr": LR, freeze: freeze_step}},
    }
    if kind != "fp32":
        config[kind] = {"enabled": True}
        if kind == "fp16":
            config[kind]["initial_scale_power"] = 8
    return deepspeed.initialize(model=model, model_parameters=groups_of(model, n_groups),
                                config=config)[0]


def squares_of(engine):
    """Returns exp_avg_sq of a tensor, once there is one."""
    state = engine.optimizer.state.get(engine.module.first.weight, {})
    return state["exp_avg_sq"].clone() if "exp_avg_sq" in state else torch.zeros(1)


def train(engine, case, steps, rank):
    """Trains. Returns the number of steps that averaged squares, of the jobs of AGAIN."""
    n_squares = 0
    for step in steps:
        x, target = batch(step, rank)
        y = engine(x.to(TYPES[CASES[case][1]]))
        engine.backward((y.float() - target).square().sum() / (2 * ROWS))
        before = squares_of(engine) if case in AGAIN else None
        engine.step()
        n_squares += case in AGAIN and bool((squares_of(engine) != before).any())
    return n_squares


def write(engine, file):
    values = [t.detach().float().flatten() for t in engine.module.parameters()]
    torch.cat(values).numpy().tofile(file)


def main():
    root = pathlib.Path(sys.argv[1])
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    if rank == 0:
        best = [w.flatten() for layer in optimum() for w in (layer[:, :-1], layer[:, -1])]
        torch.cat(best).numpy().tofile(root / "optimum.f32")
    for case in sys.argv[2:] or [c for c in CASES if c != "alone"]:
        stop, end = CASES[case][-2:]
        folder = root / case
        folder.mkdir(parents=True, exist_ok=True)
        engine = engine_of(case)
        n_squares = train(engine, case, range(stop), rank)
        engine.save_checkpoint(str(folder / "checkpoint"))
        train(engine, case, range(stop, end), rank)
        write(engine, folder / f"whole.{rank}.f32")
        again = engine_of(case)
        assert again.load_checkpoint(str(folder / "checkpoint"))[0] is not None
        n_squares += train(again, case, range(stop, end), rank)
        write(again, folder / f"resumed.{rank}.f32")
        twice = root / AGAIN[case] if case in AGAIN else None
        if twice:  # a job that was resumed, as its checkpoint has it
            again.save_checkpoint(str(twice / "checkpoint"))
        if rank == 0:
            rows = [torch.cat(batch(step, r), 1).numpy() for step in range(stop, end)
                    for r in range(size)]
            numpy.concatenate(rows).tofile(folder / "data.f32")
            if twice:  # it repeats them
                numpy.concatenate(rows).tofile(twice / "data.f32")
                (twice / "squares").write_text(str(n_squares))


main()
