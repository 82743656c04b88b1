"""Recurrent layers: one matrix product projects the inputs of all steps, then a loop runs over time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sardonyx.ops.gates import gates_of
from sardonyx.ops.limits import check_elements
from sardonyx.ops.precision import Array, narrow, require, require_below, widen
from sardonyx.ops.registry import op

State = tuple[Array, ...]
Step = Callable[[Array, State], State]


class Layer:
    """Inputs of a recurrent operator, checked, widened and converted to layout 0."""

    def __init__(
        self,
        what: str,
        gates: int,
        x: Array,
        w: Array,
        r: Array,
        b: Array | None,
        lens: Array | None,
        states: Sequence[Array | None],
        direction: str,
        layout: int,
        hidden_size: int | None,
    ) -> None:
        require(direction in ("forward", "reverse", "bidirectional"), f"{what}: unknown direction", got=direction)
        require(x.ndim == 3, f"{what}: X must have three axes", got=x.shape)
        self.dtype, self.layout = x.dtype, layout
        self.x = np.swapaxes(widen(x), 0, 1) if layout else widen(x)
        self.hidden, self.lens = r.shape[-1], lens
        self.reverse = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
        self._check_shapes(what, gates, w, r, b, states)
        require(
            hidden_size in (None, self.hidden),
            f"{what}: hidden_size differs from R",
            expected=self.hidden,
            got=hidden_size,
        )
        if lens is not None:
            require_below(len(self.x) + 1, lens, f"{what}: a sequence length is out of range")
        steps, batch, _ = self.x.shape
        ways = len(self.reverse)
        check_elements(steps * ways * batch * gates * self.hidden, self.x.dtype, f"gates of {what}")
        self.w, self.r = widen(w), widen(r)
        self.b = np.zeros((ways, 2 * gates * self.hidden), self.x.dtype) if b is None else widen(b)
        zeros = np.zeros((ways, batch, self.hidden), self.x.dtype)
        self.states = [zeros if s is None else np.swapaxes(widen(s), 0, 1) if layout else widen(s) for s in states]

    def _check_shapes(
        self, what: str, gates: int, w: Array, r: Array, b: Array | None, states: Sequence[Array | None]
    ) -> None:
        (_, batch, width), hidden, ways = self.x.shape, self.hidden, len(self.reverse)
        start = (batch, ways, hidden) if self.layout else (ways, batch, hidden)
        shapes: list[tuple[str, Array | None, tuple[int, ...]]] = [
            ("W", w, (ways, gates * hidden, width)),
            ("R", r, (ways, gates * hidden, hidden)),
            ("B", b, (ways, 2 * gates * hidden)),
            ("sequence_lens", self.lens, (batch,)),
            *(("an initial state", s, start) for s in states),
        ]
        for name, value, shape in shapes:
            if value is not None:
                fits = value.shape == shape
                require(fits, f"{what}: {name} has the wrong shape", expected=shape, got=value.shape)

    def bias(self, way: int) -> Array:
        """The sum of input and state biases, for cells that add both to the same gates."""
        return np.asarray(np.add(*np.split(self.b[way], 2)))

    def unmoved(self, state: State) -> State:
        """The last states of sequences without steps."""
        return state

    def project(self, rows: Array, way: int) -> Array:
        """The products of a direction's inputs with its weights; a row for each step and sequence."""
        return np.asarray(rows @ self.w[way].T)

    def recur(self, state: Array, way: int) -> Array:
        """The products of a direction's first state with its recurrent weights."""
        return np.asarray(state @ self.r[way].T)

    def run(self, bias: Callable[[int], Array], step: Callable[[int], Step]) -> tuple[Array, ...]:
        """Y and the last state of every kind, over all directions; ``bias`` and ``step`` take a direction."""
        steps, batch, width = self.x.shape
        ys, finals = [], []
        for way, backwards in enumerate(self.reverse):
            order = self._order(backwards)
            x = self.x if order is None else np.take_along_axis(self.x, order, axis=0)
            projected = self.project(x.reshape(steps * batch, width), way) + bias(way)
            projected = projected.reshape(steps, batch, len(self.w[way]))
            advance = step(way)
            state = tuple(s[way] for s in self.states)
            final = self.unmoved(state)
            y = np.zeros((steps, batch, self.hidden), x.dtype)
            for t in range(steps):
                state = advance(projected[t], state)
                if self.lens is None:
                    final = state
                else:
                    live = (t < self.lens)[:, None]
                    final = tuple(np.where(live, s, f) for s, f in zip(state, final, strict=True))
                    state = tuple(np.where(live, s, 0) for s in state)
                y[t] = state[0]
            ys.append(y if order is None else np.take_along_axis(y, order, axis=0))
            finals.append(final)
        all_y = np.stack(ys, axis=1)
        lasts = [np.stack(s) for s in zip(*finals, strict=True)]
        if self.layout:
            all_y, lasts = all_y.transpose(2, 0, 1, 3), [np.swapaxes(s, 0, 1) for s in lasts]
        return tuple(narrow(v, self.dtype) for v in (all_y, *lasts))

    def _order(self, backwards: bool) -> Array | None:
        """For a reverse direction, the input step that each step reads: the sequence reversed, padding unchanged."""
        if not backwards:
            return None
        steps, batch, _ = self.x.shape
        t = np.arange(steps)[:, None]
        lens = np.full(batch, steps) if self.lens is None else self.lens.astype(np.int64)
        return np.where(t < lens, lens - 1 - t, t)[:, :, None]


