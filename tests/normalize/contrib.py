"""One com.microsoft operator, two ways: our body, interpreted, and onnxruntime's kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from sardonyx import dtypes
from sardonyx.interpret.bind import compile_graph
from sardonyx.interpret.context import RunContext
from sardonyx.model.load import load
from sardonyx.normalize.run import normalize
from tests.comparing import Tolerance, assert_same
from tests.ops.peers import multiplied_exactly

MICROSOFT = "com.microsoft"
rng = np.random.default_rng(7)
_START = rng.bit_generator.state


@pytest.fixture(autouse=True)
def fresh_numbers() -> None:
    """A test's data do not depend on which tests ran before it, in modules that import this."""
    rng.bit_generator.state = _START


def normal(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


def integers(dtype: Any, *shape: int) -> np.ndarray:
    """Any value of an integer type."""
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)


def weights(dtype: Any, *shape: int) -> np.ndarray:
    return multiplied_exactly(integers(dtype, *shape))


def scales(*shape: int) -> np.ndarray:
    return rng.uniform(0.01, 0.05, shape).astype(np.float32)


def model(
    name: str,
    inputs: tuple[Any, ...],
    attributes: dict[str, Any],
    *,
    outputs: int | list[Any] = 1,
    const: tuple[int, ...] = (),
    domain: str = MICROSOFT,
    symbolic: bool = False,
) -> onnx.ModelProto:
    """The operator alone; ``const`` inputs are initializers, ``symbolic`` hides the sizes of the others.

    ``outputs`` lists element types where type inference cannot tell them.
    """
    names = ["" if x is None else f"i{k}" for k, x in enumerate(inputs)]
    fed, stored = [], []
    for k, (n, x) in enumerate(zip(names, inputs, strict=True)):
        if x is None:
            continue
        if k in const:
            stored.append(numpy_helper.from_array(x, n))
        else:
            sizes = [f"{n}_{axis}" for axis in range(x.ndim)] if symbolic else x.shape
            fed.append(helper.make_tensor_value_info(n, dtypes.of_numpy(x.dtype).onnx, sizes))
    kinds = [None] * outputs if isinstance(outputs, int) else outputs
    results = [f"o{k}" for k in range(len(kinds))]
    node = helper.make_node(name, names, results, domain=domain, **attributes)
    given = [
        onnx.ValueInfoProto(name=n)
        if kind is None
        else helper.make_tensor_value_info(n, dtypes.of_numpy(np.dtype(kind)).onnx, None)
        for n, kind in zip(results, kinds, strict=True)
    ]
    graph = helper.make_graph([node], "one", fed, given, stored)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def ours(proto: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    """Normalized and interpreted; no com.microsoft node may be left that has a body."""
    found = load(proto.SerializeToString())
    normalize(found)
    program = compile_graph(found.graph)
    with np.errstate(all="ignore"):
        return program.run([feeds[v.name] for v in found.graph.inputs], RunContext())


def onnxruntime(proto: onnx.ModelProto, feeds: dict[str, Any]) -> list[Any]:
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"]).run(None, feeds)


def agree(
    name: str,
    *inputs: Any,
    outputs: int | list[Any] = 1,
    const: tuple[int, ...] = (),
    domain: str = MICROSOFT,
    tolerance: float = 2e-5,
    steps: int = 0,
    select: Callable[[int, Any], Any] = lambda _, x: x,
    **attributes: Any,
) -> None:
    """Our outputs, with sizes known and unknown, are onnxruntime's; ``select`` keeps what is specified of an output."""
    feeds = {f"i{k}": x for k, x in enumerate(inputs) if x is not None and k not in const}
    options = {"outputs": outputs, "const": const, "domain": domain}
    allowed = Tolerance(of_largest=tolerance, least=1.0, steps=steps)
    want = onnxruntime(model(name, inputs, attributes, **options), feeds)
    for symbolic in (False, True):
        got = ours(model(name, inputs, attributes, symbolic=symbolic, **options), feeds)
        for k, (a, b) in enumerate(zip(got, want, strict=True)):
            what = f"{name} output {k}, sizes {'unknown' if symbolic else 'known'}"
            assert_same(select(k, a), select(k, b), allowed, what)


def gives(name: str, inputs: tuple[Any, ...], want: list[Any], *, tolerance: float = 2e-5, **attributes: Any) -> None:
    """Our outputs are these, for operators that onnxruntime's CPU provider lacks."""
    feeds = {f"i{k}": x for k, x in enumerate(inputs) if x is not None}
    for symbolic in (False, True):
        got = ours(model(name, inputs, attributes, outputs=len(want), symbolic=symbolic), feeds)
        for k, (a, b) in enumerate(zip(got, want, strict=True)):
            assert_same(a, b, Tolerance(of_largest=tolerance, least=1.0), f"{name} output {k}")
