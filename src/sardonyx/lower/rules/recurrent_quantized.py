"""DynamicQuantizeLSTM: the inputs are quantized and multiplied at once, the states by the ``Recurrence``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sardonyx import dtypes
from sardonyx.dtypes import DType
from sardonyx.ir.graph import Node, Value
from sardonyx.ir.scalar import Emitter, Expr
from sardonyx.ir.tensor import Tensor
from sardonyx.lower import views
from sardonyx.lower.expression_builder import ExpressionBuilder, Handle
from sardonyx.lower.groups import Stage, View
from sardonyx.lower.lowering import Lowering, rule
from sardonyx.lower.rules.integer import BYTES, Matrices, as_signed, combined, constant_of, finish, product, widened
from sardonyx.lower.rules.quantize import quantize_by_range
from sardonyx.lower.rules.recurrent import LSTM_FUNCTIONS, Layer, Operands
from sardonyx.lower.rules.reduce import Rows, apply
from sardonyx.lower.sizes import Refused, mul
from sardonyx.ops.contrib import MICROSOFT
from sardonyx.ops.gates import Gate


def _real(e: Emitter, total: Expr, step: Expr, scale: Expr) -> Expr:
    return e.cast(total, dtypes.f32) * (step * scale)


def _before_the_end(e: Emitter, x: Expr, index: Expr, end: Expr) -> Expr:
    return e.where(index < e.cast(end, dtypes.i64), x, 0)


def _total(e: Emitter, x: Expr, s: Expr, *more: Expr, has_peephole: bool) -> Expr:
    """The argument of a gate, summed in onnxruntime's order; ``more``: the state and its weight, the bias."""
    total, rest = x + s, list(more)
    if has_peephole:
        total = total + rest.pop(0) * rest.pop(0)
    return total + rest.pop() if rest else total


def _memory(e: Emitter, i: Expr, g: Expr, c: Expr, forget: Expr | None = None, *, f: Gate, tanh: Gate) -> Expr:
    """The cell's new state; the forget gate is coupled with the input gate if it is not given."""
    opened = f(e, i)
    return c * (1 - opened if forget is None else f(e, forget)) + opened * tanh(e, g)


def _output(e: Emitter, o: Expr, c: Expr, *, f: Gate, last: Gate) -> Expr:
    return f(e, o) * last(e, c)


