"""External data outside the folder, of another kind, or missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from tests.model.hostile.cases import Case, model, node

WEIGHT = np.array([3, 5], np.float32).tobytes()


def stored(
    location: str, *, dims: tuple[int, ...] = (2,), data_type: int = TensorProto.FLOAT, **keys: Any
) -> onnx.ModelProto:
    tensor = TensorProto(name="c", data_type=data_type, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, text in {"location": location, **keys}.items():
        tensor.external_data.add(key=key, value=str(text))
    return model(node("Add", "x c"), tensor)


def case(
    name: str,
    location: str,
    prepare: Callable[[Path], object] = lambda home: None,
    error: str | None = "Fail",
    **keys: Any,
) -> Case:
    """A model in ``home`` that names ``location``; ``prepare`` fills the folders. A secret lies next to ``home``."""

    def write(folder: Path) -> str:
        home = folder / "home"
        home.mkdir()
        (folder / "secret.bin").write_bytes(WEIGHT)
        (folder / "home2").mkdir()
        (folder / "home2" / "near.bin").write_bytes(WEIGHT)
        (home / "here.bin").write_bytes(WEIGHT)
        prepare(home)
        path = home / "m.onnx"
        path.write_bytes(stored(location.format(folder=folder), **keys).SerializeToString())
        return str(path)

    return Case(name, write, error)


def cases() -> Iterator[Case]:
    yield case("fine", "here.bin", error=None)
    yield case("fine, in a folder below", "a/b.bin", lambda home: _below(home, "a/b.bin"), None)
    yield case("fine, through a dot", "./here.bin", error=None)
    yield case("fine, with a checksum", "here.bin", error=None, checksum="abc")
    for location in (
        "../secret.bin",
        "a/../../secret.bin",
        "..",
        "../home2/near.bin",
        "./../secret.bin",
        "..\\secret.bin",
    ):
        yield case(f"escape by {location}", location)
    yield case("absolute path", "{folder}/secret.bin")
    yield case("absolute path into the folder", "{folder}/home/here.bin")
    yield case("absolute system file", "/etc/passwd")
    yield case("home folder", "~/secret.bin")
    yield case("drive letter", "C:secret.bin")
    yield case("no location", "")
    yield case("zero byte", "here.bin\0.png")
    yield case("name too long", "n" * 5000)
    yield case("path too deep", "a/" * 3000 + "b")
    yield case("missing file", "none.bin")
    yield case("the folder itself", ".")
    yield case("a folder", "sub", lambda home: (home / "sub").mkdir())
    yield case("a pipe", "pipe", lambda home: os.mkfifo(home / "pipe"))
    yield case("a socket", "sock", _socket)
    yield case("link to the secret", "link.bin", lambda home: (home / "link.bin").symlink_to("../secret.bin"))
    yield case(
        "link to a link", "l1", lambda home: ((home / "l1").symlink_to("l2"), (home / "l2").symlink_to("../secret.bin"))
    )
    yield case("link to a folder outside", "d/near.bin", lambda home: (home / "d").symlink_to("../home2"))
    yield case("link to a device", "zero", lambda home: (home / "zero").symlink_to("/dev/zero"))
    yield case("link to a descriptor", "fd", lambda home: (home / "fd").symlink_to("/proc/self/fd/0"))
    yield case("link to itself", "loop", lambda home: (home / "loop").symlink_to("loop"))
    yield case("link to nothing", "gone", lambda home: (home / "gone").symlink_to("nowhere"))
    yield case("link inside", "in.bin", lambda home: (home / "in.bin").symlink_to("here.bin"), None)
    yield case(
        "hard link to the secret", "hard.bin", lambda home: (home / "hard.bin").hardlink_to(home.parent / "secret.bin")
    )
    yield case("hard link inside", "hard.bin", lambda home: (home / "hard.bin").hardlink_to(home / "here.bin"), None)
    yield case("unreadable file", "dark.bin", _unreadable, "Fail" if os.geteuid() else None)
    yield case("empty file", "empty.bin", lambda home: (home / "empty.bin").touch())
    yield case("empty file, empty tensor", "empty.bin", lambda home: (home / "empty.bin").touch(), "runs?", dims=(0, 2))
    for name, keys in {
        "offset beyond the end": {"offset": 8},
        "offset far beyond the end": {"offset": 1 << 62},
        "offset of 2^70": {"offset": 1 << 70},
        "offset of a thousand digits": {"offset": "9" * 5000},
        "negative offset": {"offset": -4},
        "offset in words": {"offset": "four"},
        "offset with a sign": {"offset": "+0"},
        "offset in other digits": {"offset": "\u0664"},
        "length beyond the end": {"length": 800},
        "length of 2^62": {"length": 1 << 62},
        "negative length": {"length": -8},
        "length too short": {"length": 4},
        "length in words": {"length": "eight"},
        "offset plus length beyond": {"offset": 4, "length": 8},
        "claims 2^40 elements": {"dims": (1 << 40,)},
        "claims 2^64 elements": {"dims": (1 << 32, 1 << 32)},
        "claims a negative number": {"dims": (-2,)},
        "strings": {"data_type": TensorProto.STRING},
    }.items():
        yield case(name, "here.bin", **keys)

    def in_bytes(folder: Path) -> bytes:
        (folder / "here.bin").write_bytes(WEIGHT)
        return stored("here.bin").SerializeToString()

    yield Case("model without a folder", in_bytes, "Fail")
    yield Case("bytes that name a system file", lambda _: stored("/etc/hostname").SerializeToString(), "Fail")


def _below(home: Path, name: str) -> None:
    (home / name).parent.mkdir(parents=True)
    (home / name).write_bytes(WEIGHT)


def _unreadable(home: Path) -> None:
    (home / "dark.bin").write_bytes(WEIGHT)
    (home / "dark.bin").chmod(0)


def _socket(home: Path) -> None:
    import socket

    here = os.getcwd()
    os.chdir(home)
    with socket.socket(socket.AF_UNIX) as s:
        s.bind("sock")
    os.chdir(here)
