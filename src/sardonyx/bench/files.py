"""Inputs of a model from files: .npz, .npy, .pb (a serialized TensorProto) and images.

An .npz holds arrays by the inputs' names, or ``in:NAME`` as benchmarks keep them. Other files are values of one input:
``NAME=FILE``, or in the order of the inputs; ``FILE.npz:KEY`` is one array. An image becomes the float32 or uint8
tensor that its input declares, in NCHW or NHWC order, in [0, 1] where it is float; it is resized where the input has
fixed sizes.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidProtobuf, NoSuchFile, NotImplemented
from sardonyx.session.metadata import NodeArg

Array = np.ndarray[Any, Any]
IMAGES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp"})
KINDS = ".npy, FILE.npz:KEY, .pb or an image"
KEYED = re.compile(r"\.npz:[^/]+$")


def read_inputs(declared: Sequence[NodeArg], given: Sequence[str]) -> dict[str, Array]:
    """Feeds from files; inputs that no file gives are left out."""
    by_name = {each.name: each for each in declared}
    found: dict[str, Array] = {}
    for text in given:
        name, path = _split(text, by_name)
        if name is None and path.suffix == ".npz":
            for key, array in _archive(path, by_name).items():
                _put(found, key, array, path)
            continue
        if name is None:
            free = [each.name for each in declared if each.name not in found]
            if not free:
                raise InvalidArgument("more files than inputs", expected=list(by_name), got=str(path))
            name = free[0]
        if name not in by_name:
            raise InvalidArgument("the model has no such input", expected=list(by_name), got=name)
        is_keyed = not path.exists() and KEYED.search(str(path))
        _put(found, name, read_array(str(path)) if is_keyed else _read(path, by_name[name]), path)
    return found


def read_array(text: str) -> Array:
    """``FILE.npy``, or ``FILE.npz:KEY``, whose key may be left out where there is one array."""
    name, colon, key = text.rpartition(":")
    path = Path(name if colon and not Path(text).exists() else text)
    wanted = key if path != Path(text) else None
    if not path.is_file():
        raise NoSuchFile(f"there is no file {path}")
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            if wanted is not None:
                raise InvalidArgument("only an .npz has arrays by name", got=text)
            return loaded
        with loaded:
            names, where = list(loaded), str(path)
            if wanted is None and len(names) != 1:
                raise InvalidArgument("the file has several arrays", where=where, expected="FILE.npz:KEY", got=names)
            if wanted is not None and wanted not in names:
                raise InvalidArgument("the file has no such array", where=where, expected=names, got=wanted)
            array: Array = loaded[names[0] if wanted is None else wanted]
            return array
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        said = "it is no array that numpy saved" if "pickle" in str(error) else str(error)  # numpy advises to unpickle
        raise InvalidArgument(f"{path} cannot be read: {said}") from None


def _split(text: str, by_name: Mapping[str, NodeArg]) -> tuple[str | None, Path]:
    """``NAME=FILE``; a name may hold an equals sign, and so may a file."""
    for name in sorted(by_name, key=len, reverse=True):
        if text.startswith(f"{name}="):
            return name, Path(text[len(name) + 1 :])
    head, equals, tail = text.partition("=")
    if equals and not Path(text).exists() and Path(tail).exists():
        return head, Path(tail)
    return None, Path(text)


def _put(found: dict[str, Array], name: str, array: Array, path: Path) -> None:
    if name in found:
        raise InvalidArgument("an input has two values", where=str(path), got=name)
    found[name] = array


def _archive(path: Path, by_name: Mapping[str, NodeArg]) -> dict[str, Array]:
    """The arrays of an .npz that are inputs; InvalidArgument if none is, or one is unknown."""
    _require_file(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            if any(key.startswith("in:") for key in file):
                from sardonyx.bench.arrays import stored

                arrays = stored(path, "in")
            else:
                arrays = {key: file[key] for key in file}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise _unreadable(path, error) from None
    if unknown := sorted(arrays.keys() - by_name.keys()):
        raise InvalidArgument(
            "the file has arrays that are no inputs", where=str(path), expected=list(by_name), got=unknown
        )
    return arrays


def _read(path: Path, declared: NodeArg) -> Array:
    _require_file(path)
    suffix = path.suffix.lower()
    if suffix == ".npy":
        try:
            array: Array = np.load(path, allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise _unreadable(path, error) from None
        return array
    if suffix == ".pb":
        return _tensor(path)
    if suffix in IMAGES:
        return _image(path, declared)
    raise InvalidArgument(f"an input is read from {KINDS}", got=str(path))


def _require_file(path: Path) -> None:
    if not path.exists():
        raise NoSuchFile(f"there is no file {path}")
    if not path.is_file():
        raise InvalidArgument(f"{path} is no file")


def _unreadable(path: Path, error: Exception) -> InvalidArgument:
    return InvalidArgument(f"{path} cannot be read: {error}")


def _tensor(path: Path) -> Array:
    import onnx
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

    proto = onnx.TensorProto()
    try:
        proto.ParseFromString(path.read_bytes())
        array: Array = onnx.numpy_helper.to_array(proto)
    except (DecodeError, TypeError, ValueError, KeyError) as error:
        raise InvalidProtobuf(f"{path} is no serialized TensorProto", got=error) from None
    return array


def _image(path: Path, declared: NodeArg) -> Array:
    try:
        from PIL import Image
    except ImportError:
        raise NotImplemented("images are read by pillow", hint="pip install 'sardonyx[image]'") from None
    channels, height, width, is_first = _layout(declared)
    try:
        with Image.open(path) as opened:
            picture = opened.convert({1: "L", 3: "RGB", 4: "RGBA"}[channels])
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise _unreadable(path, error) from None
    if height is not None or width is not None:
        picture = picture.resize((width or picture.width, height or picture.height), Image.Resampling.BILINEAR)
    pixels: Array = np.asarray(picture).reshape(picture.height, picture.width, channels)
    if is_first:
        pixels = pixels.transpose(2, 0, 1)
    if len(declared.shape) == 3 and channels == 1 and not _is_channels(declared.shape[0]):
        pixels = pixels.reshape(picture.height, picture.width)
    if declared.type not in ("tensor(uint8)", "tensor(float)", "tensor(float16)"):
        raise InvalidArgument("an image becomes uint8 or float", where=declared.name, got=declared.type)
    if declared.type != "tensor(uint8)":
        dtype = np.float16 if declared.type == "tensor(float16)" else np.float32
        pixels = (pixels.astype(np.float32) / 255).astype(dtype)
    return np.ascontiguousarray(pixels[None] if pixels.ndim < len(declared.shape) else pixels)


def _is_channels(size: object) -> bool:
    return size in (1, 3, 4)


def _layout(declared: NodeArg) -> tuple[int, int | None, int | None, bool]:
    """Channels, height, width, and whether the channels come first."""
    shape = declared.shape
    sizes = [size if isinstance(size, int) else None for size in shape]
    if len(shape) == 4 and _is_channels(sizes[1]):
        return sizes[1] or 3, sizes[2], sizes[3], True
    if len(shape) == 4 and _is_channels(sizes[3]):
        return sizes[3] or 3, sizes[1], sizes[2], False
    if len(shape) == 3 and _is_channels(sizes[0]):
        return sizes[0] or 3, sizes[1], sizes[2], True
    if len(shape) == 3 and _is_channels(sizes[2]):
        return sizes[2] or 3, sizes[0], sizes[1], False
    if len(shape) == 3:
        return 1, sizes[1], sizes[2], False
    raise InvalidArgument(
        "the input takes no image: its shape has no axis of 1, 3 or 4 channels", where=declared.name, got=shape
    )
