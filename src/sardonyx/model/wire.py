"""Splits a serialized model into a small skeleton and the spans of its large tensor payloads.

The scan walks protobuf's wire format itself and never copies a payload: ``onnx`` parses only the skeleton,
in which each payload over ``LIMIT`` bytes is replaced by an entry of ``external_data`` under a key that only this load
knows. Messages of at most ``LIMIT`` bytes cannot hold such a payload and are skipped.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias, overload

from sardonyx.errors import InvalidProtobuf
from sardonyx.files import SourceFile

LIMIT = 1024
MAX_DEPTH = 100
"""protobuf's own bound on nested messages."""
MAX_FIELDS = 500_000
"""Fields that are scanned, in about half a second; the rest is left to protobuf unchanged."""
FEW_FIELDS = 256
"""A tensor or attribute with this many fields and no large payload is taken to be a long list of small elements."""

_GRAPH, _NODE, _ATTRIBUTE, _TENSOR, _SPARSE, _FUNCTION, _TRAINING, _MODEL = range(8)

_CHILDREN: dict[int, dict[int, int]] = {
    _MODEL: {7: _GRAPH, 20: _TRAINING, 25: _FUNCTION},
    _GRAPH: {1: _NODE, 5: _TENSOR, 15: _SPARSE},
    _NODE: {5: _ATTRIBUTE},
    _ATTRIBUTE: {5: _TENSOR, 6: _GRAPH, 10: _TENSOR, 11: _GRAPH, 22: _SPARSE, 23: _SPARSE},
    _SPARSE: {1: _TENSOR, 2: _TENSOR},
    _FUNCTION: {7: _NODE, 11: _ATTRIBUTE},
    _TRAINING: {1: _GRAPH, 2: _GRAPH},
}

FLOATS, INT32S, INT64S, RAW, DOUBLES, UINT64S = 4, 5, 7, 9, 10, 11
"""TensorProto's payload fields. Strings stay in the skeleton: they must be parsed one by one anyway."""
_PAYLOADS = frozenset((FLOATS, INT32S, INT64S, RAW, DOUBLES, UINT64S))


class Span(NamedTuple):
    """Where a payload lies in the source, and which field of its tensor it is."""

    offset: int
    nbytes: int
    field: int


@dataclass
class Skeleton:
    """A model's bytes without its large payloads."""

    data: bytes
    key: str
    spans: list[Span] = field(default_factory=list)


class Window:
    """A file as a sequence of bytes, read in blocks: scanning it keeps nothing in memory."""

    PIECE = 4096

    def __init__(self, file: SourceFile) -> None:
        self._file = file
        self._at, self._piece = 0, b""

    def __len__(self) -> int:
        return self._file.size

    @overload
    def __getitem__(self, key: int) -> int: ...
    @overload
    def __getitem__(self, key: slice) -> bytes: ...
    def __getitem__(self, key: int | slice) -> int | bytes:
        if isinstance(key, slice):
            return self._file.bytes(key.start, key.stop)
        if not 0 <= key - self._at < len(self._piece):
            self._at, self._piece = key, self._file.bytes(key, min(key + self.PIECE, self._file.size))
        return self._piece[key - self._at]


Source: TypeAlias = "memoryview | Window"


def split(source: Source) -> Skeleton:
    """Scan a whole ModelProto."""
    skeleton = Skeleton(b"", f"span-{os.urandom(8).hex()}")
    chunks: list[bytes | memoryview] = []
    _Scan(source, skeleton).message(_MODEL, 0, len(source), chunks, 0)
    skeleton.data = b"".join(chunks)
    return skeleton


class _Scan:
    def __init__(self, source: Source, skeleton: Skeleton) -> None:
        self.source, self.skeleton = source, skeleton
        self.fields_left = MAX_FIELDS

    def message(self, kind: int, start: int, end: int, chunks: list[bytes | memoryview], depth: int) -> int:
        """Append the retained bytes of source[start:end] to ``chunks`` and return their length."""
        if depth > MAX_DEPTH:
            raise InvalidProtobuf("messages are nested too deeply", expected=f"at most {MAX_DEPTH} levels")
        if kind == _TENSOR:
            return self._tensor(start, end, chunks)
        source, children = self.source, _CHILDREN[kind]
        kept, total, pos = start, 0, start
        few = FEW_FIELDS if kind == _ATTRIBUTE else MAX_FIELDS
        while pos < end and few and self.fields_left > 0:
            few -= 1
            self.fields_left -= 1
            tag_at = pos
            number, wire, pos, stop = self._field(pos, end)
            if wire == 2 and stop - pos > LIMIT and number in children:
                chunks.append(source[kept:tag_at])
                inner: list[bytes | memoryview] = []
                size = self.message(children[number], pos, stop, inner, depth + 1)
                header = varint(number << 3 | 2) + varint(size)
                chunks.append(header)
                chunks += inner
                total += tag_at - kept + len(header) + size
                kept = stop
            pos = stop
        chunks.append(source[kept:end])
        return total + end - kept

    def _tensor(self, start: int, end: int, chunks: list[bytes | memoryview]) -> int:
        found: list[tuple[int, int, Span]] = []
        payloads, fields, pos = 0, 0, start
        while pos < end and payloads < 2 and fields < FEW_FIELDS:
            fields += 1
            tag_at = pos
            number, wire, pos, stop = self._field(pos, end)
            if number in _PAYLOADS:
                payloads += 1
                if wire == 2 and stop - pos > LIMIT:
                    found.append((tag_at, stop, Span(pos, stop - pos, number)))
            pos = stop
        self.fields_left -= fields
        if pos < end or len(found) != 1 or payloads != 1:
            chunks.append(self.source[start:end])
            return end - start
        cut, resume, span = found[0]
        entry = _string(1, self.skeleton.key) + _string(2, str(len(self.skeleton.spans)))
        marker = varint(13 << 3 | 2) + varint(len(entry)) + entry + b"\x70\x01"
        self.skeleton.spans.append(span)
        chunks += [self.source[start:cut], marker, self.source[resume:end]]
        return (cut - start) + len(marker) + (end - resume)

    def _field(self, pos: int, end: int) -> tuple[int, int, int, int]:
        """Field number, wire type, and the extent of the value, of the field at ``pos``."""
        tag, pos = self._read_varint(pos, end)
        number, wire = tag >> 3, tag & 7
        if wire == 2:
            size, pos = self._read_varint(pos, end)
            stop = pos + size
        elif wire == 0:
            _, stop = self._read_varint(pos, end)
        elif wire == 5:
            stop = pos + 4
        elif wire == 1:
            stop = pos + 8
        else:
            raise InvalidProtobuf(f"byte {pos} is not the start of a protobuf field", got=f"wire type {wire}")
        if stop > end or number == 0:
            raise InvalidProtobuf(
                "the model is truncated or corrupt",
                where=f"byte {pos} of {len(self.source)}",
                expected=f"a field that ends by byte {end}",
                got=f"one that ends at byte {stop}",
            )
        return number, wire, pos, stop

    def _read_varint(self, pos: int, end: int) -> tuple[int, int]:
        source = self.source
        value = shift = 0
        while pos < end:
            byte = source[pos]
            pos += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, pos
            shift += 7
            if shift > 63:
                break
        raise InvalidProtobuf("the model is truncated or corrupt", where=f"byte {pos} of {len(source)}")


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _string(number: int, text: str) -> bytes:
    data = text.encode()
    return varint(number << 3 | 2) + varint(len(data)) + data
