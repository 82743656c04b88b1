"""Fuzzes loading and running: damaged models end in our errors, or in results that do not depend on the level.

    python fuzz/fuzz_model.py --seconds 60 [--seed 1] [--keep DIR]
    python fuzz/fuzz_model.py --replay FILE...

A generator makes valid models; mutations damage the message, its fields or its bytes. Each runs in a forked child, so
that a crash, a hang or a memory bomb is a finding like any other. With atheris installed, ``--atheris`` lets coverage
choose the bytes instead. Findings are written to DIR, each as the model that shows it.
"""

from __future__ import annotations

import argparse
import collections
import os
import pickle
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from sardonyx.errors import EngineError, OutOfBudget, SardonyxError
from sardonyx.interpret.context import RunContext
from sardonyx.session.engine import BuildOptions, build

LEVELS = ("disabled", "basic", "extended", "all")
SECONDS, NBYTES = 10, 2 << 30

UNARY = (
    "Relu",
    "Abs",
    "Neg",
    "Sigmoid",
    "Tanh",
    "Exp",
    "Identity",
    "Softmax",
    "Floor",
    "Sign",
    "Erf",
    "Elu",
    "Softplus",
)
BINARY = ("Add", "Sub", "Mul", "Div", "Max", "Min", "Pow", "MatMul")


def generate(rng: random.Random) -> onnx.ModelProto:
    """A valid model, most of the time: a chain over one input, with constants, a branch, a loop, a function."""
    shape = rng.choice([[2, 3], [4], [1, 2, 3, 4], [3, 3], []])
    names, nodes, constants = ["x"], [], []

    def constant(array: Any) -> str:
        constants.append(numpy_helper.from_array(np.asarray(array), f"c{len(constants)}"))
        return constants[-1].name

    def add(op_type: str, *inputs: str, **attrs: Any) -> None:
        nodes.append(helper.make_node(op_type, list(inputs), [f"v{len(nodes)}"], name=f"n{len(nodes)}", **attrs))
        names.append(nodes[-1].output[0])

    def some() -> str:
        return rng.choice(names[-3:])

    makers: list[Callable[[], None]] = [
        lambda: add(rng.choice(UNARY), some()),
        lambda: add(rng.choice(BINARY), some(), rng.choice([some(), constant(np.float32(rng.uniform(-2, 2)))])),
        lambda: add(
            "Reshape", some(), constant(np.array(rng.choice([[-1], [1, -1], [0, -1], [2, 3], [-1, 1]]), np.int64))
        ),
        lambda: add("Transpose", some()),
        lambda: add("Concat", some(), some(), axis=rng.choice([0, -1])),
        lambda: add("ReduceSum", some(), keepdims=rng.randint(0, 1)),
        lambda: add("Slice", some(), *(constant(np.array([rng.randint(-3, 3)], np.int64)) for _ in range(2))),
        lambda: add("Gather", some(), constant(np.array([rng.choice([0, -1, 1])], np.int64)), axis=0),
        lambda: add("Cast", some(), to=rng.choice([1, 6, 7, 9, 10, 11])),
        lambda: add("Expand", some(), constant(np.array([rng.randint(1, 3)] * rng.randint(1, 3), np.int64))),
        lambda: add("Shape", some()),
        lambda: add("Unsqueeze", some(), constant(np.array([0], np.int64))),
        lambda: add("MatMul", some(), constant(np.ones((rng.choice([2, 3, 4]), 300), np.float32))),
        lambda: add("Clip", some(), constant(np.float32(-1)), constant(np.float32(1))),
        lambda: add("LeakyRelu", some(), alpha=rng.random()),
        lambda: add("Double", some(), domain="f"),
        lambda: add("If", constant(np.array(rng.random() < 0.5)), then_branch=branch(), else_branch=branch()),
        lambda: add("Loop", constant(np.int64(rng.randint(0, 3))), "", some(), body=loop_body()),
    ]

    def branch() -> onnx.GraphProto:
        inner = helper.make_node(rng.choice(UNARY), [some()], ["inner"])
        return helper.make_graph([inner], "branch", [], [onnx.ValueInfoProto(name="inner")])

    def loop_body() -> onnx.GraphProto:
        info = helper.make_tensor_value_info
        steps = [helper.make_node("Identity", ["k"], ["k2"]), helper.make_node(rng.choice(UNARY), ["s"], ["s2"])]
        inputs = [info("i", TensorProto.INT64, []), info("k", TensorProto.BOOL, []), info("s", TensorProto.FLOAT, None)]
        return helper.make_graph(steps, "body", inputs, [onnx.ValueInfoProto(name=n) for n in ("k2", "s2")])

    for _ in range(rng.randint(1, 8)):
        rng.choice(makers)()
    opset = rng.choice([13, 17, 18, 21, 23])
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("f", 1)]
    double = helper.make_function(
        "f", "Double", ["a"], ["b"], [helper.make_node("Add", ["a", "a"], ["b"])], imports[:1]
    )
    outputs = [onnx.ValueInfoProto(name=n) for n in dict.fromkeys([names[-1], rng.choice(names[1:])])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "g", [x], outputs, constants)
    return helper.make_model(graph, opset_imports=imports, functions=[double], ir_version=10)


