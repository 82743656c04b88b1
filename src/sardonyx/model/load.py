"""Path, bytes, file or ModelProto to ``ir.Model``; weights stay in the file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from mmap import mmap
from typing import Any

import onnx

from sardonyx.errors import BrokenGraph, InvalidArgument, InvalidGraph, InvalidProtobuf, NoSuchFile
from sardonyx.files import IsNotRegular, SourceFile
from sardonyx.ir.graph import Model
from sardonyx.ir.tensor import Tensor
from sardonyx.limits import Limits, check_time
from sardonyx.model import bounds, functions, kinds, wire
from sardonyx.model.check import check_nodes
from sardonyx.model.external import Folder
from sardonyx.model.graphs import GraphReader
from sardonyx.model.inference import Stated, Tables, inferred, require_known_opset
from sardonyx.model.protos import every_node
from sardonyx.model.tensors import Payloads
from sardonyx.model.types import from_proto, text
from sardonyx.records import Record


def load(
    source: Any,
    *,
    folder: str | None = None,
    in_memory: Mapping[str, bytes] | None = None,
    initializers: Mapping[str, Any] | None = None,
    infer: bool = True,
    limits: Limits | None = None,
) -> Model:
    """Read a model: a path, bytes, a binary file, an ``onnx.ModelProto``, a ``SourceFile``, or a scanned model.

    ``folder`` is where external data lies if the source is not a path; ``in_memory`` gives the contents of external
    files by location. ``initializers`` are arrays that replace the model's own; unknown names are ignored. With
    ``infer``, the element types of computed values come from onnx's inference; without it, the file was written by
    Sardonyx and its types are used. ``limits`` are those of an untrusted model, which has no external data.
    """
    opened = scan(source, folder=folder, in_memory=in_memory, limits=limits).parsed()
    payloads, proto = opened.payloads, opened.proto
    opsets = _opsets(proto)
    versions = _inline_functions(opened, opsets, limits)
    _shorten_domains(opened)
    check_nodes(proto.graph, opsets)
    payloads.set_sparse_aside(proto.graph)
    sparse_outputs = frozenset(o.name for o in proto.graph.output if o.type.HasField("sparse_tensor_type"))
    stated: Stated = {}
    tables = Tables()
    if infer:
        check_time()
        proto, stated, tables = inferred(proto, opsets)
        check_time()
    given = {
        name: array if isinstance(array, Tensor) else Tensor.of(array, name)
        for name, array in (initializers or {}).items()
    }
    outputs = {o.name: stated.get(o.name, o.type) for o in proto.graph.output}
    reader = GraphReader(payloads, proto.ir_version, opsets, stated, tables, given, versions, checks_types=infer)
    graph = reader.read(proto.graph)
    declared = {name: from_proto(t, f"output {name!r}") for name, t in outputs.items()}
    return Model(
        graph=graph,
        opsets=opsets,
        imports=dict(opsets),
        ir_version=proto.ir_version,
        producer_name=text(proto.producer_name, "producer name"),
        producer_version=text(proto.producer_version, "producer version"),
        domain=text(proto.domain, "model domain"),
        model_version=proto.model_version if proto.HasField("model_version") else None,
        doc=text(proto.doc_string, "model description"),
        metadata={text(p.key, "metadata"): text(p.value, "metadata") for p in proto.metadata_props},
        path=opened.path,
        sparse_outputs=sparse_outputs,
        declared_outputs={name: t for name, t in declared.items() if t is not None},
        stated_shapes=reader.stated_shapes,
    )


class Opened(Record):
    """A model with a parsed skeleton, before graphs are built."""

    proto: onnx.ModelProto
    skeleton: wire.Skeleton
    payloads: Payloads
    path: str | None

    def initializers(self) -> dict[str, Tensor]:
        """The main graph's constants, by name."""
        return {t.name: self.payloads.tensor(t, f"initializer {t.name!r}") for t in self.proto.graph.initializer}


class Scanned(Record):
    """A model whose tensors have been located. Its files are held open, so it can be loaded again unchanged."""

    data: memoryview | SourceFile
    skeleton: wire.Skeleton
    path: str | None
    home: Folder
    limits: Limits | None = None

    def parsed(self) -> Opened:
        """The model with its skeleton parsed and, if it has limits, checked against them."""
        try:
            proto = _parse(self.skeleton.data)
        except (NoGraph, InvalidProtobuf) as error:
            raise _explained(error, self.path, self.data) from None
        if self.limits is not None:
            bounds.check_model(proto, self.skeleton.key, self.limits)
        return Opened(proto, self.skeleton, Payloads(self.data, self.skeleton, self.home), self.path)


def scan(
    source: Any,
    *,
    folder: str | None = None,
    in_memory: Mapping[str, bytes] | None = None,
    limits: Limits | None = None,
) -> Scanned:
    """Locate the tensors of a model; the options are those of ``load``."""
    if isinstance(source, Scanned):
        return source
    data, path = _data_of(source if limits is None else bounds.read(source, limits))
    if isinstance(source, (str, os.PathLike)):
        path = os.fsdecode(source)
    try:
        skeleton = wire.split(wire.Window(data) if isinstance(data, SourceFile) else data)
    except InvalidProtobuf as error:
        raise _explained(error, path, data) from None
    if limits is not None:
        bounds.check_skeleton(len(skeleton.data), limits)
    home = Folder(path, folder=folder)
    home.in_memory = {name: _flat(content) for name, content in (in_memory or {}).items()}
    return Scanned(data, skeleton, path, home, limits)


