"""Attention of a few query rows over many keys, against the numpy meaning in float64 and for any number of threads."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import onnx.parser
import pytest

import sardonyx
from sardonyx.ops.attention import attention as meaning
from sardonyx.providers.cpu.kernels.attention.few_rows import CHUNK, KEYS, MANY_HEADS
from tests.providers.cpu.compiled import Compiled
from tests.providers.cpu.running import Array

CHIPS = ["haswell", "skylake-avx512", "sapphirerapids"]
NUMPY = {"float": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@dataclass(frozen=True)
class Case:
    rows: int = 1
    keys: int = 300
    heads: int = 3
    key_heads: int = 3
    batch: int = 2
    width: int = 16
    value_width: int = 16
    mask: str = ""
    """The dimensions of a mask: ``b``, ``h``, ``r`` and ``k`` or 1 in each place."""
    is_flag: bool = False
    is_transposed: bool = False
    """Keys are stored with the width before the sequence."""
    attrs: str = ""
    dtype: str = "float"


CASES = {
    "plain": Case(),
    "no keys": Case(keys=0),
    "one key": Case(keys=1),
    "one block": Case(keys=KEYS),
    "a key more than a chunk": Case(keys=CHUNK + 1, rows=2),
    "several chunks": Case(keys=3 * CHUNK - 5),
    "many heads": Case(keys=CHUNK + 30, batch=MANY_HEADS, heads=1, key_heads=1),
    "odd widths": Case(width=21, value_width=83, keys=KEYS + 9),
    "narrow": Case(width=3, value_width=5, keys=70),
    "heads that share keys": Case(heads=6, key_heads=2, keys=CHUNK + 77, rows=2),
    "stored transposed": Case(is_transposed=True, keys=CHUNK + 77, rows=2),
    "additive mask": Case(mask="1hrk", keys=CHUNK + 77, rows=2),
    "mask of keys": Case(mask="b11k", keys=77),
    "mask of rows": Case(mask="bhr1", keys=77, rows=2),
    "flags": Case(mask="b1rk", is_flag=True, keys=CHUNK + 77, rows=2, heads=4, key_heads=2),
    "causal": Case(attrs="is_causal = 1", rows=2, keys=9),
    "softcap": Case(attrs="softcap = 2.0", mask="11rk"),
    "halves": Case(dtype="float16", keys=CHUNK + 9, rows=2),
    "bfloat16": Case(dtype="bfloat16", keys=90, is_transposed=True),
}


def operands(case: Case) -> tuple[Array, Array, Array, Array | None]:
    rng = np.random.default_rng(2)
    q = rng.standard_normal((case.batch, case.heads, case.rows, case.width))
    k = rng.standard_normal((case.batch, case.key_heads, case.keys, case.width))
    v = rng.standard_normal((case.batch, case.key_heads, case.keys, case.value_width))
    q, k, v = (a.astype(NUMPY[case.dtype]) for a in (q, k, v))
    if not case.mask:
        return q, k, v, None
    sizes = {"b": case.batch, "h": case.heads, "r": case.rows, "k": case.keys, "1": 1}
    shape = [sizes[c] for c in case.mask]
    hidden = rng.random(shape) < 0.4
    if case.is_flag:
        hidden[0, 0, 0] = True  # a row that sees no key
        return q, k, v, ~hidden
    mask = np.where(hidden, -np.inf if case.mask[-1] == "k" else 0, rng.standard_normal(shape))
    mask[-1, 0, 0] = np.finfo(np.float32).min
    return q, k, v, mask.astype(np.float32)


def text(case: Case, keys: str, rows: str) -> tuple[str, str]:
    key = f"{case.width},{keys}" if case.is_transposed else f"{keys},{case.width}"
    batch, kind = case.batch, case.dtype
    inputs = f"{kind}[{batch},{case.heads},{rows},{case.width}] q, {kind}[{batch},{case.key_heads},{key}] k, "
    inputs += f"{kind}[{batch},{case.key_heads},{keys},{case.value_width}] v"
    if case.mask:
        sizes = {"b": batch, "h": case.heads, "r": rows, "k": keys, "1": 1}
        inputs += f", {'bool' if case.is_flag else 'float'}[{','.join(str(sizes[c]) for c in case.mask)}] m"
    turned = "kt = Transpose<perm = [0, 1, 3, 2]>(k) " if case.is_transposed else ""
    names = f"q, {'kt' if case.is_transposed else 'k'}, v" + (", m" if case.mask else "")
    return f"{turned}y = Attention{f'<{case.attrs}>' if case.attrs else ''}({names})", inputs


@pytest.mark.sliced(3)
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", CASES)
def test_few_rows(name: str, chip: str) -> None:
    case = CASES[name]
    q, k, v, mask = operands(case)
    given = {"is_causal": 1} if "causal" in case.attrs else {"softcap": 2.0} if case.attrs else {}
    want = meaning(q.astype("d"), k.astype("d"), v.astype("d"), mask, **given)[0]
    feeds = [q, np.ascontiguousarray(k.swapaxes(2, 3)) if case.is_transposed else k, v]
    feeds += [] if mask is None else [mask]
    tolerance = {"float": 2e-6, "float16": 2e-3, "bfloat16": 2e-2}[case.dtype]
    for keys in (str(case.keys), "keys"):
        body, inputs = text(case, keys, str(case.rows))
        made = Compiled(body, inputs, f"{case.dtype}[A,B,C,D] y", chip)
        assert any(step.spec.name == "attention_few_rows" for step in made.steps)
        (got,) = made.run(feeds, checked=True)
        np.testing.assert_allclose(got.astype("d"), want, rtol=tolerance, atol=tolerance)
        for threads in (2, 3):
            np.testing.assert_array_equal(made.run(feeds, threads=threads)[0], got)


@pytest.mark.parametrize("chip", CHIPS)
def test_special_values(chip: str) -> None:
    """NaN reaches the rows that see it; infinite values only those that give them weight."""
    case = Case(rows=1, heads=2, key_heads=2, batch=1, keys=CHUNK + 40)
    q, k, v, _ = operands(case)
    k[0, 0, 5] = np.nan
    v[0, 1, CHUNK + 3] = np.inf
    (y,) = Compiled(*text(case, str(case.keys), "1"), "float[A,B,C,D] y", chip).run([q, k, v])
    assert np.isnan(y[0, 0]).all() and np.isposinf(y[0, 1]).all()


@pytest.mark.parametrize("chip", CHIPS)
def test_rows_of_a_run(chip: str) -> None:
    """The number of rows decides which kernel carries out a decoder's step, also where a product reads the result."""
    body = """z, present_k, present_v = Attention<is_causal = 1>(q, k, v, , past_k, past_v)
        t = Transpose<perm = [0, 2, 1, 3]>(z) f = Constant<value_ints = [0, 0, -1]>() r = Reshape(t, f)
        y = MatMul(r, w)"""
    new = ", ".join(f"float[1,2,rows,32] {name}" for name in "qkv")
    past = ", ".join(f"float[1,2,past,32] past_{name}" for name in "kv")
    rng = np.random.default_rng(6)
    w = (rng.standard_normal((64, 256)) / 8).astype(np.float32)
    outputs = "float[A,B,C] y, float[D,E,F,G] present_k, float[D,E,F,G] present_v"
    made = Compiled(body, f"{new}, {past}, float[64,256] w", outputs, chip, constants={"w": w})
    for rows in (1, 2, 5, 9, 40):
        q, k, v = rng.standard_normal((3, 1, 2, rows, 32)).astype(np.float32)
        old = rng.standard_normal((2, 1, 2, 700, 32)).astype(np.float32)
        wide = (a.astype("d") for a in (q, k, v, *old))
        q64, k64, v64, past_k, past_v = wide
        z = meaning(q64, k64, v64, None, past_key=past_k, past_value=past_v, is_causal=1)[0]
        want = z.transpose(0, 2, 1, 3).reshape(1, rows, 64) @ w
        results = [made.run([q, k, v, *old], threads=n, checked=True)[0] for n in (1, 2)]
        np.testing.assert_allclose(results[0], want, rtol=1e-5, atol=3e-6)
        np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("length", [12, 20])
def test_a_mask_of_unknown_length(length: int) -> None:
    """Keys beyond the end of a mask are hidden; one that covers all keys is compiled."""
    graph = """g (float[1,2,1,8] q, float[1,2,keys,8] k, float[1,2,keys,8] v, float[1,1,1,length] m)
        => (float[a,b,c,d] y) { y = Attention(q, k, v, m) }"""
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 23]> {graph}')
    q, k, v, _ = operands(Case(heads=2, key_heads=2, batch=1, keys=20, width=8, value_width=8))
    mask = np.random.default_rng(1).standard_normal((1, 1, 1, length)).astype(np.float32)
    session = sardonyx.InferenceSession(model.SerializeToString())
    (y,) = session.run(None, {"q": q, "k": k, "v": v, "m": mask})
    hidden = np.pad(mask, [(0, 0)] * 3 + [(0, 20 - length)], constant_values=-np.inf)
    np.testing.assert_allclose(y, meaning(*(a.astype("d") for a in (q, k, v)), hidden)[0], rtol=1e-5, atol=1e-6)
    assert "reference: " not in str(session.explain())
