"""ai.onnx.ml: features, labels and maps. Linear models and tree ensembles have their own files."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sardonyx.errors import InvalidArgument, InvalidGraph
from sardonyx.ir.tensor import Tensor
from sardonyx.ops import ml_linear, ml_tree
from sardonyx.ops.identity_cache import IdentityCache
from sardonyx.ops.label_table import LabelTable
from sardonyx.ops.limits import check_elements
from sardonyx.ops.ml_scores import ML, rows
from sardonyx.ops.registry import op

__all__ = ["ml_linear", "ml_tree"]

Array = np.ndarray[Any, Any]
F32 = np.float32


@op("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(x: Array, y: Array) -> Array:
    """The columns ``y`` of the last axis; a vector counts as one row."""
    if x.ndim == 0:
        raise InvalidArgument("ArrayFeatureExtractor takes no scalar")
    wanted = y.reshape(-1).astype(np.int64)
    if not wanted.size or wanted.min() < 0 or wanted.max() >= x.shape[-1]:
        raise InvalidArgument(
            "a feature index is out of range", expected=f"[0, {x.shape[-1]})", got=wanted[:8].tolist()
        )
    return np.take(x.reshape(1, -1) if x.ndim == 1 else x, wanted, axis=-1)


@op("Binarizer", domain=ML)
def binarizer(x: Array, *, threshold: float = 0.0) -> Array:
    if x.dtype.kind == "f":
        return np.asarray(x > x.dtype.type(threshold), x.dtype)
    whole = floor_in(threshold, np.iinfo(x.dtype))
    return np.full_like(x, threshold < 0) if whole is None else np.asarray(x > x.dtype.type(whole), x.dtype)


def floor_in(number: float, limits: np.iinfo[Any]) -> int | None:
    """The largest integer that is not above a number; None where a type cannot hold it, and for NaN."""
    floor = math.floor(number) if math.isfinite(number) else None
    return floor if floor is not None and limits.min <= floor <= limits.max else None


@op("Scaler", domain=ML)
def scaler(x: Array, *, offset: Any = (), scale: Any = ()) -> Array:
    shift, factor = _per_feature(offset, x, "offset"), _per_feature(scale, x, "scale")
    return (x.astype(F32) - shift) * factor


@op("Imputer", domain=ML)
def imputer(
    x: Array,
    *,
    imputed_value_floats: Any = (),
    imputed_value_int64s: Any = (),
    replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> Array:
    """Replace one value, or NaN, by a value for its column."""
    if x.dtype.kind == "f":
        wanted, missing = imputed_value_floats, replaced_value_float
    else:
        wanted, missing = imputed_value_int64s, replaced_value_int64
    hit = np.isnan(x) if missing != missing else x == np.asarray(missing).astype(x.dtype)
    return np.where(hit, _per_feature(wanted, x, "imputed_value").astype(x.dtype), x)


@op("Normalizer", domain=ML)
def normalizer(x: Array, *, norm: str = "MAX") -> Array:
    """Each row divided by its largest element, its sum of magnitudes or its length; a row of zeros is unchanged."""
    table = rows(x).astype(F32)
    if norm == "MAX":
        size = table.max(axis=1, keepdims=True, initial=-np.inf)
    elif norm == "L1":
        size = np.abs(table).sum(axis=1, keepdims=True)
    elif norm == "L2":
        size = np.sqrt((table * table).sum(axis=1, keepdims=True))
    else:
        raise InvalidGraph(f"norm {norm!r} is not known", expected="MAX, L1 or L2")
    return np.reshape(np.divide(table, size, out=table.copy(), where=size != 0), x.shape)


@op("FeatureVectorizer", domain=ML)
def feature_vectorizer(*xs: Array, inputdimensions: Any = ()) -> Array:
    """The inputs concatenated, each truncated or padded with zeros to its declared width."""
    widths = list(inputdimensions) or [rows(x).shape[1] for x in xs]
    if len(widths) != len(xs) or min(widths) < 0:
        raise InvalidGraph("inputdimensions does not fit the inputs", expected=len(xs), got=widths)
    check_elements(_batch(xs[0]) * sum(widths), np.dtype(F32), "the output of FeatureVectorizer")
    out = np.zeros((_batch(xs[0]), sum(widths)), F32)
    start = 0
    for x, width in zip(xs, widths, strict=True):
        if _batch(x) != len(out):
            raise InvalidArgument("the inputs have different numbers of rows", expected=len(out), got=_batch(x))
        table = x.reshape(len(out), x.size // max(len(out), 1))[:, :width]
        out[:, start : start + table.shape[1]] = table
        start += width
    return out


@op("OneHotEncoder", domain=ML)
def one_hot_encoder(x: Array, *, cats_int64s: Any = (), cats_strings: Any = (), zeros: int = 1) -> Array:
    """A category that is named twice is the last one of its name."""
    names, codes = (cats_strings, x) if x.dtype == object else (cats_int64s, x.astype(np.int64))
    count, place = len(names), _PLACES.get(_places_of, names).get
    at = [place(code, -1) for code in codes.reshape(-1).tolist()]
    if not zeros and -1 in at:
        raise InvalidArgument("a value is not among the categories, and zeros=0 forbids that")
    check_elements(x.size * count, np.dtype(F32), "the output of OneHotEncoder")
    hot = np.zeros((*x.shape, count), F32)
    flat = hot.reshape(-1)
    flat[[row * count + i for row, i in enumerate(at) if i >= 0]] = 1
    return hot


def _places_of(names: Sequence[Any]) -> dict[Any, int]:
    return {category: i for i, category in enumerate(names)}


@op("CategoryMapper", domain=ML)
def category_mapper(
    x: Array,
    *,
    cats_int64s: Any = (),
    cats_strings: Any = (),
    default_int64: int = -1,
    default_string: str = "_Unused",
) -> Array:
    """A category that is named twice has the last of its numbers, and a number the last of its categories."""
    default = default_int64 if x.dtype == object else default_string
    return _TABLES.get(_category_table, cats_int64s, cats_strings, default).look_up(x)


def _category_table(cats_int64s: Any, cats_strings: Any, default: int | str) -> LabelTable:
    if len(cats_int64s) != len(cats_strings):
        raise InvalidGraph("CategoryMapper's lists differ in length", got=(len(cats_int64s), len(cats_strings)))
    ints, strings = np.array(cats_int64s, np.int64)[::-1], np.array(list(cats_strings), dtype=object)[::-1]
    return LabelTable(ints, strings, default) if isinstance(default, str) else LabelTable(strings, ints, default)


@op("LabelEncoder", domain=ML)
def label_encoder(
    x: Array,
    *,
    default_float: float = -0.0,
    default_int64: int = -1,
    default_string: str = "_Unused",
    default_tensor: Tensor | None = None,
    keys_floats: Any = None,
    keys_int64s: Any = None,
    keys_strings: Any = None,
    keys_tensor: Tensor | None = None,
    values_floats: Any = None,
    values_int64s: Any = None,
    values_strings: Any = None,
    values_tensor: Tensor | None = None,
) -> Array:
    """Each element looked up in a table; missing ones become the default of the values' type."""
    table = _TABLES.get(
        _label_table, keys_tensor, keys_floats, keys_int64s, keys_strings, values_tensor, values_floats, values_int64s,
        values_strings, default_tensor, default_float, default_int64, default_string,
    )  # fmt: skip
    return table.look_up(x)


