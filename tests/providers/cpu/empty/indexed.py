"""Operators that find, pick and place elements."""

from __future__ import annotations

import numpy as np

from tests.providers.cpu.empty.case import Case, ints

INDEXED = {
    "gather": Case(
        "y = Gather<axis = 1>(x, i)", "float[n,m_,k] x, int64[a,b] i", "float[c,d,e,f] y",
        {"n": 3, "m_": 4, "k": 5, "a": 2, "b": 3},
    ),
    "gather from nothing": Case(
        "y = Gather(x, i)", "float[m,k] x, int64[a] i", "float[c,d] y", {"m": 4, "k": 5, "a": 2}
    ),
    "gather elements": Case(
        "y = GatherElements<axis = 1>(x, i)", "float[n,m_] x, int64[n,k] i", "float[c,d] y", {"n": 3, "m_": 4, "k": 5}
    ),
    "gather nd": Case(
        "y = GatherND(x, i)", "float[4,5,k] x, int64[a,2] i", "float[c,d] y", {"k": 5, "a": 3}
    ),
    "scatter elements": Case(
        "y = ScatterElements<axis = 0>(x, i, u)", "float[m_,k] x, int64[a,k] i, float[a,k] u", "float[c,d] y",
        {"m_": 4, "k": 5, "a": 1},
    ),
    "scatter nd": Case(
        "y = ScatterND(x, i, u)", "float[4,k] x, int64[a,1] i, float[a,k] u", "float[c,d] y", {"k": 5, "a": 1}
    ),
    "scatter into a cache": Case(
        "y = TensorScatter<axis = 1>(p, u, i)", "float[n,6,k] p, float[n,t,k] u, int64[n] i", "float[c,d,e] y",
        {"n": 3, "t": 2, "k": 5}, opsets='"" : 24',
    ),
    "one hot": Case(
        "y = OneHot(i, d, v)", "int64[n,m] i", "float[a,b,c] y", {"n": 3, "m": 4},
        {"d": np.array(5), "v": np.array([0, 1], "f")},
    ),
    "top k": Case(
        "v, i = TopK<axis = 1>(x, k)", "float[n,m_,j] x", "float[a,b,c] v, int64[d,e,f] i", {"n": 3, "m_": 6, "j": 4},
        {"k": ints(2)},
    ),
    "top none": Case(
        "v, i = TopK<axis = 1>(x, k)", "float[n,m] x", "float[a,b] v, int64[d,e] i", {"n": 3, "m": 6}, {"k": ints(0)}
    ),
    "nonzero": Case("y = NonZero(x)", "float[n,m] x", "int64[a,b] y", {"n": 3, "m": 4}),
    "compress": Case(
        "y = Compress<axis = 1>(x, c)", "float[n,m,k] x, bool[m] c", "float[a,b,d] y", {"n": 3, "m": 4, "k": 5}
    ),
    "unique": Case(
        "y, i, v, c = Unique(x)", "int64[n] x", "int64[a] y, int64[b] i, int64[d] v, int64[e] c", {"n": 9}, top=4
    ),
    "unique rows": Case("y = Unique<axis = 0>(x)", "int64[n,m] x", "int64[a,b] y", {"n": 9, "m": 2}, hangs=("m",)),
    "suppression": Case(
        "y = NonMaxSuppression(b, s, m, o)", "float[n,k,4] b, float[n,c,k] s", "int64[a,d] y",
        {"n": 2, "k": 6, "c": 3}, {"m": ints(4), "o": np.array([0.3], "f")},
    ),
    "reversed": Case(
        "y = ReverseSequence<batch_axis = 0, time_axis = 1>(x, l)", "float[n,t_,k] x, int64[n] l", "float[a,b,c] y",
        {"n": 3, "t_": 4, "k": 5},
    ),
    "trees": Case(
        "y = ai.onnx.ml.TreeEnsembleRegressor<n_targets = 1, nodes_treeids = [0,0,0], nodes_nodeids = [0,1,2], "
        'nodes_featureids = [1,0,0], nodes_values = [0.1,0.0,0.0], nodes_modes = ["BRANCH_LEQ","LEAF","LEAF"], '
        "nodes_truenodeids = [1,0,0], nodes_falsenodeids = [2,0,0], target_treeids = [0,0], target_nodeids = [1,2], "
        "target_ids = [0,0], target_weights = [1.0,2.0]>(x)",
        "float[n,3] x", "float[a,b] y", {"n": 9},
    ),
    "tree ensemble": Case(
        "y = ai.onnx.ml.TreeEnsemble<n_targets = 1, tree_roots = [0], nodes_featureids = [1], "
        "nodes_splits = float[1] {0.1}, nodes_modes = uint8[1] {0}, nodes_truenodeids = [0], "
        "nodes_falsenodeids = [1], nodes_trueleafs = [1], nodes_falseleafs = [1], leaf_targetids = [0, 0], "
        "leaf_weights = float[2] {1.0, 2.0}>(x)",
        "float[n,3] x", "float[a,b] y", {"n": 9}, opsets='"" : 21, "ai.onnx.ml" : 5',
    ),
    "features": Case(
        "y = ai.onnx.ml.ArrayFeatureExtractor(x, i)", "float[n,4] x, int64[k] i", "float[a,b] y", {"n": 3, "k": 2}
    ),
    "binarized": Case(
        "a = ai.onnx.ml.Binarizer<threshold = 0.1>(x) "
        "y = ai.onnx.ml.Imputer<imputed_value_floats = [1.0], replaced_value_float = 0.0>(a)",
        "float[n,m] x", "float[b,c] y", {"n": 3, "m": 4},
    ),
    "one-hot encoder": Case(
        "y = ai.onnx.ml.OneHotEncoder<cats_int64s = [3, 1, 7]>(x)", "int64[n,m] x", "float[a,b,c] y", {"n": 3, "m": 4}
    ),
    "labels": Case(
        "y = ai.onnx.ml.LabelEncoder<keys_int64s = [1, 0, 7], values_floats = [0.5, 0.25, 9.0]>(x)",
        "int64[n,m] x", "float[a,b] y", {"n": 3, "m": 4},
    ),
    "features side by side": Case(
        "y = ai.onnx.ml.FeatureVectorizer<inputdimensions = [4, 2]>(x, z)", "float[n,4] x, float[n,2] z",
        "float[a,b] y", {"n": 3}, hangs=("n",),
    ),
}  # fmt: skip
