"""Activation functions of recurrent gates as scalar programs, for numpy and for kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np

from sardonyx.errors import InvalidArgument
from sardonyx.ir.scalar import Emitter, Expr, run_numpy, trace
from sardonyx.ops import activation
from sardonyx.records import Record

Array = np.ndarray[Any, Any]

_FUNCTIONS: dict[str, tuple[Callable[[Emitter, Expr, float, float], Expr], tuple[float, ...]]] = {
    "relu": (lambda e, x, a, b: e.maximum(x, 0), ()),
    "tanh": (lambda e, x, a, b: e.tanh(x), ()),
    "sigmoid": (lambda e, x, a, b: e.sigmoid(x), ()),
    "softsign": (lambda e, x, a, b: x / (1 + e.abs(x)), ()),
    "softplus": (lambda e, x, a, b: e.softplus(x), ()),
    "affine": (lambda e, x, a, b: a * x + b, (1.0, 0.0)),
    "leakyrelu": (lambda e, x, a, b: e.where(x >= 0, x, a * x), (0.01,)),
    "thresholdedrelu": (lambda e, x, a, b: activation.thresholded_relu(e, x, alpha=a), (1.0,)),
    "scaledtanh": (lambda e, x, a, b: a * e.tanh(b * x), (1.0, 1.0)),
    "hardsigmoid": (lambda e, x, a, b: activation.hard_sigmoid(e, x, alpha=a, beta=b), (0.2, 0.5)),
    "elu": (lambda e, x, a, b: activation.elu(e, x, alpha=a), (1.0,)),
}
"""Functions of (x, alpha, beta), with the defaults of the constants that they use."""


def _odd_quotient(e: Emitter, x: Expr, limit: float, over: Sequence[float], under: Sequence[float]) -> Expr:
    """x p(x^2) / q(x^2) of x clamped to +-``limit``; coefficients are given from the highest power on."""
    x = e.clamp(x, -limit, limit)
    square = x * x
    p, q = (reduce(lambda total, c: e.fma(total, square, c), more, e.fma(square, first, second))
            for first, second, *more in (over, under))  # fmt: skip
    return x * p / q


_QUOTIENTS: dict[str, Callable[[Emitter, Expr], Expr]] = {
    "tanh": lambda e, x: _odd_quotient(
        e, x, 9.0,
        (-2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
         1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03),
        (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03),
    ),
    "sigmoid": lambda e, x: e.maximum(0.5 + _odd_quotient(
        e, x, 18.0,
        (4.37031012579801e-11, 1.15627324459942e-07, 6.08574864600143e-05, 8.51377133304701e-03, 2.48287947061529e-01),
        (6.10247389755681e-13, 5.76102136993427e-09, 6.29106785017040e-06, 1.70198817374094e-03,
         1.16817656904453e-01, 9.93151921023180e-01),
    ), 0),
}  # fmt: skip
"""Eigen's quotients of polynomials, with which onnxruntime approximates both to a few units in the last place."""


class Gate(Record):
    """A function by name, with its constants; its argument is clipped first, unless ``clip`` is 0."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0
    clip: float = 0.0
    is_quotient: bool = False
    """Tanh and Sigmoid are computed as onnxruntime does (``_QUOTIENTS``)."""

    def __call__(self, e: Emitter, x: Expr) -> Expr:
        if self.is_quotient and self.name in _QUOTIENTS:
            return _QUOTIENTS[self.name](e, e.clamp(x, -self.clip, self.clip) if self.clip else x)
        fn, _ = _FUNCTIONS[self.name]
        return fn(e, e.clamp(x, -self.clip, self.clip) if self.clip else x, self.alpha, self.beta)

    @property
    def unclipped(self) -> Gate:
        return replace(self, clip=0.0)

    def numpy(self, x: Array) -> Array:
        return run_numpy(trace(_apply, (True,), gate=self), x)


def _apply(e: Emitter, x: Expr, *, gate: Gate) -> Expr:
    return gate(e, x)


def gates_of(
    what: str,
    names: Sequence[str],
    alphas: Sequence[float] | None,
    betas: Sequence[float] | None,
    count: int,
    clip: float | None,
    *,
    are_quotients: bool = False,
) -> list[Gate]:
    """Functions by their names; alphas and betas are assigned in order to those that use them."""
    if len(names) != count:
        raise InvalidArgument(f"{what}: wrong number of activations", expected=count, got=list(names))
    alpha, beta = iter(alphas or ()), iter(betas or ())
    found = [_gate(what, name.lower(), alpha, beta, float(clip or 0)) for name in names]
    return [replace(gate, is_quotient=are_quotients) for gate in found]


def _gate(what: str, name: str, alpha: Iterator[float], beta: Iterator[float], clip: float) -> Gate:
    if name not in _FUNCTIONS:
        raise InvalidArgument(f"{what}: unknown activation", expected=sorted(_FUNCTIONS), got=name)
    _, defaults = _FUNCTIONS[name]
    a = float(next(alpha, defaults[0])) if defaults else 0.0
    b = float(next(beta, defaults[1])) if len(defaults) > 1 else 0.0
    return Gate(name, a, b, clip)
