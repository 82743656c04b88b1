"""The node cases of ONNX's suite as drafts: a starting point for nearly every operator."""

from __future__ import annotations

import contextlib
import functools
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from fuzz import schemas
from fuzz.drafts import Draft, Operand
from fuzz.schemas import Key

MAX_NBYTES = 200_000


@functools.cache
def every() -> dict[Key, list[Draft]]:
    """Drafts by operator. To make the suite takes seconds: workers inherit it from the process that starts them."""
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings(), _without_slow_ones():
        warnings.simplefilter("ignore")
        cases = load_model_tests(kind="node")
    found: dict[Key, list[Draft]] = {}
    for case in cases:
        if case.model is None or len(case.model.graph.node) != 1 or not case.data_sets:
            continue
        draft = _draft(case.model, list(case.data_sets[0][0]))
        if draft is not None:
            found.setdefault(draft.key, []).append(draft)
    return found


@contextlib.contextmanager
def _without_slow_ones() -> Iterator[None]:
    """Leave out the cases of pools, whose expected results take ten seconds; these operators have generators."""
    from onnx.backend.test.case import base

    slow = {f"onnx.backend.test.case.node.{name}" for name in ("averagepool", "lppool", "maxpool")} - set(sys.modules)
    sys.modules.update({name: types.ModuleType(name) for name in slow})
    snippet, base.process_snippet = base.process_snippet, lambda *_: ("", "")
    try:
        yield
    finally:
        base.process_snippet = snippet
        for name in slow:
            del sys.modules[name]


def _draft(model: onnx.ModelProto, data: list[Any]) -> Draft | None:
    node, graph = model.graph.node[0], model.graph
    known = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    types = {v.name: v.type for v in graph.input}
    names = [v.name for v in graph.input if v.name not in known]
    known.update(zip(names, map(_value, data), strict=False))
    operands: list[Operand | None] = []
    for name in node.input:
        if name and name not in known:
            return None
        operands.append(_operand(known[name], types.get(name)) if name else None)
    if sum(o.value.nbytes for o in operands if o and isinstance(o.value, np.ndarray)) > MAX_NBYTES:
        return None
    domain = "" if node.domain == "ai.onnx" else node.domain
    imports = {o.domain: o.version for o in model.opset_import}
    key = domain, node.op_type
    if key not in schemas.every():
        return None
    plain, extra = {}, []
    for a in node.attribute:
        if a.type in (1, 2, 3, 6, 7, 8):
            value = helper.get_attribute_value(a)
            plain[a.name] = list(value) if a.type > 5 else value.decode() if isinstance(value, bytes) else value
        else:
            extra.append(a)
    version = schemas.schema(key, imports[domain]).since_version
    return Draft(key, version, operands, plain, len(node.output), imports, tuple(extra))


def _value(x: Any) -> Any:
    return numpy_helper.to_array(x) if isinstance(x, onnx.TensorProto) else x


def _operand(value: Any, stated: onnx.TypeProto | None) -> Operand:
    if not isinstance(value, np.ndarray) and not isinstance(value, (list, dict)) and value is not None:
        value = np.asarray(value)
    if isinstance(value, np.ndarray):
        is_setting = value.dtype in (np.int64, np.int32) and value.ndim <= 1 and value.size <= 16
        return Operand(value, "setting" if is_setting else "index" if value.dtype == np.int64 else "data")
    return Operand(value, type=stated)
