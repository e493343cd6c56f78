# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
"""Compares jobs that moved here with DeepSpeed's own: compare.py FOLDER, after train.py and run.sh.

Distances are root mean squares over the parameters, to the job that was not stopped, and to the
optimum of the problem.
"""

import pathlib
import sys

import numpy

root = pathlib.Path(sys.argv[1])
failed = []


def floats(file):
    return numpy.fromfile(file, dtype=numpy.float32).astype(float)


def distance(a, b):
    return float(numpy.sqrt(numpy.mean((a - b)**2)))


def check(holds, text):
    print("  ok  " if holds else "FAILED", text)
    if not holds:
        failed.append(text)


optimum = floats(root / "optimum.f32")
for case in ("warm_up", "alone", "fp32", "bf16", "fp16", "zero_one", "lamb", "twice",
             "zero_one_twice"):
    folder = root / case
    moved, ours = floats(folder / "moved.f32"), floats(folder / "ours.f32")
    to_optimum = f"{distance(ours, optimum):.4f} from the optimum with ours"
    if "twice" in case:  # nothing to compare with but where the training should lead
        check(distance(ours, optimum) < 0.1, f"{case}: {to_optimum}")
        continue
    whole, resumed = floats(folder / "whole.0.f32"), floats(folder / "resumed.0.f32")
    here, theirs = distance(moved, whole), distance(resumed, whole)
    text = f"{case}: moved here {here:.2g} from the job that was not stopped, resumed {theirs:.2g}"
    if case in ("warm_up", "alone"):  # the same arithmetic, in another order
        check(here < 1e-5, text)
    elif case == "lamb":  # it warms up anew
        check(distance(moved, optimum) < distance(whole, optimum),
              f"{case}: {distance(moved, optimum):.3f} from the optimum, the job that was not "
              f"stopped {distance(whole, optimum):.3f}")
        continue
    else:  # compression drops residuals at the stop in both: chance parts the two alike
        check(here < 1.25 * theirs, text)
        check(distance(ours, optimum) < distance(whole, optimum),
              f"{case}: {to_optimum}, the job that was not stopped {distance(whole, optimum):.4f}")

# ZeroOneAdam counts anew after a resume: with --resumed the count is exact, without nearly so.
squares = int((root / "zero_one_twice" / "squares").read_text())
for folder, short in ("exported", 0), ("guessed", 2):
    n = int((root / "zero_one_twice" / folder / "tensors.txt").read_text().split()[1])
    check(squares - short <= n <= squares,
          f"zero_one_twice: {folder}: {n} squares of {squares} that the job averaged")
sys.exit(f"{len(failed)} checks failed" if failed else 0)
