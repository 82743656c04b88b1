"""Checks rewrites numerically: new nodes run on values recorded in one run of the original model.

The original runs once, on given or generated feeds, and every value is recorded. A replacement is computed from the
recorded values of its inputs and compared with the recorded value that it replaces. That value keeps its recorded
contents, so rounding errors of one rewrite do not affect the check of the next. If no value is known (a branch that did
not run, a body inside a loop's body), the rewrite is reported as unchecked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.errors import InvalidArgument, SardonyxError
from sardonyx.interpret.bind import bind, compile_graph, is_runnable
from sardonyx.interpret.context import RunContext
from sardonyx.interpret.program import Kernel, Program
from sardonyx.ir.clone import clone
from sardonyx.ir.graph import Graph, Model, Node, Value
from sardonyx.ir.types import TensorType
from sardonyx.normalize.run import normalize
from sardonyx.ops.infer import OPSETS
from sardonyx.optimize import feeds as made_up

TOLERANCES = {"f64": 1e-5, "f32": 1e-4, "f16": 5e-3, "bf16": 4e-2}
"""Relative tolerances. f16 rounds at different places after a fusion; f64 must tolerate exporters' truncated
constants.
"""

NARROW = 0.25
"""Relative tolerance of floats of eight bits and fewer."""

DRIFT = 0.5
"""Quantization steps by which the mean may move: rounding goes both ways, a wrong zero point does not."""

FAR = 100.0
"""Elements this many times larger than the median are compared separately: a mask of -1e9 must not hide errors in
scores.
"""


class Checker:
    """The judge of one optimization; ``unjudged`` lists what it could not check."""

    def __init__(self, graph: Graph, feeds: Mapping[str, Any] | None = None) -> None:
        self.values: dict[Value, Any] = {}
        self.unjudged: list[str] = []
        self.feeds, self.outputs = self._run(graph, feeds)
        self.values.update((v, self.feeds[v.name]) for v in graph.inputs if v.name in self.feeds)

    def _run(self, graph: Graph, feeds: Mapping[str, Any] | None) -> tuple[dict[str, Any], list[Any]]:
        if feeds is not None:
            return complete_run(graph, made_up.complete(graph, feeds), self._record)
        refusal: SardonyxError | None = None
        for guess in made_up.candidates(graph):
            self.values.clear()
            try:
                return complete_run(graph, guess, self._record)
            except SardonyxError as e:
                refusal = refusal or e
        raise InvalidArgument(
            f"the model does not run on generated feeds ({refusal})", hint="pass feeds= with an example of each input"
        ) from refusal

    def _record(self, node: Node, start: int, end: int, args: Sequence[Any], results: Sequence[Any]) -> None:
        assert node.graph is not None
        if not _is_consistent(node.graph):
            return
        self.values.update((v, x) for v, x in zip(node.inputs, args, strict=False) if v is not None and not v.is_const)
        self.values.update(zip(node.outputs, (_array(x) for x in results), strict=False))

    def __call__(self, old: Sequence[Value], new: Sequence[Value], made: Sequence[Node]) -> str | None:
        """How ``new`` differs from ``old``; None if they agree or if nothing is known."""
        try:
            found = self._replay(made, new)
        except _Unknown as e:
            self._note_unjudged(old, f"the value of {e} is not known")
            return None
        except SardonyxError as e:
            return f"the replacement does not run: {e}"
        for before, after in zip(old, new, strict=True):
            if before not in self.values:
                if not before.is_dead:
                    self._note_unjudged(old, "it did not run")
                continue
            got = found[after] if after in found else self._known(after)
            if got is None and self.values[before] is not None:
                self._note_unjudged(old, f"the value of {after.name!r} is not known")
                continue
            why = difference(self.values[before], got, rounded=is_rounded(before))
            if why is not None:
                return f"{before.name!r} would differ: {why}"
        originals = {b: self.values[a] for a, b in zip(old, new, strict=True) if a in self.values}
        for value, x in {**found, **originals}.items():
            self.values.setdefault(value, x)
        return None

    def _note_unjudged(self, old: Sequence[Value], why: str) -> None:
        where = old[0].producer.label if old[0].producer is not None else repr(old[0].name)
        self.unjudged.append(f"the rewrite at {where} was not checked: {why}")

    def _known(self, value: Value) -> Any:
        return value.numpy() if value.is_const else self.values.get(value)

    def _replay(self, made: Sequence[Node], new: Sequence[Value]) -> dict[Value, Any]:
        """The values of the new nodes that are read."""
        outputs = [out for node in made for out in node.outputs if not out.is_dead or out in new]
        own = {out for node in made for out in node.outputs}
        captured = [v for node in made for _, sub in node.subgraphs() for v in sub.captures()]
        read = dict.fromkeys(v for node in made for v in node.inputs if v is not None and v not in own)
        read.update(dict.fromkeys(v for v in captured if v not in own))
        inputs = [v for v in read if not v.is_const]
        for v in inputs:
            if v not in self.values:
                raise _Unknown(repr(v.name))
        if not made:
            return {}
        program = Program(made, inputs, outputs, lambda node: _bind_any(node, set(outputs)))
        return dict(zip(outputs, program.run([self.values[v] for v in inputs], RunContext()), strict=True))


class _Unknown(Exception):
    """A value that was not recorded."""


def complete_run(graph: Graph, feeds: Mapping[str, Any], record: Any = None) -> tuple[dict[str, Any], list[Any]]:
    """Run a normalized graph on feeds, with initializers for inputs that are not fed; returns both feeds and
    results.
    """
    args = [feeds[v.name] if v.name in feeds else v.numpy() for v in graph.inputs]
    outputs = compile_graph(graph).run(args, RunContext(record=record))
    return dict(feeds), outputs


def answers(model: Model, feeds: Mapping[str, Any]) -> list[Any]:
    """A model's results; a model with onnxruntime's operators is normalized first, as a copy."""
    if any(map(_is_foreign, model.graph.all_nodes())):
        model = clone(model)
        normalize(model)
    return complete_run(model.graph, feeds)[1]


def _is_foreign(node: Node) -> bool:
    """Whether a node's operator is not one of normalized graphs."""
    return node.domain not in OPSETS or not is_runnable(node)


