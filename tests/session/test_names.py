"""Every public name of onnxruntime 1.31's Python package is here, module by module and class by class."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest

import sardonyx
from sardonyx import errors
from sardonyx.capi import onnxruntime_pybind11_state as native
from sardonyx.session.enums import Enumeration

NAMES = json.loads((Path(__file__).parent / "onnxruntime_names.json").read_text())


def home(module: str) -> Any:
    return sardonyx if module == "onnxruntime" else importlib.import_module(f"sardonyx.{module}")


@pytest.mark.parametrize("module", NAMES)
def test_modules_have_every_name(module: str) -> None:
    ours = home(module)
    assert not [name for name in NAMES[module] if not hasattr(ours, name)]
    assert set(NAMES[module]) - {"schemadef"} <= set(dir(ours))


@pytest.mark.parametrize(
    ("module", "name"), [(m, n) for m, table in NAMES.items() for n, attributes in table.items() if attributes]
)
def test_classes_have_every_attribute(module: str, name: str) -> None:
    ours = getattr(home(module), name)
    fields = set(dir(ours)) | set(getattr(ours, "__dataclass_fields__", ())) | set(_assigned(ours))
    assert not [a for a in NAMES[module][name] if a not in fields]


def _assigned(cls: Any) -> list[str]:
    """Attributes that a constructor or an initializer makes."""
    return re.findall(r"self\.(\w+)", inspect.getsource(cls)) if inspect.isclass(cls) else []


def test_exceptions_are_the_same_objects_everywhere() -> None:
    for name in (
        "Fail",
        "InvalidArgument",
        "NoSuchFile",
        "InvalidGraph",
        "NotImplemented",
        "EPFail",
        "RuntimeException",
    ):
        assert getattr(native, name) is getattr(errors, name)


def test_enumerations_behave_as_bound_ones() -> None:
    level = sardonyx.GraphOptimizationLevel
    assert (
        level.ORT_ENABLE_ALL == 99
        and int(level.ORT_ENABLE_BASIC) == 1
        and level.ORT_DISABLE_ALL.name == "ORT_DISABLE_ALL"
    )
    assert level(2) == level.ORT_ENABLE_EXTENDED and hash(level(2)) == hash(2)
    assert level(2) != sardonyx.ExecutionOrder(2)
    assert (
        repr(level(99)) == "<GraphOptimizationLevel.ORT_ENABLE_ALL: 99>"
        and str(level(7)) == "GraphOptimizationLevel.???"
    )
    assert sardonyx.OrtCompileApiFlags.NONE | sardonyx.OrtCompileApiFlags.ERROR_IF_OUTPUT_FILE_EXISTS == 2
    assert sardonyx.OrtMemType.CPU == sardonyx.OrtMemType.CPU_OUTPUT == -1
    assert isinstance(level.ORT_ENABLE_ALL, Enumeration) and not isinstance(level.ORT_ENABLE_ALL, int)
    with pytest.raises(AttributeError):
        level.ORT_ENABLE_ALL.color = 3


def test_schemas_and_kernels_are_listed() -> None:
    assert len(native.get_all_operator_schema()) > 500
    kernels = native.get_registered_ep_kernel_defs("CPUExecutionProvider")
    relu = sorted(k.version_range for k in kernels if (k.domain, k.op_name) == ("", "Relu"))
    assert relu[0][1] + 1 == relu[1][0] and relu[-1][1] > 1000