def _label_table(
    keys_tensor: Tensor | None,
    keys_floats: Any,
    keys_int64s: Any,
    keys_strings: Any,
    values_tensor: Tensor | None,
    values_floats: Any,
    values_int64s: Any,
    values_strings: Any,
    default_tensor: Tensor | None,
    default_float: float,
    default_int64: int,
    default_string: str,
) -> LabelTable:
    keys = _column(keys_tensor, keys_floats, keys_int64s, keys_strings, "keys")
    values = _column(values_tensor, values_floats, values_int64s, values_strings, "values")
    if len(keys) != len(values):
        raise InvalidGraph("LabelEncoder's keys and values differ in number", got=(len(keys), len(values)))
    if default_tensor is not None:
        default = default_tensor.numpy().reshape(-1)[0]
    else:
        default = {"f": default_float, "i": default_int64, "O": default_string}.get(values.dtype.kind, 0)
    return LabelTable(keys, values, default)


_PLACES, _TABLES = IdentityCache(1024), IdentityCache(1024)


def labels_by_index(span: int, **attributes: Any) -> tuple[int, Array] | None:
    """A LabelEncoder of integers as a table of at most ``span`` elements: the least key, and the values from it on,
    followed by the default. None where keys are no integers, lie further apart or at the end of int64, or values are
    strings.
    """
    given = attributes.get("keys_tensor")
    keys = np.array(attributes.get("keys_int64s", ()), np.int64) if given is None else given.numpy().reshape(-1)
    if not keys.size or keys.dtype.kind not in "iu":
        return None
    least, end = int(keys.min()), int(keys.max()) + 1
    if end - least + 1 > span or end + 1 > np.iinfo(np.int64).max:
        return None
    table = label_encoder(np.arange(least, end + 1), **attributes)
    return None if table.dtype == object else (least, table)