def _is_consistent(graph: Graph) -> bool:
    """Whether the recorded values of a graph belong to one execution: no enclosing body runs more than once."""
    around = graph.parent.graph if graph.parent is not None else None
    while around is not None and around.parent is not None:
        if around.parent.onnx_op != "If":
            return False
        around = around.parent.graph
    return True


def _array(x: Any) -> Any:
    return np.asarray(x) if isinstance(x, np.generic | int | float | bool) else x


def _bind_any(node: Node, wanted: Collection[Value]) -> tuple[Kernel, Sequence[Value], bool]:
    """A kernel that runs a node of another domain as its body, for the types of its inputs."""
    if not _is_foreign(node):
        return bind(node)

    def run(*args: Any) -> tuple[Any, ...]:
        given = iter(_as_body(node, args, wanted).run([x for x in args if x is not None], RunContext()))
        return tuple(next(given) if out in wanted else None for out in node.outputs)

    return run, (), False


def _as_body(node: Node, args: Sequence[Any], wanted: Collection[Value]) -> Program:
    inputs = [
        None if v is None else Value(f"i{i}", TensorType(dtypes.of_numpy(x.dtype), x.shape), const=v.const)
        for i, (v, x) in enumerate(zip(node.inputs, args, strict=True))
    ]
    outputs = [Value(f"o{i}", v.type) for i, v in enumerate(node.outputs)]
    graph = Graph(node.op_type, [v for v in inputs if v is not None])
    graph.append(Node(node.op_type, inputs, outputs, dict(node.attrs), domain=node.domain, name=node.name))
    for value, out in zip(outputs, node.outputs, strict=True):
        if out in wanted:
            graph.add_output(value)
    normalize(Model(graph, {**OPSETS, node.domain: 1}))
    return compile_graph(graph)


