"""How many cases of ONNX's backend suite an engine passes.

    python benchmarks/conformance.py sardonyx|onnxruntime|onnx.reference

All engines are judged by one comparison, that of the tests: kind, type, shape, and value up to the case's tolerances.
The six Bernoulli cases, whose expected values are one random draw, count when they run.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.comparing import assert_same
from tests.conformance.onnx_cases import Case, every

Runner = Callable[[onnx.ModelProto], Any]


def runner(engine: str) -> Runner:
    if engine == "onnx.reference":
        from onnx.reference import ReferenceEvaluator

        return ReferenceEvaluator
    import importlib

    package = importlib.import_module(engine)
    package.set_default_logger_severity(4)
    return lambda model: package.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def passes(case: Case, make: Runner) -> bool:
    model = case.model()
    try:
        session = make(model)
        for inputs, outputs in case.data_sets():
            arrays = [np.asarray(x) if isinstance(x, np.generic) else x for x in inputs]
            feeds = dict(zip((v.name for v in model.graph.input), arrays, strict=False))
            got = session.run([o.name for o in model.graph.output], feeds)
            if "bernoulli" not in case.name:
                for value, expected in zip(got, outputs, strict=True):
                    assert_same(_objects(value), expected, case.tolerance)
    except Exception:
        return False
    return True


def _objects(value: Any) -> Any:
    """onnx.reference may give text as arrays of a fixed width; the suite expects objects."""
    is_fixed = isinstance(value, np.ndarray) and value.dtype.kind in "US"
    return value.astype(object) if is_fixed else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=["sardonyx", "onnxruntime", "onnx.reference"])
    parser.add_argument("--failures", action="store_true", help="name the cases that fail")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    make = runner(args.engine)
    failed = [case.name for case in every() if not passes(case, make)]
    print(f"{args.engine}: {len(every()) - len(failed)} of {len(every())}")
    if args.failures:
        print("\n".join(failed))


if __name__ == "__main__":
    main()
