"""Attention as transformers have it, and layers of LSTM and GRU."""

from __future__ import annotations

import numpy as np

from benchmarks.kernels.case import Case, Draw, fixed, normal

GATES = {"LSTM": 4, "GRU": 3}


def causal(rows: int, tokens: int) -> Draw:
    hidden = np.triu(np.ones((rows, tokens)), 1 + tokens - rows) * np.finfo(np.float32).min
    return lambda _: hidden.astype(np.float32)


def attention(name: str, tokens: int, heads: int = 12, width: int = 64, mask: str = "", rows: int = 0) -> Case:
    """As exporters write it, heads side by side; a mask of `keys`, one row for all, or a causal one of `rows`."""
    rows = rows or tokens
    feeds = {name: normal(1, n, heads, width) for name, n in (("q", rows), ("k", tokens), ("v", tokens))}
    constants = {"m": normal(1, 1, 1, tokens)} if mask == "keys" else {"m": causal(rows, tokens)} if mask else {}
    constants["scale"] = fixed(width**-0.5)
    nodes = f"""
        a = Transpose<perm = [0, 2, 1, 3]>(q)
        b = Transpose<perm = [0, 2, 3, 1]>(k)
        c = Transpose<perm = [0, 2, 1, 3]>(v)
        p = MatMul(a, b)
        s = Mul(p, scale)
        {"t = Add(s, m)" if mask else ""}
        w = Softmax<axis = -1>({"t" if mask else "s"})
        o = MatMul(w, c)
        y = Transpose<perm = [0, 2, 1, 3]>(o)
    """
    return Case(name, nodes, feeds, constants, flops=4.0 * rows * tokens * heads * width)


ATTENTION = (
    attention("BERT", 128, mask="keys"), attention("MiniLM", 128, width=32, mask="keys"), attention("ViT", 197),
    attention("GPT-2", 256, mask="rows"), attention("GPT-2, one row", 256, mask="rows", rows=1),
    attention("long", 1024, width=128),
)  # fmt: skip


def recurrent(kind: str, hidden: int, steps: int, batch: int = 1, ways: int = 1) -> Case:
    """A layer whose inputs are as wide as its state."""
    rows = GATES[kind] * hidden
    late = ", linear_before_reset = 1" if kind == "GRU" else ""
    direction = "bidirectional" if ways == 2 else "forward"
    both = ", both ways" if ways == 2 else ""
    scale = hidden**-0.5
    return Case(
        f"{kind} {hidden}, {steps} steps, batch {batch}{both}",
        f'y, h = {kind}<hidden_size = {hidden}, direction = "{direction}"{late}>(x, w, r, b)',
        {"x": normal(steps, batch, hidden)},
        {name: normal(ways, rows, hidden, scale=scale) for name in "wr"} | {"b": normal(ways, 2 * rows, scale=scale)},
        {"y": "float", "h": "float"}, flops=4.0 * ways * steps * batch * rows * hidden,
    )  # fmt: skip


RECURRENT = (
    recurrent("LSTM", 128, 1), recurrent("LSTM", 256, 1), recurrent("LSTM", 64, 50), recurrent("LSTM", 128, 50),
    recurrent("LSTM", 256, 50), recurrent("LSTM", 512, 50), recurrent("LSTM", 256, 50, ways=2),
    recurrent("LSTM", 128, 50, batch=8), recurrent("LSTM", 256, 50, batch=32), recurrent("GRU", 128, 1),
    recurrent("GRU", 128, 50), recurrent("GRU", 256, 50, ways=2), recurrent("GRU", 256, 50, batch=8),
)  # fmt: skip
