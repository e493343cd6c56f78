#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
"""Writes what a DeepSpeed job with a 1-bit optimizer has learned as raw floats.

    python3 export.py CHECKPOINT FOLDER [--names FILE] [--resumed STEP ...]

CHECKPOINT is a file mp_rank_00_model_states.pt, or the folder that was given to save_checkpoint
(its newest step is taken). Of a model that is split over model-parallel ranks it must be a file:
each part has one, and gets a FOLDER of its own. DeepSpeed itself is not needed, only torch. FOLDER
gets

    parameters.f32  exp_avg.f32  exp_avg_sq.f32   float32, one tensor after the other
    tensors.txt                                   "steps N": the squares that exp_avg_sq averages;
                                                  "group WEIGHT_DECAY" starts a parameter group,
                                                  "tensor ELEMENTS NAME" is a tensor of it
    optimizer.json                                type and params for onebit::make_optimizer, with
                                                  what is left of the warm-up, and the clipping

Parameters are the fp32 masters where the job trained in bf16 or fp16. A checkpoint says neither
which parameter is in which group nor which was not trained: a job with several groups, or with
frozen or tied parameters, needs --names, a file with the names of the optimizer's parameters, one
a line, in the order in which the groups listed them.

ZeroOneAdam counts the squares of exp_avg_sq anew when DeepSpeed resumes a job. The script adds the
squares before that as if the job was resumed once, and says so; --resumed gives the steps at which
DeepSpeed resumed it, all of them, and makes the count exact.
"""

import argparse
import json
import math
import pathlib
import re
import sys

import torch

UNSCALED = (0, 18, 4), (0, 19, 6)  # the first and last release with unit_of's fault that were looked at
TYPES = ("onebitadam", "onebitlamb", "zerooneadam")


def fail(text):
    sys.exit(f"export.py: {text}")


def load(path):
    named = not path.is_dir()
    if not named:
        path = path / (path / "latest").read_text().strip() / "mp_rank_00_model_states.pt"
    checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    parts = checkpoint.get("mp_world_size", 1)
    if parts != 1:
        names = ", ".join(f"mp_rank_{r:02}_model_states.pt" for r in range(min(parts, 4)))
        text = f"the model is split over {parts} model-parallel ranks"
        if not named:
            fail(f"{text}, and each has a file of its own in {path.parent}: {names}"
                 f"{', ...' if parts > 4 else ''}; run export.py {parts} times, with each file as "
                 "CHECKPOINT and another FOLDER for each. Then let each rank of the new job train "
                 "the part that its rank had, with an optimizer of its own, and connect these by "
                 "join_model_parallel")
        print(f"export.py: {text}: {path.name} holds one part", file=sys.stderr)
    return checkpoint


def optimizer_of(checkpoint):
    """Returns type and params of the configuration, and the optimizer's own state."""
    if checkpoint["module"] is None:
        fail("the parameters are not in this file: the job had pipeline stages, which save each "
             "layer in a file of its own (layer_*-model_states.pt); this script does not read them")
    config = checkpoint["ds_config"]["optimizer"]
    if config["type"].lower() not in TYPES:
        fail(f"the optimizer is {config['type']}, none of {', '.join(TYPES)}")
    state = checkpoint["optimizer"]
    return config, state


