"""A case: an operator as ONNX text, and what to draw for its inputs and constants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.compare import cases
from benchmarks.compare.cases import Files
from benchmarks.compare.reference import Wide
from sardonyx.bench import arrays
from sardonyx.bench.arrays import Array, Feeds
from sardonyx.interpret.context import RunContext

Draw = Callable[[np.random.Generator], Array]
SEED = 0


@dataclass(frozen=True)
class Case:
    """`nodes` compute `outputs` (name to ONNX type) from what `feeds` and `constants` draw by name."""

    name: str
    nodes: str
    feeds: Mapping[str, Draw]
    constants: Mapping[str, Draw] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=lambda: {"y": "float"})
    flops: float = 0.0
    """Operations of its products and sums; 0 where moving the bytes is what there is to do."""
    has_limit: bool = True
    """Whether the machine's limits are those of such operations: none are known for products of bytes."""
    has_error: bool = True
    """Whether it is compared with float64, which takes long for large tensors."""

    def model(self) -> onnx.ModelProto:
        rng = np.random.default_rng(SEED)
        inputs = ", ".join(_typed(name, draw(rng)) for name, draw in self.feeds.items())
        outputs = ", ".join(f"{kind} {name}" for name, kind in self.outputs.items())
        text = f'<ir_version: 10, opset_import: ["": 23]> g ({inputs}) => ({outputs}) {{ {self.nodes} }}'
        model = onnx.parser.parse_model(text)
        for output in model.graph.output:
            output.type.tensor_type.ClearField("shape")  # the text form has no unknown rank
        drawn = {name: draw(rng) for name, draw in self.constants.items()}
        model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in drawn.items())
        return model

    def arrays(self) -> Feeds:
        rng = np.random.default_rng(SEED)
        return {name: draw(rng) for name, draw in self.feeds.items()}

    def write(self, folder: Path, *, has_errors: bool) -> Files:
        """Have its model, feeds and reference in a folder."""
        files = cases.Case.of("case").files(folder)
        assert files.reference is not None
        model, feeds = self.model(), self.arrays()
        onnx.save(model, files.model)
        arrays.store(files.feeds, **{"in": feeds})
        has_errors = has_errors and self.has_error
        out = Wide(files.model).run(feeds, RunContext()) if has_errors else {}
        weights = sum(float(np.prod(t.dims)) for t in model.graph.initializer)
        cost = {"flops": self.flops, "weights": weights if self.flops else 0.0, "moved": self.moved(files.model, feeds)}
        arrays.store(files.reference, out=out, cost={name: np.asarray(value) for name, value in cost.items()})
        return files

    def moved(self, model: Path, feeds: Feeds) -> float:
        """Bytes of inputs and outputs, each counted once."""
        import sardonyx

        session = sardonyx.InferenceSession(str(model))
        return float(sum(a.nbytes for a in (*feeds.values(), *session.run(None, feeds))))


def _typed(name: str, array: Array) -> str:
    kind = onnx.TensorProto.DataType.Name(onnx.helper.np_dtype_to_tensor_dtype(array.dtype)).lower()
    return f"{kind}[{', '.join(map(str, array.shape))}] {name}"


def normal(*shape: int, scale: float = 1.0) -> Draw:
    return lambda rng: (rng.standard_normal(shape) * scale).astype(np.float32)


def integers(low: int, high: int, *shape: int, dtype: Any = np.int64) -> Draw:
    """From low up to, but not including, high."""
    return lambda rng: rng.integers(low, high, shape).astype(dtype)


def fixed(*values: float, dtype: Any = np.float32) -> Draw:
    """One value is a scalar."""
    array = np.array(values if len(values) > 1 else values[0], dtype)
    return lambda _: array