class NoGraph(InvalidArgument):
    """The bytes are a protobuf message without a graph."""


def _explained(
    error: NoGraph | InvalidProtobuf, path: str | None, data: memoryview | SourceFile
) -> InvalidArgument | InvalidProtobuf:
    """The error with the path of the file and the kind of file that it seems to be."""
    count = min(len(data), kinds.HEAD)
    kind = kinds.kind_of(data.bytes(0, count) if isinstance(data, SourceFile) else bytes(data[:count]))
    failed = "Failed to load model" if path is None else f"Load model from {path} failed"
    if isinstance(error, NoGraph):
        return InvalidArgument(f"{failed}: {error.what}", hint=kind or kinds.QUESTION)
    if kind is not None:
        return InvalidProtobuf(f"{failed}: Protobuf parsing failed", hint=kind)
    error.hint = kinds.QUESTION
    error.what = f"{failed}: Protobuf parsing failed: {error.what}"
    return error


def _data_of(source: Any) -> tuple[memoryview | SourceFile, str | None]:
    """The serialized model, in memory or in its file, and its path."""
    if isinstance(source, SourceFile):
        return source, source.path
    if isinstance(source, (str, os.PathLike)):
        return _opened(os.fsdecode(source)), None
    return _bytes_of(source)


def _bytes_of(source: Any) -> tuple[memoryview, str | None]:
    """A serialized model in memory, and its path if that is known."""
    if isinstance(source, (bytes, bytearray, memoryview, mmap)):
        return _flat(source), None
    if isinstance(source, onnx.ModelProto):
        try:
            return memoryview(source.SerializeToString()), None
        except Exception as e:
            raise InvalidArgument(
                "the ModelProto cannot be serialized",
                got=str(e),
                hint="save a model of 2 GB or more to a file with external data, and give its path",
            ) from None
    if hasattr(source, "read"):
        content = source.read()
        if not isinstance(content, (bytes, bytearray, memoryview)):
            raise InvalidArgument("the model file must be opened in binary mode", got=type(content).__name__)
        name = getattr(source, "name", None)
        return _flat(content), name if isinstance(name, str) and os.path.exists(name) else None
    raise InvalidArgument("a model is a path, bytes, a binary file or an onnx.ModelProto", got=type(source).__name__)


def _flat(buffer: Any) -> memoryview:
    """Bytes that cannot change: the caller's if they are immutable, else a copy."""
    view = memoryview(buffer)
    return view.cast("B") if isinstance(view.obj, bytes) and view.c_contiguous else memoryview(view.tobytes())


def _opened(path: str) -> SourceFile:
    try:
        return SourceFile.open(path)
    except IsNotRegular:
        is_folder = os.path.isdir(path)
        what, hint = ("a folder", kinds.hint_of_folder(path)) if is_folder else ("not a file", None)
        raise InvalidProtobuf(f"Load model from {path} failed: it is {what}", where=path, hint=hint) from None
    except FileNotFoundError:
        raise NoSuchFile(f"Load model from {path} failed. File doesn't exist", where=path) from None
    except (OSError, ValueError) as e:
        raise NoSuchFile(f"Load model from {path} failed: {e}", where=path) from None


def _parse(data: bytes) -> onnx.ModelProto:
    try:
        proto: onnx.ModelProto = onnx.ModelProto.FromString(data)
    except Exception as e:
        raise InvalidProtobuf(str(e)) from None
    if not proto.HasField("graph"):
        raise NoGraph("No graph was found in the protobuf")
    if proto.ir_version > onnx.IR_VERSION:
        raise BrokenGraph(
            "the model's IR version is newer than this build of onnx knows",
            expected=f"at most {onnx.IR_VERSION}",
            got=proto.ir_version,
            hint="upgrade onnx",
        )
    return proto


def _opsets(proto: onnx.ModelProto) -> dict[str, int]:
    """Imported versions by domain. Models of IR versions 1 and 2 import nothing and are opset 1."""
    if not proto.opset_import:
        if proto.ir_version >= 3:
            raise BrokenGraph("the model imports no opset", expected="at least one entry in opset_import")
        proto.opset_import.add(domain="", version=1)
    opsets: dict[str, int] = {}
    for entry in proto.opset_import:
        if entry.domain == "ai.onnx":
            entry.domain = ""
        domain = text(entry.domain, "opset import")
        if opsets.setdefault(domain, entry.version) != entry.version:
            raise InvalidGraph("one domain is imported in two versions", got=repr(domain))
        require_known_opset("the model", domain, entry.version, f"domain {domain or 'ai.onnx'!r}")
    return opsets


def _inline_functions(opened: Opened, opsets: dict[str, int], limits: Limits | None) -> functions.Versions:
    """``functions.inline``; where functions are called, the model that results must keep to the limits too."""
    is_called = bool(opened.proto.functions)
    versions = functions.inline(opened.proto, opsets, limits)
    if limits is not None and is_called:
        bounds.check_model(opened.proto, opened.skeleton.key, limits)
    return versions


def _shorten_domains(opened: Opened) -> None:
    """Write the domain ai.onnx as the empty one, which is the same."""
    if b"ai.onnx" in opened.skeleton.data:
        for node in every_node(opened.proto.graph.node):
            if node.domain == "ai.onnx":
                node.domain = ""
