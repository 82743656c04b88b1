"""The Hessians of products, from runs of the model on calibration data."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from sardonyx.errors import InvalidArgument, RuntimeException
from sardonyx.ir.graph import Model
from sardonyx.quantization.data import Feeds
from sardonyx.quantization.taps import Tapped
from sardonyx.quantization.weight_only.pack import Array
from sardonyx.quantization.weight_only.rewrite import Weight

logger = logging.getLogger(__name__)

AT_ONCE_NBYTES = 1 << 30
"""Hessians that are summed up in one pass over the data."""


def passes(weights: Sequence[Weight]) -> Iterator[list[Weight]]:
    """The weights in groups whose Hessians fit in memory together; weights that read the same input stay together."""
    by_input: dict[str, list[Weight]] = {}
    for weight in weights:
        by_input.setdefault(input_name(weight), []).append(weight)
    group: list[Weight] = []
    nbytes = 0
    for readers in by_input.values():
        needed = readers[0].tensor.shape[-2] ** 2 * 8
        if group and nbytes + needed > AT_ONCE_NBYTES:
            yield group
            group, nbytes = [], 0
        group += readers
        nbytes += needed
    if group:
        yield group


def input_name(weight: Weight) -> str:
    first = weight.node.inputs[0]
    assert first is not None
    return first.name


def collect(model: Model, weights: Sequence[Weight], data: Sequence[Feeds]) -> Mapping[str, Array]:
    """X' X of each product's input, over all rows of all runs, by the name of the input."""
    names = list(dict.fromkeys(map(input_name, weights)))
    if not data:
        raise InvalidArgument("the calibration data reader gave no data", hint="a reader gives its data only once")
    session = Tapped(model, names)
    sums: dict[str, Array] = {}
    for feeds in data:
        for name, x in session.run(feeds).items():
            rows = np.asarray(x, np.float32).reshape(-1, x.shape[-1])
            product = rows.T @ rows
            if not np.isfinite(product).all():
                raise RuntimeException("the input of a product is not finite on the calibration data", where=name)
            sums[name] = sums[name] + product if name in sums else product.astype(np.float64)
    return sums
