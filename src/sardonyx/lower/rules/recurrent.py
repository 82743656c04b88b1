"""RNN, GRU and LSTM: one contraction projects the inputs of all steps, a ``Recurrence`` does the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sardonyx.dtypes import DType
from sardonyx.errors import InvalidArgument
from sardonyx.ir.dims import Known
from sardonyx.ir.graph import Node
from sardonyx.ir.scalar import Emitter, Expr
from sardonyx.ir.tensor import Tensor
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder, Handle, work_type
from sardonyx.lower.groups import Recurrence, Stage, View
from sardonyx.lower.lowering import Lowering, rule
from sardonyx.lower.rules.matmul import contraction
from sardonyx.lower.rules.reduce import apply, plus
from sardonyx.lower.sizes import Refused, mul
from sardonyx.ops.gates import Gate, gates_of
from sardonyx.records import Record

Cell = Callable[[Sequence[Gate], "Operands"], tuple[Stage, ...]]


class Operands(Record):
    """The numbers and the type of the operands of a stage's expression (``Stage``)."""

    gates: int
    states: int
    constants: int
    dtype: DType

    def body(
        self, sums: int, kept: int = 0
    ) -> tuple[ExpressionBuilder, list[Handle], list[Handle], list[Handle], list[Handle]]:
        """A builder, and the handles of its inputs, products, states, and constants followed by ``kept`` earlier
        results."""
        counts = (self.gates, sums, self.states, self.constants + kept)
        handles = [~i for i in range(sum(counts))]
        groups = [[handles.pop(0) for _ in range(n)] for n in counts]
        return ExpressionBuilder([self.dtype] * sum(counts)), groups[0], groups[1], groups[2], groups[3]


# -- RNN


@rule("RNN")
def rnn(low: Lowering, node: Node) -> None:
    def cell(gates: Sequence[Gate], given: Operands) -> tuple[Stage, ...]:
        body, (x,), (s,), _, _ = given.body(1)
        return (Stage((0,), 0, body.expression([apply(body, _gate, x, s, dtype=given.dtype, f=gates[0])])),)

    layer = Layer(low, node, 1, ("Tanh",))
    layer.run(cell, layer.bias([True]), 1, ())


def _gate(e: Emitter, x: Expr, s: Expr, *, f: Gate) -> Expr:
    return f(e, x + s)


# -- GRU


@rule("GRU")
def gru(low: Lowering, node: Node) -> None:
    resets_after_product = bool(node.attrs.get("linear_before_reset", 0))
    layer = Layer(low, node, 3, ("Sigmoid", "Tanh"))
    own = layer.block(layer.b, 5) if resets_after_product and layer.b is not None else None
    cell = _reset_after_product if resets_after_product else _reset_before_product
    layer.run(cell, layer.bias([True, True, not resets_after_product]), 1, () if own is None else (own,))


def _reset_after_product(gates: Sequence[Gate], given: Operands) -> tuple[Stage, ...]:
    body, x, s, (h,), bias = given.body(3)
    args = [x[0], s[0], x[1], s[1], x[2], s[2], h, *bias]
    return (
        Stage((0, 1, 2), 0, body.expression([apply(body, _gru, *args, dtype=given.dtype, f=gates[0], g=gates[1])])),
    )


def _reset_before_product(gates: Sequence[Gate], given: Operands) -> tuple[Stage, ...]:
    """Two stages: the reset gate of all units is needed before the product of the hidden gate."""
    body, x, s, (h,), _ = given.body(2)
    update = apply(body, _gate, x[0], s[0], dtype=given.dtype, f=gates[0])
    reset = apply(body, _reset, x[1], s[1], h, dtype=given.dtype, f=gates[0])
    first = Stage((0, 1), 0, body.expression([update, reset]))
    body, x, s, (h,), kept = given.body(1, kept=2)
    new = apply(body, _mixed, x[2], s[0], kept[0], h, dtype=given.dtype, g=gates[1])
    return first, Stage((2,), 2, body.expression([new]))


def _gru(
    e: Emitter, xz: Expr, sz: Expr, xr: Expr, sr: Expr, xh: Expr, sh: Expr, h: Expr, bias: Expr | None = None,
    *, f: Gate, g: Gate,
) -> Expr:  # fmt: skip
    z, reset = f(e, xz + sz), f(e, xr + sr)
    return _mixed(e, xh, reset * (sh if bias is None else sh + bias), z, h, g=g)


def _reset(e: Emitter, x: Expr, s: Expr, h: Expr, *, f: Gate) -> Expr:
    return f(e, x + s) * h


def _mixed(e: Emitter, x: Expr, s: Expr, z: Expr, h: Expr, *, g: Gate) -> Expr:
    return (1 - z) * g(e, x + s) + z * h


# -- LSTM


LSTM_FUNCTIONS = ("Sigmoid", "Tanh", "Tanh")


