"""The cache of optimized graphs of model files, in the cache folder (``folders.cache_folder``).

An entry holds the optimized graph and the constants that the optimizer made; the model's own initializers are referred
to by name and stay in its file. Its name is a digest of everything that the optimizer depends on: the model without its
large payloads, path, size and times of the files that hold those, level and options, versions, and our own sources. A
damaged entry counts as a miss and is rebuilt (``entries``).
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from dataclasses import replace
from functools import partial
from typing import Any

import onnx

from sardonyx import dtypes, entries, fingerprint, knobs
from sardonyx.errors import SardonyxError
from sardonyx.files import SourceFile
from sardonyx.folders import Place, PrivateFolder
from sardonyx.ir.graph import Model
from sardonyx.ir.tensor import Tensor
from sardonyx.ir.types import ValueType
from sardonyx.model.load import Opened, Scanned, load
from sardonyx.model.protos import external_locations
from sardonyx.model.save import Names, model_to_proto, tensor_to_proto
from sardonyx.model.types import from_proto, to_proto
from sardonyx.ops import registry
from sardonyx.optimize.report import Declined, Report, Rewrite
from sardonyx.records import Record
from sardonyx.session import cache_key, cache_writer

MAX_NBYTES = 256 << 20
"""Largest total size of constants made by the optimizer for a graph to be cached."""
MAX_ATTRIBUTES = 1 << 16
"""Most elements of lists in attributes: those of a large forest would take as long to be read back as the model."""


class Prepared(Record):
    """The result of the phases before partitioning."""

    model: Model
    stated: list[ValueType | None]
    """Types of the outputs as the model states them."""
    report: Report
    weights_nbytes: int


class Entry:
    """The cache entry of one model and one set of options."""

    def __init__(self, folder: PrivateFolder, opened: Opened, settings: Any) -> None:
        self._folder, self._opened = folder, opened
        digest = hashlib.blake2b(digest_size=20)
        digest.update(opened.skeleton.data.replace(opened.skeleton.key.encode(), b""))
        told = [[os.path.realpath(f.path), *f.identity] for f in _files(opened)]
        digest.update(json.dumps([told, settings, cache_key.versions(), _customs(opened)]).encode())
        self._name = f"{digest.hexdigest()}.graph"

    def read(self) -> Prepared | None:
        """The cached result, or None."""
        cache_writer.wait(self._name)
        return entries.read(self._folder, self._name, self._prepared)

    def _prepared(self, entry: entries.Entry) -> Prepared:
        told = json.loads(entry.head)
        entries.check_body(entry, bytes.fromhex(told["graph"]))
        own = self._opened.initializers()
        kept = {
            name: own[of].seen_as(dtypes.of_name(dtype), tuple(shape))
            for name, (of, dtype, shape) in told["own"].items()
        }
        model = load(entry.body, infer=False, initializers=kept)
        report = Report([Rewrite(n, tuple(o), w) for n, o, w in told["rewrites"]])
        report.declined = [Declined(*row) for row in told["declined"]]
        stated = [from_proto(onnx.TypeProto.FromString(base64.b64decode(t))) for t in told["stated"]]
        return Prepared(_named(model, self._opened), stated, report, told["weights_nbytes"])

    def write(self, prepared: Prepared) -> None:
        """Cache the optimized graph; the file is written in the background."""
        graph, own = prepared.model.graph, self._opened.initializers()
        lists = (a for n in graph.all_nodes() for a in n.attrs.values() if isinstance(a, list))
        if sum(map(len, lists)) > MAX_ATTRIBUTES:
            return
        names = Names(graph)
        proto = model_to_proto(prepared.model, weights=False)
        references: dict[str, tuple[str, str, tuple[int, ...]]] = {}
        made = [v for v in graph.initializers.values() if v.const is not None and not _is_own(v.const, own)]
        if sum(v.const.nbytes for v in made if v.const is not None) > MAX_NBYTES:
            return
        for value in graph.initializers.values():
            assert value.const is not None
            if _is_own(value.const, own):
                references[names(value)] = value.const.name, value.const.dtype.name, value.const.shape
                stand_in = proto.graph.initializer.add(name=names(value), data_type=value.const.dtype.onnx)
                stand_in.dims.extend(value.const.shape)
            else:
                proto.graph.initializer.append(tensor_to_proto(value.const, names(value)))
        body = proto.SerializeToString()
        told = {
            "graph": entries.checksum(body).hex(),
            "own": references,
            "rewrites": [[r.name, r.nodes, r.what] for r in prepared.report.rewrites],
            "declined": [[d.name, d.node, d.reason] for d in prepared.report.declined],
            "stated": [base64.b64encode(to_proto(t).SerializeToString()).decode() for t in prepared.stated],
            "weights_nbytes": prepared.weights_nbytes,
            "path": self._opened.path,
        }
        write = partial(entries.write, self._folder, self._name, json.dumps(told).encode(), [body], len(body))
        cache_writer.submit(self._folder, self._name, write)


def entry(scanned: Scanned, settings: Any, cache: Place | None) -> Entry | None:
    """The entry of a model in the ``cache``; None if it is no file, or if the cache is off or not private."""
    if knobs.VERIFY.get() or not isinstance(scanned.data, SourceFile):
        return None
    where = None if cache is None else cache.open()
    if where is None:
        return None
    opened = scanned.parsed()
    try:
        return Entry(where, opened, settings)
    except (OSError, ValueError, SardonyxError):  # an external data file is missing: loading reports which
        return None


def _is_own(tensor: Tensor, own: dict[str, Tensor]) -> bool:
    """Whether a constant of the graph is an initializer of the model, perhaps under another shape: the same bytes of
    the same file."""
    return tensor.origin is not None and tensor.name in own and own[tensor.name].origin == tensor.origin


def _named(model: Model, opened: Opened) -> Model:
    proto = opened.proto
    version = proto.model_version if proto.HasField("model_version") else None
    imports = {"" if e.domain == "ai.onnx" else e.domain: e.version for e in proto.opset_import}
    return replace(model, ir_version=proto.ir_version, model_version=version, path=opened.path, imports=imports)


def _customs(opened: Opened) -> list[str]:
    """The custom operators that the model may contain."""
    found = [op for op in registry.customs() if op.domain.encode() in opened.skeleton.data]
    return [f"{op.domain}.{op.name}:{fingerprint.of(*op.custom.parts)}" for op in found if op.custom is not None]


def _files(opened: Opened) -> list[SourceFile]:
    """The model's own file, and its external data files."""
    source, folder = opened.payloads.source, opened.payloads.folder
    named = external_locations(opened.proto) if b"location" in opened.skeleton.data else ()
    found = [source, *(folder.open(location, location) for location in sorted(named))]
    return [file for file in found if isinstance(file, SourceFile)]
