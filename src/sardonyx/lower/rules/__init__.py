"""How each operator is lowered: one file per family."""

from sardonyx.lower.rules import (
    attention,
    columns,
    contract,
    conv,
    conv_transpose,
    create,
    einsum,
    gather,
    grid,
    join,
    learned,
    linear_attention,
    matrix,
    ml,
    movement,
    norm,
    pad,
    pointwise,
    pool,
    random,
    recurrent,
    reduce,
    regions,
    resize,
    signal,
    training,
)

__all__ = [
    "attention", "columns", "contract", "conv", "conv_transpose", "create", "einsum", "gather", "grid", "join",
    "learned", "linear_attention", "matrix", "ml", "movement", "norm", "pad", "pointwise", "pool", "random",
    "recurrent", "reduce", "regions", "resize", "signal", "training",
]  # fmt: skip
