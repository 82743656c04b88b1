"""Names and texts of a file that are not UTF-8: refused with an error of ours wherever they stand."""

from __future__ import annotations

import onnx
import pytest
from onnx import parser

from sardonyx.errors import EngineError, InvalidProtobuf, SardonyxError
from sardonyx.model.load import load

MARK = b"zz"

MODEL = """
<ir_version: 10, opset_import: ["" : 17, "domainzz" : 1], producer_name: "makerzz", metadata_props: ["keyzz": "textzz"]>
graphzz (float[sizezz, 3] inputzz, bool askzz) => (float[sizezz, 3] resultzz)
<float[3] constzz = {1, 2, 3}, float[sizezz, 3] sumzz>
{
  sumzz = Add(inputzz, constzz)
  [nodezz] calledzz = domainzz.functionzz <alphazz = 1.0>(sumzz)
  resultzz = If (askzz) <
    then_branch = thenzz () => (float[sizezz, 3] yeszz) { yeszz = Relu(calledzz) },
    else_branch = elsezz () => (float nozz) <float[1] otherzz = {2}> { nozz = Add(calledzz, otherzz) }>
}
<domain: "domainzz", opset_import: ["" : 17, "innerzz" : 1]>
functionzz <alphazz> (takenzz) => (givenzz) {
  [firstzz] middlezz = Elu<alpha: float = @alphazz>(takenzz)
  givenzz = domainzz.deeperzz(middlezz)
}
<domain: "domainzz", opset_import: ["" : 17]>
deeperzz (readzz) => (madezz) { madezz = Relu(readzz) }
"""


def model() -> bytes:
    """A model with a mark in every text that it has."""
    proto = parser.parse_model(MODEL)
    proto.doc_string, proto.domain, proto.graph.doc_string = "aboutzz", "homezz", "graphdoczz"
    node, given = proto.graph.node[0], proto.graph.input[0]
    node.doc_string, node.domain, given.doc_string = "nodedoczz", "ai.onnx", "inputdoczz"
    for holder in (node, given, proto.graph, proto.functions[0]):
        holder.metadata_props.add(key="propzz", value="setzz")
    given.type.denotation, given.type.tensor_type.shape.dim[0].denotation = "denotedzz", "axiszz"
    node.attribute.append(onnx.helper.make_attribute("__notezz", "stringzz"))
    data: bytes = proto.SerializeToString()
    return data


def marks(data: bytes) -> list[int]:
    return [i for i in range(len(data)) if data.startswith(MARK, i)]


@pytest.mark.parametrize("infer", [True, False])
def test_a_byte_that_is_not_utf_8_ends_in_an_error_of_ours(infer: bool) -> None:
    data = model()
    load(data, infer=infer)
    for i in marks(data):
        for byte in (b"\xe9", b"\xff"):
            one = data[:i] + byte + data[i + 1 :]
            start = next(k for k in range(i, 0, -1) if not chr(data[k - 1]).isalpha())
            everywhere = data.replace(data[start : i + 2], data[start:i] + byte + b"z")
            for broken in (one, everywhere):
                try:
                    load(broken, infer=infer)
                except SardonyxError as error:
                    assert not isinstance(error, EngineError), data[start : i + 2]


@pytest.mark.parametrize("name", [b"sumzz", b"calledzz", b"firstzz", b"middlezz", b"alphazz", b"innerzz"])
def test_names_around_functions_are_utf_8(name: bytes) -> None:
    with pytest.raises(InvalidProtobuf, match="not UTF-8"):
        load(model().replace(name, name[:-1] + b"\xe9"))
