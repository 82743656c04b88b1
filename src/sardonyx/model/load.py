"""Bytes, path, file or ModelProto to ``ir.Model``, with weights left where they are."""

from __future__ import annotations

import mmap
import os
from typing import Any

import onnx
from onnx import shape_inference

from sardonyx.errors import InvalidArgument, InvalidGraph, InvalidProtobuf, NoModel, NoSuchFile, NotImplemented
from sardonyx.ir.graph import Model
from sardonyx.model import functions, wire
from sardonyx.model.external import Folder
from sardonyx.model.graphs import GraphReader
from sardonyx.model.tensors import Payloads


def load(
    source: Any, *, folder: str | None = None, in_memory: dict[str, bytes] | None = None, infer: bool = True
) -> Model:
    """Read a model.

    ``folder`` is where external data lies when the source is not a path; ``in_memory`` gives the contents of external
    files by location. With ``infer``, types and shapes are those that onnx's inference adds to what the file states.
    """
    data, path = _bytes_of(source)
    if not len(data):
        raise NoModel("the model is empty", where=path)
    skeleton = wire.split(data)
    proto = _parse(skeleton.data)
    opsets = _opsets(proto)
    proto = functions.inline(proto)
    if infer:
        proto = _inferred(proto)
    home = Folder(path, folder=folder)
    home.in_memory = {name: memoryview(content) for name, content in (in_memory or {}).items()}
    reader = GraphReader(Payloads(data, skeleton, home), proto.ir_version)
    return Model(
        graph=reader.read(proto.graph),
        opsets=opsets,
        ir_version=proto.ir_version,
        producer_name=proto.producer_name,
        producer_version=proto.producer_version,
        domain=proto.domain,
        model_version=proto.model_version,
        doc=proto.doc_string,
        metadata={p.key: p.value for p in proto.metadata_props},
        path=path,
    )


def _bytes_of(source: Any) -> tuple[memoryview, str | None]:
    """The serialized model, mapped when it is a file, and its path."""
    if isinstance(source, (bytes, bytearray, memoryview, mmap.mmap)):
        return memoryview(source).cast("B"), None
    if isinstance(source, (str, os.PathLike)):
        path = os.fspath(source)
        try:
            with open(path, "rb") as file:
                if os.fstat(file.fileno()).st_size == 0:
                    return memoryview(b""), str(path)
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)), str(path)
        except FileNotFoundError:
            raise NoSuchFile(f"Load model from {path} failed. File doesn't exist", where=str(path)) from None
        except (OSError, ValueError) as e:
            raise NoSuchFile(f"Load model from {path} failed: {e}", where=str(path)) from None
    if isinstance(source, onnx.ModelProto):
        return memoryview(source.SerializeToString()), None
    if hasattr(source, "read"):
        content = source.read()
        if not isinstance(content, bytes):
            raise InvalidArgument("the model file must be opened in binary mode", got=type(content).__name__)
        name = getattr(source, "name", None)
        return memoryview(content), name if isinstance(name, str) and os.path.exists(name) else None
    raise InvalidArgument(
        "a model is a path, bytes, a binary file or an onnx.ModelProto", got=type(source).__name__
    )


def _parse(data: bytes) -> onnx.ModelProto:
    try:
        proto = onnx.ModelProto.FromString(data)
    except Exception as e:
        raise InvalidProtobuf("the bytes are not an ONNX model", got=str(e)) from None
    if not proto.HasField("graph"):
        raise InvalidProtobuf("the model has no graph", hint="is this an ONNX file?")
    if proto.ir_version > onnx.IR_VERSION:
        raise NotImplemented(
            "the model's IR version is newer than this build of onnx knows",
            expected=f"at most {onnx.IR_VERSION}",
            got=proto.ir_version,
            hint="upgrade onnx",
        )
    return proto


def _opsets(proto: onnx.ModelProto) -> dict[str, int]:
    """Imported versions by domain; a model without imports is of opset 1, as the first models were."""
    opsets: dict[str, int] = {}
    for entry in proto.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if opsets.get(domain, entry.version) != entry.version:
            raise InvalidGraph("one domain is imported in two versions", got=repr(domain))
        opsets[domain] = entry.version
    if not proto.opset_import:
        opsets[""] = 1
        proto.opset_import.add(domain="", version=1)
    newest = {s: onnx.defs.onnx_opset_version() for s in ("",)}
    for domain, version in opsets.items():
        if version < 1 or version > newest.get(domain, version):
            raise InvalidGraph(
                "the model imports an opset that this build of onnx does not know",
                where=f"domain {domain or 'ai.onnx'!r}",
                expected=f"1 to {newest.get(domain, 'any')}",
                got=version,
            )
    return opsets


def _inferred(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The skeleton with the types and shapes that onnx can work out."""
    try:
        return shape_inference.infer_shapes(proto, check_type=True, data_prop=True)
    except shape_inference.InferenceError as e:
        raise InvalidGraph(f"This is an invalid model. Type Error: {e}") from None
    except Exception as e:
        raise InvalidGraph(f"types cannot be inferred: {e}") from None
