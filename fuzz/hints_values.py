"""Generators of sequences, optionals, and the operators of ai.onnx.ml."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import helper

from fuzz.drafts import Draft, Maker, Operand
from fuzz.table import generator

ML = "ai.onnx.ml"


def sequence(m: Maker, *, alike: bool = False) -> Operand:
    d = m.draw
    dtype = d.one((np.float32, np.float32, np.int64, np.bool_, np.float64))
    shape = d.shape(1, 3, large=0)
    count = d.one((0, 1, 2, 3))
    values = [d.values(shape if alike or d.maybe(0.6) else d.shape(1, 3, large=0), dtype) for _ in range(count)]
    inner = helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), None)
    return Operand(values, type=helper.make_sequence_type_proto(inner))


@generator("SequenceLength")
def sequence_length(m: Maker) -> Draft:
    return m.node([sequence(m)])


@generator("SequenceAt", "SequenceErase")
def sequence_at(m: Maker) -> Draft:
    held = sequence(m)
    size = len(held.value)
    return m.node([held, Operand(m.draw.indices([], size, m.draw.one((np.int64, np.int32))), "index", size)])


@generator("SequenceConstruct")
def sequence_construct(m: Maker) -> Draft:
    return m.node([m.data(0, m.draw.shape()) for _ in range(m.draw.int(1, 4))])


@generator("SequenceEmpty")
def sequence_empty(m: Maker) -> Draft:
    return m.node([], dtype=m.some(1, 7, 9, 99))


@generator("ConcatFromSequence")
def concat_from_sequence(m: Maker) -> Draft:
    held = sequence(m, alike=True)
    rank = held.value[0].ndim if held.value else 1
    return m.node([held], axis=m.draw.axis(rank), new_axis=m.some(0, 1))


@generator("Optional")
def optional(m: Maker) -> Draft:
    if m.draw.maybe(0.7):
        return m.node([m.data(0, m.draw.shape()) if m.draw.maybe(0.7) else sequence(m)])
    inner = helper.make_tensor_type_proto(m.draw.one((1, 7)), None)
    return m.node([], type=helper.make_attribute("type", inner))


@generator("CastMap", domain=ML)
def cast_map(m: Maker) -> Draft:
    d = m.draw
    held: Any = {d.int(0, 9): d.one((1.5, 2.0, -3.0)) for _ in range(d.int(1, 4))}
    inner = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
    kind = helper.make_map_type_proto(onnx.TensorProto.INT64, inner)
    return m.node(
        [Operand(held, type=kind)],
        cast_to=m.some("TO_FLOAT", "TO_INT64", "TO_STRING"),
        map_form=m.some("DENSE", "SPARSE"),
        max_map=m.some(1, 5, 20),
    )


@generator("DictVectorizer", domain=ML)
def dict_vectorizer(m: Maker) -> Draft:
    d = m.draw
    held: Any = {d.one(("a", "b", "c", "zz")): d.one((1.5, -2.0)) for _ in range(d.int(1, 4))}
    inner = helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [])
    return m.node(
        [Operand(held, type=helper.make_map_type_proto(onnx.TensorProto.STRING, inner))],
        string_vocabulary=["a", "b", "c"],
    )


@generator("ZipMap", domain=ML)
def zip_map(m: Maker) -> Draft:
    d = m.draw
    classes = d.one((1, 2, 3))
    labels = (
        dict(classlabels_int64s=list(range(classes)))
        if d.maybe(0.5)
        else dict(classlabels_strings=list("abc")[:classes])
    )
    return m.node([m.data(0, [*d.shape(0, 1, large=0), classes + d.one((0, 0, 0, 1))])], **labels)


@generator("CategoryMapper", domain=ML)
def category_mapper(m: Maker) -> Draft:
    return m.node(
        [m.data(0, m.draw.shape())],
        cats_int64s=[1, 2, 3],
        cats_strings=["a", "b", "abc"],
        default_string=m.some("x"),
        default_int64=m.some(9),
    )


@generator("FeatureVectorizer", domain=ML)
def feature_vectorizer(m: Maker) -> Draft:
    d = m.draw
    n, widths = d.one((0, 1, 3)), [d.one((1, 2, 5)) for _ in range(d.int(1, 3))]
    return m.node(
        [m.data(i, [n, w]) for i, w in enumerate(widths)], inputdimensions=[w + d.one((0, 0, 0, 1, -1)) for w in widths]
    )


def features(m: Maker) -> tuple[Operand, int]:
    """Samples by features."""
    d = m.draw
    width = d.one((1, 2, 3, 5, 17))
    shape = [d.one((0, 1, 3, 20)), width] if d.maybe(0.9) else [width]
    return m.data(0, shape), width


def floats(m: Maker, count: int) -> list[float]:
    return [float(np.float32(v)) for v in m.draw.np.standard_normal(max(count, 1))]


@generator("Imputer", "Scaler", "Normalizer", domain=ML)
def per_feature(m: Maker) -> Draft:
    x, width = features(m)
    count = m.draw.one((width, width, 1))
    if m.key[1] == "Normalizer":
        return m.node([x], norm=m.some("MAX", "L1", "L2"))
    if m.key[1] == "Scaler":
        return m.node([x], offset=floats(m, count), scale=floats(m, count))
    if np.dtype(m.dtype(0)).kind in "iu":
        return m.node([x], imputed_value_int64s=list(range(count)), replaced_value_int64=m.some(0, 1))
    return m.node([x], imputed_value_floats=floats(m, count), replaced_value_float=m.some(0.0, float("nan")))


@generator("OneHotEncoder", domain=ML)
def one_hot_encoder(m: Maker) -> Draft:
    labels: dict[str, Any] = (
        {"cats_strings": ["a", "b", "abc"]} if m.dtype(0) == np.object_ else {"cats_int64s": [0, 1, 5]}
    )
    return m.node([m.data(0, m.draw.shape(1, 2))], zeros=m.draw.one((1, 1, 0)), **labels)


POST = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


@generator("LinearRegressor", "LinearClassifier", domain=ML)
def linear(m: Maker) -> Draft:
    x, width = features(m)
    targets = m.draw.one((1, 2, 3))
    post = m.some(*POST)
    if m.key[1] == "LinearRegressor":
        return m.node(
            [x],
            coefficients=floats(m, width * targets),
            intercepts=floats(m, targets),
            targets=targets,
            post_transform=post,
        )
    return m.node(
        [x],
        2,
        coefficients=floats(m, width * targets),
        intercepts=floats(m, targets),
        classlabels_ints=list(range(max(targets, 2))),
        post_transform=post,
        multi_class=m.some(0, 1),
    )


@generator("SVMRegressor", "SVMClassifier", domain=ML)
def svm(m: Maker) -> Draft:
    d = m.draw
    x, width = features(m)
    vectors = d.one((1, 3, 8))
    kernel = dict(kernel_type=d.one(("LINEAR", "RBF", "POLY", "SIGMOID")), kernel_params=[0.3, 0.5, 2.0])
    if m.key[1] == "SVMRegressor":
        return m.node(
            [x],
            coefficients=floats(m, vectors),
            support_vectors=floats(m, vectors * width),
            n_supports=vectors,
            rho=[0.2],
            post_transform=m.some(*POST),
            one_class=m.some(0, 1),
            **kernel,
        )
    classes = d.one((2, 3))
    per = [vectors] * classes
    pairs = classes * (classes - 1) // 2
    probabilities = dict(prob_a=floats(m, pairs), prob_b=floats(m, pairs)) if d.maybe(0.4) else {}
    return m.node(
        [x],
        2,
        coefficients=floats(m, sum(per) * (classes - 1)),
        support_vectors=floats(m, sum(per) * width),
        vectors_per_class=per,
        rho=floats(m, pairs),
        classlabels_ints=list(range(classes)),
        post_transform=m.some(*POST),
        **kernel,
        **probabilities,
    )


MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


def forest(m: Maker, width: int) -> dict[str, list[Any]]:
    """The nodes of a few trees as the operators list them."""
    d = m.draw
    made: dict[str, list[Any]] = {
        k: [] for k in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids", "missing")
    }
    mode = d.one(MODES) if d.maybe(0.5) else "BRANCH_LEQ"
    for tree in range(d.one((1, 2, 5))):
        depth = d.int(0, 3)
        inner = (1 << depth) - 1
        for node in range(2 * inner + 1):
            is_leaf = node >= inner
            row = [
                tree,
                node,
                d.int(0, width - 1),
                float(np.float32(d.rng.gauss(0, 1))),
                "LEAF" if is_leaf else d.one(MODES) if d.maybe(0.03) else mode,
            ]
            row += [0 if is_leaf else 2 * node + 1, 0 if is_leaf else 2 * node + 2, d.int(0, 1)]
            for column, value in zip(made.values(), row, strict=True):
                column.append(value)
    if d.maybe(0.06):
        name = d.one(("truenodeids", "falsenodeids", "featureids"))
        made[name][d.int(0, len(made[name]) - 1)] = d.one((0, -1, 99, 1 << 40))
    return made


@generator("TreeEnsembleRegressor", "TreeEnsembleClassifier", domain=ML)
def trees(m: Maker) -> Draft:
    d = m.draw
    x, width = features(m)
    nodes = forest(m, width)
    missing = nodes.pop("missing")
    attributes: dict[str, Any] = {f"nodes_{k}": v for k, v in nodes.items()}
    if d.maybe(0.3):
        attributes["nodes_missing_value_tracks_true"] = missing
    leaves = [
        (t, n) for t, n, mode in zip(nodes["treeids"], nodes["nodeids"], nodes["modes"], strict=True) if mode == "LEAF"
    ]
    outputs = d.one((1, 2, 3))
    word = "target" if m.key[1] == "TreeEnsembleRegressor" else "class"
    attributes.update(
        {
            f"{word}_treeids": [t for t, _ in leaves],
            f"{word}_nodeids": [n for _, n in leaves],
            f"{word}_ids": [d.int(0, outputs - 1) if d.maybe(0.99) else d.one((-1, 77)) for _ in leaves],
            f"{word}_weights": floats(m, len(leaves)),
        }
    )
    attributes["post_transform"] = m.some(*POST)
    if word == "class":
        return m.node([x], 2, classlabels_int64s=list(range(max(outputs, 2))), **attributes)
    return m.node(
        [x],
        n_targets=outputs,
        aggregate_function=m.some("SUM", "AVERAGE", "MIN", "MAX"),
        base_values=floats(m, outputs) if d.maybe(0.4) else None,
        **attributes,
    )


@generator("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(m: Maker) -> Draft:
    d = m.draw
    x = d.shape(1, 3)
    return m.node([m.data(0, x), m.index(1, d.one(([], [1], [3], [1, 2])), x[-1])])
