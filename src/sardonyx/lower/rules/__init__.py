"""How each operator is lowered: one file per family."""

from sardonyx.lower.rules import attention, contract, create, gather, join, movement, norm, pointwise, reduce

__all__ = ["attention", "contract", "create", "gather", "join", "movement", "norm", "pointwise", "reduce"]