@op("RNN")
def rnn(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] = ("Tanh", "Tanh"),
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
) -> tuple[Array, ...]:
    layer = Layer("RNN", 1, x, w, r, b, sequence_lens, [initial_h], direction, layout, hidden_size)
    ways = len(layer.reverse)
    functions = gates_of("RNN", activations[:ways], activation_alpha, activation_beta, ways, clip)

    def step(way: int) -> Step:
        f = functions[way].numpy
        return lambda gates, state: (f(gates + layer.recur(state[0], way)),)

    return layer.run(layer.bias, step)


@op("GRU")
def gru(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    layout: int = 0,
    linear_before_reset: int = 0,
) -> tuple[Array, ...]:
    layer = Layer("GRU", 3, x, w, r, b, sequence_lens, [initial_h], direction, layout, hidden_size)
    hidden, ways = layer.hidden, len(layer.reverse)
    names = activations or ("Sigmoid", "Tanh") * ways
    functions = gates_of("GRU", names, activation_alpha, activation_beta, 2 * ways, clip)

    def bias(way: int) -> Array:
        inputs, recurrent = np.split(layer.b[way], 2)
        if linear_before_reset:
            recurrent = np.where(np.arange(3 * hidden) < 2 * hidden, recurrent, 0)
        return np.asarray(inputs + recurrent)

    def step(way: int) -> Step:
        f, g = (gate.numpy for gate in functions[2 * way : 2 * way + 2])
        gate_weights, hidden_weights = layer.r[way, : 2 * hidden].T, layer.r[way, 2 * hidden :].T
        hidden_bias = layer.b[way, 5 * hidden :]

        def advance(gates: Array, state: State) -> State:
            (h,) = state
            z, reset = np.split(f(gates[:, : 2 * hidden] + h @ gate_weights), 2, axis=1)
            through = (
                reset * (h @ hidden_weights + hidden_bias) if linear_before_reset else (reset * h) @ hidden_weights
            )
            new = g(gates[:, 2 * hidden :] + through)
            return ((1 - z) * new + z * h,)

        return advance

    return layer.run(bias, step)


@op("LSTM")
def lstm(
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    sequence_lens: Array | None = None,
    initial_h: Array | None = None,
    initial_c: Array | None = None,
    p: Array | None = None,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
    layout: int = 0,
) -> tuple[Array, ...]:
    states = [initial_h, initial_c]
    layer = Layer("LSTM", 4, x, w, r, b, sequence_lens, states, direction, layout, hidden_size)
    ways = len(layer.reverse)
    names = activations or ("Sigmoid", "Tanh", "Tanh") * ways
    functions = gates_of("LSTM", names, activation_alpha, activation_beta, 3 * ways, clip)
    wanted = (ways, 3 * layer.hidden)
    fits = p is None or p.shape == wanted
    require(fits, "LSTM: P has the wrong shape", expected=wanted, got=None if p is None else p.shape)

    def step(way: int) -> Step:
        f, g, last = functions[3 * way : 3 * way + 3]
        peep: Any = (0, 0, 0) if p is None else np.split(widen(p)[way], 3)

        def advance(gates: Array, state: State) -> State:
            h, c = state
            i, o, forget, cell = np.split(gates + layer.recur(h, way), 4, axis=1)
            i = f.numpy(i + peep[0] * c)
            forget = 1 - i if input_forget else f.numpy(forget + peep[2] * c)
            c = forget * c + i * g.numpy(cell)
            return f.numpy(o + peep[1] * c) * last.unclipped.numpy(c), c

        return advance

    return layer.run(layer.bias, step)