def is_rounded(value: Value) -> bool:
    """Whether a small integer was rounded from a float by quantization or a cast, and possibly moved since."""
    node = value.producer if value.dtype is not None and _has_steps(value.dtype) else None
    while node is not None and node.inputs:
        first = node.inputs[0]
        if node.op_type.startswith("QLinear") or node.op_type.endswith("QuantizeLinear"):
            return True
        if first is None or first.dtype != value.dtype:
            return node.onnx_op == "Cast" and first is not None and first.dtype is not None and first.dtype.is_float
        node = first.producer
    return False


def _has_steps(dtype: DType) -> bool:
    """Whether the type is one of quantized values."""
    return dtype.is_integer and dtype.bits <= 16


def difference(expected: Any, got: Any, tolerance: float | None = None, *, rounded: bool = True) -> str | None:
    """How two values differ by more than rounding; None if they do not.

    ``tolerance`` is relative. ``rounded`` says that quantized integers come from floats: they may differ by one step
    or, with a tolerance, by more.
    """
    if isinstance(expected, list) and isinstance(got, list) and len(expected) == len(got):
        found = (difference(a, b, tolerance, rounded=rounded) for a, b in zip(expected, got, strict=True))
        return next((why for why in found if why is not None), None)
    if not isinstance(expected, np.ndarray) or not isinstance(got, np.ndarray):
        return None if type(expected) is type(got) and expected == got else "it is another kind of value"
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return f"{got.dtype}{list(got.shape)} in place of {expected.dtype}{list(expected.shape)}"
    dtype = dtypes.of_numpy(expected.dtype)
    if dtype.is_float:
        return _float_difference(expected, got, dtype, tolerance)
    if dtype.kind == "complex":
        pairs = ((expected.real, got.real), (expected.imag, got.imag))
        return next((why for a, b in pairs if (why := difference(a, b, tolerance)) is not None), None)
    if rounded and _has_steps(dtype) and expected.size:
        return _step_difference(expected.astype(np.float64), got.astype(np.float64), tolerance)
    count = int(np.count_nonzero(expected != got))
    return f"{count} of {expected.size} elements are not equal" if count else None


def _step_difference(a: Any, b: Any, tolerance: float | None) -> str | None:
    steps = b - a
    count, drift = int(np.count_nonzero(np.abs(steps) > 1)), abs(float(steps.mean()))
    if tolerance is not None and _error(a, b) <= tolerance:
        return None
    if count:
        return f"{count} of {a.size} elements are more than a step off"
    if drift > DRIFT + 1 / a.size:
        return f"the elements are {drift:.2g} steps off in the mean"
    return None


def _float_difference(expected: Any, got: Any, dtype: DType, tolerance: float | None) -> str | None:
    rtol = tolerance if tolerance is not None else TOLERANCES.get(dtype.name, NARROW)
    a, b = expected.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(a)
    with np.errstate(invalid="ignore"):
        apart = ~finite & ~((a == b) | (np.isnan(a) & np.isnan(b)))
    if np.any(finite != np.isfinite(b)) or apart.any():
        return "NaN or infinity in other places"
    a, b = a[finite], b[finite]
    if np.all(np.abs(a - b) <= 8 * _epsilon(dtype)):
        return None
    error = _error(a, b)
    return f"relative error {error:.2g}" if error > rtol else None


def _error(a: Any, b: Any) -> float:
    """The relative error, the worst over groups of elements of similar magnitude."""
    worst = 0.0
    while a.size:
        size = np.abs(a)
        near = size <= FAR * (np.median(size[size > 0]) if size.any() else 0.0)
        worst = max(worst, float(np.linalg.norm((a - b)[near]) / max(float(np.linalg.norm(a[near])), 1e-30)))
        a, b = a[~near], b[~near]
    return worst


def _epsilon(dtype: DType) -> float:
    return {"f64": 2.0**-52, "f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}.get(dtype.name, 2.0**-3)
