"""Which providers a session gets, and what is said about those it does not."""

from __future__ import annotations

from typing import Any

import pytest

import sardonyx as ort
from sardonyx.capi import onnxruntime_pybind11_state as native
from sardonyx.capi.onnxruntime_inference_collection import check_and_normalize_provider_args
from sardonyx.errors import EPFail, Fail, InvalidArgument
from tests.session.models import MUL, X, serialized

CPU = "CPUExecutionProvider"


def test_lists() -> None:
    assert ort.get_all_providers()[-1] == CPU and CPU in ort.get_available_providers()
    assert ort.get_device() == "CPU" and "Build Info" in ort.get_build_info()
    assert ort.get_version_string() == "1.31.1"
    (device,) = ort.get_ep_devices()
    assert device.ep_name == CPU and device.device.type == ort.OrtHardwareDeviceType.CPU


@pytest.mark.parametrize("providers", [None, [], [CPU], [(CPU, {"use_arena": 1})]])
def test_the_cpu_is_always_there(providers: Any) -> None:
    session = ort.InferenceSession(serialized(MUL), providers=providers)
    assert session.get_providers() == [CPU] and session.get_provider_options() == {CPU: {}}


@pytest.mark.parametrize("name", ["CUDAExecutionProvider", "TensorrtExecutionProvider", "OpenVINOExecutionProvider"])
def test_absent_providers_are_warned_about(name: str) -> None:
    with pytest.warns(UserWarning, match=f"Specified provider '{name}' is not in available provider names"):
        session = ort.InferenceSession(serialized(MUL), providers=[name, CPU])
    assert session.get_providers() == [CPU]
    with pytest.warns(UserWarning), pytest.raises(EPFail, match="is not available"):
        ort.InferenceSession(serialized(MUL), providers=[name, CPU], strict=True)


def test_unknown_providers() -> None:
    with pytest.warns(UserWarning, match="Specified provider 'Foo'"):
        assert ort.InferenceSession(serialized(MUL), providers=["Foo"]).get_providers() == [CPU]
    for keywords in ({"enable_fallback": 0}, {"strict": True}):
        with pytest.warns(UserWarning), pytest.raises(RuntimeError, match="Unknown Provider Type: Foo"):
            ort.InferenceSession(serialized(MUL), providers=["Foo"], **keywords)  # type: ignore[arg-type]
    session = ort.InferenceSession(serialized(MUL))
    with pytest.warns(UserWarning), pytest.raises(RuntimeError, match="Unknown Provider Type: Foo"):
        session.set_providers(["Foo"])
    session.set_providers([CPU])
    assert session.run(None, {"X": X})[0].shape == (3, 2)


def test_a_bare_name_is_taken_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="should be a sequence"):
        assert ort.InferenceSession(serialized(MUL), providers=CPU).get_providers() == [CPU]


@pytest.mark.parametrize(
    ("providers", "options", "expected"),
    [
        (None, None, ([], [])),
        (["a"], None, (["a"], [{}])),
        ([("a", {1: 2}), "b"], None, (["a", "b"], [{"1": "2"}, {}])),
        (["a", "b"], [{1: 2}, {}], (["a", "b"], [{"1": "2"}, {}])),
    ],
)
def test_arguments_are_normalized(providers: Any, options: Any, expected: Any) -> None:
    assert check_and_normalize_provider_args(providers, options, ["a", "b"]) == expected


@pytest.mark.parametrize(
    ("providers", "options"),
    [(3, None), ([3], None), (["a"], 3), (["a"], ["x"]), (["a", "b"], [{}]), ([("a", {})], [{}])],
)
def test_wrong_arguments_are_refused(providers: Any, options: Any) -> None:
    with pytest.raises(ValueError):
        check_and_normalize_provider_args(providers, options, ["a", "b"])


def test_duplicates_are_ignored_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="Duplicate provider 'a'"):
        assert check_and_normalize_provider_args(["a", "a"], [{"x": 1}, {"y": 2}], ["a"]) == (["a"], [{"x": "1"}])