class QuantizedLayer(Layer):
    """The operands of DynamicQuantizeLSTM; W and R are (directions, inputs, gates * units)."""

    are_quotients = True

    def weights(self) -> tuple[View, View]:
        w, r = (self.low.view(self.low.input(i)) for i in (1, 2))
        for view in (w, r):
            if view.dtype not in BYTES or len(view.shape) != 3:
                raise Refused(f"weights of {view.dtype} with {len(view.shape)} axes")
        transposed = [views.permuted(v, (0, 2, 1)) for v in (w, r)]
        return transposed[0], transposed[1]

    def quantize_states(self) -> None:
        """Make the recurrent weights signed, with a scale and a zero point for each unit."""
        low, is_unsigned = self.low, self.r.dtype is dtypes.u8
        if is_unsigned:
            self.r = as_signed(low, self.r)
        self.scale = self._per_unit(self._parameter(low.input(10)), dtypes.f32)
        point, offset = self.node.input(11), 128 if is_unsigned else 0
        if point is None:
            self.zero = None
            if offset:
                self.zero = self._per_unit(low.fit(low.scalar(-offset, dtypes.i32), (self.directions, 1)), dtypes.i32)
            return
        given = self._parameter(point)
        known = constant_of(given)
        if known is None or (known.numpy().astype(np.int32) != offset).any():
            self.zero = self._per_unit(given, dtypes.i32, offset)

    def _parameter(self, value: Value) -> View:
        """A scale or zero point: (directions, 1 or gates * units)."""
        view = self.low.view(value)
        if len(view.shape) == 1:
            view = views.inserted(view, 1)
        if len(view.shape) != 2:
            raise Refused("a scale or zero point is not one for each direction or column")
        self.low.require("there is not one scale or zero point for each direction", view.shape[0], self.directions)
        self.low.require("there is not one scale or zero point for each column", view.shape[1], 1, self.height)
        return view

    @property
    def height(self) -> int:
        return self.gates * self.hidden

    def _per_unit(self, view: View, to: DType, offset: int = 0) -> View:
        """A parameter minus an offset, as (directions, gates, units) with contiguous units."""
        low, shape, known = self.low, (self.directions, self.height), constant_of(view)
        if known is not None:
            made = low.constant(
                combined(to, lambda x, box: x.astype(to.numpy) - offset + box, known, _zeros(to, shape))
            )
        else:
            made, given = low.temporary(to, shape), low.fit(view, shape)
            if to.is_float:
                low.copy(given, made)
            else:
                body = ExpressionBuilder()
                moved = apply(body, widened, body.operand(given), dtype=to, subtracted=offset)
                low.loop(shape, body, [(moved, made)])
        return views.split(made, 1, (self.gates, self.hidden))

    def projected(self, bias: View | None) -> View:
        low, (steps, batch, width) = self.low, self.x.shape
        x = low.temporary(dtypes.u8, self.x.shape)
        step, zero = low.temporary(dtypes.f32, ()), low.temporary(dtypes.u8, ())
        quantize_by_range(low, self.x, x, step, zero, self._counted())
        rows = low.reshaped(x, (mul(steps, batch), width))
        out = low.temporary(self.dtype, (self.directions, mul(steps, batch), self.height))
        m = Matrices.of(low, rows, views.permuted(self.w, (0, 2, 1)), out)
        scale, point = self._parameter(low.input(8)), self.node.input(9)
        zeros = None if point is None else views.inserted(self._parameter(point), 1)
        p, b = product(low, m, zero, zeros)
        operands = [p.body.operand(low.fit(v, out.shape)) for v in (step, views.inserted(scale, 1))]
        p.result = apply(p.body, _real, p.result, *operands, dtype=self.dtype)
        finish(low, m, b, p)
        return views.split(views.split(out, 2, (self.gates, self.hidden)), 1, (steps, batch))

    def _counted(self) -> View | None:
        """The inputs whose range is quantized: what comes after the end of the longest sequence is 0."""
        low, value = self.low, self.node.input(4)
        if value is None:
            return None
        rows, end = Rows(low, low.view(value), [0]), low.temporary(dtypes.i32, ())
        rows.store((rows.body.reduce("max", rows.body.operand(rows.x), dtypes.i32), end))
        steps, out, body = self.x.shape[0], low.temporary(self.dtype, self.x.shape), ExpressionBuilder()
        index = views.inserted(views.inserted(low.indices(steps), 1), 2)
        args = [body.operand(low.fit(v, out.shape)) for v in (self.x, index, end)]
        low.loop(out.shape, body, [(apply(body, _before_the_end, *args, dtype=self.dtype), out)])
        return out


def _zeros(dtype: DType, shape: tuple[int, ...]) -> Tensor:
    return Tensor(dtype, shape, lambda: np.zeros(shape, dtype.numpy))


@rule("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_quantize_lstm(low: Lowering, node: Node) -> None:
    layer = QuantizedLayer(low, node, 4, LSTM_FUNCTIONS)
    if layer.dtype is not dtypes.f32 or layer.x.dtype is not dtypes.f32:
        raise Refused(f"DynamicQuantizeLSTM of {layer.x.dtype} is not compiled")
    layer.quantize_states()
    bias, is_coupled = layer.bias([True] * 4), bool(node.attrs.get("input_forget", 0))
    peepholes = layer.given(7, "P", (layer.directions, 3 * layer.hidden))
    constants = [] if peepholes is None else [layer.block(peepholes, i) for i in range(3)]
    constants += [] if bias is None else [layer.block(bias, i) for i in range(4)]

    def cell(gates: Sequence[Gate], given: Operands) -> tuple[Stage, ...]:
        f, g, last = gates
        body, x, s, (_, c), known = given.body(4)
        peep = [] if peepholes is None else known[:3]
        late = [] if bias is None else known[-4:]

        def total(gate: int, state: Handle | None = None) -> Handle:
            seen = [state, peep[gate]] if peep and state is not None else []
            args = [x[gate], s[gate], *seen, *late[gate : gate + 1]]
            return apply(body, _total, *args, dtype=dtypes.f32, has_peephole=bool(seen))

        args = [total(0, c), total(3), c, *(() if is_coupled else (total(2, c),))]
        new = apply(body, _memory, *args, dtype=dtypes.f32, f=f, tanh=g)
        h = apply(body, _output, total(1, new), new, dtype=dtypes.f32, f=f, last=last.unclipped)
        return (Stage((0, 1, 2, 3), 0, body.expression([h, new])),)

    layer.run(cell, None, 2, tuple(constants))
