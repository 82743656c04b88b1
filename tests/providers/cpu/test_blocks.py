"""Products with weights in blocks (``gemm.blocks``): every spelling, on every chip, against float64."""

from __future__ import annotations

import gc
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sardonyx
from sardonyx.errors import InvalidGraph
from sardonyx.optimize.fusions import integers
from sardonyx.providers.cpu.runtime.executable import CpuExecutable
from tests.providers.cpu.test_choices import chosen, session_of

CHIPS = ("sapphirerapids", "cascadelake", "haswell", "x86-64", "neoverse-n1")
SEEDS = 36
SPELLINGS = ("nbits", "matmul", "transposed", "gemm", "channels", "channels by rows", "sliced")
INTEGERS = {
    "u4": (ml_dtypes.uint4, 0, 16), "i4": (ml_dtypes.int4, -8, 8), "u8": (np.uint8, 0, 256), "i8": (np.int8, -128, 128),
    "u2": (ml_dtypes.uint2, 0, 4), "i2": (ml_dtypes.int2, -2, 2),
}  # fmt: skip
BLOCKS = (16, 32, 48, 64, 80, 128, 144, 256)
TOLERANCE = 3e-6


class Case:
    """A model of one product, and its weight in float64."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.spelling = SPELLINGS[seed % len(SPELLINGS)]
        self.k, self.n = int(rng.integers(140, 400)), int(rng.integers(118, 300))
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.bias = rng.standard_normal(self.n).astype(np.float32) if rng.random() < 0.5 else None
        self.block = int(rng.choice(BLOCKS))
        self.order = np.arange(self.k)
        build = self._nbits if self.spelling == "nbits" else self._dequantized
        self.weight = build()

    def constant(self, name: str, array: Any) -> str:
        if array.dtype.itemsize == 1 and array.dtype not in (np.uint8, np.int8):
            code = helper.np_dtype_to_tensor_dtype(array.dtype)
            made = helper.make_tensor(name, code, array.shape, array.astype(np.int64).reshape(-1).tolist())
        else:
            made = numpy_helper.from_array(array, name)
        self.constants.append(made)
        return name

    def node(self, op: str, inputs: list[str], output: str, domain: str = "", **attrs: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [output], domain=domain, **attrs))
        return output

    def _nbits(self) -> Any:
        rng, n, k, block = self.rng, self.n, self.k, self.block = (
            self.rng,
            self.n,
            self.k,
            int(self.rng.choice([b for b in BLOCKS if b & (b - 1) == 0])),
        )
        bits, blocks = int(rng.choice([2, 4, 4, 8])), -(-k // block)
        zeros = rng.choice(["none", "packed", "real"])
        packed = rng.integers(0, 256, (n, blocks, block * bits // 8)).astype(np.uint8)
        scale = rng.uniform(0.01, 0.02, (n, blocks)).astype(np.float32)
        names = ["x", self.constant("w", packed), self.constant("s", scale.reshape(-1)), "", "", ""]
        zero = np.full((n, blocks), 2.0 ** (bits - 1))
        if zeros == "packed":
            given = rng.integers(0, 256, (n, -(-blocks * bits // 8))).astype(np.uint8)
            names[3], zero = self.constant("z", given), _fields(given, bits)[:, :blocks]
        if zeros == "real":
            zero = rng.uniform(0, 2**bits, (n, blocks)).astype(np.float32)
            names[3] = self.constant("z", zero)
        if rng.random() < 0.3:
            groups = np.arange(k) // block
            groups = rng.permutation(groups) if rng.random() < 0.5 else groups
            self.order = np.argsort(groups, kind="stable")
            names[4] = self.constant("g", groups.astype(np.int32))
        if self.bias is not None:
            names[5] = self.constant("b", self.bias)
        while not names[-1]:
            names.pop()
        self.node("MatMulNBits", names, "y", "com.microsoft", K=k, N=n, bits=bits, block_size=block)
        codes = _fields(packed.reshape(n, -1), bits).reshape(n, blocks, block)
        dense = ((codes - zero[..., None].astype(np.float64)) * scale[..., None]).reshape(n, -1)
        made = np.zeros((n, k))
        if len(names) > 4 and names[4]:  # the codes of a column stay where they are, only its block differs
            each = groups
            made = (codes.reshape(n, -1)[:, :k] - zero.astype(np.float64)[:, each]) * scale.astype(np.float64)[:, each]
        else:
            made = dense[:, :k]
        return made.T

    def _dequantized(self) -> Any:
        rng, k, n = self.rng, self.k, self.n
        dtype, low, high = INTEGERS[str(rng.choice(list(INTEGERS)))]
        by_rows = self.spelling in ("transposed", "gemm", "channels by rows")
        is_channel = self.spelling.startswith("channels")
        more = 32 if self.spelling == "sliced" else 0
        shape = (n, k) if by_rows else (k, n + more)
        q = rng.integers(low, high, shape)
        axis = (0 if by_rows else 1) if is_channel else (1 if by_rows else 0)
        sizes = [n] if is_channel else [-(-d // self.block) if i == axis else d for i, d in enumerate(shape)]
        scale = rng.uniform(0.01, 0.02, sizes).astype(np.float32)
        zero = rng.integers(low, high, sizes) if rng.random() < 0.6 else None
        names = [self.constant("w", q.astype(dtype)), self.constant("s", scale)]
        if zero is not None:
            names.append(self.constant("z", zero.astype(dtype)))
        attrs = {"axis": axis} | ({} if is_channel else {"block_size": self.block})
        w = self.node("DequantizeLinear", names, "dense", **attrs)

        def spread(factor: Any) -> Any:
            if is_channel:
                return factor.reshape([-1 if i == axis else 1 for i in range(2)])
            return np.repeat(factor, self.block, axis)[tuple(slice(d) for d in shape)]

        real = (q - (0 if zero is None else spread(zero))) * spread(scale).astype(np.float64)
        if self.spelling == "sliced":
            starts, ends = self.constant("f", np.array([16])), self.constant("e", np.array([16 + n]))
            w = self.node("Slice", [w, starts, ends, self.constant("a", np.array([1]))], "part")
            real = real[:, 16 : 16 + n]
        if self.spelling == "transposed":
            w = self.node("Transpose", [w], "turned", perm=[1, 0])
        if self.spelling in ("gemm", "channels by rows"):
            given = ["x", w] + ([] if self.bias is None else [self.constant("b", self.bias)])
            self.node("Gemm", given, "y", transB=1)
        elif self.bias is None:
            self.node("MatMul", ["x", w], "y")
        else:
            self.node("MatMul", ["x", w], "product")
            self.node("Add", ["product", self.constant("b", self.bias)], "y")
        return real.T if by_rows else real

    def model(self, rows: Any) -> bytes:
        graph = helper.make_graph(
            self.nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, self.k])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, self.n])], self.constants,
        )  # fmt: skip
        imports = [helper.make_opsetid("", 25), helper.make_opsetid("com.microsoft", 1)]
        content: bytes = helper.make_model(graph, opset_imports=imports, ir_version=13).SerializeToString()
        return content

    def expected(self, x: Any) -> Any:
        return x.astype(np.float64) @ self.weight + (0 if self.bias is None else self.bias)


def _fields(packed: Any, bits: int) -> Any:
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    return ((packed[..., None] >> shifts) & np.uint8(2**bits - 1)).reshape(*packed.shape[:-1], -1).astype(np.float64)


def close(got: Any, want: Any, tolerance: float = TOLERANCE) -> None:
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * np.abs(want).max())


@pytest.mark.sliced(17)
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("seed", range(SEEDS))
def test_spellings(seed: int, chip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CPU", chip)
    monkeypatch.setenv("SARDONYX_CHECK_ADDRESSES", "1")
    case = Case(seed)
    session = session_of(case.model("m"))
    many = "gemm.blocks_vector" if chip != "sapphirerapids" else "gemm.blocks_amx"
    assert chosen(session) & {"gemm.blocks_vector", "gemm.blocks_few_rows", "gemm.blocks_amx"}, session.explain(
        stage="cpu"
    )
    assert case.spelling == "nbits" or many in chosen(session)
    for rows in (1, 2, 3, 8, 9, 35, 70):
        x = case.rng.standard_normal((rows, case.k)).astype(np.float32)
        close(session.run(None, {"x": x})[0], case.expected(x))


@pytest.mark.parametrize("seed", range(len(SPELLINGS)))
def test_a_fixed_number_of_rows(seed: int) -> None:
    case = Case(seed)
    for rows, variant in ((1, "gemm.blocks_few_rows"), (7, "gemm.blocks_few_rows")):
        session = session_of(case.model(rows))
        assert variant in chosen(session)
        x = case.rng.standard_normal((rows, case.k)).astype(np.float32)
        close(session.run(None, {"x": x})[0], case.expected(x))


DATA = {
    "shifted": lambda rng, *s: rng.standard_normal(s) + 3,
    "uneven": lambda rng, *s: np.exp(2 * rng.standard_normal(s)) * rng.choice([-1, 1], s),
    "outliers": lambda rng, *s: rng.standard_normal(s) * np.where(rng.random(s) < 0.01, 1e5, 1),
    "one": lambda rng, *s: np.where(rng.random(s) < 0.01, rng.standard_normal(s), 0),
    "tiny": lambda rng, *s: rng.standard_normal(s) * 1e-30,
    "large": lambda rng, *s: rng.standard_normal(s) * 1e36,
    "mixed": lambda rng, *s: rng.standard_normal(s) * 10.0 ** rng.integers(-20, 20, s),
    "zero": lambda rng, *s: np.zeros(s),
}


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("chip", ["sapphirerapids", "haswell"])
def test_activations_of_any_size(data: str, chip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CPU", chip)
    for seed in (0, 1, 3):
        case = Case(seed)
        session = session_of(case.model("m"))
        for rows in (1, 4, 20):
            x = DATA[data](case.rng, rows, case.k).astype(np.float32)
            close(session.run(None, {"x": x})[0], case.expected(x))


@pytest.mark.parametrize("rows", [1, 4, 20])
def test_infinities_stay_in_their_rows(rows: int) -> None:
    case = Case(1)
    session = session_of(case.model("m"))
    x = case.rng.standard_normal((rows, case.k)).astype(np.float32)
    x[0, 5], x[rows - 1, 7] = np.nan, np.inf
    got = session.run(None, {"x": x})[0]
    with np.errstate(invalid="ignore"):
        want = case.expected(x)
    assert np.array_equal(np.isnan(got), np.isnan(want)) and np.array_equal(np.isinf(got), np.isinf(want))
    if rows > 2:
        close(got[1:-1], want[1:-1])


def test_small_integers_are_exact() -> None:
    """As in f32: nothing is rounded where no rounding is due."""
    rng = np.random.default_rng(0)
    case = Case(2)
    q = rng.integers(-8, 8, (case.n, case.k))
    case.constants = [
        helper.make_tensor("w", TensorProto.INT4, q.shape, q.reshape(-1).tolist()),
        numpy_helper.from_array(np.full((case.n, -(-case.k // case.block)), 0.5, np.float32), "s"),
    ]
    case.nodes = []
    case.node("DequantizeLinear", ["w", "s"], "d", axis=1, block_size=case.block)
    case.node("Gemm", ["x", "d"], "y", transB=1)
    session = session_of(case.model("m"))
    for rows in (1, 5, 40):
        x = rng.integers(-100, 100, (rows, case.k)).astype(np.float32)
        assert np.array_equal(session.run(None, {"x": x})[0], x @ q.T * np.float32(0.5))


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_lower_precision(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CPU", "sapphirerapids")
    for seed in (0, 2, 4):
        case = Case(seed)
        session = session_of(case.model("m"), precision)
        for rows in (1, 40):
            x = case.rng.standard_normal((rows, case.k)).astype(np.float32)
            close(session.run(None, {"x": x})[0], case.expected(x), {"high": 3e-5, "medium": 1e-2}[precision])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("chip", ["sapphirerapids", "haswell"])
def test_narrow_activations(dtype: Any, chip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CPU", chip)
    rng, k, n = np.random.default_rng(0), 256, 192
    q, scale = rng.integers(0, 16, (k, n)), rng.uniform(0.01, 0.02, (k // 32, n)).astype(dtype)
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    constants = [
        helper.make_tensor("w", TensorProto.UINT4, q.shape, q.reshape(-1).tolist()),
        helper.make_tensor("s", code, scale.shape, scale.view(np.uint16).tobytes(), raw=True),
    ]
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=0, block_size=32),
        helper.make_node("MatMul", ["x", "d"], ["y"]),
    ]
    infos = [helper.make_tensor_value_info(name, code, ["m", size]) for name, size in (("x", k), ("y", n))]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], constants)
    content = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
    session = session_of(content)
    assert "gemm.blocks_few_rows" in str(session.explain(stage="cpu"))
    weight = q * np.repeat(scale.astype(np.float64), 32, 0)
    for rows in (1, 5, 40):
        x = rng.standard_normal((rows, k)).astype(dtype)
        value = sardonyx.OrtValue.ortvalue_from_numpy_with_onnx_type(x.view(np.uint16), code)
        (got,) = session.run_with_ort_values(["y"], {"x": value})
        found = got.numpy().view(dtype).astype(np.float64)
        close(found, x.astype(np.float64) @ weight, 1e-2 if dtype is ml_dtypes.bfloat16 else 1e-3)


# -- memory


class _NoMeaning:
    """In place of the table of operators: nothing may be computed by numpy."""

    @staticmethod
    def find(domain: str, op_type: str) -> Any:
        def numpy(*_: Any, **__: Any) -> Any:
            raise AssertionError(f"{op_type} is computed")

        return SimpleNamespace(numpy=numpy)


def _executables() -> set[CpuExecutable]:
    gc.collect()
    return {each for each in gc.get_objects() if issubclass(type(each), CpuExecutable)}


@pytest.mark.sliced(2)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_nothing_is_dequantized(spelling: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither when the model is loaded, nor in runs; what is held is smaller than reals would be."""
    monkeypatch.setattr(integers, "registry", _NoMeaning)
    case, others = Case(7 + SPELLINGS.index(spelling)), _executables()
    session = session_of(case.model("m"))
    held = sum(c.nbytes for each in _executables() - others for c in each.constants)
    assert 0 < held < 2.5 * case.weight.size
    x = case.rng.standard_normal((1, case.k)).astype(np.float32)
    close(session.run(None, {"x": x})[0], case.expected(x))


