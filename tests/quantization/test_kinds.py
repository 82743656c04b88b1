"""Enumerations, options and readers: onnxruntime's names and values."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest

import sardonyx.quantization as ours
from sardonyx.errors import InvalidArgument
from sardonyx.quantization.data import feeds_of
from sardonyx.quantization.kinds import quant_type_of
from sardonyx.quantization.options import ExtraOptions, keys

theirs = pytest.importorskip("onnxruntime.quantization", reason="onnxruntime comes with the test extra")


@pytest.mark.parametrize("name", ["QuantType", "QuantFormat", "QuantizationMode", "CalibrationMethod"])
def test_members_have_onnxruntimes_names_and_values(name: str) -> None:
    expected = {member.name: member.value for member in getattr(theirs, name)}
    assert {member.name: member.value for member in getattr(ours, name)} == expected


def test_types_are_onnx_types() -> None:
    for member in theirs.QuantType:
        mine = ours.QuantType[member.name]
        assert mine.tensor_type == member.tensor_type
        assert quant_type_of(member.tensor_type) is mine
        assert str(mine) == str(member) and ours.QuantType.from_string(str(mine)) is mine
    with pytest.raises(ValueError, match="QInt8"):
        ours.QuantType.from_string("int8")
    with pytest.raises(ValueError, match="element type"):
        quant_type_of(1)


def test_options_have_defaults_and_types() -> None:
    assert ExtraOptions.of(None) == ExtraOptions.of({}) == ExtraOptions()
    read = ExtraOptions.of({"ActivationSymmetric": True, "OpTypesToExcludeOutputQuantization": ["Conv"]})
    assert read.activation_symmetric and read.op_types_to_exclude_output_quantization == ("Conv",)
    assert "TensorQuantOverrides" in keys()


def test_the_table_of_options_is_whole() -> None:
    page = Path(__file__).resolve().parent.parent.parent / "docs" / "quantization.md"
    listed = re.findall(r"^\| `([\w.]+)` \| `(.*?)` \|", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert tuple(key for key, _ in listed) == keys()
    defaults = [getattr(ExtraOptions(), each.name) for each in fields(ExtraOptions)]
    assert [default for _, default in listed] == [str(each) for each in defaults]


def test_unknown_option_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(InvalidArgument, match="did you mean ActivationSymmetric"):
        ExtraOptions.of({"ActivationSymetric": True})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("ActivationSymmetric", "yes"),
        ("CalibPercentile", 101),
        ("SmoothQuantAlpha", -1),
        ("BlockSize", -4),
        ("OpTypesToExcludeOutputQuantization", "Conv"),
        ("QDQOpTypePerChannelSupportToAxis", {"MatMul": "last"}),
        ("CalibStridedMinMax", 0),
        ("MinimumRealRange", float("nan")),
    ],
)
def test_values_are_checked(key: str, value: object) -> None:
    with pytest.raises(InvalidArgument, match=key):
        ExtraOptions.of({key: value})


class Duck:
    def __init__(self, count: int) -> None:
        self.left = count

    def get_next(self) -> dict[str, np.ndarray] | None:
        self.left -= 1
        return {"x": np.full(2, self.left)} if self.left >= 0 else None


class Reader(Duck, ours.CalibrationDataReader):
    pass


def test_readers() -> None:
    assert isinstance(Duck(1), ours.CalibrationDataReader)
    assert len(list(feeds_of(Duck(3)))) == 3
    assert len(list(Reader(2))) == 2
    assert len(list(feeds_of([{"x": 1}]))) == 1
    with pytest.raises(InvalidArgument, match="CalibrationDataReader"):
        feeds_of({"x": 1})


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="quantize_all"):
        ours.quantize_all  # noqa: B018
    assert "QuantType" in dir(ours)
