"""Bytes that are not a model, or not any more: garbage, truncation, flipped bits, absurd nesting and repetition."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto

from sardonyx.model.wire import varint
from tests.model.hostile.cases import ANY, Case, body, const, model, node, untyped, value

FLIPS = 120


@cache
def victim() -> bytes:
    """A model with a bit of everything: weights in and out of the skeleton, a branch, a function, strings, metadata."""
    made = model(
        [
            node("MatMul", "x w", "a"),
            node("Add", "a b", "s"),
            node(
                "If",
                "c",
                "t",
                then_branch=body([node("Relu", "s", "u")], [], "u"),
                else_branch=body([node("Abs", "s", "v")], [], "v"),
            ),
            node("Reshape", "t shape", "r"),
            node("Double", "r", "d", domain="f"),
            node("Concat", "d d", "e", axis=0),
            node("Slice", "e starts ends", "g"),
            node("Transpose", "g", "h", perm=[1, 0]),
            node("LeakyRelu", "h", "y", alpha=0.25),
        ],
        const("w", np.arange(600, dtype=np.float32).reshape(2, 300) / 100),
        const("b", np.full(300, 0.5, np.float32)),
        const("c", True, bool),
        const("shape", [2, -1]),
        const("starts", [1, 0]),
        const("ends", [3, 100]),
        functions=[
            onnx.helper.make_function(
                "f", "Double", ["p"], ["q"], [node("Add", "p p", "q")], [onnx.helper.make_opsetid("", 21)]
            )
        ],
        imports={"f": 1},
        outputs=[value("y", TensorProto.FLOAT, [100, 2])],
    )
    made.graph.value_info.append(value("a", TensorProto.FLOAT, [300]))
    made.metadata_props.add(key="about", value="hostile tests")
    return made.SerializeToString()


def cases() -> Iterator[Case]:
    whole = victim()
    yield Case("undamaged", whole, None)
    yield Case("nothing", b"", "InvalidArgument")
    for name, junk in {
        "zeros": bytes(100),
        "text": b"not a model at all" * 20,
        "ones": b"\xff" * 500,
        "zip": b"PK\x03\x04" + bytes(range(256)),
    }.items():
        yield Case(f"garbage: {name}", junk, "InvalidProtobuf")
    yield Case("no graph", onnx.ModelProto(ir_version=8).SerializeToString(), "InvalidArgument")
    yield Case("two models in a row", whole + whole)
    yield Case("garbage behind", whole + b"\x07\x07\x07", "InvalidProtobuf")
    random = np.random.default_rng(7)
    for length in sorted({1, 2, 3, len(whole) - 1, *random.integers(4, len(whole), 50).tolist()}):
        yield Case(f"truncated to {length}", whole[:length], "runs?", peer=True)
    for bit in sorted(int(b) for b in random.choice(8 * len(whole), FLIPS, replace=False)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        yield Case(f"bit {bit} flipped", bytes(flipped), "runs?", peer=True)
    yield from files()
    yield from repetition()


def files() -> Iterator[Case]:
    def empty(folder: Path) -> str:
        (folder / "m.onnx").touch()
        return str(folder / "m.onnx")

    def fifo(folder: Path) -> str:
        import os

        os.mkfifo(folder / "m.onnx")
        return str(folder / "m.onnx")

    yield Case("empty file", empty, "InvalidArgument")
    yield Case("folder", str, "InvalidProtobuf")
    yield Case("pipe", fifo, "InvalidProtobuf")
    yield Case("device", lambda _: "/dev/zero", "InvalidProtobuf")
    yield Case("no such file", lambda folder: folder / "none.onnx", "NoSuchFile")
    yield Case("path with a zero byte", lambda folder: f"{folder}/a\0b", "NoSuchFile")
    yield Case("path too long", lambda folder: f"{folder}/{'a' * 5000}", "NoSuchFile")
    yield Case("link to itself", _self_link, "NoSuchFile")
    yield Case("a number", lambda _: 5, "InvalidArgument")
    yield Case("nothing at all", lambda _: None, "InvalidArgument")


def _self_link(folder: Path) -> Path:
    (folder / "m.onnx").symlink_to(folder / "m.onnx")
    return folder / "m.onnx"


def repetition() -> Iterator[Case]:
    """Messages built by hand that are deep or long beyond reason."""
    for levels in (50, 150, 5000, 100_000):
        nested = b""
        for number in range(levels):
            nested = _field((7, 1, 5, 6)[0] if number == levels - 1 else (6, 1, 5)[(levels - number) % 3], nested)
            if len(nested) > 1_000_000:
                break
        yield Case(f"messages nested {levels} deep", nested)
    deep_type = b""
    for _ in range(3000):
        deep_type = _field(4, _field(1, deep_type))
    info = _field(1, b"x") + _field(2, deep_type)
    yield Case("types nested thousands deep", _field(7, _field(11, info)))
    tiny = b"\x10\x01"
    yield Case("millions of unknown fields", b"\xc0\x3e\x01" * 2_000_000, ANY)
    yield Case("a graph of many empty nodes", _field(7, b"\x0a\x00" * 100_000), ANY)
    ints = _field(1, b"axes") + b"\x40\x01" * 2_000_000 + b"\xa0\x01\x07"
    n = _field(1, b"x") + _field(2, b"y") + _field(4, b"Relu") + _field(5, ints)
    yield Case("millions of unpacked ints", model(node("Abs", "x")).SerializeToString() + _field(7, _field(1, n)), ANY)
    floats = _field(8, b"c") + tiny + b"\x08\x01" + b"\x25\x00\x00\x80\x3f" * 400_000
    yield Case(
        "millions of unpacked floats", model(node("Relu", "x")).SerializeToString() + _field(7, _field(5, floats)), ANY
    )
    long = b"\x08" + b"\x80" * 1_000_000 + b"\x01"
    yield Case("a number of a million digits", long, "InvalidProtobuf")
    yield Case("a length of 2^63", b"\x3a" + varint((1 << 63) - 1), "InvalidProtobuf")
    yield Case("a length of 2^64", b"\x3a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "InvalidProtobuf")
    yield Case("field number 0", b"\x02\x01a" + victim(), "InvalidProtobuf")
    doubled = [node("Shape", "x", "v0")] + [node("Concat", f"v{i} v{i}", f"v{i + 1}", axis=0) for i in range(40)]
    yield Case("Concat doubled in inference", model(doubled, outputs=[untyped("v40")]), "OutOfBudget")
    chain = [node("Relu", "x" if i == 0 else f"v{i - 1}", f"v{i}") for i in range(4000)]
    yield Case("a chain of thousands", model([*chain, node("Relu", "v3999")]), None)
    yield Case("thousands of nodes backwards", model([node("Relu", "v3999"), *reversed(chain)]), None)


def _field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content
