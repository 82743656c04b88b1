import ml_dtypes
import numpy as np
import pytest

from sardonyx import errors
from tests.ops.peers import agree, meaning, normal, reference, rounds_once, same

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
STEPS, BATCH, WIDTH, HIDDEN = 6, 3, 5, 4


def layer(name, ways, *, bias=True, lens=None, state=True, peephole=False, scale=0.6):
    gates = GATES[name]
    x = normal(STEPS, BATCH, WIDTH)
    w, r = normal(ways, gates * HIDDEN, WIDTH) * scale, normal(ways, gates * HIDDEN, HIDDEN) * scale
    b = normal(ways, 2 * gates * HIDDEN) if bias else None
    start = normal(ways, BATCH, HIDDEN) if state else None
    args = [x, w, r, b, None if lens is None else np.array(lens, np.int32), start]
    if name == "LSTM":
        args += [normal(ways, BATCH, HIDDEN, seed=1) if state else None]
        args += [normal(ways, 3 * HIDDEN, seed=2) if peephole else None]
    return args


def outputs(name):
    return 3 if name == "LSTM" else 2


@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("lens", [None, [6, 2, 4]])
@pytest.mark.parametrize("given", [False, True])
def test_directions_and_lengths(name, direction, lens, given):
    args = layer(name, 2 if direction == "bidirectional" else 1, bias=given, lens=lens, state=given, peephole=given)
    agree(name, *args, outputs=outputs(name), direction=direction, hidden_size=HIDDEN)


@pytest.mark.parametrize("name", GATES)
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_layout(name, direction):
    args = layer(name, 2 if direction == "bidirectional" else 1)
    plain = meaning(name, *args, outputs=outputs(name), direction=direction)
    args = [np.swapaxes(a, 0, 1) if a is not None and k in (0, 5, 6) else a for k, a in enumerate(args)]
    got = meaning(name, *args, outputs=outputs(name), direction=direction, layout=1)
    same(got, [plain[0].transpose(2, 0, 1, 3), *(np.swapaxes(s, 0, 1) for s in plain[1:])])
    agree(name, *args, outputs=outputs(name), direction=direction, hidden_size=HIDDEN, layout=1, peer=reference)


@pytest.mark.parametrize("reset", [0, 1])
@pytest.mark.parametrize("bias", [False, True])
def test_gru_reset(reset, bias):
    agree("GRU", *layer("GRU", 1, bias=bias), outputs=2, hidden_size=HIDDEN, linear_before_reset=reset)


@pytest.mark.parametrize(
    ("activation", "alpha", "beta"),
    [
        ("Relu", [], []),
        ("Sigmoid", [], []),
        ("Softsign", [], []),
        ("Softplus", [], []),
        ("Affine", [0.7], [0.1]),
        ("LeakyRelu", [0.3], []),
        ("ThresholdedRelu", [0.4], []),
        ("ScaledTanh", [0.8], [0.6]),
        ("HardSigmoid", [0.3], [0.4]),
        ("Elu", [0.7], []),
    ],
)
def test_activations(activation, alpha, beta):
    scales = {k: v for k, v in (("activation_alpha", alpha), ("activation_beta", beta)) if v}
    agree("RNN", *layer("RNN", 1, scale=0.3), outputs=2, hidden_size=HIDDEN, activations=[activation], **scales)
    names = ["Sigmoid", activation, "Tanh"]
    agree("LSTM", *layer("LSTM", 1, scale=0.3), outputs=3, hidden_size=HIDDEN, activations=names, **scales)
    agree("GRU", *layer("GRU", 1, scale=0.3), outputs=2, hidden_size=HIDDEN, activations=names[:2], **scales)


@pytest.mark.parametrize("name", GATES)
def test_clip(name):
    agree(name, *layer(name, 1, scale=2.0), outputs=outputs(name), hidden_size=HIDDEN, clip=0.3)


def test_coupled_gates():
    args = layer("LSTM", 1, peephole=True)
    agree("LSTM", *args, outputs=3, hidden_size=HIDDEN, input_forget=1)


@pytest.mark.parametrize("name", GATES)
def test_types(name):
    args = layer(name, 2, lens=[6, 1, 3])
    doubles = [a.astype(np.float64) if a is not None and a.dtype == np.float32 else a for a in args]
    wide = meaning(name, *doubles, outputs=outputs(name), direction="bidirectional")
    assert all(v.dtype == np.float64 for v in wide)
    same(meaning(name, *args, outputs=outputs(name), direction="bidirectional"), [v.astype(np.float32) for v in wide])
    for dtype in (np.float16, ml_dtypes.bfloat16):
        rounds_once(name, dtype, *args, outputs=outputs(name), direction="bidirectional")


@pytest.mark.parametrize(
    "change",
    [
        {"x": normal(STEPS, BATCH, WIDTH + 1)},
        {"r": normal(1, GATES["LSTM"] * HIDDEN + 1, HIDDEN)},
        {"lens": np.array([7, 1, 1], np.int32)},
        {"lens": np.array([-1, 1, 1], np.int32)},
        {"state": normal(1, BATCH + 1, HIDDEN)},
    ],
)
def test_inputs_that_do_not_fit(change):
    args = layer("LSTM", 1)
    for key, value in change.items():
        args[{"x": 0, "r": 2, "lens": 4, "state": 5}[key]] = value
    with pytest.raises(errors.InvalidArgument):
        meaning("LSTM", *args, outputs=3)


@pytest.mark.parametrize(
    "attributes", [{"direction": "sideways"}, {"activations": ["Tanh"]}, {"activations": ["Sin"] * 3}]
)
def test_unknown_attributes(attributes):
    with pytest.raises(errors.InvalidArgument):
        meaning("LSTM", *layer("LSTM", 1), outputs=3, **attributes)