def test_providers_in_the_options() -> None:
    options = ort.SessionOptions()
    assert not options.has_providers()
    options.add_provider(CPU, {})
    assert options.has_providers() and ort.InferenceSession(serialized(MUL), options).get_providers() == [CPU]
    with pytest.warns(UserWarning, match="already been configured with providers"):
        ort.InferenceSession(serialized(MUL), options, providers=[CPU])
    with pytest.raises(InvalidArgument, match="Failed to add provider of type 'CUDAExecutionProvider'"):
        options.add_provider("CUDAExecutionProvider", {})
    with pytest.raises(RuntimeError, match="Unknown Provider Type"):
        options.add_provider("Foo", {})
    with pytest.raises(InvalidArgument, match="one or more"):
        options.add_provider_for_devices([], {})


def test_selection_policies() -> None:
    options = ort.SessionOptions()
    options.set_provider_selection_policy(ort.OrtExecutionProviderDevicePolicy.PREFER_NPU)
    assert options.has_providers() and ort.InferenceSession(serialized(MUL), options).get_providers() == [CPU]
    asked: list[Any] = []

    def choose(devices: Any, model: Any, runtime: Any, most: int) -> Any:
        asked.append((len(devices), model["graph_name"], most))
        return devices if len(asked) == 1 else []

    options.set_provider_selection_policy_delegate(choose)
    ort.InferenceSession(serialized(MUL), options)
    assert asked == [(1, "mul", 8)]
    with pytest.raises(Fail, match="chose no device"):
        ort.InferenceSession(serialized(MUL), options)


def test_fallback_to_the_cpu_can_be_forbidden() -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    with pytest.raises(InvalidArgument, match="Conflicting session configuration"):
        ort.InferenceSession(serialized(MUL), options, providers=[CPU])
    with pytest.raises(Fail, match="explicitly disabled by the user"):
        ort.InferenceSession(serialized(MUL), options)


def test_a_failing_provider_is_left_once(monkeypatch: pytest.MonkeyPatch) -> None:
    session = ort.InferenceSession(serialized(MUL))

    def fail(*_: Any) -> Any:
        raise EPFail("the device is gone")

    monkeypatch.setattr(session._sess, "run", fail)
    assert session.run(None, {"X": X})[0].shape == (3, 2)
    monkeypatch.setattr(session._sess, "run", fail)
    with pytest.raises(EPFail):
        session.run(None, {"X": X})


def test_tuning_and_dynamic_options() -> None:
    session = ort.InferenceSession(serialized(MUL))
    assert session.get_tuning_results() == []
    with pytest.raises(RuntimeError, match="Cannot find execution provider Foo"):
        session.set_tuning_results([{"ep": "Foo"}], error_on_invalid=True)
    with pytest.raises(RuntimeError, match="No options"):
        session.set_ep_dynamic_options({})
    session.set_ep_dynamic_options({"ep.dynamic.workload_type": "Efficient"})
    session.release_captured_graph()


def test_compiled_model_compatibility(tmp_path: Any) -> None:
    import onnx

    from tests.session.models import model

    proto = model(MUL)
    onnx.helper.set_model_props(proto, {"ep_compatibility_info.Some": "v1"})
    content = proto.SerializeToString()
    (tmp_path / "m.onnx").write_bytes(content)
    assert native.get_compatibility_info_from_model_bytes(content, "Some") == "v1"
    assert native.get_compatibility_info_from_model(str(tmp_path / "m.onnx"), "Other") is None
    for wrong in ((b"", "Some"), (b"junk that is no model", "Some"), (content, "")):
        with pytest.raises(RuntimeError):
            native.get_compatibility_info_from_model_bytes(*wrong)
    with pytest.raises(RuntimeError):
        native.get_compatibility_info_from_model(str(tmp_path / "no.onnx"), "Some")
    devices = ort.get_ep_devices()
    status = native.get_model_compatibility_for_ep_devices(devices, "info")
    assert status == native.OrtCompiledModelCompatibility.EP_NOT_APPLICABLE
    with pytest.raises(RuntimeError):
        native.get_model_compatibility_for_ep_devices([], "info")
    with pytest.raises(TypeError):
        native.get_model_compatibility_for_ep_devices(devices, None)  # type: ignore[arg-type]
    details = native.get_hardware_device_ep_incompatibility_details(CPU, native.get_hardware_devices()[0])
    assert details == {"reasons_bitmask": 0, "notes": None, "error_code": 0}
    with pytest.raises(RuntimeError):
        native.get_hardware_device_ep_incompatibility_details("", native.get_hardware_devices()[0])