def tensors_of(checkpoint, state, names):
    """Returns groups of (name, parameters, exp_avg, exp_avg_sq), and the optimizer's step.

    fp32 jobs have a state for each parameter, bf16 and fp16 jobs a flat one for each group (for each
    parameter in 1-bit LAMB), with the masters beside it.
    """
    module = checkpoint["module"]
    remedy = "; list the optimizer's parameters in the order of its groups with --names"
    if names is None:
        names = [n for n in module if n not in checkpoint["buffer_names"]]
    unknown = [n for n in names if n not in module]
    if unknown:
        fail(f"there is no parameter {unknown[0]}; there are {', '.join(module)}")
    flat = state.get("fp32_groups_flat")
    masters = [[g] for g in flat] if flat is not None else state.get("fp32_groups")
    inner = state.get("optimizer_state_dict", state)
    left, groups = list(names), []
    for index, group in enumerate(inner["param_groups"]):
        tensors = []
        for place, key in enumerate(group["params"]):
            own, first = inner["state"].get(key), 0
            while left:
                name = left.pop(0)
                parameter = module[name]
                if own is None:  # it never had a gradient
                    own = dict.fromkeys(("exp_avg", "exp_avg_sq"), torch.zeros_like(parameter))
                held = own["exp_avg"]
                end = first + parameter.numel()
                if end > held.numel() or (flat is None and held.shape != parameter.shape):
                    fail(f"{name} has the shape {tuple(parameter.shape)}, its place in group {index} "
                         f"is element {first} of {tuple(held.shape)}{remedy}")
                values = parameter if masters is None else masters[index][place]
                values = [x.detach().flatten()[first:end].float()
                          for x in (values, own["exp_avg"], own["exp_avg_sq"])]
                if not torch.equal(values[0].to(parameter.dtype), parameter.flatten()):
                    fail(f"the master of {name} does not round to its parameter{remedy}")
                tensors.append((name, *values))
                first = end
                if end == held.numel():
                    break
            else:
                fail(f"group {index} holds more than the {len(names)} parameters named{remedy}")
        groups.append((group["weight_decay"], tensors))
    if left:
        fail(f"{left[0]} is in no group{remedy}")
    return groups, inner["state"][0]


