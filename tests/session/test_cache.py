"""Optimized graphs kept between starts: the same answers, nothing optimized again, and no trust in what is damaged."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

from sardonyx import entries
from sardonyx.interpret.context import RunContext
from sardonyx.session import cache_writer
from sardonyx.session.build import BuildOptions, Engine, build

pytestmark = pytest.mark.usefixtures("unverified")

DEMO = Path(__file__).resolve().parents[2] / "demo"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copy(DEMO / "digits.onnx", tmp_path / "model.onnx"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SARDONYX_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def written(folder: Path) -> Path:
    """The folder, after entries that are written in the background."""
    cache_writer.wait()
    return folder


def was_kept(engine: Engine) -> bool:
    return "optimize" not in engine.phases


def answers(engine: Engine) -> list[np.ndarray]:
    images = np.load(DEMO / "heldout.npz")["images"][:8]
    return engine.run({"image": images}, [o.name for o in engine.outputs], RunContext())


def test_a_second_start_optimizes_nothing_and_answers_the_same(model: Path, folder: Path) -> None:
    first, second = build(model, BuildOptions()), build(model, BuildOptions())
    assert not was_kept(first) and was_kept(second)
    for a, b in zip(answers(first), answers(second), strict=True):
        np.testing.assert_array_equal(a, b)
    for a, b in zip([*first.inputs, *first.outputs], [*second.inputs, *second.outputs], strict=True):
        assert (a.name, str(a.type)) == (b.name, str(b.type))
    assert [str(r) for r in first.explain().report.rewrites] == [str(r) for r in second.explain().report.rewrites]


def test_the_folder_is_private(model: Path, folder: Path) -> None:
    build(model, BuildOptions())
    assert folder.stat().st_mode & 0o077 == 0
    (kept,) = written(folder).iterdir()
    assert kept.suffix == ".graph" and kept.stat().st_mode & 0o077 == 0


def test_weights_stay_in_the_models_file(model: Path, folder: Path) -> None:
    build(model, BuildOptions(level="disabled"))
    (kept,) = written(folder).glob("*.graph")
    assert kept.stat().st_size < model.stat().st_size / 4


@pytest.mark.parametrize("options", [BuildOptions(level="basic"), BuildOptions(free_dims={"batch": 4})])
def test_other_options_are_another_entry(model: Path, folder: Path, options: BuildOptions) -> None:
    build(model, BuildOptions())
    assert not was_kept(build(model, options))
    assert was_kept(build(model, options))


@pytest.mark.parametrize("is_time_put_back", [False, True])
def test_a_changed_model_is_another_entry(model: Path, folder: Path, is_time_put_back: bool) -> None:
    build(model, BuildOptions())
    info = model.stat()
    data = bytearray(model.read_bytes())
    at = len(data) // 2
    data[at] ^= 1
    model.write_bytes(data)
    os.utime(model, ns=(info.st_atime_ns, info.st_mtime_ns) if is_time_put_back else (1, 1))
    assert not was_kept(build(model, BuildOptions()))


def flipped(content: bytes, at: int) -> bytes:
    at %= len(content)
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


DAMAGES = {
    "empty": lambda content: b"",
    "cut": lambda content: content[:-1],
    "longer": lambda content: content + b"\0",
    "other": lambda content: b"\xff" * len(content),
    "the mark": lambda content: flipped(content, 0),
    "the length": lambda content: flipped(content, len(entries.MARK)),
    "the digest": lambda content: flipped(content, len(entries.MARK) + 20),
    "the head": lambda content: flipped(content, len(entries.MARK) + 60),
    "the graph": lambda content: flipped(content, -2000),
    "the last byte": lambda content: flipped(content, -1),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_a_miss_and_is_rebuilt(
    model: Path, folder: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    expected = answers(build(model, BuildOptions()))
    (damaged,) = written(folder).glob("*.graph")
    damaged.write_bytes(DAMAGES[damage](damaged.read_bytes()))
    with caplog.at_level(logging.WARNING, "sardonyx"):
        again = build(model, BuildOptions())
    assert not was_kept(again) and "cannot be used" in caplog.text
    np.testing.assert_array_equal(answers(again)[1], expected[1])
    assert was_kept(build(model, BuildOptions()))


def test_an_entry_under_anothers_name_is_not_taken_for_it(
    model: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = answers(build(model, BuildOptions()))
    (first,) = written(folder).glob("*.graph")
    build(model, BuildOptions(free_dims={"batch": 4}))
    (second,) = (p for p in written(folder).glob("*.graph") if p != first)
    first.write_bytes(second.read_bytes())
    with caplog.at_level(logging.WARNING, "sardonyx"):
        again = build(model, BuildOptions())
    assert not was_kept(again) and "digest" in caplog.text
    np.testing.assert_array_equal(answers(again)[1], expected[1])


@pytest.mark.parametrize("how", ["link", "readable by others", "pipe", "folder"])
def test_an_entry_that_is_no_file_of_the_users_alone(model: Path, folder: Path, tmp_path: Path, how: str) -> None:
    build(model, BuildOptions())
    (kept,) = written(folder).glob("*.graph")
    if how == "readable by others":
        kept.chmod(0o640)
    else:
        kept.rename(tmp_path / "elsewhere")
        make = {"link": lambda: kept.symlink_to(tmp_path / "elsewhere"), "pipe": lambda: os.mkfifo(kept, 0o600)}
        make.get(how, kept.mkdir)()
    again = build(model, BuildOptions())
    assert not was_kept(again) and len(answers(again)) == 2
    assert how == "folder" or was_kept(build(model, BuildOptions()))


def test_a_folder_that_others_can_write_is_not_trusted(
    model: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    with caplog.at_level(logging.WARNING, "sardonyx"):
        assert not was_kept(build(model, BuildOptions()))
    assert "not private" in caplog.text
    assert not any(folder.iterdir())


def test_it_is_on_unless_turned_off(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SARDONYX_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    build(model, BuildOptions())
    assert was_kept(build(model, BuildOptions())) and list((tmp_path / "home" / "sardonyx").glob("*.graph"))
    assert not was_kept(build(model, BuildOptions(is_cached=False)))
    monkeypatch.setenv("SARDONYX_CACHE", "off")
    assert not was_kept(build(model, BuildOptions()))


EXTERNAL = """
<ir_version: 10, opset_import: ["": 21]>
g (bool c, float[2] x) => (float[2] y) {
    y = If (c) <
        then_branch = t () => (float[2] a) <float[2] w = {1.0, 2.0}> { a = Add(x, w) },
        else_branch = e () => (float[2] b) { b = Identity(x) }
    >
}
"""


def test_external_data_of_a_subgraph_belongs_to_the_key(tmp_path: Path, folder: Path) -> None:
    proto = onnx.parser.parse_model(EXTERNAL)
    (branch,) = (a.g for a in proto.graph.node[0].attribute if a.name == "then_branch")
    tensor = branch.initializer[0]
    (tmp_path / "w").write_bytes(np.array([1, 2], "f").tobytes())
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w")
    path = tmp_path / "model.onnx"
    path.write_bytes(proto.SerializeToString())
    feed = {"c": np.array(True), "x": np.zeros(2, "f")}
    for expected in ([1, 2], [3, 4]):
        (tmp_path / "w").write_bytes(np.array(expected, "f").tobytes())
        (y,) = build(path, BuildOptions()).run(feed, ["y"], RunContext())
        np.testing.assert_array_equal(y, expected)
