"""What can make a model fail, run slowly or surprise: found in its file and by asking providers what they claim."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from sardonyx.inspection.records import Risk
from sardonyx.ir.graph import Model, Node
from sardonyx.partition.assign import Owner

OLD_OPSET, NEW_IR = 9, 13
"""Opsets below are converted by few tools; runtimes older than a year refuse newer IR versions."""
CONTRIB = ("com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc")


class Placed(NamedTuple):
    """Who would run which node of the optimized graph."""

    owners: Mapping[Node, Owner]
    unclaimed: list[Node]
    """Nodes that nobody runs."""
    in_runs: Mapping[Node, str]
    """Nodes that cannot be compiled before a run, and what only a run tells."""


def risks(model: Model, external: Mapping[str, int | None], placed: Placed) -> list[Risk]:
    """``external`` are sizes of external files, None for missing ones."""
    return [
        *_files(external),
        *_operators(model, placed.unclaimed),
        *_placement(placed),
        *_precision(model),
        *_versions(model),
    ]


def _files(external: Mapping[str, int | None]) -> Iterator[Risk]:
    missing = [name for name, nbytes in external.items() if nbytes is None]
    if external:
        files = "another file" if len(external) == 1 else f"{len(external)} other files"
        yield Risk("external-data", f"weights are in {files}, which must stay beside it", tuple(external))
    if missing:
        yield Risk("missing-data", "external files are missing", tuple(missing))


def _operators(model: Model, unclaimed: list[Node]) -> Iterator[Risk]:
    if unclaimed:
        yield Risk(
            "unknown-operator",
            "no provider runs these operators; sardonyx.custom_op can define them",
            _labels(unclaimed),
        )
    contrib = [node for node in model.graph.all_nodes() if node.domain in CONTRIB]
    if contrib:
        kinds = sorted({node.op_type for node in contrib})
        yield Risk(
            "contrib-operator",
            f"operators of onnxruntime's own run in few other runtimes: {', '.join(kinds)}",
            _labels(contrib),
        )


def _placement(placed: Placed) -> Iterator[Risk]:
    by_reason: dict[str, list[Node]] = {}
    for node, owner in placed.owners.items():
        if owner.provider.name == "reference":
            by_reason.setdefault(f"{node.op_type}: {owner.reason}", []).append(node)
    for reason, nodes in by_reason.items():
        yield Risk("reference-provider", f"would run on numpy, slowly: {reason}", _labels(nodes))
    by_reason = {}
    for node, why in placed.in_runs.items():
        by_reason.setdefault(f"{node.op_type}: {why}", []).append(node)
    for reason, nodes in by_reason.items():
        what = "compiled in runs, anew for each of the first shapes and contents that they bring, else run on numpy"
        yield Risk("compiled-in-runs", f"{what}: {reason}", _labels(nodes))


def _precision(model: Model) -> Iterator[Risk]:
    doubles = [
        n for n in model.graph.all_nodes() if any(v.dtype is not None and v.dtype.name == "f64" for v in n.outputs)
    ]
    if doubles:
        yield Risk("float64", "computes in float64, which is at most half as fast as float32", _labels(doubles))


def _versions(model: Model) -> Iterator[Risk]:
    version = model.imports.get("", OLD_OPSET)
    if version < OLD_OPSET:
        yield Risk("old-opset", f"opset {version} is older than most tools support")
    if model.ir_version > NEW_IR:
        yield Risk("new-ir", f"IR version {model.ir_version} is newer than most runtimes support")


def _labels(nodes: list[Node]) -> tuple[str, ...]:
    return tuple(node.label for node in nodes)


def external_files(proto: Any, folder: str) -> dict[str, int | None]:
    """The sizes of the files that hold a model's external data; None for missing ones."""
    locations = dict.fromkeys(
        entry.value
        for tensor in proto.graph.initializer
        if tensor.data_location == tensor.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    )
    found: dict[str, int | None] = {}
    for location in locations:
        path = os.path.join(folder, location)
        found[location] = os.path.getsize(path) if os.path.isfile(path) else None
    return found
