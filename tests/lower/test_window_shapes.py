"""The shapes that convolutions and pools are inferred to have are those that they give, whatever their attributes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sardonyx.errors import InvalidArgument
from sardonyx.interpret.bind import bind
from sardonyx.interpret.context import RunContext
from sardonyx.interpret.program import Program
from sardonyx.ir import dims
from tests.lower.agree import parse, part_of

SCALE = "s = Constant<value = float {0.5}>() z = Constant<value = uint8 {3}>()"
OPERATORS = {
    "Conv": ("y = Conv<>(x, w)", "float", (3, 4), True),
    "ConvInteger": ("y = ConvInteger<>(x, w)", "uint8", (3, 4), True),
    "QLinearConv": (f"{SCALE} y = QLinearConv<>(x, s, z, w, s, z, s, z)", "uint8", (3, 4), True),
    "ConvTranspose": ("y = ConvTranspose<>(x, w)", "float", (4, 3), True),
    "MaxPool": ("y = MaxPool<>(x)", "float", (), False),
    "MaxPool with indices": ("v, y = MaxPool<>(x)", "float", (), False),
    "AveragePool": ("y = AveragePool<>(x)", "float", (), False),
    "LpPool": ("y = LpPool<>(x)", "float", (), False),
}
CASES = 60


def attributes(rng: Any, operator: str) -> dict[str, Any]:
    found: dict[str, Any] = {"kernel_shape": rng.integers(1, 5, 2).tolist()}
    for name in ("strides", "dilations"):
        if rng.random() < 0.7:
            found[name] = rng.integers(1, 5, 2).tolist()
    if rng.random() < 0.7:
        found["pads"] = rng.integers(0, 4, 4).tolist()
    if rng.random() < 0.6:
        found["auto_pad"] = str(rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID", "NOTSET"]))
    if "Pool" in operator and rng.random() < 0.6:
        found["ceil_mode"] = 1
    return found


def written(attrs: dict[str, Any]) -> str:
    return ", ".join(f'{k} = "{v}"' if isinstance(v, str) else f"{k} = {v}" for k, v in attrs.items())


@pytest.mark.parametrize("is_known", [True, False], ids=["sizes", "names"])
@pytest.mark.parametrize("operator", OPERATORS)
def test_shapes(operator: str, is_known: bool) -> None:
    body, dtype, channels, has_weights = OPERATORS[operator]
    rng, count = np.random.default_rng(7), 0
    for _ in range(CASES):
        attrs, (h, w) = attributes(rng, operator), rng.integers(0, 14, 2).tolist()
        numpy_type, kernel = {"float": np.float32}.get(dtype, np.dtype(dtype)), attrs["kernel_shape"]
        sizes = f"{h}, {w}" if is_known else "h, w"
        given = f"{dtype}[2, 4, {sizes}] x"
        if has_weights:
            given += f", {dtype}[{', '.join(map(str, (*channels, *kernel)))}] w"
        text = body.replace("<>", f"<{written(attrs)}>")
        to = {"ConvInteger": "int32", "MaxPool with indices": "int64"}.get(operator, dtype)
        graph = parse(text, given, f"{to}[?, ?, ?, ?] y")
        feeds = {"x": np.ones((2, 4, h, w), numpy_type), "w": np.ones((*channels, *kernel), numpy_type)}
        part = part_of(graph)
        program = Program(part.nodes, part.inputs, part.outputs, bind)
        try:
            (y,) = program.run([feeds[v.name] for v in part.inputs], RunContext())
        except InvalidArgument:
            continue
        found = graph.outputs[0].shape
        assert found is not None
        for d, n in zip(found, y.shape, strict=True):
            value = d if d is None else dims.evaluate(d, {"h": h, "w": w})
            assert value == n or (not is_known and not isinstance(value, int)), (text, given, found, y.shape)
        count += 1
    assert count > CASES // 4
