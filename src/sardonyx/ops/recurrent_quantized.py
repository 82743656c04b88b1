"""DynamicQuantizeLSTM: an LSTM of 8-bit weights, whose inputs and hidden states are quantized as they come.

The inputs of all steps share one scale and zero point, and so do the hidden states of all sequences before a step
(``quantize.dynamic_quantize_linear``): inputs from the longest sequence's end on and states of sequences that have
ended do not count. The products are exact integers. onnxruntime computes the same on one thread; on several, it
divides the sequences among them, and each share of the states has its own scale.

Rounding a state to 8 bits turns a difference in its last bit into a step of 1/255 of the range now and then, which some
networks amplify without limit. So sums are added in onnxruntime's order, the bias last, and its approximations of Tanh
and Sigmoid are used.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sardonyx.ops.contrib import MICROSOFT
from sardonyx.ops.gates import gates_of
from sardonyx.ops.precision import Array, require
from sardonyx.ops.quantize import dynamic_quantize_linear
from sardonyx.ops.recurrent import Layer, State, Step
from sardonyx.ops.registry import op
from sardonyx.records import Record


class Weights(Record):
    """Integers (directions, inputs, columns); scales and zero points (directions, 1 or columns)."""

    q: Array
    scale: Array
    zero: Array | None

    @staticmethod
    def of(what: str, q: Array, scale: Array, zero: Array | None) -> Weights:
        require(q.ndim == 3, f"{what}: the weights must have three axes", got=q.shape)
        allowed = (q.shape[:1], (q.shape[0], q.shape[2]))
        for v in (scale, zero):
            fits = v is None or v.shape in allowed
            require(fits, f"{what}: scales and zero points are one for each direction or column", got=v)
        rows = zero if zero is None or zero.ndim == 2 else zero[:, None]
        return Weights(q, scale if scale.ndim == 2 else scale[:, None], rows)

    def times(self, x: Array, way: int) -> Array:
        """x quantized, times the weights of a direction."""
        rows, step, point = dynamic_quantize_linear(x)
        weights = self.q[way].astype(np.float64) - (0 if self.zero is None else self.zero[way].astype(np.float64))
        exact = (rows - point.astype(np.float64)) @ weights
        return np.asarray(exact.astype(np.float32) * (step * self.scale[way]))


class QuantizedLayer(Layer):
    """A layer whose products are those of integers."""

    weights: Weights
    recurrent: Weights

    def project(self, rows: Array, way: int) -> Array:
        steps, batch, _ = self.x.shape
        last = steps if self.lens is None else int(self.lens.max(initial=0))
        found = np.zeros((steps * batch, self.weights.q.shape[2]), np.float32)
        found[: last * batch] = self.weights.times(rows[: last * batch], way)
        return found

    def unmoved(self, state: State) -> State:
        return tuple(np.zeros_like(s) for s in state)

    def recur(self, state: Array, way: int) -> Array:
        return self.recurrent.times(state, way)


@op("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_quantize_lstm(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    p: Array | None = None,
    w_scale: Array | None = None,
    w_zero_point: Array | None = None,
    r_scale: Array | None = None,
    r_zero_point: Array | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
) -> tuple[Array, ...]:
    what = "DynamicQuantizeLSTM"
    require(w_scale is not None and r_scale is not None, f"{what}: a scale is missing")
    assert w_scale is not None and r_scale is not None
    weights = Weights.of(what, w, w_scale, w_zero_point), Weights.of(what, r, r_scale, r_zero_point)
    states = [initial_h, initial_c]
    rows, recurrent = np.swapaxes(w, 1, 2), np.swapaxes(r, 1, 2)
    layer = QuantizedLayer(what, 4, x, rows, recurrent, b, sequence_lens, states, direction, 0, hidden_size)
    layer.weights, layer.recurrent = weights
    ways = len(layer.reverse)
    names = activations or ("Sigmoid", "Tanh", "Tanh") * ways
    functions = gates_of(what, names, activation_alpha, activation_beta, 3 * ways, clip, are_quotients=True)
    fits = p is None or p.shape == (ways, 3 * layer.hidden)
    require(
        fits, f"{what}: P has the wrong shape", expected=(ways, 3 * layer.hidden), got=None if p is None else p.shape
    )

    def step(way: int) -> Step:
        f, g, last = functions[3 * way : 3 * way + 3]
        bias, none = np.split(layer.bias(way), 4), np.zeros(0, np.float32)
        peep = [none, none, none] if p is None else np.split(p[way], 3)

        def gate(total: Array, place: int, c: Array, weight: Array) -> Array:
            return np.asarray((total + c * weight if weight.size else total) + bias[place])

        def advance(gates: Array, state: State) -> State:
            h, c = state
            i, o, forget, cell = np.split(gates + layer.recur(h, way), 4, axis=1)
            i = f.numpy(gate(i, 0, c, peep[0]))
            forget = 1 - i if input_forget else f.numpy(gate(forget, 2, c, peep[2]))
            c = c * forget + i * g.numpy(gate(cell, 3, c, none))
            return f.numpy(gate(o, 1, c, peep[1])) * last.unclipped.numpy(c), c

        return advance

    return layer.run(lambda way: np.zeros(4 * layer.hidden, np.float32), step)