def damage(rng: random.Random, model: onnx.ModelProto) -> bytes:
    """A few mutations: of fields, keeping the message a message, or of its bytes."""
    for _ in range(rng.choice([0, 1, 1, 2, 4])):
        message: Any = model
        for _ in range(rng.randint(1, 6)):
            fields = [(f, v) for f, v in message.ListFields()]
            if not fields:
                break
            field, held = rng.choice(fields)
            repeated = field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED
            if field.message_type is not None and rng.random() < 0.8:
                message = rng.choice(held) if repeated else held
                continue
            _mutate(rng, message, field, held, repeated)
            break
    data = bytearray(model.SerializeToString())
    for _ in range(rng.choice([0, 0, 0, 1, 3])):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data[: rng.randrange(len(data) + 1)] if rng.random() < 0.05 else data)


NUMBERS = (0, 1, -1, 2, 3, 7, 64, 255, 1 << 20, 1 << 31, 1 << 40, (1 << 62), (1 << 63) - 1, -(1 << 63))


def _mutate(rng: random.Random, message: Any, field: Any, held: Any, repeated: bool) -> None:
    try:
        if repeated and len(held) and rng.random() < 0.6:
            i = rng.randrange(len(held))
            if rng.random() < 0.5:
                del held[i]
            elif field.message_type is not None:
                held.add().CopyFrom(held[i])
            else:
                held[i] = _value(rng, field, held[i])
        elif repeated or field.message_type is not None or rng.random() < 0.3:
            message.ClearField(field.name)
        else:
            setattr(message, field.name, _value(rng, field, held))
    except (ValueError, TypeError):
        pass  # a value that the field cannot hold


def _value(rng: random.Random, field: Any, old: Any) -> Any:
    if isinstance(old, str):
        return rng.choice(
            ["", "x", "y", "v0", "v1", "Add", "Loop", "Reshape", "Range", "Bogus", "ai.onnx.ml", "n" * 200]
        )
    if isinstance(old, bytes):
        return rng.choice([b"", old[:-1], old + b"\0", bytes(len(old)), b"\xff" * len(old)])
    if isinstance(old, float):
        return rng.choice([0.0, -1.0, float("nan"), float("inf"), 1e30, 1e-30])
    return rng.choice([*NUMBERS, old + 1, old - 1])


def feeds_of(engine: Any) -> dict[str, Any]:
    feeds = {}
    for v in engine.inputs:
        dims = [d if isinstance(d, int) else 2 for d in v.shape or ()]
        if v.dtype is None or int(np.prod(dims, dtype=object)) > 1 << 20:
            raise OutOfBudget("not fed")
        feeds[v.name] = (np.arange(int(np.prod(dims))) % 5 - 1).reshape(dims).astype(v.dtype.numpy)
    return feeds