@rule("LSTM")
def lstm(low: Lowering, node: Node) -> None:
    layer = Layer(low, node, 4, LSTM_FUNCTIONS)
    is_coupled = bool(node.attrs.get("input_forget", 0))
    peepholes = layer.given(7, "P", (layer.directions, 3 * layer.hidden))
    constants = () if peepholes is None else tuple(layer.block(peepholes, i) for i in range(3))

    def cell(gates: Sequence[Gate], given: Operands) -> tuple[Stage, ...]:
        f, g, last = gates
        body, x, s, (_, c), peep = given.body(4)
        args = [x[0], s[0], x[2], s[2], x[3], s[3], c, *(peep[i] for i in (0, 2) if peep)]
        new = apply(body, _memory, *args, dtype=given.dtype, f=f, g=g, is_coupled=is_coupled)
        h = apply(body, _output, x[1], s[1], new, *peep[1:2], dtype=given.dtype, f=f, last=last.unclipped)
        return (Stage((0, 1, 2, 3), 0, body.expression([h, new])),)

    layer.run(cell, layer.bias([True] * 4), 2, constants)


def _memory(
    e: Emitter, xi: Expr, si: Expr, xf: Expr, sf: Expr, xc: Expr, sc: Expr, c: Expr,
    pi: Expr | None = None, pf: Expr | None = None, *, f: Gate, g: Gate, is_coupled: bool,
) -> Expr:  # fmt: skip
    i = f(e, xi + si if pi is None else xi + si + pi * c)
    forget = 1 - i if is_coupled else f(e, xf + sf if pf is None else xf + sf + pf * c)
    return forget * c + i * g(e, xc + sc)


def _output(e: Emitter, x: Expr, s: Expr, c: Expr, p: Expr | None = None, *, f: Gate, last: Gate) -> Expr:
    return f(e, x + s if p is None else x + s + p * c) * last(e, c)


# -- shared by all layers


