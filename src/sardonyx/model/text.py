"""Models as ONNX text, for tests and bug reports."""

from __future__ import annotations

from onnx import parser, printer

from sardonyx.errors import InvalidProtobuf
from sardonyx.ir.graph import Model
from sardonyx.model.load import load
from sardonyx.model.save import model_to_proto


def to_text(model: Model) -> str:
    return printer.to_text(model_to_proto(model))


def from_text(text: str) -> Model:
    try:
        proto = parser.parse_model(text)
    except parser.ParseError as e:
        raise InvalidProtobuf(f"not ONNX text: {e}") from None
    return load(proto)
