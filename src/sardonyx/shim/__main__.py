"""``python -m sardonyx.shim``: run a program as ``python`` would, with Sardonyx instead of onnxruntime."""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Sequence

from sardonyx.shim import as_onnxruntime

CHILDREN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "children")
"""A folder with a module ``onnxruntime`` that only child processes find."""


def main(arguments: Sequence[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help"):
        print("usage: python -m sardonyx.shim (program.py | -m module) [arguments...]")
        raise SystemExit(0 if arguments else 2)
    as_onnxruntime()
    sys.path.insert(1, CHILDREN)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [CHILDREN, os.environ.get("PYTHONPATH")]))
    if arguments[0] == "-m":
        if len(arguments) < 2:
            raise SystemExit("-m needs a module")
        sys.argv[:] = arguments[1:]
        sys.path[0] = os.getcwd()
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    sys.argv[:] = arguments
    sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
    runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