class Layer:
    """The operands of a recurrent layer, as views with stride 1 along the units."""

    scale: View | None = None
    zero: View | None = None
    """Scales and zero points of recurrent weights that are integers (``Recurrence``)."""
    are_quotients = False
    """How Tanh and Sigmoid are computed (``Gate``)."""

    def __init__(self, low: Lowering, node: Node, gates: int, names: tuple[str, ...]) -> None:
        self.low, self.node, self.gates = low, node, gates
        direction = node.attrs.get("direction", "forward")
        backward = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}.get(direction)
        if backward is None:
            raise Refused(f"direction {direction!r} is unknown")
        self.backward, self.directions = backward, len(backward)
        self.is_batch_first = bool(node.attrs.get("layout", 0))
        self.x = low.view(low.input(0))
        self.dtype = work_type(self.x.dtype)
        self.w, self.r = self.weights()
        hidden = self.r.shape[-1:]
        if len(self.x.shape) != 3 or len(hidden) != 1 or not isinstance(hidden[0], int) or not self.x.dtype.is_float:
            raise Refused(f"{node.op_type} of {self.x.dtype} with {len(self.x.shape)} axes, or of an unknown size")
        self.hidden = hidden[0]
        if node.attrs.get("hidden_size", self.hidden) != self.hidden:
            raise Refused("hidden_size differs from R")
        height = self.gates * self.hidden
        self._fits("W", self.w, (self.directions, height, self.x.shape[2]))
        self._fits("R", self.r, (self.directions, height, self.hidden))
        self.b = self.given(3, "B", (self.directions, 2 * height))
        attrs, each = node.attrs, len(names)
        activations = attrs.get("activations") or names * self.directions
        try:
            found = gates_of(
                node.op_type, activations[: self.directions] if each == 1 else activations,
                attrs.get("activation_alpha"), attrs.get("activation_beta"), each * self.directions, attrs.get("clip"),
                are_quotients=self.are_quotients,
            )  # fmt: skip
        except InvalidArgument as why:
            raise Refused(str(why)) from None
        self.functions = [found[i : i + each] for i in range(0, len(found), each)]

    def weights(self) -> tuple[View, View]:
        """W and R, as (directions, gates * units, inputs)."""
        return self.low.view(self.low.input(1)), self.low.view(self.low.input(2))

    def _fits(self, what: str, view: View, shape: tuple[Known, ...]) -> None:
        if len(view.shape) != len(shape):
            raise Refused(f"{what} does not have {len(shape)} axes")
        for size, wanted in zip(view.shape, shape, strict=True):
            self.low.require(f"{self.node.op_type}: {what} has the wrong shape", size, wanted)

    def given(self, i: int, what: str, shape: tuple[Known, ...]) -> View | None:
        """Input ``i``, checked against a shape; None if it is absent. ``what`` names it in the error."""
        value = self.node.input(i)
        if value is None:
            return None
        view = self.low.view(value)
        self._fits(what, view, shape)
        return self._with_contiguous_units(view)

    def _with_contiguous_units(self, view: View) -> View:
        if view.strides[-1] == 1 or view.shape[-1] == 1:
            return view
        dense = self.low.temporary(view.dtype, view.shape)
        self.low.copy(view, dense)
        return dense

    def block(self, view: View, i: int) -> View:
        """Gate ``i`` of an operand that stacks gates: (directions, units)."""
        return views.sliced(view, 1, i * self.hidden, self.hidden)

    def bias(self, with_recurrent: Sequence[bool]) -> View | None:
        """The bias of the projected inputs, (directions, gates * units); for some gates with the recurrent bias
        added."""
        if self.b is None:
            return None
        value, height = self.node.input(3), self.gates * self.hidden
        keeps = np.repeat(np.array(with_recurrent), self.hidden)
        if value is not None and value.is_const:
            both = value.numpy().astype(self.dtype.numpy).reshape(self.directions, 2, height)
            return self.low.constant(Tensor.of(both[:, 0] + np.where(keeps, both[:, 1], 0)))
        out, body = self.low.temporary(self.dtype, (self.directions, height)), ExpressionBuilder()
        own, recurrent = (views.sliced(self.b, 1, i * height, height) for i in range(2))
        factor = self.low.fit(self.low.constant(Tensor.of(keeps.astype(self.dtype.numpy))), out.shape)
        args = [body.operand(v) for v in (own, recurrent, factor)]
        self.low.loop(out.shape, body, [(apply(body, _sum, *args, dtype=self.dtype), out)])
        return out

    def run(self, cell: Cell, bias: View | None, states: int, constants: tuple[View, ...]) -> None:
        x, outer = self.projected(bias), (1, 2, 0) if self.is_batch_first else (0, 1, 2)
        _, steps, batch, _, hidden = x.shape
        initial = []
        for i in range(states):
            shape = (batch, self.directions, hidden) if self.is_batch_first else (self.directions, batch, hidden)
            view = self.given(5 + i, "an initial state", shape)
            initial.append(view if view is None or not self.is_batch_first else views.permuted(view, (1, 0, 2)))
        lengths = self.given(4, "sequence_lens", (batch,))
        wanted = [*self.node.outputs, *[None] * 3][: 1 + states]
        y, *finals = (None if v is None or v.is_dead else self.low.make(v) for v in wanted)
        if y is not None:
            self._fits(
                "Y", y, (batch, steps, self.directions, hidden) if outer[0] else (steps, self.directions, batch, hidden)
            )
            y = views.permuted(y, (2, 1, 0, 3) if self.is_batch_first else (1, 0, 2, 3))
        finals = [v if v is None or not self.is_batch_first else views.permuted(v, (1, 0, 2)) for v in finals]
        operands = Operands(self.gates, states, len(constants), self.dtype)
        cells = [cell(functions, operands) for functions in self.functions]
        r = views.split(self.r, 1, (self.gates, self.hidden))
        ranges = [(0, self.directions)] if cells[0] == cells[-1] else [(i, 1) for i in range(self.directions)]

        for first, count in ranges:

            def some(view: View | None, first: int = first, count: int = count) -> View | None:
                return None if view is None else views.sliced(view, 0, first, count)

            every = [some(v) for v in (x, r, *constants)]
            known = [v for v in every if v is not None]
            self.low.groups.append(
                Recurrence(
                    (self.node,), known[0], known[1], tuple(known[2:]), lengths, tuple(map(some, initial)),
                    cells[first], self.backward[first : first + count], some(y), tuple(map(some, finals)),
                    some(self.scale), some(self.zero),
                )
            )  # fmt: skip

    def projected(self, bias: View | None) -> View:
        """The inputs times their weights, for all directions at once: (directions, steps, batch, gates, units)."""
        low, (first, second, width) = self.low, self.x.shape
        height = self.directions * self.gates * self.hidden
        rows = low.reshaped(self.x, (mul(first, second), width))
        weights = views.permuted(low.reshaped(self.w, (height, width)), (1, 0))
        out = low.temporary(self.dtype, (mul(first, second), height))
        body = ExpressionBuilder([self.dtype])
        result: Handle = ~0
        if bias is not None:
            operand = body.operand(low.fit(low.reshaped(bias, (height,)), out.shape))
            result = apply(body, plus, result, operand, dtype=self.dtype)
        contraction(low, rows, weights, body, result, out)
        view = views.split(views.split(out, 1, (self.directions, self.gates, self.hidden)), 0, (first, second))
        return views.permuted(view, (2, 1, 0, 3, 4) if self.is_batch_first else (2, 0, 1, 3, 4))


def _sum(e: Emitter, own: Expr, recurrent: Expr, factor: Expr) -> Expr:
    return own + recurrent * factor
