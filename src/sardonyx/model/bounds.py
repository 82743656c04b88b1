"""Limits on the file of an untrusted model: it is read whole and counted before anything processes it.

The file is read into memory and not mapped, because its author may still change it. Its skeleton's size is checked
before it is parsed; onnx's inference and inliner see only what has been counted.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import onnx

from sardonyx.errors import InvalidArgument, NoSuchFile, SardonyxError
from sardonyx.limits import Limits, check_time, forbidden, refusal
from sardonyx.model.protos import label, subgraphs
from sardonyx.model.types import dtype_of


def read(source: Any, limits: Limits) -> bytes:
    """The bytes of a model, within its limits."""
    if isinstance(source, (str, os.PathLike)):
        return _read_file(os.fsdecode(source), limits)
    if hasattr(source, "SerializeToString"):
        source = source.SerializeToString()
    elif hasattr(source, "read"):
        source = source.read(int(limits.file_nbytes) + 1) if limits.file_nbytes < sys.maxsize else source.read()
    if not isinstance(source, (bytes, bytearray, memoryview)):
        raise InvalidArgument("a model is a path, bytes, a binary file or a ModelProto", got=type(source).__name__)
    size = memoryview(source).nbytes
    _check(limits, "file_nbytes", size, "the model's file is too large")
    return bytes(source)


def _read_file(path: str, limits: Limits) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0))
        with open(fd, "rb") as file:
            info = os.fstat(fd)
            if not stat.S_ISREG(info.st_mode):
                raise NoSuchFile(f"Load model from {path} failed: it is not a regular file", where=path)
            _check(limits, "file_nbytes", info.st_size, "the model's file is too large", where=path)
            content = file.read(info.st_size + 1)
    except FileNotFoundError:
        raise NoSuchFile(f"Load model from {path} failed. File doesn't exist", where=path) from None
    except (OSError, ValueError) as e:
        raise NoSuchFile(f"Load model from {path} failed: {e}", where=path) from None
    _check(limits, "file_nbytes", len(content), "the model's file is too large", where=path)
    return content


def check_skeleton(nbytes: int, limits: Limits) -> None:
    """Refuse a skeleton that is too large to parse."""
    _check(limits, "skeleton_nbytes", nbytes, "the model is too large without the contents of its large tensors")


def check_model(proto: onnx.ModelProto, own_key: str, limits: Limits) -> None:
    """Count a model's contents, functions as written. ``own_key`` marks tensors that lie in the model's own file."""
    counted = _Counted(own_key, limits)
    if proto.training_info:
        raise forbidden("carry training information", hint="remove training_info from the model")
    counted.graph(proto.graph, 0)
    for function in proto.functions:
        counted.nodes_of(function.node, 0)
        for attribute in function.attribute_proto:
            counted.attribute(attribute, f"function {function.name}", 0)


def check_nodes(count: int, limits: Limits, what: str = "the model has too many nodes") -> None:
    _check(limits, "nodes", count, what)


class _Counted:
    def __init__(self, own_key: str, limits: Limits) -> None:
        self.own_key, self.limits = own_key, limits
        self.nodes = self.initializers = 0

    def graph(self, graph: onnx.GraphProto, depth: int) -> None:
        _check(self.limits, "nesting", depth, "subgraphs are nested too deeply")
        for tensor in graph.initializer:
            self.tensor(tensor, f"initializer {tensor.name!r}")
        for sparse in graph.sparse_initializer:
            self.sparse(sparse, f"initializer {sparse.values.name!r}")
        self.nodes_of(graph.node, depth)

    def nodes_of(self, nodes: Iterable[onnx.NodeProto], depth: int) -> None:
        for node in nodes:
            self.nodes += 1
            check_nodes(self.nodes, self.limits)
            where = label(node)
            for attribute in node.attribute:
                check_time()
                self.attribute(attribute, where, depth)
            for inner in subgraphs(node):
                self.graph(inner, depth + 1)

    def attribute(self, attribute: onnx.AttributeProto, where: str, depth: int) -> None:
        for tensor in _tensors(attribute):
            self.tensor(tensor, where)
        for sparse in _sparse_tensors(attribute):
            self.sparse(sparse, where)

    def tensor(self, proto: onnx.TensorProto, where: str) -> None:
        self._one_more(proto.dims, proto.data_type, where)
        if proto.data_location == onnx.TensorProto.EXTERNAL or proto.external_data:
            keys = {e.key: e.value for e in proto.external_data}
            if self.own_key not in keys:
                raise forbidden(
                    "keep data in other files",
                    where=where,
                    got=f"external data {str(keys.get('location', ''))[:200]!r}",
                    hint="save the model with its weights inside",
                )

    def sparse(self, proto: onnx.SparseTensorProto, where: str) -> None:
        self.tensor(proto.values, where)
        self.tensor(proto.indices, where)
        self._one_more(proto.dims, proto.values.data_type, where)

    def _one_more(self, dims: Iterable[int], data_type: int, where: str) -> None:
        self.initializers += 1
        _check(self.limits, "initializers", self.initializers, "the model stores too many tensors")
        try:
            nbytes = dtype_of(data_type, where).numpy.itemsize
        except SardonyxError:
            return
        for dim in dims:
            nbytes *= max(dim, 0)
            if nbytes == 0:
                return
        _check(self.limits, "initializer_nbytes", nbytes, "a stored tensor is too large", where=where)


def _tensors(attribute: onnx.AttributeProto) -> Iterator[onnx.TensorProto]:
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors


def _sparse_tensors(attribute: onnx.AttributeProto) -> Iterator[onnx.SparseTensorProto]:
    if attribute.HasField("sparse_tensor"):
        yield attribute.sparse_tensor
    yield from attribute.sparse_tensors


def _check(limits: Limits, name: str, value: int, what: str, *, where: str | None = None) -> None:
    allowed = getattr(limits, name)
    if value > allowed:
        raise refusal(name, what, allowed=allowed, value=value, where=where)
