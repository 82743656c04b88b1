"""How each operator is lowered: one file per family."""

from sardonyx.lower.rules import (
    attention,
    columns,
    contract,
    conv,
    conv_transpose,
    create,
    gather,
    grid,
    join,
    learned,
    movement,
    norm,
    pad,
    pointwise,
    pool,
    recurrent,
    reduce,
    regions,
    resize,
)

__all__ = [
    "attention", "columns", "contract", "conv", "conv_transpose", "create", "gather", "grid", "join", "learned",
    "movement", "norm", "pad", "pointwise", "pool", "recurrent", "reduce", "regions", "resize",
]  # fmt: skip
