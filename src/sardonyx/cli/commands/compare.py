"""Two models, or two engines on one model: outputs, values inside, times."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sardonyx.cli import FAILED, GOOD
from sardonyx.cli.console import hanging, show
from sardonyx.cli.options import AsJson, Dimensions, ModelPath, Seed, Shapes, dimensions, shapes
from sardonyx.cli.progress import progress

EXAMPLES = """
sardonyx compare float.onnx int8.onnx --tolerance 0.05
sardonyx compare model.onnx
sardonyx compare model.onnx --engine sardonyx --engine reference
sardonyx compare model.onnx optimized.onnx --no-layers --json
"""


def command(
    a: ModelPath,
    b: Annotated[
        Path | None,
        typer.Argument(
            metavar="[OTHER]", help="The other model; without it, engines are compared.", show_default=False
        ),
    ] = None,
    engine: Annotated[
        list[str] | None,
        typer.Option("--engine", help="sardonyx, onnxruntime or reference (onnx's own); twice.", show_default=False),
    ] = None,
    tolerance: Annotated[float, typer.Option(min=0, help="Relative L2 distance up to which values are alike.")] = 1e-3,
    layers: Annotated[bool, typer.Option("--layers/--no-layers", help="Compare values inside the models too.")] = True,
    dims: Dimensions = None,
    shape: Shapes = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> int:
    """Compare two models on Sardonyx, or one model on two engines, on the same generated inputs.

    Says whether outputs are alike, where values inside diverge first, and how long runs take. The status is 1 if
    outputs are not alike.
    """
    from sardonyx.errors import InvalidArgument
    from sardonyx.inspection.compare import compare_models

    if engine and len(engine) != 2:
        raise InvalidArgument("--engine is given twice: one for each side", got=", ".join(engine))
    with progress() as step:
        found = compare_models(
            a,
            b,
            engines=(engine[0], engine[1]) if engine else None,
            dimensions=dimensions(dims),
            shapes=shapes(shape),
            tolerance=tolerance,
            layers=layers,
            seed=seed,
            step=step,
        )
    show(found, lambda out: out.print(hanging(str(found), out.width, 4), soft_wrap=True), as_json)
    return GOOD if found.is_alike else FAILED