class ZeroOneSquares:
    """Counts the squares that ZeroOneAdam's exp_avg_sq averages.

    One square at each multiple of an interval, which starts at 1 and doubles after
    var_update_scaler squares, up to the first step after var_freeze_step. The first step of a job
    sets buffers up, and averages nothing; so does, in an fp32 job, the first step after a resume.
    A resume starts the interval anew, with one square where v was frozen.
    """

    def __init__(self, params, halves):
        self.scaler = params.get("var_update_scaler", 16)
        self.last = params.get("var_freeze_step", 100000) + 1
        self.halves = halves

    def since(self, resumed, step):
        """Returns the squares in the steps after `resumed`, up to `step`; 0: the job's start."""
        first = resumed if self.halves and resumed > 0 else resumed + 1
        step = min(step, max(self.last, first + 1) if resumed > 0 else self.last)
        n, interval = 0, 1
        while step > first:
            end = (first // interval + self.scaler) * interval
            if end > step:
                return n + step // interval - first // interval
            n, first, interval = n + self.scaler, end, 2 * interval
        return n

    def at_resumes(self, steps):
        """Returns the squares between resumes; steps: those of all resumes, and the last one."""
        return [self.since(a, b) for a, b in zip([0] + steps, steps)]

    def latest_resume(self, step, n):
        """Returns the first step at which a resume leads to n squares since it, at `step`."""
        low, high = 1, step  # the later the resume, the fewer squares since
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.since(middle, step) <= n else (middle + 1, high)
        return low


def squares_in(kind, params, state, halves, resumed):
    """Returns the number of squares that exp_avg_sq averages."""
    step = state["step"]
    if kind != "zerooneadam":
        if resumed:
            fail(f"--resumed is for ZeroOneAdam; {kind} counts its steps over resumes")
        # DeepSpeed's first step sets buffers up, and averages nothing.
        return max(0, min(step, params.get("freeze_step", 100000)) - 1)
    count = ZeroOneSquares(params, halves)
    # var_update_scaler squares at each interval, which doubles
    seen = int(math.log2(state["var_interval"])) * count.scaler + state["var_counter"]
    if resumed:
        # with halves the optimizer makes a step before the job's first
        stretches = count.at_resumes([s + halves for s in sorted(resumed)] + [step])
        if stretches[-1] != seen:
            fail(f"--resumed: after a resume at step {max(resumed)} the optimizer would have "
                 f"averaged {stretches[-1]} squares at step {step - halves}, but its state says {seen} "
                 f"(var_interval {state['var_interval']}, var_counter {state['var_counter']}); "
                 "give the steps that the job had done at each resume, the last one too")
        return sum(stretches)
    if seen == count.since(0, step):
        return seen
    at = count.latest_resume(step, seen)
    n = count.since(0, at) + seen
    print(f"export.py: DeepSpeed has resumed this job, last at step {at - halves} or later of "
          f"{step - halves}, and its count of squares began anew there ({seen} since): steps is "
          f"{n}, as if this was the only resume. If there were more, it is too small, and with "
          "bias_correction the first steps here are too short: give the steps of all resumes with "
          "--resumed", file=sys.stderr)
    return n


def unit_of(checkpoint):
    """Returns the number by which the job divided its gradients before the optimizer saw them.

    Without ZeRO, as 1-bit optimizers need it, engine.backward of these releases does not multiply
    the loss by fp16's loss scale, and its optimizer divides the gradients by it all the same.
    """
    state = checkpoint["optimizer"]
    scale = state.get("cur_scale", 1.0)
    release = tuple(int(n) for n in re.findall(r"\d+", checkpoint["ds_version"])[:3])
    if scale == 1.0 or not UNSCALED[0] <= release <= UNSCALED[1]:
        return 1.0
    print(f"export.py: the job divided gradients by its loss scale, {scale:g}, which it had not "
          "multiplied the loss by: moments, eps and clipping are written in the gradients' own unit",
          file=sys.stderr)
    if state.get("last_overflow_iter", -1) >= 0 or state["cur_iter"] >= state.get("scale_window", 1e9):
        print("export.py: the loss scale has changed in the job, so that exp_avg_sq may have another "
              "unit than this: compare it with squares of gradients, and warm up anew if it differs",
              file=sys.stderr)
    return scale


def options_left(kind, config, clipping, unit, state):
    """Returns the configuration for the rest of the run."""
    params = {**config["params"], "gradient_clipping": clipping * unit}
    if unit != 1.0:
        params["eps"] = params.get("eps", 1e-8) * unit
    if kind == "onebitlamb":  # its coefficients have no way in: it warms up anew
        return {"type": config["type"], "params": params}
    key, least = ("var_freeze_step", 1) if kind == "zerooneadam" else ("freeze_step", 0)
    params[key] = max(least, params.get(key, 100000) - state["step"])
    return {"type": config["type"], "params": params}


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("checkpoint", type=pathlib.Path)
    p.add_argument("folder", type=pathlib.Path)
    p.add_argument("--names", type=pathlib.Path, help="parameters of the optimizer, one a line")
    p.add_argument("--resumed", type=int, nargs="+", metavar="STEP",
                   help="steps at which DeepSpeed resumed the job (ZeroOneAdam)")
    o = p.parse_args()
    checkpoint = load(o.checkpoint)
    config, state = optimizer_of(checkpoint)
    kind = config["type"].lower()
    names = o.names.read_text().split("\n") if o.names else None
    names = [n for n in names if n] if names else None
    groups, first = tensors_of(checkpoint, state, names)
    unit = unit_of(checkpoint)
    o.folder.mkdir(parents=True, exist_ok=True)
    halves = "optimizer_state_dict" in state
    lines = [f"steps {squares_in(kind, config['params'], first, halves, o.resumed)}"]
    columns = [[], [], []]
    for decay, tensors in groups:
        lines.append(f"group {decay}")
        for name, *values in tensors:
            lines.append(f"tensor {values[0].numel()} {name}")
            for column, value in zip(columns, values):
                column.append(value)
    files = ("parameters", 1.0), ("exp_avg", unit), ("exp_avg_sq", unit**2)
    for column, (file, times) in zip(columns, files):
        (torch.cat(column) * times).numpy().tofile(o.folder / f"{file}.f32")
    (o.folder / "tensors.txt").write_text("\n".join(lines) + "\n")
    clipping = checkpoint["ds_config"].get("gradient_clipping", 1.0)  # DeepSpeed's default
    left = options_left(kind, config, clipping, unit, first)
    (o.folder / "optimizer.json").write_text(json.dumps(left, indent=2) + "\n")
    print("\n".join(lines))


main()
