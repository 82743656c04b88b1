"""The attention kernel against the numpy meaning, over shapes, masks, strides, threads and instruction sets."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from sardonyx.interpret.context import RunContext
from sardonyx.ops.attention import attention as meaning
from sardonyx.providers.cpu import CpuProvider
from sardonyx.providers.cpu.codegen.launch import Launch
from sardonyx.providers.cpu.kernels.attention.vector import KEYS, attention, blocking, single_vector_blocking
from sardonyx.providers.cpu.language.values import bool_, f32
from sardonyx.providers.cpu.machine import isa
from sardonyx.providers.cpu.runtime.executable import CpuExecutable
from tests.lower.agree import parse, part_of
from tests.providers.cpu.compiled import Compiled


@dataclass(frozen=True)
class Case:
    name: str
    heads: int = 2
    key_heads: int = 2
    rows: int = 5
    keys: int = 7
    width: int = 8
    value_width: int = 8
    mask: str = "none"
    causal: bool = False
    softcap: float = 0.0
    past: int = 0
    batch: int = 2


CASES = [
    Case("plain"),
    Case("one row", rows=1, keys=9),
    Case("odd widths", rows=19, keys=33, width=13, value_width=21),
    Case("many keys", rows=17, keys=2 * KEYS + 3, width=16, value_width=16),
    Case("grouped", heads=6, key_heads=2, rows=35, keys=35, width=64, value_width=64),
    Case("causal", rows=40, keys=40, causal=True),
    Case("causal with past", rows=5, keys=KEYS + 9, causal=True, past=KEYS + 4),
    Case("key padding", rows=9, keys=21, mask="keys"),
    Case("full mask", rows=21, keys=37, mask="rows"),
    Case("full bool mask", rows=21, keys=37, mask="bool"),
    Case("column mask", rows=21, keys=5, mask="any"),
    Case("softcap", rows=9, keys=11, softcap=3.0, mask="rows"),
    Case("no keys", rows=3, keys=0),
]


def mask_of(case: Case, rng: Any) -> np.ndarray | None:
    full = (case.batch, case.heads, case.rows, case.keys)
    if case.mask == "none":
        return None
    if case.mask == "keys":
        bias = np.where(rng.random((case.batch, 1, 1, case.keys)) < 0.4, np.finfo("f").min, 0).astype("f")
        bias[0, 0, 0, :] = 0
        return bias
    if case.mask == "any":
        return rng.standard_normal((case.batch, 1, case.keys, case.rows)).astype("f").swapaxes(2, 3)
    if case.mask == "any bool":
        return rng.random((case.batch, 1, case.keys, case.rows)).swapaxes(2, 3) < 0.5
    if case.mask == "bool":
        seen = rng.random((case.batch, 1, case.rows, case.keys)) < 0.5
        seen[0, 0, 1] = False
        return seen
    bias = rng.standard_normal(full).astype("f")
    bias[rng.random(full) < 0.3] = -np.inf
    bias[0, 0, 0] = -np.inf
    return bias


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_kernel(case: Case) -> None:
    run(case, None, checked=False)


@pytest.mark.sliced(2)
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_kernel_with_checked_addresses(case: Case) -> None:
    run(case, None, checked=True)


@pytest.mark.parametrize("cpu", ["haswell", "skylake-avx512"])
@pytest.mark.parametrize("name", ["odd widths", "full mask"])
def test_kernel_of_other_shapes(name: str, cpu: str) -> None:
    run(next(c for c in CASES if c.name == name), cpu, checked=False)


def run(case: Case, cpu: str | None, *, checked: bool) -> None:
    rng = np.random.default_rng(7)
    target = isa.named(cpu)
    # Heads side by side in a row, as projections leave them.
    q = rng.standard_normal((case.batch, case.rows, case.heads, case.width)).astype("f").transpose(0, 2, 1, 3)
    keys = rng.standard_normal((case.batch, case.keys, case.key_heads, case.width)).astype("f").transpose(0, 2, 1, 3)
    values = rng.standard_normal((case.batch, case.key_heads, case.keys, case.value_width)).astype("f")
    mask = mask_of(case, rng)
    out = np.full((case.batch, case.rows, case.heads, case.value_width), 7, "f").transpose(0, 2, 1, 3)
    scale = 1 / math.sqrt(case.width)
    past = {} if not case.past else dict(past_key=keys[:, :, : case.past], past_value=values[:, :, : case.past])
    expected = meaning(
        q.astype("d"), keys[:, :, case.past :].astype("d"), values[:, :, case.past :].astype("d"), mask,
        **{name: a.astype("d") for name, a in past.items()},
        is_causal=int(case.causal), softcap=case.softcap, scale=scale,
    )[0]  # fmt: skip
    arguments: dict[str, Any] = dict(
        q=q.base, k_=keys.base, v=values, out=out.base, batch=case.batch, heads=case.heads,
        shared=case.heads // case.key_heads, rows=case.rows, keys=case.keys, width=case.width,
        value_width=case.value_width, past=case.past, scale=scale,
    )  # fmt: skip
    for name, a in zip("qkvo", (q, keys, values, out), strict=True):
        arguments |= {f"{name}_{axis}": s // 4 for axis, s in zip("bhs", a.strides, strict=False)}
    kind = case.mask if case.mask != "bool" else "rows"
    if mask is not None:
        arguments["mask_"] = mask if mask.base is None else mask.base
        wide = np.broadcast_to(mask, (case.batch, case.heads, case.rows, case.keys))
        for axis, stride in zip("bhqk", wide.strides, strict=True):
            arguments[f"mask_{axis}"] = stride // mask.itemsize
    lanes = target.lanes
    padded = -(-case.width // lanes) * lanes + -(-case.value_width // lanes) * lanes
    results = []
    for shape, threads in product((blocking(target), single_vector_blocking(target)), (1, 3)):
        spec = attention(
            dtypes=(f32,) * 4, mask=kind, mask_dtype=bool_ if case.mask == "bool" else f32, causal=case.causal,
            softcap=case.softcap, vectors=shape.vectors, columns=shape.columns,
        )  # fmt: skip
        out.base[...] = 7
        scratch = (padded + KEYS) * 4 * shape.vectors * lanes
        Launch(spec, arguments, threads=threads, scratch_nbytes=scratch, isa=target, checked=checked)()
        results.append(out.copy())
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)
    np.testing.assert_allclose(results[0], expected, rtol=2e-6, atol=2e-6)


PAST = "y, keys, values = Attention <is_causal = 1> (q, k, v, , past_key, past_value)"
ROWS = ", ".join(f"float[2,3,rows,8] {name}" for name in "qkv")


def compiled(text: str, inputs: str, outputs: str) -> CpuExecutable:
    made = CpuProvider().compile(part_of(parse(text, inputs, outputs)))
    assert isinstance(made, CpuExecutable)
    return made


@pytest.fixture
def no_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host without tiles, which would take few rows too."""
    chip = replace(isa.current(), amx=False)
    monkeypatch.setattr(isa, "current", lambda: chip)


