"""Files of session settings: what they set, and what they may not."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sardonyx as ort
from sardonyx.errors import InvalidArgument, NoSuchFile
from sardonyx.session.config_file import MAX_NBYTES, Config, read_config
from tests.session.models import MUL, X, serialized

GOOD: dict[str, Any] = {
    "format": "sardonyx.config",
    "version": 1,
    "options": {"intra_op_num_threads": 1, "graph_optimization_level": 1, "precision": "high"},
    "entries": {"session.intra_op.allow_spinning": "0", "session.intra_op.spin_duration_us": "10"},
    "calls": {"batch": 8, "contiguous_inputs": True, "states": [["past", "present", 2]]},
    "notes": ["made by hand"],
}


def written(folder: Path, content: Any) -> Path:
    path = folder / "config.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_a_session_takes_the_settings(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    config = options.load_config(written(tmp_path, GOOD))
    assert (options.intra_op_num_threads, options.precision) == (1, "high")
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert config.calls == GOOD["calls"] and config.notes == ("made by hand",)
    (y,) = ort.InferenceSession(serialized(MUL), options).run(None, {"X": X})
    np.testing.assert_array_equal(y, X * X)


def test_written_and_read_again(tmp_path: Path) -> None:
    config = read_config(written(tmp_path, GOOD))
    config.save(tmp_path / "again.json")
    assert read_config(tmp_path / "again.json") == config
    assert read_config(written(tmp_path, {"format": "sardonyx.config", "version": 1})) == Config()


def changed(**parts: Any) -> dict[str, Any]:
    return {**copy.deepcopy(GOOD), **parts}


BAD: dict[str, Any] = {
    "no object": [],
    "another format": changed(format="onnx"),
    "another version": changed(version=2),
    "a version that is a bool": changed(version=True),
    "an unknown part": changed(providers=["CUDAExecutionProvider"]),
    "options that are a list": changed(options=[]),
    "a path": changed(options={"optimized_model_filepath": "/etc/passwd"}),
    "a prefix of files": changed(options={"profile_file_prefix": "/etc/x"}),
    "a private attribute": changed(options={"_libraries": ["x.py"]}),
    "a folder of weights": changed(entries={"session.model_external_initializers_file_folder_path": "/"}),
    "too many threads": changed(options={"intra_op_num_threads": 10**9}),
    "threads below 0": changed(options={"intra_op_num_threads": -1}),
    "threads that are a text": changed(options={"intra_op_num_threads": "2"}),
    "threads that are a bool": changed(options={"intra_op_num_threads": True}),
    "threads that are a real": changed(options={"intra_op_num_threads": 2.0}),
    "an unknown level": changed(options={"graph_optimization_level": 7}),
    "an unknown precision": changed(options={"precision": "exact"}),
    "an entry that is a number": changed(entries={"session.intra_op.allow_spinning": 0}),
    "a long spin": changed(entries={"session.intra_op.spin_duration_us": "99999999"}),
    "digits of another script": changed(entries={"session.intra_op.spin_duration_us": "\u0661"}),
    "disabled passes": changed(entries={"optimization.disable_specified_optimizers": "FuseGelu"}),
    "a batch of none": changed(calls={"batch": 0}),
    "a state without axis": changed(calls={"states": [["a", "b"]]}),
    "an unknown call": changed(calls={"run": "rm"}),
    "notes that are no texts": changed(notes=[1]),
    "long notes": changed(notes=["x" * 2000]),
    "JSON that is cut": json.dumps(GOOD)[:-5],
    "a name that is there twice": '{"format": "sardonyx.config", "version": 1, "version": 1}',
    "deep nesting": "[" * 50_000,
    "no text at all": "\x00\x01",
    "a large file": json.dumps(changed(notes=["x" * 900] * 90)),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused_sets_nothing(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, BAD[name])
    options = ort.SessionOptions()
    with pytest.raises(InvalidArgument) as refused:
        options.load_config(path)
    assert str(path) in str(refused.value) and "\n" not in str(refused.value)
    assert options.__dict__ == ort.SessionOptions().__dict__


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(NoSuchFile, match="no such config"):
        read_config(tmp_path / "none.json")
    with pytest.raises(InvalidArgument, match="cannot be read"):
        read_config(tmp_path)
    with pytest.raises(InvalidArgument, match="regular file"):
        read_config(os.devnull)
    assert len(BAD["a large file"]) > MAX_NBYTES


def test_what_would_be_refused_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="cannot set"):
        Config({"logid": "x"}).save(tmp_path / "config.json")
    assert not list(tmp_path.iterdir())
    with pytest.raises(InvalidArgument, match="cannot be written"):
        Config().save(tmp_path / "none" / "config.json")