@pytest.mark.sliced(2)
@pytest.mark.parametrize("seed", range(len(SPELLINGS)))
def test_a_start_from_the_cache(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    case, path = Case(seed), tmp_path / "model.onnx"
    path.write_bytes(case.model("m"))
    x = case.rng.standard_normal((3, case.k)).astype(np.float32)
    results = []
    for _ in range(3):
        session = sardonyx.InferenceSession(str(path))
        results.append(session.run(None, {"x": x})[0])
        del session
        gc.collect()
    close(results[0], case.expected(x))
    assert all(np.array_equal(results[0], other) for other in results[1:])


# -- the choice


def test_reasons() -> None:
    rng = np.random.default_rng(0)

    def reasons(q: Any, scale: Any, **attrs: Any) -> str:
        constants = [numpy_helper.from_array(q, "w"), numpy_helper.from_array(scale.astype(np.float32), "s")]
        nodes = [
            helper.make_node("DequantizeLinear", ["w", "s"], ["d"], **attrs),
            helper.make_node("MatMul", ["x", "d"], ["y"]),
        ]
        sizes = zip("xy", q.shape, strict=True)
        infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["m", size]) for name, size in sizes]
        graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], constants)
        proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        session = session_of(proto.SerializeToString())
        x = rng.standard_normal((2, q.shape[0])).astype(np.float32)
        shape = [d if i == attrs["axis"] else 1 for i, d in enumerate(q.shape)]
        step = scale if scale.ndim == 2 else scale.reshape(shape)
        step = np.repeat(step, attrs.get("block_size", 1), attrs["axis"]) if scale.ndim == 2 else step
        close(session.run(None, {"x": x})[0], x.astype(np.float64) @ (q * step))
        return str(session.explain(stage="cpu"))

    q = rng.integers(-128, 128, (160, 192)).astype(np.int8)
    assert "so small a weight is dequantized once: 32 x 32" in reasons(q[:32, :32], rng.random(32), axis=1)
    assert "scales differ along k, without blocks" in reasons(q, rng.random(160), axis=0)
    assert "blocks lie across the columns" in reasons(q, rng.random((160, 6)), axis=1, block_size=32)
    assert "no multiple of 16" in reasons(q, rng.random((8, 192)), axis=0, block_size=20)


def test_malformed_sizes_are_refused() -> None:
    case = Case(0)
    (node,) = case.nodes
    for name, value in (("N", case.n + 1), ("K", -3), ("block_size", 0)):
        broken = onnx.NodeProto()
        broken.CopyFrom(node)
        next(a for a in broken.attribute if a.name == name).i = value
        kept, case.nodes = case.nodes, [broken]
        with pytest.raises(InvalidGraph):
            session_of(case.model("m"))
        case.nodes = kept
