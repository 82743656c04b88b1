"""A program that makes sessions, runs and drops them does not grow, whatever kind of model they have."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

MOST_MIB = 6
"""A slab that is never used again has 32, and the arenas of as many sessions more."""

PROGRAM = """
import gc, sys
import numpy as np, onnx.parser
from onnx.numpy_helper import from_array
import sardonyx

def memory():
    gc.collect()
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("RssAnon:"))

made = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 21]>' + {text!r})
rng = np.random.default_rng(0)
for name, shape in {weights!r}.items():
    made.graph.initializer.append(from_array(rng.standard_normal(shape).astype("f"), name))
content, options = made.SerializeToString(), sardonyx.SessionOptions()
options.intra_op_num_threads = 2
shapes = {shapes!r}

def once():
    session = sardonyx.InferenceSession(content, options)
    for n in (5, 3, 40):
        session.run(None, {{name: np.ones([n if d == "n" else d for d in s], t) for name, (s, t) in shapes.items()}})

for _ in range(10):
    once()
before = memory()
for _ in range(40):
    once()
after = memory()
print(f"{{before:.1f}} to {{after:.1f}} MiB")
sys.exit(after - before > {most})
"""
MODELS = {
    "static": (
        """ g (float[1, 16, 32, 32] x) => (float[1, 32, 32, 32] y)
        { a = Conv<pads = [1, 1, 1, 1]>(x, f) b = Relu(a) y = Conv<pads = [1, 1, 1, 1]>(b, g) }""",
        {"f": (64, 16, 3, 3), "g": (32, 64, 3, 3)},
        {"x": ((1, 16, 32, 32), "f")},
    ),
    "dynamic": (
        " g (float[n, 256] x) => (float[n, 256] y) { h = MatMul(x, w) r = Relu(h) y = MatMul(r, v) }",
        {"w": (256, 512), "v": (512, 256)},
        {"x": (("n", 256), "f")},
    ),
    "loop": (
        """ g (float[n, 256] x, int64 trips) => (float[n, 256] y)
        { yes = Constant<value = bool {1}>()
          y = Loop<body = body (int64 i, bool c, float[n, 256] a) => (bool d, float[n, 256] b)
            { d = Identity(c) h = MatMul(a, w) b = Tanh(h) }>(trips, yes, x) }""",
        {"w": (256, 256)},
        {"x": (("n", 256), "f"), "trips": ((), "int64")},
    ),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", MODELS)
def test_sessions_in_a_loop_do_not_grow(kind: str) -> None:
    text, weights, shapes = MODELS[kind]
    program = PROGRAM.format(text=text, weights=weights, shapes=shapes, most=MOST_MIB)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
