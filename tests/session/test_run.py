"""What may be fed, what comes back, and what is refused with which exception."""

from __future__ import annotations

import io
import pathlib
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto

import sardonyx as ort
from sardonyx.errors import Fail, InvalidArgument, InvalidProtobuf, NoSuchFile
from tests.session.models import CHAIN, MATMUL, MUL, OVERRIDABLE, SEQUENCE, X, identity, model, serialized


@pytest.fixture(scope="module")
def mul() -> ort.InferenceSession:
    return ort.InferenceSession(serialized(MUL))


ACCEPTED: dict[str, Any] = {
    "array": X,
    "list": X.tolist(),
    "list of ints": X.astype(int).tolist(),
    "fortran order": np.asfortranarray(X),
    "strided": np.repeat(X, 2, axis=1)[:, ::2],
    "big endian": X.astype(">f4"),
    "read only": np.frombuffer(X.tobytes(), np.float32).reshape(3, 2),
    "OrtValue": ort.OrtValue.ortvalue_from_numpy(X),
    "native OrtValue": ort.OrtValue.ortvalue_from_numpy(X)._ortvalue,
    "subclass": np.ma.MaskedArray(X),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_feeds_that_are_taken(mul: ort.InferenceSession, name: str) -> None:
    (y,) = mul.run(None, {"X": ACCEPTED[name]})
    np.testing.assert_array_equal(y, X * X)
    assert type(y) is np.ndarray and y.flags.writeable and y.base is not None


class Speaker:
    """Another framework's tensor."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self._array = array

    def __dlpack__(self, **_: Any) -> Any:
        return self._array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def test_anything_that_speaks_dlpack_is_taken(mul: ort.InferenceSession) -> None:
    np.testing.assert_array_equal(mul.run(None, {"X": Speaker(X.copy())})[0], X * X)


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "nothing": ({}, ValueError, r"Required inputs \(\['X'\]\) are missing from input feed \(\[\]\)"),
    "another name": ({"Z": X}, ValueError, r"are missing from input feed \(\['Z'\]\)"),
    "one name too many": ({"X": X, "Z": X}, InvalidArgument, "Invalid input name: Z"),
    "a constant": ({"X": X, "W": X}, InvalidArgument, "Invalid input name: W"),
    "a number for a name": ({"X": X, 1: X}, TypeError, "not a name"),
    "double": (
        {"X": X.astype(float)},
        InvalidArgument,
        r"Actual: \(tensor\(double\)\) , expected: \(tensor\(float\)\)",
    ),
    "strings": ({"X": X.astype(str)}, InvalidArgument, r"Actual: \(tensor\(string\)\)"),
    "dates": ({"X": X.astype("M8[s]")}, RuntimeError, "can't be converted to MLDataType"),
    "low rank": ({"X": X[0]}, InvalidArgument, "Invalid rank for input: X Got: 1 Expected: 2"),
    "short": ({"X": X[:2]}, InvalidArgument, "index: 0 Got: 2 Expected: 3"),
    "ragged": ({"X": [[1, 2], [3]]}, RuntimeError, "Could not create tensor from given input list"),
    "tuple": ({"X": (1.0, 2.0)}, RuntimeError, "Input must be a list of dictionaries or a single numpy array"),
    "text": ({"X": "abc"}, RuntimeError, "for input 'X'"),
    "number": ({"X": 1.0}, RuntimeError, "Unable to handle object of type <class 'float'>"),
    "numpy scalar": ({"X": np.float32(1)}, InvalidArgument, "Invalid rank for input: X Got: 0 Expected: 2"),
    "dictionary": ({"X": {1: 2.0}}, InvalidArgument, "Unexpected input data type"),
    "None": ({"X": None}, InvalidArgument, "Missing Input: X"),
    "OrtValue of another type": (
        {"X": ort.OrtValue.ortvalue_from_numpy(X.astype(int))},
        InvalidArgument,
        r"tensor\(int64\)",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_feeds_that_are_refused(mul: ort.InferenceSession, name: str) -> None:
    feed, kind, message = REFUSED[name]
    with pytest.raises(kind, match=message):
        mul.run(None, feed)


def test_output_names(mul: ort.InferenceSession) -> None:
    assert len(mul.run([], {"X": X})) == 1
    first, second = mul.run(("Y", "Y"), {"X": X})
    assert not np.shares_memory(first, second)
    with pytest.raises(InvalidArgument, match="Invalid output name:Z"):
        mul.run(["Z"], {"X": X})
    with pytest.raises(TypeError):
        mul.run("Y", {"X": X})
    with pytest.raises(TypeError):
        mul.run(None, {"X": X}, 3)  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        mul.run(None, None)  # type: ignore[arg-type]


def test_outputs_by_name_take_the_quick_way_as_all_of_them_do(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """<ir_version: 8, opset_import: ["": 13]>
    two (float[n] x) => (float[n] a, float[n] b) { a = Add(x, x)  b = Mul(x, x) }"""
    session = ort.InferenceSession(serialized(text))
    x = np.array([1, 2, 5], np.float32)
    session.run(None, {"x": x})
    (once, again) = session.run(["b", "b"], {"x": x})
    once[:] = 0
    np.testing.assert_array_equal(again, x * x)

    def refuse(*_: object) -> None:
        raise AssertionError("the engine's long way")

    monkeypatch.setattr(session._sess._engine, "run", refuse)
    for names in (["a", "b"], ["b", "a"], ("b",), []):
        results = session.run(names, {"x": x})
        for name, result in zip(names or ["a", "b"], results, strict=True):
            np.testing.assert_array_equal(result, {"a": x + x, "b": x * x}[name])


STRINGS = {
    "U": np.array([["a", "ü"], ["你好", ""]]),
    "V": np.array([[b"must", b"have"], [b"same", b"siz\0"]], np.void),
    "O": np.array([["a", 1], [None, "x"]], object),
    "list": [["a", "b"], ["c", "d"]],
}


@pytest.mark.parametrize("kind", STRINGS)
def test_strings_of_every_numpy_kind(kind: str) -> None:
    oracle = pytest.importorskip("onnxruntime")
    content = identity(TensorProto.STRING, [2, 2])
    (y,) = ort.InferenceSession(content).run(None, {"x": STRINGS[kind]})
    (expected,) = oracle.InferenceSession(content).run(None, {"x": STRINGS[kind]})
    assert y.dtype == object and y.tolist() == expected.tolist()


def test_bytes_are_utf8() -> None:
    session = ort.InferenceSession(identity(TensorProto.STRING, [3]))
    assert session.run(None, {"x": np.array([b"a", "ü".encode(), b""])})[0].tolist() == ["a", "ü", ""]
    with pytest.raises(UnicodeDecodeError):
        session.run(None, {"x": np.array([b"a", b"b\xff", b""])})


@pytest.mark.parametrize(
    ("code", "dtype"),
    [
        (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
        (TensorProto.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn),
        (TensorProto.FLOAT8E5M2FNUZ, ml_dtypes.float8_e5m2fnuz),
        (TensorProto.INT4, ml_dtypes.int4),
        (TensorProto.UINT2, ml_dtypes.uint2),
        (TensorProto.FLOAT4E2M1, ml_dtypes.float4_e2m1fn),
        (TensorProto.COMPLEX64, np.complex64),
        (TensorProto.BOOL, np.bool_),
        (TensorProto.UINT64, np.uint64),
        (TensorProto.FLOAT16, np.float16),
    ],
)
def test_every_type_passes_through(code: int, dtype: Any) -> None:
    session = ort.InferenceSession(identity(code, ["n"]))
    x = np.array([0, 1, 1, 0, 1]).astype(dtype)
    (y,) = session.run(None, {"x": x})
    assert y.dtype == x.dtype and y.tobytes() == x.tobytes() and not np.shares_memory(x, y)


def test_sequences() -> None:
    session = ort.InferenceSession(serialized(SEQUENCE))
    t = np.ones((2, 2), np.int64)
    (longer,) = session.run(None, {"s": [t], "t": t * 2})
    assert [a.tolist() for a in longer] == [t.tolist(), (t * 2).tolist()]
    assert len(session.run(None, {"s": [], "t": t})[0]) == 1
    with pytest.raises(InvalidArgument, match="but received a tensor"):
        session.run(None, {"s": t, "t": t})
    for wrong, message in (
        ([t.astype(float)], "different data type"),
        ([[1]], "is not a tensor"),
        ((t,), "for input 's'"),
    ):
        with pytest.raises(RuntimeError, match=message):
            session.run(None, {"s": wrong, "t": t})


def test_optionals_may_be_left_out() -> None:
    optional = onnx.helper.make_optional_type_proto(
        onnx.helper.make_sequence_type_proto(onnx.helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    )
    value = onnx.helper.make_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("OptionalHasElement", ["x"], ["y"])],
        "g",
        [value("x", optional)],
        [onnx.helper.make_tensor_value_info("y", TensorProto.BOOL, [])],
    )
    session = ort.InferenceSession(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)]))
    assert session.get_inputs()[0].type == "optional(seq(tensor(float)))"
    assert session.run(None, {"x": [np.ones(2, np.float32)]})[0].item()
    assert not session.run(None, {"x": None})[0].item()
    assert not session.run(None, {})[0].item()


def test_maps() -> None:
    pair = onnx.helper.make_map_type_proto(TensorProto.INT64, onnx.helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("DictVectorizer", ["x"], ["y"], domain="ai.onnx.ml", int64_vocabulary=[0, 1, 2])],
        "g",
        [onnx.helper.make_value_info("x", pair)],
        [onnx.helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3])],
    )
    opsets = [onnx.helper.make_opsetid("ai.onnx.ml", 1), onnx.helper.make_opsetid("", 13)]
    session = ort.InferenceSession(onnx.helper.make_model(graph, opset_imports=opsets))
    assert session.get_inputs()[0].type == "map(int64,tensor(float))" and session.get_inputs()[0].shape == []
    for feed in ({0: 5.5, 2: 1.0}, {np.int32(0): np.float64(5.5), np.int64(2): 1}):
        assert session.run(None, {"x": feed})[0].reshape(-1).tolist() == [5.5, 0.0, 1.0]
    with pytest.raises(RuntimeError, match="Unexpected key type  <class 'str'>, it cannot be linked to C type int64_t"):
        session.run(None, {"x": {0: 1.0, "a": 2.0}})


def test_overridable_initializers_may_be_fed() -> None:
    session = ort.InferenceSession(serialized(OVERRIDABLE))
    x = np.array([2, 3], np.float32)
    assert [m.name for m in session.get_inputs()] == ["x"]
    assert [m.name for m in session.get_overridable_initializers()] == ["scale"]
    assert session.run(None, {"x": x})[0].tolist() == [2, 3]
    assert session.run(None, {"x": x, "scale": x})[0].tolist() == [4, 9]


def test_overridable_initializers_may_stand_before_other_inputs() -> None:
    text = """<ir_version: 8, opset_import: ["": 13]>
    g (float[2] c, float[2] x) => (float[2] y) <float[2] c = {1, 2}> { y = Sub(x, c) }"""
    session = ort.InferenceSession(serialized(text))
    feed = {"x": np.array([5, 6], np.float32), "c": np.array([4, 3], np.float32)}
    assert [session.run(None, feed)[0].tolist() for _ in range(3)] == [[1, 3]] * 3


def test_outputs_share_memory_with_nothing() -> None:
    text = """<ir_version: 8, opset_import: ["": 13]>
    through (float[2] x) => (float[2] x, float[2] y, float[2] c) <float[2] c = {7, 8}> { y = Identity(x) }"""
    session = ort.InferenceSession(serialized(text))
    x = np.array([1, 2], np.float32)
    results = session.run(None, {"x": x})
    for i, a in enumerate(results):
        assert not np.shares_memory(a, x) and not any(np.shares_memory(a, b) for b in results[:i])
        a[:] = -1
    assert session.run(["c"], {"x": x})[0].tolist() == [7, 8] and x.tolist() == [1, 2]


def test_sources(tmp_path: pathlib.Path) -> None:
    content = serialized(MUL)
    path = tmp_path / "mul.onnx"
    path.write_bytes(content)
    with path.open("rb") as file:
        sources = [
            str(path),
            path,
            content,
            bytearray(content),
            memoryview(content),
            io.BytesIO(content),
            model(MUL),
            file,
        ]
        for source in sources:
            np.testing.assert_array_equal(ort.InferenceSession(source).run(None, {"X": X})[0], X * X)
    for wrong, kind in ((tmp_path / "no.onnx", NoSuchFile), (b"junkjunk", InvalidProtobuf), (3, TypeError)):
        with pytest.raises(kind):
            ort.InferenceSession(wrong)


def test_metadata() -> None:
    proto = model(MATMUL)
    proto.producer_name, proto.domain, proto.model_version, proto.doc_string = "p", "d", 7, "doc"
    proto.graph.doc_string = "graph doc"
    onnx.helper.set_model_props(proto, {"a": "b"})
    session = ort.InferenceSession(proto)
    meta = session.get_modelmeta()
    assert (meta.producer_name, meta.domain, meta.version, meta.description) == ("p", "d", 7, "doc")
    assert (meta.graph_name, meta.graph_description, meta.custom_metadata_map) == ("matmul", "graph doc", {"a": "b"})
    assert str(session.get_inputs()[0]) == "NodeArg(name='X', type='tensor(float)', shape=['N', 2])"
    assert session.get_outputs()[0].shape == ["N", 1]
    assert len(session.get_input_memory_infos()) == len(session.get_output_memory_infos()) == 1
    assert session.get_input_epdevices()[0].ep_name == "CPUExecutionProvider"


def test_run_options_stop_a_run(mul: ort.InferenceSession) -> None:
    options = ort.RunOptions()
    options.terminate = True
    with pytest.raises(Fail, match="terminate flag"):
        mul.run(None, {"X": X}, options)
    options.terminate = False
    np.testing.assert_array_equal(mul.run(None, {"X": X}, options)[0], X * X)


def test_explanation_names_every_node() -> None:
    explanation = ort.InferenceSession(serialized(CHAIN)).explain()
    assert [p.node for p in explanation.placements] == ["first", "second", "third"]
    assert all(p.reason for p in explanation.placements) and "first" in str(explanation)