@pytest.mark.usefixtures("no_tiles")
def test_steps_of_a_decoder_have_a_kernel_of_their_own() -> None:
    before = ", ".join(f"float[2,3,before,8] past_{name}" for name in ("key", "value"))
    results = ", ".join(["float[2,3,rows,8] y", *(f"float[2,3,all,8] {name}" for name in ("keys", "values"))])
    executable, lanes = compiled(PAST, f"{ROWS}, {before}", results), isa.current().lanes
    ranges = {step.spec.name: step.only for step in executable.table.steps if "attention" in step.spec.name}
    few, many = ranges["attention_few_rows"], ranges["attention"]
    assert few is not None and few.most == lanes // 2 and many == few.otherwise
    for rows in (1, 2, lanes, lanes + 1, 40):
        rng = np.random.default_rng(rows)
        q, past = (rng.standard_normal((2, 3, n, 8)).astype("f") for n in (rows, 9))
        got = executable.run([q, q + 1, q - 1, past, past + 2], RunContext())[0]
        expected = meaning(q, q + 1, q - 1, None, past_key=past, past_value=past + 2, is_causal=1)[0]
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-6)


@pytest.mark.usefixtures("no_tiles")
def test_others_have_one() -> None:
    executable = compiled("y = Attention (q, k, v)", ROWS, "float[2,3,rows,8] y")
    assert [step.only for step in executable.table.steps if step.spec.name == "attention"] == [None]


@pytest.mark.parametrize("dtype", ["float", "double"])
@pytest.mark.parametrize(("key_heads", "width"), [("h", "8"), ("1", "8"), ("h", "w"), ("1", "w")])
def test_heads_and_widths_that_only_the_run_tells(key_heads: str, width: str, dtype: str) -> None:
    inputs = (
        f"{dtype}[b,h,s,{width}] q, {dtype}[b,{key_heads},t,{width}] k, {dtype}[b,{key_heads},t,v] v, {dtype}[s,t] m"
    )
    body, outputs = "y = Attention<scale = 0.3>(q, k, v, m)", f"{dtype}[b,h,s,v] y"
    run = Compiled(body, inputs, outputs)
    rng = np.random.default_rng(5)
    for batch, heads, rows, keys in ((1, 3, 5, 7), (2, 4, 1, 40), (3, 1, 33, 2)):
        shared = heads if key_heads == "h" else 1
        shapes = (batch, heads, rows, 8), (batch, shared, keys, 8), (batch, shared, keys, 6), (rows, keys)
        q, k, v, m = (rng.standard_normal(s).astype("f" if dtype == "float" else "d") for s in shapes)
        got = run.run([q, k, v, m])[0]
        scores = np.exp(0.3 * q.astype("d") @ k.astype("d").swapaxes(2, 3) + m)
        np.testing.assert_allclose(got, scores / scores.sum(-1, keepdims=True) @ v, rtol=2e-4, atol=1e-5)
