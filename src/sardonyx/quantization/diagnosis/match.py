"""Which tensor of the quantized model is which tensor of the float model: by name, by structure otherwise.

Structure: inputs and outputs of the models by position, and products by the direction of their weights, are the same.
From there on, equal operators have equal operands, and the only reader of one kind is that of the other model.
"""

from __future__ import annotations

from collections import Counter, deque

import numpy as np

from sardonyx.quantization.diagnosis.grids import Array
from sardonyx.quantization.diagnosis.layers import Constant, Layer, Layers, Tensor, computed
from sardonyx.records import Record

SAME = {"Gemm": "MatMul", "FusedConv": "Conv", "FusedGemm": "MatMul", "FusedMatMul": "MatMul"}
"""Operators that count as the same."""
FOLDED = ("Relu", "Clip")
"""Operators that a quantized range can do the work of."""
LEAST_COSINE = 0.5
"""Weights below are not those of the same layer."""
COMPARED = 1 << 14
"""Elements of weights that are compared."""


class Pair(Record, eq=False):
    """A tensor of both models, with the layers that compute it; inputs have none."""

    name: str
    """In the float model."""
    index: int
    """The position of its layer in the float model; -1 for an input."""
    real: Tensor
    quantized: Tensor
    real_layer: Layer | None
    quantized_layer: Layer | None
    by_name: bool

    @property
    def label(self) -> str:
        """The layer, as the float model names it."""
        return f"input {self.name}" if self.real_layer is None else self.real_layer.label


def matched(real: Layers, quantized: Layers) -> list[Pair]:
    """All pairs, in the order of the float model."""
    return _Matching(real, quantized).pairs()


class _Side:
    """A model's layers by what they make and read."""

    def __init__(self, model: Layers) -> None:
        self.model, self.layers = model, list(computed(model.layers))
        self.maker = {id(layer.tensor): layer for layer in self.layers}
        self.readers: dict[int, list[Layer]] = {}
        for layer in self.layers:
            for tensor in dict.fromkeys(map(id, layer.inputs)):
                self.readers.setdefault(tensor, []).append(layer)
        values = {v: t for t in model.tensors for v in (t.source, *(v for v, _ in (*t.read, *t.forms)))}
        self.returned: list[Tensor | None] = [values.get(v) for v in model.model.graph.outputs]

    def passed(self, tensor: Tensor, kinds: set[str]) -> list[Layer]:
        """The readers of a tensor, or those of its activation if the other model, with readers of these kinds, folded
        it.
        """
        found = self.readers.get(id(tensor), [])
        if len(found) == 1 and found[0].kind in FOLDED and found[0].kind not in kinds:
            return self.readers.get(id(found[0].tensor), [])
        return found


