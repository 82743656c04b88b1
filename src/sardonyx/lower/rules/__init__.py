"""How each operator is lowered: one file per family."""

from sardonyx.lower.rules import (
    attention,
    contract,
    conv,
    conv_transpose,
    create,
    gather,
    join,
    learned,
    movement,
    norm,
    pointwise,
    pool,
    recurrent,
    reduce,
)

__all__ = [
    "attention", "contract", "conv", "conv_transpose", "create", "gather", "join", "learned", "movement", "norm",
    "pointwise", "pool", "recurrent", "reduce",
]  # fmt: skip
