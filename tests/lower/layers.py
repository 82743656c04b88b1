"""Recurrent layers in text, with every input that they may have."""

from __future__ import annotations

from dataclasses import dataclass

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


@dataclass(frozen=True)
class Layer:
    """A node; t steps of n sequences are free sizes."""

    kind: str
    attributes: str = ""
    ways: int = 1
    hidden: int = 4
    width: int = 3
    dtype: str = "float"
    is_batch_first: bool = False
    has_lengths: bool = False
    has_peepholes: bool = False

    @property
    def text(self) -> tuple[str, str, str]:
        """The body, the inputs and the outputs of a graph."""
        gates, hidden, ways = GATES[self.kind], self.hidden, self.ways
        states = ["h", "c"][: 1 + (self.kind == "LSTM")]
        state = f"n,{ways},{hidden}" if self.is_batch_first else f"{ways},n,{hidden}"
        inputs = {
            "x": f"n,t,{self.width}" if self.is_batch_first else f"t,n,{self.width}",
            "w": f"{ways},{gates * hidden},{self.width}",
            "r": f"{ways},{gates * hidden},{hidden}",
            "b": f"{ways},{2 * gates * hidden}",
            **dict.fromkeys(states, state),
            **({"p": f"{ways},{3 * hidden}"} if self.has_peepholes else {}),
        }
        outputs = {"y": f"n,t,{ways},{hidden}" if self.is_batch_first else f"t,{ways},n,{hidden}"}
        outputs |= {f"y_{s}": state for s in states}
        declared = [f"{self.dtype}[{shape}] {name}" for name, shape in inputs.items()]
        names = list(inputs)
        names.insert(4, "lens" if self.has_lengths else '""')
        if self.has_lengths:
            declared.insert(4, "int32[n] lens")
        attributes = [f"hidden_size = {hidden}"]
        attributes += [self.attributes] if self.attributes else []
        attributes += ["layout = 1"] if self.is_batch_first else []
        body = f"{', '.join(outputs)} = {self.kind}<{', '.join(attributes)}>({', '.join(names)})"
        results = ", ".join(f"{self.dtype}[{shape}] {name}" for name, shape in outputs.items())
        return body, ", ".join(declared), results


BOTH = 'direction = "bidirectional"'
LATE = "linear_before_reset = 1"
LAYERS = {
    "rnn": Layer("RNN"),
    "gru": Layer("GRU"),
    "gru that resets late": Layer("GRU", LATE),
    "lstm": Layer("LSTM"),
    "lstm with peepholes": Layer("LSTM", has_peepholes=True),
    "coupled gates": Layer("LSTM", "input_forget = 1", has_peepholes=True),
    "clipped": Layer("LSTM", "clip = 0.3"),
    "backwards": Layer("LSTM", 'direction = "reverse"'),
    "both ways": Layer("GRU", BOTH, ways=2),
    "functions": Layer("GRU", 'activations = ["HardSigmoid", "Softsign"], activation_alpha = [0.3]'),
}