def outcome(data: bytes) -> str:
    """``ok``, ``late`` for a loop that would run long, the class of our error, or a finding."""
    ends: list[Any] = []
    with np.errstate(all="ignore"):
        for level in LEVELS:
            try:
                engine = build(data, BuildOptions(level=level))
                context = RunContext(timeout_s=1)
                ends.append(engine.run(feeds_of(engine), [v.name for v in engine.outputs], context))
            except SardonyxError as e:
                if "deadline" in str(e):
                    return "late"
                if isinstance(e, EngineError):
                    return "FOUND engine error\n" + traceback.format_exc()
                ends.append(type(e).__name__)
            except Exception:
                return f"FOUND escape at {level}\n{traceback.format_exc()}"
    if all(isinstance(e, str) for e in ends):
        return str(ends[0])
    if any(isinstance(e, str) for e in ends):
        tolerated = isinstance(ends[0], str)  # a failing node that nobody reads, or a fold that spares the failure
        return "ok" if tolerated else f"FOUND levels differ: {[e if isinstance(e, str) else 'ok' for e in ends]}"
    different = [level for level, end in zip(LEVELS, ends, strict=True) if not all(map(same, ends[0], end))]
    return f"FOUND results differ at {different}" if different else "ok"


def same(a: Any, b: Any) -> bool:
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    if not isinstance(a, np.ndarray) or a.dtype == object:
        return str(a) == str(b)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    return bool(np.allclose(a.astype(wide), b.astype(wide), rtol=1e-3, atol=1e-5, equal_nan=True))


def in_child(data: bytes) -> str:
    """The outcome, worked out by a child that may crash."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        signal.alarm(SECONDS)
        used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + NBYTES, used + NBYTES))
        os.write(write, pickle.dumps(outcome(data)[-20_000:]))
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        content = pipe.read()
    _, status = os.waitpid(pid, 0)
    return pickle.loads(content) if content else f"FOUND death by signal {status & 0x7F}"


def fuzz(seconds: float, seed: int, keep: Path | None) -> int:
    """Run for a while; how many distinct findings there were."""
    counts: collections.Counter[str] = collections.Counter()
    findings: dict[str, bytes] = {}
    rng, end = random.Random(seed), time.monotonic() + seconds
    while time.monotonic() < end:
        data = damage(rng, generate(rng))
        result = in_child(data)
        if not result.startswith("FOUND"):
            counts[result] += 1
            continue
        counts["FOUND"] += 1
        key = result.splitlines()[0] + " " + result.strip().splitlines()[-1]
        if key not in findings:
            findings[key] = data
            print(result, flush=True)
            if keep is not None:
                keep.mkdir(parents=True, exist_ok=True)
                (keep / f"{seed}-{len(findings)}.onnx").write_bytes(data)
    print(
        f"{sum(counts.values())} models, {len(findings)} distinct findings; "
        + ", ".join(f"{k} {n}" for k, n in counts.most_common())
    )
    return len(findings)


def atheris_main(arguments: list[str]) -> None:
    import atheris

    def test_one(data: bytes) -> None:
        result = outcome(data)
        if result.startswith("FOUND"):
            raise RuntimeError(result)

    atheris.Setup(arguments, test_one)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--replay", nargs="+", type=Path)
    parser.add_argument("--atheris", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if options.atheris is not None:
        atheris_main([sys.argv[0], *options.atheris])
    if options.replay:
        for path in options.replay:
            print(path, outcome(path.read_bytes()))
        return 0
    outcome(generate(random.Random(0)).SerializeToString())
    return min(1, fuzz(options.seconds, options.seed, options.keep))


if __name__ == "__main__":
    sys.exit(main())