def _column(tensor: Tensor | None, floats: Any, ints: Any, strings: Any, name: str) -> Array:
    if tensor is not None:
        return tensor.numpy().reshape(-1)
    if strings is not None:
        return np.array(list(strings), dtype=object)
    if floats is not None:
        return np.array(floats, F32)
    if ints is not None:
        return np.array(ints, np.int64)
    raise InvalidGraph(f"LabelEncoder has no {name}")


@op("DictVectorizer", domain=ML)
def dict_vectorizer(x: Mapping[Any, Any], *, int64_vocabulary: Any = (), string_vocabulary: Any = ()) -> Array:
    """The map's values in the order of the vocabulary, zero or empty where it has none."""
    values = [x.get(key) for key in (string_vocabulary or int64_vocabulary)]
    sample = next(iter(x.values()), 0.0)
    if isinstance(sample, str):
        return np.array(["" if v is None else v for v in values], dtype=object).reshape(1, -1)
    dtype = np.asarray(sample).dtype
    if isinstance(sample, float):
        dtype = np.dtype(F32)
    return np.array([0 if v is None else v for v in values], dtype).reshape(1, -1)


def _written(x: Any) -> str:
    return x if isinstance(x, str) else f"{x:f}"


@op("CastMap", domain=ML)
def cast_map(x: Mapping[int, Any], *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1) -> Array:
    """A map as a row: its values by ascending key, or each at the index that its key names.

    Text has onnxruntime's format: six decimals, and "0.f" for missing keys.
    """
    casts: dict[str, tuple[Any, Callable[[Any], Any]]] = {
        "TO_FLOAT": (F32, float),
        "TO_INT64": (np.int64, int),
        "TO_STRING": (object, _written),
    }
    if cast_to not in casts or map_form not in ("DENSE", "SPARSE"):
        raise InvalidGraph("CastMap: unknown map_form", got=(cast_to, map_form))
    dtype, cast = casts[cast_to]
    entries = sorted(x.items())
    if map_form == "DENSE":
        return np.array([cast(v) for _, v in entries], dtype).reshape(1, -1)
    if entries and (entries[0][0] < 0 or entries[-1][0] >= max_map):
        raise InvalidArgument("a key does not fit max_map", expected=f"[0, {max_map})", got=[k for k, _ in entries][:8])
    check_elements(max_map, np.dtype(np.float64), "the output of CastMap")
    out = np.full((1, max_map), cast(0) if dtype is not object else "0.f", dtype)
    for key, v in entries:
        out[0, key] = cast(v)
    return out


@op("ZipMap", domain=ML)
def zip_map(x: Array, *, classlabels_int64s: Any = None, classlabels_strings: Any = None) -> list[dict[Any, float]]:
    """A map from label to score for every row, in the order of the labels."""
    keys = classlabels_strings or classlabels_int64s
    if not keys:
        raise InvalidGraph("ZipMap has no class labels")
    scores = rows(x, len(keys))
    if keys != sorted(keys):
        order = sorted(range(len(keys)), key=keys.__getitem__)
        keys, scores = [keys[i] for i in order], scores[:, order]
    if len(keys) == 2:
        first, second = keys
        return [{first: a, second: b} for a, b in scores.tolist()]
    if len(keys) == 3:
        first, second, third = keys
        return [{first: a, second: b, third: c} for a, b, c in scores.tolist()]
    return [dict(zip(keys, row)) for row in scores.tolist()]  # noqa: B905 (rows are as long)


def _per_feature(values: Any, x: Array, name: str) -> Array:
    """One value for all columns, or one for each."""
    array = np.array(values)
    columns = x.shape[-1] if x.ndim else 1
    if array.ndim != 1 or len(array) not in (1, columns):
        raise InvalidGraph(f"attribute {name!r} has the wrong length", expected=f"1 or {columns}", got=array.size)
    return array.astype(F32) if array.dtype.kind == "f" else array


def _batch(x: Array) -> int:
    return x.shape[0] if x.ndim > 1 else 1