class _Matching:
    def __init__(self, real: Layers, quantized: Layers) -> None:
        self.real, self.other = _Side(real), _Side(quantized)
        self.of: dict[int, tuple[Tensor, bool]] = {}
        """By identity of the float model's tensor: that of the other model, and whether names are equal."""
        self._taken: set[int] = set()
        self._todo: deque[tuple[Tensor, Tensor]] = deque()
        self._match_names()
        for a, b in zip(real.given, quantized.given, strict=False):
            self._match(a, b)
        self._skip_folded()
        for mine, theirs in zip(self.real.returned, self.other.returned, strict=False):
            if mine is not None and theirs is not None:
                self._match(mine, theirs)
        self._match_weights()
        self._propagate()
        self._match_unique()
        self._propagate()

    def pairs(self) -> list[Pair]:
        made = []
        position = {id(layer.tensor): i for i, layer in enumerate(self.real.layers)}
        for tensor in (*self.real.model.given, *(layer.tensor for layer in self.real.layers)):
            if id(tensor) in self.of:
                other, same = self.of[id(tensor)]
                layer, theirs = self.real.maker.get(id(tensor)), self.other.maker.get(id(other))
                made.append(Pair(tensor.source.name, position.get(id(tensor), -1), tensor, other, layer, theirs, same))
        return made

    def _match(self, a: Tensor, b: Tensor, *, by_name: bool = False) -> None:
        if id(a) not in self.of and id(b) not in self._taken and a.is_given == b.is_given:
            self.of[id(a)] = b, by_name
            self._taken.add(id(b))
            self._todo.append((a, b))

    def _match_names(self) -> None:
        names = {name: t for t in self.other.model.tensors for name in (*t.names, t.source.name)}
        for tensor in (*self.real.model.given, *(layer.tensor for layer in self.real.layers)):
            named = names.get(tensor.source.name)
            if named is not None:
                self._match(tensor, named, by_name=True)

    def _skip_folded(self) -> None:
        """Match an activation that was folded into the layer before it, in place of that layer."""
        returned = {id(t) for t in self.real.returned}
        for layer in self.real.layers:
            if layer.kind not in FOLDED or id(layer.tensor) in self.of or not layer.inputs:
                continue
            before = layer.inputs[0]
            if id(before) in self.of and id(before) not in returned and self.real.readers[id(before)] == [layer]:
                other = self.of[id(before)][0]
                readers = self.other.readers.get(id(other), [])
                if not any(reader.kind == layer.kind for reader in readers):
                    self.of[id(layer.tensor)] = self.of.pop(id(before))
                    self._todo.append((layer.tensor, other))

    def _match_weights(self) -> None:
        """Products whose weights have one name, or nearly one direction."""
        free = [layer for layer in self.other.layers if layer.weight is not None]
        by_token: dict[object, list[Layer]] = {}
        for layer in free:
            by_token.setdefault(_token(layer), []).append(layer)
        for layer in self.real.layers:
            if layer.weight is None or id(layer.tensor) in self.of:
                continue
            candidates = [o for o in by_token.get(_token(layer), []) if id(o.tensor) not in self._taken]
            likeness = [_likeness(layer.weight, o.weight) for o in candidates]
            if likeness and max(likeness) >= LEAST_COSINE:
                self._match_products(layer, candidates[int(np.argmax(likeness))])

    def _match_products(self, a: Layer, b: Layer) -> None:
        """Match the results of a product, after the activation that follows it where only one model has that."""
        if a.weight is not None and b.weight is not None:
            self._match_operands(a, b)
        b = self._with_bias(a, b)
        readers = self.real.readers.get(id(a.tensor), [])
        kinds = {reader.kind for reader in self.other.readers.get(id(b.tensor), [])}
        if len(readers) == 1 and readers[0].kind in FOLDED and readers[0].kind not in kinds:
            self._match(readers[0].tensor, b.tensor)
        else:
            self._match(a.tensor, b.tensor)

    def _with_bias(self, a: Layer, b: Layer) -> Layer:
        """The addition of a bias to ``b``, if the float model's product ``a`` adds one itself."""
        readers = self.other.readers.get(id(b.tensor), [])
        if a.bias is None or b.bias is not None or len(readers) != 1:
            return b
        return readers[0] if readers[0].kind == "Add" and len(readers[0].inputs) == 1 else b

    def _match_operands(self, a: Layer, b: Layer) -> None:
        if len(a.inputs) == len(b.inputs):
            for x, y in zip(a.inputs, b.inputs, strict=True):
                self._match(x, y)

    def _propagate(self) -> None:
        while self._todo:
            x, y = self._todo.popleft()
            a, b = self.real.maker.get(id(x)), self.other.maker.get(id(y))
            if a is not None and b is not None and a.kind in FOLDED and b.kind != a.kind and a.inputs:
                a = self.real.maker.get(id(a.inputs[0]))
            if a is not None and b is not None and _kind(a) == _kind(b):
                self._match_operands(a, b)
            theirs = self.other.readers.get(id(y), [])
            ours = self.real.passed(x, {layer.kind for layer in theirs})
            mine, others = (Counter(map(_token, layers)) for layers in (ours, theirs))
            for layer in ours:
                token = _token(layer)
                if mine[token] == others[token] == 1:
                    self._match_products(layer, next(o for o in theirs if _token(o) == token))

    def _match_unique(self) -> None:
        """Operators of which both models have only one left."""
        ours = [layer for layer in self.real.layers if id(layer.tensor) not in self.of]
        theirs = [layer for layer in self.other.layers if id(layer.tensor) not in self._taken]
        mine, others = (Counter(map(_token, layers)) for layers in (ours, theirs))
        for layer in ours:
            token = _token(layer)
            if mine[token] == others[token] == 1:
                other = next(o for o in theirs if _token(o) == token)
                if layer.weight is None or _likeness(layer.weight, other.weight) >= LEAST_COSINE:
                    self._match_products(layer, other)


def _kind(layer: Layer) -> str:
    return SAME.get(layer.kind, layer.kind)


def _token(layer: Layer) -> object:
    shape = None if layer.weight is None else tuple(sorted(layer.weight.array.shape))
    return _kind(layer), shape


def _likeness(a: Constant, b: Constant | None) -> float:
    if b is None:
        return 0.0
    if a.name and a.name == b.name:
        return 2.0
    w = oriented(b.array, a.array)
    return 0.0 if w is None else cosine(w, a.array)


def oriented(array: Array, like: Array) -> Array | None:
    """A weight in the orientation of another; None if the shapes differ."""
    if array.shape == like.shape and not (array.ndim == 2 and array.shape[0] == array.shape[1]):
        return array
    if array.ndim == 2 and array.T.shape == like.shape:
        if array.shape == like.shape and cosine(array, like) >= cosine(array.T, like):
            return array
        return np.asarray(array.T)
    return array.reshape(like.shape) if array.size == like.size and array.ndim != like.ndim else None


def cosine(a: Array, b: Array) -> float:
    """The cosine of the angle between two weights, by a part of their elements."""
    step = max(1, a.size // COMPARED) | 1
    x, y = (w.reshape(-1)[::step].astype(np.float64) for w in (a, b))
    size = float(np.linalg.norm(x) * np.linalg.norm(y))
    return float(x @ y) / size if size else 1.0
