# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0

"""torch's fused AdamW on one vector of floats, and a copy of one: microseconds, medians of 30.

Of a short vector it is mostly the time that Python takes to launch."""

import statistics

import torch


def timed(f):
    for _ in range(5):
        f()
    times = []
    for _ in range(30):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        f()
        last.record()
        last.synchronize()
        times.append(1e3 * first.elapsed_time(last))
    return statistics.median(times)


print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}: microseconds")
print(f"{'n':>12} {'AdamW':>10} {'GB/s':>8} {'copy':>10} {'GB/s':>8}")
for log2 in (20, 24, 27):
    n = 1 << log2
    x = torch.rand(n, device="cuda", requires_grad=True)
    x.grad = torch.rand(n, device="cuda") - 0.5
    to = torch.empty(n, device="cuda")
    adam = timed(torch.optim.AdamW([x], lr=1e-4, fused=True).step)
    copy = timed(lambda: to.copy_(x.grad))
    print(f"{n:12} {adam:10.1f} {28e-3 * n / adam:8.0f} {copy:10.1f} {8e-3 * n / copy:8.0f}")
